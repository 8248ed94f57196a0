/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decrypted bytes of control connections, from peers that have the key, also before their HELLO, while this side
 * imports, fences, notifies, posts, drains and loses connections. The input is a list of {operation, connection, length,
 * bytes}.
 */
#include <stdint.h>

#include "tests/unit/peer_fake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	OP_RAW,     /* bytes as they are */
	OP_MESSAGE, /* a body, which gets a valid header */
	OP_ACCEPT,  /* a peer connects */
	OP_DIALLED, /* this side has connected to a peer, up to the end of the TLS handshake */
	OP_IMPORT,
	OP_CANCEL,
	OP_RELEASE,
	OP_FENCE,
	OP_FENCE_ACK,
	OP_NOTIFY,
	OP_STREAM_LOST,
	OP_STREAM_CLOSED,
	OP_DRAIN,
	OP_END, /* a connection ends */
	OP_TURN,
	OP_N
};

static const uint16_t types[] = {
	PMSG_HELLO,
	PMSG_ERROR,
	PMSG_READY,
	PMSG_HEARTBEAT,
	PMSG_IMPORT,
	PMSG_IMPORT_REPLY,
	PMSG_RELEASE,
	PMSG_FENCE,
	PMSG_FENCE_ACK,
	PMSG_STREAM_RESET,
	PMSG_STREAM_RESET_REPLY,
	PMSG_NOTIFY,
	PMSG_NOTIFY_REPLY,
	PMSG_DRAINING,
	PMSG_BYE,
	0x0077,
};

/* The highest eight values of `which` select operations of rails, so that older inputs keep their meaning. */
#define RAILS 0xf8

static const uint16_t rail_types[] = {
	PMSG_PORTS,    PMSG_KEYS,           PMSG_QP_CONNECT, PMSG_QP_CONNECT_REPLY,
	PMSG_QP_CLOSE, PMSG_QP_CLOSE_REPLY,
};

/* In the same way the highest values of `type` select operations of windows. */
#define WINDOWS 0xf0

/* And the highest value of `which` posts, and changes of keys. */
#define POSTS 0xff

static const uint16_t post_types[] = { PMSG_POST, PMSG_POST_REPLY, PMSG_REKEY, PMSG_REKEY_REPLY };

/* And the one below leases. */
#define LEASES 0xfe

static const uint16_t lease_types[] = {
	PMSG_ACQUIRE,       PMSG_ACQUIRE_REPLY, PMSG_LEASE_RANGES,
	PMSG_LEASE_GRANTED, PMSG_LEASE_RENEW,   PMSG_LEASE_RENEW_REPLY,
};

static const uint16_t window_types[] = { PMSG_WINDOW, PMSG_STAGE, PMSG_STAGE_REPLY };

static unsigned pending;
static uint64_t last_import;

static void imported(void *arg, const struct dray_err *err, dray_handle peer,
		     const struct pmsg_import_reply *reply, const struct peer_lease *lease)
{
	dray_assert(pending--);
	dray_assert(err->code || (peer && reply && reply->grant));
	/* whatever the peer sent, its ranges can be searched */
	if (lease) {
		uint32_t steps = ranges_steps(1);

		dray_assert(lease->ranges->n &&
			    !ranges_cover(lease->ranges, reply->length, 1, &steps));
	}
}

static unsigned asked;

static void qp_answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	const struct pmsg_qp_connect_reply *m = code ? NULL : &reply->qp_connect_reply;

	dray_assert(asked--);
	/* limits of the values that a device is configured with */
	dray_assert(!m || (m->qpn <= 0xffffff && m->mtu >= 256 && m->mtu <= 4096));
}

static unsigned notified;

static void answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	dray_assert(notified--);
}

static unsigned posted;

static void on_posted(void *arg, dray_handle session, uint64_t request_id,
		      const struct dray_err *err, const struct pmsg_post *own)
{
	dray_assert(posted--);
	dray_assert(session == 7 && request_id == 8 && !own);
}

