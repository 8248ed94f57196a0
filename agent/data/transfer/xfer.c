/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer holds its objects (regions, remote) and its quota from xfer_start() to its end. `slices` counts the slices that
 * the transport has. xfer_stop() adds one while it calls the transport, so that the transfer cannot be freed inside
 * the call.
 */
#include "agent/data/transfer/xfer.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/delegate.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/ops_sort.h"
#include "agent/data/transfer/owner.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/wait.h"
#include "agent/data/transfer/xfer_internal.h"
#include "agent/model/peer_link.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/* Overdue transfers that one turn ends. */
#define OVERDUE_MAX 64

#define XFERS_KEPT 256

int xfers_init(struct core *c, uint32_t max)
{
	struct xfers *xs = calloc(1, sizeof(*xs));

	if (!xs)
		return -ENOMEM;
	dray_handles_init(&xs->table, max, 0);
	dray_list_init(&xs->free);
	dray_list_init(&xs->overdue);
	dray_list_init(&c->owners);
	dray_list_init(&c->free_slices);
	c->xfers = xs;
	return 0;
}

void xfers_pinned(struct core *c, void *base)
{
	c->xfers->ops.pinned = base;
}

void xfers_deinit(struct core *c)
{
	struct xfers *xs = c->xfers;

	if (!xs)
		return;
	dray_list_for_each(&xs->free, x, struct xfer, flow_link)
		free(x);
	dray_handles_deinit(&xs->table);
	dray_heap_deinit(&xs->deadlines);
	ops_store_deinit(&xs->ops);
	sched_deinit(c);
	free(xs);
	c->xfers = NULL;
}

int xfer_session_init(struct core *c, struct xfer_session *s, dray_handle handle,
		      struct session_shared *shared)
{
	*s = (struct xfer_session){ .handle = handle, .group = shared->group, .shared = shared };
	dray_list_init(&s->xfers);
	dray_map_init(&s->by_request);
	dray_list_init(&s->flows);
	dray_list_init(&s->waiting);
	dray_list_init(&s->waiting_link);
	return owner_join(c, s);
}

void xfer_session_deinit(struct xfer_session *s)
{
	sched_session_deinit(s);
	dray_map_deinit(&s->by_request);
	owner_leave(s);
	free(s->reading);
}

void xfer_session_stop(struct core *c, struct xfer_session *s, uint32_t code)
{
	struct dray_list seen = DRAY_LIST_INIT(seen);

	/* the stop of one transfer may close a stream, and with it end others of the session */
	while (!dray_list_empty(&s->xfers)) {
		struct xfer *x = dray_list_first(&s->xfers, struct xfer, session_link);

		dray_list_move(&seen, &x->session_link);
		xfer_stop(c, x, code, NULL, true);
	}
	dray_list_splice(&s->xfers, &seen);
}

struct xfer *xfer_find(struct xfer_session *s, uint64_t request_id)
{
	return dray_map_entry(dray_map_find(&s->by_request, &request_id, sizeof(request_id)),
			      struct xfer, by_request);
}

void xfer_unlink(struct xfers *xs, struct xfer *x)
{
	if (x->handle)
		dray_handles_del(&xs->table, x->handle);
	dray_heap_del(&xs->deadlines, &x->deadline);
	dray_list_del(&x->overdue);
	dray_list_del(&x->session_link);
	if (x->session->read == x)
		x->session->read = NULL;
	dray_map_del(&x->session->by_request, &x->by_request);
	wait_del(x);
	xfer_wait_over(x);
	xfer_ops_over(x);
}

void xfer_free(struct xfers *xs, struct xfer *x)
{
	if (x->ops && x->ops != x->ops_inline && !x->ops_lost)
		ops_store_put(&xs->ops, x->ops, x->n_ops_given);
	packet_free(x->notify);
	if (xs->n_free < XFERS_KEPT) {
		dray_list_add(&xs->free, &x->flow_link);
		xs->n_free++;
	} else {
		free(x);
	}
}

void xfer_memory_fault(struct core *c, dray_handle session)
{
	core_count(c->counters, DRAY_METRIC_REGION_FAULTS_TOTAL, 1);
	c->up->event(c, &(struct event){ .type = EVENT_SESSION_FAULT, .session = session });
}

/* All its bytes are in place, or none can move any more. */
static void drop_link(struct xfer *x)
{
	int64_t moving_ns = x->phase_ns[XFER_PHASE_MOVE];

	if (!x->link)
		return;
	if (x->phase == XFER_PHASE_MOVE)
		moving_ns = dray_now().ns - moving_ns;
	if (x->phase >= XFER_PHASE_MOVE)
		atomic_fetch_add_explicit(&x->link->moving_ns, dray_span(moving_ns),
					  memory_order_relaxed);
	link_release(x->link);
	x->link = NULL;
}

