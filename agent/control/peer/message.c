/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer that is up may say, and what is said to it. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* Replies have the highest bit of the type set. */
#define TYPE_REPLY 0x8000

/* --- sending ------------------------------------------------------------------------------------ */

void peer_send(struct peer *peer, const uint8_t *buf, int n)
{
	/* our own messages keep to the limits */
	dray_assert(n > 0);
	conn_send(peer->conn, buf, (size_t)n);
	peer->fsm.sent_ns = peers_now(peer->p);
}

void send_error(struct conn *c, uint64_t request_id, uint32_t code, const char *text)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_ERROR_BODY_MAX];
	struct pmsg_error m = { .code = code, .message = { text, (uint32_t)strlen(text) } };
	int n = pmsg_error_encode(buf, sizeof(buf), request_id, &m);

	dray_assert(n > 0);
	conn_send(c, buf, (size_t)n);
}

void send_release(struct peer *peer, uint64_t grant)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_RELEASE_BODY_MAX];
	struct pmsg_release m = { .grant = grant };

	peer_send(peer, buf, pmsg_release_encode(buf, sizeof(buf), 0, &m));
}

static void send_peer_error(struct peer *peer, uint64_t request_id, uint32_t code, const char *text)
{
	send_error(peer->conn, request_id, code, text);
	peer->fsm.sent_ns = peers_now(peer->p);
}

void peer_protocol_error(struct peer *peer, uint32_t code, const char *fmt, ...)
{
	char why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	send_peer_error(peer, 0, code, why);
	conn_fail(peer->conn, code, "it broke the protocol: %s", why);
}

/* --- requests of the peer ----------------------------------------------------------------------- */

static void handle_import(struct peer *peer, uint64_t id, const struct pmsg_import *m)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_IMPORT_REPLY_BODY_MAX];
	uint8_t rails[PMSG_IMPORT_REPLY_BODY_MAX - PMSG_IMPORT_REPLY_MIN];
	struct pmsg_import_reply reply = { .grant = 0, .rails = { .p = rails } };
	struct dray_err why = DRAY_ERR_NULL;
	struct peers *p = peer->p;

	if (p->draining || p->stopping) {
		send_peer_error(peer, id, DRAY_E_DRAINING, "the owner is draining");
		return;
	}
	if (grant_import(p->deps.regions, peer->handle, peer->agent_id, m->token_id, m->region,
			 m->incarnation, m->capability, &reply.grant, &reply.length, &reply.access,
			 &why) < 0) {
		send_peer_error(peer, id, why.code ? (uint32_t)why.code : DRAY_E_INTERNAL, why.msg);
		return;
	}
	if (peer->features & PMSG_FEATURE_RDMA)
		reply.rails.n = p->deps.up->grant_keys(p->deps.arg, peer->handle, reply.grant,
						       rails, sizeof(rails) / PMSG_RAIL_SIZE);
	if (reply.rails.n)
		grant_expose(p->deps.regions, peer->handle, reply.grant);
	peer_send(peer, buf, pmsg_import_reply_encode(buf, sizeof(buf), id, &reply));
}

static void handle_notify(struct peer *peer, uint64_t id, const struct pmsg_notify *m)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_NOTIFY_REPLY_BODY_MAX];
	struct pmsg_notify_reply reply = {};
	struct peers *p = peer->p;
	dray_handle region = grant_region(p->deps.regions, peer->handle, m->grant);
	uint32_t code;

	if (!region) {
		send_peer_error(peer, id, DRAY_E_REVOKED, "the grant is gone");
		return;
	}
	code = p->deps.up->notification(p->deps.arg, region, peer->agent_id, peer->incarnation,
					m->id, m->tag, m->payload.p, m->payload.n);
	if (code)
		send_peer_error(peer, id, code, dray_error_doc(code));
	else
		peer_send(peer, buf, pmsg_notify_reply_encode(buf, sizeof(buf), id, &reply));
}

/* --- answers of the peer ------------------------------------------------------------------------ */

static void handle_error(struct peer *peer, uint64_t id, const struct pmsg_error *m)
{
	uint32_t code = m->code && m->code < DRAY_ERROR_N ? m->code : DRAY_E_PROTOCOL;
	char text[DRAY_ERR_MSG_MAX];
	struct request *r;

	snprintf(text, sizeof(text), "%.*s", (int)m->message.n, m->message.p);
	if (!id) {
		peer_close(peer, DRAY_E_PEER_LOST, "it ended the connection: %s: %s",
			   dray_error_name(code), text);
		return;
	}
	r = request_take(peer, id);
	if (!r)
		return;
	switch (r->type) {
	case REQUEST_IMPORT:
		import_error(peer, r, code, text);
		return;
	case REQUEST_NOTIFY:
		r->notify_fn(r->notify_arg, code);
		free(r);
		return;
	case REQUEST_QP_CONNECT:
		r->qp_fn(r->qp_arg, code, NULL);
		free(r);
		return;
	case REQUEST_QP_CLOSE:
		/* whoever is lost cannot answer otherwise */
		peer_close(peer, DRAY_E_PEER_LOST, "it refused to close a queue pair: %s: %s",
			   dray_error_name(code), text);
		r->qp_fn(r->qp_arg, DRAY_E_PEER_LOST, NULL);
		free(r);
		return;
	case REQUEST_STAGE:
		r->stage_fn(r->stage_arg, code);
		free(r);
		return;
	case REQUEST_FENCE:
	case REQUEST_RESET:
	case REQUEST_PROBE:
		break;
	}
	free(r);
	peer_close(peer, DRAY_E_PEER_LOST, "it refused what it must not refuse: %s: %s",
		   dray_error_name(code), text);
}

