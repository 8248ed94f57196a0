/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space in the session's arena. What is free is kept here, in private memory: the arena itself is
 * shared with the agent. Free extents lie sorted in an array, neighbours always joined, so there is
 * at most one more of them than blocks in use.
 */
#ifndef DRAY_CLIENT_ARENA_H
#define DRAY_CLIENT_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#define ARENA_UNIT 64 /* blocks start on cache lines of their own */

struct arena_extent {
	uint64_t offset, length;
};

struct arena {
	uint64_t bytes;
	uint64_t used;
	struct arena_extent *free;
	uint32_t n, cap;
	uint32_t blocks; /* in use */
	uint32_t next;   /* where the last search ended */
};

/* 0 or -ENOMEM. */
int dc_arena_init(struct arena *a, uint64_t bytes);
void dc_arena_deinit(struct arena *a);

/* Bytes that a block of so many takes. */
static inline uint64_t dc_arena_round(uint64_t bytes)
{
	return (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
}

/* False where no free extent is large enough. */
bool dc_arena_alloc(struct arena *a, uint64_t bytes, uint64_t *ret_offset);

/*
 * What dc_arena_alloc() gave, with the same bytes. Never fails: room for the entry is made by
 * dc_arena_alloc().
 */
void dc_arena_free(struct arena *a, uint64_t offset, uint64_t bytes);

#endif
