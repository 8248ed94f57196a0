/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers are submitted by the ring if there is one. An entry holds a single operation itself;
 * several operations, and a notification's payload, lie in the arena. Without a ring, and if the
 * arena is smaller than the transfer, a message is sent, with its operations inside or, if they are
 * too many, in the arena.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "client/internal.h"
#include "lib/cleanup.h"

/* Of a transfer that is split, so that the next parts are there when one ends. */
#define PARTS_IN_FLIGHT 4

/* A transfer with the agent's handles, as an entry of the ring. A message has the same spec. */
struct plan {
	const struct dray_transfer *t;
	struct dmsg_sqe entry;
	uint32_t ops_bytes; /* in the arena, or in a message */
};

static int agent_region(struct dray *d, dray_region handle, const char *role, uint64_t *ret)
{
	const struct region *g = dc_region_get(d, handle);

	if (!g)
		return dc_no_such(d, handle.id, DMSG_HANDLE_KIND_REGION);
	if (!g->agent)
		return dc_fail(d, g->code ? -g->code : DRAY_E_NOT_FOUND,
			       "the region is not registered (%s)", role);
	*ret = g->agent;
	return 0;
}

static int agent_remote(struct dray *d, dray_remote handle, uint64_t *ret)
{
	const struct remote *m = dc_remote_find(d, handle);

	if (!m)
		return dc_no_such(d, handle.id, DMSG_HANDLE_KIND_REMOTE);
	if (m->lost)
		return dc_fail(d, -m->lost, "the remote is lost: %s", dray_strerror(m->lost));
	*ret = m->agent;
	return 0;
}

static int check(struct dray *d, const struct dray_transfer *t)
{
	if (!dmsg_direction_valid(t->direction) || !dmsg_class_valid(t->priority))
		return dc_fail(d, DRAY_E_INVALID, "direction is %u, priority %u", t->direction,
			       t->priority);
	if (!t->ops || !t->count)
		return dc_fail(d, DRAY_E_INVALID, "a transfer needs at least one operation");
	if (!t->notify)
		return 0;
	if (t->payload_length > DMSG_NOTIFY_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%zu bytes of payload, the limit is %d",
			       t->payload_length, DMSG_NOTIFY_MAX);
	if (t->payload_length && !t->payload)
		return dc_fail(d, DRAY_E_INVALID, "payload_length without payload");
	return 0;
}

static int plan(struct dray *d, const struct dray_transfer *t, struct plan *p)
{
	struct dmsg_sqe *e = &p->entry;
	int error = check(d, t);

	if (error)
		return error;
	*p = (struct plan){
		.t = t,
		.entry = {
			.flags = t->notify ? DMSG_TRANSFER_FLAG_NOTIFY : 0,
			.direction = (uint8_t)t->direction,
			.class = (uint8_t)t->priority,
			.deadline_ms = t->deadline_ms,
			.wait_offset = t->wait.offset,
			.set_offset = t->set.offset,
			.wait_value = t->wait.value,
			.set_value = t->set.value,
			.notify_tag = t->tag,
			.notify_length = t->notify ? (uint32_t)t->payload_length : 0,
			.op_count = (uint32_t)t->count,
		},
		.ops_bytes = (uint32_t)t->count * DMSG_OP_SIZE,
	};
	error = agent_region(d, t->local, "local", &e->local);
	if (!error)
		error = agent_remote(d, t->remote, &e->remote);
	if (!error && t->wait.region.id) {
		e->flags |= DMSG_TRANSFER_FLAG_WAIT;
		error = agent_region(d, t->wait.region, "wait", &e->wait_region);
	}
	if (!error && t->set.region.id) {
		e->flags |= DMSG_TRANSFER_FLAG_SET;
		error = agent_region(d, t->set.region, "set", &e->set_region);
	}
	return error;
}

static void put_ops(uint8_t *dst, const struct dray_transfer *t)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	_Static_assert(sizeof(struct dray_op) == DMSG_OP_SIZE &&
			       offsetof(struct dray_op, remote) == 8 &&
			       offsetof(struct dray_op, length) == 16,
		       "an operation lies in memory as on the wire");
	memcpy(dst, t->ops, t->count * DMSG_OP_SIZE);
