/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slice of transport `local` as a list of pieces to copy: its local and its remote side, cut differently,
 * walked side by side. Worker thread.
 */
#ifndef DRAY_AGENT_TRANSPORT_LOCAL_WALK_H
#define DRAY_AGENT_TRANSPORT_LOCAL_WALK_H

#include "agent/transfer/core.h"
#include "lib/copy.h"

/* Where the next piece begins. */
struct local_walk {
	const struct slice *slice;
	const struct region_view *target;
	uint64_t target_offset; /* of the remote range in it */
	bool write;
	unsigned local, remote;           /* index of iovec and of segment */
	uint64_t local_done, remote_done; /* bytes of these */
	uint32_t extent;                  /* of the target, where the last piece lay */
};

void local_walk_init(struct local_walk *w, const struct slice *s);

/* Up to `max` pieces of at most max_bytes each. 0: there are no more. */
unsigned local_walk(struct local_walk *w, struct dray_piece *v, unsigned max, uint64_t max_bytes);

static inline bool local_walk_ended(const struct local_walk *w)
{
	return w->remote == w->slice->n_remote;
}

/* NUMA node of the slice's first destination byte, -1: not known. */
int local_walk_node(const struct slice *s);

#endif
