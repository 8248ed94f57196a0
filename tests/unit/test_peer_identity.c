/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of peers: keys, restarts, two agents with one id, simultaneous connects, silence, and
 * peers that break the protocol.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/peer_rig.h"

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* --- keys ----------------------------------------------------------------------------------------- */

static void write_key(const char *path, const char *key)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, key, strlen(key)), strlen(key));
	close(fd);
}

static struct rig *start_with_key(sd_event *e, uint8_t n, char *path)
{
	struct rig *rig = rig_new(e, n, 10);

	rig->cfg.peer.key_file = path;
	return rig_started(rig);
}

static void test_keys(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	char dir[] = "/tmp/dray-peer-XXXXXX", one[64], other[64];
	struct rig *a, *b, *c, *d;
	struct rig_import i;
	int64_t began;

	assert_non_null(mkdtemp(dir));
	snprintf(one, sizeof(one), "%s/one", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	write_key(one, "00112233445566778899aabbccddeeff\n");
	write_key(other, "00112233445566778899aabbccddeefe\n");
	a = start_with_key(e, 1, one);
	b = start_with_key(e, 2, one);
	c = start_with_key(e, 3, other);
	d = rig_start(e, 4, 10);

	rig_connect(a, b, &i);
	/* wrong and missing keys are refused at once, without retries until the timeout */
	began = rig_now();
	rig_start_import(a, c, &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	/* the log has the cause, and not the client */
	assert_null(strstr(i.err.msg, "TLS"));
	rig_start_import(a, d, &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	rig_start_import(d, a, &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	rig_in_time(rig_now() - began < 1000 * MS);
	assert_true(rig_until(e, peers_totals(a->peers).incoming_refused == 1));
	assert_int_equal(rig_count(c), 0);
	assert_int_equal(rig_ready(a), 1);

	rig_kill(a);
	rig_kill(b);
	rig_kill(c);
	rig_kill(d);
	unlink(one);
	unlink(other);
	rmdir(dir);
}

/* --- simultaneous connects ------------------------------------------------------------------------ */

static void both_at_once(uint8_t first, uint8_t second, unsigned turns_between)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, first, 10), *b = rig_start(e, second, 20);
	struct rig_import i, j;

	rig_start_import(a, b, &i);
	for (unsigned k = 0; k < turns_between; k++)
		sd_event_run(e, 0);
	rig_start_import(b, a, &j);
	assert_true(rig_until(e, i.done && j.done));
	if (i.err.code || j.err.code)
		fail_msg("%u turns: %s / %s", turns_between, i.err.msg, j.err.msg);
	/* one connection, the same on both sides, and no loss */
	rig_for(e, 60);
	assert_int_equal(rig_count(a), 1);
	assert_int_equal(rig_count(b), 1);
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->ups, 1);
	assert_int_equal(a->lost + b->lost, 0);
	assert_memory_equal(a->link->stream_key, b->link->stream_key, STREAM_KEY_SIZE);
	rig_kill(a);
	rig_kill(b);
}

static void test_both_at_once(void **state)
{
	/* for each progress of the first agent when the second one starts */
	for (unsigned turns = 0; turns < 24; turns++) {
		both_at_once(1, 2, turns);
		both_at_once(2, 1, turns);
	}
}

/* --- restarts ------------------------------------------------------------------------------------- */

static struct rig *start_at(sd_event *e, uint8_t n, uint64_t incarnation, char *segment)
{
	struct rig *rig = rig_new(e, n, incarnation);
	char *listen[] = { segment };

	rig->cfg.peer.listen = (struct dray_strv){ listen, 1 };
	return rig_started(rig);
}

static void test_restart(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token old = rig_token(b);
	struct rig_import i, j;
	char segment[64];
	int64_t began;

	rig_connect(a, b, &i);
	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	began = rig_now();
	rig_kill(b);
	assert_true(rig_until(e, a->lost));
	/* the connection reports it, not a heartbeat limit */
	rig_in_time(rig_now() - began < 100 * MS);
	assert_int_equal(a->lost_code, DRAY_E_PEER_LOST);
	assert_int_equal(a->lost_peer, i.peer);
	assert_int_equal(a->gone, 1);
	assert_true(rig_until(e, a->downs_done == 1));

	b = start_at(e, 2, 21, segment);
	rig_connect(a, b, &j);
	assert_int_not_equal(i.peer, j.peer);
	/* a token of the old incarnation */
	assert_true(rig_import_token(a, &old, segment, RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_INCARNATION);
	rig_kill(a);
	rig_kill(b);
}

static void test_old_token_alone(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	struct rig_import i;

	t.incarnation = 19;
	assert_int_equal(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_INCARNATION);
	rig_kill(a);
	rig_kill(b);
}

/* The peer died silently, and its successor connects while the old connection still looks alive. */
static void test_successor_of_a_silent_peer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10);
	struct pmsg_hello h = puppet_hello(5, 50);
	struct puppet old, new;
	uint8_t buf[512];
	int64_t began;

	/* it announces a long heartbeat interval, so that its silence alone proves nothing */
	h.heartbeat_ms = 10000;
	puppet_dial(&old, a);
	conn_send(old.conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	assert_true(rig_until(e, a->ups == 1));
	began = rig_now();
	puppet_dial(&new, a);
	puppet_say_hello(&new, 5, 51);
	/* the old connection gets its time to answer, and does not answer */
	assert_true(rig_until(e, puppet_got(&new, PMSG_READY)));
	assert_true(rig_now() - began >= 100 * MS);
	assert_int_equal(a->lost, 1);
	assert_int_equal(a->lost_code, DRAY_E_INCARNATION);
	assert_int_equal(a->ups, 2);
	assert_int_equal(a->link->peer_incarnation, 51);
	puppet_end(&old);
	puppet_end(&new);
	rig_kill(a);
}

/* The same, but the old connection is reset, so there is no wait. */
static void test_successor_of_a_dead_peer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet old, new;
	int64_t began;

	puppet_join(&old, a, 5, 50);
	puppet_dial(&new, a);
	puppet_say_hello(&new, 5, 51);
	began = rig_now();
	assert_true(rig_until(e, puppet_got(&old, PMSG_STREAM_RESET)));
	puppet_end(&old);
	assert_true(rig_until(e, puppet_got(&new, PMSG_READY)));
	rig_in_time(rig_now() - began < 100 * MS);
	assert_int_equal(a->lost_code, DRAY_E_INCARNATION);
	puppet_end(&new);
	rig_kill(a);
}