#else
	for (size_t i = 0; i < t->count; i++)
		dmsg_op_put(dst + i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ t->ops[i].local, t->ops[i].remote,
					       t->ops[i].length });
#endif
}

/* Allocates `bytes` (may be 0) of the arena. */
static int take_arena(struct dray *d, struct request *r, uint32_t bytes)
{
	if (!bytes)
		return 0;
	if (!dc_arena_alloc(&d->arena, bytes, &r->arena_offset))
		return dc_fail(d, DRAY_E_BUSY, "the arena is full; take completions first");
	r->arena_bytes = bytes;
	return 0;
}

static int submit_ring(struct dray *d, struct plan *p, struct request *r)
{
	const struct dray_transfer *t = p->t;
	struct dmsg_sqe *e = &p->entry;
	uint32_t ops_bytes = t->count > 1 ? p->ops_bytes : 0;
	int error = take_arena(d, r, ops_bytes + e->notify_length);

	if (error)
		return error;
	if (ops_bytes) {
		e->flags |= DMSG_TRANSFER_FLAG_ARENA;
		e->arena_offset = r->arena_offset;
		put_ops(d->arena_base + r->arena_offset, t);
	} else {
		e->op_local = t->ops->local;
		e->op_remote = t->ops->remote;
		e->op_length = t->ops->length;
	}
	if (e->notify_length) {
		e->notify_offset = r->arena_offset + ops_bytes;
		memcpy(d->arena_base + e->notify_offset, t->payload, e->notify_length);
	}
	e->user_data = r->id;
	r->on_ring = true;
	dc_ring_put(&d->ring, e);
	return 0;
}

static int submit_message(struct dray *d, const struct plan *p, struct request *r)
{
	const struct dray_transfer *t = p->t;
	struct dmsg_transfer m = {
		.spec = p->entry.spec,
		.notify = { t->payload, p->entry.notify_length },
	};
	int n, error;

	if (t->count <= d->ops_inline_max) {
		put_ops(d->ops, t);
		m.ops = (struct dray_vec){ d->ops, (uint32_t)t->count };
	} else if (p->ops_bytes > d->arena.bytes) {
		return dc_fail(d, DRAY_E_TOO_LARGE,
			       "%zu operations, the limit is %u without a larger arena", t->count,
			       d->ops_inline_max);
	} else {
		error = take_arena(d, r, p->ops_bytes);
		if (error)
			return error;
		put_ops(d->arena_base + r->arena_offset, t);
		m.flags |= DMSG_TRANSFER_FLAG_ARENA;
		m.arena_offset = r->arena_offset;
		m.arena_ops = (uint32_t)t->count;
	}
	n = dmsg_transfer_encode(d->out, DMSG_MESSAGE_MAX, r->id, &m);
	if (n < 0)
		return dc_fail(d, DRAY_E_INVALID, "the transfer does not fit into a message");
	error = dc_session_send(d, (size_t)n, NULL, 0);
	if (error == -EAGAIN)
		return dc_fail(d, DRAY_E_BUSY, "the socket to the agent is full");
	if (error == -EPIPE)
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "the agent is gone");
	return error ? dc_fail(d, dc_code_of_errno(error), "sending: %s", dray_errno_text(error)) :
		       0;
}

/* *ret_ring: by the ring. -DRAY_E_BUSY if the ring is full. */
static int choose_path(struct dray *d, const struct plan *p, bool *ret_ring)
{
	uint64_t need = (p->t->count > 1 ? p->ops_bytes : 0) + (uint64_t)p->entry.notify_length;
	int room;

	if (!d->ring.base || need > d->arena.bytes)
		return 0;
	room = dc_ring_room(&d->ring, &d->loss);
	if (room < 0)
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "%s", d->loss.msg);
	if (!room)
		return dc_fail(d, DRAY_E_BUSY, "the ring is full; take completions first");
	*ret_ring = true;
	return 0;
}

