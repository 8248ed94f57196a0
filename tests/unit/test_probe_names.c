/* SPDX-License-Identifier: Apache-2.0 */
/* Probes of names, some with several addresses. The test contains the name server. */
#include "tests/unit/probe_server.h"

#include <unistd.h>

#include "agent/placement/net/resolver.h"

struct lab {
	sd_event *event;
	struct resolver *resolver;
	struct probe_deps deps;
	sd_event_source *io;
	int dns; /* UDP socket */
	char servers[32];
	unsigned questions;
	bool mute;
};

/*
 * Every name has the addresses 127.0.0.1 and 127.0.0.2, and no IPv6 address. The answer is the
 * question followed by two records.
 */
static int dns_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	static const uint8_t record[] = { 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1 };
	struct lab *l = userdata;
	struct dray_addr from = { .len = sizeof(from.ss) };
	uint8_t m[512 + 2 * sizeof(record)];
	ssize_t n = recvfrom(fd, m, 512, 0, &from.sa, &from.len);
	size_t end = 12;

	if (n < 17)
		return 0;
	l->questions++;
	if (l->mute)
		return 0;
	while (end < (size_t)n && m[end])
		end += m[end] + 1u;
	end += 5;
	assert_true(end <= (size_t)n);
	m[2] = 0x81; /* a response, recursion desired */
	m[3] = 0x80; /* recursion available, no error */
	memset(m + 6, 0, 6);
	if (m[end - 3] == 1) {
		m[7] = 2;
		for (unsigned i = 0; i < 2; i++) {
			memcpy(m + end, record, sizeof(record));
			end += sizeof(record);
			m[end - 1] = (uint8_t)(1 + i);
		}
	}
	assert_int_equal(sendto(fd, m, end, 0, &from.sa, from.len), end);
	return 0;
}

static void lab_start(struct lab *l)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_addr a;

	memset(l, 0, sizeof(*l));
	l->event = server_loop();
	assert_int_equal(resolver_new(&l->resolver, l->event, &err), 0);
	assert_int_equal(dray_addr_parse("127.0.0.1:0", &a), 0);
	l->dns = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(l->dns >= 0 && bind(l->dns, &a.sa, a.len) == 0);
	assert_int_equal(getsockname(l->dns, &a.sa, &a.len), 0);
	assert_true(sd_event_add_io(l->event, &l->io, l->dns, EPOLLIN, dns_on_io, l) >= 0);
	snprintf(l->servers, sizeof(l->servers), "127.0.0.1:%u", dray_addr_port(&a));
	resolver_pretend(l->resolver, l->servers, NULL);
	l->deps = (struct probe_deps){ .event = l->event, .resolver = l->resolver };
}

static void lab_stop(struct lab *l)
{
	resolver_free(l->resolver);
	sd_event_source_disable_unref(l->io);
	close(l->dns);
	sd_event_unref(l->event);
}

/* Listens on one of the addresses; the other has no listener on that port. */
static void serve_on(struct server *v, struct lab *l, const char *address)
{
	char where[64];

	snprintf(where, sizeof(where), "%s:0", address);
	server_init(v, l->event, where);
}

static const char *at_name(const struct server *v, char buf[64])
{
	snprintf(buf, 64, "two.example:%u", dray_addr_port(&v->addr));
	return buf;
}

static void test_localhost(void **state)
{
	struct server v;
	struct outcome o;
	char where[64];
	struct lab l;

	lab_start(&l);
	server_init(&v, l.event, "127.0.0.1:0");
	snprintf(where, sizeof(where), "localhost:%u", dray_addr_port(&v.addr));
	outcome_of(&o, &l.deps, "tcp", where, "", 5000 * MS);
	assert_ready(&o);
	assert_int_equal(l.questions, 0);
	server_deinit(&v);
	lab_stop(&l);
}

