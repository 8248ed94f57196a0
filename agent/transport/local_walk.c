/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/transport/local_walk.h"

#include "lib/cleanup.h"

void local_walk_init(struct local_walk *w, const struct slice *s)
{
	const struct xfer *x = s->xfer;

	*w = (struct local_walk){ .slice = s,
				  .target = (const struct region_view *)x->target->view,
				  .target_offset = x->target_offset,
				  .write = x->direction == DMSG_DIRECTION_WRITE };
}

/* The extent of `offset`; mostly that of the piece before. */
static const struct extent_view *extent_at(struct local_walk *w, uint64_t offset)
{
	const struct extent_view *e = &w->target->extents[w->extent];

	if (offset - e->start < e->length)
		return e;
	w->extent = region_view_find(w->target, offset);
	return &w->target->extents[w->extent];
}

unsigned local_walk(struct local_walk *w, struct dray_piece *v, unsigned max, uint64_t max_bytes)
{
	const struct slice *s = w->slice;
	unsigned n = 0;

	while (n < max && w->remote < s->n_remote) {
		const struct pmsg_seg *seg = &s->remote[w->remote];
		const struct iovec *iov = &s->local[w->local];
		uint64_t offset = w->target_offset + seg->offset + w->remote_done;
		const struct extent_view *e = extent_at(w, offset);
		uint64_t skip = offset - e->start;
		uint64_t left = dray_min(seg->length - w->remote_done, e->length - skip);
		uint64_t bytes = dray_min(dray_min(left, iov->iov_len - w->local_done), max_bytes);
		uint8_t *mine = (uint8_t *)iov->iov_base + w->local_done;
		uint8_t *theirs = e->base + skip;

		v[n++] = (struct dray_piece){ w->write ? theirs : mine, w->write ? mine : theirs,
					      bytes };
		w->local_done += bytes;
		if (w->local_done == iov->iov_len) {
			w->local++;
			w->local_done = 0;
		}
		w->remote_done += bytes;
		if (w->remote_done == seg->length) {
			w->remote++;
			w->remote_done = 0;
		}
	}
	return n;
}

static int node_of(const struct region_view *r, const uint8_t *p)
{
	for (uint32_t i = 0; r->nodes_known && i < r->n_extents; i++)
		if (p >= r->extents[i].base && p < r->extents[i].base + r->extents[i].length)
			return r->extents[i].node;
	return -1;
}

int local_walk_node(const struct slice *s)
{
	const struct xfer *x = s->xfer;
	const struct object *to = x->direction == DMSG_DIRECTION_WRITE ? x->target : x->local;
	const struct region_view *r = (const struct region_view *)to->view;
	struct dray_piece first;
	struct local_walk w;

	if (!r->nodes_known)
		return -1;
	local_walk_init(&w, s);
	local_walk(&w, &first, 1, 1);
	return node_of(r, first.to);
}
