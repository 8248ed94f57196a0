/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that other agents read. The checksum of an object is computed when it is lent for the first time, so that a PUT does not pay
 * for what no other agent may ask for. A lookup by the control thread computes that of a few bytes in the call itself, else the thread of
 * the store does. A worker that sends an object has store_lent_sum() compute it, as much in a turn as a stream sends in one.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "lib/crc32c.h"
#include "schema/gen/errors.h"

/* Objects that one lookup reads from disk. */
#define LOADS_MAX 64
/* Objects that the lookups of one turn of the control thread evict for that, some 50 us. */
#define EVICTIONS_STEP 64
/* Longest cost that is told. */
#define COST_MAX 4000000000u

struct store_loan {
	struct dray_job job;
	struct store *store;
	struct dray_list link;  /* in store->loans */
	struct dray_list lends; /* on store->lends, while keys are to be looked up */
	struct store_wait wait; /* for objects on disk */
	uint64_t (*room)(void *arg);
	void (*ready)(void *arg);
	void *arg;
	bool is_ready;
	bool hold;            /* its objects are looked up again before they are read */
	_Atomic bool stopped; /* nobody needs the answers */
	uint64_t bytes;
	uint32_t n, n_loads;
	uint32_t looked; /* keys that have been looked up */
	char space[DMSG_STORE_SPACE_MAX];
	uint32_t space_n;
	uint32_t next; /* the first whose checksum is not known, and how far it is */
	struct summing sum;
	struct loan_item {
		struct store_get get; /* object NULL: status says why */
		struct store_key key; /* its bytes are behind the items */
		uint32_t crc;
	} items[];
};

static bool is_needed(const struct store_loan *l)
{
	return !l->store->ending && !l->stopped;
}

bool sum_go_on(struct summing *c, const struct store_object *o, uint64_t *turn)
{
	const uint8_t *p = store_of(o)->base + store_object_offset(o);
	uint64_t n = dray_min(*turn, object_bytes(o) - c->at);

	c->crc = dray_crc32c(c->crc, p + c->at, n);
	c->at += n;
	*turn -= n;
	return c->at == object_bytes(o);
}

/* The same, unless the checksum is known; it is from its end on. False: the turn is over. */
static bool object_sum(struct summing *c, struct store_object *o, uint64_t *turn)
{
	struct store *s = store_of(o);
	bool known;

	pthread_mutex_lock(&s->lock);
	known = o->has_crc;
	if (known)
		*c = (struct summing){ object_bytes(o), o->crc };
	pthread_mutex_unlock(&s->lock);
	if (known)
		return true;
	if (!*turn || !sum_go_on(c, o, turn))
		return false;
	pthread_mutex_lock(&s->lock);
	object_set_crc(o, c->crc);
	pthread_mutex_unlock(&s->lock);
	return true;
}

static bool item_sum(struct store_loan *l, struct loan_item *i, uint64_t *turn)
{
	if (!object_sum(&l->sum, i->get.object, turn))
		return false;
	i->crc = l->sum.crc;
	l->sum = (struct summing){ 0 };
	return true;
}

/* One thread at a time. False: the turn is over. */
static bool sum_some(struct store_loan *l, uint64_t turn)
{
	for (; l->next < l->n && is_needed(l); l->next++)
		if (l->items[l->next].get.object && !l->items[l->next].get.status &&
		    !item_sum(l, &l->items[l->next], &turn))
			return false;
	return true;
}

static void summed(struct dray_job *j);

/* Thread of the store. A turn at a time, so that large objects do not hold up the small ones of others. */
static void sum_all(struct dray_job *j)
{
	struct store_loan *l = dray_container_of(j, struct store_loan, job);

	if (sum_some(l, SUM_TURN))
		dray_jobs_finish(l->store->jobs, j, summed);
	else
		dray_jobs_add(l->store->jobs, j, sum_all, NULL);
}

/* An object is lent, or given back. Under the lock. */
static void count_lent(const struct store_object *o, uint64_t bytes)
{
	o->member->account->store_lent += bytes;
	store_of(o)->totals.lent += bytes;
}

