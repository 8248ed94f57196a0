/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `local`, and the walk over operations that transport gpu shares. A walk turns a range of the
 * operations of a transfer within this agent into pieces to copy, which are cut by the extents of both
 * regions. Worker thread only.
 */
#pragma once

#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/workshare.h"
#include "lib/copy.h"

extern const struct transport_ops transport_local;

/* Where the next piece begins. */
struct local_walk {
	const struct xfer_op *op;
	uint64_t done; /* bytes of it that are done */
	uint64_t left; /* bytes of the range */
	const struct region_view *local, *target;
	const struct extent_view *near, *far; /* of the last piece */
	uint64_t target_offset;               /* of the remote range in `target` */
	bool write;
};

/* Begins a walk over `bytes` bytes. */
void local_walk_init(struct local_walk *w, const struct xfer *x, struct xfer_cursor from,
		     uint64_t bytes);

static inline void local_walk_slice(struct local_walk *w, const struct slice *s)
{
	local_walk_init(w, s->xfer, s->from, s->bytes);
}

/* Sets up to `max` pieces of at most max_bytes each. 0: the walk has ended. */
unsigned local_walk(struct local_walk *w, struct dray_piece *v, unsigned max, uint64_t max_bytes);

/*
 * Sets up to `max` pieces that are contiguous on both sides, until one is longer than `longest`. That piece
 * is *ret_long and still to come; its bytes are 0 if there was none.
 */
unsigned local_walk_short(struct local_walk *w, struct dray_piece *v, unsigned max,
			  uint64_t longest, struct dray_piece *ret_long);

/* The next piece, as long as it is contiguous on both sides. The walk has not ended. */
void local_walk_peek(const struct local_walk *w, struct dray_piece *ret);

static inline bool local_walk_ended(const struct local_walk *w)
{
	return !w->left;
}

/* Makes the rest of the walk a shared copy. False: it has more pieces than a job takes. */
bool local_walk_share(struct local_walk *w, struct workshare_job *j, bool stream);

/* NUMA node of the slice's first destination byte, -1: unknown. */
int local_walk_node(const struct slice *s);

/* Whether the address is in the transfer's local region. Otherwise it is in the target. */
bool local_walk_is_near(const struct xfer *x, const void *address);
