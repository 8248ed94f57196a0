/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the agent sends. Every message goes through its generated decoder, and every answer must be
 * the answer to a request that was sent and has none yet. Anything else ends the session with
 * `protocol`.
 */
#include "client/internal.h"

#include <errno.h>
#include <string.h>

#include "lib/seqpacket.h"

/* Messages in one go, so that a flood of events does not keep the caller from what he waits for. */
#define BATCH 256

/* Room for codes of later versions; more than that is nonsense. */
static int status_of(uint32_t code)
{
	return code && code < 0x10000 ? -(int)code : -DRAY_E_INTERNAL;
}

static void broken(struct dray *d, const struct dray_err *err)
{
	const char *text = err->code ? err->msg : "a message that cannot be";

	dc_session_break(d, DRAY_E_PROTOCOL, text, strlen(text));
}

static void handle_error(struct dray *d, struct request *r, const struct dmsg_error *m)
{
	int status = status_of(m->code);

	switch (r->type) {
	case DMSG_HELLO:
		d->segments_refused = d->segments_asked && status == -DRAY_E_UNSUPPORTED;
		dc_session_break(d, -status, m->message.p, m->message.n);
		return;
	case DMSG_RING_OPEN:
		dc_request_end(d, r, status, NULL, 0);
		dc_session_ring_refused(d);
		return;
	case DMSG_TRANSFER_CANCEL:
		dc_transfer_cancel_failed(d, r, status);
		return;
	default:
		if (status != -DRAY_E_BUSY || !dc_request_again(d, r))
			dc_request_end(d, r, status, m->message.p, m->message.n);
	}
}

/* ERROR with request id 0: the session itself is at its end. */
static void handle_closing(struct dray *d, const struct dmsg_error *m)
{
	int status = status_of(m->code);

	dc_session_break(d, d->state == SESSION_READY ? DRAY_E_SESSION_CLOSED : -status,
			 m->message.p, m->message.n);
}

#define DECODE(type) dmsg_##type##_decode(body, len, &m.type, err)

/* The reply that belongs to r. 0, or -EPROTO. */
static int handle_reply(struct dray *d, struct request *r, const uint8_t *body, size_t len,
			struct dray_fds *fds, struct dray_err *err)
{
	union {
		struct dmsg_hello_reply hello_reply;
		struct dmsg_ring_open_reply ring_open_reply;
		struct dmsg_region_add_reply region_add_reply;
		struct dmsg_region_export_reply region_export_reply;
		struct dmsg_region_revoke_reply region_revoke_reply;
		struct dmsg_remote_import_reply remote_import_reply;
		struct dmsg_transfer_done transfer_done;
	} m;
	int status = 0;

	switch (r->type) {
	case DMSG_HELLO:
		if (DECODE(hello_reply) < 0)
			return -EPROTO;
		dc_request_end(d, r, 0, NULL, 0);
		dc_session_hello_reply(d, &m.hello_reply);
		return 0;
	case DMSG_RING_OPEN:
		if (DECODE(ring_open_reply) < 0)
			return -EPROTO;
		dc_request_end(d, r, 0, NULL, 0);
		dc_session_ring_reply(d, &m.ring_open_reply, fds->fd, fds->n);
		return 0;
	case DMSG_REGION_ADD:
		if (DECODE(region_add_reply) < 0)
			return -EPROTO;
		status = dc_region_added(d, r, &m.region_add_reply, fds->fd, fds->n, err);
		break;
	case DMSG_REGION_EXPORT:
		if (DECODE(region_export_reply) < 0)
			return -EPROTO;
		status = dc_token_made(d, r, &m.region_export_reply);
		break;
	case DMSG_REGION_REVOKE:
		if (DECODE(region_revoke_reply) < 0)
			return -EPROTO;
		r->bytes = m.region_revoke_reply.count;
		break;
	case DMSG_REMOTE_IMPORT:
		if (DECODE(remote_import_reply) < 0)
			return -EPROTO;
		status = dc_remote_imported(d, r, &m.remote_import_reply);
		break;
	case DMSG_HINT_GET:
	case DMSG_SEGMENT_GET:
	case DMSG_ENV_GET:
		status = dc_placement_answered(r, body, len, err);
		break;
	case DMSG_TRANSFER:
		if (DECODE(transfer_done) < 0)
			return -EPROTO;
		r->transport = m.transfer_done.transport;
		r->bytes = m.transfer_done.bytes;
		r->duration_ns = m.transfer_done.duration_ns;
		dc_request_end(d, r, m.transfer_done.status ? status_of(m.transfer_done.status) : 0,
			       m.transfer_done.message.p, m.transfer_done.message.n);
		return 0;
	default:
		break; /* a body without fields */
	}
	if (status == -EPROTO)
		return -EPROTO;
	dc_request_end(d, r, status, NULL, 0);
	return 0;
}