/* The object is not lent any more. */
static void give_back(struct store_loan *l, struct loan_item *i)
{
	struct store_object *o = i->get.object;
	uint64_t bytes = o ? room(object_bytes(o)) : 0;

	if (!o)
		return;
	pthread_mutex_lock(&l->store->lock);
	count_lent(o, 0 - bytes);
	pthread_mutex_unlock(&l->store->lock);
	l->bytes -= bytes;
	store_get_end(&i->get);
}

static void give_all_back(struct store_loan *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		give_back(l, &l->items[i]);
}

static void loan_free(struct store_loan *l)
{
	give_all_back(l);
	dray_list_del(&l->lends);
	dray_list_del(&l->link);
	free(l);
}

static void summed(struct dray_job *j)
{
	struct store_loan *l = dray_container_of(j, struct store_loan, job);

	if (!l->ready) {
		loan_free(l);
		return;
	}
	/* what cannot be read, the peer does not get */
	for (uint32_t i = 0; i < l->n; i++)
		if (l->items[i].get.status)
			give_back(l, &l->items[i]);
	l->is_ready = true;
	l->ready(l->arg);
}

/* All its objects are in memory: under the lock. */
static void in_memory(struct store_wait *w)
{
	struct store_loan *l = dray_container_of(w, struct store_loan, wait);

	dray_jobs_add(l->store->jobs, &l->job, sum_all, NULL);
}

/*
 * Others hold half of an owner's memory at most, so that it can always evict the other half for its own PUTs; and what is held for later
 * takes half of that, because it counts again when it is read.
 */
static uint64_t owner_lends_most(const struct store_object *o, bool hold)
{
	return budget_limit(&o->member->account->budget, RESOURCE_STORE_BYTES) / (hold ? 4 : 2);
}

static bool owner_lends(const struct store_object *o, bool hold)
{
	return o->member->account->store_lent + room(object_bytes(o)) <= owner_lends_most(o, hold);
}

/* *ret_never: the object is too large for any lease. */
static bool may_lend(const struct store_loan *l, const struct store_object *o, uint64_t most,
		     bool *ret_never)
{
	uint64_t bytes = room(object_bytes(o));

	*ret_never = bytes > owner_lends_most(o, l->hold) ||
		     bytes > store_lend_most(l->store) / (l->hold ? 2 : 1);
	return bytes <= most && l->bytes <= most - bytes && owner_lends(o, l->hold) &&
	       (o->resident || l->n_loads < LOADS_MAX);
}

static void lend_one(struct store_loan *l, struct store_space *sp, struct store_key key,
		     uint64_t most, struct store_get *g)
{
	struct store_object *o = sp ? item_find(sp, key) : NULL;
	struct store_totals *t = &l->store->totals;
	bool never, loads;

	g->status = DMSG_STORE_STATUS_NOT_FOUND;
	if (!o)
		return;
	if (!may_lend(l, o, most, &never)) {
		g->status = never ? DMSG_STORE_STATUS_TOO_LARGE : DMSG_STORE_STATUS_BUSY;
		return;
	}
	loads = !o->resident;
	if (l->hold && item_tier(o) == DMSG_STORE_TIER_DISK) {
		g->status = item_fetch(o, &l->wait.share, &l->wait.effort);
		l->n_loads += loads && !l->wait.effort.more;
		if (!g->status)
			g->status = DMSG_STORE_STATUS_BUSY;
		return;
	}
	g->status = item_get(o, &l->wait, g);
	l->n_loads += loads && !l->wait.effort.more;
	if (g->status)
		return;
	l->bytes += room(object_bytes(o));
	count_lent(o, room(object_bytes(o)));
	t->lent_objects++;
	t->lent_bytes += object_bytes(o);
}

