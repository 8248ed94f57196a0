/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation of the session's arena. The arena is shared with the agent, so the free extents are
 * kept apart, in private memory: a sorted array whose neighbours are always joined. There is at
 * most one more of them than blocks in use.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ARENA_UNIT 64 /* blocks share no cache line */

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

/* False if no free extent is large enough. */
bool dc_arena_alloc(struct arena *a, uint64_t bytes, uint64_t *ret_offset);

/* Frees a block of dc_arena_alloc(), with the same bytes. Needs no memory, so it cannot fail. */
void dc_arena_free(struct arena *a, uint64_t offset, uint64_t bytes);
