/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between peers about rails: ports, keys, queue pairs, windows; and grants whose memory
 * becomes unreachable.
 */
#include "tests/unit/peer_rig.h"

static struct {
	sd_event *event;
	struct rig *a, *b;
} s;

static int begin(void **state)
{
	assert_true(sd_event_new(&s.event) >= 0);
	s.a = rig_new(s.event, 1, 10);
	s.b = rig_new(s.event, 2, 20);
	s.a->cfg.rdma.enable = s.b->cfg.rdma.enable = true;
	return 0;
}

static int end(void **state)
{
	s.a = rig_kill(s.a);
	s.b = rig_kill(s.b);
	s.event = sd_event_unref(s.event);
	return 0;
}

static void connect_both(struct rig_import *i)
{
	rig_started(s.a);
	rig_started(s.b);
	rig_connect(s.a, s.b, i);
}

#define UNTIL(cond) assert_true(rig_until(s.event, cond))

/* --- ports and keys ------------------------------------------------------------------------------- */

static void test_ports(void **state)
{
	uint8_t buf[3 * PMSG_PORT_SIZE];
	struct dray_vec ports = { .p = buf, .n = 3 };
	struct rig_import i;

	connect_both(&i);
	assert_int_equal(s.a->rdma_ups, 1);
	assert_int_equal(s.b->rdma_ups, 1);
	for (unsigned k = 0; k < 3; k++)
		pmsg_port_put(buf + k * PMSG_PORT_SIZE, &(struct pmsg_port){ .rail = k });
	peers_send(s.a->peers, i.peer, PMSG_PORTS, 0, &(union pmsg_body){ .ports = { ports } });
	UNTIL(s.b->ports_said == 1);
	assert_int_equal(s.b->n_ports, 3);
	ports.n = 0;
	peers_send(s.a->peers, i.peer, PMSG_PORTS, 0, &(union pmsg_body){ .ports = { ports } });
	UNTIL(s.b->ports_said == 2);
	assert_int_equal(s.b->n_ports, 0);
	/* no such peer: nothing happens */
	peers_send(s.a->peers, i.peer + 1000, PMSG_PORTS, 0,
		   &(union pmsg_body){ .ports = { ports } });
	rig_connect(s.a, s.b, &i);
	assert_int_equal(s.b->ports_said, 2);
}

static void test_one_side_without(void **state)
{
	struct rig_import i;

	s.b->cfg.rdma.enable = false;
	s.b->keys_to_give = 2;
	connect_both(&i);
	assert_int_equal(s.a->rdma_ups, 0);
	assert_int_equal(s.b->rdma_ups, 0);
	assert_int_equal(i.n_keys, 0);
	assert_int_equal(s.b->exposed, 0);
}

/* Keys in the answer to an import mark the grant as exposed; keys for an unknown grant are dropped. */
static void test_keys(void **state)
{
	uint8_t buf[2 * PMSG_RAIL_SIZE];
	struct dray_vec rails = { .p = buf, .n = 2 };
	struct rig_import i;

	for (unsigned k = 0; k < 2; k++)
		pmsg_rail_put(buf + k * PMSG_RAIL_SIZE,
			      &(struct pmsg_rail){ .rail = k, .rkey = 7, .length = 4096 });
	connect_both(&i);
	assert_int_equal(i.n_keys, 0);
	assert_int_equal(s.b->exposed, 0);
	peers_send(s.b->peers, s.b->link->peer, PMSG_KEYS, 0,
		   &(union pmsg_body){ .keys = { i.grant, rails } });
	UNTIL(s.a->keys_said == 1);
	assert_int_equal(s.a->keys_grant, i.grant);
	assert_int_equal(s.a->n_keys, 2);
	/* an empty list withdraws the keys */
	rails.n = 0;
	peers_send(s.b->peers, s.b->link->peer, PMSG_KEYS, 0,
		   &(union pmsg_body){ .keys = { i.grant, rails } });
	UNTIL(s.a->keys_said == 2);
	assert_int_equal(s.a->n_keys, 0);
	rails.n = 2;
	peers_send(s.b->peers, s.b->link->peer, PMSG_KEYS, 0,
		   &(union pmsg_body){ .keys = { i.grant + 50, rails } });
	/* with the answer to an import, if keys exist already */
	s.b->keys_to_give = 2;
	rig_connect(s.a, s.b, &i);
	assert_int_equal(i.n_keys, 2);
	assert_int_equal(s.a->keys_said, 2);
	assert_int_equal(s.b->exposed, 1);
}

/* --- queue pairs ---------------------------------------------------------------------------------- */

