/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to and from a peer that is up. */
#include <string.h>

#include "agent/control/mailbox/mailbox.h"
#include "agent/control/peer/internal.h"

void peer_send(struct peer *peer, uint16_t type, uint64_t request_id, const union pmsg_body *body)
{
	conn_send_message(peer->conn, type, request_id, body);
	peer->fsm.sent_ns = peers_now(peer->p);
}

void peer_send_error(struct peer *peer, uint64_t request_id, struct dray_err err)
{
	conn_send_error(peer->conn, request_id, err);
	peer->fsm.sent_ns = peers_now(peer->p);
}

void peer_protocol_error(struct peer *peer, struct dray_err err)
{
	peer_send_error(peer, 0, err);
	conn_fail(peer->conn, dray_err_of(err.code, "the peer broke the protocol: %s", err.msg));
}

static void handle_import(struct peer *peer, uint64_t id, const struct pmsg_import *m)
{
	uint8_t rails[PMSG_IMPORT_REPLY_BODY_MAX - PMSG_IMPORT_REPLY_MIN];
	struct pmsg_import_reply reply = { .rails = { .p = rails } };
	struct dray_err why = DRAY_ERR_NULL;
	struct peers *p = peer->p;

	if (p->draining || p->stopping)
		dray_err_set(&why, 0, DRAY_E_DRAINING,
			     "the owner is draining and grants nothing new");
	else if (grant_import(p->deps.regions, peer->handle, peer->agent_id, m, &reply, &why) < 0)
		dray_err_set(&why, 0, DRAY_E_INTERNAL, "the owner could not grant the range");
	if (why.code) {
		peer_send_error(peer, id, why);
		return;
	}
	if (peer->features & PMSG_FEATURE_RDMA)
		reply.rails.n = p->deps.up->grant_keys(*p->deps.rails, peer->handle, reply.grant,
						       rails, sizeof(rails) / PMSG_RAIL_SIZE);
	if (reply.rails.n)
		grant_expose(p->deps.regions, peer->handle, reply.grant);
	peer_send(peer, PMSG_IMPORT_REPLY, id, &(union pmsg_body){ .import_reply = reply });
}

static void handle_notify(struct peer *peer, uint64_t id, const struct pmsg_notify *m)
{
	struct peers *p = peer->p;
	struct dmsg_notification n = {
		.tag = m->tag,
		.region = grant_region(p->deps.regions, peer->handle, m->grant),
		.incarnation = peer->incarnation,
		.id = m->id,
		.payload = m->payload,
	};
	uint32_t code;

	if (!n.region) {
		peer_send_error(
			peer, id,
			dray_err_of(DRAY_E_REVOKED,
				    "the grant was revoked; import a new token of the region"));
		return;
	}
	memcpy(n.agent_id, peer->agent_id, sizeof(n.agent_id));
	code = p->deps.up->notification(*p->deps.sessions, &n);
	if (code)
		peer_send_error(peer, id, dray_err_of((int)code, "%s", dray_error_doc(code)));
	else
		peer_send(peer, PMSG_NOTIFY_REPLY, id, NULL);
}

static void handle_post(struct peer *peer, uint64_t id, const struct pmsg_post *m)
{
	struct peers *p = peer->p;
	struct mailbox_sender from = {
		.incarnation = peer->incarnation, .tenant = m->tenant, .uid = m->uid, .gid = m->gid
	};
	struct dray_err why = DRAY_ERR_NULL;

	memcpy(from.agent_id, peer->agent_id, sizeof(from.agent_id));
	if (p->draining || p->stopping)
		dray_err_set(&why, 0, DRAY_E_DRAINING, "it is draining and takes no letters");
	else if (!peers_beyond_loopback(p))
		/* without a key, any program could pose as an agent, and as any user of it */
		dray_err_set(&why, 0, DRAY_E_DENIED,
			     "it has no key and takes letters from its own clients only: set "
			     "peer.key_file there, or peer.allow_insecure");
	else
		mailbox_deliver(p->deps.mailboxes, &from, m->name, m->payload, &why);
	if (why.code)
		peer_send_error(peer, id, why);
	else
		peer_send(peer, PMSG_POST_REPLY, id, NULL);
}

