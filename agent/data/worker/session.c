/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of a worker: the data socket in both directions, and the completions of transfers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/transport.h"
#include "agent/data/worker/internal.h"
#include "agent/model/store_keep.h"
#include "lib/cleanup.h"

/* Packets queued for a client that does not read. At this limit the worker stops reading from it. */
#define OUT_MAX 1024

struct wsession *wsession_get(struct worker *w, dray_handle session)
{
	const struct dray_slots *t =
		dray_handle_kind(session) == STORE_KEEP_HANDLES ? &w->keep_sessions : &w->sessions;
	struct wsession *s = dray_slots_get(t, session);

	return s && s->xs.handle == session ? s : NULL;
}

static void make_ready(struct wsession *s)
{
	if (dray_list_empty(&s->ready_link))
		dray_list_add(&s->xs.owner->ready, &s->ready_link);
}

/* The packet was sent, or will not be. */
static void packet_end(struct wsession *s, struct packet *p)
{
	if (p->is_notification) {
		atomic_fetch_sub_explicit(&s->xs.shared->notifications, 1, memory_order_relaxed);
		budget_put(&s->xs.shared->account->budget, RESOURCE_NOTIFICATIONS, 1);
	}
	packet_free(p);
}

/* No event reports that the session can go on, so the worker looks at it again. */
static void again_later(struct wsession *s)
{
	if (dray_list_empty(&s->again_link))
		dray_list_add(&s->worker->again, &s->again_link);
}

/* Sends queued packets. A packet stays in the queue until it is sent. */
static void flush(struct wsession *s)
{
	struct packet *p;

	while ((p = dray_list_first(&s->out, struct packet, link)) && s->writable && !s->dead) {
		int ret = dray_seqpacket_send(s->fd, p->data, p->length, p->fds, p->n_fds);

		if (ret == -EAGAIN) {
			s->writable = false;
			return;
		}
		/* too many descriptors of the agent's user are in flight, perhaps those of clients that have the same uid */
		if (ret == -ETOOMANYREFS) {
			again_later(s);
			return;
		}
		if (p->report)
			worker_event(s->worker, &(struct event){ .type = EVENT_SENT,
								 .session = s->xs.handle,
								 .id = p->report });
		dray_list_del(&p->link);
		s->n_out--;
		packet_end(s, p);
		if (ret < 0) {
			wsession_die(s, DRAY_E_SESSION_CLOSED);
			return;
		}
	}
}

void wsessions_again(struct worker *w)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct wsession *s;

	if (dray_list_empty(&w->again) || w->core.now_ns - w->again_ns < DRAY_NS_PER_MS)
		return;
	w->again_ns = w->core.now_ns;
	dray_list_splice(&now, &w->again);
	while ((s = dray_list_pop(&now, struct wsession, again_link))) {
		flush(s);
		wsession_go_on(s);
	}
}

static void handle_io(struct loop_source *source, uint32_t events)
{
	struct wsession *s = dray_container_of(source, struct wsession, source);

	if (events & EPOLLOUT) {
		s->writable = true;
		flush(s);
	}
	s->readable |= loop_can_read(events);
	wsession_go_on(s);
}

struct wsession *wsession_new(struct worker *w, struct session_shared *shared)
{
	struct wsession *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	if (xfer_session_init(&w->core, &s->xs, shared->session, shared) < 0) {
		xfer_session_deinit(&s->xs);
		free(s);
		return NULL;
	}
	s->worker = w;
	s->fd = -1;
	s->source.fd = -1;
	dray_list_init(&s->out);
	dray_list_init(&s->cancels);
	dray_list_init(&s->fetches);
	dray_map_init(&s->fetches_of);
	dray_map_init(&s->fetches_numbered);
	dray_map_init(&s->holdings);
	dray_map_init(&s->held);
	dray_map_init(&s->cancels_of);
	dray_list_init(&s->ready_link);
	dray_list_init(&s->again_link);
	return s;
}

void wsession_add(struct worker *w, int fd, struct session_shared *shared)
{
	struct wsession *s = wsession_new(w, shared);

	if (!s) {
		worker_event(w, &(struct event){ .type = EVENT_SESSION_REFUSED,
						 .session = shared->session,
						 .code = DRAY_E_NO_MEMORY,
						 .fd = fd });
		return;
	}
	s->fd = fd;
	s->writable = true;
	dray_slots_set(&w->sessions, s->xs.handle, s);
	if (loop_add(&w->core.loop, &s->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, handle_io) < 0)
		wsession_die(s, DRAY_E_NO_MEMORY);
}

