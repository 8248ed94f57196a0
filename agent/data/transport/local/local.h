/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stretch of the operations of a transfer within this agent as a list of pieces to copy: extents of both regions cut them
 * differently. Worker thread.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_LOCAL_LOCAL_H
#define DRAY_AGENT_DATA_TRANSPORT_LOCAL_LOCAL_H

#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/workshare.h"
#include "lib/copy.h"

extern const struct transport_ops transport_local;

/* Where the next piece begins. */
struct local_walk {
	const struct xfer_op *op;
	uint64_t done; /* bytes of it */
	uint64_t left; /* of the stretch */
	const struct region_view *local, *target;
	const struct extent_view *near, *far; /* of the last piece */
	uint64_t target_offset;               /* of the remote range in it */
	bool write;
};

/* From there on so many bytes. */
void local_walk_init(struct local_walk *w, const struct xfer *x, struct xfer_cursor from,
		     uint64_t bytes);

static inline void local_walk_slice(struct local_walk *w, const struct slice *s)
{
	local_walk_init(w, s->xfer, s->from, s->bytes);
}

/* Up to `max` pieces of at most max_bytes each. 0: there are no more. */
unsigned local_walk(struct local_walk *w, struct dray_piece *v, unsigned max, uint64_t max_bytes);

/*
 * Up to `max` pieces as they are contiguous on both sides, as long as they are no longer than `longest`; *ret_long is the
 * one, still to come, that is (bytes 0: none was met).
 */
unsigned local_walk_short(struct local_walk *w, struct dray_piece *v, unsigned max,
			  uint64_t longest, struct dray_piece *ret_long);

/* The next piece of one that has not ended, as long as it is contiguous on both sides. */
void local_walk_peek(const struct local_walk *w, struct dray_piece *ret);

static inline bool local_walk_ended(const struct local_walk *w)
{
	return !w->left;
}

/* The rest of the walk as a copy with others. False: it falls into more pieces than a job takes. */
bool local_walk_share(struct local_walk *w, struct workshare_job *j, bool stream);

/* NUMA node of the slice's first destination byte, -1: not known. */
int local_walk_node(const struct slice *s);

/* Does the address lie in the transfer's local region? Else in its target, where it is one of the two. */
bool local_walk_is_near(const struct xfer *x, const void *address);

#endif
