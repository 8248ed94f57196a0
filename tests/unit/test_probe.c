/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of probes, and probes of ports, pages and agents over real sockets. */
#include "tests/unit/peer_rig.h"

#include <sys/resource.h>

#include "agent/placement/net/resolver.h"
#include "tests/unit/probe_server.h"

/* --- targets -------------------------------------------------------------------------------------- */

static void test_targets(void **state)
{
	static const struct {
		const char *text, *host, *path;
		enum probe_kind kind;
		unsigned port;
	} good[] = {
		{ "tcp://10.0.0.1:50053", "10.0.0.1", "", PROBE_TCP, 50053 },
		{ "dray://[2001:db8::1]:7411", "2001:db8::1", "", PROBE_DRAY, 7411 },
		{ "mooncake://node-7.example:1", "node-7.example", "", PROBE_MOONCAKE, 1 },
		{ "http://10.0.0.1:65535", "10.0.0.1", "/", PROBE_HTTP, 65535 },
		{ "http://h:80/a/b?c=d&e=%20f", "h", "/a/b?c=d&e=%20f", PROBE_HTTP, 80 },
	};
	struct dray_err err = DRAY_ERR_NULL;
	char text[PROBE_TARGET_TEXT_MAX];
	struct probe_target t, u;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(good); i++) {
		assert_int_equal(probe_target_parse(good[i].text, &t, &err), 0);
		assert_int_equal(t.kind, good[i].kind);
		assert_string_equal(t.host, good[i].host);
		assert_string_equal(t.path, good[i].path);
		assert_int_equal(t.port, good[i].port);
		/* and back to text */
		probe_target_show(&t, text, sizeof(text));
		if (i != 3)
			assert_string_equal(text, good[i].text);
		assert_int_equal(probe_target_parse(text, &u, &err), 0);
		assert_true(probe_target_equal(&t, &u));
		u.port ^= 1;
		assert_false(probe_target_equal(&t, &u));
	}
	assert_int_equal(probe_target_of("[::1]:5", PROBE_TCP, &t, &err), 0);
	assert_string_equal(t.host, "::1");
	assert_int_equal(probe_target_of("h:5", PROBE_HTTP, &t, &err), 0);
	assert_string_equal(t.path, "/");
	assert_int_equal(err.code, 0);
}

static void test_bad_targets(void **state)
{
	static const char *const bad[] = {
		"",
		"10.0.0.1:5",
		"udp://10.0.0.1:5",
		"https://h:5/",
		"TCP://h:5",
		"tcp:/h:5",
		"tcp://",
		"tcp://h",
		"tcp://h:0",
		"tcp://h:65536",
		"tcp://h:05",
		"tcp://h:5 ",
		"tcp://h:5/",
		"dray://h:5/path",
		"tcp://user@h:5",
		"tcp://::1:5",
		"tcp://[::1]",
		"tcp://[fe80::1%eth0]:5",
		"tcp://1.2.3:5",
		"tcp://h_-:5",
		"http://h:5?x",
		"http://h/x",
		"http://h:5/a b",
		"http://h:5/a\r\nX: y",
		"http://h:5/a#b",
		"http://h:5/\xc3\xa9",
		"averylongkindthatthereisnot://h:5",
	};
	char text[700] = "http://h:5/";
	struct probe_target t = { .port = 4711 };
	struct dray_err err;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		err = DRAY_ERR_NULL;
		if (probe_target_parse(bad[i], &t, &err) != -EINVAL)
			fail_msg("taken: %s", bad[i]);
		assert_int_equal(err.code, DRAY_E_INVALID);
		assert_true(*err.msg);
	}
	/* the longest path, and a longer one; likewise for names */
	memset(text + 11, 'x', PROBE_PATH_MAX - 1);
	assert_int_equal(probe_target_parse(text, &t, &err), 0);
	assert_int_equal(strlen(t.path), PROBE_PATH_MAX);
	text[11 + PROBE_PATH_MAX - 1] = 'x';
	assert_int_equal(probe_target_parse(text, &t, &err), -EINVAL);
	memset(text, 'x', sizeof(text) - 1);
	memcpy(text, "tcp://", 6);
	memcpy(text + 300, ":5", 3);
	assert_int_equal(probe_target_parse(text, &t, &err), -EINVAL);
	/* a failure does not change the target */
	assert_int_equal(t.port, 5);
}

static void test_kinds(void **state)
{
	enum probe_kind k;

	for (unsigned i = 0; i < PROBE_KIND_N; i++) {
		assert_int_equal(probe_kind_parse(probe_kind_name((enum probe_kind)i), &k), 0);
		assert_int_equal(k, i);
	}
	assert_int_equal(probe_kind_parse("master", &k), -EINVAL);
	assert_string_equal(probe_kind_name(PROBE_KIND_N), "?");
}