/* The nth connection, of peers and then of incoming connections; NULL if there is none. */
static struct conn *nth_conn(struct peers *p, unsigned n)
{
	struct conn *last = NULL;

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		if (!peer->conn || peer->conn->fd >= 0)
			continue;
		last = peer->conn;
		if (!n--)
			return last;
	}
	dray_list_for_each(&p->incoming, in, struct incoming, link) {
		last = in->conn;
		if (!n--)
			return last;
	}
	return last;
}

static struct peer *nth_peer(struct peers *p, unsigned n)
{
	struct peer *last = NULL;

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		last = peer;
		if (!n--)
			break;
	}
	return last;
}

/* --- connections without a network -------------------------------------------------------------- */

static void incoming_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	hello_accept(c->owner, h, body);
}

static void incoming_failed(struct conn *c, const struct dray_err *why)
{
	incoming_refuse(c->owner, "%s", why->msg);
}

static const struct conn_ops ops = { .message = incoming_message, .failed = incoming_failed };

static void accept_one(struct peers *p)
{
	struct incoming *s;

	if (p->n_incoming > 3)
		return;
	s = calloc(1, sizeof(*s));
	dray_assert(s);
	s->p = p;
	s->fd = -1;
	dray_assert(dray_addr_parse("127.0.0.1:5", &s->from) == 0);
	dray_list_add(&p->incoming, &s->link);
	p->n_incoming++;
	dray_assert(conn_new_detached(&s->conn, p->deps.event, &ops, s) >= 0);
	s->conn->message_max = INCOMING_MESSAGE_MAX;
}

static void dialled(struct peers *p, uint8_t who)
{
	uint8_t id[16] = { 0 };
	struct peer *peer;

	id[15] = who % 4;
	if (p->handles.count > 6 || !id[15] || peer_new(&peer, p, id, true, NULL) < 0)
		return;
	dray_assert(dray_addr_parse("127.0.0.1:5", &peer->addr) == 0);
	snprintf(peer->segment, sizeof(peer->segment), "127.0.0.1:5");
	dray_assert(conn_new_detached(&peer->conn, p->deps.event, &peer_conn_ops, peer) >= 0);
	peer->fsm.state = PEER_STATE_HELLO;
	peer->fsm.attempt_end_ns = INT64_MAX;
}

/* --- one step ----------------------------------------------------------------------------------- */

static void feed(struct rig *rig, unsigned which, uint8_t type, const uint8_t *p, size_t n)
{
	struct conn *c = nth_conn(rig->peers, which % 8);
	uint8_t head[PMSG_HEADER_SIZE];
	struct pmsg_header h = { PMSG_MAGIC, PMSG_MAJOR, 0, types[type % DRAY_ARRAY_SIZE(types)], 0,
				 (uint32_t)n,
				 /* so that some answers match pending requests */
				 type / DRAY_ARRAY_SIZE(types) };

	if (which >= RAILS)
		h.type = type >= WINDOWS ? window_types[type % DRAY_ARRAY_SIZE(window_types)] :
					   rail_types[type % DRAY_ARRAY_SIZE(rail_types)];
	if (which == LEASES)
		h.type = lease_types[type % DRAY_ARRAY_SIZE(lease_types)];
	if (which == POSTS)
		h.type = post_types[type % DRAY_ARRAY_SIZE(post_types)];
	if (!c)
		return;
	pmsg_header_put(head, &h);
	conn_feed(c, head, sizeof(head));
	c = nth_conn(rig->peers, which % 8);
	if (c)
		conn_feed(c, p, n);
}

static void other_answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	(void)arg;
	(void)code;
	dray_assert(asked--);
}

/* The client that imports. */
static const struct peer_client client = { "tenant=default uid=1000" };

static void import_something(struct rig *rig, struct peer *peer, bool is_lease, const uint8_t *p,
			     size_t n)
{
	struct pmsg_token t = { .token_id = TOKEN_GOOD };

	/* only to peers that are up; others would need a network */
	if (!peer || !peer_fsm_is_up(&peer->fsm) || pending > 64)
		return;
	memcpy(t.agent_id, peer->agent_id, sizeof(t.agent_id));
	t.incarnation = peer->incarnation;
	if (peer_import(rig->peers, &t, is_lease, "127.0.0.1:1", &client, n ? p[0] * MS : 0,
			imported, NULL, &last_import, NULL) == 0)
		pending++;
}

