/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners: their addresses, the segment that they advertise, and connections that have not
 * authenticated.
 */
#include <sys/resource.h>

#include "tests/unit/peer_rig.h"

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* --- configuration -------------------------------------------------------------------------------- */

struct listening {
	int r;
	struct dray_err err;
	char segment[SEGMENT_MAX + 1];
	unsigned n;
};

static struct listening try(const char *one, const char *two, bool insecure, const char *advertise)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *rig = rig_new(e, 1, 10);
	struct listening l = { .err = DRAY_ERR_NULL };
	char a[128], b[128], *list[] = { a, b }, said[128];

	snprintf(a, sizeof(a), "%s", one ? one : "");
	snprintf(b, sizeof(b), "%s", two ? two : "");
	snprintf(said, sizeof(said), "%s", advertise);
	rig->cfg.peer.listen = (struct dray_strv){ list, (size_t)(one != NULL) + (two != NULL) };
	rig->cfg.peer.allow_insecure = insecure;
	rig->cfg.peer.advertise = said;
	l.r = rig_try_start(rig, &l.err);
	if (l.r == 0) {
		snprintf(l.segment, sizeof(l.segment), "%s", peers_segment(rig->peers));
		dray_list_for_each(&rig->peers->listeners.list, x, struct tcp_listener, link)
			l.n++;
	}
	rig_kill(rig);
	return l;
}

static void test_listen(void **state)
{
	struct listening l = try("127.0.0.1:0", "[::1]:0", false, "");

	assert_int_equal(l.r, 0);
	assert_int_equal(l.n, 2);
	assert_int_equal(strncmp(l.segment, "127.0.0.1:", 10), 0);
	assert_true(dray_endpoint_valid(l.segment));

	l = try("[::1]:0", NULL, false, "");
	assert_int_equal(strncmp(l.segment, "[::1]:", 6), 0);
	l = try("localhost:0", NULL, false, "");
	assert_int_equal(strncmp(l.segment, "127.0.0.1:", 10), 0);
	l = try("none", NULL, false, "");
	assert_int_equal(l.r, 0);
	assert_int_equal(l.n, 0);
	assert_string_equal(l.segment, "");
	l = try("127.0.0.1:0", NULL, false, "pod.example:7411");
	assert_string_equal(l.segment, "pod.example:7411");
}

static void test_listen_wildcard(void **state)
{
	struct listening l = try("0.0.0.0:0", "[::]:0", true, "");
	struct dray_addr a;

	/*
	 * one port for both families, and an address that other hosts can reach; loopback if there
	 * is none
	 */
	assert_int_equal(l.r, 0);
	assert_int_equal(l.n, 2);
	assert_true(dray_endpoint_valid(l.segment));
	assert_int_equal(dray_addr_parse(l.segment, &a), 0);
	assert_false(dray_addr_is_wildcard(&a));
}

static void test_listen_refused(void **state)
{
	struct listening l = try("0.0.0.0:0", NULL, false, "");

	assert_true(l.r < 0);
	assert_int_equal(l.err.code, DRAY_E_DENIED);
	/* the message names both remedies */
	assert_non_null(strstr(l.err.msg, "peer.key_file"));
	assert_non_null(strstr(l.err.msg, "peer.allow_insecure"));
	l = try("[::]:0", NULL, false, "");
	assert_int_equal(l.err.code, DRAY_E_DENIED);
	l = try("pod.example:7411", NULL, false, "");
	assert_non_null(strstr(l.err.msg, "peer.listen"));
	assert_non_null(strstr(l.err.msg, "name"));
	l = try("7411", NULL, false, "");
	assert_true(l.r < 0);
	l = try("none", "127.0.0.1:0", false, "");
	assert_true(l.r < 0);
	l = try("203.0.113.9:0", NULL, true, "");
	assert_int_equal(l.err.code, DRAY_E_IO);
	l = try("127.0.0.1:0", NULL, false, "0.0.0.0:7411");
	assert_non_null(strstr(l.err.msg, "peer.advertise"));
	l = try("127.0.0.1:0", NULL, false, "x");
	assert_non_null(strstr(l.err.msg, "peer.advertise"));
}