/* STORE_LOOKUP and STORE_KEEP may use the store. False: they are refused. */
static bool store_serves(struct peer *peer, uint64_t id)
{
	struct peers *p = peer->p;

	if (p->draining || p->stopping)
		peer_send_error(peer, id,
				dray_err_of(DRAY_E_DRAINING,
					    "it is draining, and neither lends nor keeps objects"));
	else if (!*p->deps.exchange)
		peer_send_error(peer, id,
				dray_err_of(DRAY_E_DENIED,
					    "it has no store: set limits.store_bytes and "
					    "store.lend there"));
	else if (conn_is_clogged(peer->conn))
		peer_send_error(peer, id,
				dray_err_of(DRAY_E_BUSY,
					    "the sender does not read its answers fast enough"));
	else if (!peers_beyond_loopback(p))
		/* without a key, any program could pose as an agent, and as any user of it */
		peer_send_error(peer, id,
				dray_err_of(DRAY_E_DENIED,
					    "it has no key, and lends nothing of its store: set "
					    "peer.key_file there, or peer.allow_insecure"));
	else
		return true;
	return false;
}

/* STORE_WATCH and STORE_SUMMARY: summary is NULL or what the latter says. */
static void handle_summary(struct peer *peer, uint64_t id, const struct pmsg_store_summary *summary)
{
	const struct peers_deps *d = &peer->p->deps;

	/* without a key, any program could pose as an agent */
	if (!*d->exchange || !peers_beyond_loopback(peer->p))
		peer_send_error(
			peer, id,
			dray_err_of(DRAY_E_DENIED,
				    "it exchanges no summaries: it has no store, or no key: set "
				    "limits.store_bytes and peer.key_file there"));
	else if (summary)
		d->up->store_summary(*d->exchange, peer->handle, id, summary);
	else
		d->up->store_watch(*d->exchange, peer->handle, id);
}

static void handle_error(struct peer *peer, uint64_t id, const struct pmsg_error *m)
{
	struct dray_err err = dray_err_of(known_code(m->code, DRAY_E_PROTOCOL), "%.*s",
					  (int)m->message.n, m->message.p);

	if (id)
		request_refused(peer, id, &err);
	else
		peer_event_why(peer, PEER_EVENT_CLOSE,
			       dray_err_of(DRAY_E_PEER_LOST,
					   "the peer ended the connection: %s: %s",
					   dray_error_name((uint32_t)err.code), err.msg));
}

static void handle_bye(struct peer *peer, uint32_t code)
{
	peer->left = true;
	peer_event_why(peer, PEER_EVENT_CLOSE,
		       code == DRAY_OK ?
			       dray_err_of(DRAY_OK,
					   "the peer closed the connection in good order") :
			       dray_err_of(DRAY_E_PEER_LOST, "the peer closed the connection: %s",
					   dray_error_name(code)));
}

static void handle_draining(struct peer *peer)
{
	const struct peers_deps *d = &peer->p->deps;
	bool known = peer->fsm.state == PEER_STATE_DRAINING;

	peer_event_why(peer, PEER_EVENT_DRAINS, dray_err_of(DRAY_E_DRAINING, "the peer drains"));
	if (known)
		return;
	offers_decline(peer);
	d->up->draining(*d->sessions, peer->handle);
}

static bool is_request(uint16_t type)
{
	return type == PMSG_IMPORT || type == PMSG_FENCE || type == PMSG_STREAM_RESET ||
	       type == PMSG_NOTIFY || type == PMSG_QP_CONNECT || type == PMSG_QP_CLOSE ||
	       type == PMSG_REKEY || type == PMSG_STAGE || type == PMSG_ACQUIRE ||
	       type == PMSG_LEASE_RENEW || type == PMSG_POST || type == PMSG_STORE_LOOKUP ||
	       type == PMSG_STORE_KEEP || type == PMSG_STORE_WATCH || type == PMSG_STORE_SUMMARY;
}

