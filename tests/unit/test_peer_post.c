/* SPDX-License-Identifier: Apache-2.0 */
/* Posts to mailboxes of other agents: finding the connection, results, limits, losses. */
#include "tests/unit/peer_rig.h"

#define POSTS_MAX 512 /* as in post.c */

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* An agent that takes letters of others: it has no key, and is configured to accept that. */
static struct rig *open_rig(sd_event *e, uint8_t n, uint64_t incarnation)
{
	struct rig *r = rig_new(e, n, incarnation);

	r->cfg.peer.allow_insecure = true;
	return rig_started(r);
}

struct posted {
	unsigned done;
	struct dray_err err;
	bool own;
	dray_handle session;
	uint64_t request_id;
};

static void on_posted(void *arg, dray_handle session, uint64_t request_id,
		      const struct dray_err *err, const struct pmsg_post *own)
{
	struct posted *p = arg;

	p->done++;
	p->err = *err;
	p->own = own;
	p->session = session;
	p->request_id = request_id;
}

/* timeout in ms. Returns the error code of a post that is refused at once. */
static int post_as(struct rig *from, uint32_t uid, const char *segment, const char *name,
		   const char *text, int64_t timeout, struct posted *p)
{
	struct peer_post call = {
		.m = { .uid = uid,
		       .gid = 8,
		       .name = { name, (uint32_t)strlen(name) },
		       .payload = { (const uint8_t *)text, (uint32_t)strlen(text) } },
		.timeout_ns = timeout * MS,
		.done = on_posted,
		.arg = p,
		.session = 77,
		.request_id = 99,
	};
	struct dray_err err = DRAY_ERR_NULL;
	int r;

	*p = (struct posted){ 0 };
	snprintf(call.segment, sizeof(call.segment), "%s", segment);
	r = peer_post(from->peers, &call, &err);
	assert_int_equal(p->done, 0);
	assert_true((r < 0) == (err.code != 0));
	p->err = err;
	return err.code;
}

static int post(struct rig *from, const char *segment, struct posted *p)
{
	return post_as(from, 1000, segment, "engine-0", "blocks", RIG_DEADLINE, p);
}

static void wait_ok(sd_event *e, struct posted *p)
{
	assert_true(rig_until(e, p->done));
	if (p->err.code)
		fail_msg("%s", p->err.msg);
	assert_int_equal(p->done, 1);
}

static void test_post(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct rig_import i;
	struct posted p;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	assert_int_equal(p.session, 77);
	assert_int_equal(p.request_id, 99);
	assert_false(p.own);
	assert_int_equal(b->letters, 1);
	assert_int_equal(b->letter_uid, 1000);
	assert_memory_equal(b->letter_agent, a->agent_id, 16);
	assert_string_equal(b->letter_name, "engine-0");
	assert_string_equal(b->letter_payload, "blocks");
	/* the connection serves what follows */
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	rig_connect(a, b, &i);
	assert_int_equal(a->ups, 1);
	/* the owner's error, with where it comes from */
	b->letter_answer = DRAY_E_MAILBOX_FULL;
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.err.code, DRAY_E_MAILBOX_FULL);
	assert_non_null(strstr(p.err.msg, peers_segment(b->peers)));
	assert_non_null(strstr(p.err.msg, "refused by the test"));
	rig_kill(a);
	rig_kill(b);
}

/* Many posts at once share one attempt to connect. */
static void test_share_a_connection(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct rig_import i;
	struct posted p[20];

	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(post(a, peers_segment(b->peers), &p[k]), 0);
	rig_start_import(a, b, &i);
	for (unsigned k = 0; k < 20; k++)
		wait_ok(e, &p[k]);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, 0);
	assert_int_equal(b->letters, 20);
	assert_int_equal(a->ups, 1);
	assert_true(rig_until(e, rig_count(a) == 1));
	rig_kill(a);
	rig_kill(b);
}

/*
 * The agent is connected, but its segment was never reached from here: an attempt proves who is there, and the
 * connection that exists serves the post and those that follow.
 */
static void test_known_agent(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct rig_import i;
	char other[64];
	struct posted p;
	unsigned refused;

	rig_connect(b, a, &i);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_int_equal(rig_count(a), 2);
	wait_ok(e, &p);
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->ups, 1);
	assert_true(rig_until(e, rig_count(a) == 1 && rig_count(b) == 1));
	/* now it is known, so nothing connects again */
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_int_equal(rig_count(a), 1);
	wait_ok(e, &p);
	/* another address of the same agent */
	snprintf(other, sizeof(other), "localhost%s", strrchr(peers_segment(b->peers), ':'));
	refused = (unsigned)peers_totals(b->peers).incoming_refused;
	assert_int_equal(post(a, other, &p), 0);
	wait_ok(e, &p);
	assert_true(rig_until(e, peers_totals(b->peers).incoming_refused > refused));
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->letters, 3);
	rig_kill(a);
	rig_kill(b);
}

