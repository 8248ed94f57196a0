/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/local/local.h"

#include <stddef.h>

#include "lib/cleanup.h"

void local_walk_init(struct local_walk *w, const struct xfer *x, struct xfer_cursor from,
		     uint64_t bytes)
{
	*w = (struct local_walk){ .op = &x->ops[from.op],
				  .done = from.offset,
				  .left = bytes,
				  .local = object_region(x->local),
				  .target = object_region(x->target),
				  .target_offset = x->target_offset,
				  .write = x->direction == DMSG_DIRECTION_WRITE };
	w->near = w->local->extents;
	w->far = w->target->extents;
}

/* The extent of the piece before is usually right. */
static inline const struct extent_view *extent_at(const struct region_view *r,
						  const struct extent_view *last, uint64_t offset)
{
	return offset - last->start < last->length ? last :
						     &r->extents[region_view_find(r, offset)];
}

static inline uint64_t word_at(const struct xfer_op *op, size_t at)
{
	return *(const uint64_t *)(const void *)((const uint8_t *)op + at);
}

/*
 * Takes whole operations while they lie in the current two extents, which is the usual case and most of the
 * work in a batch of thousands of small ones. Which side is the destination is decided before the loop.
 * Returns their number.
 */
static unsigned walk_whole(struct local_walk *w, struct dray_piece *v, unsigned max,
			   uint64_t max_bytes)
{
	const struct extent_view *to = w->write ? w->far : w->near;
	const struct extent_view *from = w->write ? w->near : w->far;
	const size_t to_at = w->write ? offsetof(struct xfer_op, remote) :
					offsetof(struct xfer_op, local);
	const size_t from_at = w->write ? offsetof(struct xfer_op, local) :
					  offsetof(struct xfer_op, remote);
	const uint64_t to_start = to->start - (w->write ? w->target_offset : 0);
	const uint64_t from_start = from->start - (w->write ? 0 : w->target_offset);
	const uint64_t to_length = to->length, from_length = from->length;
	const uint64_t shorter = dray_min(to_length, from_length);
	const uint64_t most = dray_min(shorter, max_bytes);
	uint8_t *const to_base = to->base, *const from_base = from->base;
	const struct dray_piece *const begin = v, *const end = v + max;
	const struct xfer_op *op = w->op;
	uint64_t left = w->left;

	for (; v < end && left; v++, op++) {
		uint64_t bytes = op->length;
		uint64_t into = word_at(op, to_at) - to_start;
		uint64_t out_of = word_at(op, from_at) - from_start;

		if (bytes > left || bytes > most || into > to_length - bytes ||
		    out_of > from_length - bytes)
			break;
		*v = (struct dray_piece){ to_base + into, from_base + out_of, bytes };
		left -= bytes;
	}
	w->op = op;
	w->left = left;
	return (unsigned)(v - begin);
}

/* Finds the next piece, as long as it is contiguous, and its extents. The walk does not advance. */
static inline void locate(struct local_walk *w, struct dray_piece *v)
{
	uint64_t near = w->op->local + w->done;
	uint64_t far = w->target_offset + w->op->remote + w->done;
	uint64_t bytes = dray_min(w->op->length - w->done, w->left);
	uint8_t *mine, *theirs;

	w->near = extent_at(w->local, w->near, near);
	w->far = extent_at(w->target, w->far, far);
	near -= w->near->start;
	far -= w->far->start;
	bytes = dray_min(bytes, w->near->length - near);
	bytes = dray_min(bytes, w->far->length - far);
	mine = w->near->base + near;
	theirs = w->far->base + far;
	*v = (struct dray_piece){ w->write ? theirs : mine, w->write ? mine : theirs, bytes };
}

/* Advances by bytes of the current operation. */
static inline void consume(struct local_walk *w, uint64_t bytes)
{
	w->left -= bytes;
	w->done += bytes;
	if (w->done == w->op->length) {
		w->op++;
		w->done = 0;
	}
}

unsigned local_walk_short(struct local_walk *w, struct dray_piece *v, unsigned max,
			  uint64_t longest, struct dray_piece *ret_long)
{
	unsigned n = 0;

	ret_long->bytes = 0;
	while (n < max && w->left) {
		if (!w->done)
			n += walk_whole(w, v + n, max - n, longest);
		if (n == max || !w->left)
			break;
		locate(w, &v[n]);
		if (v[n].bytes > longest) {
			*ret_long = v[n];
			break;
		}
		consume(w, v[n++].bytes);
	}
	return n;
}

unsigned local_walk(struct local_walk *w, struct dray_piece *v, unsigned max, uint64_t max_bytes)
{
	struct dray_piece next;
	unsigned n = 0;

	while ((n += local_walk_short(w, v + n, max - n, max_bytes, &next)) < max && w->left) {
		next.bytes = max_bytes;
		v[n++] = next;
		consume(w, max_bytes);
	}
	return n;
}

void local_walk_peek(const struct local_walk *w, struct dray_piece *ret)
{
	struct local_walk here = *w;

	locate(&here, ret);
}

bool local_walk_share(struct local_walk *w, struct workshare_job *j, bool stream)
{
	unsigned n = local_walk(w, j->pieces, WORKSHARE_PIECES, WORKSHARE_TASK);

	if (!local_walk_ended(w))
		return false;
	workshare_set_copy(j, n, stream);
	return true;
}

int local_walk_node(const struct slice *s)
{
	const struct xfer *x = s->xfer;
	const struct object *to = x->direction == DMSG_DIRECTION_WRITE ? x->target : x->local;
	const struct region_view *r = object_region(to);
	struct dray_piece first;
	struct local_walk w;

	if (!r->nodes_known)
		return -1;
	local_walk_slice(&w, s);
	local_walk(&w, &first, 1, UINT64_MAX);
	return (w.write ? w.far : w.near)->node;
}

bool local_walk_is_near(const struct xfer *x, const void *address)
{
	const struct region_view *r = object_region(x->local);
	const uint8_t *p = address;

	for (uint32_t i = 0; i < r->n_extents; i++)
		if (p >= r->extents[i].base && p < r->extents[i].base + r->extents[i].length)
			return true;
	return false;
}