static void dispatch(struct peer *peer, uint16_t type, uint64_t id, const union pmsg_body *m)
{
	const struct peers_deps *d = &peer->p->deps;

	switch (type) {
	case PMSG_ERROR:
		handle_error(peer, id, &m->error);
		break;
	case PMSG_HEARTBEAT:
		peer->fsm.peer_rest_ns =
			dray_min(m->heartbeat.rest_ms, HEARTBEAT_MS_MAX) * DRAY_NS_PER_MS;
		peer_event(peer, PEER_EVENT_HEARTBEAT);
		break;
	case PMSG_IMPORT:
		handle_import(peer, id, &m->import);
		break;
	case PMSG_RELEASE:
		grant_release(d->regions, peer->handle, m->release.grant,
			      m->release.how <= PMSG_RELEASE_HOW_DECLINED ?
				      (enum pmsg_release_how)m->release.how :
				      PMSG_RELEASE_HOW_LOST);
		break;
	case PMSG_ACQUIRE:
		acquire_handle(peer, id, &m->acquire);
		break;
	case PMSG_LEASE_RANGES:
		lease_handle_ranges(peer, &m->lease_ranges);
		break;
	case PMSG_LEASE_GRANTED:
		lease_handle_granted(peer, &m->lease_granted);
		break;
	case PMSG_LEASE_RENEW:
		lease_handle_renew(peer, id, &m->lease_renew);
		break;
	case PMSG_FENCE:
		fence_handle(peer, id, &m->fence);
		break;
	case PMSG_STREAM_RESET:
		stream_handle_reset(peer, id, m->stream_reset.stream_id);
		break;
	case PMSG_NOTIFY:
		handle_notify(peer, id, &m->notify);
		break;
	case PMSG_DRAINING:
		handle_draining(peer);
		break;
	case PMSG_RESUMED:
		peer_event(peer, PEER_EVENT_RESUMED);
		break;
	case PMSG_BYE:
		handle_bye(peer, m->bye.code);
		break;
	case PMSG_PORTS:
		d->up->ports(*d->rails, peer->handle, &m->ports.ports);
		break;
	case PMSG_KEYS:
		if (idset_has(&peer->grants, m->keys.grant) && !offer_keys(peer, &m->keys))
			d->up->keys(*d->sessions, peer->handle, m->keys.grant, &m->keys.rails);
		break;
	case PMSG_REKEY:
		/* an offer's keys are in no work request */
		if (idset_has(&peer->grants, m->rekey.grant) &&
		    !offer_keys(peer, &(struct pmsg_keys){ .grant = m->rekey.grant }))
			d->up->rekey(*d->sessions, peer->handle, m->rekey.grant, id);
		else
			peer_send(peer, PMSG_REKEY_REPLY, id, NULL);
		break;
	case PMSG_QP_CONNECT:
		d->up->qp_connect(*d->rails, peer->handle, id, &m->qp_connect);
		break;
	case PMSG_QP_CLOSE:
		d->up->qp_close(*d->rails, peer->handle, id, m->qp_close.qp);
		break;
	case PMSG_WINDOW:
		d->up->window(*d->rails, peer->handle, &m->window);
		break;
	case PMSG_STAGE:
		d->up->stage(*d->rails, peer->handle, id, &m->stage);
		break;
	case PMSG_STORE_LOOKUP:
		if (store_serves(peer, id))
			d->up->store_lookup(*d->exchange, peer->handle, id, &m->store_lookup);
		break;
	case PMSG_STORE_KEEP:
		if (store_serves(peer, id))
			d->up->store_keep(*d->exchange, peer->handle, id, &m->store_keep);
		break;
	case PMSG_STORE_WATCH:
		handle_summary(peer, id, NULL);
		break;
	case PMSG_STORE_SUMMARY:
		handle_summary(peer, id, &m->store_summary);
		break;
	case PMSG_STORE_RELEASE:
		d->up->store_release(*d->exchange, peer->handle, m->store_release.grant);
		break;
	case PMSG_POST:
		handle_post(peer, id, &m->post);
		break;
	case PMSG_HELLO:
	case PMSG_READY:
		peer_protocol_error(peer, dray_err_of(DRAY_E_OUT_OF_ORDER, "%s was sent twice",
						      pmsg_type_name(type)));
		break;
	default:
		if (type & TYPE_REPLY)
			request_replied(peer, id, type, m);
		else if (id)
			/* of a later minor version; only requests need an answer */
			peer_send_error(
				peer, id,
				dray_err_of(DRAY_E_UNKNOWN_TYPE,
					    "this agent does not know that type of message"));
	}
}

void message_handle(struct peer *peer, const struct pmsg_header *h, const uint8_t *body)
{
	struct dray_err err = DRAY_ERR_NULL;
	union pmsg_body m;

	if (is_request(h->type) && !h->request_id)
		peer_protocol_error(peer, dray_err_of(DRAY_E_INVALID, "%s without a request id",
						      pmsg_type_name(h->type)));
	else if (pmsg_body_decode(h->type, body, h->length, &m, &err) < 0)
		peer_protocol_error(peer, err);
	else
		dispatch(peer, h->type, h->request_id, &m);
}

void peers_send(struct peers *p, dray_handle handle, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		peer_send(peer, type, request_id, body);
}

void peers_refuse(struct peers *p, dray_handle handle, uint64_t request_id, uint32_t code,
		  const char *why)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		peer_send_error(peer, request_id, dray_err_of((int)code, "%s", why));
}
