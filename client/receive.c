/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from the agent. Each goes through its generated decoder, and a reply must belong to a
 * request that was sent and is not answered yet. Anything else ends the session with `protocol`.
 */
#include <errno.h>

#include "client/internal.h"

/* Messages taken at once, so that a flood of events does not delay the caller's reply. */
#define BATCH 256

#define MALFORMED "the agent sent a malformed message"

/* Accepts codes of later versions; a larger number is a defect of the agent. */
static int status_of(uint32_t code)
{
	return code && code < 0x10000 ? -(int)code : -DRAY_E_INTERNAL;
}

static void break_with(struct dray *d, int code, struct dray_str text)
{
	dc_session_break(d, code, "%.*s", (int)text.n, text.p);
}

/* After an agent of an earlier version has refused a flag. */
static void hello_again(struct dray *d, uint8_t minor)
{
	if (minor >= d->hello_minor)
		return;
	d->hello_minor = minor;
	d->hello_again = true;
}

/* minor: the agent's. */
static void handle_error(struct dray *d, struct request *r, uint8_t minor,
			 const struct dmsg_error *m)
{
	int status = status_of(m->code);

	switch (r->type) {
	case DMSG_HELLO:
		if (status == -DRAY_E_UNSUPPORTED)
			hello_again(d, minor);
		break_with(d, -status, m->message);
		return;
	case DMSG_RING_OPEN:
		dc_request_end(d, r, status, NO_TEXT);
		dc_session_ring_refused(d, m->message);
		return;
	case DMSG_TRANSFER_CANCEL:
		dc_transfer_cancel_failed(d, r, status);
		return;
	case DMSG_LEASE_END:
		/* the lease has ended by itself, which only happens when its ranges are free */
		if (status == -DRAY_E_NOT_FOUND)
			status = 0;
		dc_request_end(d, r, status, m->message);
		return;
	default:
		if (status != -DRAY_E_BUSY || !dc_request_again(d, r))
			dc_request_end(d, r, status, m->message);
	}
}

static void handle_reply(struct dray *d, struct request *r, const union dmsg_body *m,
			 struct dray_fds *fds)
{
	struct dray_str text = NO_TEXT;
	int status = 0;

	switch (r->type) {
	case DMSG_HELLO:
		dc_request_end(d, r, 0, NO_TEXT);
		dc_session_hello_reply(d, &m->hello_reply, fds);
		return;
	case DMSG_RING_OPEN:
		dc_request_end(d, r, 0, NO_TEXT);
		dc_session_ring_reply(d, &m->ring_open_reply, fds);
		return;
	case DMSG_REGION_ADD:
		status = dc_region_added(d, r, &m->region_add_reply, fds);
		break;
	case DMSG_REGION_REMOVE:
		if (!dc_proof_removed(d, r))
			return;
		break;
	case DMSG_REGION_EXPORT:
		status = dc_token_made(d, r, &m->region_export_reply);
		break;
	case DMSG_REGION_REVOKE:
		r->bytes = m->region_revoke_reply.count;
		break;
	case DMSG_REMOTE_IMPORT:
		status = dc_remote_imported(d, r, &m->remote_import_reply);
		break;
	case DMSG_LEASE:
		status = dc_lease_made(d, r, &m->lease_reply);
		break;
	case DMSG_LEASE_ACQUIRE:
		status = dc_remote_acquired(d, r, &m->lease_acquire_reply);
		break;
	case DMSG_LEASE_RENEW:
		r->expiry_ms = m->lease_renew_reply.expiry_ms;
		break;
	case DMSG_MAILBOX_OPEN:
		status = dc_mailbox_opened(d, r, &m->mailbox_open_reply);
		break;
	case DMSG_STORE_PUT:
	case DMSG_STORE_GET:
	case DMSG_STORE_EXISTS:
	case DMSG_STORE_REMOVE:
	case DMSG_STORE_PIN:
	case DMSG_STORE_UNPIN:
	case DMSG_STORE_READ:
	case DMSG_STORE_RELEASE:
		status = dc_store_answered(d, r, m, fds);
		break;
	case DMSG_HINT_GET:
	case DMSG_SEGMENT_GET:
	case DMSG_ENV_GET:
		status = dc_placement_answered(d, r, m);
		break;
	case DMSG_TRANSFER:
		r->transport = m->transfer_done.transport;
		r->bytes = m->transfer_done.bytes;
		r->duration_ns = m->transfer_done.duration_ns;
		status = m->transfer_done.status ? status_of(m->transfer_done.status) : 0;
		text = m->transfer_done.message;
		break;
	default:
		break;
	}
	/* a session that is broken ends all its requests */
	if (!d->loss.code)
		dc_request_end(d, r, status, text);
}

