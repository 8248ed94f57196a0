/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up names, with a name server of the test. */
#include "agent/placement/net/resolver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"

#define LONG_NS (60 * DRAY_NS_PER_SEC)

struct rig {
	sd_event *event;
	struct dns_server *dns;
	struct resolver *resolver;
	char dir[CM_DIR_BYTES], *conf;
	struct dns_entry *table;
};

struct asked {
	struct rig *rig;
	unsigned called, n;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	struct dray_err err;
	/* actions in the callback */
	struct resolver_query *cancel;
	bool again, free_resolver;
};

static void on_answer(void *arg, const struct dray_addr *addrs, unsigned n,
		      const struct dray_err *why)
{
	struct asked *a = arg;

	a->called++;
	a->n = n;
	assert_true(n <= RESOLVER_ADDRS_MAX);
	assert_int_equal(n == 0, why != NULL);
	if (n)
		memcpy(a->addrs, addrs, n * sizeof(*addrs));
	a->err = why ? *why : DRAY_ERR_NULL;
	a->cancel = resolver_cancel(a->cancel);
	if (a->again) {
		a->again = false;
		assert_int_equal(resolver_lookup(a->rig->resolver, "both.test", 1, LONG_NS,
						 on_answer, a, NULL, &a->err),
				 0);
		assert_int_equal(a->called, 1);
	}
	if (a->free_resolver)
		a->rig->resolver = resolver_free(a->rig->resolver);
}

static struct rig rig_start(struct dns_entry *table)
{
	struct rig r = { .table = table };
	struct dray_err err = DRAY_ERR_NULL;

	assert_true(sd_event_new(&r.event) >= 0);
	cm_dir_make(r.dir);
	assert_true(asprintf(&r.conf, "%s/resolv.conf", r.dir) > 0);
	cm_file_write(r.dir, "resolv.conf", "nameserver 127.0.0.1\nsearch here.test\n");
	r.dns = dns_server_new(r.event, table);
	assert_int_equal(resolver_new(&r.resolver, r.event, &err), 0);
	resolver_pretend(r.resolver, dns_server_text(r.dns), r.conf);
	return r;
}

static void rig_stop(struct rig *r)
{
	resolver_free(r->resolver);
	dns_server_free(r->dns);
	sd_event_unref(r->event);
	cm_dir_remove(r->dir);
	free(r->conf);
}

static struct resolver_query *ask(struct rig *r, const char *host, int64_t timeout_ns,
				  struct asked *a)
{
	struct resolver_query *q = NULL;
	struct dray_err err = DRAY_ERR_NULL;

	a->rig = r;
	if (resolver_lookup(r->resolver, host, 7411, timeout_ns, on_answer, a, &q, &err) < 0)
		fail_msg("%s", err.msg);
	/* the callback never runs inside the call */
	assert_int_equal(a->called, 0);
	return q;
}

static struct asked look_up(struct rig *r, const char *host, int64_t timeout_ns)
{
	struct asked a = { .called = 0 };

	ask(r, host, timeout_ns, &a);
	assert_true(net_until(r->event, a.called));
	assert_int_equal(a.called, 1);
	return a;
}

static void assert_addr(const struct asked *a, unsigned i, const char *text)
{
	char buf[DRAY_ADDR_TEXT_MAX];

	if (i >= a->n)
		fail_msg("%s: %s", text, a->err.msg);
	assert_string_equal(dray_addr_show(&a->addrs[i], buf, sizeof(buf)), text);
}

static void assert_why(const struct asked *a, int code, const char *words)
{
	assert_int_equal(a->n, 0);
	assert_int_equal(a->err.code, code);
	if (!strstr(a->err.msg, words))
		fail_msg("\"%s\" does not contain \"%s\"", a->err.msg, words);
}

