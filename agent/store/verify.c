/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what is on disk and verifies it: a piece of one object at a time, at a bounded rate, and behind all that clients wait for.
 * The object is not held meanwhile, so that its place in the order of eviction stays what it is: if it leaves the disk, what has
 * been read of it does not count.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Buckets that one turn looks at: some microseconds, for which workers wait. */
#define TURN_BUCKETS 128u
#define PAUSE_NS 20000
#define TENANT_MAX 64

struct store_verify {
	struct store *store;
	char space[DMSG_STORE_SPACE_MAX + 1], tenant[TENANT_MAX];
	uint32_t uid;
	uint64_t rate;
	int64_t due_ns;         /* the next piece */
	sd_event_source *timer; /* NULL: nobody wants to know more */
	uint16_t number;
	uint32_t at;  /* the group of the index that is next */
	bool begun;   /* the object with this key */
	bool reading; /* the disk has the request */
	uint8_t key_n, key[DMSG_STORE_KEY_MAX], name[DISK_KEY_MAX];
	struct disk_request request;
	uint8_t *buffer;
	struct store_verified found;
};

void verify_free(struct store_verify *v)
{
	if (!v)
		return;
	v->store->verify = NULL;
	sd_event_source_disable_unref(v->timer);
	free(v->buffer);
	free(v);
}

void store_verify_free(struct store_verify *v)
{
	if (!v)
		return;
	v->timer = sd_event_source_disable_unref(v->timer);
	if (!v->reading)
		verify_free(v);
}

bool store_verify_is_of(const struct store_verify *v, const char *space, const char *tenant,
			uint32_t uid)
{
	return !strcmp(v->space, space) && !strcmp(v->tenant, tenant) && v->uid == uid;
}

struct store_verified store_verify_found(const struct store_verify *v)
{
	return v->found;
}

static struct store_space *space_of(const struct store_verify *v)
{
	return space_named(v->store, v->space, v->tenant, v->uid);
}

/* The object that has been begun, if it is still there. */
static struct store_object *begun(const struct store_verify *v, struct store_space *sp)
{
	struct store_key key = { v->key, v->key_n };
	struct store_object *o = v->begun ? item_find(sp, key) : NULL;

	return o && is_on_disk(o) && disk_is_place(&v->request, &disk_part(o)->at) ? o : NULL;
}

static void piece_done(struct disk_request *r);

static struct store_object *begin(struct store_verify *v, struct store_object *o)
{
	disk_part(o)->seen = v->number;
	v->begun = true;
	v->key_n = o->key_n;
	memcpy(v->key, o->key, o->key_n);
	v->request = (struct disk_request){ .buffer = v->buffer, .done = piece_done };
	return o;
}

/* An object that has not been verified yet. NULL: there is none in this turn, or none at all. */
static struct store_object *unseen(struct store_verify *v, struct store_space *sp)
{
	for (uint32_t i = 0; i < TURN_BUCKETS && v->found.more; i++) {
		struct store_object *o = index_first(sp, v->at);

		for (; o; o = index_next(sp, o))
			if (is_on_disk(o) && disk_part(o)->seen != v->number)
				return begin(v, o);
		v->at = index_after(sp, v->at);
		v->found.more = v->at;
	}
	return NULL;
}

static struct store_object *next_object(struct store_verify *v)
{
	struct store_object *o = NULL;
	struct store_space *sp;

	pthread_mutex_lock(&v->store->lock);
	sp = space_of(v);
	if (sp && sp->n_buckets) {
		o = begun(v, sp);
		if (!o)
			o = unseen(v, sp);
	} else {
		v->found.more = false;
	}
	pthread_mutex_unlock(&v->store->lock);
	return o;
}

