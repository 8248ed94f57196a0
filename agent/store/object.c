/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a name space, and what happens to an object from its PUT to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"

#define BUCKETS_MIN 64

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 p = (unsigned __int128)a * b;

	return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Keys come from clients, so that each name space has a seed. */
static uint32_t hash(const struct store_space *sp, struct store_key key)
{
	uint64_t h = sp->seed ^ key.n, word;

	for (; key.n > sizeof(word); key.n -= sizeof(word), key.p += sizeof(word)) {
		memcpy(&word, key.p, sizeof(word));
		h = mix(h ^ word, sp->seed | 1);
	}
	word = 0;
	memcpy(&word, key.p, key.n);
	return (uint32_t)mix(h ^ word, 0xd1b54a32d192ed03u);
}

static struct store_object *find_hashed(struct store_space *sp, struct store_key key, uint32_t h)
{
	struct store_object *o = sp->n_buckets ? sp->buckets[h & (sp->n_buckets - 1)] : NULL;

	while (o && (o->policy.tag != h || o->key_n != key.n || memcmp(o->key, key.p, key.n)))
		o = o->next;
	return o;
}

struct store_object *item_find(struct store_space *sp, struct store_key key)
{
	return find_hashed(sp, key, hash(sp, key));
}

/* Without memory for more buckets the index becomes slow. False: there is not even a first one. */
static bool index_room(struct store_space *sp)
{
	uint32_t n = dray_max(sp->n_buckets * 2, (uint32_t)BUCKETS_MIN);
	struct store_object **buckets;

	if (sp->n_objects < sp->n_buckets || sp->n_buckets >= 1u << 31)
		return true;
	buckets = calloc(n, sizeof(struct store_object *));
	if (!buckets)
		return sp->n_buckets;
	for (uint32_t i = 0; i < sp->n_buckets; i++)
		for (struct store_object *o = sp->buckets[i], *next; o; o = next) {
			struct store_object **at = &buckets[o->policy.tag & (n - 1)];

			next = o->next;
			o->next = *at;
			*at = o;
		}
	free(sp->buckets);
	sp->buckets = buckets;
	sp->n_buckets = n;
	return true;
}

static void index_add(struct store_space *sp, struct store_object *o)
{
	struct store_object **at = &sp->buckets[o->policy.tag & (sp->n_buckets - 1)];

	o->next = *at;
	*at = o;
	sp->n_objects++;
	sp->bytes += o->policy.bytes;
	sp->store->totals.objects++;
	sp->store->totals.bytes += o->policy.bytes;
}

static void index_del(struct store_space *sp, struct store_object *o)
{
	struct store_object **at = &sp->buckets[o->policy.tag & (sp->n_buckets - 1)];

	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	sp->n_objects--;
	sp->bytes -= o->policy.bytes;
	sp->store->totals.objects--;
	sp->store->totals.bytes -= o->policy.bytes;
}

static void item_free(struct store_object *o)
{
	struct store_member *m = o->member;

	memory_free(m->space, o);
	budget_put(&m->account->budget, RESOURCE_STORE_BYTES, room(o->policy.bytes));
	m->refs--;
	free(o);
}

void item_remove(struct store_object *o, bool evicted)
{
	struct store_space *sp = o->member->space;

	index_del(sp, o);
	policy_remove(sp->policy, &o->policy, evicted);
	if (evicted) {
		sp->evictions++;
		sp->store->totals.evictions++;
		sp->store->totals.evicted_bytes += o->policy.bytes;
		sp->store->totals.evicted_cost_us += (uint64_t)o->policy.cost;
	}
	o->state = OBJECT_GONE;
	if (!o->holds)
		item_free(o);
}

bool item_evict(struct store_space *sp)
{
	struct policy_entry *e = policy_victim(sp->policy);

	if (!e)
		return false;
	item_remove(dray_container_of(e, struct store_object, policy), true);
	return true;
}

void item_hold(struct store_object *o)
{
	if (!o->holds++ && o->state == OBJECT_LIVE)
		policy_hold(o->member->space->policy, &o->policy);
}

void item_put(struct store_object *o)
{
	if (--o->holds)
		return;
	if (o->state == OBJECT_LIVE)
		policy_release(o->member->space->policy, &o->policy);
	else
		item_free(o);
}

/* The one with the most memory, apart from `sp`. */
static struct store_space *largest_other(struct store_space *sp)
{
	struct store_space *largest = NULL;

	dray_list_for_each(&sp->store->spaces, other, struct store_space, link)
		if (other != sp && (!largest || other->memory > largest->memory))
			largest = other;
	return largest;
}

/*
 * No memory is left for a new segment. One without objects moves to the name space. If the name space has less than half of
 * what the largest one has, that one evicts for it.
 */
static void memory_claim(struct store_space *sp)
{
	struct store_space *from;

	dray_list_for_each(&sp->store->spaces, other, struct store_space, link)
		if (other != sp && memory_shrink(other))
			return;
	from = largest_other(sp);
	if (!sp->store->cfg.evict || !from || sp->memory >= from->memory / 2)
		return;
	memory_clear(from);
	memory_shrink(from);
}