int dc_transfer_submit_part(struct dray *d, const struct dray_transfer *t, struct request **ret)
{
	struct request *r;
	struct plan p;
	bool by_ring = false;
	int error = plan(d, t, &p);

	if (!error)
		error = choose_path(d, &p, &by_ring);
	if (error)
		return error;
	r = dc_request_new(d, DMSG_TRANSFER, t->arg);
	if (!r)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another transfer");
	r->region = t->local;
	r->epoch = d->epoch;
	error = dc_proof_deadline(d, r, t->deadline_ms);
	if (error)
		error = dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another transfer");
	else
		error = by_ring ? submit_ring(d, &p, r) : submit_message(d, &p, r);
	if (error) {
		dc_transfer_ended(d, r);
		dc_request_free(d, r);
		return error;
	}
	dc_request_sent(d, r);
	*ret = r;
	return 0;
}

/* Operations that fit into 1 / `share` of the arena, or into a message. */
static uint32_t ops_that_fit(const struct dray *d, uint32_t share)
{
	uint64_t room = d->arena_base ? d->arena.bytes / share / DMSG_OP_SIZE : 0;
	uint64_t arena = dray_min(room, (uint64_t)DMSG_OPS_MAX);

	return (uint32_t)dray_max(arena, (uint64_t)d->ops_inline_max);
}

/* Submits a transfer without ringing the doorbell. */
static int submit_one(struct dray *d, const struct dray_transfer *t, bool with_callback,
		      struct request **ret)
{
	int error;

	if (t->count <= ops_that_fit(d, 1))
		error = dc_transfer_submit_part(d, t, ret);
	else
		error = dc_split_start(d, t, ops_that_fit(d, PARTS_IN_FLIGHT), ret);
	if (!error && with_callback)
		(*ret)->done = t->done;
	return error;
}

/* 0 if the session is up, after a poll if need be. */
static int need_session(struct dray *d)
{
	if (dc_session_is_up(d))
		return 0;
	dc_engine_poll(d);
	if (dc_session_is_up(d))
		return 0;
	return dc_fail(d, DRAY_E_SESSION_CLOSED, "not connected: %.200s", d->loss.msg);
}

int dray_submit_many(struct dray *d, const struct dray_transfer *t, size_t n, uint64_t *ids)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;
	size_t i;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = need_session(d);
	for (i = 0; i < n && i < INT_MAX && !error; i++) {
		error = submit_one(d, &t[i], true, &r);
		if (error)
			break;
		if (ids)
			ids[i] = r->id;
	}
	if (d->ring.base)
		dc_ring_submit(&d->ring);
	return i ? (int)i : error;
}

int dray_submit(struct dray *d, const struct dray_transfer *t, uint64_t *ret_id)
{
	int n = dray_submit_many(d, t, 1, ret_id);

	return n < 0 ? n : 0;
}

void dc_transfer_ended(struct dray *d, struct request *r)
{
	if (r->arena_bytes && r->epoch == d->epoch)
		dc_arena_free(&d->arena, r->arena_offset, r->arena_bytes);
	r->arena_bytes = 0;
}

void dc_transfer_take_ring(struct dray *d)
{
	struct dmsg_cqe e;
	struct request *r;

	while (d->ring.base && dc_ring_take(&d->ring, &e, &d->loss) > 0) {
		r = dray_handles_get(&d->requests.table, e.user_data);
		if (!dc_request_is_open(d, r) || !r->on_ring) {
			dc_session_defect(d, "the ring completed a request that is not in flight");
			return;
		}
		if (r->type != DMSG_TRANSFER) {
			dc_store_completed(d, r, &e);
			continue;
		}
		r->transport = e.transport;
		r->bytes = e.bytes;
		r->duration_ns = e.duration_ns;
		if (e.status > 0xffff)
			e.status = DRAY_E_INTERNAL;
		dc_request_end(d, r, -(int)e.status, NO_TEXT);
	}
}