/* --- two agents with one id ----------------------------------------------------------------------- */

static void rival(uint64_t incarnation, uint32_t expect)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 5, 50);
	struct rig_import i;
	struct puppet p;

	rig_connect(b, a, &i);
	puppet_dial(&p, a);
	puppet_say_hello(&p, 5, incarnation);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, expect);
	assert_false(puppet_got(&p, PMSG_READY));
	/* the first one keeps its connection */
	assert_int_equal(a->lost, 0);
	assert_int_equal(rig_ready(a), 1);
	assert_int_equal(rig_ready(b), 1);
	assert_int_equal(a->link->peer_incarnation, 50);
	puppet_end(&p);
	rig_kill(a);
	rig_kill(b);
}

static void test_two_agents_with_one_id(void **state)
{
	rival(51, DRAY_E_IDENTITY);
	rival(49, DRAY_E_IDENTITY);
	rival(50, DRAY_E_EXISTS);
}

static void test_many_agents_with_one_id(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet p[6];
	unsigned ready = 0;

	puppet_join(&p[0], a, 5, 50);
	for (unsigned k = 1; k < 6; k++) {
		puppet_dial(&p[k], a);
		puppet_say_hello(&p[k], 5, 50 + k);
	}
	assert_true(rig_until(e, puppet_got(&p[0], PMSG_STREAM_RESET)));
	puppet_end(&p[0]);
	rig_for(e, 100);
	for (unsigned k = 1; k < 6; k++)
		ready += puppet_got(&p[k], PMSG_READY);
	assert_int_equal(ready, 1);
	assert_int_equal(rig_ready(a), 1);
	for (unsigned k = 1; k < 6; k++)
		puppet_end(&p[k]);
	assert_true(rig_until(e, rig_count(a) == 0));
	rig_kill(a);
}

