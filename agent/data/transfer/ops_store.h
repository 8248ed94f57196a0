/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the operations of transfers: size classes of powers of two, kept for reuse up to a bound. For long lists that
 * GPUs read there is pinned memory, which is limited.
 */
#pragma once

#include <stdint.h>

#include "agent/data/transfer/core.h"

#define OPS_CLASSES 15 /* 4 to 65,536 operations */

/* A slab of pinned memory has room for the longest list, or for shorter lists of one class. */
#define OPS_SLABS 8
#define OPS_PINNED_BYTES (OPS_SLABS * (uint64_t)DMSG_OPS_MAX * sizeof(struct xfer_op))
/* Copying a shorter list costs no more than finding pinned memory. */
#define OPS_PINNED_MIN 512

struct ops_slab {
	void *free, *last;           /* chain of returned blocks, oldest first */
	uint32_t class, used, fresh; /* blocks in use; blocks never used yet, at the end */
};

struct ops_store {
	void *free[OPS_CLASSES]; /* chains; the first word of a free block is the next */
	uint64_t kept;           /* bytes in the chains */
	uint8_t *pinned;         /* OPS_PINNED_BYTES of pinned memory, borrowed; or NULL */
	struct ops_slab slabs[OPS_SLABS];
};

/* Room for n operations (1 to DMSG_OPS_MAX), or NULL. n goes back with it. */
struct xfer_op *ops_store_get(struct ops_store *s, uint32_t n);
void ops_store_put(struct ops_store *s, struct xfer_op *ops, uint32_t n);
void ops_store_deinit(struct ops_store *s);

/* As ops_store_get(), in pinned memory. NULL: none is free, or the list is too short. */
struct xfer_op *ops_store_get_pinned(struct ops_store *s, uint32_t n);