/* The request that this answers, if it is of one of the two types. */
static struct request *answered(struct peer *peer, uint64_t id, enum request_type type,
				enum request_type other)
{
	struct request *r = request_take(peer, id);

	if (!r || r->type == type || r->type == other)
		return r;
	dray_list_add_front(&peer->requests, &r->link);
	peer_protocol_error(peer, DRAY_E_PROTOCOL,
			    "request %" PRIu64 " got an answer of another kind", id);
	return NULL;
}

static void handle_import_reply(struct peer *peer, uint64_t id, const struct pmsg_import_reply *m)
{
	struct request *r;

	if (!m->grant) {
		peer_protocol_error(peer, DRAY_E_PROTOCOL, "a grant without a handle");
		return;
	}
	r = answered(peer, id, REQUEST_IMPORT, REQUEST_IMPORT);
	if (r)
		import_reply(peer, r, m);
	else if (!idset_has(&peer->grants, m->grant))
		/* cancelled or timed out meanwhile */
		send_release(peer, m->grant);
}

static void handle_fence_ack(struct peer *peer, uint64_t id)
{
	struct request *r = answered(peer, id, REQUEST_FENCE, REQUEST_FENCE);

	if (r)
		fence_acked(peer, r);
}

static void handle_notify_reply(struct peer *peer, uint64_t id)
{
	struct request *r = answered(peer, id, REQUEST_NOTIFY, REQUEST_NOTIFY);

	if (!r)
		return;
	r->notify_fn(r->notify_arg, DRAY_OK);
	free(r);
}

static void handle_reset_reply(struct peer *peer, uint64_t id)
{
	struct request *r = answered(peer, id, REQUEST_RESET, REQUEST_PROBE);
	uint64_t stream_id;
	bool probe;

	if (!r)
		return;
	probe = r->type == REQUEST_PROBE;
	stream_id = r->stream_id;
	free(r);
	if (probe)
		hello_rival_alive(peer);
	else
		stream_reset_done(peer, stream_id);
}

static void handle_connect_reply(struct peer *peer, uint64_t id,
				 const struct pmsg_qp_connect_reply *m)
{
	struct request *r = answered(peer, id, REQUEST_QP_CONNECT, REQUEST_QP_CONNECT);

	/* one that comes too late was given up, and is closed */
	if (r)
		rails_handle_connect_reply(peer, r, m);
}

static void handle_close_reply(struct peer *peer, uint64_t id)
{
	struct request *r = answered(peer, id, REQUEST_QP_CLOSE, REQUEST_QP_CLOSE);

	if (!r)
		return;
	r->qp_fn(r->qp_arg, DRAY_OK, NULL);
	free(r);
}

static void handle_stage_reply(struct peer *peer, uint64_t id)
{
	struct request *r = answered(peer, id, REQUEST_STAGE, REQUEST_STAGE);

	if (!r)
		return;
	r->stage_fn(r->stage_arg, DRAY_OK);
	free(r);
}

/* --- dispatch ----------------------------------------------------------------------------------- */

static void handle_bye(struct peer *peer, uint32_t code)
{
	peer->left = true;
	if (code == DRAY_OK)
		peer_close(peer, DRAY_OK, "it said goodbye");
	else
		peer_close(peer, DRAY_E_PEER_LOST, "it said goodbye: %s", dray_error_name(code));
}

/* False where the body does not decode; err says why. */
#define DECODE(type) (pmsg_##type##_decode(body, h->length, &m.type, err) == 0)

static bool dispatch(struct peer *peer, const struct pmsg_header *h, const uint8_t *body,
		     struct dray_err *err)
{
	union {
		struct pmsg_error error;
		struct pmsg_heartbeat heartbeat;
		struct pmsg_import import;
		struct pmsg_import_reply import_reply;
		struct pmsg_release release;
		struct pmsg_fence fence;
		struct pmsg_stream_reset stream_reset;
		struct pmsg_notify notify;
		struct pmsg_draining draining;
		struct pmsg_bye bye;
		struct pmsg_ports ports;
		struct pmsg_keys keys;
		struct pmsg_qp_connect qp_connect;
		struct pmsg_qp_connect_reply qp_connect_reply;
		struct pmsg_qp_close qp_close;
		struct pmsg_window window;
		struct pmsg_stage stage;
	} m;
	const struct peers_deps *d = &peer->p->deps;

