/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory is named to RDMA devices: for each rail, the pieces of a region (ours: local keys) or of a
 * remote (the owner's: remote keys). Immutable once sealed, shared by reference between threads. Whoever
 * posts with a key holds a reference until the work request has ended, so that memory is deregistered
 * only when the last is gone.
 */
#ifndef DRAY_AGENT_MODEL_KEYS_H
#define DRAY_AGENT_MODEL_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Rails are numbered below this, here and at peers: sets of them fit a word. */
#define RAILS_MAX 64

struct rail_key {
	uint32_t rail, key;
	uint64_t base;   /* address of the first byte as the device knows it */
	uint64_t offset; /* of that byte in the region or range */
	uint64_t length; /* bytes */
	uint32_t rkey;   /* regions: what peers use in place of `key` */
};

struct rail_keys {
	_Atomic uint32_t refs;
	void (*gone)(
		void *arg); /* after the last reference, on whichever thread dropped it; may be NULL */
	void *arg;
	uint64_t rails; /* those whose pieces cover everything */
	bool by_base;   /* sorted by rail and base; else by rail and offset */
	uint32_t n;
	struct rail_key v[];
};

/* Room for n pieces, one reference; NULL: no memory. */
struct rail_keys *rail_keys_new(uint32_t n);

/* Sorts, and finds the rails that cover [0, length). Those whose pieces overlap or leave gaps do not count. */
void rail_keys_seal(struct rail_keys *k, uint64_t length, bool by_base);

struct rail_keys *rail_keys_ref(struct rail_keys *k);
/* NULL is allowed. Returns NULL. */
struct rail_keys *rail_keys_unref(struct rail_keys *k);

static inline bool rail_keys_have(const struct rail_keys *k, uint32_t rail)
{
	return k && rail < RAILS_MAX && k->rails >> rail & 1;
}

/* The piece of this rail that holds the address (by_base) or offset; the rail is one of `rails`. NULL: none. */
const struct rail_key *rail_keys_find(const struct rail_keys *k, uint32_t rail, uint64_t at);

#endif
