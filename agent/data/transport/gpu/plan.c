/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/gpu/plan.h"

#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"

#define KIB 1024ull
#define MIB (1ull << 20)
/* Cut pieces begin at whole lines. */
#define CUT_ALIGN 128u
/* Shorter slices are walked, so that slices of other regions can join them in a launch. */
#define OPS_MIN 64u
/*
 * Slices: a device copies 2,000 GB/s in its memory, 400 over NVLink, 50 over PCIe; a CPU 10. Inside a
 * device the kernel is as fast as the copy engines, whose call costs as much as copying 10 MiB. Over NVLink
 * and PCIe engines are a little faster for large copies, and leave the multiprocessors free.
 *
 * Beside an engine the calls for copy engines take time of this worker: 32 pieces of 256 KiB on four streams do not keep them busy.
 *
 * On a device that MPS shares, blocks of a copy get room when a kernel of an engine ends, once in one to two milliseconds. Larger copies
 * over PCIe need fewer of these times. Inside a device and over NVLink copies have blocks for all multiprocessors: larger ones would be
 * faster there, too, but take the engine's for longer.
 *
 * In flight: enough to cover the time in which this worker reads and checks the next transfer (65,536
 * operations in some 300 us) or wakes up; not more, because other transfers wait as long.
 */
const struct gpu_plan_limits gpu_plan_limits[GPU_PATH_N] = {
	[GPU_PATH_WITHIN] = { GPU_WITHIN, DMSG_GPU_PATH_WITHIN, 128 * MIB, 128 * MIB, 128 * MIB,
			      1024 * MIB, 64 * MIB },
	[GPU_PATH_PEER] = { GPU_PEER, DMSG_GPU_PATH_PEER, 32 * MIB, 32 * MIB, 32 * MIB, 384 * MIB,
			    8 * MIB },
	[GPU_PATH_TO_HOST] = { GPU_TO_HOST, DMSG_GPU_PATH_HOST, 8 * MIB, 16 * MIB, 64 * MIB,
			       24 * MIB, 2 * MIB },
	[GPU_PATH_FROM_HOST] = { GPU_FROM_HOST, DMSG_GPU_PATH_HOST, 8 * MIB, 16 * MIB, 64 * MIB,
				 24 * MIB, 2 * MIB },
	[GPU_PATH_TO_HOST_STAGED] = { GPU_TO_HOST, DMSG_GPU_PATH_STAGED, MIB / 2, MIB / 2, MIB / 2,
				      0, UINT64_MAX },
	[GPU_PATH_FROM_HOST_STAGED] = { GPU_FROM_HOST, DMSG_GPU_PATH_STAGED, MIB / 2, MIB / 2,
					MIB / 2, 0, UINT64_MAX },
	[GPU_PATH_PEER_STAGED] = { GPU_TO_HOST, DMSG_GPU_PATH_STAGED, MIB, MIB, MIB, 0,
				   UINT64_MAX },
};

static bool reaches(const uint32_t *peers, uint8_t device, uint8_t other)
{
	return peers[device] >> other & 1;
}

static struct gpu_path_choice between(uint8_t from, uint8_t to, const uint32_t *peers, bool staging)
{
	if (from == to)
		return (struct gpu_path_choice){ GPU_PATH_WITHIN, from };
	/* The destination reads: 374 GB/s with 16 KiB pages over NVLink, against 368 if the source writes. */
	if (reaches(peers, to, from))
		return (struct gpu_path_choice){ GPU_PATH_PEER, to };
	if (reaches(peers, from, to))
		return (struct gpu_path_choice){ GPU_PATH_PEER, from };
	return (struct gpu_path_choice){ staging && peers[to] ? GPU_PATH_PEER_STAGED :
								GPU_PATH_NONE,
					 from };
}

static struct gpu_path_choice with_host(uint8_t device, bool to_host, bool pinned, bool staging)
{
	enum gpu_path_kind direct = to_host ? GPU_PATH_TO_HOST : GPU_PATH_FROM_HOST;
	enum gpu_path_kind staged = to_host ? GPU_PATH_TO_HOST_STAGED : GPU_PATH_FROM_HOST_STAGED;

	return (struct gpu_path_choice){ pinned  ? direct :
					 staging ? staged :
						   GPU_PATH_NONE,
					 device };
}

struct gpu_path_choice gpu_plan_path(const struct region_view *from, bool from_pinned,
				     const struct region_view *to, bool to_pinned,
				     const uint32_t peers[GPU_DEVICES_MAX], bool staging)
{
	struct gpu_path_choice c = { GPU_PATH_NONE, 0 };

	if (from->memory == REGION_GPU && to->memory == REGION_GPU)
		c = between(from->gpu, to->gpu, peers, staging);
	else if (from->memory == REGION_GPU && to->memory == REGION_HOST)
		c = with_host(from->gpu, true, to_pinned, staging);
	else if (from->memory == REGION_HOST && to->memory == REGION_GPU)
		c = with_host(to->gpu, false, from_pinned, staging);
	if (c.kind != GPU_PATH_NONE && !peers[c.device])
		c.kind = GPU_PATH_NONE;
	return c;
}