/* A place for n granules; it may evict. The thread of the store gives memory back, so that busy is no end. */
static bool place(struct store_space *sp, struct store_object *o, uint32_t n)
{
	bool claimed = false;

	for (unsigned i = 0; i < EVICTED_AT_ONCE; i++) {
		if (memory_alloc(sp, o, n) || (memory_grow(sp, n) && memory_alloc(sp, o, n)))
			return true;
		if (!claimed)
			memory_claim(sp);
		claimed = true;
		if (!sp->store->cfg.evict || !item_evict(sp)) {
			/* empty segments of its own may be too small */
			memory_shrink(sp);
			return false;
		}
	}
	return false;
}

/* Counts the bytes at the owner; evicts what it has in this name space. */
static bool charge(struct store_member *m, uint64_t bytes)
{
	for (unsigned i = 0; i < EVICTED_AT_ONCE; i++) {
		struct dray_err err = DRAY_ERR_NULL;

		if (budget_take(&m->account->budget, RESOURCE_STORE_BYTES, bytes, &err) == 0)
			return true;
		if (!m->space->store->cfg.evict || !item_evict(m->space))
			return false;
	}
	return false;
}

static enum dmsg_store_status put_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t cost_us, struct store_object **ret)
{
	struct store_space *sp = m->space;
	uint32_t h = hash(sp, key);
	struct store_object *o;

	if (find_hashed(sp, key, h))
		return DMSG_STORE_STATUS_EXISTS;
	if (bytes > sp->store->cfg.bytes || bytes > UINT32_MAX * (uint64_t)GRANULE / 2 ||
	    room(bytes) > budget_limit(&m->account->budget, RESOURCE_STORE_BYTES))
		return DMSG_STORE_STATUS_TOO_LARGE;
	if (!charge(m, room(bytes)))
		return DMSG_STORE_STATUS_BUSY;
	o = calloc(1, sizeof(*o) + key.n);
	if (!o || !place(sp, o, granules(bytes))) {
		free(o);
		budget_put(&m->account->budget, RESOURCE_STORE_BYTES, room(bytes));
		return DMSG_STORE_STATUS_BUSY;
	}
	o->member = m;
	m->refs++;
	o->state = OBJECT_WRITING;
	o->policy.bytes = bytes;
	o->policy.cost = (float)cost_us;
	o->policy.tag = h;
	o->key_n = (uint8_t)key.n;
	memcpy(o->key, key.p, key.n);
	*ret = o;
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status store_put_begin(struct store_member *m, struct store_key key, uint64_t bytes,
				       uint32_t cost_us, struct store_object **ret)
{
	struct store *s = m->space->store;
	enum dmsg_store_status status;

	pthread_mutex_lock(&s->lock);
	status = put_begin(m, key, bytes, cost_us, ret);
	pthread_mutex_unlock(&s->lock);
	return status;
}

static enum dmsg_store_status put_end(struct store_object *o, bool done)
{
	struct store_space *sp = o->member->space;
	float cost = o->policy.cost;

	/* it may have come meanwhile by another PUT: that one stays */
	if (done && find_hashed(sp, (struct store_key){ o->key, o->key_n }, o->policy.tag)) {
		item_free(o);
		return DMSG_STORE_STATUS_EXISTS;
	}
	if (!done || !index_room(sp) ||
	    policy_add(sp->policy, &o->policy, o->policy.bytes, cost > 0 ? cost : 1,
		       o->policy.tag) < 0) {
		item_free(o);
		return done ? DMSG_STORE_STATUS_BUSY : DMSG_STORE_STATUS_NOT_TRIED;
	}
	o->state = OBJECT_LIVE;
	index_add(sp, o);
	sp->puts++;
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status store_put_end(struct store_object *o, bool done)
{
	struct store *s = store_of(o);
	enum dmsg_store_status status;

	pthread_mutex_lock(&s->lock);
	status = put_end(o, done);
	pthread_mutex_unlock(&s->lock);
	return status;
}

struct store_object *store_get_begin(struct store_member *m, struct store_key key)
{
	struct store *s = m->space->store;
	struct store_object *o;

	pthread_mutex_lock(&s->lock);
	o = item_find(m->space, key);
	if (o) {
		policy_use(m->space->policy, &o->policy);
		item_hold(o);
		m->space->hits++;
	} else {
		m->space->misses++;
	}
	pthread_mutex_unlock(&s->lock);
	return o;
}

void store_get_end(struct store_object *o)
{
	struct store *s = store_of(o);

	pthread_mutex_lock(&s->lock);
	item_put(o);
	pthread_mutex_unlock(&s->lock);
}

uint64_t store_object_bytes(const struct store_object *o)
{
	return o->policy.bytes;
}

uint64_t store_object_offset(const struct store_object *o)
{
	return o->at.slot * store_of(o)->slot_bytes + (uint64_t)o->at.start * GRANULE;
}

void store_exists(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret)
{
	struct store *s = m->space->store;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		const struct store_object *o = item_find(m->space, keys[i]);

		ret[i] = (struct dmsg_store_result){
			.status = o ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND,
			.length = o ? o->policy.bytes : 0,
		};
	}
	pthread_mutex_unlock(&s->lock);
}

void store_remove(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret)
{
	struct store *s = m->space->store;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		struct store_object *o = item_find(m->space, keys[i]);

		ret[i] = (struct dmsg_store_result){
			.status = o ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND,
			.length = o ? o->policy.bytes : 0,
		};
		if (o)
			item_remove(o, false);
	}
	pthread_mutex_unlock(&s->lock);
}