static void test_families(void **state)
{
	struct dns_entry table[] = {
		{ .name = "four.test", .v4 = { "127.0.0.9", "127.0.0.8" } },
		{ .name = "six.test", .v6 = { "::1" } },
		{ .name = "both.test", .v4 = { "127.0.0.9" }, .v6 = { "::1" } },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "four.test", LONG_NS);

	assert_int_equal(a.n, 2);
	assert_addr(&a, 0, "127.0.0.9:7411");
	assert_addr(&a, 1, "127.0.0.8:7411");
	a = look_up(&r, "SIX.test", LONG_NS);
	assert_int_equal(a.n, 1);
	assert_addr(&a, 0, "[::1]:7411");
	a = look_up(&r, "both.test.", LONG_NS);
	assert_int_equal(a.n, 2);
	assert_addr(&a, 0, "127.0.0.9:7411");
	assert_addr(&a, 1, "[::1]:7411");
	rig_stop(&r);
}

/* Addresses that cannot be reached come last, and the result is no longer than requested. */
static void test_order_and_bound(void **state)
{
	struct dns_entry table[] = {
		{ .name = "order.test", .v4 = { "255.255.255.255", "127.0.0.9", "127.0.0.9" } },
		{ .name = "many.test", .v6 = { "::1" } },
		{ .name = NULL },
	};
	static char text[24][24];
	struct rig r = rig_start(table);
	struct asked a;

	for (int i = 0; i < 24; i++) {
		snprintf(text[i], sizeof(text[i]), "127.0.1.%d", i);
		table[1].v4[i] = text[i];
	}
	a = look_up(&r, "order.test", LONG_NS);
	/* the broadcast address, to which no ordinary socket may send */
	assert_int_equal(a.n, 2);
	assert_addr(&a, 0, "127.0.0.9:7411");
	assert_addr(&a, 1, "255.255.255.255:7411");
	a = look_up(&r, "many.test", LONG_NS);
	assert_int_equal(a.n, RESOLVER_ADDRS_MAX);
	rig_stop(&r);
}

static void test_numeric(void **state)
{
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "203.0.113.7", 1);

	assert_int_equal(a.n, 1);
	assert_addr(&a, 0, "203.0.113.7:7411");
	a = look_up(&r, "2001:db8::7", 1);
	assert_addr(&a, 0, "[2001:db8::7]:7411");
	assert_int_equal(table[0].asked, 0);
	rig_stop(&r);
}

static void test_hosts_file(void **state)
{
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "localhost", LONG_NS);

	assert_addr(&a, 0, "127.0.0.1:7411");
	assert_int_equal(table[0].asked, 0);
	rig_stop(&r);
}

static void test_refused_hosts(void **state)
{
	static const char *const bad[] = { "",
					   ".",
					   "a..b",
					   "a b",
					   "a\nb",
					   "10.0.0",
					   "10.0.0.9:80",
					   "[::1]",
					   "fe80::1%lo",
					   "-a",
					   "na\xc3\xafve.test" };
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	struct dray_err err;
	struct asked a;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		err = DRAY_ERR_NULL;
		assert_int_equal(resolver_lookup(r.resolver, bad[i], 1, LONG_NS, on_answer, &a,
						 NULL, &err),
				 -EINVAL);
		assert_int_equal(err.code, DRAY_E_INVALID);
	}
	assert_int_equal(resolver_lookup(r.resolver, "a", 65536, LONG_NS, on_answer, &a, NULL,
					 &err),
			 -EINVAL);
	assert_int_equal(resolver_lookup(r.resolver, "a", 1, 0, on_answer, &a, NULL, &err),
			 -EINVAL);
	rig_stop(&r);
}

static void test_failures(void **state)
{
	struct dns_entry table[] = {
		{ .name = "empty.test" },
		{ .name = "broken.test", .rcode = 2 },
		{ .name = "refused.test", .rcode = 5 },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "none.test", LONG_NS);

	assert_why(&a, DRAY_E_PEER_UNREACHABLE, "none.test: there is no such name");
	a = look_up(&r, "empty.test", LONG_NS);
	assert_why(&a, DRAY_E_PEER_UNREACHABLE, "empty.test: ");
	a = look_up(&r, "broken.test", LONG_NS);
	assert_why(&a, DRAY_E_PEER_UNREACHABLE, "127.0.0.1");
	a = look_up(&r, "refused.test", LONG_NS);
	assert_why(&a, DRAY_E_PEER_UNREACHABLE, "127.0.0.1");
	rig_stop(&r);
}

