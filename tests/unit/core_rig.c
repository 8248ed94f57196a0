/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transport/local/local.h"
#include "lib/memfd.h"
#include "tests/unit/cm.h"
#include "tests/unit/account.h"

static struct rig *rig_of(struct core *c)
{
	return (struct rig *)(void *)c;
}

static void ended(struct core *c, struct xfer *x)
{
	struct rig *r = rig_of(c);

	assert_true(r->n_ended < RIG_ENDED_MAX);
	r->ended[r->n_ended++] =
		(struct rig_end){ x->request_id, x->bytes_done, x->code, x->session->handle };
	if (r->on_end)
		r->on_end(r, x);
}

static void refused(struct core *c, struct xfer *x, const struct dray_err *err)
{
	(void)x;
	rig_of(c)->refusal = *err;
}

static void notify(struct core *c, struct xfer *x)
{
	rig_of(c)->n_notify++;
	rig_of(c)->last_notify = x->handle;
}

static void event(struct core *c, const struct event *ev)
{
	struct rig *r = rig_of(c);

	if (ev->type == EVENT_DROPPED) {
		r->n_dropped++;
		r->last_dropped = ev->handle;
	} else if (ev->type == EVENT_SESSION_FAULT) {
		r->n_faults++;
		r->last_fault = ev->session;
	} else {
		assert_int_equal(ev->type, EVENT_TRANSPORT);
		assert_true(r->n_told < RIG_TOLD_MAX);
		r->told[r->n_told++] = ev->message;
	}
}

static void peer_gone(struct core *c, dray_handle peer)
{
	(void)peer;
	rig_of(c)->n_gone++;
}

static const struct core_upcalls upcalls = {
	.xfer_ended = ended,
	.xfer_refused = refused,
	.notify = notify,
	.event = event,
	.peer_gone = peer_gone,
	.release_buffers = slice_release_buffers,
	.flush_rdma = gpu_flush_rdma,
};

void rig_init(struct rig *r)
{
	memset(r, 0, sizeof(*r));
	r->core.cfg = (struct data_config){ .slice_size = 1 << 20,
					    .slice_timeout_ns = DRAY_NS_PER_SEC,
					    .deadline_ns = 60 * DRAY_NS_PER_SEC,
					    .slices_per_session = 64 };
	r->core.up = &upcalls;
	r->core.counters = &r->counters;
	r->core.now_ns = 1000;
	r->group.transfers_max = 1000;
	assert_int_equal(fault_init(), 0);
	assert_int_equal(loop_init(&r->core.loop), 0);
	assert_int_equal(objects_init(&r->core), 0);
	assert_int_equal(xfers_init(&r->core, 1000), 0);
	r->core.transports[0] = &transport_local;
	r->core.n_transports = 1;
	assert_int_equal(transport_local.init(&r->core, &r->core.transport_state[0]), 0);
}

void rig_deinit(struct rig *r)
{
	transport_local.deinit(&r->core, r->core.transport_state[0]);
	xfers_deinit(&r->core);
	objects_deinit(&r->core);
	loop_deinit(&r->core.loop);
}

void rig_session_init(struct rig *r, struct rig_session *s, dray_handle handle)
{
	memset(s, 0, sizeof(*s));
	s->shared.session = handle;
	s->shared.group = 77;
	s->shared.own.transfers_max = 100;
	s->shared.group_quota = &r->group;
	s->shared.account = account_without_limits();
	s->shared.ops_max = 100000;
	assert_int_equal(xfer_session_init(&r->core, &s->xs, handle, &s->shared), 0);
}

void rig_region_init(struct rig *r, struct rig_region *g, dray_handle handle, dray_handle session,
		     uint64_t bytes, uint32_t n_extents)
{
	uint64_t piece = bytes / n_extents;
	uint8_t *agent_memory;

	g->bytes = bytes;
	g->fd = dray_memfd_new("rig", bytes, false);
	assert_true(g->fd >= 0);
	g->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	agent_memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	assert_true(g->memory != MAP_FAILED && agent_memory != MAP_FAILED);
	memset(g->memory, 0, bytes);
	fault_guard_memory(agent_memory, bytes);
	g->view = calloc(1, sizeof(*g->view) + n_extents * sizeof(struct extent_view));
	assert_non_null(g->view);
	g->view->o =
		(struct object_view){ OBJECT_REGION, handle, 77, session, bytes, DMSG_ACCESS_ALL };
	g->view->n_extents = n_extents;
	for (uint32_t i = 0; i < n_extents; i++)
		g->view->extents[i] =
			(struct extent_view){ .start = i * piece,
					      .length = piece,
					      .base = agent_memory + (n_extents - 1 - i) * piece,
					      .node = -1 };
	object_publish(&r->core, &g->view->o);
}

void rig_region_deinit(struct rig_region *g)
{
	munmap(g->view->extents[g->view->n_extents - 1].base, g->bytes);
	munmap(g->memory, g->bytes);
	close(g->fd);
	free(g->view);
}

uint8_t *rig_at(struct rig_region *g, uint64_t offset)
{
	uint64_t piece = g->bytes / g->view->n_extents;
	uint64_t i = offset / piece;

	return g->memory + (g->view->n_extents - 1 - i) * piece + offset % piece;
}

struct remote_view *rig_remote(struct rig *r, dray_handle handle, struct rig_region *g,
			       dray_handle session)
{
	struct remote_view *v = calloc(1, sizeof(*v));

	assert_non_null(v);
	v->o = (struct object_view){ OBJECT_REMOTE, handle, 77, session, g->bytes, DMSG_ACCESS_ALL };
	v->is_local = true;
	v->region = g->view->o.handle;
	object_publish(&r->core, &v->o);
	return v;
}

bool rig_turn(struct rig *r)
{
	bool more = transport_local.progress(&r->core, r->core.transport_state[0]);

	xfers_tick(&r->core);
	return more;
}

int rig_submit(struct rig *r, struct rig_session *s, struct xfer_request *req,
	       const uint64_t (*ops)[3], uint32_t n, struct dray_err *err)
{
	uint8_t *wire = malloc((size_t)n * DMSG_OP_SIZE + 1);
	int ret;

	assert_non_null(wire);
	for (uint32_t i = 0; i < n; i++)
		dmsg_op_put(wire + (size_t)i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ ops[i][0], ops[i][1], ops[i][2] });
	req->ops = wire;
	req->n_ops = n;
	if (!req->spec.direction)
		req->spec.direction = DMSG_DIRECTION_WRITE;
	ret = xfer_start(&r->core, &s->xs, req, err);
	r->refusal = DRAY_ERR_NULL;
	while (s->xs.read)
		xfer_read(&r->core, &s->xs);
	if (ret == 0 && r->refusal.code) {
		*err = r->refusal;
		ret = -EINVAL;
	}
	free(wire);
	return ret;
}