static void test_our_own_id(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *twin = rig_start(e, 1, 11);
	struct rig_import i;
	struct pmsg_token t = rig_token(a);
	struct puppet p;

	puppet_dial(&p, a);
	puppet_say_hello(&p, 1, 11);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, DRAY_E_IDENTITY);
	puppet_end(&p);
	puppet_dial(&p, a);
	puppet_say_hello(&p, 1, 10);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, DRAY_E_PEER_UNREACHABLE);
	puppet_end(&p);
	/* a token that leads to this agent, and one that leads to another agent with its id */
	t.agent_id[15] = 9;
	assert_int_equal(rig_import_token(a, &t, peers_segment(a->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(i.err.msg, "itself"));
	assert_int_equal(rig_import_token(a, &t, peers_segment(twin->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_IDENTITY);
	rig_kill(a);
	rig_kill(twin);
}

/* Forged tokens must not disturb the peer whose segment they name. */
static void test_forged_tokens(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;
	struct pmsg_token t;

	rig_connect(a, b, &i);
	t = rig_token(b);
	t.agent_id[15] = 77;
	assert_int_equal(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(i.err.msg, "another agent"));
	t = rig_token(b);
	t.incarnation = 21;
	assert_int_equal(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_TOKEN_INVALID);
	/* the right id at a dead segment does not block the right segment */
	assert_int_equal(rig_import_token(a, &t, "127.0.0.1:1", RIG_DEADLINE, &i), 0);
	rig_for(e, 100);
	assert_int_equal(a->lost + b->lost, 0);
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->ups, 1);
	peer_import_cancel(a->peers, i.id);
	assert_true(rig_until(e, rig_count(a) == 1));
	rig_kill(a);
	rig_kill(b);
}

static void test_two_segments_one_agent(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	struct rig_import i, j;

	/* the first does not answer; the second connection serves both */
	assert_int_equal(rig_import_token(a, &t, "127.0.0.1:1", RIG_DEADLINE, &i), 0);
	rig_for(e, 20);
	assert_int_equal(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &j), 0);
	assert_true(rig_until(e, i.done && j.done));
	assert_int_equal(i.err.code, 0);
	assert_int_equal(j.err.code, 0);
	assert_true(rig_until(e, rig_count(a) == 1));
	rig_kill(a);
	rig_kill(b);
}

/* --- silence -------------------------------------------------------------------------------------- */

static void test_heartbeats(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10), *b = rig_start_prompt(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	rig_for(e, 700);
	rig_in_time(a->lost + b->lost == 0 && rig_ready(a) == 1);
	rig_kill(a);
	rig_kill(b);
}

static void test_silent_peer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10);
	struct puppet p;
	int64_t began;

	puppet_join(&p, a, 5, 50);
	assert_true(rig_until(e, a->ups));
	began = rig_now();
	assert_true(rig_until(e, a->lost));
	assert_true(rig_now() - began >= 150 * MS);
	rig_in_time(rig_now() - began < 350 * MS);
	assert_int_equal(a->lost_code, DRAY_E_PEER_LOST);
	assert_non_null(strstr(a->lost_why, "silent"));
	assert_true(rig_until(e, p.failed));
	assert_true(puppet_got(&p, PMSG_BYE));
	assert_int_equal(peers_totals(a->peers).lost, 1);
	puppet_end(&p);
	rig_kill(a);
}

/* A peer that announces a longer heartbeat interval is not lost by our own, shorter limit. */
static void test_long_heartbeat_interval(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10);
	struct pmsg_hello h = puppet_hello(5, 50);
	uint8_t buf[512];
	struct puppet p;

	h.heartbeat_ms = 200;
	puppet_dial(&p, a);
	conn_send(p.conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	assert_true(rig_until(e, puppet_got(&p, PMSG_READY)));
	rig_for(e, 450);
	rig_in_time(!a->lost);
	assert_true(rig_until(e, a->lost));
	puppet_end(&p);
	rig_kill(a);
}

/* --- violations of the protocol ------------------------------------------------------------------- */

static void test_versions(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_hello h = puppet_hello(5, 50);
	uint8_t buf[512];
	struct puppet p;

	h.major_min = 2;
	h.major_max = 3;
	puppet_dial(&p, a);
	conn_send(p.conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, DRAY_E_VERSION);
	puppet_end(&p);
	/* a range that contains our version is accepted */
	h.major_min = 1;
	puppet_dial(&p, a);
	conn_send(p.conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	assert_true(rig_until(e, puppet_got(&p, PMSG_READY)));
	puppet_end(&p);
	rig_kill(a);
}

static void test_before_hello(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet p;

	puppet_dial(&p, a);
	puppet_say(&p, import, 1, { .token_id = TOKEN_GOOD });
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, DRAY_E_OUT_OF_ORDER);
	assert_int_equal(a->grants_held, 0);
	puppet_end(&p);
	/* and a second HELLO */
	puppet_join(&p, a, 5, 50);
	puppet_say_hello(&p, 5, 50);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(p.error, DRAY_E_OUT_OF_ORDER);
	assert_int_equal(a->lost, 1);
	puppet_end(&p);
	rig_kill(a);
}