/* Looks the next keys up. False: it has to evict more, in the next turns. */
static bool lend_some(struct store_loan *l)
{
	struct store *s = l->store;
	struct store_effort *e = &l->wait.effort;
	uint64_t most = l->room(l->arg);
	struct store_space *sp;

	/* a key that has begun to evict goes on */
	*e = (struct store_effort){ .max = EVICTIONS_STEP, .of_key = e->of_key };
	/* what was read for it is not held, and its owner may be gone */
	if (l->hold)
		l->wait.share = (struct turns_share){ .member = NULL };
	pthread_mutex_lock(&s->lock);
	sp = space_find(s, NULL, (struct dray_str){ l->space, l->space_n });
	pthread_mutex_unlock(&s->lock);
	for (; l->looked < l->n; l->looked++) {
		struct loan_item *i = &l->items[l->looked];

		/* for each key, because it may have to evict some objects */
		pthread_mutex_lock(&s->lock);
		lend_one(l, sp, i->key, most, &i->get);
		pthread_mutex_unlock(&s->lock);
		if (e->more)
			return false;
		e->of_key = 0;
	}
	return true;
}

static void lend_next(struct dray_job *j);

static void lend_soon(struct store *s)
{
	if (s->lending || dray_list_empty(&s->lends))
		return;
	s->lending = true;
	dray_jobs_finish(s->jobs, &s->lend, lend_next);
}

/* Control thread: one step for one of them in each turn. */
static void lend_next(struct dray_job *j)
{
	struct store *s = dray_container_of(j, struct store, lend);
	struct store_loan *l = dray_list_pop(&s->lends, struct store_loan, lends);

	s->lending = false;
	if (l && is_needed(l) && !lend_some(l))
		dray_list_add(&s->lends, &l->lends);
	else if (l && !store_get_waits(s, &l->wait))
		dray_jobs_add(s->jobs, &l->job, sum_all, NULL);
	/* else in_memory() follows */
	lend_soon(s);
}

/* NULL: no memory. */
static struct store_loan *loan_new(struct store *s, struct dray_str space,
				   const struct store_key *keys, uint32_t n)
{
	size_t bytes = 0;
	struct store_loan *l;
	uint8_t *p;

	for (uint32_t i = 0; i < n; i++)
		bytes += keys[i].n;
	l = calloc(1, sizeof(*l) + n * sizeof(l->items[0]) + bytes);
	if (!l)
		return NULL;
	l->store = s;
	l->n = n;
	l->space_n = space.n;
	memcpy(l->space, space.p, space.n);
	p = (uint8_t *)&l->items[n];
	for (uint32_t i = 0; i < n; p += keys[i++].n)
		l->items[i].key = (struct store_key){ memcpy(p, keys[i].p, keys[i].n), keys[i].n };
	dray_list_init(&l->lends);
	dray_list_add(&s->loans, &l->link);
	/* one more than objects, so that none of them ends the wait alone */
	l->wait = (struct store_wait){ .pending = 1, .then = in_memory };
	return l;
}

int store_lend(struct store *s, const struct store_asker *who, const struct store_key *keys,
	       uint32_t n, bool hold, uint64_t (*room_of)(void *arg), void (*ready)(void *arg),
	       void *arg, struct store_loan **ret, struct dray_err *reterr)
{
	struct store_loan *l;
	int r = store_may_use(s, who, reterr);

	if (r < 0)
		return r;
	l = loan_new(s, who->space, keys, n);
	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a lookup");
	l->room = room_of;
	l->ready = ready;
	l->arg = arg;
	l->hold = hold;
	*ret = l;
	if (!lend_some(l)) {
		dray_list_add(&s->lends, &l->lends);
		lend_soon(s);
		return 0;
	}
	/* in_memory() follows */
	if (store_get_waits(s, &l->wait))
		return 0;
	if (!sum_some(l, SUM_HERE)) {
		dray_jobs_add(s->jobs, &l->job, sum_all, NULL);
		return 0;
	}
	l->is_ready = true;
	return 1;
}

static uint32_t cost_of(const struct store_object *o)
{
	return o->policy.cost < (float)COST_MAX ? (uint32_t)o->policy.cost : COST_MAX;
}

bool store_lends(const struct store *s)
{
	return s->cfg.lend;
}

/* An agent that holds *held bytes by store_find() may hold so many more. What it has leased counts as that of others. */
static bool finder_may_hold(const struct store *s, uint64_t held, uint64_t bytes)
{
	return held + bytes <= budget_share(s->cfg.bytes / 2, s->totals.lent - held, 0);
}

