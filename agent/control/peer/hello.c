/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From TLS to READY: identifies the agent at the other end, and decides which of several connections to one agent stays.
 *
 * The accepting side sends its HELLO at once, the connecting side after it has received that HELLO. So a connection
 * that reaches another agent than the token names ends before this agent identifies itself, and a forged token cannot
 * make the agent at its segment believe that this agent has connected again.
 *
 * When both sides connect at once, the connection of the lower agent id stays. The agent with the lower id refuses
 * the other connection after it has sent HELLO on its own. Until then it accepts the other connection, and drops its
 * own attempt before the other agent can have seen it. So both sides always keep the same connection.
 *
 * When an agent id that is already up connects again, the peer was restarted, or the peer lost its end of the old
 * connection, or two agents share one id. The old connection shows which: the rival check sends a STREAM_RESET of a
 * stream that cannot exist. A reply proves the old connection alive, and the new one is refused. A failed connection or
 * a timeout proves it dead, and the new connection takes its place.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "agent/state/identity.h"
#include "lib/log.h"
#include "lib/random.h"
#include "lib/time.h"

#define RIVAL_CHECK_STREAM UINT64_MAX

uint64_t hello_features(const struct peers *p)
{
	return PMSG_FEATURE_TCP | PMSG_FEATURE_LEASE | PMSG_FEATURE_MAILBOX | PMSG_FEATURE_CHECK |
	       PMSG_FEATURE_STORE | PMSG_FEATURE_KEEP | PMSG_FEATURE_FIND | PMSG_FEATURE_TRAILING |
	       PMSG_FEATURE_RESUMED |
	       (p->cfg->rdma.enable ? PMSG_FEATURE_RDMA | PMSG_FEATURE_WINDOW : 0);
}

struct pmsg_agent_info hello_agent_info(const struct peers *p)
{
	struct pmsg_agent_info m = {
		.major_min = PMSG_MAJOR,
		.major_max = PMSG_MAJOR,
		.incarnation = p->deps.incarnation,
		.segment = { p->segment, (uint32_t)strlen(p->segment) },
		.version = { DRAY_VERSION, (uint32_t)strlen(DRAY_VERSION) },
	};

	memcpy(m.agent_id, p->deps.agent_id, sizeof(m.agent_id));
	return m;
}

bool hello_send(struct peers *p, struct conn *c, uint8_t nonce[NONCE_SIZE])
{
	union pmsg_body m = { .hello = {
				      .agent = hello_agent_info(p),
				      .heartbeat_ms =
					      (uint32_t)(p->cfg->peer.heartbeat / DRAY_NS_PER_MS),
				      .features = hello_features(p),
			      } };

	if (dray_random_fill(nonce, NONCE_SIZE) < 0) {
		conn_fail(c, dray_err_of(DRAY_E_INTERNAL,
					 "the kernel gave no random bytes for the nonce"));
		return false;
	}
	memcpy(m.hello.nonce, nonce, sizeof(m.hello.nonce));
	conn_send_message(c, PMSG_HELLO, 0, &m);
	return true;
}

static void report_identity(const struct peers *p, const uint8_t agent_id[16], uint64_t one,
			    uint64_t other, const char *where)
{
	char id[IDENTITY_TEXT_BYTES];

	log_limited(
		DRAY_LOG_WARNING, AREA,
		"two agents use the same id at once: give each agent its own state directory agent=%s incarnation=%" PRIu64
		" other_incarnation=%" PRIu64 " other=%s",
		identity_show(agent_id, id), one, other, where);
}

int hello_check_version(unsigned min, unsigned max, struct dray_err *reterr)
{
	if (min <= PMSG_MAJOR && max >= PMSG_MAJOR)
		return 0;
	return dray_err_set(
		reterr, -EPROTO, DRAY_E_VERSION,
		"the peer supports versions %u to %u, this agent version %d; upgrade the older agent",
		min, max, PMSG_MAJOR);
}

static int check_hello(const struct peers *p, const struct pmsg_hello *m, const char *where,
		       struct dray_err *reterr)
{
	int r = hello_check_version(m->major_min, m->major_max, reterr);

