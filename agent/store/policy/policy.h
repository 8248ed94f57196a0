/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which object of a tier is evicted next. The owner of a tier embeds an entry in each object, reports each use, and asks
 * for a victim when it needs room. A policy knows sizes, costs and uses, and neither keys nor bytes.
 *
 * A victim stays in the policy until it is removed. An object that must not be evicted now, because a client reads it,
 * is held: it is no victim until it is released. Each call takes O(1) or O(log n), some only on average, and only
 * policy_add() and policy_move() allocate. One thread, but any may read policy_bytes() of an entry that is in a policy.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/heap.h"
#include "lib/list.h"

enum policy_kind {
	POLICY_LRU, /* the one used longest ago */
	POLICY_S3FIFO, /* three queues: new objects, objects used again, and names of those evicted lately */
	POLICY_GDSF,  /* uses x cost / bytes, plus the value of the last victim at the last use */
	POLICY_SCORE, /* (uses + clock) x cost / bytes, where the clock runs down after each use */
	POLICY_MERIT, /* uses x cost / bytes with ageing, of objects that were used twice */
	POLICY_VALUE, /* merit, or LRU while that saves more */
	POLICY_KIND_N
};

/* In an object, of which there are millions. The policy owns all fields; cost, tag and uses may be read. */
struct policy_entry {
	uint32_t tag;
	float cost;
	uint32_t bytes_low; /* policy_bytes() has both parts */
	uint8_t bytes_high; /* no bit-field: other threads read it while its neighbours change */
	uint8_t used : 2;   /* lately, in the policy's own measure */
	uint8_t queue : 1;
	uint8_t held : 1;
	uint8_t used_since : 1;   /* it was used since it was held */
	uint16_t uses;            /* the addition is one */
	struct dray_list recency; /* of POLICY_VALUE */
	union {
		struct dray_list link;
		struct dray_heap_node node;
	};
};

static inline uint64_t policy_bytes(const struct policy_entry *e)
{
	return (uint64_t)e->bytes_high << 32 | e->bytes_low;
}

struct policy;

/* Bytes of an object at most. */
#define POLICY_BYTES_MAX ((1ull << 40) - 1)

/*
 * 0 or -ENOMEM. What room there is for objects depends on other owners and name spaces. A policy that needs a capacity takes the bytes that
 * it has when a victim is wanted.
 *
 * below: of the same kind, for the tier to which objects move from this one; it ends later, and has no policy below itself. NULL: there is no
 * such tier.
 */
int policy_new(struct policy **ret, enum policy_kind kind, struct policy *below);

/* Leaves the entries untouched. NULL is allowed. */
void policy_free(struct policy *p);

/* "lru" and so on. */
const char *policy_name(enum policy_kind kind);

/*
 * A new object, not held. cost: to compute it again, in microseconds, above 0. tag: a hash of its key, by which the
 * policy knows the object again after an eviction; a key always has the same tag. 0, or -ENOMEM and nothing was added.
 */
int policy_add(struct policy *p, struct policy_entry *e, uint64_t bytes, float cost, uint32_t tag);

/* The size of an object; also before its addition, where the owner may keep it. */
static inline void policy_set_bytes(struct policy_entry *e, uint64_t bytes)
{
	e->bytes_low = (uint32_t)bytes;
	e->bytes_high = (uint8_t)(bytes >> 32);
}

/*
 * The object, which is not held, moves to the other tier with its uses. evicted: for want of room in the tier that it leaves. 0, or -ENOMEM
 * and it has not moved.
 */
int policy_move(struct policy *from, struct policy *to, struct policy_entry *e, bool evicted);

/* The object was read. It may be held. */
void policy_use(struct policy *p, struct policy_entry *e);

/* These two do not nest: the owner counts readers, and calls them for the first and the last one. */
void policy_hold(struct policy *p, struct policy_entry *e);
void policy_release(struct policy *p, struct policy_entry *e);
/* Releases an object that was the next victim when it was held, and is it again unless it was used meanwhile. */
void policy_return(struct policy *p, struct policy_entry *e);

/* The search for a victim moves so many objects at most; then one that was used of late may be the victim. */
#define POLICY_MOVED_AT_ONCE 64

/* The object to evict next. NULL: there is none, or all are held. */
struct policy_entry *policy_victim(struct policy *p);

/* evicted: for want of room, and not because a client removed it. The object may be held. */
void policy_remove(struct policy *p, struct policy_entry *e, bool evicted);

/* What keeping the object is worth: uses x cost / bytes, in microseconds a byte. Of any policy; for reports. */
double policy_worth(const struct policy_entry *e);