struct answer {
	unsigned done;
	uint32_t code;
	struct pmsg_qp_connect_reply m;
};

static void answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct answer *n = arg;

	n->done++;
	n->code = code;
	if (reply)
		n->m = reply->qp_connect_reply;
}

static int rekey(uint64_t grant, struct answer *n)
{
	*n = (struct answer){};
	return peers_request(s.b->peers, s.b->link->peer, PMSG_REKEY,
			     &(union pmsg_body){ .rekey = { grant } }, answered, n);
}

/* The owner hears when the importer's keys have ended. An importer that does not know REKEY is lost, and with it its queue pairs. */
static void test_rekey(void **state)
{
	struct rig_import i;
	struct answer n;

	connect_both(&i);
	/* for a grant that the importer has not, or not any more */
	assert_int_equal(rekey(i.grant + 50, &n), 0);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_OK);
	assert_int_equal(s.a->rekeys, 0);
	assert_int_equal(rekey(i.grant, &n), 0);
	UNTIL(s.a->rekeys);
	assert_int_equal(s.a->keys_grant, i.grant);
	assert_int_equal(n.done, 0);
	peers_send(s.a->peers, s.a->rekey_peer, PMSG_REKEY_REPLY, s.a->rekey_request, NULL);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_OK);
	assert_int_equal(rekey(i.grant, &n), 0);
	UNTIL(s.a->rekeys == 2);
	peers_refuse(s.a->peers, s.a->rekey_peer, s.a->rekey_request, DRAY_E_UNKNOWN_TYPE, "new");
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_E_PEER_LOST);
	assert_int_equal(s.b->lost, 1);
}

static const struct pmsg_qp_connect wanted = {
	.qp = 5, .rail = 1, .to_rail = 2, .qpn = 0x123456, .psn = 77, .mtu = 1024, .reads = 16
};

static int connect_qp(dray_handle peer, struct answer *n)
{
	return peers_request(s.a->peers, peer, PMSG_QP_CONNECT,
			     &(union pmsg_body){ .qp_connect = wanted }, answered, n);
}

static int close_qp(dray_handle peer, uint64_t qp, struct answer *n)
{
	return peers_request(s.a->peers, peer, PMSG_QP_CLOSE,
			     &(union pmsg_body){ .qp_close = { qp } }, answered, n);
}

static void reply_connected(const struct pmsg_qp_connect_reply *m)
{
	peers_send(s.b->peers, s.b->qp_peer, PMSG_QP_CONNECT_REPLY, s.b->qp_request,
		   &(union pmsg_body){ .qp_connect_reply = *m });
}

static void test_queue_pair(void **state)
{
	struct pmsg_qp_connect_reply m = { .qpn = 9, .psn = 77, .mtu = 1024, .reads = 16 };
	struct answer n = {};
	struct rig_import i;

	connect_both(&i);
	assert_int_equal(connect_qp(i.peer, &n), 0);
	assert_int_equal(n.done, 0);
	UNTIL(s.b->qp_connects);
	assert_memory_equal(&s.b->qp_asked, &wanted, sizeof(wanted));
	assert_int_equal(s.b->qp_peer, s.b->link->peer);
	reply_connected(&m);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_OK);
	assert_memory_equal(&n.m, &m, sizeof(m));

	n = (struct answer){};
	assert_int_equal(connect_qp(i.peer, &n), 0);
	UNTIL(s.b->qp_connects == 2);
	peers_refuse(s.b->peers, s.b->qp_peer, s.b->qp_request, DRAY_E_QUOTA, "full");
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_E_QUOTA);

	n = (struct answer){};
	assert_int_equal(close_qp(i.peer, 5, &n), 0);
	UNTIL(s.b->qp_closes);
	assert_int_equal(s.b->qp_closed, 5);
	peers_send(s.b->peers, s.b->qp_peer, PMSG_QP_CLOSE_REPLY, s.b->qp_request, NULL);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_OK);
	assert_int_equal(connect_qp(i.peer + 1000, &n), -ENOTCONN);
	assert_int_equal(close_qp(i.peer + 1000, 5, &n), -ENOTCONN);
	assert_int_equal(n.done, 1);
}