int dray_lent(struct dray *d, uint64_t id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	const struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (d->proof.unconfirmed)
		dc_proof_check(d);
	r = dray_handles_get(&d->requests.table, id);
	return r && r->unconfirmed;
}

int dray_cancel(struct dray *d, uint64_t id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dray_handles_get(&d->requests.table, id);
	if (!r && dray_handle_kind(id) != DMSG_HANDLE_KIND_REQUEST)
		return dc_no_such(d, id, DMSG_HANDLE_KIND_REQUEST);
	if (r && dc_proof_lends(r) && r->state == REQUEST_QUEUED) {
		dc_request_end(d, r, -DRAY_E_CANCELLED, NO_TEXT);
		dc_engine_leave(d);
		return 0;
	}
	if (!r || !dc_proof_lends(r) || r->state != REQUEST_SENT)
		return dc_fail(d, DRAY_E_NOT_FOUND, "the transfer is unknown, or has ended");
	if (r->split) {
		dc_split_stop(d, r, -DRAY_E_CANCELLED, NO_TEXT);
		dc_requests_flush(d);
		return 0;
	}
	if (!dc_request_internal(d, DMSG_TRANSFER_CANCEL, NO_REGION, NO_REMOTE, id))
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another request");
	dc_requests_flush(d);
	return 0;
}

/*
 * The agent may read TRANSFER_CANCEL before the ring's entry of the transfer, and then answers
 * not_found. The completion of a transfer that has ended is in the ring before that answer: if the
 * transfer is still in flight after the ring was read, TRANSFER_CANCEL is repeated.
 */
void dc_transfer_cancel_failed(struct dray *d, struct request *cancel, int status)
{
	uint64_t id = cancel->number;
	uint32_t tries = cancel->tries + 1;
	struct request *r, *again;

	dc_request_end(d, cancel, status, NO_TEXT);
	if (status != -DRAY_E_NOT_FOUND || tries > 100)
		return;
	dc_transfer_take_ring(d);
	r = dray_handles_get(&d->requests.table, id);
	if (!r || r->type != DMSG_TRANSFER || r->state != REQUEST_SENT || !r->on_ring)
		return;
	again = dc_request_internal(d, DMSG_TRANSFER_CANCEL, NO_REGION, NO_REMOTE, id);
	if (again)
		again->tries = tries;
}

struct blocked {
	uint32_t in_flight;
	bool writing;
};

/* A request ended, or the socket has room again. */
static bool may_retry(struct dray *d, const void *arg)
{
	const struct blocked *b = arg;

	return d->requests.in_flight_n < b->in_flight || (b->writing && !d->writing) ||
	       !dc_session_is_up(d);
}

/* Waits for the session and for room, until request_ms have passed. */
static int submit_waiting(struct dray *d, const struct dray_transfer *t, struct request **ret)
{
	int64_t until = dray_now().ns + d->request_ns;
	int error;

	for (;;) {
		struct blocked b;

		dc_engine_wait(d, dc_session_up_or_closed, NULL, until);
		error = need_session(d);
		if (!error)
			error = submit_one(d, t, false, ret);
		if (error != -DRAY_E_BUSY || dray_now().ns >= until)
			break;
		b = (struct blocked){ d->requests.in_flight_n, d->writing };
		dc_engine_wait(d, may_retry, &b, until);
	}
	if (d->ring.base)
		dc_ring_submit(&d->ring);
	return error;
}

int dray_run(struct dray *d, const struct dray_transfer *t, struct dray_completion *ret)
{
	struct dray_completion c = { 0 };
	struct dray_transfer with_deadline;
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	with_deadline = *t;
	if (!t->deadline_ms)
		with_deadline.deadline_ms = (unsigned int)(d->request_ns / DRAY_NS_PER_MS);
	error = submit_waiting(d, &with_deadline, &r);
	if (error) {
		dc_engine_leave(d);
		return error;
	}
	/* the agent keeps the deadline; the longer limit is for an agent that has stopped */
	error = dc_request_wait(d, 0, &r->id, with_deadline.deadline_ms, &c);
	if (ret && c.id)
		*ret = c;
	return error;
}
