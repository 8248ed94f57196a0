/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for many small blocks that have no header each: malloc() would take 8 to 23 bytes more for every object of a store. Slabs are aligned
 * parts of one reserved range of addresses. A slab has blocks of one size, and when the last of them is freed its pages go back
 * to the system, unless it is the only one of this size with free blocks. One thread at a time: workers and the control thread, under store->lock.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/list.h"

#define SLAB_STEP 8u /* sizes are multiples of it, and so are addresses */
#define SLAB_BLOCK_MAX 512u

struct slabs {
	uint8_t *base;
	uint32_t n;             /* slabs that have been used, from base on */
	struct dray_list empty; /* of struct slab, like the others: without blocks */
	struct dray_list
		partial[SLAB_BLOCK_MAX / SLAB_STEP + 1]; /* with free blocks, by their size */
};

/* 0 or -errno. */
int slabs_init(struct slabs *s);
/* With all blocks. Zeroed slabs are allowed. */
void slabs_deinit(struct slabs *s);

/* Zeroed. NULL: no memory. */
void *slabs_alloc(struct slabs *s, size_t bytes);
/* NULL is allowed. */
void slabs_free(struct slabs *s, void *block);