/* --- ports ---------------------------------------------------------------------------------------- */

struct lab {
	sd_event *event;
	struct resolver *resolver;
	struct server v;
	struct probe_deps deps;
};

static void lab_start(struct lab *l)
{
	struct dray_err err = DRAY_ERR_NULL;

	memset(l, 0, sizeof(*l));
	l->event = server_loop();
	assert_int_equal(resolver_new(&l->resolver, l->event, &err), 0);
	l->deps = (struct probe_deps){ .event = l->event, .resolver = l->resolver };
	server_init(&l->v, l->event, "127.0.0.1:0");
}

static void lab_stop(struct lab *l)
{
	server_deinit(&l->v);
	resolver_free(l->resolver);
	sd_event_unref(l->event);
}

static void test_tcp(void **state)
{
	struct outcome o;
	struct lab l;

	lab_start(&l);
	outcome_of(&o, &l.deps, "tcp", l.v.where, "", 5000 * MS);
	assert_ready(&o);
	/* an orderly close, not a reset */
	assert_true(server_until(l.event, 5000, l.v.ended == 1));
	assert_int_equal(l.v.reset, 0);
	/* also if the process does not accept now, because the kernel accepts */
	server_ignore(&l.v, true);
	outcome_of(&o, &l.deps, "tcp", l.v.where, "", 5000 * MS);
	assert_ready(&o);
	server_shut(&l.v);
	outcome_of(&o, &l.deps, "tcp", l.v.where, "", 5000 * MS);
	assert_not_ready(&o, "refused");
	lab_stop(&l);
}

/* A listener with a full queue drops new connections. */
static void test_silence(void **state)
{
	struct outcome o, more[8];
	struct lab l;

	lab_start(&l);
	server_ignore(&l.v, true);
	assert_int_equal(listen(l.v.fd, 0), 0);
	for (unsigned i = 0; i < 8; i++)
		outcome_of(&more[i], &l.deps, "tcp", l.v.where, "", 100 * MS);
	outcome_of(&o, &l.deps, "tcp", l.v.where, "", 100 * MS);
	/* earlier connections were closed, but wait to be accepted */
	assert_not_ready(&o, "no connection within 1");
	assert_true(o.r.latency_ns >= 100 * MS);
	lab_stop(&l);
}

static void test_cancel(void **state)
{
	static const char *const kinds[] = { "tcp", "mooncake", "http" };
	char text[PROBE_TARGET_TEXT_MAX];
	struct outcome o;
	struct lab l;

	lab_start(&l);
	for (unsigned i = 0; i < 30; i++) {
		const char *kind = kinds[i % 3];

		snprintf(text, sizeof(text), "%s://localhost:%u", kind, dray_addr_port(&l.v.addr));
		assert_int_equal(outcome_begin(&o, &l.deps, text, 60000 * MS), 0);
		for (unsigned k = 0; k < i / 3 && !o.done; k++)
			assert_true(sd_event_run(l.event, 1000) >= 0);
		o.probe = probe_cancel(o.probe);
		assert_true(server_until(l.event, 5000, !l.v.open));
		assert_true(o.done == 0 || i % 3 == 0);
	}
	assert_null(probe_cancel(NULL));
	lab_stop(&l);
}

static void test_no_descriptors(void **state)
{
	struct rlimit before, few;
	struct outcome o;
	int fds[256];
	unsigned n = 0;
	struct lab l;

	lab_start(&l);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = DRAY_ARRAY_SIZE(fds);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while ((fds[n] = dup(0)) >= 0)
		n++;
	assert_true(outcome_begin(&o, &l.deps, "tcp://127.0.0.1:9", 1000 * MS) < 0);
	assert_int_equal(o.err.code, DRAY_E_NO_FDS);
	while (n)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	lab_stop(&l);
}

/* --- pages ---------------------------------------------------------------------------------------- */

static void page(struct lab *l, const char *path, const char *status, const char *body,
		 struct outcome *o)
{
	char text[2048];

	l->v.n_say = (size_t)snprintf(
		text, sizeof(text),
		"HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status,
		strlen(body), body);
	l->v.say = text;
	l->v.want = 1;
	outcome_of(o, &l->deps, "http", l->v.where, path, 5000 * MS);
	l->v.say = NULL;
}