static int handle_event(struct dray *d, uint16_t type, const uint8_t *body, size_t len,
			struct dray_err *err)
{
	union {
		struct dmsg_notification notification;
		struct dmsg_remote_lost remote_lost;
		struct dmsg_draining draining;
		struct dmsg_segment_changed segment_changed;
	} m;
	struct dray_event *e;

	switch (type) {
	case DMSG_NOTIFICATION:
		if (DECODE(notification) < 0)
			return -EPROTO;
		dc_event_notification(d, &m.notification);
		return 0;
	case DMSG_REMOTE_LOST:
		if (DECODE(remote_lost) < 0)
			return -EPROTO;
		dc_remote_lost(d, &m.remote_lost, status_of(m.remote_lost.code));
		return 0;
	case DMSG_DRAINING:
		if (DECODE(draining) < 0)
			return -EPROTO;
		e = dc_event_add(d, DRAY_EVENT_DRAINING, NULL, 0, NULL, 0);
		if (e)
			e->deadline_ms = m.draining.deadline_ms;
		return 0;
	case DMSG_SEGMENT_CHANGED:
		if (DECODE(segment_changed) < 0)
			return -EPROTO;
		dc_event_segment(d, &m.segment_changed);
		return 0;
	default:
		return 0; /* an event of a later version */
	}
}

static int handle(struct dray *d, size_t n, struct dray_fds *fds, struct dray_err *err)
{
	const uint8_t *body = d->in + DMSG_HEADER_SIZE;
	struct dmsg_header h;
	struct dmsg_error m;
	struct request *r;

	if (dmsg_header_decode(d->in, n, &h, err) < 0 || dmsg_packet_check(&h, n, err) < 0)
		return -EPROTO;
	if (h.type == DMSG_ERROR && dmsg_error_decode(body, h.length, &m, err) < 0)
		return -EPROTO;
	if (!h.request_id) {
		if (h.type != DMSG_ERROR)
			return handle_event(d, h.type, body, h.length, err);
		handle_closing(d, &m);
		return 0;
	}
	r = dray_handles_get(&d->requests.table, h.request_id);
	if (!r || r->state != REQUEST_SENT || r->on_ring)
		return dray_err_set(err, -EPROTO, DRAY_E_PROTOCOL,
				    "the agent answered (%s) what was not asked",
				    dmsg_type_name(h.type));
	if (h.type == DMSG_ERROR) {
		handle_error(d, r, &m);
		return 0;
	}
	if (h.type != (r->type | 0x8000))
		return dray_err_set(err, -EPROTO, DRAY_E_PROTOCOL, "the agent answered %s with %s",
				    dmsg_type_name(r->type), dmsg_type_name(h.type));
	return handle_reply(d, r, body, h.length, fds, err);
}

/* The end of the stream, or what cannot be read any more. */
static void handle_end(struct dray *d, ssize_t n)
{
	const char *text = n ? dray_errno_text((int)n) : "the agent is gone";

	dc_session_break(
		d, d->state == SESSION_READY ? DRAY_E_AGENT_RESTARTED : DRAY_E_PEER_UNREACHABLE,
		text, strlen(text));
}

/* True where reading goes on. */
static bool receive_one(struct dray *d)
{
	struct dray_err err = DRAY_ERR_NULL;
	bool short_data, short_fds;
	struct dray_fds fds;
	ssize_t n = dray_seqpacket_recv(d->sock, d->in, DMSG_MESSAGE_MAX, &fds, &short_data,
					&short_fds);

	if (n == -EAGAIN)
		return false;
	/*
	 * said once, in front of what was queued before the agent closed with our messages unread
	 */
	if (n == -ECONNRESET)
		return true;
	if (n <= 0) {
		handle_end(d, n);
		return false;
	}
	d->fds_lost = short_fds;
	if (short_fds)
		dray_fds_close(&fds);
	if (short_data || handle(d, (size_t)n, &fds, &err) < 0)
		broken(d, &err);
	dray_fds_close(&fds);
	return true;
}

void dc_receive_all(struct dray *d)
{
	for (int i = 0; i < BATCH && d->sock >= 0 && !d->broken; i++) {
		if (d->events_n >= d->events_max && !d->must_read) {
			d->reading = false;
			dc_engine_watch(d);
			return;
		}
		if (!receive_one(d))
			return;
	}
}