/* The limit of the caller, and that of the look-up. */
static void test_silence(void **state)
{
	struct dns_entry table[] = {
		{ .name = "silent.test", .how = DNS_SILENT },
		{ .name = "garbage.test", .how = DNS_GARBAGE },
		{ .name = "short.test", .how = DNS_SHORT },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "silent.test", 20 * DRAY_NS_PER_MS), late = { .called = 0 };

	assert_why(&a, DRAY_E_TIMEOUT, "silent.test: no name server answered within 20ms");
	/* the same look-up, until its end */
	ask(&r, "silent.test", LONG_NS, &late);
	a = look_up(&r, "garbage.test", 20 * DRAY_NS_PER_MS);
	assert_why(&a, DRAY_E_TIMEOUT, "garbage.test");
	a = look_up(&r, "short.test", 20 * DRAY_NS_PER_MS);
	assert_why(&a, DRAY_E_TIMEOUT, "short.test");
	assert_true(net_until(r.event, late.called));
	assert_why(&late, DRAY_E_TIMEOUT, "no name server answers at 127.0.0.1");
	/* the server was asked again, but not more often */
	assert_in_range(table[0].asked, 4, 8);
	rig_stop(&r);
}

static void test_no_server(void **state)
{
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	char closed[DRAY_ADDR_TEXT_MAX];
	struct asked a;

	/* a port that was just closed */
	snprintf(closed, sizeof(closed), "%s", dns_server_text(r.dns));
	dns_server_free(r.dns);
	resolver_pretend(r.resolver, closed, r.conf);
	a = look_up(&r, "any.test", LONG_NS);
	/* silent or refusing, depending on timing */
	assert_why(&a, a.err.code, "any.test: no name server answers at 127.0.0.1");
	assert_null(strstr(a.err.msg, "resolv.conf"));
	unlink(r.conf);
	resolver_pretend(r.resolver, closed, r.conf);
	a = look_up(&r, "any.test", LONG_NS);
	assert_why(&a, a.err.code, "/etc/resolv.conf does not exist");
	/* names of this host and numeric addresses need no server */
	a = look_up(&r, "localhost", LONG_NS);
	assert_true(a.n > 0);
	r.dns = dns_server_new(r.event, table);
	rig_stop(&r);
}

static void test_shared_and_kept(void **state)
{
	struct dns_entry table[] = {
		{ .name = "both.test", .v4 = { "127.0.0.9" }, .v6 = { "::1" } },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	static struct asked many[1000];
	unsigned called = 0;

	memset(many, 0, sizeof(many));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(many); i++)
		ask(&r, i % 2 ? "both.test" : "BOTH.test", LONG_NS, &many[i]);
	assert_true(net_until(r.event, many[999].called));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(many); i++) {
		called += many[i].called;
		assert_int_equal(many[i].n, 2);
	}
	assert_int_equal(called, 1000);
	/* one question for A and one for AAAA */
	assert_int_equal(table[0].asked, 2);
	look_up(&r, "both.test", LONG_NS);
	assert_int_equal(table[0].asked, 2);
	look_up(&r, "none.test", LONG_NS);
	assert_true(table[1].asked > 0);
	called = table[1].asked;
	look_up(&r, "none.test", LONG_NS);
	assert_int_equal(table[1].asked, called);
	rig_stop(&r);
}