/* The end of the event loop is the only error. */
static void wait_until(struct store_verify *v, int64_t ns)
{
	int64_t left = dray_max(ns - dray_now().ns, (int64_t)0);

	if (sd_event_source_set_time_relative(v->timer, (uint64_t)left / 1000) >= 0)
		sd_event_source_set_enabled(v->timer, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct store_verify *v = arg;
	struct store_object *o = next_object(v);

	/* only the control thread frees what is on disk */
	v->reading = o;
	if (o)
		tier_verify(o, &v->request, v->name);
	else if (v->found.more)
		wait_until(v, dray_now().ns + PAUSE_NS);
	return 0;
}

static void object_end(struct store_verify *v, enum disk_result result)
{
	struct store_amount *a = result == DISK_OK      ? &v->found.good :
				 result == DISK_CORRUPT ? &v->found.damaged :
							  &v->found.unreadable;
	struct store_object *o;
	struct store_space *sp;

	pthread_mutex_lock(&v->store->lock);
	sp = space_of(v);
	o = sp ? begun(v, sp) : NULL;
	if (o) {
		a->objects++;
		a->bytes += object_bytes(o);
	}
	if (o && result == DISK_CORRUPT)
		tier_damaged(o);
	v->begun = false;
	pthread_mutex_unlock(&v->store->lock);
}

static void piece_done(struct disk_request *r)
{
	struct store_verify *v = dray_container_of(r, struct store_verify, request);
	uint64_t n = (r->verified - 1) % DISK_PIECE + 1;
	int64_t now_ns = dray_now().ns;

	v->reading = false;
	if (!v->timer) {
		verify_free(v);
		return;
	}
	if (r->result != DISK_OK || r->verified == r->at.bytes)
		object_end(v, r->result);
	/* what a busy disk has not done is not made up for */
	v->due_ns = dray_max(
		v->due_ns + (int64_t)((double)disk_blocks(n) / (double)v->rate * DRAY_NS_PER_SEC),
		now_ns);
	wait_until(v, v->due_ns);
}

/* 0 or -errno with reterr. */
static int check(struct store *s, const char *space, const char *tenant, uint32_t uid,
		 struct dray_err *reterr)
{
	struct store_totals t = store_totals(s);
	bool known;

	if (!t.has_disk)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this agent has no disk tier; set store.disk_dir");
	if (t.disk.state == DISK_STATE_ABSENT)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "what is on disk is not known: %.120s", t.disk.why);
	if (s->verify)
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"another verification runs, or has not ended yet; try again later");
	pthread_mutex_lock(&s->lock);
	known = space_named(s, space, tenant, uid);
	pthread_mutex_unlock(&s->lock);
	if (!known || strlen(space) > DMSG_STORE_SPACE_MAX || strlen(tenant) >= TENANT_MAX)
		return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND,
				    "there is no such name space");
	return 0;
}

int store_verify_new(struct store_verify **ret, struct store *s, const char *space,
		     const char *tenant, uint32_t uid, uint64_t rate, struct dray_err *reterr)
{
	int r = check(s, space, tenant, uid, reterr);
	struct store_verify *v;

	if (r < 0)
		return r;
	v = calloc(1, sizeof(*v));
	if (!v)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory to verify");
	s->verify = v;
	v->store = s;
	snprintf(v->space, sizeof(v->space), "%s", space);
	snprintf(v->tenant, sizeof(v->tenant), "%s", tenant);
	v->uid = uid;
	v->rate = rate;
	v->due_ns = dray_now().ns;
	v->found.more = true;
	/* 0 is that of objects that none has seen */
	if (!++s->verifications)
		s->verifications = 1;
	v->number = s->verifications;
	v->buffer = aligned_alloc(DISK_BLOCK, DISK_PIECE);
	r = v->buffer ? sd_event_add_time_relative(s->cfg.disk.event, &v->timer, CLOCK_MONOTONIC, 0,
						   1, on_timer, v) :
			-ENOMEM;
	if (r < 0) {
		verify_free(v);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory to verify");
	}
	*ret = v;
	return 0;
}