static void test_port_taken(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *rig = rig_start(e, 1, 10);
	struct listening l = try(peers_segment(rig->peers), NULL, false, "");

	assert_true(l.r < 0);
	assert_non_null(strstr(l.err.msg, peers_segment(rig->peers)));
	rig_kill(rig);
}

static int passed_socket(bool listening)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	if (listening)
		assert_int_equal(listen(fd, 10), 0);
	return fd;
}

static void test_passed_sockets(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_new(e, 1, 10), *b = rig_start(e, 2, 20), *c = rig_new(e, 3, 30);
	int fds[2] = { passed_socket(true), passed_socket(true) };
	struct dray_err err = DRAY_ERR_NULL;
	struct rig_import i;

	a->deps.listen_fds = fds;
	a->deps.n_listen_fds = 2;
	rig_started(a);
	rig_connect(b, a, &i);
	rig_kill(a);
	rig_kill(b);

	fds[0] = passed_socket(true);
	fds[1] = passed_socket(false);
	c->deps.listen_fds = fds;
	c->deps.n_listen_fds = 2;
	assert_true(rig_try_start(c, &err) < 0);
	/* consumed nevertheless */
	assert_true(close(fds[0]) < 0 && close(fds[1]) < 0);
	rig_kill(c);
}

static void test_no_listener(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_new(e, 1, 10), *b = rig_start(e, 2, 20);
	char none[] = "none", *list[] = { none };
	struct rig_import i;

	a->cfg.peer.listen = (struct dray_strv){ list, 1 };
	rig_started(a);
	rig_connect(a, b, &i);
	/* no address to connect to */
	assert_int_equal(b->link->addr.len, 0);
	rig_kill(a);
	rig_kill(b);
}

/* --- connections that have not authenticated ------------------------------------------------------ */

static int dial(struct rig *rig)
{
	struct dray_addr a;
	int fd;

	assert_int_equal(dray_addr_parse(peers_segment(rig->peers), &a), 0);
	fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, &a.sa, a.len), 0);
	return fd;
}

static bool is_closed(int fd)
{
	char c;
	ssize_t n;

	do
		n = recv(fd, &c, 1, MSG_DONTWAIT);
	while (n > 0);
	return n == 0 || errno == ECONNRESET;
}

static void test_garbage(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10), *b = rig_start(e, 2, 20);
	static const char *const garbage[] = {
		"GET / HTTP/1.0\r\n\r\n",
		"\x16", /* the beginning of a TLS record, and nothing more */
		"\x16\x03\x01\xff\xff garbage",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"S", /* the beginning of a data stream */
		"SRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRADSRAD",
		"DRAS",
		"\xff\xff",
	};
	int fd[DRAY_ARRAY_SIZE(garbage)];
	struct rig_import i;
	int64_t began = rig_now();
	unsigned closed;

	for (size_t k = 0; k < DRAY_ARRAY_SIZE(garbage); k++) {
		fd[k] = dial(a);
		assert_true(send(fd[k], garbage[k], strlen(garbage[k]), MSG_NOSIGNAL) > 0);
	}
	/* meanwhile the agent serves others */
	rig_connect(b, a, &i);
	do {
		rig_turn(e);
		closed = 0;
		for (size_t k = 0; k < DRAY_ARRAY_SIZE(garbage); k++)
			closed += is_closed(fd[k]);
	} while (closed < DRAY_ARRAY_SIZE(garbage) && rig_now() - began < RIG_LIMIT * MS);
	assert_int_equal(closed, DRAY_ARRAY_SIZE(garbage));
	/* slow connections are closed after peer.connect_timeout */
	rig_in_time(rig_now() - began < 1500 * MS);
	assert_int_equal(peers_totals(a->peers).incoming_refused, DRAY_ARRAY_SIZE(garbage));
	assert_int_equal(a->peers->n_incoming, 0);
	assert_int_equal(rig_ready(a), 1);
	for (size_t k = 0; k < DRAY_ARRAY_SIZE(garbage); k++)
		close(fd[k]);
	rig_kill(a);
	rig_kill(b);
}