void xfer_describe(struct transfer_record *ret, const struct core *c, const struct xfer *x,
		   int64_t now_ns)
{
	const struct remote_view *remote = object_remote(x->remote);

	*ret = (struct transfer_record){
		.session = x->session->handle,
		.peer = remote->is_local ? 0 : remote->peer,
		.request = x->request_id,
		.rails = x->rails,
		.bytes = x->bytes,
		.bytes_done = x->bytes_done,
		.operations = x->n_ops,
		.slices = x->n_slices,
		.resent = x->n_resent,
		.code = x->code,
		.direction = (uint8_t)x->direction,
		.class = (uint8_t)x->class,
		.transport = (uint8_t)(x->n_slices ? c->transports[x->transport_index]->id :
						     DMSG_TRANSPORT_NONE),
		.gpu_path = x->n_slices ? x->gpu_path : DMSG_GPU_PATH_NONE,
		.gpu_way = x->gpu_way,
		.ended_ns = now_ns,
	};
	memcpy(ret->label, remote->label, sizeof(ret->label));
	for (unsigned i = 0; i < (unsigned)x->phase; i++)
		ret->phase_ns[i] = x->phase_ns[i];
	ret->phase_ns[x->phase] = now_ns - x->phase_ns[x->phase];
}

static void count_phases(struct data_phases *p, const struct transfer_record *r)
{
	bool at_once = !(r->phase_ns[XFER_PHASE_QUEUE] | r->phase_ns[XFER_PHASE_COMPLETE]);

	histogram_observe(&p->of[XFER_PHASE_MOVE], DRAY_FAMILY_TRANSFER_PHASE_SECONDS,
			  dray_span(r->phase_ns[XFER_PHASE_MOVE]));
	if (at_once) {
		shared_count(&p->at_once, 1);
		return;
	}
	histogram_observe(&p->of[XFER_PHASE_QUEUE], DRAY_FAMILY_TRANSFER_PHASE_SECONDS,
			  dray_span(r->phase_ns[XFER_PHASE_QUEUE]));
	histogram_observe(&p->of[XFER_PHASE_COMPLETE], DRAY_FAMILY_TRANSFER_PHASE_SECONDS,
			  dray_span(r->phase_ns[XFER_PHASE_COMPLETE]));
}

/* Counts a transfer that ended ok in the histograms. */
static void count_times(struct data_counters *c, const struct transfer_record *r, int64_t took_ns)
{
	histogram_observe(&c->duration[r->transport], DRAY_FAMILY_TRANSFER_DURATION_SECONDS,
			  dray_span(took_ns));
	histogram_observe(&c->size[r->transport], DRAY_FAMILY_TRANSFER_SIZE_BYTES, r->bytes);
	count_phases(&c->phases[r->transport][r->class], r);
}

/* Records how the transfer ended, and reports it to the control thread if that is configured. */
static void xfer_record(struct core *c, const struct xfer *x)
{
	struct transfer_record *r = &c->xfers->records[c->xfers->n_records++ % RECORDS_MAX];
	int64_t took_ns;
	bool slow;

	xfer_describe(r, c, x, x->ended_ns);
	/* without the time in which the client had not set the wait word, or none of its bytes could move */
	took_ns = record_duration(r) - r->phase_ns[XFER_PHASE_WAIT];
	if (!r->code)
		count_times(c->counters, r, took_ns);
	slow = c->cfg.slow_ns && took_ns > c->cfg.slow_ns;
	if (slow || c->cfg.report_all)
		c->up->xfer_report(c, r, slow);
}

void xfer_settle(struct core *c, struct xfer *x)
{
	struct xfer_session *s = x->session;

	/* not the time of the turn: a copy may have taken most of it */
	x->ended_ns = dray_now().ns;
	if (!x->code)
		xfer_enter(x, XFER_PHASE_COMPLETE, x->ended_ns);
	if (!x->code && x->set.p && fault_store32(x->set.p, x->set.value) < 0) {
		x->code = DRAY_E_REGION_FAULT;
		xfer_memory_fault(c, x->set.region->view->session);
	}
	/*
	 * A ring's completion goes out before the counters, because it does not wake the client. A message may wake a
	 * client that reads the counters at once, so it goes out after them.
	 */
	if (x->from_ring)
		c->up->xfer_ended(c, x);
	shared_count(&s->shared->transfers_ended, 1);
	if (!x->code) {
		core_count(c->counters, DRAY_METRIC_TRANSFERS_DONE_TOTAL, 1);
		core_count(c->counters, DRAY_METRIC_OPERATIONS_TOTAL, x->n_ops_given);
	} else if (x->code == DRAY_E_CANCELLED) {
		core_count(c->counters, DRAY_METRIC_TRANSFERS_CANCELLED_TOTAL, 1);
	} else {
		core_count(c->counters, DRAY_METRIC_TRANSFERS_FAILED_TOTAL, 1);
		shared_count(&c->counters->errors[x->code], 1);
	}
	xfer_record(c, x);
	if (!x->from_ring)
		c->up->xfer_ended(c, x);
}