static void test_answers_without_a_request(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet p;

	puppet_join(&p, a, 5, 50);
	puppet_say(&p, import_reply, 77, { .grant = 9, .length = 1 });
	/* the agent takes it for a late answer, and releases the grant */
	assert_true(rig_until(e, puppet_got(&p, PMSG_RELEASE)));
	puppet_say(&p, fence_ack, 78, {});
	puppet_say(&p, notify_reply, 79, {});
	puppet_say(&p, stream_reset_reply, 80, {});
	puppet_say(&p, error, 81, { .code = DRAY_E_QUOTA });
	puppet_say(&p, fence, 5, { .grant = 1, .code = DRAY_E_REVOKED });
	assert_true(rig_until(e, puppet_got(&p, PMSG_FENCE_ACK)));
	assert_int_equal(a->fenced, 0);
	assert_int_equal(a->lost, 0);
	/* requests without an id cannot be answered */
	puppet_say(&p, fence, 0, { .grant = 1, .code = DRAY_E_REVOKED });
	assert_true(rig_until(e, p.failed));
	assert_int_equal(a->lost, 1);
	puppet_end(&p);
	rig_kill(a);
}

static void test_unknown_type(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_header h = { PMSG_MAGIC, PMSG_MAJOR, 9, 0x0077, 0, 0, 42 };
	uint8_t buf[PMSG_HEADER_SIZE];
	struct puppet p;

	puppet_join(&p, a, 5, 50);
	pmsg_header_put(buf, &h);
	conn_send(p.conn, buf, sizeof(buf));
	assert_true(rig_until(e, puppet_got(&p, PMSG_ERROR)));
	assert_int_equal(p.error, DRAY_E_UNKNOWN_TYPE);
	assert_int_equal(puppet_id_of(&p, PMSG_ERROR), 42);
	assert_int_equal(a->lost, 0);
	/* but messages with an unknown flag or a wrong magic number are refused */
	h.flags = 1;
	pmsg_header_put(buf, &h);
	conn_send(p.conn, buf, sizeof(buf));
	assert_true(rig_until(e, p.failed));
	assert_int_equal(a->lost, 1);
	puppet_end(&p);
	rig_kill(a);
}

/*
 * A peer that sends requests and never reads the answers is disconnected before it fills our
 * memory.
 */
static void test_does_not_read(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	static uint8_t requests[600][PMSG_HEADER_SIZE];
	struct puppet p;
	int small = 4096;
	int64_t began;
	size_t done;

	puppet_dial(&p, a);
	assert_int_equal(setsockopt(p.conn->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	puppet_say_hello(&p, 5, 50);
	assert_true(rig_until(e, puppet_got(&p, PMSG_READY)));
	/* it writes, but its loop does not read */
	sd_event_source_set_enabled(p.conn->io, SD_EVENT_OFF);
	for (size_t k = 0; k < DRAY_ARRAY_SIZE(requests); k++)
		pmsg_header_put(requests[k], &(struct pmsg_header){ PMSG_MAGIC, PMSG_MAJOR, 0,
								    0x0077, 0, 0, k + 1 });
	began = rig_now();
	while (!a->lost && rig_now() - began < RIG_LIMIT * MS)
		if (tls_write(&p.conn->tls, requests, sizeof(requests), &done, NULL) != 0)
			rig_turn(e);
	assert_int_equal(a->lost, 1);
	assert_non_null(strstr(a->lost_why, "does not read"));
	puppet_end(&p);
	rig_kill(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		rig_timed_test(test_keys),
		cmocka_unit_test(test_both_at_once),
		rig_timed_test(test_restart),
		cmocka_unit_test(test_old_token_alone),
		cmocka_unit_test(test_successor_of_a_silent_peer),
		rig_timed_test(test_successor_of_a_dead_peer),
		cmocka_unit_test(test_two_agents_with_one_id),
		cmocka_unit_test(test_many_agents_with_one_id),
		cmocka_unit_test(test_our_own_id),
		cmocka_unit_test(test_forged_tokens),
		cmocka_unit_test(test_two_segments_one_agent),
		rig_timed_test(test_heartbeats),
		rig_timed_test(test_silent_peer),
		rig_timed_test(test_long_heartbeat_interval),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_before_hello),
		cmocka_unit_test(test_answers_without_a_request),
		cmocka_unit_test(test_unknown_type),
		cmocka_unit_test(test_does_not_read),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