static void test_silent_connection(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10);
	int fd = dial(a), gone = dial(a);
	int64_t began = rig_now();

	close(gone);
	assert_true(rig_until(e, is_closed(fd)));
	assert_true(rig_now() - began >= 900 * MS);
	rig_in_time(rig_now() - began < 1300 * MS);
	assert_int_equal(a->peers->n_incoming, 0);
	close(fd);
	rig_kill(a);
}

/* The TLS handshake succeeds, but HELLO does not arrive. */
static void test_no_hello(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10);
	struct puppet p;

	puppet_dial(&p, a);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(rig_count(a), 0);
	puppet_end(&p);
	rig_kill(a);
}

static void test_flood(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	int fd[400];
	struct rig_import i;

	/* half of them silent, half with the beginning of a handshake */
	for (unsigned k = 0; k < DRAY_ARRAY_SIZE(fd); k++) {
		fd[k] = dial(a);
		if (k & 1)
			assert_true(send(fd[k], "\x16\x03\x01\x02", 4, MSG_NOSIGNAL) > 0);
		sd_event_run(e, 0);
		assert_true(a->peers->n_incoming <= 8);
		if (k == 200)
			rig_start_import(b, a, &i);
	}
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, 0);
	assert_true(peers_totals(a->peers).incoming_refused >= DRAY_ARRAY_SIZE(fd) - 9);
	for (unsigned k = 0; k < DRAY_ARRAY_SIZE(fd); k++)
		close(fd[k]);
	assert_true(rig_until(e, a->peers->n_incoming == 0));
	rig_kill(a);
	rig_kill(b);
}

/*
 * Without descriptors, accepting pauses instead of spinning, and continues when descriptors are
 * free again.
 */
static void test_no_descriptors(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct rlimit before, low;
	int fd[4], spare, turns = 0;
	int64_t end;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (unsigned k = 0; k < 4; k++)
		fd[k] = dial(a);
	spare = dup(0);
	close(spare);
	low = before;
	low.rlim_cur = (rlim_t)spare;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	end = rig_now() + 150 * MS;
	while (rig_now() < end) {
		sd_event_run(e, 20000);
		turns++;
	}
	assert_true(turns < 60);
	assert_int_equal(a->peers->n_incoming, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_true(rig_until(e, a->peers->n_incoming == 4));
	for (unsigned k = 0; k < 4; k++)
		close(fd[k]);
	rig_kill(a);
}

/* More peers than limits.peers: a typed error, and the other peers stay. */
static void test_too_many_peers(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_new(e, 1, 10);
	struct puppet p[3];

	a->cfg.limits.peers = 2;
	rig_started(a);
	puppet_join(&p[0], a, 5, 50);
	puppet_join(&p[1], a, 6, 50);
	puppet_dial(&p[2], a);
	puppet_say_hello(&p[2], 7, 50);
	assert_true(rig_until(e, p[2].failed));
	assert_int_equal(p[2].error, DRAY_E_QUOTA);
	for (unsigned k = 0; k < 3; k++)
		puppet_end(&p[k]);
	rig_kill(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_listen),         cmocka_unit_test(test_listen_wildcard),
		cmocka_unit_test(test_listen_refused), cmocka_unit_test(test_port_taken),
		cmocka_unit_test(test_passed_sockets), cmocka_unit_test(test_no_listener),
		rig_timed_test(test_garbage),          rig_timed_test(test_silent_connection),
		cmocka_unit_test(test_no_hello),       cmocka_unit_test(test_flood),
		cmocka_unit_test(test_no_descriptors), cmocka_unit_test(test_too_many_peers),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
