/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/rdma/copy.h"

#include "agent/data/transport/rdma/rdma.h"

static void end(struct rdma_copy *copy, uint32_t code)
{
	struct object *grant = copy->grant_held, *region = copy->region_held;
	struct core *c = copy->rdma->c;

	dray_list_del(&copy->worker_link);
	copy->grant_held = copy->region_held = NULL;
	/* told first: to let go of the objects can end more */
	c->up->transport_event(c, &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							       .type = RDMA_COPIED,
							       .peer = copy->peer,
							       .code = code,
							       .arg = copy });
	if (grant)
		object_release(c, grant);
	if (region)
		object_release(c, region);
}

static void round_done(struct core *c, struct stage_buffer *b)
{
	struct rdma_copy *copy = b->holder;

	(void)c;
	dray_list_del(&copy->worker_link);
	dray_list_add(&copy->rdma->copied, &copy->worker_link);
}

static void next_round(struct rdma_copy *copy)
{
	const struct region_view *r = (const struct region_view *)copy->region_held->view;
	struct stage_buffer *b = &copy->b;
	uint64_t bytes;

	b->n_ranges = serve_walk_ranges(&copy->at, copy->grant_held, copy->region_held, b->ranges,
					STAGE_RANGES_MAX, &bytes);
	b->bytes = bytes;
	dray_list_add(&copy->rdma->copies, &copy->worker_link);
	stage_copy(copy->rdma->c, b, r->gpu, copy->scatter, round_done);
}

void rdma_copy_start(struct rdma *r, struct rdma_copy *copy)
{
	uint16_t access = copy->scatter ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ;
	struct object *grant = NULL, *region = NULL;
	uint32_t code = serve_admit(r->c, copy->peer, copy->grant, access, copy->segs, copy->n_segs,
				    &grant, &region);

	copy->rdma = r;
	dray_list_init(&copy->worker_link);
	if (!code && ((const struct region_view *)region->view)->memory != REGION_GPU)
		code = DRAY_E_UNSUPPORTED;
	if (code) {
		end(copy, code);
		return;
	}
	copy->grant_held = grant;
	copy->region_held = region;
	object_hold(grant);
	object_hold(region);
	serve_walk_init(&copy->at, copy->segs, copy->n_segs);
	stage_buffer_init(&copy->b, copy->base, copy->class);
	copy->b.holder = copy;
	next_round(copy);
}

static uint32_t dropped(const struct rdma_copy *copy)
{
	if (copy->grant_held->drop_code)
		return serve_drop_status(copy->grant_held);
	return copy->region_held->drop_code ? serve_drop_status(copy->region_held) : 0;
}

/* Its round is done: the next one, or its end. */
static void go_on(struct rdma_copy *copy)
{
	struct stage_buffer *b = &copy->b;
	uint32_t code = b->code == DRAY_E_CANCELLED ? DRAY_E_REVOKED : b->code;
	bool more;

	dray_list_del(&copy->worker_link);
	serve_walk_advance(&copy->at, b->bytes);
	more = copy->at.seg < copy->at.n_segs;
	if (!code && more)
		code = dropped(copy);
	if (code || !more) {
		end(copy, code);
		return;
	}
	b->base += b->bytes;
	next_round(copy);
}

void rdma_copies_progress(struct rdma *r)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct rdma_copy *copy;

	dray_list_splice(&now, &r->copied);
	while ((copy = dray_list_first(&now, struct rdma_copy, worker_link)))
		go_on(copy);
}

static bool uses(const struct rdma_copy *copy, const struct object *o)
{
	return copy->grant_held == o || copy->region_held == o;
}

void rdma_copies_drop(struct rdma *r, const struct object *o)
{
	if (o->drop_urgent)
		dray_list_for_each(&r->copies, copy, struct rdma_copy, worker_link)
			if (uses(copy, o))
				stage_finish(r->c, &copy->b);
	dray_list_for_each(&r->copied, done, struct rdma_copy, worker_link)
		if (uses(done, o))
			go_on(done);
}