static void die(struct wsession *s, uint32_t code, struct packet *goodbye)
{
	s->dead = true;
	loop_del(&s->worker->core.loop, &s->source);
	dray_list_del(&s->ready_link);
	dray_list_del(&s->again_link);
	worker_event(s->worker, &(struct event){ .type = EVENT_SESSION_EOF,
						 .session = s->xs.handle,
						 .code = code,
						 .packet = goodbye });
	xfer_session_stop(&s->worker->core, &s->xs, DRAY_E_SESSION_CLOSED);
}

void wsession_die(struct wsession *s, uint32_t code)
{
	if (!s->dead)
		die(s, code, NULL);
}

void wsession_stop(struct wsession *s, uint32_t code)
{
	s->dead = true;
	xfer_session_stop(&s->worker->core, &s->xs, code);
	fetches_close(s);
}

void wsession_free(struct wsession *s, uint32_t code)
{
	wsession_stop(s, code);
	helds_close(s);
	dray_map_deinit(&s->fetches_of);
	dray_map_deinit(&s->fetches_numbered);
	loop_del(&s->worker->core.loop, &s->source);
	ring_close(s);
	dray_list_for_each(&s->out, p, struct packet, link)
		packet_free(p);
	idset_deinit(&s->ids);
	cancels_deinit(s);
	store_begin_drop(s);
	dray_list_del(&s->ready_link);
	dray_list_del(&s->again_link);
	store_user_free(s->store);
	xfer_session_deinit(&s->xs);
	free(s);
}

void wsession_close(struct worker *w, dray_handle session, uint32_t code)
{
	struct wsession *s = wsession_get(w, session);
	int fd = -1;

	if (s) {
		if (!s->dead)
			flush(s);
		fd = s->fd;
		dray_slots_set(&w->sessions, session, NULL);
		wsession_free(s, code);
	}
	worker_event(w,
		     &(struct event){ .type = EVENT_SESSION_GONE, .session = session, .fd = fd });
}

void wsession_go_on(struct wsession *s)
{
	if ((s->readable || s->xs.read || s->begins) && !s->dead)
		make_ready(s);
}

void wsession_send(struct wsession *s, struct packet *p)
{
	if (s->dead) {
		packet_end(s, p);
		return;
	}
	dray_list_add(&s->out, &p->link);
	s->n_out++;
	flush(s);
}

void wsession_send_bytes(struct wsession *s, const uint8_t *p, int n)
{
	struct packet *packet;

	if (s->dead || n < 0)
		return;
	if (dray_list_empty(&s->out)) {
		int ret = dray_seqpacket_send(s->fd, p, (size_t)n, NULL, 0);

		if (ret == 0)
			return;
		if (ret != -EAGAIN) {
			wsession_die(s, DRAY_E_SESSION_CLOSED);
			return;
		}
		s->writable = false;
	}
	packet = packet_new((uint32_t)n, 0);
	if (!packet) {
		wsession_die(s, DRAY_E_NO_MEMORY);
		return;
	}
	memcpy(packet->data, p, (size_t)n);
	wsession_send(s, packet);
}

void wsession_reply_error(struct wsession *s, uint64_t request_id, const struct dray_err *err)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_ERROR_BODY_MAX];
	struct dmsg_error m = { .code = (uint32_t)err->code,
				.message = { err->msg, (uint32_t)strlen(err->msg) } };

	wsession_send_bytes(s, buf, dmsg_error_encode(buf, sizeof(buf), request_id, &m));
}

void wsession_break(struct wsession *s, const struct dray_err *err)
{
	if (!s->dead)
		die(s, (uint32_t)err->code, packet_new_error(0, (uint32_t)err->code, err->msg));
}

/*
 * Descriptors of a message that takes none. Closing one can block, for example on FUSE, so another thread does
 * that.
 */
static void discard_fds(struct wsession *s)
{
	struct worker *w = s->worker;
	struct packet *p = w->unneeded;

	if (!w->fds.n)
		return;
	for (p->n_fds = 0; p->n_fds < w->fds.n; p->n_fds++)
		p->fds[p->n_fds] = w->fds.fd[p->n_fds];
	w->fds.n = 0;
	w->unneeded = NULL;
	worker_event(w, &(struct event){ .type = EVENT_FDS, .session = s->xs.handle, .packet = p });
}

bool wsession_is_clogged(const struct wsession *s)
{
	return s->n_out > OUT_MAX;
}

