/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From TLS to READY: who is there, and which of several connections to one agent stays.
 *
 * The accepting side sends its HELLO at once, the connecting side when it has seen that one: so a
 * connection to somebody else than the token promised ends before we have said who we are, and a
 * forged token cannot make its segment's agent believe that we have connected anew.
 *
 * Both sides connect at once: the connection of the lower agent id stays. The lower side refuses the
 * other's connection once it has sent HELLO on its own; until then it accepts, and gives its own
 * attempt up before that can have been seen. So both sides always keep the same one.
 *
 * An agent id that is up already: the peer was restarted, or lost its end of the old connection, or
 * two agents share one id. Only the old connection can tell: it is asked for an answer (a STREAM_RESET
 * of a stream that cannot be). An answer proves it alive, and the new connection is refused. A reset or
 * silence proves it dead, and the new connection takes its place.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/state/identity.h"
#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/random.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#ifndef DRAY_VERSION
#define DRAY_VERSION "unknown"
#endif

#define PROBE_STREAM UINT64_MAX

static const char both_at_once[] = "both sides connected at once, and the other connection stays";
static const char up_already[] = "this agent is connected already, and that connection lives";

/* --- HELLO -------------------------------------------------------------------------------------- */

static uint64_t features(const struct peers *p)
{
	return PMSG_FEATURE_TCP |
	       (p->cfg->rdma.enable ? PMSG_FEATURE_RDMA | PMSG_FEATURE_WINDOW : 0);
}

void hello_send(struct peers *p, struct conn *c, const uint8_t nonce[NONCE_SIZE])
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_HELLO_BODY_MAX];
	struct pmsg_hello m = {
		.major_min = PMSG_MAJOR,
		.major_max = PMSG_MAJOR,
		.heartbeat_ms = (uint32_t)(p->cfg->peer.heartbeat / DRAY_NS_PER_MS),
		.features = features(p),
		.incarnation = p->deps.incarnation,
		.segment = { p->segment, (uint32_t)strlen(p->segment) },
		.version = { DRAY_VERSION, (uint32_t)strlen(DRAY_VERSION) },
	};
	int n;

	memcpy(m.agent_id, p->deps.agent_id, sizeof(m.agent_id));
	memcpy(m.nonce, nonce, sizeof(m.nonce));
	n = pmsg_hello_encode(buf, sizeof(buf), 0, &m);
	dray_assert(n > 0);
	conn_send(c, buf, (size_t)n);
}

static void report_identity(const struct peers *p, const uint8_t agent_id[16], uint64_t one,
			    uint64_t other, const char *where)
{
	char id[IDENTITY_TEXT_BYTES];

	log_limited(
		DRAY_LOG_WARNING, AREA,
		"two agents show the same id at once: give each a state directory of its own agent=%s incarnation=%" PRIu64
		" other_incarnation=%" PRIu64 " other=%s",
		identity_show(agent_id, id), one, other, where);
}

static int check_hello(const struct peers *p, const struct pmsg_hello *m, const char *where,
		       struct dray_err *reterr)
{
	if (m->major_min > PMSG_MAJOR || m->major_max < PMSG_MAJOR)
		return dray_err_set(reterr, -EPROTO, DRAY_E_VERSION,
				    "it speaks versions %u to %u, this agent %d", m->major_min,
				    m->major_max, PMSG_MAJOR);
	if (memcmp(m->agent_id, p->deps.agent_id, sizeof(m->agent_id)) != 0)
		return 0;
	if (m->incarnation == p->deps.incarnation)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PEER_UNREACHABLE,
				    "that is this agent itself");
	report_identity(p, m->agent_id, p->deps.incarnation, m->incarnation, where);
	return dray_err_set(reterr, -EPROTO, DRAY_E_IDENTITY,
			    "it shows the agent id of the agent that it connects with");
}