static void test_next_address(void **state)
{
	static const char *const addresses[] = { "127.0.0.1", "127.0.0.2" };
	struct server v;
	struct outcome o;
	char where[64];
	struct lab l;

	lab_start(&l);
	for (unsigned i = 0; i < 2; i++) {
		serve_on(&v, &l, addresses[i]);
		outcome_of(&o, &l.deps, "tcp", at_name(&v, where), "", 5000 * MS);
		assert_ready(&o);
		assert_true(server_until(l.event, 5000, v.ended == 1));
		server_shut(&v);
		outcome_of(&o, &l.deps, "tcp", at_name(&v, where), "", 5000 * MS);
		assert_not_ready(&o, "refused");
		server_deinit(&v);
	}
	assert_true(l.questions > 0);
	lab_stop(&l);
}

/* One address accepts connections and stays silent: the other still gets its share of the time. */
static void test_silent_address(void **state)
{
	static const char reply[] =
		"\x35\0\0\0\0\0\0\0\1"
		"{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":[{},{},{}]}";
	struct server good, bad;
	struct outcome o;
	char where[64];
	struct lab l;

	assert_int_equal(sizeof(reply) - 1, 8 + 0x35);
	lab_start(&l);
	for (unsigned i = 0; i < 2; i++) {
		serve_on(&good, &l, i ? "127.0.0.1" : "127.0.0.2");
		snprintf(where, sizeof(where), "%s:%u", i ? "127.0.0.2" : "127.0.0.1",
			 dray_addr_port(&good.addr));
		server_init(&bad, l.event, where);
		good.want = 11;
		good.say = reply;
		good.n_say = sizeof(reply) - 1;
		outcome_of(&o, &l.deps, "mooncake", at_name(&good, where), "", 2000 * MS);
		assert_ready(&o);
		assert_says(o.r.reason, ", 3 buffers");
		/* no connection is left open */
		assert_true(server_until(l.event, 5000, !bad.open && !good.open));
		/* both silent: the probe keeps its limit, unless this machine paused each time */
		good.say = NULL;
		for (unsigned k = 0; k < 10; k++) {
			outcome_of(&o, &l.deps, "mooncake", at_name(&good, where), "", 100 * MS);
			if (strstr(o.r.reason, "within 1"))
				break;
		}
		assert_not_ready(&o, "no reply within 1");
		assert_true(bad.accepted && good.accepted >= 2);
		server_deinit(&good);
		server_deinit(&bad);
	}
	lab_stop(&l);
}

static void test_no_name(void **state)
{
	struct outcome o;
	struct lab l;

	lab_start(&l);
	/* an invalid name, and a silent name server */
	resolver_pretend(l.resolver, "127.0.0.1:1", NULL);
	outcome_of(&o, &l.deps, "tcp", "nowhere.invalid:5", "", 5000 * MS);
	assert_not_ready(&o, "nowhere.invalid");
	resolver_pretend(l.resolver, l.servers, NULL);
	l.mute = true;
	outcome_of(&o, &l.deps, "tcp", "silent.example:5", "", 100 * MS);
	assert_false(o.r.ok);
	/* and cancelled before an answer */
	assert_int_equal(outcome_begin(&o, &l.deps, "mooncake://late.example:5", 5000 * MS), 0);
	assert_true(sd_event_run(l.event, 10000) >= 0);
	o.probe = probe_cancel(o.probe);
	assert_int_equal(o.done, 0);
	lab_stop(&l);
}

static void test_without(void **state)
{
	struct outcome o;
	struct lab l;

	lab_start(&l);
	l.deps.resolver = NULL;
	assert_true(outcome_begin(&o, &l.deps, "tcp://localhost:5", 5000 * MS) < 0);
	assert_says(o.err.msg, "localhost is a name, and names are not resolved");
	assert_true(outcome_begin(&o, &l.deps, "http://127.0.0.1:5/", 5000 * MS) < 0);
	assert_true(outcome_begin(&o, &l.deps, "dray://127.0.0.1:5", 5000 * MS) < 0);
	assert_says(o.err.msg, "no peers");
	lab_stop(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_localhost),      cmocka_unit_test(test_next_address),
		cmocka_unit_test(test_silent_address), cmocka_unit_test(test_no_name),
		cmocka_unit_test(test_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
