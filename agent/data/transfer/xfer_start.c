/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a transfer: checks it, accepts it, and gives it to a transport or carries it out at once. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/record.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/xfer_internal.h"
#include "agent/model/peer_link.h"

/* Bytes of a transfer that may be carried out as soon as it is read; the copy takes as long as reading the next few requests. */
#define XFER_AT_ONCE_MAX 4096

static struct xfer *xfer_new(struct xfers *xs)
{
	struct xfer *x = dray_list_first(&xs->free, struct xfer, flow_link);

	if (x) {
		dray_list_del(&x->flow_link);
		xs->n_free--;
	} else {
		x = malloc(sizeof(*x));
		if (!x)
			return NULL;
	}
	memset(x, 0, offsetof(struct xfer, ops_inline));
	dray_list_init(&x->session_link);
	dray_list_init(&x->flow_link);
	dray_list_init(&x->wait_link);
	return x;
}

static void hold_all(struct xfer *x)
{
	struct object *held[] = { x->local, x->remote, x->target, x->wait.region, x->set.region };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(held); i++)
		if (held[i])
			object_hold(held[i]);
}

static void take_link(struct core *c, struct xfer *x, struct peer_link *link)
{
	x->link = link;
	if (link && link_use(link))
		c->up->event(c, &(struct event){ .type = EVENT_PEER_USED, .session = link->peer });
}

static enum region_memory memory_of(const struct object *region)
{
	return object_region(region)->memory;
}

/* No transport takes it. `unsupported` if the kind of memory is the reason, because a retry would fail too. */
static void refuse(struct core *c, struct xfer *x)
{
	bool here = x->target;
	uint32_t code = DRAY_E_UNSUPPORTED;
	const char *why;

	if (memory_of(x->local) == REGION_RDMA || (here && memory_of(x->target) == REGION_RDMA))
		why = here ? "memory of kind dmabuf moves over RDMA to another agent, not inside of "
			     "one; use cuda_vmm or cuda_ipc" :
			     "memory of kind dmabuf moves over RDMA alone, and there is no path by "
			     "RDMA to the remote's peer";
	else if (memory_of(x->local) == REGION_GPU || (here && memory_of(x->target) == REGION_GPU))
		why = here ? "no GPU of this agent reaches both sides, and there is no memory to "
			     "stage in" :
			     "GPU memory moves over RDMA or is staged, and this agent can do neither "
			     "to the remote's peer";
	else {
		code = DRAY_E_PEER_LOST;
		why = "no transport reaches the remote's peer";
	}
	xfer_stop(c, x, code, why, false);
}

void xfer_go(struct core *c, struct xfer *x)
{
	for (unsigned i = 0; i < c->n_transports; i++) {
		struct channel *ch = c->transports[i]->channel(c, c->transport_state[i], x);

		if (!ch)
			continue;
		sched_assign(x, i, ch);
		x->state = XFER_RUNNING;
		xfer_enter(x, XFER_PHASE_QUEUE, c->now_ns);
		take_link(c, x, ch->link);
		if (sched_enqueue(c, x) < 0)
			xfer_stop(c, x, DRAY_E_NO_MEMORY, "no memory for the transfer", false);
		return;
	}
	refuse(c, x);
}

/*
 * Carries out a small transfer at once if a transport can: handles, flow, slice and deadline would cost several times the
 * copy. The transfer is in no table, and no object can be dropped meanwhile.
 */
static bool xfer_at_once(struct core *c, struct xfer *x)
{
	if (x->wait.p || x->notify || x->bytes > XFER_AT_ONCE_MAX || x->n_ops > XFER_OPS_INLINE)
		return false;
	for (unsigned i = 0; i < c->n_transports; i++) {
		const struct transport_ops *ops = c->transports[i];

		if (!ops->at_once || !ops->at_once(c, c->transport_state[i], x))
			continue;
		x->transport_index = (uint8_t)i;
		x->n_slices = 1;
		xfer_enter(x, XFER_PHASE_MOVE, c->now_ns);
		if (!x->code)
			xfer_moved(c, x, x->bytes);
		return true;
	}
	return false;
}

int xfer_start(struct core *c, struct xfer_session *s, const struct xfer_request *r,
	       struct dray_err *reterr)
{
	struct xfers *xs = c->xfers;
	int64_t limit_ns = r->spec.deadline_ms ? (int64_t)r->spec.deadline_ms * DRAY_NS_PER_MS :
						 c->cfg.deadline_ns;
	struct xfer *x;
	int ret;

	ret = xfer_request_check(r, reterr);
	if (ret < 0)
		goto refused;
	if (r->n_ops > s->shared->ops_max - s->ops) {
		ret = dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"%u operations of this session are in flight (limits.ops_per_session is %u)",
			s->ops, s->shared->ops_max);
		goto refused;
	}
	/* before operations are read; the quota is taken after the checks, and only by a transfer that lasts */
	ret = quotas_check(s->shared, reterr);
	if (ret < 0)
		goto refused;
	x = xfer_new(xs);
	if (!x) {
		ret = dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the transfer");
		goto refused;
	}
	x->session = s;
	x->request_id = r->request_id;
	x->from_ring = r->from_ring;
	x->direction = (enum dmsg_direction)r->spec.direction;
	x->class = (enum dmsg_class)r->spec.class;
	x->accepted_ns = x->phase_ns[XFER_PHASE_WAIT] = c->now_ns;
	x->n_ops_given = r->n_ops;
	ret = xfer_prepare(c, x, r, reterr);
	if (ret < 0)
		goto refused_xfer;
	if (xfer_at_once(c, x)) {
		core_count(c->counters, DRAY_METRIC_TRANSFERS_ACCEPTED_TOTAL, 1);
		xfer_settle(c, x);
		xfer_free(xs, x);
		return 0;
	}
	ret = quotas_take(s->shared, reterr);
	if (ret < 0)
		goto refused_xfer;
	ret = dray_handles_add(&xs->table, x, &x->handle);
	if (ret >= 0)
		ret = dray_heap_set(&xs->deadlines, &x->deadline, c->now_ns + limit_ns);
	if (ret < 0) {
		dray_err_set(reterr, ret, ret == -ENOSPC ? DRAY_E_BUSY : DRAY_E_NO_MEMORY,
			     "this worker has no room for another transfer");
		goto refused_quota;
	}
	hold_all(x);
	s->ops += r->n_ops;
	core_count(c->counters, DRAY_METRIC_TRANSFERS_ACCEPTED_TOTAL, 1);
	core_count(c->counters, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
	dray_list_add(&s->xfers, &x->session_link);
	if (x->wait.p) {
		x->state = XFER_WAITING;
		dray_list_add(&xs->waiting, &x->wait_link);
	} else {
		/* accepted: from here on an error is the result of the transfer */
		xfer_go(c, x);
	}
	return 0;

refused_quota:
	quotas_put(s->shared);
refused_xfer:
	xfer_unlink(xs, x);
	xfer_free(xs, x);
refused:
	core_count(c->counters, DRAY_METRIC_TRANSFERS_REFUSED_TOTAL, 1);
	return ret;
}