/* The address is one of this agent itself. */
static void test_own_address(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	char other[64];
	struct posted p;

	snprintf(other, sizeof(other), "localhost%s", strrchr(peers_segment(a->peers), ':'));
	assert_int_equal(post(a, other, &p), 0);
	wait_ok(e, &p);
	assert_true(p.own);
	assert_int_equal(a->letters, 0);
	assert_true(rig_until(e, rig_count(a) == 0));
	rig_kill(a);
}

static void test_bad_segments(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct posted p;

	assert_int_equal(post(a, "no segment", &p), DRAY_E_INVALID);
	assert_int_equal(post(a, "[fe80::1]:7411", &p), DRAY_E_INVALID);
	assert_int_equal(post(a, "some.host.example:7411", &p), DRAY_E_PEER_UNREACHABLE);
	/* without a key, any host beyond loopback could answer */
	assert_int_equal(post(a, "192.0.2.1:7411", &p), DRAY_E_PEER_DENIED);
	assert_non_null(strstr(p.err.msg, "peer.key_file"));
	assert_int_equal(rig_count(a), 0);
	rig_kill(a);
}

/* Without a key, an agent takes no letters of others. */
static void test_no_key(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct posted p;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.err.code, DRAY_E_DENIED);
	assert_non_null(strstr(p.err.msg, "peer.key_file"));
	assert_int_equal(b->letters, 0);
	rig_kill(a);
	rig_kill(b);
}

/* An address that refuses fails at once without a limit, and is tried again within one. */
static void test_refused(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct posted p, q;
	char segment[64];
	int64_t began;

	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	began = rig_now();
	assert_int_equal(post_as(a, 1, segment, "x", "", 0, &p), 0);
	assert_int_equal(post_as(a, 1, segment, "x", "", 200, &q), 0);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_true(rig_now() - began < 5000 * MS);
	assert_int_equal(q.done, 0);
	assert_true(rig_until(e, q.done));
	assert_int_equal(q.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_true(rig_now() - began >= 200 * MS);
	/* nothing is left of the attempt */
	assert_true(rig_until(e, rig_count(a) == 0));
	rig_kill(a);
}

static void test_starts_late(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	char segment[64];
	struct posted p;

	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	assert_int_equal(post(a, segment, &p), 0);
	rig_for(e, 50);
	assert_int_equal(p.done, 0);
	b = rig_new(e, 2, 21);
	b->cfg.peer.allow_insecure = true;
	b->cfg.peer.listen = (struct dray_strv){ (char *[]){ segment }, 1 };
	rig_started(b);
	wait_ok(e, &p);
	assert_int_equal(b->letters, 1);
	rig_kill(a);
	rig_kill(b);
}

/* A peer of a version without mailboxes is not sent a post. */
static void test_old_peer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct rig_import i;
	struct posted p;

	rig_connect(a, b, &i);
	dray_list_for_each(&a->peers->all, peer, struct peer, all_link)
		peer->features &= ~(uint64_t)PMSG_FEATURE_MAILBOX;
	assert_int_equal(post(a, peers_segment(b->peers), &p), DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(p.err.msg, "1.4"));
	rig_kill(a);
	rig_kill(b);
}

static void test_draining(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct posted p;

	peers_drain(b->peers, 1000);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.err.code, DRAY_E_DRAINING);
	assert_int_equal(b->letters, 0);
	peers_resume(b->peers);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	rig_kill(a);
	rig_kill(b);
}

/* The agent dies: a post that was sent may have been delivered, and says so. */
static void test_lost(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct posted p;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	rig_kill(b);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.done, 1);
	assert_int_equal(p.err.code, DRAY_E_PEER_LOST);
	assert_non_null(strstr(p.err.msg, "may have been delivered"));
	rig_kill(a);
}

/* A post crosses the BYE of an idle agent: it is sent again over a new connection, and delivered once. */
static void test_crosses_bye(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct posted p;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	dray_list_for_each(&b->peers->all, peer, struct peer, all_link)
		peer_event_why(peer, PEER_EVENT_CLOSE, dray_err_of(DRAY_OK, "not in use"));
	wait_ok(e, &p);
	assert_int_equal(b->letters, 2);
	assert_int_equal(a->ups, 2);
	rig_kill(a);
	rig_kill(b);
}

