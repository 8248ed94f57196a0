/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The most valuable objects of a name space, and those of them that are only on disk brought into memory. A search looks at all
 * objects of the index, some buckets in a turn, and keeps the best. Between turns objects come and go, and the index may grow.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "schema/gen/errors.h"

/* Objects that one turn looks at, about, and buckets: some microseconds, for which workers wait. */
#define TURN_OBJECTS 64u
#define TURN_BUCKETS 128u
#define TENANT_MAX 64

struct store_search {
	struct store *store;
	char space[DMSG_STORE_SPACE_MAX + 1], tenant[TENANT_MAX];
	uint32_t uid;
	bool disk_only;
	bool left_out; /* some objects, for which their owners have no room in memory */
	uint32_t at;   /* the group of the index that is next */
	uint32_t most, n;
	double least;           /* others are worth no more than what has been found */
	struct store_found v[]; /* twice `most` */
};

struct store_search *store_search_new(struct store *s, const char *space, const char *tenant,
				      uint32_t uid, uint32_t most, bool disk_only,
				      struct dray_err *reterr)
{
	struct store_search *q;
	bool found = false;

	if (s && strlen(space) < sizeof(q->space) && strlen(tenant) < sizeof(q->tenant)) {
		pthread_mutex_lock(&s->lock);
		found = space_named(s, space, tenant, uid);
		pthread_mutex_unlock(&s->lock);
	}
	if (!found) {
		dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND, "there is no such name space");
		return NULL;
	}
	q = calloc(1, sizeof(*q) + 2 * (size_t)most * sizeof(q->v[0]));
	if (!q) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a search");
		return NULL;
	}
	q->store = s;
	snprintf(q->space, sizeof(q->space), "%s", space);
	snprintf(q->tenant, sizeof(q->tenant), "%s", tenant);
	q->uid = uid;
	q->most = most;
	q->disk_only = disk_only;
	q->least = -1;
	return q;
}

void store_search_free(struct store_search *q)
{
	free(q);
}

static int by_worth(const void *a, const void *b)
{
	const struct store_found *x = a, *y = b;

	return (x->worth < y->worth) - (x->worth > y->worth);
}

/* Keeps the best. */
static void cut(struct store_search *q)
{
	qsort(q->v, q->n, sizeof(q->v[0]), by_worth);
	if (q->n < q->most)
		return;
	q->n = q->most;
	q->least = q->v[q->n - 1].worth;
}

/* Its owner has room for it in memory, without an eviction. */
static bool fits(const struct store_object *o)
{
	const struct budget_account *a = &o->member->account->budget;
	uint64_t used = budget_used(a, RESOURCE_STORE_BYTES);

	return used + room(object_bytes(o)) <= budget_limit(a, RESOURCE_STORE_BYTES) &&
	       room(object_bytes(o)) <= store_of(o)->cfg.bytes;
}

static void look_at(struct store_search *q, struct store_object *o)
{
	struct store_found *f = &q->v[q->n];
	bool in_memory = item_tier(o) == DMSG_STORE_TIER_MEMORY;
	double worth = policy_worth(&o->policy);

	if (worth <= q->least || (q->disk_only && (o->resident || !is_on_disk(o))))
		return;
	if (q->disk_only && !fits(o)) {
		q->left_out = true;
		return;
	}
	*f = (struct store_found){ .bytes = object_bytes(o),
				   .cost_us = (uint64_t)o->policy.cost,
				   .uses = o->policy.uses,
				   .worth = worth,
				   .in_memory = in_memory,
				   .on_disk = is_on_disk(o),
				   .held = o->holds,
				   .key_n = o->key_n };
	memcpy(f->key, o->key, o->key_n);
	if (++q->n == 2 * q->most)
		cut(q);
}

static bool turn(struct store_search *q, struct store_space *sp)
{
	uint32_t objects = 0;

	for (uint32_t i = 0; i < TURN_BUCKETS && objects < TURN_OBJECTS; i++) {
		struct store_object *o = index_first(sp, q->at);

		for (; o; o = index_next(sp, o), objects++)
			look_at(q, o);
		q->at = index_after(sp, q->at);
		if (!q->at)
			return false;
	}
	return true;
}

bool store_search_turn(struct store_search *q)
{
	struct store_space *sp;
	bool more;

	pthread_mutex_lock(&q->store->lock);
	sp = space_named(q->store, q->space, q->tenant, q->uid);
	more = sp && sp->n_buckets && turn(q, sp);
	pthread_mutex_unlock(&q->store->lock);
	if (!more)
		cut(q);
	return more;
}

const struct store_found *store_search_found(const struct store_search *q, uint32_t *ret_n)
{
	*ret_n = q->n;
	return q->v;
}

struct store_loaded store_search_load(const struct store_search *q, uint64_t bytes)
{
	struct store_loaded ret = { .objects = 0 };
	struct turns_share share = { .n = 0 };
	struct store_space *sp;

	pthread_mutex_lock(&q->store->lock);
	sp = space_named(q->store, q->space, q->tenant, q->uid);
	for (uint32_t i = 0; sp && i < q->n && ret.bytes < bytes; i++) {
		struct store_object *o =
			item_find(sp, (struct store_key){ q->v[i].key, q->v[i].key_n });
		enum dmsg_store_status status = o && !o->resident ? item_load_spare(o, &share) :
								    DMSG_STORE_STATUS_NOT_FOUND;

		if (status == DMSG_STORE_STATUS_OK) {
			ret.objects++;
			ret.bytes += object_bytes(o);
		}
		ret.full |= status == DMSG_STORE_STATUS_NOT_TRIED;
		ret.waits |= status == DMSG_STORE_STATUS_BUSY;
		if (ret.full || ret.waits)
			break;
	}
	pthread_mutex_unlock(&q->store->lock);
	/* what could not be begun would be found again */
	ret.more = ret.objects && q->n == q->most;
	ret.full |= q->left_out && !ret.more && !ret.waits;
	return ret;
}
