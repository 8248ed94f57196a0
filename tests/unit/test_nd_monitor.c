/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of link changes, also when more arrive than are read; in a network namespace of the test.
 */
#include "netdetect/monitor.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/netns.h"

#define STORM 6000
#define SCANS 30
#define STEADY 1000

static void batch(const char *what, const char *network, int n)
{
	FILE *f = popen("ip -force -batch - >/dev/null 2>&1", "w");

	assert_non_null(f);
	for (int i = 0; i < n; i++)
		fprintf(f, "addr %s %s.%d.%d/32 dev lo\n", what, network, i >> 8 & 255, i & 255);
	pclose(f);
}

static void lo_up(void)
{
	assert_int_equal(system("ip link set lo up"), 0);
}

static bool readable(struct nd_monitor *m, int ms)
{
	struct pollfd p = { nd_monitor_fd(m), POLLIN, 0 };

	return poll(&p, 1, ms) == 1;
}

static void changes(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_monitor *m;

	CHECK(nd_monitor_new(&m, &err) == 0);
	CHECK(strstr(nd_monitor_describe(m), "rtnetlink"));
	CHECK(!readable(m, 0) && nd_monitor_read(m) == 0);
	lo_up();
	CHECK(readable(m, 10000));
	CHECK(nd_monitor_read(m) & ND_CHANGE_LINKS);
	batch("add", "10.1", 1);
	CHECK(readable(m, 10000));
	CHECK(nd_monitor_read(m) == ND_CHANGE_LINKS);
	CHECK(nd_monitor_read(m) == 0);
	nd_monitor_free(m);
}

static void storm(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_monitor *m;

	CHECK(nd_monitor_new(&m, &err) == 0);
	lo_up();
	batch("add", "10.1", STORM);
	CHECK(readable(m, 10000));
	CHECK(nd_monitor_read(m) & ND_CHANGE_OVERRUN);
	CHECK(nd_monitor_read(m) == 0);
	/* later changes still arrive */
	batch("del", "10.1", 1);
	CHECK(readable(m, 10000));
	CHECK(nd_monitor_read(m) == ND_CHANGE_LINKS);
	nd_monitor_free(m);
}

/* Dumps that changes interrupt are repeated, and the result is complete. */
static void scan_while_it_changes(void)
{
	pid_t changing;

	lo_up();
	batch("add", "10.1", STEADY);
	changing = fork();
	if (!changing)
		for (;;) {
			batch("add", "172.16", 200);
			batch("del", "172.16", 200);
		}
	for (int i = 0; i < SCANS; i++) {
		struct dray_err err = DRAY_ERR_NULL;
		struct nd_links l = { 0 };
		size_t steady = 0;
		int r = nd_links_scan(&ND_SOURCE_LIVE, &l, &err);

		/* after eight interruptions in a row the scan ends with an error */
		CHECK(r == 0 || r == -EINTR || r == -ENOBUFS);
		for (size_t k = 0; k < l.n_addrs; k++)
			steady += l.addrs[k].addr.s6_addr[12] == 10;
		CHECK(r || steady == STEADY);
		nd_links_deinit(&l);
	}
	kill(changing, SIGKILL);
	waitpid(changing, NULL, 0);
}

static uint64_t routes_hash(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_links l = { 0 };
	uint64_t hash;

	CHECK(nd_links_scan(&ND_SOURCE_LIVE, &l, &err) == 0);
	hash = l.routes_hash;
	nd_links_deinit(&l);
	return hash;
}

/* They decide which routes a look-up sees. */
static void rules(void)
{
	static const char *const commands[] = { "ip rule add from 10.0.0.1 table 100",
						"ip -6 rule add from fd00::1 table 100" };
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t before = routes_hash();
	struct nd_monitor *m;

	CHECK(nd_monitor_new(&m, &err) == 0);
	CHECK(before == routes_hash());
	for (unsigned i = 0; i < 2; i++) {
		CHECK(system(commands[i]) == 0);
		CHECK(readable(m, 10000));
		CHECK(nd_monitor_read(m) == ND_CHANGE_LINKS);
		CHECK(before != routes_hash());
		before = routes_hash();
	}
	nd_monitor_free(m);
}

static void test_rules(void **state)
{
	netns_run(rules);
}

/* The next answer with messages of this type is interrupted at its last message; 0: none is. */
static uint16_t interrupted;

ssize_t __real_mnl_socket_recvfrom(const struct mnl_socket *s, void *buf, size_t n);
ssize_t __wrap_mnl_socket_recvfrom(const struct mnl_socket *s, void *buf, size_t n);
ssize_t __wrap_mnl_socket_recvfrom(const struct mnl_socket *s, void *buf, size_t n)
{
	ssize_t got = __real_mnl_socket_recvfrom(s, buf, n);
	struct nlmsghdr *h = buf, *last = NULL;

	for (int left = (int)got; interrupted && mnl_nlmsg_ok(h, left);
	     h = mnl_nlmsg_next(h, &left))
		if (h->nlmsg_type == interrupted)
			last = h;
	if (last) {
		last->nlmsg_flags |= NLM_F_DUMP_INTR;
		interrupted = 0;
	}
	return got;
}

/* A repeated dump is the only one that counts. */
static void interruptions(void)
{
	static const uint16_t types[] = { RTM_NEWROUTE, RTM_NEWRULE };
	uint64_t hash;

	lo_up();
	batch("add", "10.1", 3);
	hash = routes_hash();
	for (unsigned i = 0; i < 2; i++) {
		interrupted = types[i];
		CHECK(routes_hash() == hash);
		CHECK(!interrupted);
	}
}

static void test_interruptions(void **state)
{
	netns_run(interruptions);
}

static void test_changes(void **state)
{
	netns_run(changes);
}

static void test_storm(void **state)
{
	netns_run(storm);
}

static void test_scan_while_it_changes(void **state)
{
	netns_run(scan_while_it_changes);
}

/* Each step of the start says that descriptors are lacking, and leaves none open. */
static void test_without_descriptors(void **state)
{
	struct nd_monitor *m = NULL;
	struct rlimit before, low;
	int spare = dup(0), fds = cm_fds_count();

	close(spare);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	/* for epoll and two sockets; this kernel may lack the third one */
	for (int n = 0; n < 3; n++) {
		struct dray_err err = DRAY_ERR_NULL;

		low = before;
		low.rlim_cur = (rlim_t)(spare + n);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		assert_int_equal(nd_monitor_new(&m, &err), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		assert_int_equal(err.code, DRAY_E_NO_FDS);
		assert_null(m);
		assert_int_equal(cm_fds_count(), fds - 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_changes),       cmocka_unit_test(test_rules),
		cmocka_unit_test(test_interruptions), cmocka_unit_test(test_without_descriptors),
		cmocka_unit_test(test_storm),         cmocka_unit_test(test_scan_while_it_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