/* Values that no queue pair can have are refused before they reach a device. */
static void test_bad_answers(void **state)
{
	const struct pmsg_qp_connect_reply bad[] = {
		{ .qpn = 0x1000000, .mtu = 1024, .reads = 1 },
		{ .qpn = 1, .mtu = 128, .reads = 1 },
		{ .qpn = 1, .mtu = 8192, .reads = 1 },
		{ .qpn = 1, .mtu = 1024, .reads = 0 },
		{ .qpn = 1, .mtu = 1024, .reads = 256 },
	};
	struct rig_import i;

	connect_both(&i);
	for (unsigned k = 0; k < DRAY_ARRAY_SIZE(bad); k++) {
		struct answer n = {};

		assert_int_equal(connect_qp(i.peer, &n), 0);
		UNTIL(s.b->qp_connects == k + 1);
		reply_connected(&bad[k]);
		UNTIL(n.done);
		assert_int_equal(n.code, DRAY_E_PROTOCOL);
	}
	assert_int_equal(s.a->lost, 0);
}

/*
 * After a connect without an answer only that queue pair ends; after a close without an answer the
 * peer is lost, because bytes could still arrive.
 */
static void test_no_answer(void **state)
{
	struct answer opened = {}, closed = {};
	struct rig_import i;

	rig_prompt(s.a);
	s.a->cfg.peer.connect_timeout = 100 * MS;
	connect_both(&i);
	assert_int_equal(connect_qp(i.peer, &opened), 0);
	UNTIL(opened.done);
	assert_int_equal(opened.code, DRAY_E_TIMEOUT);
	assert_int_equal(s.a->lost, 0);
	/* the late answer */
	reply_connected(&(struct pmsg_qp_connect_reply){ .qpn = 1, .mtu = 1024, .reads = 1 });
	assert_int_equal(close_qp(i.peer, 5, &closed), 0);
	UNTIL(s.a->lost);
	assert_int_equal(closed.done, 1);
	assert_int_not_equal(closed.code, DRAY_OK);
	assert_int_equal(opened.done, 1);
	assert_non_null(strstr(s.a->lost_why, "queue pair"));
}

static void test_lost_in_between(void **state)
{
	struct answer opened = {}, closed = {};
	struct rig_import i;

	connect_both(&i);
	assert_int_equal(connect_qp(i.peer, &opened), 0);
	assert_int_equal(close_qp(i.peer, 4, &closed), 0);
	s.b = rig_kill(s.b);
	UNTIL(s.a->lost);
	UNTIL(opened.done && closed.done);
	assert_int_not_equal(opened.code, DRAY_OK);
	assert_int_not_equal(closed.code, DRAY_OK);
	rig_for(s.event, 20);
	assert_int_equal(opened.done + closed.done, 2);
}

/* --- windows --------------------------------------------------------------------------------------- */

struct staged {
	unsigned done;
	uint32_t code;
};

static void staged(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct staged *n = arg;

	n->done++;
	n->code = code;
}

static uint8_t segs[PMSG_SEGS_MAX * PMSG_SEG_SIZE];

static const struct pmsg_stage asked = { .window = 3,
					 .offset = 4096,
					 .length = 65536,
					 .grant = 17,
					 .kind = PMSG_STAGE_KIND_SCATTER,
					 .class = DMSG_CLASS_LATENCY,
					 .segs = { .p = segs, .n = PMSG_SEGS_MAX } };

static int stage(dray_handle peer, struct staged *n)
{
	return peers_request(s.a->peers, peer, PMSG_STAGE, &(union pmsg_body){ .stage = asked },
			     staged, n);
}

static void test_window(void **state)
{
	uint8_t buf[2 * PMSG_RAIL_SIZE] = { 0 };
	struct pmsg_window m = { .window = 3, .length = 1 << 20, .rails = { .p = buf, .n = 2 } };
	struct staged n = {};
	struct rig_import i;

	connect_both(&i);
	peers_send(s.b->peers, s.b->link->peer, PMSG_WINDOW, 0, &(union pmsg_body){ .window = m });
	UNTIL(s.a->window == 3);
	assert_int_equal(s.a->window_length, 1 << 20);
	assert_int_equal(s.a->n_window_rails, 2);
	assert_int_equal(stage(i.peer, &n), 0);
	assert_int_equal(n.done, 0);
	UNTIL(s.b->stages);
	assert_memory_equal(&s.b->stage_asked, &asked, offsetof(struct pmsg_stage, class) + 1);
	assert_int_equal(s.b->n_stage_segs, PMSG_SEGS_MAX);
	peers_send(s.b->peers, s.b->stage_peer, PMSG_STAGE_REPLY, s.b->stage_request, NULL);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_OK);

	n = (struct staged){};
	assert_int_equal(stage(i.peer, &n), 0);
	UNTIL(s.b->stages == 2);
	peers_refuse(s.b->peers, s.b->stage_peer, s.b->stage_request, DRAY_E_DENIED, "no");
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_E_DENIED);
	assert_int_equal(stage(i.peer + 1000, &n), -ENOTCONN);
	assert_int_equal(n.done, 1);
}