/* What HELLO tells of the peer. */
static void learn(struct peer *peer, const struct pmsg_hello *m)
{
	const struct dray_config *cfg = peer->p->cfg;
	char segment[SEGMENT_MAX + 1];
	int64_t promised;

	peer->known = true;
	peer->incarnation = m->incarnation;
	peer->features = m->features & features(peer->p);
	memcpy(peer->peer_nonce, m->nonce, sizeof(peer->peer_nonce));
	snprintf(segment, sizeof(segment), "%.*s", (int)m->segment.n, m->segment.p);
	/* the one that we have reached it at stays its name here */
	if (!peer->fsm.initiator && dray_segment_valid(segment))
		snprintf(peer->segment, sizeof(peer->segment), "%s", segment);
	/* silence is judged by what the peer promised, too: one that sends every 10 s is not lost after 3 */
	promised = dray_min(m->heartbeat_ms, HEARTBEAT_MS_MAX) * DRAY_NS_PER_MS;
	peer->fsm.silence_ns = dray_max(cfg->peer.heartbeat_limit, 3 * promised);
}

static const char *where_text(const struct dray_addr *a, char buf[DRAY_ADDR_TEXT_MAX])
{
	return dray_addr_show(a, buf, DRAY_ADDR_TEXT_MAX);
}

void hello_accept(struct stranger *s, const struct pmsg_header *h, const uint8_t *body)
{
	struct peers *p = s->p;
	struct dray_err why = DRAY_ERR_NULL;
	char text[DRAY_ADDR_TEXT_MAX];
	struct peer *peer = NULL;
	struct pmsg_hello m;
	int r;

	if (h->type == PMSG_PROBE) {
		probe_answer(s, h->request_id);
		return;
	}
	if (h->type != PMSG_HELLO)
		r = dray_err_set(&why, -EPROTO, DRAY_E_OUT_OF_ORDER, "%s before hello",
				 pmsg_type_name(h->type));
	else
		r = pmsg_hello_decode(body, h->length, &m, &why);
	if (r == 0)
		r = check_hello(p, &m, where_text(&s->from, text), &why);
	if (r == 0)
		r = peer_new(&peer, p, m.agent_id, false, &why);
	if (r < 0) {
		send_error(s->conn, 0, (uint32_t)why.code, why.msg);
		stranger_refuse(s, "%s", why.msg);
		return;
	}
	peer->conn = dray_take(s->conn);
	conn_set_owner(peer->conn, &peer_conn_ops, peer);
	conn_set_priority(peer->conn, SD_EVENT_PRIORITY_NORMAL);
	peer->addr = s->from;
	peer->hello_sent = true;
	memcpy(peer->nonce, s->nonce, sizeof(peer->nonce));
	stranger_free(s);
	learn(peer, &m);
	peer_event(peer, PEER_EVENT_ACCEPTED, 0, NULL);
	hello_settle(peer);
}

/* --- which connection stays --------------------------------------------------------------------- */

static void refuse(struct peer *peer, uint32_t code, const char *why)
{
	send_error(peer->conn, 0, code, why);
	peer_event(peer, PEER_EVENT_REFUSED, code, why);
}

/* An attempt of ours to reach this agent that it has seen, or will see. */
static bool attempt_is_visible(struct peers *p, const uint8_t agent_id[16])
{
	table_for_each_of(p, agent_id, x)
		if (x->fsm.initiator && x->hello_sent && peer_fsm_is_attempt(&x->fsm))
			return true;
	return false;
}

static void probe(struct peer *rival)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_STREAM_RESET_BODY_MAX];
	struct pmsg_stream_reset m = { .stream_id = PROBE_STREAM };
	struct request *r;

	dray_list_for_each(&rival->requests, old, struct request, link)
		if (old->type == REQUEST_PROBE)
			return;
	r = request_new(rival, REQUEST_PROBE, rival->p->cfg->peer.heartbeat_limit);
	if (!r) {
		conn_fail(rival->conn, DRAY_E_NO_MEMORY, "no memory for a probe");
		return;
	}
	peer_send(rival, buf, pmsg_stream_reset_encode(buf, sizeof(buf), r->id, &m));
}

/* Our attempt found what is connected already: what waits for it goes there. */
static void merge(struct peer *peer, struct peer *up)
{
	imports_adopt(up, peer);
	wants_adopt(up, peer);
	if (imports_wanted(peer))
		peer_event(peer, PEER_EVENT_REFUSED, DRAY_E_TOKEN_INVALID,
			   "the token names an incarnation that its owner has not reached");
	else
		peer_event(peer, PEER_EVENT_UNWANTED, 0, NULL);
	imports_run(up);
}