static void test_pages(void **state)
{
	static const struct {
		const char *status, *body, *says; /* NULL: ready */
	} cases[] = {
		{ "200 OK", "", NULL },
		{ "200 OK", "OK", NULL },
		{ "200 OK", "<html>hello</html>", NULL },
		{ "204 No Content", "", NULL },
		{ "200 OK", "{}", NULL },
		{ "200 OK", " \n{\"status\":\"ok\"}", NULL },
		{ "200 OK", "{\"status\":\"healthy\",\"more\":[1]}", NULL },
		{ "200 OK", "{\"status\":\"ok\",\"service_ready\":true,\"leader_address\":null}",
		  NULL },
		{ "200 OK", "[1,2]", NULL },
		/* the master while it does not serve */
		{ "200 OK",
		  "{\"status\":\"ok\",\"role\":\"standby\",\"ha_state\":\"catching_up\",\"service_ready\":false}",
		  "service_ready is false (catching_up)" },
		{ "200 OK", "{\"service_ready\":1}", "service_ready is a number" },
		{ "200 OK", "{\"service_ready\":\"true\"}", "service_ready is true" },
		{ "200 OK", "{\"service_ready\":null}", "service_ready is null" },
		{ "200 OK", "{\"service_ready\":true,\"status\":\"starting\"}",
		  "its status is starting" },
		{ "200 OK", "{\"status\":{}}", "its status is not a string" },
		{ "200 OK", "{\"status\":\"a\\nb\"}", "its status is a?b" },
		{ "200 OK", "{\"status\":\"ok\"", "begins like JSON, but it is not JSON" },
		/* the client while it does not serve */
		{ "503 Service Unavailable", "{\"status\":\"unhealthy\"}",
		  "HTTP status 503, and its status is unhealthy" },
		{ "503 Service Unavailable", "{\"status\":\"ok\"}", "HTTP status 503" },
		{ "404 Not Found", "OK", "HTTP status 404" },
		{ "302 Found", "", "HTTP status 302" },
		{ "500 Oh", "", "HTTP status 500" },
	};
	struct outcome o;
	struct lab l;

	lab_start(&l);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		page(&l, "/health?a=b", cases[i].status, cases[i].body, &o);
		if (cases[i].says)
			assert_not_ready(&o, cases[i].says);
		else
			assert_ready(&o);
	}
	assert_memory_equal(l.v.heard, "GET /health?a=b HTTP/1.1\r\n", 26);
	page(&l, "", "200 OK", "", &o);
	assert_memory_equal(l.v.heard, "GET / HTTP/1.1\r\n", 16);
	lab_stop(&l);
}

static void test_no_pages(void **state)
{
	struct outcome o;
	struct lab l;

	lab_start(&l);
	l.v.say = "SSH-2.0-OpenSSH_9.2p1\r\n";
	l.v.n_say = 23;
	outcome_of(&o, &l.deps, "http", l.v.where, "/", 5000 * MS);
	assert_false(o.r.ok);
	l.v.say = NULL;
	outcome_of(&o, &l.deps, "http", l.v.where, "/", 100 * MS);
	assert_false(o.r.ok);
	l.v.resets = true;
	outcome_of(&o, &l.deps, "http", l.v.where, "/", 5000 * MS);
	assert_false(o.r.ok);
	server_shut(&l.v);
	outcome_of(&o, &l.deps, "http", l.v.where, "/", 5000 * MS);
	assert_not_ready(&o, "refused");
	lab_stop(&l);
}

/* --- agents --------------------------------------------------------------------------------------- */

static void test_agents(void **state)
{
	struct rig *a, *b;
	struct outcome o;
	char where[64];
	struct lab l;

	lab_start(&l);
	a = rig_start(l.event, 1, 10);
	b = rig_start(l.event, 2, 20);
	l.deps.peer_probes = &peer_probes;
	l.deps.peers = a->peers;
	snprintf(where, sizeof(where), "localhost%s", strchr(peers_segment(b->peers), ':'));
	outcome_of(&o, &l.deps, "dray", where, "", 5000 * MS);
	assert_ready(&o);
	assert_says(o.r.reason, "agent 00000000, release ");
	outcome_of(&o, &l.deps, "dray", peers_segment(a->peers), "", 5000 * MS);
	assert_ready(&o);
	assert_string_equal(o.r.reason, "this agent");
	peers_drain(b->peers, 60000);
	outcome_of(&o, &l.deps, "dray", where, "", 5000 * MS);
	assert_not_ready(&o, "draining");
	/* a server that is silent, and a closed port */
	outcome_of(&o, &l.deps, "dray", l.v.where, "", 100 * MS);
	assert_not_ready(&o, "no answer of a dray agent within");
	server_shut(&l.v);
	outcome_of(&o, &l.deps, "dray", l.v.where, "", 5000 * MS);
	assert_not_ready(&o, "refused");
	assert_int_equal(rig_count(a), 0);
	assert_int_equal(rig_count(b), 0);
	rig_kill(a);
	rig_kill(b);
	lab_stop(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_targets),        cmocka_unit_test(test_bad_targets),
		cmocka_unit_test(test_kinds),          cmocka_unit_test(test_tcp),
		cmocka_unit_test(test_silence),        cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_no_descriptors), cmocka_unit_test(test_pages),
		cmocka_unit_test(test_no_pages),       cmocka_unit_test(test_agents),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
