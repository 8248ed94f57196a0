/* SPDX-License-Identifier: Apache-2.0 */
/* Access of a peer to ranges that it was granted: is it allowed, and where are the bytes. Worker thread only. */
#pragma once

#include "agent/data/transfer/object.h"

/* A grant and its region, held while the peer's access is carried out; NULL: neither is. */
struct granted {
	struct object *grant, *region;
};

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
 * worker can. Returns an error code, REVOKED also for an unknown grant; or 0 and the objects, not held.
 */
uint32_t grant_check(struct core *c, dray_handle peer, dray_handle grant, uint16_t access,
		     const struct pmsg_seg *segs, uint32_t n_segs, struct granted *ret);

/*
 * After REVOKED: the grant may still become known, because the peer may have heard of it before this worker has read the command that
 * publishes it. To be asked once a turn. turns: in which that was so, 0 at first.
 */
bool grant_may_come(const struct core *c, uint8_t *turns);

static inline void granted_hold(const struct granted *g)
{
	object_hold(g->grant);
	object_hold(g->region);
}

/* Releases what is held, which may run EVENT_DROPPED. */
static inline void granted_release(struct core *c, struct granted *g)
{
	struct granted held = *g;

	*g = (struct granted){ 0 };
	if (!held.grant)
		return;
	object_release(c, held.grant);
	object_release(c, held.region);
}

static inline bool granted_has(const struct granted *g, const struct object *o)
{
	return g->grant == o || g->region == o;
}

/* Sets up to max ranges of the next bytes. Returns their number. */
unsigned grant_walk_ranges(struct grant_walk *w, const struct granted *held, struct iovec *iov,
			   unsigned max, uint64_t *ret_bytes);
/* n bytes are done. */
void grant_walk_advance(struct grant_walk *w, uint64_t n);

/* The error code for requests on an object that is being dropped. */
uint32_t grant_drop_code(const struct object *o);