/* Without an answer the copy may still be going on, so the peer is lost. */
static void test_stage_no_answer(void **state)
{
	struct staged n = {};
	struct rig_import i;

	rig_prompt(s.a);
	connect_both(&i);
	assert_int_equal(stage(i.peer, &n), 0);
	UNTIL(s.a->lost);
	assert_int_equal(n.done, 1);
	assert_int_equal(n.code, DRAY_E_PEER_LOST);
	assert_non_null(strstr(s.a->lost_why, "window"));
}

static void test_stage_lost_in_between(void **state)
{
	struct staged n = {};
	struct rig_import i;

	connect_both(&i);
	assert_int_equal(stage(i.peer, &n), 0);
	s.b = rig_kill(s.b);
	UNTIL(n.done);
	assert_int_equal(n.code, DRAY_E_PEER_LOST);
	rig_for(s.event, 20);
	assert_int_equal(n.done, 1);
}

/* --- the end of a peer ----------------------------------------------------------------------------- */

/* The peer's grants stay pinned until no queue pair serves it. */
static void test_grants_wait_for_quiet(void **state)
{
	struct rig_import i;

	s.b->rails_serve = true;
	connect_both(&i);
	s.a = rig_kill(s.a);
	UNTIL(s.b->lost);
	assert_int_equal(s.b->rails_down, 1);
	UNTIL(s.b->downs_done);
	rig_for(s.event, 30);
	assert_int_equal(s.b->gone, 0);
	assert_int_equal(s.b->grants_held, 1);
}

/* Nor does the end of a grant by its owner take it for one that the peer cannot use, until no queue pair serves the peer. */
static void test_fence_waits_for_quiet(void **state)
{
	struct rig_import i;

	s.b->rails_serve = true;
	connect_both(&i);
	s.a = rig_kill(s.a);
	UNTIL(s.b->lost);
	peers_fence(s.b->peers, s.b->lost_peer, 7, DRAY_E_REVOKED);
	peers_fence(s.b->peers, s.b->lost_peer, RIG_STORED, DRAY_E_REVOKED);
	assert_int_equal(s.b->fenced, 0);
	assert_int_equal(s.b->store_fenced, 0);
	s.b->rails_serve = false;
	peers_fence(s.b->peers, s.b->lost_peer, 7, DRAY_E_REVOKED);
	peers_fence(s.b->peers, s.b->lost_peer, RIG_STORED, DRAY_E_REVOKED);
	assert_int_equal(s.b->fenced, 1);
	assert_int_equal(s.b->fenced_grant, 7);
	assert_int_equal(s.b->store_fenced, 1);
}

static void test_grants_go_at_once(void **state)
{
	struct rig_import i;

	connect_both(&i);
	s.a = rig_kill(s.a);
	UNTIL(s.b->lost);
	assert_int_equal(s.b->rails_down, 1);
	UNTIL(s.b->gone == 1);
}

/* --- invalid requests -------------------------------------------------------------------------------- */

static void test_requests_need_ids(void **state)
{
	struct puppet p;

	rig_started(s.a);
	puppet_join(&p, s.a, 9, 90);
	puppet_say(&p, qp_connect, 0, { .qp = 1 });
	UNTIL(p.failed || p.error);
	assert_int_equal(s.a->qp_connects, 0);
	assert_int_equal(p.error, DRAY_E_INVALID);
	puppet_end(&p);
}

static void test_keys_of_unknown_grants(void **state)
{
	uint8_t buf[PMSG_RAIL_SIZE];
	struct puppet p;

	rig_started(s.a);
	puppet_join(&p, s.a, 9, 90);
	pmsg_rail_put(buf, &(struct pmsg_rail){ .rail = 1, .rkey = 7, .length = 4096 });
	puppet_say(&p, keys, 0, { .grant = 12345, .rails = { .p = buf, .n = 1 } });
	puppet_say(&p, qp_close, 3, { .qp = 8 });
	UNTIL(s.a->qp_closes);
	assert_int_equal(s.a->keys_said, 0);
	puppet_end(&p);
}

#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_ports),
		T(test_one_side_without),
		T(test_keys),
		T(test_rekey),
		T(test_queue_pair),
		T(test_bad_answers),
		T(test_no_answer),
		T(test_lost_in_between),
		T(test_window),
		T(test_stage_no_answer),
		T(test_stage_lost_in_between),
		T(test_grants_wait_for_quiet),
		T(test_fence_waits_for_quiet),
		T(test_grants_go_at_once),
		T(test_requests_need_ids),
		T(test_keys_of_unknown_grants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
