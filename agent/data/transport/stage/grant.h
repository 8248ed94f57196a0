/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer asks for on ranges that it was granted: may it, and where do the bytes lie. Worker thread only. */
#ifndef DRAY_AGENT_DATA_TRANSPORT_STAGE_GRANT_H
#define DRAY_AGENT_DATA_TRANSPORT_STAGE_GRANT_H

#include "agent/data/transfer/object.h"

/* Segments, and how far they are done. */
struct grant_walk {
	const struct pmsg_seg *segs; /* borrowed */
	uint32_t n_segs, seg;        /* the one in hand */
	uint64_t seg_offset;         /* its bytes done */
	uint32_t extent;             /* of the last piece: the next mostly is near */
};

static inline void grant_walk_init(struct grant_walk *w, const struct pmsg_seg *segs,
				   uint32_t n_segs)
{
	*w = (struct grant_walk){ .segs = segs, .n_segs = n_segs };
}

/*
 * May this peer do that to these segments, of which each has a length, and can this worker? An error code; 0, with the
 * objects told. REVOKED, too, where the grant is not known.
 */
uint32_t grant_check(struct core *c, dray_handle peer, dray_handle grant, uint16_t access,
		     const struct pmsg_seg *segs, uint32_t n_segs, struct object **ret_grant,
		     struct object **ret_region);

/* Where the next bytes lie, in at most max ranges. Returns how many. */
unsigned grant_walk_ranges(struct grant_walk *w, const struct object *grant,
			   const struct object *region, struct iovec *iov, unsigned max,
			   uint64_t *ret_bytes);
/* So many bytes are done. */
void grant_walk_advance(struct grant_walk *w, uint64_t n);

/* What is asked of objects that are dropped answers this. */
uint32_t grant_drop_code(const struct object *o);

#endif