static void settle_initiator(struct peer *peer)
{
	if (peer->peer_ready) {
		peer_event(peer, PEER_EVENT_AGREED, 0, NULL);
	} else if (!peer->hello_sent) {
		if (dray_random_fill(peer->nonce, sizeof(peer->nonce)) < 0) {
			conn_fail(peer->conn, DRAY_E_INTERNAL,
				  "the kernel gave no random bytes for the nonce");
			return;
		}
		peer->hello_sent = true;
		hello_send(peer->p, peer->conn, peer->nonce);
	}
}

static void settle_acceptor(struct peer *peer)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_READY_BODY_MAX];
	struct pmsg_ready m = {};
	struct peers *p = peer->p;

	if (memcmp(p->deps.agent_id, peer->agent_id, sizeof(peer->agent_id)) < 0 &&
	    attempt_is_visible(p, peer->agent_id)) {
		refuse(peer, DRAY_E_EXISTS, both_at_once);
		return;
	}
	peer_send(peer, buf, pmsg_ready_encode(buf, sizeof(buf), 0, &m));
	peer_event(peer, PEER_EVENT_AGREED, 0, NULL);
}

void hello_settle(struct peer *peer)
{
	struct peer *rival = table_find_up(peer->p, peer->agent_id, peer);

	if (rival && peer->fsm.initiator && rival->incarnation == peer->incarnation) {
		merge(peer, rival);
		return;
	}
	if (rival) {
		if (peer->fsm.state != PEER_STATE_CLAIM)
			peer_event(peer, PEER_EVENT_RIVAL, 0, NULL);
		probe(rival);
		return;
	}
	if (peer->fsm.state == PEER_STATE_CLAIM)
		peer_event(peer, PEER_EVENT_CLEARED, 0, NULL);
	if (peer->fsm.initiator)
		settle_initiator(peer);
	else
		settle_acceptor(peer);
}

static struct peer *first_claim(struct peers *p, const uint8_t agent_id[16])
{
	table_for_each_of(p, agent_id, x)
		if (x->fsm.state == PEER_STATE_CLAIM)
			return x;
	return NULL;
}

void hello_rival_gone(struct peers *p, const uint8_t agent_id[16])
{
	struct peer *claim, *up;

	if (p->stopping)
		return;
	/* each round takes one out of CLAIM, and ends when one of them is up */
	while ((claim = first_claim(p, agent_id))) {
		up = table_find_up(p, agent_id, NULL);
		if (up) {
			probe(up);
			return;
		}
		hello_settle(claim);
	}
}

void hello_rival_alive(struct peer *rival)
{
	struct peers *p = rival->p;
	char text[DRAY_ADDR_TEXT_MAX];
	struct peer *claim;

	while ((claim = first_claim(p, rival->agent_id))) {
		if (claim->incarnation == rival->incarnation) {
			refuse(claim, DRAY_E_EXISTS, up_already);
			continue;
		}
		report_identity(p, rival->agent_id, rival->incarnation, claim->incarnation,
				where_text(&claim->addr, text));
		refuse(claim, DRAY_E_IDENTITY,
		       "another agent shows the same id with another incarnation, and lives");
	}
}

uint32_t hello_loss_code(const struct peer *peer, uint32_t code)
{
	table_for_each_of(peer->p, peer->agent_id, x)
		if (x->fsm.state == PEER_STATE_CLAIM && x->incarnation > peer->incarnation)
			return DRAY_E_INCARNATION;
	return code;
}

/* --- what the peer says before READY ------------------------------------------------------------ */