static void test_cancel(void **state)
{
	struct dns_entry table[] = {
		{ .name = "four.test", .v4 = { "127.0.0.9" } },
		{ .name = "both.test", .v4 = { "127.0.0.9" } },
		{ .name = "silent.test", .how = DNS_SILENT },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked a = { .called = 0 }, b = { .called = 0 }, c = { .called = 0 };
	struct asked d = { .called = 0 }, e = { .again = true };
	struct resolver_query *q = ask(&r, "four.test", LONG_NS, &a);

	/*
	 * one of two callers, before the look-up; a numeric address; a name whose answer has
	 * arrived
	 */
	ask(&r, "four.test", LONG_NS, &b);
	assert_null(resolver_cancel(q));
	assert_null(resolver_cancel(ask(&r, "127.0.0.1", LONG_NS, &c)));
	assert_true(net_until(r.event, b.called));
	assert_null(resolver_cancel(ask(&r, "four.test", LONG_NS, &c)));
	/* cancelled from the callback of another caller, which starts another look-up */
	ask(&r, "four.test", LONG_NS, &e);
	e.cancel = ask(&r, "four.test", LONG_NS, &d);
	assert_true(net_until(r.event, e.called == 2));
	resolver_cancel(ask(&r, "silent.test", LONG_NS, &a));
	/* no later answer goes to a cancelled caller */
	look_up(&r, "four.test", LONG_NS);
	assert_int_equal(a.called, 0);
	assert_int_equal(c.called, 0);
	assert_int_equal(d.called, 0);
	assert_null(resolver_cancel(NULL));
	rig_stop(&r);
}

/* The resolver is freed from a callback, while other callers wait in every stage. */
static void test_end(void **state)
{
	struct dns_entry table[] = {
		{ .name = "four.test", .v4 = { "127.0.0.9" } },
		{ .name = "silent.test", .how = DNS_SILENT },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked a = look_up(&r, "four.test", LONG_NS), others = { .called = 0 };
	int fds = cm_fds_count();

	/* without cached answers */
	resolver_pretend(r.resolver, dns_server_text(r.dns), r.conf);
	a = (struct asked){ .free_resolver = true };
	ask(&r, "silent.test", LONG_NS, &others);
	ask(&r, "four.test", LONG_NS, &a);
	ask(&r, "four.test", LONG_NS, &others);
	ask(&r, "127.0.0.1", LONG_NS, &others);
	others.called = 0;
	assert_true(net_until(r.event, a.called));
	assert_null(r.resolver);
	assert_int_equal(others.called, 1);
	assert_int_equal(cm_fds_count(), fds);
	rig_stop(&r);
}

static int on_other(sd_event_source *s, int fd, uint32_t events, void *arg)
{
	(*(unsigned *)arg)++;
	return 0;
}

/* A source that is always ready gets every other turn while there are answers. */
static void test_others_go_on(void **state)
{
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	static struct asked many[100];
	int fd = eventfd(1, EFD_CLOEXEC);
	unsigned others = 0, called = 0;

	/* the first turn of a source is older than all that follow */
	assert_true(sd_event_run(r.event, 0) >= 0);
	assert_true(sd_event_add_io(r.event, NULL, fd, EPOLLIN, on_other, &others) >= 0);
	memset(many, 0, sizeof(many));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(many); i++)
		ask(&r, "203.0.113.7", LONG_NS, &many[i]);
	for (unsigned turns = 0; called < DRAY_ARRAY_SIZE(many); turns++) {
		assert_true(turns < 300);
		assert_true(sd_event_run(r.event, UINT64_MAX) > 0);
		while (called < DRAY_ARRAY_SIZE(many) && many[called].called)
			called++;
		assert_in_range(others + 2, called, called + 4);
	}
	rig_stop(&r);
	close(fd);
}

/* More names than questions may be in flight. */
static void test_many_names(void **state)
{
	struct dns_entry table[] = { { .name = NULL } };
	struct rig r = rig_start(table);
	static struct asked many[1500];
	char host[32];
	unsigned called;

	memset(many, 0, sizeof(many));
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(many); i++) {
		snprintf(host, sizeof(host), "name-%u.test.", i);
		ask(&r, host, LONG_NS, &many[i]);
	}
	assert_true(net_until(r.event, ({
				      called = 0;
				      for (size_t i = 0; i < DRAY_ARRAY_SIZE(many); i++)
					      called += many[i].called;
				      called == DRAY_ARRAY_SIZE(many);
			      })));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(many); i++)
		assert_why(&many[i], DRAY_E_PEER_UNREACHABLE, "there is no such name");
	rig_stop(&r);
}

