/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of name spaces with a name, as they come and go, for what tells other agents of them. The memory for changes that nobody has
 * taken yet is bounded: those beyond it are lost, and a listing of all objects says what is true.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"

/* Of changes that wait, and as much of those that are being taken. */
#define BYTES_MAX (256u << 10)
/* Of the objects that one call of store_list() gives. */
#define LISTED_MAX (32u << 10)
/* Buckets that one call of store_list() looks at. */
#define BUCKETS_MAX 256u

struct batch {
	uint8_t *bytes;
	uint32_t at, n, max; /* bytes taken, all, and room */
};

struct changes {
	struct dray_job wake;
	bool woken;
	void (*changed)(void *arg);
	void *arg;
	uint64_t lost;
	struct batch coming, going, listed; /* the latter ones are of the control thread alone */
	uint8_t room[2 * BYTES_MAX + LISTED_MAX];
};

static void on_wake(struct dray_job *j)
{
	struct changes *c = dray_container_of(j, struct changes, wake);

	/* what comes from here on wakes again */
	__atomic_store_n(&c->woken, false, __ATOMIC_SEQ_CST);
	c->changed(c->arg);
}

static uint8_t *text_put(uint8_t *p, const void *text, size_t n)
{
	*p++ = (uint8_t)n;
	memcpy(p, text, n);
	return p + n;
}

/* False: there is no room for it. */
static bool put(struct batch *b, const struct store_object *o, bool here)
{
	const char *space = o->member->space->name;
	size_t n_space = strlen(space) + 1; /* with its terminator */
	uint8_t *p = b->bytes + b->n;

	if (b->n + 1 + 1 + n_space + 1 + o->key_n > b->max)
		return false;
	*p++ = here;
	p = text_put(p, space, n_space);
	p = text_put(p, o->key, o->key_n);
	b->n = (uint32_t)(p - b->bytes);
	return true;
}

void change_add(const struct store_object *o, bool here)
{
	struct store *s = store_of(o);
	struct changes *c = s->changes;

	if (!c || !o->member->space->name[0])
		return;
	if (!put(&c->coming, o, here))
		c->lost++;
	else if (!__atomic_exchange_n(&c->woken, true, __ATOMIC_SEQ_CST))
		dray_jobs_finish(s->jobs, &c->wake, on_wake);
}

int store_watch(struct store *s, void (*changed)(void *arg), void *arg)
{
	struct changes *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->changed = changed;
	c->arg = arg;
	c->coming = (struct batch){ .bytes = c->room, .max = BYTES_MAX };
	c->going = (struct batch){ .bytes = c->room + BYTES_MAX, .max = BYTES_MAX };
	c->listed = (struct batch){ .bytes = c->room + 2 * BYTES_MAX, .max = LISTED_MAX };
	pthread_mutex_lock(&s->lock);
	s->changes = c;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* Gives the next one. */
static void take(struct batch *b, store_change_fn fn, void *arg)
{
	const uint8_t *p = b->bytes + b->at;
	struct store_change change = { .here = *p, .space = (const char *)p + 2 };

	p += 2 + p[1];
	change.key = (struct store_key){ p + 1, *p };
	b->at = (uint32_t)(p + 1 + *p - b->bytes);
	fn(arg, &change);
}

static void swap(struct store *s, struct changes *c)
{
	struct batch b = c->going;

	b.at = b.n = 0;
	pthread_mutex_lock(&s->lock);
	c->going = c->coming;
	c->coming = b;
	pthread_mutex_unlock(&s->lock);
}

uint32_t store_changes(struct store *s, uint32_t max, store_change_fn fn, void *arg,
		       uint64_t *ret_lost)
{
	struct changes *c = s->changes;
	uint32_t n = 0;

	for (unsigned i = 0; i < 2 && n < max; i++) {
		if (c->going.at == c->going.n)
			swap(s, c);
		for (; n < max && c->going.at < c->going.n; n++)
			take(&c->going, fn, arg);
	}
	pthread_mutex_lock(&s->lock);
	*ret_lost = c->lost;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* --- listing ---------------------------------------------------------------------------------------- */

/* The first name space with a name, or the one after that. */
static struct store_space *next_space(struct store *s, const struct store_space *after)
{
	bool passed = !after;

	dray_list_for_each(&s->spaces, sp, struct store_space, link) {
		if (passed && sp->name[0])
			return sp;
		passed |= sp == after;
	}
	return NULL;
}

/* False: these were its last ones. */
static bool list_space(struct store_space *sp, struct batch *b, uint32_t *group, uint32_t max,
		       uint32_t *n)
{
	uint32_t left = BUCKETS_MAX;

	do {
		/* half of the room is for the objects of one group */
		if (*n >= max || b->n > b->max / 2 || !left--)
			return true;
		if (!sp->n_buckets)
			return false;
		/* those of a group that is far too full for want of memory may be left out */
		for (struct store_object *o = index_first(sp, *group); o; o = index_next(sp, o))
			*n += put(b, o, true);
		*group = index_after(sp, *group);
	} while (*group);
	return false;
}

static bool list(struct store *s, struct batch *b, struct store_listing *at, uint32_t max)
{
	struct store_space *sp = *at->space ? space_named(s, at->space, "", 0) : NULL;
	uint32_t n = 0;

	/* where a name space was that has been forgotten meanwhile nobody knows: the listing begins anew */
	if (!sp) {
		at->group = 0;
		sp = next_space(s, NULL);
	}
	for (; sp; sp = next_space(s, sp)) {
		memcpy(at->space, sp->name, sizeof(at->space));
		if (list_space(sp, b, &at->group, max, &n))
			return true;
	}
	return false;
}

bool store_list(struct store *s, struct store_listing *at, uint32_t max, store_change_fn fn,
		void *arg)
{
	struct batch *b = &s->changes->listed;
	bool more;

	b->at = b->n = 0;
	pthread_mutex_lock(&s->lock);
	more = list(s, b, at, max);
	pthread_mutex_unlock(&s->lock);
	if (!more)
		*at = (struct store_listing){ .group = 0 };
	while (b->at < b->n)
		take(b, fn, arg);
	return more;
}

uint64_t store_listed(struct store *s)
{
	uint64_t n = 0;

	pthread_mutex_lock(&s->lock);
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		n += sp->name[0] ? sp->n_objects : 0;
	pthread_mutex_unlock(&s->lock);
	return n;
}