	if (r < 0)
		return r;
	if (memcmp(m->agent_id, p->deps.agent_id, sizeof(m->agent_id)) != 0)
		return 0;
	if (m->incarnation == p->deps.incarnation)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PEER_UNREACHABLE,
				    "the segment leads to this agent itself");
	report_identity(p, m->agent_id, p->deps.incarnation, m->incarnation, where);
	return dray_err_set(
		reterr, -EPROTO, DRAY_E_IDENTITY,
		"both agents have the same id: give each agent its own state directory");
}

/* Stores the identity, features and limits of the peer from its HELLO. */
static void learn(struct peer *peer, const struct pmsg_hello *m)
{
	const struct dray_config *cfg = peer->p->cfg;
	char segment[SEGMENT_MAX + 1];
	int64_t promised;

	peer->known = true;
	peer->incarnation = m->incarnation;
	peer->features = m->features & hello_features(peer->p);
	memcpy(peer->peer_nonce, m->nonce, sizeof(peer->peer_nonce));
	snprintf(segment, sizeof(segment), "%.*s", (int)m->segment.n, m->segment.p);
	/* a peer that we connected to keeps the segment where we reached it */
	if (!peer->fsm.initiator && dray_endpoint_valid(segment))
		snprintf(peer->segment, sizeof(peer->segment), "%s", segment);
	/* a peer that announced a heartbeat every 10 s is not lost after 3 s of silence */
	promised = dray_min(m->heartbeat_ms, HEARTBEAT_MS_MAX) * DRAY_NS_PER_MS;
	peer->fsm.silence_ns = dray_max(cfg->peer.heartbeat_limit, 3 * promised);
}

static void refuse(struct peer *peer, int code, const char *why)
{
	struct dray_err err = dray_err_of(code, "%s", why);

	conn_send_error(peer->conn, 0, err);
	peer_event_why(peer, PEER_EVENT_REFUSED, err);
}

/* True if the agent of this id has seen, or will see, an attempt of ours to connect. */
static bool attempt_is_visible(struct peers *p, const uint8_t agent_id[16])
{
	peers_for_each_of(p, agent_id, x)
		if (x->fsm.initiator && x->hello_sent && peer_fsm_is_attempt(&x->fsm))
			return true;
	return false;
}

static struct peer *first_claim(struct peers *p, const uint8_t agent_id[16])
{
	peers_for_each_of(p, agent_id, x)
		if (x->fsm.state == PEER_STATE_CLAIM)
			return x;
	return NULL;
}

/* The rival's connection is alive: the connections that claim its place are refused. */
static void rival_check_done(struct peer *rival, struct pending_request *r,
			     const struct dray_err *err, const union pmsg_body *m)
{
	struct peers *p = rival->p;
	char text[DRAY_ADDR_TEXT_MAX];
	struct peer *claim;

	while (!err->code && (claim = first_claim(p, rival->agent_id))) {
		if (claim->incarnation == rival->incarnation) {
			refuse(claim, DRAY_E_EXISTS,
			       "this agent is already connected, and that connection is alive");
			continue;
		}
		report_identity(p, rival->agent_id, rival->incarnation, claim->incarnation,
				dray_addr_show(&claim->addr, text, sizeof(text)));
		refuse(claim, DRAY_E_IDENTITY,
		       "another agent with the same id and another incarnation is connected");
	}
}

static const struct request_kind rival_check_kind = {
	.type = PMSG_STREAM_RESET,
	.vital = true,
	.unanswered =
		"the peer did not answer within peer.heartbeat_limit, and the same agent connected "
		"again",
	.done = rival_check_done,
};

static void check_rival(struct peer *rival)
{
	if (!request_find(rival, &rival_check_kind))
		request_send(rival, &rival_check_kind, rival->p->cfg->peer.heartbeat_limit,
			     (struct pending_request){ 0 },
			     &(union pmsg_body){ .stream_reset = { RIVAL_CHECK_STREAM } });
}

/* Our attempt found an agent that is already connected: its imports move to that connection. */
static void merge(struct peer *peer, struct peer *up)
{
	imports_adopt(up, peer);
	kept_segments_adopt(up, peer);
	posts_adopt(up, peer);
	if (!dray_list_empty(&peer->imports))
		peer_event_why(
			peer, PEER_EVENT_REFUSED,
			dray_err_of(
				DRAY_E_TOKEN_INVALID,
				"the token names a later incarnation than the running owner has; export the region again"));
	else
		peer_event(peer, PEER_EVENT_UNNEEDED);
	imports_run(up);
	posts_run(up);
}

