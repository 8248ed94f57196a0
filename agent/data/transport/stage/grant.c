/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/stage/grant.h"

#include "agent/data/transport/stage/stage.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"

/* In so many turns a worker reads all that its ring of commands holds. */
#define UNKNOWN_TURNS 8

unsigned grant_walk_ranges(struct grant_walk *w, const struct granted *held, struct iovec *iov,
			   unsigned max, uint64_t *ret_bytes)
{
	const struct grant_view *g = (const struct grant_view *)held->grant->view;
	const struct region_view *r = object_region(held->region);
	uint64_t skip = w->seg_offset, bytes = 0;
	uint32_t e = w->extent;
	unsigned n = 0;

	for (uint32_t i = w->seg; i < w->n_segs && n < max; i++) {
		uint64_t at = g->offset + w->segs[i].offset + skip;
		uint64_t left = w->segs[i].length - skip;

		skip = 0;
		if (at < r->extents[e].start || at - r->extents[e].start >= r->extents[e].length)
			e = region_view_find(r, at);
		if (i == w->seg)
			w->extent = e;
		while (n < max) {
			const struct extent_view *x = &r->extents[e];
			uint64_t in = at - x->start, piece = dray_min(left, x->length - in);

			iov[n++] = (struct iovec){ x->base + in, piece };
			bytes += piece;
			at += piece;
			left -= piece;
			if (!left)
				break;
			e++;
		}
	}
	*ret_bytes = bytes;
	return n;
}

void grant_walk_advance(struct grant_walk *w, uint64_t n)
{
	w->seg_offset += n;
	while (w->seg < w->n_segs && w->seg_offset >= w->segs[w->seg].length)
		w->seg_offset -= w->segs[w->seg++].length;
}

static bool in_range(const struct grant_view *g, const struct region_view *r,
		     const struct pmsg_seg *segs, uint32_t n_segs)
{
	uint32_t steps = ranges_steps(n_segs);

	/* The control thread guarantees this. A bug there must not expose other memory. */
	if (g->offset > r->o.length || g->o.length > r->o.length - g->offset)
		return false;
	for (uint32_t i = 0; i < n_segs; i++) {
		const struct pmsg_seg *seg = &segs[i];
		uint64_t at = g->offset + seg->offset, left = seg->length;

		if (seg->offset > g->o.length || seg->length > g->o.length - seg->offset)
			return false;
		if (g->ranges && !ranges_cover(g->ranges, at, left, &steps))
			return false;
		for (uint32_t e = region_view_find(r, at); left; e++) {
			uint64_t piece;

			if (e >= r->n_extents || !r->extents[e].base)
				return false;
			piece = dray_min(left, r->extents[e].length - (at - r->extents[e].start));
			at += piece;
			left -= piece;
		}
	}
	return true;
}

/* Why this worker cannot access the region's bytes: an error code, or 0. */
static uint32_t reachable(const struct core *c, const struct region_view *r)
{
	if (r->memory == REGION_HOST)
		return 0;
	if (r->memory != REGION_GPU || !c->stage)
		return DRAY_E_UNSUPPORTED;
	return gpu_is_up(c, r->gpu) ? 0 : DRAY_E_GPU_LOST;
}

/* The error code of a right whose grant or region was dropped with that code; 0: the worker does not know it. */
static uint32_t gone(uint32_t drop_code)
{
	return drop_code == DRAY_E_GPU_LOST || drop_code == DRAY_E_REGION_FAULT ? drop_code :
										  DRAY_E_REVOKED;
}

uint32_t grant_check(struct core *c, dray_handle peer, dray_handle handle, uint16_t access,
		     const struct pmsg_seg *segs, uint32_t n_segs, struct granted *ret)
{
	struct object *grant = object_get(c, OBJECT_GRANT, handle), *region;
	const struct grant_view *g = grant ? (const struct grant_view *)grant->view : NULL;

	if (!g)
		return gone(object_drop_code(c, OBJECT_GRANT, handle));
	if (g->peer != peer)
		return DRAY_E_REVOKED;
	region = object_get(c, OBJECT_REGION, g->region);
	if (!region)
		return gone(object_drop_code(c, OBJECT_REGION, g->region));
	if (!(g->o.access & access) || !(region->view->access & access))
		return DRAY_E_DENIED;
	if (!in_range(g, object_region(region), segs, n_segs))
		return DRAY_E_RANGE;
	*ret = (struct granted){ grant, region };
	return reachable(c, object_region(region));
}

bool grant_may_come(const struct core *c, uint8_t *turns)
{
	/* those that are late come behind what the ring holds now */
	if (atomic_load_explicit(&c->commands_late, memory_order_acquire))
		*turns = 0;
	return (*turns)++ < UNKNOWN_TURNS;
}

uint32_t grant_drop_code(const struct object *o)
{
	return gone(o->drop_code);
}