	switch (h->type) {
	case PMSG_ERROR:
		if (!DECODE(error))
			return false;
		handle_error(peer, h->request_id, &m.error);
		return true;
	case PMSG_HEARTBEAT:
		if (!DECODE(heartbeat))
			return false;
		peer->fsm.peer_rest_ns =
			dray_min(m.heartbeat.rest_ms, HEARTBEAT_MS_MAX) * DRAY_NS_PER_MS;
		peer_event(peer, PEER_EVENT_HEARTBEAT, 0, NULL);
		return true;
	case PMSG_IMPORT:
		if (!DECODE(import))
			return false;
		handle_import(peer, h->request_id, &m.import);
		return true;
	case PMSG_IMPORT_REPLY:
		if (!DECODE(import_reply))
			return false;
		handle_import_reply(peer, h->request_id, &m.import_reply);
		return true;
	case PMSG_RELEASE:
		if (!DECODE(release))
			return false;
		grant_release(peer->p->deps.regions, peer->handle, m.release.grant);
		return true;
	case PMSG_FENCE:
		if (!DECODE(fence))
			return false;
		fence_handle(peer, h->request_id, &m.fence);
		return true;
	case PMSG_FENCE_ACK:
		handle_fence_ack(peer, h->request_id);
		return true;
	case PMSG_STREAM_RESET:
		if (!DECODE(stream_reset))
			return false;
		stream_handle_reset(peer, h->request_id, m.stream_reset.stream_id);
		return true;
	case PMSG_STREAM_RESET_REPLY:
		handle_reset_reply(peer, h->request_id);
		return true;
	case PMSG_NOTIFY:
		if (!DECODE(notify))
			return false;
		handle_notify(peer, h->request_id, &m.notify);
		return true;
	case PMSG_NOTIFY_REPLY:
		handle_notify_reply(peer, h->request_id);
		return true;
	case PMSG_DRAINING:
		if (!DECODE(draining))
			return false;
		peer_event(peer, PEER_EVENT_DRAINS, DRAY_E_DRAINING, "it said that it drains");
		peer->p->deps.up->draining(peer->p->deps.arg, peer->handle);
		return true;
	case PMSG_BYE:
		if (!DECODE(bye))
			return false;
		handle_bye(peer, m.bye.code);
		return true;
	case PMSG_PORTS:
		if (!DECODE(ports))
			return false;
		d->up->ports(d->arg, peer->handle, &m.ports.ports);
		return true;
	case PMSG_KEYS:
		if (!DECODE(keys))
			return false;
		if (idset_has(&peer->grants, m.keys.grant))
			d->up->keys(d->arg, peer->handle, m.keys.grant, &m.keys.rails);
		return true;
	case PMSG_QP_CONNECT:
		if (!DECODE(qp_connect))
			return false;
		d->up->qp_connect(d->arg, peer->handle, h->request_id, &m.qp_connect);
		return true;
	case PMSG_QP_CONNECT_REPLY:
		if (!DECODE(qp_connect_reply))
			return false;
		handle_connect_reply(peer, h->request_id, &m.qp_connect_reply);
		return true;
	case PMSG_QP_CLOSE:
		if (!DECODE(qp_close))
			return false;
		d->up->qp_close(d->arg, peer->handle, h->request_id, m.qp_close.qp);
		return true;
	case PMSG_QP_CLOSE_REPLY:
		handle_close_reply(peer, h->request_id);
		return true;
	case PMSG_WINDOW:
		if (!DECODE(window))
			return false;
		d->up->window(d->arg, peer->handle, &m.window);
		return true;
	case PMSG_STAGE:
		if (!DECODE(stage))
			return false;
		d->up->stage(d->arg, peer->handle, h->request_id, &m.stage);
		return true;
	case PMSG_STAGE_REPLY:
		handle_stage_reply(peer, h->request_id);
		return true;
	case PMSG_HELLO:
	case PMSG_READY:
		dray_err_set(err, 0, DRAY_E_OUT_OF_ORDER, "%s again", pmsg_type_name(h->type));
		return false;
	default:
		/* of a later minor version; what is not a request needs no answer */
		if (h->request_id && !(h->type & TYPE_REPLY))
			send_peer_error(peer, h->request_id, DRAY_E_UNKNOWN_TYPE,
					"this agent does not know that type of message");
		return true;
	}
}

static bool is_request(uint16_t type)
{
	return type == PMSG_IMPORT || type == PMSG_FENCE || type == PMSG_STREAM_RESET ||
	       type == PMSG_NOTIFY || type == PMSG_QP_CONNECT || type == PMSG_QP_CLOSE ||
	       type == PMSG_STAGE;
}

void message_handle(struct peer *peer, const struct pmsg_header *h, const uint8_t *body)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (is_request(h->type) && !h->request_id)
		peer_protocol_error(peer, DRAY_E_INVALID, "%s without a request id",
				    pmsg_type_name(h->type));
	else if (!dispatch(peer, h, body, &err))
		peer_protocol_error(peer, (uint32_t)err.code, "%s", err.msg);
}
