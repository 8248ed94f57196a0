/* SPDX-License-Identifier: Apache-2.0 */
#include "client/request.h"

#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

/* Freed requests kept for reuse: more than are usually in flight. */
#define FREE_MAX 1024

void dc_requests_init(struct requests *q)
{
	*q = (struct requests){ .control_max = REQUESTS_CONTROL_MAX,
				.copy_ns_a_mib = COPY_NS_A_MIB };
	dray_handles_init(&q->table, REQUESTS_MAX, DMSG_HANDLE_KIND_REQUEST);
	dray_list_init(&q->queued);
	dray_list_init(&q->sent);
	dray_list_init(&q->held);
	dray_list_init(&q->callbacks);
	dray_list_init(&q->done);
	dray_list_init(&q->free);
}

static void contents_free(struct request *r)
{
	dc_split_free(r->split);
	free(r->message);
	free(r->data);
	free(r->answer);
}

void dc_requests_deinit(struct requests *q)
{
	uint32_t cursor = 0;
	struct request *r;

	while ((r = dray_handles_next(&q->table, &cursor, NULL))) {
		contents_free(r);
		free(r);
	}
	dray_list_for_each(&q->free, unused, struct request, link)
		free(unused);
	dray_handles_deinit(&q->table);
}

struct request *dc_request_new(struct dray *d, uint16_t type, void *arg)
{
	struct requests *q = &d->requests;
	struct request *r = dray_list_pop(&q->free, struct request, link);
	uint64_t id;

	if (r)
		q->free_n--;
	else if (!(r = malloc(sizeof(*r))))
		return NULL;
	*r = (struct request){ .type = type, .arg = arg };
	dray_list_init(&r->link);
	if (dray_handles_add(&q->table, r, &id) < 0) {
		free(r);
		return NULL;
	}
	r->id = id;
	return r;
}

/* dray_next_completion() reads the counter without the lock. */
static void count_done(struct requests *q, int change)
{
	__atomic_store_n(&q->done_n, q->done_n + (uint32_t)change, __ATOMIC_RELAXED);
}

/* A request to the store whose answer comes by the socket. */
static bool is_awaited_there(const struct request *r)
{
	return r->type >= DMSG_STORE_PUT && r->type <= DMSG_STORE_RELEASE && !r->on_ring;
}

/*
 * The socket is to be read for it: its answer comes there; or it is to the store, and an agent whose messages are not read refuses
 * it on the ring. The answer of a whole comes with its parts.
 */
static bool is_awaited(const struct request *r)
{
	return r->state == REQUEST_SENT && !r->split && !(r->on_ring && r->type == DMSG_TRANSFER);
}

/* Takes r off its list and out of the counters. */
static void unlist(struct dray *d, struct request *r)
{
	struct requests *q = &d->requests;
	bool listed = !dray_list_empty(&r->link);

	if (r->state == REQUEST_SENT && r->type != DMSG_TRANSFER)
		q->control_n--;
	if (is_awaited(r))
		q->awaited_n--;
	if (r->state == REQUEST_SENT && is_awaited_there(r))
		q->store_n--;
	if (r->state == REQUEST_SENT && r->copy_bytes)
		dc_copy_ended(q, r->copy_bytes, dray_now().ns);
	if (r->state == REQUEST_SENT || r->state == REQUEST_HELD)
		q->in_flight_n--;
	else if (r->state == REQUEST_QUEUED && listed)
		q->queued_n--;
	else if (r->state == REQUEST_ENDED && listed && !r->done)
		count_done(q, -1);
	dray_list_del(&r->link);
}

void dc_request_free(struct dray *d, struct request *r)
{
	struct requests *q = &d->requests;

	unlist(d, r);
	dc_proof_forget(d, r);
	dray_handles_del(&q->table, r->id);
	contents_free(r);
	if (q->free_n < FREE_MAX) {
		dray_list_add_front(&q->free, &r->link);
		q->free_n++;
	} else {
		free(r);
	}
}

/* Adds a request that is on no list to the end of the queue. */
static void enqueue(struct dray *d, struct request *r)
{
	dray_list_add(&d->requests.queued, &r->link);
	d->requests.queued_n++;
}

struct request *dc_request_internal(struct dray *d, uint16_t type, dray_region region,
				    dray_remote remote, uint64_t number)
{
	struct request *r = dc_request_new(d, type, NULL);

	if (!r)
		return NULL;
	r->internal = true;
	r->region = region;
	r->remote = remote;
	r->number = number;
	enqueue(d, r);
	return r;
}

struct request *dc_request_start(struct dray *d, uint16_t type, void *arg)
{
	struct request *r;

