/* SPDX-License-Identifier: Apache-2.0 */
/* Access of a peer to ranges that it was granted: is it allowed, and where are the bytes. Worker thread only. */
#ifndef DRAY_AGENT_DATA_TRANSPORT_STAGE_GRANT_H
#define DRAY_AGENT_DATA_TRANSPORT_STAGE_GRANT_H

#include "agent/data/transfer/object.h"

/* Segments, and the position in them. */
struct grant_walk {
	const struct pmsg_seg *segs; /* borrowed */
	uint32_t n_segs, seg;        /* seg: the current one */
	uint64_t seg_offset;         /* bytes of it that are done */
	uint32_t extent;             /* of the last piece: the next one is usually near */
};

static inline void grant_walk_init(struct grant_walk *w, const struct pmsg_seg *segs,
				   uint32_t n_segs)
{
	*w = (struct grant_walk){ .segs = segs, .n_segs = n_segs };
}

/*
 * Checks that the peer may access these segments (each of which has a length) in this way, and that this
 * worker can. Returns an error code, REVOKED also for an unknown grant; or 0 and the objects.
 */
uint32_t grant_check(struct core *c, dray_handle peer, dray_handle grant, uint16_t access,
		     const struct pmsg_seg *segs, uint32_t n_segs, struct object **ret_grant,
		     struct object **ret_region);

/* Sets up to max ranges of the next bytes. Returns their number. */
unsigned grant_walk_ranges(struct grant_walk *w, const struct object *grant,
			   const struct object *region, struct iovec *iov, unsigned max,
			   uint64_t *ret_bytes);
/* n bytes are done. */
void grant_walk_advance(struct grant_walk *w, uint64_t n);

/* The error code for requests on an object that is being dropped. */
uint32_t grant_drop_code(const struct object *o);

#endif