/* Room for descriptors is there before they are received: without it they could not be handed on. */
static bool may_read(struct wsession *s)
{
	struct worker *w = s->worker;

	/* the client does not read its answers: take no new requests */
	if (wsession_is_clogged(s))
		return false;
	/* COMMAND_SESSION_READ follows */
	if (account_stops(s->xs.shared->account))
		return false;
	if (!w->unneeded)
		w->unneeded = packet_new(0, DRAY_FDS_MAX);
	if (!w->unneeded)
		again_later(s);
	return w->unneeded;
}

static void end_of_input(struct wsession *s, ssize_t n, bool fds_lost)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (n || !(s->worker->fds.n || fds_lost)) {
		wsession_die(s, DRAY_E_SESSION_CLOSED);
		return;
	}
	/* without descriptors an empty message looks like the end of the connection */
	dray_err_set(&err, -EPROTO, DRAY_E_INVALID,
		     "a message without bytes carries descriptors; send them with their request");
	wsession_break(s, &err);
}

bool wsession_read(struct wsession *s)
{
	struct worker *w = s->worker;

	while (s->xs.read && owner_may_work(s->xs.owner))
		xfer_read(&w->core, &s->xs);
	while (s->begins && !s->dead && owner_may_work(s->xs.owner))
		store_begin_on(s);
	while (s->readable && !s->dead && !s->xs.read && !s->begins &&
	       owner_may_work(s->xs.owner)) {
		bool truncated, fds_lost;
		ssize_t n;

		if (!may_read(s))
			return false;
		owner_charge(s->xs.owner, MESSAGE_WORK);
		n = dray_seqpacket_recv(s->fd, w->buffer, DMSG_MESSAGE_MAX, &w->fds, &truncated,
					&fds_lost);
		if (n == -EAGAIN) {
			s->readable = false;
			break;
		}
		if (w->fds.n)
			account_add_fds(s->xs.shared->account, w->fds.n);
		if (n > 0)
			request_handle(s, w->buffer, (size_t)n, truncated, fds_lost);
		else
			end_of_input(s, n, fds_lost);
		discard_fds(s);
	}
	return !s->dead && (s->xs.read || s->begins || (s->readable && !wsession_is_clogged(s)));
}

void wsession_cancelled(struct wsession *s, uint64_t request_id)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_TRANSFER_CANCEL_REPLY_BODY_MAX + 1];
	struct dmsg_transfer_cancel_reply m;

	idset_del(&s->ids, request_id);
	wsession_send_bytes(s, buf,
			    dmsg_transfer_cancel_reply_encode(buf, sizeof(buf), request_id, &m));
}

void wsession_xfer_refused(struct xfer *x, const struct dray_err *err)
{
	struct wsession *s = wsession_of(x->session);

	idset_del(&s->ids, x->request_id);
	if (s->dead)
		return;
	if (x->from_ring)
		ring_complete(s, &(struct dmsg_cqe){ .user_data = x->request_id,
						     .status = (uint32_t)err->code });
	else
		wsession_reply_error(s, x->request_id, err);
}

void wsession_xfer_ended(struct core *c, struct xfer *x)
{
	struct wsession *s = wsession_of(x->session);
	enum dmsg_transport transport = x->bytes_done ? c->transports[x->transport_index]->id :
							DMSG_TRANSPORT_NONE;
	uint64_t duration = dray_span(x->ended_ns - x->accepted_ns);

	idset_del(&s->ids, x->request_id);
	if (x->ended)
		x->ended(c, x);
	/* an RDMA device may go on with the memory of a transfer that its session has ended */
	if (s->dead)
		return;
	if (x->ended) {
		/* it has answered */
	} else if (x->from_ring) {
		ring_complete(s, &(struct dmsg_cqe){ .user_data = x->request_id,
						     .status = x->code,
						     .transport = transport,
						     .bytes = x->bytes_done,
						     .duration_ns = duration });
	} else {
		uint8_t buf[DMSG_HEADER_SIZE + DMSG_TRANSFER_DONE_BODY_MAX];
		const char *text = !x->code ? "" : x->detail ? x->detail : dray_error_doc(x->code);
		struct dmsg_transfer_done m = { .status = x->code,
						.transport = transport,
						.bytes = x->bytes_done,
						.duration_ns = duration,
						.message = { text, (uint32_t)strlen(text) } };

		wsession_send_bytes(s, buf,
				    dmsg_transfer_done_encode(buf, sizeof(buf), x->request_id, &m));
	}
	if (x->cancel_request)
		wsession_cancelled(s, x->cancel_request);
}