/* Holds it. Under the lock. */
static enum dmsg_store_status find_hold(struct store *s, struct dray_str space,
					struct store_key key, uint64_t most, uint64_t *held,
					struct store_lent *f)
{
	struct store_space *sp = space_find(s, NULL, space);
	struct store_object *o = sp ? item_find(sp, key) : NULL;
	struct store_get g = { .object = NULL };
	enum dmsg_store_status status;

	if (!o)
		return DMSG_STORE_STATUS_NOT_FOUND;
	if (object_bytes(o) > most || item_tier(o) != DMSG_STORE_TIER_MEMORY ||
	    !finder_may_hold(s, *held, room(object_bytes(o))) || !owner_lends(o, false))
		return DMSG_STORE_STATUS_BUSY;
	status = item_get(o, NULL, &g);
	if (status)
		return status;
	f->object = g.object;
	f->held = held;
	*held += room(object_bytes(o));
	count_lent(o, room(object_bytes(o)));
	s->totals.lent_objects++;
	s->totals.lent_bytes += object_bytes(o);
	f->p = s->base + store_object_offset(o);
	f->bytes = object_bytes(o);
	f->cost_us = cost_of(o);
	return status;
}

enum dmsg_store_status store_find(struct store *s, struct dray_str space, struct store_key key,
				  uint64_t most, uint64_t *held, struct store_lent *ret)
{
	enum dmsg_store_status status;

	*ret = (struct store_lent){ .bytes = 0 };
	pthread_mutex_lock(&s->lock);
	status = find_hold(s, space, key, most, held, ret);
	if (!status && ret->object->has_crc)
		ret->sum = (struct summing){ ret->bytes, ret->object->crc };
	pthread_mutex_unlock(&s->lock);
	return status;
}

bool store_lent_sum(struct store_lent *f, uint64_t *turn)
{
	return f->sum.at == f->bytes || object_sum(&f->sum, f->object, turn);
}

void store_lent_end(struct store_lent *f)
{
	struct store_object *o = f->object;
	struct store *s = store_of(o);

	pthread_mutex_lock(&s->lock);
	*f->held -= room(object_bytes(o));
	count_lent(o, 0 - room(object_bytes(o)));
	item_put(o);
	pthread_mutex_unlock(&s->lock);
}

uint64_t store_lent_bytes(struct store *s)
{
	uint64_t bytes;

	pthread_mutex_lock(&s->lock);
	bytes = s->totals.lent;
	pthread_mutex_unlock(&s->lock);
	return bytes;
}

uint64_t store_lend_most(const struct store *s)
{
	return s->cfg.bytes / 4;
}

uint64_t store_loan_bytes(const struct store_loan *l)
{
	return l->bytes;
}

struct store_loan_key store_loan_key(const struct store_loan *l, uint32_t i)
{
	const struct loan_item *item = &l->items[i];
	const struct store_object *o = item->get.object;
	struct store_loan_key k = { .status = item->get.status };

	if (k.status)
		return k;
	k.offset = store_object_offset(o);
	k.segment = store_object_segment(o);
	k.bytes = object_bytes(o);
	k.crc = item->crc;
	k.cost_us = cost_of(o);
	return k;
}

/* It does not wait for the disk any more. */
static void stop_waiting(struct store_loan *l)
{
	struct store *s = l->store;
	bool waits;

	pthread_mutex_lock(&s->lock);
	waits = l->wait.pending;
	l->wait.pending += waits;
	pthread_mutex_unlock(&s->lock);
	/* else the thread of the store may be reading them */
	if (!waits)
		return;
	give_all_back(l);
	pthread_mutex_lock(&s->lock);
	wait_less(&l->wait);
	pthread_mutex_unlock(&s->lock);
}

void store_loan_stop(struct store_loan *l)
{
	if (l->is_ready || l->stopped)
		return;
	l->stopped = true;
	stop_waiting(l);
}

void store_loan_end(struct store_loan *l)
{
	if (l->is_ready) {
		loan_free(l);
		return;
	}
	l->ready = NULL;
	store_loan_stop(l);
}

void loans_free(struct store *s)
{
	dray_list_for_each(&s->loans, l, struct store_loan, link)
		loan_free(l);
}