static void post_something(struct rig *rig, struct peer *peer, const uint8_t *p, size_t n)
{
	struct peer_post post = { .segment = "127.0.0.1:5",
				  .m = { .uid = n ? p[0] & 3 : 0,
					 .name = { "x", 1 },
					 .payload = { p, (uint32_t)dray_min(n, (size_t)64) } },
				  .timeout_ns = n ? p[0] * MS : 0,
				  .done = on_posted,
				  .session = 7,
				  .request_id = 8 };

	/* only to peers that are up, as imports; connections that peers made are taken for reached ones */
	if (!peer || !peer_fsm_is_up(&peer->fsm) || posted > 64)
		return;
	snprintf(peer->reached, sizeof(peer->reached), "%s", post.segment);
	if (peer_post(rig->peers, &post, NULL) == 0)
		posted++;
}

static void ask_for_queue_pair(struct rig *rig, dray_handle peer, const uint8_t *p, size_t n)
{
	struct pmsg_qp_connect m = { .qp = n, .mtu = 1024, .reads = 1 };

	if (asked > 64)
		return;
	if (n && p[0] == 0xff)
		asked += peers_request(
				 rig->peers, peer, PMSG_STAGE,
				 &(union pmsg_body){ .stage = { .kind = PMSG_STAGE_KIND_GATHER } },
				 other_answered, NULL) == 0;
	else if (n && p[0] & 1)
		asked += peers_request(rig->peers, peer, PMSG_QP_CLOSE,
				       &(union pmsg_body){ .qp_close = { m.qp } }, other_answered,
				       NULL) == 0;
	else
		asked += peers_request(rig->peers, peer, PMSG_QP_CONNECT,
				       &(union pmsg_body){ .qp_connect = m }, qp_answered,
				       NULL) == 0;
}

/* Grants leases to the peer, or renews one. */
static void grant_or_renew(struct rig *rig, struct peer *peer, dray_handle handle, const uint8_t *p,
			   size_t n)
{
	struct pmsg_token t = { .token_id = TOKEN_GOOD };

	if (peer && n && p[0] & 1) {
		memcpy(t.audience, peer->agent_id, sizeof(t.audience));
		peers_lease_grant(rig->peers, &t, p[0] & 3);
	} else if (asked <= 64) {
		asked += peers_request(rig->peers, handle, PMSG_LEASE_RENEW,
				       &(union pmsg_body){ .lease_renew = { .grant = n } },
				       other_answered, NULL) == 0;
	}
}