/* Events of later versions are ignored. */
static void handle_event(struct dray *d, uint16_t type, const union dmsg_body *m)
{
	struct dray_event *e;

	if (type == DMSG_NOTIFICATION) {
		dc_event_notification(d, &m->notification);
	} else if (type == DMSG_REGION_LOST) {
		dc_region_lost(d, &m->region_lost, status_of(m->region_lost.code));
	} else if (type == DMSG_REMOTE_LOST) {
		dc_remote_lost(d, &m->remote_lost, status_of(m->remote_lost.code));
	} else if (type == DMSG_DRAINING) {
		e = dc_event_add(d, DRAY_EVENT_DRAINING, 0, NO_TEXT);
		if (e)
			e->deadline_ms = m->draining.deadline_ms;
	} else if (type == DMSG_LETTER) {
		dc_event_letter(d, &m->letter);
	} else if (type == DMSG_SEGMENT_CHANGED) {
		dc_event_segment(d, &m->segment_changed);
	} else if (type == DMSG_LEASE_ENDED) {
		dc_lease_ended(d, &m->lease_ended);
	} else if (type == DMSG_ERROR) {
		d->closed_by_agent = true;
		break_with(d,
			   d->state == SESSION_READY ? DRAY_E_SESSION_CLOSED :
						       -status_of(m->error.code),
			   m->error.message);
	}
}

/* Decodes a message. False, and the session is broken: it is malformed. */
static bool decode(struct dray *d, const uint8_t *p, size_t n, struct dmsg_header *h,
		   union dmsg_body *m)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (dmsg_header_decode(p, n, h, &err) == 0 && dmsg_packet_check(h, n, &err) == 0 &&
	    dmsg_body_decode(h->type, p + DMSG_HEADER_SIZE, h->length, m, &err) == 0)
		return true;
	dc_session_defect(d, "%s", err.code ? err.msg : MALFORMED);
	return false;
}

/* r is open. */
static void handle_answer(struct dray *d, struct request *r, const struct dmsg_header *h,
			  const union dmsg_body *m, struct dray_fds *fds)
{
	if (h->type == DMSG_ERROR)
		handle_error(d, r, h->minor, &m->error);
	else if (h->type != (r->type | 0x8000))
		dc_session_defect(d, "the agent answered %s with %s", dmsg_type_name(r->type),
				  dmsg_type_name(h->type));
	else
		handle_reply(d, r, m, fds);
}

static void handle(struct dray *d, size_t n, struct dray_fds *fds)
{
	struct dmsg_header h;
	union dmsg_body m;
	struct request *r;

	if (!decode(d, d->in, n, &h, &m))
		return;
	if (!h.request_id) {
		handle_event(d, h.type, &m);
		return;
	}
	r = dray_handles_get(&d->requests.table, h.request_id);
	/* the completion that announces this answer is in the ring already */
	if (r && r->on_ring && r->type != DMSG_TRANSFER) {
		dc_transfer_take_ring(d);
		r = dray_handles_get(&d->requests.table, h.request_id);
	}
	if (!dc_request_is_open(d, r) || r->on_ring)
		dc_session_defect(d, "the agent sent %s for a request that is not pending",
				  dmsg_type_name(h.type));
	else
		handle_answer(d, r, &h, &m, fds);
}

void dc_receive_answer(struct dray *d, struct request *r, size_t n)
{
	struct dray_fds none = { 0 };
	struct dmsg_header h;
	union dmsg_body m;

	if (!decode(d, d->in_ring, n, &h, &m))
		return;
	if (h.request_id != r->id)
		dc_session_defect(d, "the ring's answer to %s has the id of another request",
				  dmsg_type_name(r->type));
	else
		handle_answer(d, r, &h, &m, &none);
}

void dc_receive_refusal(struct dray *d, struct request *r, uint32_t code)
{
	handle_error(d, r, 0, &(struct dmsg_error){ .code = code });
}

/* False at the end of the stream, or when the socket is empty. */
static bool receive_one(struct dray *d)
{
	bool short_data, short_fds;
	struct dray_fds fds;
	ssize_t n = dray_seqpacket_recv(d->sock, d->in, DMSG_MESSAGE_MAX, &fds, &short_data,
					&short_fds);

	if (n == -EAGAIN)
		return false;
	/* reported once, before the messages that the agent sent before it closed */
	if (n == -ECONNRESET)
		return true;
	if (n <= 0) {
		d->closed_by_agent = true;
		dc_session_break(d,
				 d->state == SESSION_READY ? DRAY_E_AGENT_RESTARTED :
							     DRAY_E_PEER_UNREACHABLE,
				 "%s", n ? dray_errno_text((int)n) : "the agent is gone");
		return false;
	}
	d->fds_lost = short_fds;
	if (short_fds)
		dray_fds_close(&fds);
	if (short_data)
		dc_session_defect(d, MALFORMED);
	else
		handle(d, (size_t)n, &fds);
	dray_fds_close(&fds);
	return true;
}

/* Behind the events that wait in the socket comes what somebody waits for. A full socket may become free only when this one is read. */
static bool awaits_more(const struct dray *d)
{
	return d->requests.awaited_n || d->proof.answerable || d->writing;
}

void dc_receive_all(struct dray *d, bool to_the_end)
{
	for (int i = 0; i < BATCH && d->sock >= 0 && !d->loss.code; i++) {
		if (dc_events_full(d) && !to_the_end && !awaits_more(d)) {
			d->reading = false;
			dc_engine_watch(d);
			return;
		}
		if (!receive_one(d))
			return;
	}
}