/* A peer that takes messages and does not answer: the post ends at its limit, a late answer changes nothing. */
static void test_no_answer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet x;
	struct posted p;

	puppet_dial(&x, a);
	{
		struct pmsg_hello h = puppet_hello(9, 90);
		uint8_t buf[512];

		h.features |= PMSG_FEATURE_MAILBOX;
		conn_send(x.conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	}
	assert_true(rig_until(e, puppet_got(&x, PMSG_READY)));
	/* as if an attempt had found it there */
	dray_list_for_each(&a->peers->all, peer, struct peer, all_link)
		peer_set_reached(peer, "127.0.0.1:9");
	assert_int_equal(post_as(a, 1, "127.0.0.1:9", "x", "", 100, &p), 0);
	assert_true(rig_until(e, p.done));
	assert_int_equal(p.err.code, DRAY_E_TIMEOUT);
	assert_non_null(strstr(p.err.msg, "may have been delivered"));
	assert_true(rig_until(e, puppet_got(&x, PMSG_POST)));
	{
		uint8_t buf[64];

		conn_send(x.conn, buf,
			  (size_t)pmsg_body_encode(PMSG_POST_REPLY, buf, sizeof(buf),
						   puppet_id_of(&x, PMSG_POST), NULL));
	}
	rig_for(e, 50);
	assert_int_equal(p.done, 1);
	assert_int_equal(rig_ready(a), 1);
	puppet_end(&x);
	rig_kill(a);
}

/* Clients of one uid cannot take all places, whether the agent is connected or not. */
static void test_flood(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	static struct posted p[2 * POSTS_MAX];
	const char *segment = peers_segment(b->peers);
	unsigned n = 0, other = 0;
	struct posted refused;

	for (unsigned round = 0; round < 2; round++) {
		unsigned before = b->letters;

		n = 0;
		while (!post_as(a, 1, segment, "x", "", RIG_DEADLINE, &p[n]))
			n++;
		assert_int_equal(p[n].err.code, DRAY_E_BUSY);
		assert_int_equal(n, POSTS_MAX / 2);
		other = n;
		while (!post_as(a, 2, segment, "x", "", RIG_DEADLINE, &p[other]))
			other++;
		assert_int_equal(other - n, POSTS_MAX / 4);
		assert_int_equal(post_as(a, 1, segment, "x", "", RIG_DEADLINE, &refused),
				 DRAY_E_BUSY);
		for (unsigned k = 0; k < other; k++)
			wait_ok(e, &p[k]);
		assert_int_equal(b->letters - before, other);
	}
	rig_kill(a);
	rig_kill(b);
}

/* Posts to many segments where nobody answers leave places for other peers. */
static void test_many_segments(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	static struct posted p[32], q;
	char segment[32];
	unsigned n = 0, other;

	/* limits.peers is 32, so there are 8 places */
	for (;; n++) {
		snprintf(segment, sizeof(segment), "127.0.0.1:%u", n + 1);
		if (post_as(a, 1, segment, "x", "", RIG_DEADLINE, &p[n]))
			break;
	}
	assert_int_equal(p[n].err.code, DRAY_E_BUSY);
	assert_int_equal(n, 4);
	for (other = n;; other++) {
		snprintf(segment, sizeof(segment), "127.0.0.1:%u", other + 1);
		if (post_as(a, 2, segment, "x", "", RIG_DEADLINE, &p[other]))
			break;
	}
	assert_int_equal(other - n, 2);
	/* another post to a segment that is being tried needs no further place */
	assert_int_equal(post_as(a, 1, "127.0.0.1:1", "x", "", RIG_DEADLINE, &q), 0);
	assert_int_equal(post_as(a, 3, peers_segment(b->peers), "x", "", RIG_DEADLINE, &q), 0);
	wait_ok(e, &q);
	rig_kill(a);
	rig_kill(b);
}

static void count(void *arg)
{
	(*(unsigned *)arg)++;
}

static void test_stop(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	unsigned stopped = 0;
	struct posted p, q;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_int_equal(post(a, "127.0.0.1:1", &q), 0);
	peers_stop(a->peers, count, &stopped);
	assert_true(rig_until(e, p.done && q.done && stopped));
	assert_int_equal(p.done, 1);
	assert_int_not_equal(p.err.code, 0);
	assert_int_not_equal(q.err.code, 0);
	assert_int_equal(post(a, peers_segment(b->peers), &q), DRAY_E_DRAINING);
	rig_kill(a);
	rig_kill(b);
}

/* An agent may end with posts in flight. */
static void test_killed(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = open_rig(e, 2, 20);
	struct posted p, q;

	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	wait_ok(e, &p);
	assert_int_equal(post(a, peers_segment(b->peers), &p), 0);
	assert_int_equal(post(a, "127.0.0.1:1", &q), 0);
	rig_kill(a);
	assert_int_equal(p.done, 0);
	assert_int_equal(q.done, 0);
	rig_kill(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_post),          cmocka_unit_test(test_share_a_connection),
		cmocka_unit_test(test_known_agent),   cmocka_unit_test(test_own_address),
		cmocka_unit_test(test_bad_segments),  cmocka_unit_test(test_no_key),
		cmocka_unit_test(test_refused),       cmocka_unit_test(test_starts_late),
		cmocka_unit_test(test_old_peer),      cmocka_unit_test(test_draining),
		cmocka_unit_test(test_lost),          cmocka_unit_test(test_crosses_bye),
		cmocka_unit_test(test_no_answer),     cmocka_unit_test(test_flood),
		cmocka_unit_test(test_many_segments), cmocka_unit_test(test_stop),
		cmocka_unit_test(test_killed),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