static void step(struct rig *rig, uint8_t op, uint8_t which, const uint8_t *p, size_t n)
{
	struct peer *peer = nth_peer(rig->peers, which % 8);
	dray_handle handle = peer ? peer->handle : which;
	uint64_t arg = n ? p[0] : 0;
	struct conn *c;

	switch (op % OP_N) {
	case OP_RAW:
		c = nth_conn(rig->peers, which % 8);
		if (c)
			conn_feed(c, p, n);
		break;
	case OP_MESSAGE:
		if (n)
			feed(rig, which, p[0], p + 1, n - 1);
		break;
	case OP_ACCEPT:
		accept_one(rig->peers);
		break;
	case OP_DIALLED:
		dialled(rig->peers, which);
		break;
	case OP_IMPORT:
		if (which == LEASES || which < RAILS)
			import_something(rig, peer, which == LEASES, p, n);
		else
			ask_for_queue_pair(rig, handle, p, n);
		break;
	case OP_CANCEL:
		if (dray_handles_get(&rig->peers->imports, last_import)) {
			peer_import_cancel(rig->peers, last_import);
			pending--;
		}
		break;
	case OP_RELEASE:
		peer_release(rig->peers, handle, arg, arg % 3);
		break;
	case OP_FENCE:
		peers_fence(rig->peers, handle, arg, DRAY_E_REVOKED);
		break;
	case OP_FENCE_ACK:
		peers_fence_ack(rig->peers, handle, arg);
		break;
	case OP_NOTIFY:
		if (which == POSTS)
			post_something(rig, peer, p, n);
		else if (which == LEASES)
			grant_or_renew(rig, peer, handle, p, n);
		else if (notified < 64 &&
			 peer_notify(rig->peers, handle,
				     &(struct pmsg_notify){ arg, 1, 2, { p, (uint32_t)n } },
				     answered, NULL, NULL) == 0)
			notified++;
		break;
	case OP_STREAM_LOST:
		peers_handle_stream_lost(rig->peers, handle, arg);
		break;
	case OP_STREAM_CLOSED:
		if (peer && arg & 1) {
			if (stream_table_use(&peer->streams, arg) == 0)
				stream_table_add(&peer->streams, arg, 0);
		} else {
			peers_handle_stream_closed(rig->peers, handle, arg | 1);
		}
		break;
	case OP_DRAIN:
		if (arg & 1)
			peers_drain(rig->peers, 10);
		else
			peers_resume(rig->peers);
		break;
	case OP_END:
		c = nth_conn(rig->peers, which % 8);
		if (c)
			conn_fail(c, dray_err_of(DRAY_E_PEER_LOST, "it ended"));
		break;
	case OP_TURN:
		for (unsigned i = 0; i < 3; i++)
			sd_event_run(rig->event, 0);
		break;
	}
}

static struct ranges *some_ranges(void)
{
	struct dmsg_range v = { 100, 8, 64, 9 };
	uint8_t wire[DMSG_RANGE_SIZE];
	struct dray_err err = DRAY_ERR_NULL;
	struct ranges *r;

	dmsg_range_put(wire, &v);
	dray_assert(ranges_new(&r, wire, 1, 1 << 20, &err) == 0);
	return r;
}

/* One agent for all inputs, because the set-up of TLS and the loop takes far longer than an input. */
static struct rig *agent(void)
{
	static char none[] = "none";
	static char *list[] = { none };
	static struct rig *rig;
	struct dray_err err = DRAY_ERR_NULL;
	sd_event *e;

	if (rig)
		return rig;
	dray_log_set_level(DRAY_LOG_ERROR);
	dray_assert(sd_event_new(&e) >= 0);
	rig = rig_new(e, 2, 10);
	rig->cfg.peer.listen = (struct dray_strv){ list, 1 };
	rig->cfg.limits.peers = 8;
	rig->cfg.rdma.enable = true;
	rig->cfg.peer.allow_insecure = true;
	rig->keys_to_give = 2;
	rig->ranges = some_ranges();
	dray_assert(rig_try_start(rig, &err) == 0);
	return rig;
}

/* Ends all requests, each exactly once, so that nothing is left for the next input. */
static void end_all(struct rig *rig)
{
	struct peers *p = rig->peers;

	peers_resume(p);
	while (!dray_list_empty(&p->incoming))
		incoming_free(dray_list_first(&p->incoming, struct incoming, link));
	while (!dray_list_empty(&p->all))
		peer_event_why(dray_list_first(&p->all, struct peer, all_link), PEER_EVENT_CLOSE,
			       dray_err_of(DRAY_E_PEER_LOST, "the input ends"));
	for (unsigned i = 0; i < 20 && !dray_list_empty(&p->closed); i++)
		sd_event_run(rig->event, 0);
	dray_assert(!pending && !notified && !asked && !posted);
	dray_assert(dray_list_empty(&p->closed) && !p->n_incoming);
	dray_assert(!p->handles.count && !p->imports.count);
	rig->grants_held = rig->next_grant = 0;
	rig->n_commands = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rig *rig = agent();

	pending = notified = asked = posted = 0;
	last_import = 0;
	while (size >= 3) {
		size_t n = data[2] & 1 ? data[2] >> 1 : (size_t)data[2] << 1;

		if (n > size - 3)
			n = size - 3;
		step(rig, data[0], data[1], data + 3, n);
		data += 3 + n;
		size -= 3 + n;
	}
	end_all(rig);
	return 0;
}
