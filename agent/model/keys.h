/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of memory for RDMA devices: for each rail, the pieces of a region (with local keys) or of a remote (with the
 * owner's remote keys). Immutable after rail_keys_seal(), shared by reference between threads. A worker that posts with a
 * key holds a reference until the work request has ended, so that memory is deregistered only after its last use.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "schema/gen/peer.h"

/* Limit of the number of a rail, here and at peers: a set of rails fits into a word. */
#define RAILS_MAX 64

struct rail_key {
	uint32_t rail, key;
	uint64_t base;   /* address of the first byte for the device */
	uint64_t offset; /* of that byte in the region or range */
	uint64_t length; /* bytes */
	uint32_t rkey;   /* regions: the key for peers */
};

struct rail_keys {
	_Atomic uint32_t refs;
	/* after the last reference, on the thread that dropped it; may be NULL */
	void (*gone)(void *arg);
	void *arg;
	uint64_t rails; /* set of rails whose pieces cover everything */
	bool by_base;   /* sorted by rail and base; else by rail and offset */
	uint32_t n;
	struct rail_key v[];
};

/* Room for n pieces, one reference; NULL: no memory. */
struct rail_keys *rail_keys_new(uint32_t n);

/* Reads records of pmsg_rail, the keys of a range of `length` bytes. One reference; NULL: there are none, or no memory. */
struct rail_keys *rail_keys_read(const struct dray_vec *rails, uint64_t length);

/*
 * The same for a range of which only some parts are accessible: `rails` has all rails that have pieces without overlaps, until
 * rail_keys_need() takes those out that lack a part of this range.
 */
struct rail_keys *rail_keys_read_parts(const struct dray_vec *rails);
void rail_keys_need(struct rail_keys *k, uint64_t offset, uint64_t length);

/*
 * The keys of several regions by their addresses, over the rails that all of them have. It holds a reference to each. n: at least 1.
 * NULL: no memory.
 */
struct rail_keys *rail_keys_join(struct rail_keys *const *of, uint32_t n);

/* Sorts, and finds the rails whose pieces cover [0, length) without overlaps and gaps. */
void rail_keys_seal(struct rail_keys *k, uint64_t length, bool by_base);

/* Both name the same memory by the same keys. */
bool rail_keys_same(const struct rail_keys *a, const struct rail_keys *b);

struct rail_keys *rail_keys_ref(struct rail_keys *k);
/* NULL is allowed. Returns NULL. */
struct rail_keys *rail_keys_unref(struct rail_keys *k);

/* The caller has the only reference. */
static inline bool rail_keys_is_last(const struct rail_keys *k)
{
	return atomic_load_explicit(&k->refs, memory_order_acquire) == 1;
}

static inline bool rail_keys_have(const struct rail_keys *k, uint32_t rail)
{
	return k && rail < RAILS_MAX && k->rails >> rail & 1;
}

/* The piece of a rail in `rails` that holds the address (by_base) or offset. NULL: none. */
const struct rail_key *rail_keys_find(const struct rail_keys *k, uint32_t rail, uint64_t at);