void gpu_plan_init(struct gpu_plan *p, enum gpu_path_kind kind, struct dray_piece *pieces,
		   uint32_t max)
{
	*p = (struct gpu_plan){ .limits = &gpu_plan_limits[kind],
				.pieces = pieces,
				.max = max,
				.copy.route = gpu_plan_limits[kind].route };
}

/* Adds the next piece in equal parts, as many as there is room for. */
static void add_cut(struct gpu_plan *p, struct local_walk *w, uint64_t bytes)
{
	uint64_t parts = (bytes + GPU_PIECE_MAX - 1) / GPU_PIECE_MAX;
	uint64_t part = (bytes + parts - 1) / parts;

	part = dray_min((part + CUT_ALIGN - 1) / CUT_ALIGN * CUT_ALIGN, (uint64_t)GPU_PIECE_MAX);
	while (bytes && p->n < p->max) {
		uint64_t n = dray_min(part, bytes);

		local_walk(w, &p->pieces[p->n++], 1, n);
		bytes -= n;
	}
}

bool gpu_plan_add(struct gpu_plan *p, struct local_walk *w)
{
	uint64_t left = w->left;
	struct dray_piece next;

	if (p->relative)
		return false;
	if (p->engines) {
		p->n += local_walk(w, &p->pieces[p->n], p->max - p->n, UINT64_MAX);
		p->copy.engine = true;
	}
	while (p->n < p->max && !p->engines) {
		if (!p->copy.engine)
			p->n += local_walk_short(w, &p->pieces[p->n], p->max - p->n, GPU_PIECE_MAX,
						 &next);
		else
			local_walk_peek(w, &next);
		if (p->n == p->max || local_walk_ended(w))
			break;
		if (next.bytes < p->limits->engine_min && !p->copy.engine) {
			add_cut(p, w, next.bytes);
			continue;
		}
		if (next.bytes < p->limits->engine_min || (p->n && !p->copy.engine))
			break;
		p->copy.engine = true;
		local_walk(w, &p->pieces[p->n++], 1, UINT64_MAX);
		if (local_walk_ended(w))
			break;
	}
	p->copy.bytes += left - w->left;
	return local_walk_ended(w);
}

/* Sets the start of both regions, and which side comes first in an operation. */
static void set_bases(struct gpu_plan *p, const struct xfer *x)
{
	const struct region_view *local = object_region(x->local);
	const struct region_view *target = object_region(x->target);
	uint64_t near = (uintptr_t)local->extents[0].base;
	uint64_t far = (uintptr_t)target->extents[0].base + x->target_offset;

	p->relative = true;
	p->copy.swapped = x->direction == DMSG_DIRECTION_WRITE;
	p->copy.to_base = p->copy.swapped ? far : near;
	p->copy.from_base = p->copy.swapped ? near : far;
}

bool gpu_plan_add_ops(struct gpu_plan *p, const struct slice *s)
{
	const struct xfer *x = s->xfer;
	struct dray_piece *pieces = &p->pieces[p->n];
	struct xfer_op first;

	_Static_assert(
		sizeof(struct xfer_op) == sizeof(struct dray_piece) &&
			offsetof(struct xfer_op, local) == offsetof(struct dray_piece, to) &&
			offsetof(struct xfer_op, remote) == offsetof(struct dray_piece, from) &&
			offsetof(struct xfer_op, length) == offsetof(struct dray_piece, bytes),
		"an operation is a piece");
	bool whole = x->ops_pinned && !s->from.offset && !x->cursor.offset;

	if (p->n || s->n_ops < OPS_MIN || (!whole && s->n_ops > p->max) ||
	    x->longest > GPU_PIECE_MAX || object_region(x->local)->n_extents != 1 ||
	    object_region(x->target)->n_extents != 1)
		return false;
	set_bases(p, x);
	p->n = s->n_ops;
	p->copy.bytes = s->bytes;
	if (whole) {
		p->copy.pieces = (const struct dray_piece *)(const void *)&x->ops[s->from.op];
		return true;
	}
	memcpy(pieces, &x->ops[s->from.op], s->n_ops * sizeof(*pieces));
	first = x->ops[s->from.op];
	first.local += s->from.offset;
	first.remote += s->from.offset;
	first.length -= s->from.offset;
	memcpy(pieces, &first, sizeof(first));
	/* The last operation may be cut. */
	if (x->cursor.offset)
		pieces[s->n_ops - 1].bytes = x->cursor.offset;
	return true;
}