static void handle_hello(struct peer *peer, const struct pmsg_hello *m)
{
	struct dray_err why = DRAY_ERR_NULL;
	char id[IDENTITY_TEXT_BYTES];

	if (check_hello(peer->p, m, peer->segment, &why) < 0) {
		peer_event(peer, PEER_EVENT_REFUSED,
			   why.code == DRAY_E_IDENTITY ? DRAY_E_IDENTITY : DRAY_E_PEER_UNREACHABLE,
			   why.msg);
		return;
	}
	if (peer->any_agent) {
		table_name(peer, m->agent_id);
	} else if (memcmp(m->agent_id, peer->agent_id, sizeof(m->agent_id)) != 0) {
		dray_err_set(
			&why, 0, DRAY_E_PEER_UNREACHABLE,
			"another agent answers there, %.8s: the token's owner has moved or is gone",
			identity_show(m->agent_id, id));
		peer_event(peer, PEER_EVENT_REFUSED, (uint32_t)why.code, why.msg);
		return;
	}
	learn(peer, m);
	hello_settle(peer);
}

static void handle_refusal(struct peer *peer, const struct pmsg_error *m)
{
	struct dray_err why = DRAY_ERR_NULL;
	bool later = m->code == DRAY_E_EXISTS || m->code == DRAY_E_QUOTA ||
		     m->code == DRAY_E_BUSY || m->code == DRAY_E_DRAINING ||
		     m->code == DRAY_E_NO_MEMORY;

	dray_err_set(&why, 0,
		     m->code == DRAY_E_IDENTITY || m->code == DRAY_E_PEER_DENIED ?
			     (int)m->code :
			     DRAY_E_PEER_UNREACHABLE,
		     "it refuses: %.*s", (int)m->message.n, m->message.p);
	peer_event(peer, later ? PEER_EVENT_FAILED : PEER_EVENT_REFUSED, (uint32_t)why.code,
		   why.msg);
}

static void handle_early(struct peer *peer, const struct pmsg_header *h, const uint8_t *body)
{
	bool ours = peer->fsm.initiator && peer->fsm.state == PEER_STATE_HELLO;
	struct dray_err why = DRAY_ERR_NULL;
	struct pmsg_hello hello;
	struct pmsg_error error;

	if (ours && h->type == PMSG_HELLO && !peer->known) {
		if (pmsg_hello_decode(body, h->length, &hello, &why) == 0) {
			handle_hello(peer, &hello);
			return;
		}
	} else if (ours && h->type == PMSG_READY && peer->hello_sent) {
		peer->peer_ready = true;
		hello_settle(peer);
		return;
	} else if (h->type == PMSG_ERROR && !h->request_id) {
		if (pmsg_error_decode(body, h->length, &error, &why) == 0) {
			handle_refusal(peer, &error);
			return;
		}
	} else {
		dray_err_set(&why, 0, DRAY_E_OUT_OF_ORDER, "%s before ready",
			     pmsg_type_name(h->type));
	}
	send_error(peer->conn, 0, (uint32_t)why.code, why.msg);
	peer_event(peer, PEER_EVENT_FAILED, DRAY_E_PEER_UNREACHABLE, why.msg);
}

/* --- the connection ----------------------------------------------------------------------------- */

static void on_connected(struct conn *c)
{
	peer_event(c->owner, PEER_EVENT_CONNECTED, 0, NULL);
}

static void on_secured(struct conn *c)
{
	c->message_max = STRANGER_MESSAGE_MAX;
	peer_event(c->owner, PEER_EVENT_SECURED, 0, NULL);
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

static void on_failed(struct conn *c, const struct dray_err *why)
{
	struct peer *peer = c->owner;
	char text[DRAY_ERR_MSG_MAX];

	if (peer_fsm_is_up(&peer->fsm)) {
		peer_event(peer, PEER_EVENT_FAILED, DRAY_E_PEER_LOST, why->msg);
	} else if (why->code == DRAY_E_PEER_DENIED) {
		snprintf(text, sizeof(text), "%.*s; both agents need the same peer.key_file",
			 DRAY_ERR_MSG_MAX - 64, why->msg);
		peer_event(peer, PEER_EVENT_REFUSED, DRAY_E_PEER_DENIED, text);
	} else {
		peer_event(peer, PEER_EVENT_FAILED, DRAY_E_PEER_UNREACHABLE, why->msg);
	}
}

const struct conn_ops peer_conn_ops = {
	.connected = on_connected,
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};