	if (d->requests.queued_n >= REQUESTS_QUEUED_MAX) {
		dc_fail(d, DRAY_E_BUSY, "%d requests wait to be sent; take completions first",
			REQUESTS_QUEUED_MAX);
		return NULL;
	}
	r = dc_request_new(d, type, arg);
	if (!r)
		dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another request");
	return r;
}

int dc_request_go(struct dray *d, struct request *r, uint64_t *ret_id)
{
	if (d->state == SESSION_CLOSED) {
		dc_request_end(d, r, -DRAY_E_SESSION_CLOSED, dc_text(d->loss.msg));
	} else if (r->type == DMSG_STORE_RELEASE && d->state != SESSION_READY) {
		/* its leases ended with their session, and the next one may give their numbers again */
		dc_request_end(d, r, 0, NO_TEXT);
	} else {
		enqueue(d, r);
		dc_requests_flush(d);
		dc_session_hurry(d);
	}
	return dc_request_started(r, ret_id);
}

int dc_request_go_with(struct dray *d, struct request *r, const void *data, size_t n,
		       uint64_t *ret_id)
{
	r->data = malloc(n + 1);
	if (!r->data)
		return dc_request_refuse(d, r, DRAY_E_NO_MEMORY, "no memory for another request");
	if (n)
		memcpy(r->data, data, n);
	r->length = (uint32_t)n;
	return dc_request_go(d, r, ret_id);
}

static void await(struct dray *d, const struct request *r)
{
	if (!is_awaited(r))
		return;
	d->requests.awaited_n++;
	dc_engine_read(d);
}

void dc_request_sent(struct dray *d, struct request *r)
{
	unlist(d, r);
	r->state = REQUEST_SENT;
	d->requests.in_flight_n++;
	d->requests.control_n += r->type != DMSG_TRANSFER;
	d->requests.store_n += is_awaited_there(r);
	if (r->copy_bytes)
		dc_copy_sent(&d->requests, r->copy_bytes, dray_now().ns);
	dray_list_add(&d->requests.sent, &r->link);
	await(d, r);
}

bool dc_request_is_open(const struct dray *d, const struct request *r)
{
	if (!r || r->split)
		return false;
	return r->state == REQUEST_SENT || (r->unconfirmed && r->epoch == d->epoch);
}

void dc_request_take_back(struct dray *d, struct request *r, struct dray_list *after)
{
	unlist(d, r);
	r->on_ring = false;
	r->state = REQUEST_QUEUED;
	dray_list_add_after(after, &r->link);
	d->requests.queued_n++;
}

bool dc_request_again(struct dray *d, struct request *r)
{
	struct requests *q = &d->requests;

	if (r->type == DMSG_TRANSFER || q->control_n <= 1)
		return false;
	dc_request_take_back(d, r, &q->queued);
	q->control_max = q->control_n;
	return true;
}

void dc_request_hold(struct dray *d, struct request *r)
{
	unlist(d, r);
	r->state = REQUEST_HELD;
	d->requests.in_flight_n++;
	dray_list_add(&d->requests.held, &r->link);
}

