/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that scans the node, while scans fail; in a network namespace of the test. */
#include "agent/placement/detect/detect.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "lib/time.h"
#include "tests/unit/cm.h"
#include "tests/unit/netns.h"

#define LIMIT_NS (20 * DRAY_NS_PER_SEC)

static sd_event *event;
static unsigned changes, reads;
static bool lo_up;
static int log_fd;
static unsigned failing;              /* so many of the next scans have a device that fails */
static const struct nd_scan *last[2]; /* the scan before, as the last two scans were given it */

int __real_nd_scan_run(const struct nd_source *s, const struct nd_scan_options *o,
		       struct nd_scan **ret, struct dray_err *reterr);
int __wrap_nd_scan_run(const struct nd_source *s, const struct nd_scan_options *o,
		       struct nd_scan **ret, struct dray_err *reterr);

int __wrap_nd_scan_run(const struct nd_source *s, const struct nd_scan_options *o,
		       struct nd_scan **ret, struct dray_err *reterr)
{
	int r = __real_nd_scan_run(s, o, ret, reterr);

	last[0] = last[1];
	last[1] = o->before;
	if (r >= 0 && failing) {
		failing--;
		(*ret)->failing = true;
	}
	return r;
}

static void on_changed(void *arg, struct nd_scan *now)
{
	const struct nd_link *lo = nd_link_by_name(&now->links, "lo");

	CHECK(lo);
	lo_up = lo->up;
	changes++;
}

static void on_listeners(void *arg, struct nd_listeners *now)
{
	reads++;
}

static void on_cpus(void *arg, const struct dray_cpus *now)
{
}

/* How often the log has the text. */
static unsigned logged(const char *text)
{
	static char buf[65536];
	ssize_t n = pread(log_fd, buf, sizeof(buf) - 1, 0);
	unsigned found = 0;

	buf[n > 0 ? n : 0] = '\0';
	for (const char *at = buf; (at = strstr(at, text)); at++)
		found++;
	return found;
}

#define RUN_UNTIL(condition)                                                            \
	do {                                                                            \
		for (int64_t end_ = dray_now().ns + LIMIT_NS;                           \
		     !(condition) && dray_now().ns < end_; sd_event_run(event, 100000)) \
			;                                                               \
		CHECK(condition);                                                       \
	} while (0)

/* By a child with this limit of descriptors. All events have come when it returns. */
static void run(const struct rlimit *limit, const char *command)
{
	pid_t pid = fork();

	if (!pid)
		_exit(setrlimit(RLIMIT_NOFILE, limit) < 0 || system(command) != 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static struct detect *begin(const struct dray_config *cfg)
{
	struct detect *d;
	struct dray_err err = DRAY_ERR_NULL;

	log_fd = memfd_create("log", MFD_CLOEXEC);
	CHECK(log_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
	CHECK(sd_event_new(&event) >= 0);
	CHECK(detect_new(&d,
			 &(struct detect_deps){ .event = event,
						.cfg = cfg,
						.changed = on_changed,
						.cpus = on_cpus,
						.listeners = on_listeners },
			 &err) == 0);
	RUN_UNTIL(changes == 1);
	return d;
}

static void end(struct detect *d)
{
	detect_free(d);
	sd_event_unref(event);
}

/* Nothing more can be opened. Returns the limit before. */
static struct rlimit use_up_descriptors(void)
{
	struct rlimit before, low;
	int spare = dup(0);

	close(spare);
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	low = before;
	low.rlim_cur = (rlim_t)spare;
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	return before;
}

/* Keeps the last scan, says so once, and scans again although no further event comes. */
static void scans_fail(void)
{
	static struct dray_config cfg;
	struct detect *d = begin(&cfg);
	struct rlimit before = use_up_descriptors();

	run(&before, "ip link set lo up");
	RUN_UNTIL(logged("keeping the last scan"));
	CHECK(changes == 1 && !lo_up);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	RUN_UNTIL(lo_up);
	CHECK(logged("keeping the last scan") == 1 && logged("scanned again") == 1);
	end(d);
}

/* A device fails: scans again although no event comes, and each scan knows the one before. */
static void device_fails(void)
{
	static struct dray_config cfg;
	struct detect *d;
	const struct nd_scan *second;

	failing = 2;
	d = begin(&cfg);
	CHECK(!last[1]);
	RUN_UNTIL(changes == 2);
	CHECK(last[1]);
	second = detect_scan(d);
	RUN_UNTIL(changes == 3);
	CHECK(last[1] == second && last[0] != second);
	CHECK(logged("all devices have been read again") == 1);
	end(d);
}

/* Many changes at once are a few lines and a number. */
static void many_changes(void)
{
	static struct dray_config cfg;
	struct detect *d = begin(&cfg);
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	run(&limit,
	    "seq 60 | sed 's,.*,address add 127.0.1.&/8 dev lo,' | ip -batch - && ip link set lo up");
	RUN_UNTIL(lo_up);
	CHECK(logged("lo address 127.0.1.") + logged("lo down -> up") <= 20);
	CHECK(logged("more changes") == 1);
	end(d);
}

/* A kernel that lacks INET_DIAG fails each time; the log says so once, and what to do. */
static void listeners_fail(void)
{
	static struct dray_config cfg = { .segment.listen_interval = DRAY_NS_PER_MS };
	struct detect *d = begin(&cfg);
	struct rlimit before;
	unsigned seen;

	RUN_UNTIL(reads);
	before = use_up_descriptors();
	RUN_UNTIL(logged("listening sockets: "));
	/* several more reads, each of which is a timer and a job */
	for (unsigned i = 0; i < 50; i++)
		sd_event_run(event, 100000);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	seen = reads;
	RUN_UNTIL(reads > seen);
	CHECK(logged("listening sockets: ") == 1 && logged("segment.known") == 1);
	CHECK(logged("read again") == 1);
	end(d);
}

static void test_scans_fail(void **state)
{
	netns_run(scans_fail);
}

static void test_device_fails(void **state)
{
	netns_run(device_fails);
}

static void test_many_changes(void **state)
{
	netns_run(many_changes);
}

static void test_listeners_fail(void **state)
{
	netns_run(listeners_fail);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scans_fail),
		cmocka_unit_test(test_device_fails),
		cmocka_unit_test(test_many_changes),
		cmocka_unit_test(test_listeners_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