/* There is no memory for timers, by --wrap. */
static bool timers_fail;

int __real_sd_event_add_time_relative(sd_event *e, sd_event_source **ret, clockid_t clock,
				      uint64_t usec, uint64_t accuracy,
				      sd_event_time_handler_t callback, void *arg);
int __wrap_sd_event_add_time_relative(sd_event *e, sd_event_source **ret, clockid_t clock,
				      uint64_t usec, uint64_t accuracy,
				      sd_event_time_handler_t callback, void *arg);

int __wrap_sd_event_add_time_relative(sd_event *e, sd_event_source **ret, clockid_t clock,
				      uint64_t usec, uint64_t accuracy,
				      sd_event_time_handler_t callback, void *arg)
{
	return timers_fail ? -ENOMEM :
			     __real_sd_event_add_time_relative(e, ret, clock, usec, accuracy,
							       callback, arg);
}

/* Names whose lookups fail for want of memory are not kept: there are more of them than there may be names. */
static void test_no_memory(void **state)
{
	struct dns_entry table[] = {
		{ .name = "four.test", .v4 = { "127.0.0.9" } },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct dray_err err = DRAY_ERR_NULL;
	struct asked a = { .called = 0 };
	char host[32];

	timers_fail = true;
	for (unsigned i = 0; i < 5000; i++) {
		snprintf(host, sizeof(host), "name-%u.test", i);
		assert_int_equal(resolver_lookup(r.resolver, host, 7411, LONG_NS, on_answer, &a,
						 NULL, &err),
				 -ENOMEM);
		assert_true(sd_event_run(r.event, 0) >= 0);
	}
	timers_fail = false;
	a = look_up(&r, "four.test", LONG_NS);
	assert_addr(&a, 0, "127.0.0.9:7411");
	rig_stop(&r);
}

static void test_resolv_conf_changes(void **state)
{
	struct dns_entry table[] = {
		{ .name = "web.here.test", .v4 = { "127.0.0.1" } },
		{ .name = "web.there.test", .v4 = { "127.0.0.2" } },
		{ .name = "silent.test", .how = DNS_SILENT },
		{ .name = "db.there.test", .v4 = { "127.0.0.3" } },
		{ .name = NULL },
	};
	struct rig r = rig_start(table);
	struct asked old = { .called = 0 }, a = look_up(&r, "web", LONG_NS);
	char new[CM_DIR_BYTES + 8];

	assert_addr(&a, 0, "127.0.0.1:7411");
	/* a look-up is in flight when the file changes, and when the resolver ends */
	ask(&r, "silent.test", LONG_NS, &old);
	assert_true(net_until(r.event, table[2].asked));
	cm_file_write(r.dir, "new", "nameserver 127.0.0.1\nsearch there.test\n");
	snprintf(new, sizeof(new), "%s/new", r.dir);
	assert_int_equal(rename(new, r.conf), 0);
	a = look_up(&r, "db", LONG_NS);
	assert_addr(&a, 0, "127.0.0.3:7411");
	assert_int_equal(old.called, 0);
	rig_stop(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_families),
		cmocka_unit_test(test_order_and_bound),
		cmocka_unit_test(test_numeric),
		cmocka_unit_test(test_hosts_file),
		cmocka_unit_test(test_refused_hosts),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_no_server),
		cmocka_unit_test(test_shared_and_kept),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_end),
		cmocka_unit_test(test_others_go_on),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_many_names),
		cmocka_unit_test(test_resolv_conf_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
