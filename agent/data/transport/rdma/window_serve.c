/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of windows: copies between a window here, which a peer reads and writes by RDMA, and GPU
 * memory that was granted to the peer. The control thread has checked the form of the request. This file
 * checks it against the grant and carries it out in rounds of as many ranges as one copy takes. It holds
 * grant and region meanwhile.
 */
#include <stdlib.h>

#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/transport/stage/grant.h"

/* A copy that this worker carries out. */
struct window_copy {
	struct rdma_copy copy; /* first: freed by the control thread */
	struct dray_list link; /* on rdma->copies or rdma->copied */
	struct rdma *rdma;
	struct granted held;
	struct grant_walk at;
	struct stage_buffer b; /* of the present round */
};

struct rdma_copy *rdma_copy_new(void)
{
	struct window_copy *w = calloc(1, sizeof(*w));

	return w ? &w->copy : NULL;
}

static void end(struct window_copy *w, uint32_t code)
{
	struct rdma_copy *copy = &w->copy;
	struct granted held = w->held;
	struct core *c = w->rdma->c;

	dray_list_del(&w->link);
	w->held = (struct granted){ 0 };
	copy->gpu_lost = w->b.lost;
	/* The report comes first, because releasing the objects can end more. */
	rdma_event(w->rdma, RDMA_COPIED, copy->peer, 0, code, copy);
	granted_release(c, &held);
}

static void round_done(struct core *c, struct stage_buffer *b)
{
	struct window_copy *w = b->holder;

	dray_list_move(&w->rdma->copied, &w->link);
}

static void next_round(struct window_copy *w)
{
	const struct region_view *r = object_region(w->held.region);
	struct stage_buffer *b = &w->b;
	uint64_t bytes;

	b->n_ranges = grant_walk_ranges(&w->at, &w->held, b->ranges, STAGE_RANGES_MAX, &bytes);
	b->bytes = bytes;
	dray_list_add(&w->rdma->copies, &w->link);
	stage_copy(w->rdma->c, b, r->gpu, w->copy.scatter, round_done);
}

void rdma_copy_start(struct rdma *r, struct rdma_copy *copy)
{
	struct window_copy *w = dray_container_of(copy, struct window_copy, copy);
	uint16_t access = copy->scatter ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ;
	struct granted granted = { 0 };
	uint32_t code = grant_check(r->c, copy->peer, copy->grant, access, copy->segs, copy->n_segs,
				    &granted);

	r->c->moved_ns = r->c->now_ns;
	w->rdma = r;
	dray_list_init(&w->link);
	if (!code && object_region(granted.region)->memory != REGION_GPU)
		code = DRAY_E_UNSUPPORTED;
	if (code) {
		end(w, code);
		return;
	}
	w->held = granted;
	granted_hold(&granted);
	grant_walk_init(&w->at, copy->segs, copy->n_segs);
	stage_buffer_init(&w->b, copy->base, copy->class);
	w->b.holder = w;
	next_round(w);
}

static uint32_t dropped(const struct window_copy *w)
{
	if (w->held.grant->drop_code)
		return grant_drop_code(w->held.grant);
	return w->held.region->drop_code ? grant_drop_code(w->held.region) : 0;
}

/* Its round has ended: starts the next one, or ends the copy. */
static void round_end(struct window_copy *w)
{
	struct stage_buffer *b = &w->b;
	uint32_t code = b->code == DRAY_E_CANCELLED ? DRAY_E_REVOKED : b->code;
	bool more;

	dray_list_del(&w->link);
	grant_walk_advance(&w->at, b->bytes);
	more = w->at.seg < w->at.n_segs;
	if (!code && more)
		code = dropped(w);
	if (code || !more) {
		end(w, code);
		return;
	}
	b->base += b->bytes;
	next_round(w);
}

void rdma_copies_progress(struct rdma *r)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct window_copy *w;

	dray_list_splice(&now, &r->copied);
	while ((w = dray_list_first(&now, struct window_copy, link)))
		round_end(w);
}

void rdma_copies_drop(struct core *c, void *state, struct object *o)
{
	struct rdma *r = state;

	dray_list_for_each(&r->copies, w, struct window_copy, link)
		if (granted_has(&w->held, o))
			stage_stop(c, &w->b, o->drop_mode == DROP_URGENT);
	dray_list_for_each(&r->copied, done, struct window_copy, link)
		if (granted_has(&done->held, o))
			round_end(done);
}