struct dray_str dc_text(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

/* Updates the object that the request is about. */
static void object_ended(struct dray *d, struct request *r, struct dray_str text)
{
	switch (r->type) {
	case DMSG_TRANSFER:
		dc_transfer_ended(d, r);
		break;
	case DMSG_REGION_ADD:
	case DMSG_REGION_REMOVE:
		dc_region_ended(d, r, text);
		break;
	case DMSG_REGION_EXPORT:
		dc_token_ended(d, r);
		break;
	case DMSG_REMOTE_IMPORT:
	case DMSG_REMOTE_RELEASE:
	case DMSG_LEASE_ACQUIRE:
		dc_remote_ended(d, r);
		break;
	case DMSG_LEASE:
	case DMSG_LEASE_END:
		dc_lease_request_ended(d, r);
		break;
	case DMSG_MAILBOX_OPEN:
	case DMSG_MAILBOX_CLOSE:
		dc_mailbox_ended(d, r, text);
		break;
	case DMSG_STORE_READ:
		dc_store_read_ended(d, r);
		break;
	default:
		break;
	}
}

static void set_ended(struct dray *d, struct request *r, int status)
{
	unlist(d, r);
	r->state = REQUEST_ENDED;
	r->status = status;
	d->threads.changed = true;
}

/* Leaves r, which has ended, where its completion is taken from. */
static void deliver(struct dray *d, struct request *r)
{
	if (r->waited)
		return;
	if (r->done) {
		dray_list_add(&d->requests.callbacks, &r->link);
		return;
	}
	dray_list_add(&d->requests.done, &r->link);
	count_done(&d->requests, 1);
}

void dc_request_end(struct dray *d, struct request *r, int status, struct dray_str text)
{
	if (r->unconfirmed) {
		dc_proof_answered(d, r, status, text);
		return;
	}
	set_ended(d, r, status);
	dray_heap_del(&d->proof.deadlines, &r->deadline);
	object_ended(d, r, text);
	if (r->whole)
		dc_split_part_ended(d, r, text);
	if (r->internal || r->abandoned) {
		dc_request_free(d, r);
		return;
	}
	if (status && text.n)
		r->message = strndup(text.p, text.n);
	deliver(d, r);
}

void dc_request_lend(struct dray *d, struct request *r)
{
	unlist(d, r);
	r->state = REQUEST_LENT;
	free(r->data);
	r->data = NULL;
}

void dc_request_end_unconfirmed(struct dray *d, struct request *r)
{
	set_ended(d, r, -DRAY_E_UNCONFIRMED);
	dray_heap_del(&d->proof.deadlines, &r->deadline);
	if (r->abandoned || r->internal)
		dc_proof_keeps(d, r);
	else
		deliver(d, r);
	if (r->whole)
		dc_split_part_unconfirmed(d, r);
}

static const uint8_t public_types[] = {
	[DMSG_REGION_ADD] = DRAY_REQUEST_REGION_ADD,
	[DMSG_REGION_REMOVE] = DRAY_REQUEST_REGION_REMOVE,
	[DMSG_REGION_EXPORT] = DRAY_REQUEST_EXPORT,
	[DMSG_REGION_REVOKE] = DRAY_REQUEST_REVOKE,
	[DMSG_REMOTE_IMPORT] = DRAY_REQUEST_IMPORT,
	[DMSG_REMOTE_RELEASE] = DRAY_REQUEST_RELEASE,
	[DMSG_TRANSFER] = DRAY_REQUEST_TRANSFER,
	[DMSG_NOTIFY] = DRAY_REQUEST_NOTIFY,
	[DMSG_HINT_GET] = DRAY_REQUEST_HINT_GET,
	[DMSG_HINT_PUT] = DRAY_REQUEST_HINT_PUT,
	[DMSG_SEGMENT_GET] = DRAY_REQUEST_SEGMENT_GET,
	[DMSG_ENV_GET] = DRAY_REQUEST_ENV_GET,
	[DMSG_LEASE] = DRAY_REQUEST_LEASE,
	[DMSG_LEASE_ACQUIRE] = DRAY_REQUEST_LEASE_ACQUIRE,
	[DMSG_LEASE_RENEW] = DRAY_REQUEST_LEASE_RENEW,
	[DMSG_LEASE_END] = DRAY_REQUEST_LEASE_END,
	[DMSG_MAILBOX_OPEN] = DRAY_REQUEST_MAILBOX_OPEN,
	[DMSG_MAILBOX_CLOSE] = DRAY_REQUEST_MAILBOX_CLOSE,
	[DMSG_POST] = DRAY_REQUEST_POST,
	[DMSG_STORE_PUT] = DRAY_REQUEST_STORE,
	[DMSG_STORE_GET] = DRAY_REQUEST_STORE,
	[DMSG_STORE_EXISTS] = DRAY_REQUEST_STORE,
	[DMSG_STORE_REMOVE] = DRAY_REQUEST_STORE,
	[DMSG_STORE_PIN] = DRAY_REQUEST_STORE,
	[DMSG_STORE_UNPIN] = DRAY_REQUEST_STORE,
	[DMSG_STORE_READ] = DRAY_REQUEST_STORE,
	[DMSG_STORE_RELEASE] = DRAY_REQUEST_STORE_RELEASE,
};

/* Fills a completion and frees r. Text and answer become the thread's. */
static void take(struct dray *d, struct request *r, struct dray_completion *ret)
{
	const char *message = r->message;
	const void *answer = r->answer;

	if (message)
		dc_results_keep(&dc_results()->message, dray_take(r->message));
	if (answer)
		dc_results_keep(&dc_results()->answer, dray_take(r->answer));
	*ret = (struct dray_completion){
		.id = r->id,
		.arg = r->arg,
		.request = r->type < DRAY_ARRAY_SIZE(public_types) ? public_types[r->type] : 0,
		.status = r->status,
		.transport = r->transport,
		.bytes = r->bytes,
		.duration_ns = r->duration_ns,
		.region = r->region,
		.remote = r->remote,
		.lease = r->lease,
		.expiry_ms = r->expiry_ms,
		.token = r->type == DMSG_REGION_EXPORT || r->type == DMSG_LEASE ? answer : NULL,
		.hint = r->type == DMSG_HINT_GET ? answer : NULL,
		.segment = r->type == DMSG_SEGMENT_GET ? answer : NULL,
		.env = r->type == DMSG_ENV_GET ? answer : NULL,
		.store = r->type >= DMSG_STORE_PUT && r->type <= DMSG_STORE_READ ? answer : NULL,
		.mailbox = { r->type == DMSG_MAILBOX_OPEN || r->type == DMSG_MAILBOX_CLOSE ?
				     r->number :
				     0 },
		.message = !r->status ? "" :
			   message    ? message :
					dray_strerror(r->status),
	};
	if (!dc_proof_keeps(d, r))
		dc_request_free(d, r);
}

void dc_requests_call_back(struct dray *d)
{
	struct request *r;

	if (d->in_callback)
		return;
	d->in_callback = true;
	while ((r = dray_list_first(&d->requests.callbacks, struct request, link))) {
		void (*done)(struct dray *, const struct dray_completion *) = r->done;
		struct dray_completion c;

		uint32_t depth;

		take(d, r, &c);
		d->called_back++;
		d->threads.changed = true;
		/* other threads go on meanwhile */
		depth = dc_threads_release(d);
		done(d, &c);
		dc_threads_acquire(d, depth);
	}
	d->in_callback = false;
}

int dray_next_completion(struct dray *d, struct dray_completion *ret)
{
	struct dray *in dray_auto(dc_leave) = NULL;
	struct request *r;

	if (dc_is_inherited(d))
		return -DRAY_E_OUT_OF_ORDER;
	/* programs call until there is none */
	if (!__atomic_load_n(&d->requests.done_n, __ATOMIC_RELAXED))
		return 0;
	in = dc_enter(d);
	r = dray_list_first(&d->requests.done, struct request, link);
	if (!r)
		return 0;
	take(d, r, ret);
	return 1;
}

static bool has_ended(struct dray *d, const void *arg)
{
	const struct request *r = arg;

	return r->state == REQUEST_ENDED;
}

static bool wait_until(struct dray *d, struct request *r, int64_t until)
{
	r->waited = true;
	return dc_engine_wait(d, has_ended, r, until);
}

/* Takes the completion and runs the request's callback, if it has one. */
static void take_waited(struct dray *d, struct request *r, struct dray_completion *ret)
{
	void (*done)(struct dray *, const struct dray_completion *) = r->done;

	uint32_t depth;

	take(d, r, ret);
	if (!done)
		return;
	depth = dc_threads_release(d);
	done(d, ret);
	dc_threads_acquire(d, depth);
	/* the callback may have made calls, which free the text */
	ret->message = ret->status ? dray_strerror(ret->status) : "";
}

int dray_wait(struct dray *d, uint64_t id, int timeout_ms, struct dray_completion *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;
	bool ended;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dray_handles_get(&d->requests.table, id);
	if (!r || r->internal || r->abandoned || r->waited || r->state == REQUEST_LENT)
		return dc_fail(d, DRAY_E_NOT_FOUND,
			       "the request is unknown, or its completion was taken");
	ended = has_ended(d, r) || wait_until(d, r, dc_engine_until(timeout_ms));
	if (ended)
		take_waited(d, r, ret);
	else
		r->waited = false;
	dc_engine_leave(d);
	return ended ? 0 :
		       dc_fail(d, DRAY_E_TIMEOUT, "the request has not ended within %d ms",
			       timeout_ms);
}

int dc_request_wait(struct dray *d, int error, const uint64_t *id, unsigned int extra_ms,
		    struct dray_completion *ret)
{
	struct dray_completion c = { 0 };
	struct request *r;
	bool ended;

	if (!ret)
		ret = &c;
	*ret = c;
	r = error ? NULL : dray_handles_get(&d->requests.table, *id);
	if (!r)
		return error;
	ended = has_ended(d, r) ||
		wait_until(d, r, dray_now().ns + d->request_ns + extra_ms * DRAY_NS_PER_MS);
	if (!ended && r->state == REQUEST_QUEUED) {
		dc_request_end(d, r, -DRAY_E_TIMEOUT, NO_TEXT);
		ended = true;
	}
	if (ended) {
		take(d, r, ret);
		if (ret->status)
			error = dc_fail(d, -ret->status, "%s", ret->message);
	} else {
		r->abandoned = true;
		error = dc_fail(d, DRAY_E_TIMEOUT, "the agent has not answered in time");
	}
	dc_engine_leave(d);
	return error;
}
