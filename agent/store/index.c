/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a name space, by linear hashing (W. Litwin, VLDB 1980): it grows by dividing a few buckets for each object that comes.
 * To divide all of them at once would take seconds for a store of millions of objects, under the lock of the store.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "lib/hash.h"

#define BUCKETS_MIN 64u
#define BUCKETS_MAX (1u << 31)
/* For each new object: more than one, because there may be too few after a lack of memory. */
#define DIVIDED 2

/* Keys come from clients, so that each name space has a seed. */
uint32_t item_hash(const struct store_space *sp, struct store_key key)
{
	return (uint32_t)dray_hash(sp->seed, key.p, key.n);
}

/* The bucket of a hash. Those of the upper half that are still to come are in the lower half. */
static struct store_object **bucket_of(const struct store_space *sp, uint32_t hash)
{
	uint32_t at = hash & (sp->n_slots - 1);

	return &sp->buckets[at < sp->n_buckets ? at : at - sp->n_slots / 2];
}

struct store_object *index_find(const struct store_space *sp, struct store_key key, uint32_t hash)
{
	struct store_object *o = sp->n_buckets ? *bucket_of(sp, hash) : NULL;

	while (o && (o->policy.tag != hash || o->key_n != key.n || memcmp(o->key, key.p, key.n)))
		o = o->next;
	return o;
}

/* Room for twice as many buckets. The first ones are empty; a further one is set when it is divided off. */
static bool double_slots(struct store_space *sp)
{
	uint32_t n = dray_max(sp->n_slots * 2, BUCKETS_MIN);
	struct store_object **buckets;

	if (sp->n_slots == BUCKETS_MAX)
		return false;
	buckets = realloc(sp->buckets, n * sizeof(struct store_object *));
	if (!buckets)
		return false;
	if (!sp->n_slots) {
		memset(buckets, 0, n * sizeof(struct store_object *));
		sp->n_buckets = n;
	}
	sp->buckets = buckets;
	sp->n_slots = n;
	return true;
}

static void divide(struct store_space *sp)
{
	uint32_t half = sp->n_slots / 2;
	struct store_object **from = &sp->buckets[sp->n_buckets - half],
			    **to = &sp->buckets[sp->n_buckets];

	*to = NULL;
	while (*from) {
		struct store_object *o = *from;

		if (!(o->policy.tag & half)) {
			from = &o->next;
			continue;
		}
		*from = o->next;
		o->next = *to;
		*to = o;
	}
	sp->n_buckets++;
}

/* Without memory for more buckets the index becomes slow, until there is some. */
bool index_room(struct store_space *sp)
{
	for (unsigned i = 0; i < DIVIDED && sp->n_objects >= sp->n_buckets; i++) {
		if (sp->n_buckets == sp->n_slots && !double_slots(sp))
			break;
		if (sp->n_buckets < sp->n_slots)
			divide(sp);
	}
	return sp->n_buckets;
}

void index_add(struct store_space *sp, struct store_object *o)
{
	struct store_object **at = bucket_of(sp, o->policy.tag);

	o->next = *at;
	*at = o;
	sp->n_objects++;
}

void index_del(struct store_space *sp, struct store_object *o)
{
	struct store_object **at = bucket_of(sp, o->policy.tag);

	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	sp->n_objects--;
}

/* --- walks ----------------------------------------------------------------------------------------- */

/* Groups of a walk: while buckets are being divided, those of the lower half. */
static uint32_t groups(const struct store_space *sp)
{
	return sp->n_buckets == sp->n_slots ? sp->n_slots : sp->n_slots / 2;
}

/* The first object of the bucket that has been divided off this one; NULL: none, or none has been divided off. */
static struct store_object *divided_off(const struct store_space *sp, uint32_t at)
{
	uint32_t n = groups(sp);

	return at < n && at + n < sp->n_buckets ? sp->buckets[at + n] : NULL;
}

struct store_object *index_first(const struct store_space *sp, uint32_t at)
{
	uint32_t group = at & (groups(sp) - 1);

	return sp->buckets[group] ? sp->buckets[group] : divided_off(sp, group);
}

struct store_object *index_next(const struct store_space *sp, const struct store_object *o)
{
	if (o->next)
		return o->next;
	return divided_off(sp, (uint32_t)(bucket_of(sp, o->policy.tag) - sp->buckets));
}

static uint32_t reversed(uint32_t v)
{
	v = __builtin_bswap32(v);
	v = (v & 0xf0f0f0f0u) >> 4 | (v & 0x0f0f0f0fu) << 4;
	v = (v & 0xccccccccu) >> 2 | (v & 0x33333333u) << 2;
	return (v & 0xaaaaaaaau) >> 1 | (v & 0x55555555u) << 1;
}

/*
 * The order is that of the reversed bits: when the number of groups doubles, each becomes two that follow each other in this order, so
 * that none is looked at twice or left out.
 */
uint32_t index_after(const struct store_space *sp, uint32_t at)
{
	return reversed(reversed(at | ~(groups(sp) - 1)) + 1);
}