/* Before the client is told, which can end its session and with it all its transfers. */
static void leave(struct core *c, struct xfer *x)
{
	xfer_unlink(c->xfers, x);
	for (enum xfer_role role = 0; role < XFER_ROLES; role++)
		dray_list_del(&x->uses[role]);
	x->session->ops -= x->n_ops_given;
	quotas_put(x->session->shared);
}

/* After the client was told. */
static void forget(struct core *c, struct xfer *x)
{
	struct object *held[XFER_ROLES];

	for (enum xfer_role role = 0; role < XFER_ROLES; role++)
		held[role] = xfer_object(x, role);
	xfer_free(c->xfers, x);
	for (enum xfer_role role = 0; role < XFER_ROLES; role++)
		if (held[role])
			object_release(c, held[role]);
}

static void xfer_end(struct core *c, struct xfer *x)
{
	drop_link(x);
	leave(c, x);
	core_count_down(c->counters, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
	xfer_settle(c, x);
	forget(c, x);
}

void xfer_refuse(struct core *c, struct xfer *x, const struct dray_err *err)
{
	leave(c, x);
	core_count(c->counters, DRAY_METRIC_TRANSFERS_REFUSED_TOTAL, 1);
	c->up->xfer_refused(c, x, err);
	forget(c, x);
}

bool xfer_awaits_devices(const struct core *c, const struct xfer *x)
{
	return x->slices && x->outlived && x->to_client &&
	       c->transports[x->transport_index]->id == DMSG_TRANSPORT_RDMA;
}

void xfer_stop(struct core *c, struct xfer *x, uint32_t code, const char *detail, bool urgent)
{
	const struct transport_ops *ops;

	urgent |= x->outlived && !xfer_awaits_devices(c, x);
	/* The notification may have been delivered: its answer decides, unless the memory goes away. */
	if (x->state == XFER_NOTIFYING && !urgent && code == DRAY_E_CANCELLED)
		return;
	if (!x->code) {
		x->code = code;
		x->detail = detail;
	}
	if (x->state == XFER_STOPPING && !urgent)
		return;
	if (x->session->read == x) {
		x->session->read = NULL;
		xfer_accept(c);
	}
	x->state = XFER_STOPPING;
	wait_del(x);
	sched_dequeue(x);
	x->slices++;
	if (x->slices > 1) {
		ops = c->transports[x->transport_index];
		ops->stop(c, c->transport_state[x->transport_index], x, urgent);
	}
	/* the rest of the request waits for them */
	if (x->slices > 1 && x->outlived)
		object_hasten(c, x->remote);
	if (--x->slices == 0)
		xfer_end(c, x);
}

void xfer_stop_request(struct core *c, struct xfer *x, uint32_t code, const char *detail)
{
	/* it may have been stopped alone, and wait for devices */
	if (x->outlived && x->code && !x->request_stops) {
		x->code = code;
		x->detail = detail;
	}
	x->request_stops = true;
	xfer_stop(c, x, code, detail, false);
}

/* All bytes are in place. */
static void xfer_complete(struct core *c, struct xfer *x)
{
	const struct region_view *local = object_region(x->local);

	/* without these, the completion follows at once, and the clock that xfer_settle() reads stands for both */
	if (x->link || x->notify)
		xfer_enter(x, XFER_PHASE_COMPLETE, dray_now().ns);
	/* the GPU may read the bytes as soon as the completion or the set word is seen */
	if (x->rdma_landed && c->up->flush_rdma(c, local->gpu) < 0) {
		xfer_stop(
			c, x, DRAY_E_GPU_LOST,
			"the GPU was lost before the bytes that RDMA devices wrote became visible to it",
			false);
		return;
	}
	/* the control thread sends the notification; it may lose the peer meanwhile */
	drop_link(x);
	if (x->notify) {
		x->state = XFER_NOTIFYING;
		c->up->notify(c, x);
		return;
	}
	xfer_end(c, x);
}

void xfer_gpus_moved(struct core *c, const struct xfer *x, uint64_t bytes)
{
	bool read = x->direction == DMSG_DIRECTION_READ;
	const struct object *from = read ? x->target : x->local, *to = read ? x->local : x->target;
	struct data_gpu_bytes *gpus = c->counters->gpus;

	/* without a target, the other memory is a peer's */
	if (from && object_region(from)->memory == REGION_GPU)
		shared_count(&gpus[object_region(from)->gpu].read, bytes);
	if (to && object_region(to)->memory == REGION_GPU)
		shared_count(&gpus[object_region(to)->gpu].written, bytes);
}

bool xfer_sort_ops(struct core *c, struct xfer *x, bool local)
{
	return ops_sort(&c->xfers->ops, x->ops, x->n_ops, local);
}

void xfer_note_gpu_way(struct xfer *x, enum dmsg_gpu_way way)
{
	if (x)
		x->gpu_way = (uint8_t)(x->gpu_way && x->gpu_way != way ? DMSG_GPU_WAY_MIXED : way);
}

/* This worker has received the slice for another one. */
static void finish_delegated(struct core *c, struct slice *s, uint32_t code, const char *detail)
{
	/* the transfer does not end while the slice is held */
	if (!code && !delegate_hold(s))
		code = DRAY_E_CANCELLED;
	if (!code && !s->staged) {
		const struct xfer *x = s->delegated.xfer;

		s->counted = x->arrived;
		s->delegated.faulted = x->arrived && x->arrived(x, s) < 0;
	}
	delegate_return(c, s, code, detail);
}

void xfer_slice_done(struct core *c, struct slice *s, uint32_t code, const char *detail)
{
	struct xfer *x = s->xfer;
	uint64_t bytes = s->bytes;

	c->moved_ns = c->now_ns;
	if (slice_is_delegated(s)) {
		finish_delegated(c, s, code, detail);
		return;
	}
	if (x)
		x->n_resent += s->retried;
	if (x && !code &&
	    (s->delegated.faulted || (!s->counted && x->arrived && x->arrived(x, s) < 0))) {
		xfer_memory_fault(c, x->local->view->session);
		code = DRAY_E_REGION_FAULT;
		detail = XFER_FAULT_DETAIL;
	}
	sched_slice_free(c, s);
	if (!x)
		return;
	if (!code) {
		xfer_moved(c, x, bytes);
	} else if (x->state != XFER_STOPPING) {
		/* x->slices still counts this slice, so xfer_stop() cannot end the transfer */
		xfer_stop(c, x, code, detail, false);
	} else if (code == DRAY_E_GPU_LOST &&
		   (x->code == DRAY_E_CANCELLED || x->code == DRAY_E_DEADLINE)) {
		/* the device may still access the memory, which those two rule out */
		x->code = code;
		x->detail = detail;
	}
	if (--x->slices)
		return;
	if (x->state == XFER_STOPPING)
		xfer_end(c, x);
	else if (x->state == XFER_RUNNING && x->cursor.op == x->n_ops)
		xfer_complete(c, x);
}

void xfer_slice_recalled(struct core *c, struct slice *s, uint32_t code)
{
	struct xfer *x = dray_take(s->delegated.xfer);

	sched_slice_over(c, x);
	if (x->state != XFER_STOPPING)
		xfer_stop(c, x, code, NULL, false);
	if (!--x->slices)
		xfer_end(c, x);
}

void xfer_slices_end(struct core *c, struct dray_list *slices, uint32_t code)
{
	struct slice *s;

	while ((s = dray_list_pop(slices, struct slice, link))) {
		uint32_t own = s->xfer && s->xfer->code ? s->xfer->code : DRAY_E_CANCELLED;

		xfer_slice_done(c, s, code ? code : own, NULL);
	}
}

bool xfer_move(struct core *c, struct xfer *x, struct dray_list *slices)
{
	bool unsent = x->cursor.op < x->n_ops;

	for (unsigned i = 0; i < c->n_transports; i++) {
		const struct transport_ops *ops = c->transports[i];
		struct channel *ch;
		struct slice *s;

		if (i == x->transport_index || !ops->adopt)
			continue;
		ch = ops->channel(c, c->transport_state[i], x);
		if (!ch)
			continue;
		sched_dequeue(x);
		wait_del(x);
		sched_assign(x, i, ch);
		while ((s = dray_list_pop(slices, struct slice, link)))
			ops->adopt(c, c->transport_state[i], ch, s);
		if (unsent && sched_enqueue(c, x) < 0)
			xfer_stop(c, x, DRAY_E_NO_MEMORY, "no memory for the transfer", false);
		return true;
	}
	return false;
}

void xfer_notified(struct core *c, dray_handle handle, uint32_t code)
{
	struct xfer *x = dray_handles_get(&c->xfers->table, handle);

	if (!x || x->state != XFER_NOTIFYING)
		return;
	x->code = code;
	xfer_end(c, x);
}

int64_t xfers_tick(struct core *c)
{
	struct dray_heap *deadlines = &c->xfers->deadlines;
	struct dray_heap_node *first;
	int64_t next;

	for (unsigned i = 0;
	     i < OVERDUE_MAX && (first = dray_heap_first(deadlines)) && first->key <= c->now_ns;
	     i++) {
		struct xfer *x = dray_container_of(first, struct xfer, deadline);

		/* out of the heap, because slices in flight may keep the transfer beyond its deadline */
		dray_heap_del(deadlines, first);
		dray_list_add(&c->xfers->overdue, &x->overdue);
		xfer_stop(c, x, DRAY_E_DEADLINE, NULL, false);
	}
	next = waits_tick(c);
	first = dray_heap_first(deadlines);
	return first ? dray_min(next, first->key) : next;
}

uint32_t xfers_records(const struct core *c, struct transfer_record *to, uint32_t max)
{
	const struct xfers *xs = c->xfers;
	uint64_t kept = dray_min(xs->n_records, (uint64_t)RECORDS_MAX);
	uint32_t n = (uint32_t)dray_min(kept, (uint64_t)max);

	for (uint32_t i = 0; i < n; i++)
		to[i] = xs->records[(xs->n_records - n + i) % RECORDS_MAX];
	return n;
}

uint32_t xfers_count(const struct core *c)
{
	return c->xfers->table.count;
}

const struct xfer *xfers_first_due(const struct core *c)
{
	const struct xfer *x = dray_list_first(&c->xfers->overdue, struct xfer, overdue);
	struct dray_heap_node *first = dray_heap_first(&c->xfers->deadlines);

	return x || !first ? x : dray_container_of(first, struct xfer, deadline);
}

void xfers_each(struct core *c, void (*fn)(struct core *c, struct xfer *x, void *arg), void *arg)
{
	uint32_t cursor = 0;
	struct xfer *x;

	while ((x = dray_handles_next(&c->xfers->table, &cursor, NULL)))
		fn(c, x, arg);
}

/*
 * An urgent stop ends a transfer while a device may still access its memory here. If the session that made the object is
 * dead, but neither the transfer nor that memory is its own, another session takes the end for a proof.
 */
static bool may_end_at_once(const struct xfer *x, const struct object *o)
{
	dray_handle dead = o->view->session;

	return x->session->handle == dead || x->local->view->session == dead || x->target == o;
}

static void stop_user(struct core *c, struct xfer *x, struct object *o)
{
	xfer_stop(c, x, o->drop_code, NULL, o->drop_mode == DROP_URGENT && may_end_at_once(x, o));
}

void xfers_each_of(struct core *c, struct object *o, enum xfer_role role,
		   void (*fn)(struct core *c, struct xfer *x, struct object *o))
{
	struct dray_list *users = &o->xfers[role], seen = DRAY_LIST_INIT(seen);

	/* the end of one transfer may end a session, and with it further transfers of the list */
	while (!dray_list_empty(users)) {
		struct dray_list *use = users->next;

		dray_list_move(&seen, use);
		fn(c, dray_container_of(use - role, struct xfer, uses), o);
	}
	dray_list_splice(users, &seen);
}

void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 enum drop_mode mode)
{
	struct object *o = object_find(c, kind, handle);

	if (!o) {
		c->up->event(c, &(struct event){
					.type = EVENT_DROPPED, .kind = kind, .handle = handle });
		return;
	}
	if (o->drop_code && mode <= o->drop_mode)
		return;
	if (!o->drop_code || o->drop_mode == DROP_RETIRE)
		o->drop_code = code;
	o->drop_mode = mode;
	object_hold(o);
	if (mode != DROP_RETIRE) {
		for (enum xfer_role role = 0; role < XFER_ROLES; role++)
			xfers_each_of(c, o, role, stop_user);
		transports_each(c, i, drop)
			c->transports[i]->drop(c, c->transport_state[i], o);
		if (kind == OBJECT_REMOTE && object_is_taken(o))
			object_hasten(c, o);
	}
	object_release(c, o);
}