static void settle_initiator(struct peer *peer)
{
	if (peer->peer_ready)
		peer_event(peer, PEER_EVENT_AGREED);
	else if (!peer->hello_sent)
		peer->hello_sent = hello_send(peer->p, peer->conn, peer->nonce);
}

static void settle_acceptor(struct peer *peer)
{
	struct peers *p = peer->p;

	if (memcmp(p->deps.agent_id, peer->agent_id, sizeof(peer->agent_id)) < 0 &&
	    attempt_is_visible(p, peer->agent_id)) {
		refuse(peer, DRAY_E_EXISTS,
		       "both sides connected at the same time; the other connection is kept");
		return;
	}
	peer_send(peer, PMSG_READY, 0, NULL);
	peer_event(peer, PEER_EVENT_AGREED);
}

void hello_settle(struct peer *peer)
{
	struct peer *rival = peer_find_up(peer->p, peer->agent_id, peer);

	if (rival && peer->fsm.initiator && rival->incarnation == peer->incarnation) {
		merge(peer, rival);
		return;
	}
	if (rival) {
		if (peer->fsm.state != PEER_STATE_CLAIM)
			peer_event(peer, PEER_EVENT_RIVAL);
		check_rival(rival);
		return;
	}
	if (peer->fsm.state == PEER_STATE_CLAIM)
		peer_event(peer, PEER_EVENT_CLEARED);
	if (peer->fsm.initiator)
		settle_initiator(peer);
	else
		settle_acceptor(peer);
}

void hello_accept(struct incoming *in, const struct pmsg_header *h, const uint8_t *body)
{
	struct peers *p = in->p;
	struct dray_err why = DRAY_ERR_NULL;
	char text[DRAY_ADDR_TEXT_MAX];
	struct peer *peer = NULL;
	struct pmsg_check check;
	struct pmsg_hello m;
	int r;

	if (h->type == PMSG_PROBE) {
		probe_answer(in, h->request_id);
		return;
	}
	if (h->type == PMSG_CHECK) {
		r = pmsg_check_decode(body, h->length, &check, &why);
		if (r == 0) {
			check_handle(in, h->request_id, &check);
			return;
		}
	} else if (h->type != PMSG_HELLO) {
		r = dray_err_set(&why, -EPROTO, DRAY_E_OUT_OF_ORDER, "%s before hello",
				 pmsg_type_name(h->type));
	} else {
		r = pmsg_hello_decode(body, h->length, &m, &why);
	}
	if (r == 0)
		r = check_hello(p, &m, dray_addr_show(&in->from, text, sizeof(text)), &why);
	if (r == 0)
		r = peer_new(&peer, p, m.agent_id, false, &why);
	if (r < 0) {
		conn_send_error(in->conn, 0, why);
		incoming_refuse(in, "%s", why.msg);
		return;
	}
	peer->conn = dray_take(in->conn);
	conn_set_owner(peer->conn, &peer_conn_ops, peer);
	conn_set_priority(peer->conn, SD_EVENT_PRIORITY_NORMAL);
	peer->addr = in->from;
	peer->hello_sent = true;
	memcpy(peer->nonce, in->nonce, sizeof(peer->nonce));
	incoming_free(in);
	learn(peer, &m);
	peer_event(peer, PEER_EVENT_ACCEPTED);
	hello_settle(peer);
}

void hello_rival_gone(struct peers *p, const uint8_t agent_id[16])
{
	struct peer *claim, *up;

	if (p->stopping)
		return;
	/* each round takes one connection out of CLAIM; the loop ends when one is up */
	while ((claim = first_claim(p, agent_id))) {
		up = peer_find_up(p, agent_id, NULL);
		if (up) {
			check_rival(up);
			return;
		}
		hello_settle(claim);
	}
}

uint32_t hello_loss_code(const struct peer *peer)
{
	peers_for_each_of(peer->p, peer->agent_id, x)
		if (x->fsm.state == PEER_STATE_CLAIM && x->incarnation > peer->incarnation)
			return DRAY_E_INCARNATION;
	return peer->fsm.why.code ? (uint32_t)peer->fsm.why.code : DRAY_E_PEER_LOST;
}

static void handle_hello(struct peer *peer, const struct pmsg_hello *m)
{
	struct dray_err why = DRAY_ERR_NULL;
	char id[IDENTITY_TEXT_BYTES];

	if (check_hello(peer->p, m, peer->segment, &why) < 0) {
		if (why.code != DRAY_E_IDENTITY)
			why.code = DRAY_E_PEER_UNREACHABLE;
		peer->leads_here =
			!memcmp(m->agent_id, peer->p->deps.agent_id, sizeof(m->agent_id)) &&
			m->incarnation == peer->p->deps.incarnation;
	} else if (peer->any_agent) {
		peer_set_agent_id(peer, m->agent_id);
	} else if (!peer_is(peer, m->agent_id)) {
		why = dray_err_of(
			DRAY_E_PEER_UNREACHABLE,
			"another agent, %.8s, answers at the segment: the token's owner has moved or ended; export the region again",
			identity_show(m->agent_id, id));
	}
	if (why.code) {
		peer_event_why(peer, PEER_EVENT_REFUSED, why);
		return;
	}
	learn(peer, m);
	hello_settle(peer);
}

static void handle_refusal(struct peer *peer, const struct pmsg_error *m)
{
	bool temporary = m->code == DRAY_E_EXISTS || m->code == DRAY_E_QUOTA ||
			 m->code == DRAY_E_BUSY || m->code == DRAY_E_DRAINING ||
			 m->code == DRAY_E_NO_MEMORY;
	bool known = m->code == DRAY_E_IDENTITY || m->code == DRAY_E_PEER_DENIED;

	peer_event_why(peer, temporary ? PEER_EVENT_FAILED : PEER_EVENT_REFUSED,
		       dray_err_of(known ? (int)m->code : DRAY_E_PEER_UNREACHABLE,
				   "the peer refuses: %.*s", (int)m->message.n, m->message.p));
}

static void handle_early(struct peer *peer, const struct pmsg_header *h, const uint8_t *body)
{
	bool ours = peer->fsm.initiator && peer->fsm.state == PEER_STATE_HELLO;
	struct dray_err why = DRAY_ERR_NULL;
	union pmsg_body m;

	if (pmsg_body_decode(h->type, body, h->length, &m, &why) == 0) {
		if (ours && h->type == PMSG_HELLO && !peer->known) {
			handle_hello(peer, &m.hello);
			return;
		}
		if (ours && h->type == PMSG_READY && peer->hello_sent) {
			peer->peer_ready = true;
			hello_settle(peer);
			return;
		}
		if (h->type == PMSG_ERROR && !h->request_id) {
			handle_refusal(peer, &m.error);
			return;
		}
		why = dray_err_of(DRAY_E_OUT_OF_ORDER, "%s before ready", pmsg_type_name(h->type));
	}
	conn_send_error(peer->conn, 0, why);
	why.code = DRAY_E_PEER_UNREACHABLE;
	peer_event_why(peer, PEER_EVENT_FAILED, why);
}

static void on_connected(struct conn *c)
{
	peer_event(c->owner, PEER_EVENT_CONNECTED);
}

static void on_secured(struct conn *c)
{
	struct peer *peer = c->owner;

	c->message_max = INCOMING_MESSAGE_MAX;
	peer->proved = true;
	if (peer->fsm.initiator)
		reach_proved(&peer->p->reaches, peer->segment);
	peer_event(peer, PEER_EVENT_SECURED);
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct peer *peer = c->owner;

	peer->fsm.heard_ns = peers_now(peer->p);
	if (peer_fsm_is_up(&peer->fsm))
		message_handle(peer, h, body);
	else
		handle_early(peer, h, body);
}

static void on_failed(struct conn *c, const struct dray_err *failure)
{
	struct peer *peer = c->owner;
	struct dray_err why = *failure;
	bool refused = c->refused;
	bool denied = why.code == DRAY_E_PEER_DENIED && !peer_fsm_is_up(&peer->fsm);

	if (denied)
		denied_connect(peer->p, peer->segment, &why);
	else
		why.code = peer_fsm_is_up(&peer->fsm) ? DRAY_E_PEER_LOST : DRAY_E_PEER_UNREACHABLE;
	peer_event_why(peer, denied ? PEER_EVENT_REFUSED : PEER_EVENT_FAILED, why);
	if (!refused)
		return;
	imports_refused(peer);
	posts_refused(peer);
}

const struct conn_ops peer_conn_ops = {
	.connected = on_connected,
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};
