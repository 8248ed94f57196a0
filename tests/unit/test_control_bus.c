/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket with a fake agent: its loop runs in a thread, and the tests are its clients.
 */
#include "agent/control/bus/bus.h"
#include "agent/control/bus/internal.h"
#include "agent/control/status/health.h"
#include "agent/control/status/gather.h"
#include "agent/control/rails/rails.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "tests/unit/cm.h"
#include "tests/unit/control_fake.h"

#define SECOND (1000 * 1000ull)

/* --- the agent's loop --------------------------------------------------------------------------- */

/* Orders from the test to the loop. */
enum order { ORDER_NONE, ORDER_ANSWER, ORDER_COUNT, ORDER_FLUSH, ORDER_HOLD, ORDER_QUIT };

static struct {
	char dir[CM_DIR_BYTES];
	pthread_t thread;
	int order_fd, done_fd;
	enum order order;
	bool cancels; /* cancels are pending */
	int fds;
	int silent[2]; /* connections that tear_down() closes after the loop's end; 0: none */
	sd_bus *slow;  /* another one; NULL: none */
} its;

static int obey(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
	eventfd_t v;

	eventfd_read(fd, &v);
	if (its.order == ORDER_ANSWER)
		listing_answer();
	else if (its.order == ORDER_COUNT)
		its.cancels = !dray_list_empty(&fake.agent.cancels);
	else if (its.order == ORDER_FLUSH)
		fake.agent.bus_signals->flush(fake.agent.bus);
	else if (its.order == ORDER_HOLD) {
		eventfd_write(its.done_fd, 1);
		/* until let_go() */
		eventfd_read(fd, &v);
		return 0;
	} else
		sd_event_exit(fake.agent.event, 0);
	eventfd_write(its.done_fd, 1);
	return 0;
}

static void order(enum order o)
{
	eventfd_t v;

	its.order = o;
	eventfd_write(its.order_fd, 1);
	eventfd_read(its.done_fd, &v);
}

/* After ORDER_HOLD, which lets the loop do nothing. */
static void let_go(void)
{
	eventfd_write(its.order_fd, 1);
}

static void *loop(void *arg)
{
	sd_event_loop(fake.agent.event);
	return NULL;
}

static int set_up(void **state)
{
	its.fds = cm_fds_count();
	dray_log_set_level(DRAY_LOG_ERROR);
	cm_dir_make(its.dir);
	snprintf(fake.path, sizeof(fake.path), "%s/c.sock", its.dir);
	its.order_fd = eventfd(0, EFD_CLOEXEC);
	its.done_fd = eventfd(0, EFD_CLOEXEC);
	if (fake_open() < 0 ||
	    sd_event_add_io(fake.agent.event, NULL, its.order_fd, EPOLLIN, obey, NULL) < 0)
		return -1;
	return pthread_create(&its.thread, NULL, loop, NULL);
}

static int tear_down(void **state)
{
	struct timespec limit;

	order(ORDER_QUIT);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 30;
	assert_int_equal(pthread_timedjoin_np(its.thread, NULL, &limit), 0);
	fake_close();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(its.silent); i++)
		if (its.silent[i])
			close(its.silent[i]);
	memset(its.silent, 0, sizeof(its.silent));
	its.slow = sd_bus_close_unref(its.slow);
	close(its.order_fd);
	close(its.done_fd);
	cm_dir_remove(its.dir);
	/* open descriptors would show connections that were kept */
	return cm_fds_count() == its.fds ? 0 : -1;
}

/* --- clients ------------------------------------------------------------------------------------ */

static sd_bus *client(bool hello)
{
	char address[sizeof(fake.path) + 16];
	sd_bus *bus;

	snprintf(address, sizeof(address), "unix:path=%s", fake.path);
	assert_true(sd_bus_new(&bus) >= 0);
	assert_true(sd_bus_set_address(bus, address) >= 0);
	assert_true(sd_bus_set_bus_client(bus, hello) >= 0);
	assert_true(sd_bus_set_method_call_timeout(bus, 5 * SECOND) >= 0);
	assert_true(sd_bus_start(bus) >= 0);
	return bus;
}

static int raw_client(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(sa.sun_path, fake.path, strlen(fake.path));
	assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

/* Returns true if the connection ends within some seconds. */
static bool ends(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char buf[4096];

	while (poll(&p, 1, 5000) > 0)
		if (read(fd, buf, sizeof(buf)) <= 0)
			return true;
	return false;
}

static sd_bus_message *call(sd_bus *bus, const char *method)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus_message *m = NULL;

	if (sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
			       method, &err, &m, "") < 0)
		fail_msg("%s: %s", method, err.message);
	return m;
}

static void get_string(sd_bus *bus, const char *property, const char *expected)
{
	dray_auto_free char *s = NULL;

	assert_true(sd_bus_get_property_string(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					       DRAY_DBUS_INTERFACE, property, NULL, &s) >= 0);
	assert_string_equal(s, expected);
}

static uint64_t get_number(sd_bus *bus, const char *property, char type)
{
	union {
		uint32_t u;
		uint64_t t;
	} v = { .t = 0 };

	assert_true(sd_bus_get_property_trivial(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
						DRAY_DBUS_INTERFACE, property, NULL, type,
						&v) >= 0);
	return type == 'u' ? v.u : v.t;
}

static void properties_are_read(void **state)
{
	for (int hello = 0; hello < 2; hello++) {
		sd_bus *bus = client(hello);
		sd_bus_message *m = NULL;
		const char *name;
		uint64_t v;
		int n = 0;

		get_string(bus, "State", "running");
		get_string(bus, "Version", DRAY_VERSION);
		get_string(bus, "AgentId", "12000000000000000000000000000000");
		get_string(bus, "Segment", "127.0.0.1:7411");
		assert_int_equal(get_number(bus, "Incarnation", 't'), 99);
		assert_int_equal(get_number(bus, "Pid", 'u'), getpid());
		assert_int_equal(get_number(bus, "Workers", 'u'), 2);
		assert_int_equal(get_number(bus, "PollTimeNs", 't'), 0);
		get_string(bus, "PollReason", "a CPU limit of 1.500");
		assert_true(get_number(bus, "UptimeNs", 't') > 0);
		assert_true(sd_bus_get_property(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
						DRAY_DBUS_INTERFACE, "Counters", NULL, &m,
						"a{st}") >= 0);
		assert_true(sd_bus_message_enter_container(m, 'a', "{st}") > 0);
		for (; sd_bus_message_read(m, "{st}", &name, &v) > 0; n++) {
			assert_string_equal(name, dray_metrics[n].name);
			assert_int_equal(v, n + 1000);
		}
		assert_int_equal(n, DRAY_METRIC_N);
		sd_bus_message_unref(m);
		sd_bus_flush_close_unref(bus);
	}
}

/*
 * Checks that each row of a list has exactly these keys and types in order; `see` checks the
 * strings.
 */
static int rows_check(sd_bus_message *m, const struct dray_dbus_field *fields, size_t n,
		      void (*see)(int row, const char *key, const char *value))
{
	int rows = 0;

	assert_true(sd_bus_message_enter_container(m, 'a', "a{sv}") > 0);
	while (sd_bus_message_enter_container(m, 'a', "{sv}") > 0) {
		for (size_t i = 0; i < n; i++) {
			const char *key, *s;

			assert_true(sd_bus_message_enter_container(m, 'e', "sv") > 0);
			assert_true(sd_bus_message_read(m, "s", &key) > 0);
			assert_string_equal(key, fields[i].key);
			assert_true(sd_bus_message_enter_container(m, 'v', fields[i].type) > 0);
			if (*fields[i].type == 's') {
				assert_true(sd_bus_message_read(m, "s", &s) > 0);
				see(rows, key, s);
			} else {
				assert_true(sd_bus_message_skip(m, fields[i].type) > 0);
			}
			sd_bus_message_exit_container(m);
			sd_bus_message_exit_container(m);
		}
		assert_true(sd_bus_message_at_end(m, 0));
		sd_bus_message_exit_container(m);
		rows++;
	}
	sd_bus_message_unref(m);
	return rows;
}

static void see(int row, const char *key, const char *value)
{
	static const struct {
		int row;
		const char *key, *value;
	} expected[] = {
		{ 0, "name", "caf\xc3\xa9 ??? end" },
		{ 0, "access", "r" },
		{ 0, "rdma", "mlx5_0: registered, region 1" },
		{ 0, "device", "GPU-1" },
		{ 0, "agent_id", "" },
		{ 1, "agent_id", "ab" },
		{ 0, "direction", "read" },
		{ 1, "direction", "?" },
		{ 0, "class", "latency" },
	};

	for (size_t i = 0; *value && i < DRAY_ARRAY_SIZE(expected); i++)
		if (expected[i].row == row && !strcmp(expected[i].key, key))
			assert_string_equal(value, expected[i].value);
}

/* Rows are sorted by the time of their end. */
static void see_ended(int row, const char *key, const char *value)
{
	if (!strcmp(key, "status"))
		assert_string_equal(value, row ? "ok" : "peer_lost");
	if (!strcmp(key, "segment"))
		assert_string_equal(value, row ? "" : "10.0.0.1:7411");
	if (!strcmp(key, "rails"))
		assert_string_equal(value, "0,2");
}

static void see_gpu(int row, const char *key, const char *value)
{
	if (!strcmp(key, "uuid"))
		assert_string_equal(value,
				    row ? "GPU-1" : "GPU-00000000-1111-2222-3333-444444444444");
	if (!strcmp(key, "name"))
		assert_string_equal(value, row ? "NVIDIA H200" : "NVIDIA ? H200");
	if (!strcmp(key, "state"))
		assert_string_equal(value, row ? "lost" : "ready");
	if (!strcmp(key, "reason"))
		assert_string_equal(value, row ? "an uncorrectable error" : "");
	if (!strcmp(key, "peers"))
		assert_string_equal(value, row ? "PCIe 0" : "NVLink 1");
}

static void see_mailbox(int row, const char *key, const char *value)
{
	if (!strcmp(key, "name"))
		assert_string_equal(value, "engine-0");
	if (!strcmp(key, "state"))
		assert_string_equal(value, "open");
}

static void see_setting(int row, const char *key, const char *value)
{
}

static void lists_have_the_keys_of_the_schema(void **state)
{
	sd_bus *bus = client(true);

	assert_int_equal(rows_check(call(bus, "ListSessions"), dray_dbus_session_fields,
				    DRAY_DBUS_SESSION_FIELD_N, see),
			 2);
	assert_int_equal(rows_check(call(bus, "ListRegions"), dray_dbus_region_fields,
				    DRAY_DBUS_REGION_FIELD_N, see),
			 3);
	assert_int_equal(rows_check(call(bus, "ListMailboxes"), dray_dbus_mailbox_fields,
				    DRAY_DBUS_MAILBOX_FIELD_N, see_mailbox),
			 1);
	assert_int_equal(rows_check(call(bus, "ListPeers"), dray_dbus_peer_fields,
				    DRAY_DBUS_PEER_FIELD_N, see),
			 2);
	assert_int_equal(rows_check(call(bus, "ListTransferTimes"), dray_dbus_transfer_time_fields,
				    DRAY_DBUS_TRANSFER_TIME_FIELD_N, see),
			 1);
	assert_int_equal(rows_check(call(bus, "ListGpus"), dray_dbus_gpu_fields,
				    DRAY_DBUS_GPU_FIELD_N, see_gpu),
			 2);
	assert_int_equal(rows_check(call(bus, "ListTransfers"), dray_dbus_transfer_fields,
				    DRAY_DBUS_TRANSFER_FIELD_N, see),
			 2);
	assert_int_equal(rows_check(call(bus, "ListEndedTransfers"),
				    dray_dbus_ended_transfer_fields,
				    DRAY_DBUS_ENDED_TRANSFER_FIELD_N, see_ended),
			 2);
	assert_int_equal(rows_check(call(bus, "DumpConfig"), dray_dbus_setting_fields,
				    DRAY_DBUS_SETTING_FIELD_N, see_setting),
			 DRAY_CONFIG_KEY_N);
	sd_bus_flush_close_unref(bus);
}

/* --- placement ---------------------------------------------------------------------------------- */

/* Calls a method with these arguments. Returns the answer, or NULL and *err. */
static sd_bus_message *call_with(sd_bus *bus, const char *method, sd_bus_error *err,
				 const char *types, ...)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *m = NULL;
	sd_bus_message *reply = NULL;
	va_list ap;

	assert_true(sd_bus_message_new_method_call(bus, &m, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
						   DRAY_DBUS_INTERFACE, method) >= 0);
	va_start(ap, types);
	assert_true(sd_bus_message_appendv(m, types, ap) >= 0);
	va_end(ap);
	return sd_bus_call(bus, m, 0, err, &reply) < 0 ? NULL : reply;
}

static void see_placement(int row, const char *key, const char *value)
{
	static const struct {
		const char *key, *value;
	} expected[] = {
		{ "sources", "listener,master" },
		{ "target", "tcp://127.0.0.1:50053" },
		{ "preference", "hint" },
		{ "source", "client" },
		{ "scope", "llama" },
		{ "profile", "dray" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(expected); i++)
		if (!strcmp(expected[i].key, key))
			assert_string_equal(value, expected[i].value);
	if (!strcmp(key, "value"))
		assert_string_equal(value, row ? "" : "/run/dray/dray.sock");
}

static void placement_is_listed(void **state)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus *bus = client(true);

	get_string(bus, "PreferredSegment", "10.0.0.1:50053");
	assert_int_equal(rows_check(call(bus, "ListSegments"), dray_dbus_segment_fields,
				    DRAY_DBUS_SEGMENT_FIELD_N, see_placement),
			 1);
	assert_int_equal(rows_check(call_with(bus, "ListCandidates", &err, "s", "llama"),
				    dray_dbus_candidate_fields, DRAY_DBUS_CANDIDATE_FIELD_N,
				    see_placement),
			 1);
	assert_int_equal(rows_check(call(bus, "ListHints"), dray_dbus_hint_fields,
				    DRAY_DBUS_HINT_FIELD_N, see_placement),
			 1);
	assert_int_equal(rows_check(call_with(bus, "ListEnvironment", &err, "as", 1, "dray"),
				    dray_dbus_variable_fields, DRAY_DBUS_VARIABLE_FIELD_N,
				    see_placement),
			 2);
	assert_null(call_with(bus, "ListEnvironment", &err, "as", 1, "nope"));
	assert_true(sd_bus_error_has_name(&err, SD_BUS_ERROR_INVALID_ARGS));
	assert_string_equal(err.message, "nope is no profile");
	sd_bus_error_free(&err);
	sd_bus_flush_close_unref(bus);
}

static void see_replica(int row, const char *key, const char *value)
{
	static const struct {
		const char *key, *value;
	} expected[] = {
		{ "segment", "10.0.0.2:15000" },
		{ "protocol", "tcp" },
		{ "master", "http://10.0.0.9:9003" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(expected); i++)
		if (!strcmp(key, expected[i].key))
			assert_string_equal(value, expected[i].value);
}

static int ignore(sd_bus_message *m, void *arg, sd_bus_error *reterr)
{
	return 0;
}

static void objects_are_found_later(void **state)
{
	static const struct {
		const char *key, *error, *message;
	} failures[] = {
		{ "", SD_BUS_ERROR_INVALID_ARGS, "the key is empty" },
		{ "not_found", DRAY_DBUS_ERROR_NOT_FOUND, "it is not_found" },
		{ "busy", DRAY_DBUS_ERROR_BUSY, "it is busy" },
		{ "timeout", DRAY_DBUS_ERROR_MASTER, "it is timeout" },
	};
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus *bus = client(true);

	assert_int_equal(rows_check(call_with(bus, "FindMooncakeObject", &err, "s", "there"),
				    dray_dbus_replica_fields, DRAY_DBUS_REPLICA_FIELD_N,
				    see_replica),
			 1);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(failures); i++) {
		assert_null(call_with(bus, "FindMooncakeObject", &err, "s", failures[i].key));
		assert_true(sd_bus_error_has_name(&err, failures[i].error));
		assert_string_equal(err.message, failures[i].message);
		sd_bus_error_free(&err);
	}
	/* one that waits ends with its caller */
	for (unsigned i = 0; i < 9; i++) {
		sd_bus_message *m = NULL;

		assert_true(sd_bus_message_new_method_call(bus, &m, NULL, DRAY_DBUS_PATH,
							   DRAY_DBUS_INTERFACE,
							   "FindMooncakeObject") >= 0);
		assert_true(sd_bus_message_append(m, "s", "never") >= 0);
		assert_true(sd_bus_call_async(bus, NULL, m, ignore, NULL, 0) >= 0);
		sd_bus_message_unref(m);
	}
	assert_null(call_with(bus, "FindMooncakeObject", &err, "s", "there"));
	assert_true(sd_bus_error_has_name(&err, SD_BUS_ERROR_LIMITS_EXCEEDED));
	sd_bus_error_free(&err);
	sd_bus_flush_close_unref(bus);
}

static void hints_are_put_and_forgotten(void **state)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus *bus = client(true);
	sd_bus_message *m;
	uint32_t n = 0;
	int unread = 0;

	m = call_with(bus, "SetHint", &err, "ssut", "llama", "a:1", 5u, 60000ull);
	assert_non_null(m);
	sd_bus_message_unref(m);
	assert_string_equal(fake.hint, "llama=a:1 5 60000");
	assert_null(call_with(bus, "SetHint", &err, "ssut", "llama", "bad", 0u, 0ull));
	assert_true(sd_bus_error_has_name(&err, SD_BUS_ERROR_INVALID_ARGS));
	sd_bus_error_free(&err);
	assert_null(call_with(bus, "SetHint", &err, "ssut", "llama", "full:1", 0u, 0ull));
	assert_true(sd_bus_error_has_name(&err, SD_BUS_ERROR_LIMITS_EXCEEDED));
	sd_bus_error_free(&err);
	m = call_with(bus, "ForgetHints", &err, "ssb", "llama", "", 0);
	assert_true(m && sd_bus_message_read(m, "ub", &n, &unread) > 0);
	sd_bus_message_unref(m);
	assert_int_equal(n, 3);
	assert_true(unread);
	assert_string_equal(fake.hint, "llama=any 0");
	sd_bus_flush_close_unref(bus);
}

static int count_answer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	int *counts = userdata;

	counts[sd_bus_message_is_method_error(m, SD_BUS_ERROR_LIMITS_EXCEEDED) > 0]++;
	return 0;
}

static void settle(sd_bus *bus, const int *n, int expected)
{
	while (*n < expected) {
		int r = sd_bus_process(bus, NULL);

		assert_true(r >= 0);
		if (!r)
			assert_true(sd_bus_wait(bus, 5 * SECOND) > 0);
	}
}

static void ask_transfers(sd_bus *bus, int *counts)
{
	assert_true(sd_bus_call_method_async(bus, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListTransfers", count_answer,
					     counts, "") >= 0);
	/* the agent has handled everything that was sent before this call */
	get_string(bus, "State", "running");
}

static void listings_are_shared(void **state)
{
	sd_bus *one = client(true), *two = client(true), *gone = client(true);
	int counts[2] = { 0 }, others[2] = { 0 }, lost[2] = { 0 };

	fake.hold = true;
	for (int i = 0; i < 4; i++)
		ask_transfers(one, counts);
	ask_transfers(two, others);
	ask_transfers(gone, lost);
	assert_int_equal(fake.listings, 1);
	/* the fifth is refused at once */
	ask_transfers(one, counts);
	settle(one, &counts[1], 1);
	assert_int_equal(counts[0], 0);

	sd_bus_close_unref(gone);
	get_string(two, "State", "running");
	order(ORDER_ANSWER);
	settle(one, &counts[0], 1);
	assert_int_equal(others[0], 0);
	/* requests during that listing share a second one */
	assert_int_equal(fake.listings, 2);
	order(ORDER_ANSWER);
	settle(one, &counts[0], 4);
	settle(two, &others[0], 1);
	assert_int_equal(fake.listings, 2);

	/* a request that is open when the agent ends does no harm */
	ask_transfers(two, others);
	sd_bus_flush_close_unref(one);
	sd_bus_flush_close_unref(two);
}

static void ask_health(sd_bus *bus, int want_alive, const char *want_reason)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	const char *reason, *key, *name, *why;
	sd_bus_message *m = NULL;
	int alive, ready, ok, required, rows = 0;

	assert_true(sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, "Health", &err, &m, "") >= 0);
	assert_true(sd_bus_message_read(m, "bsb", &alive, &reason, &ready) > 0);
	assert_int_equal(alive, want_alive);
	assert_non_null(strstr(reason, want_reason));
	assert_false(ready);
	assert_true(sd_bus_message_enter_container(m, 'a', "a{sv}") > 0);
	for (; sd_bus_message_read(m, "a{sv}", 4, &key, "s", &name, &key, "b", &ok, &key, "b",
				   &required, &key, "s", &why) > 0;
	     rows++) {
		assert_string_equal(name, rows ? "segment:1.2.3.4:5" : "running");
		assert_int_equal(ok, !rows);
		assert_true(required);
		assert_string_equal(why, rows ? "bad ? byte" : "running");
	}
	assert_int_equal(rows, 2);
	sd_bus_message_unref(m);
}

static void health_does_not_wait_for_a_listing(void **state)
{
	sd_bus *one = client(true), *two = client(true);
	int counts[2] = { 0 };

	fake.hold = true;
	ask_transfers(one, counts);
	ask_health(two, false, "worker 0,1 has not answered for 0.");
	assert_int_equal(fake.listings, 2);
	order(ORDER_ANSWER);
	settle(one, &counts[0], 1);
	sd_bus_flush_close_unref(one);
	sd_bus_flush_close_unref(two);
}

static void health_asks_the_workers(void **state)
{
	sd_bus *bus = client(true), *gone = client(true);

	ask_health(bus, true, "");
	/* workers that do not answer are asked once, however many callers request their health */
	fake.hold = true;
	for (int i = 0; i < 3; i++)
		ask_health(bus, false, "worker 0,1 has not answered for 0.");
	assert_int_equal(fake.listings, 2);
	/* a caller that leaves meanwhile does no harm */
	assert_true(sd_bus_call_method_async(gone, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "Health", NULL, NULL, "") >= 0);
	sd_bus_flush_close_unref(gone);
	order(ORDER_ANSWER);
	fake.hold = false;
	ask_health(bus, true, "");
	sd_bus_flush_close_unref(bus);
}

struct heard {
	int state_changed, properties_changed;
};

static int hear_state(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct heard *h = userdata;
	const char *old, *new;

	assert_true(sd_bus_message_read(m, "ss", &old, &new) > 0);
	assert_string_equal(old, h->state_changed ? "draining" : "running");
	assert_string_equal(new, h->state_changed ? "running" : "draining");
	h->state_changed++;
	return 0;
}

static int hear_properties(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *interface, *name, *value;
	struct heard *h = userdata;

	assert_true(sd_bus_message_read(m, "sa{sv}", &interface, 1, &name, "s", &value) > 0);
	assert_string_equal(interface, DRAY_DBUS_INTERFACE);
	assert_string_equal(name, "State");
	assert_string_equal(value, h->properties_changed ? "running" : "draining");
	h->properties_changed++;
	return 0;
}

static int drain(sd_bus *bus, unsigned ms, bool stay, sd_bus_error *err)
{
	return sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
				  "Drain", err, NULL, "ub", ms, stay);
}

static int resume(sd_bus *bus, sd_bus_error *err)
{
	return sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
				  "Resume", err, NULL, NULL);
}

static void drain_is_signalled_to_all(void **state)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus *buses[2] = { client(true), client(false) };
	struct heard heard[2] = { { 0 } };

	for (int i = 0; i < 2; i++) {
		assert_true(sd_bus_match_signal(buses[i], NULL, i ? NULL : DRAY_DBUS_INTERFACE,
						DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE, "StateChanged",
						hear_state, &heard[i]) >= 0);
		assert_true(sd_bus_match_signal(buses[i], NULL, NULL, DRAY_DBUS_PATH,
						"org.freedesktop.DBus.Properties",
						"PropertiesChanged", hear_properties,
						&heard[i]) >= 0);
		get_string(buses[i], "State", "running");
	}
	assert_true(drain(buses[0], 1500, true, &err) >= 0);
	assert_int_equal(fake.drain_timeout, 1500 * DRAY_NS_PER_MS);
	assert_true(fake.agent.stay);
	for (int i = 0; i < 2; i++) {
		settle(buses[i], &heard[i].properties_changed, 1);
		assert_int_equal(heard[i].state_changed, 1);
		get_string(buses[i], "State", "draining");
	}
	assert_true(drain(buses[1], 0, false, &err) < 0);
	assert_string_equal(err.name, "dev.dray.Error.Draining");
	assert_string_equal(
		err.message,
		"the agent is draining already, and stays when drained; DrainNow or SIGTERM ends it");
	assert_int_equal(fake.drains, 1);
	sd_bus_error_free(&err);
	assert_true(resume(buses[1], &err) >= 0);
	for (int i = 0; i < 2; i++) {
		settle(buses[i], &heard[i].properties_changed, 2);
		assert_int_equal(heard[i].state_changed, 2);
		get_string(buses[i], "State", "running");
	}
	fake.agent.stopping = true;
	assert_true(resume(buses[1], &err) < 0);
	assert_string_equal(err.name, "dev.dray.Error.Stopping");
	assert_string_equal(err.message, "the agent is stopping and will exit");
	fake.agent.stopping = false;
	sd_bus_error_free(&err);
	for (int i = 0; i < 2; i++)
		sd_bus_flush_close_unref(buses[i]);
}

/* Returns the name of the error, or the first string of the answer; "" for an answer without. */
static const char *change(sd_bus *bus, const char *method, const char *types, uint64_t a,
			  uint64_t b, const char *text)
{
	static char result[400];
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus_message *m = NULL;
	const char *s = "";
	int r;

	if (!strcmp(types, "tt"))
		r = sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, method, &err, &m, types, a, b);
	else if (!strcmp(types, "ts"))
		r = sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, method, &err, &m, types, a, text);
	else if (!strcmp(types, "su"))
		r = sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, method, &err, &m, types, text,
				       (uint32_t)a);
	else
		r = sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, method, &err, &m, types, text);
	if (r >= 0 && sd_bus_message_has_signature(m, "s"))
		sd_bus_message_read(m, "s", &s);
	snprintf(result, sizeof(result), "%s", r < 0 ? err.name : s);
	sd_bus_message_unref(m);
	sd_bus_error_free(&err);
	return result;
}

static void changes_follow_the_interface(void **state)
{
	sd_bus *bus = client(true);

	assert_string_equal(change(bus, "CancelTransfer", "tt", 7, 1, ""), "cancelled");
	assert_string_equal(change(bus, "CancelTransfer", "tt", 7, 2, ""), "ok");
	assert_string_equal(change(bus, "CancelTransfer", "tt", 7, 3, ""),
			    DRAY_DBUS_ERROR_NOT_FOUND);
	assert_string_equal(change(bus, "CancelTransfer", "tt", 7, 0, ""), DRAY_DBUS_ERROR_BUSY);
	assert_string_equal(change(bus, "CancelTransfer", "tt", 8, 1, ""),
			    DRAY_DBUS_ERROR_NOT_FOUND);
	assert_string_equal(change(bus, "CloseSession", "ts", 7, 0, "old"), "");
	assert_string_equal(fake.closed, "closed by an operator: old");
	assert_string_equal(change(bus, "CloseSession", "ts", 8, 0, ""), DRAY_DBUS_ERROR_NOT_FOUND);
	assert_string_equal(fake.closed, "closed by an operator");
	assert_string_equal(change(bus, "DisableRail", "su", 1, 0, "rxe0"), "");
	assert_true(fake.disabled);
	assert_string_equal(change(bus, "EnableRail", "su", 1, 0, "rxe0"), "");
	assert_false(fake.disabled);
	assert_string_equal(change(bus, "EnableRail", "su", 2, 0, "rxe0"),
			    DRAY_DBUS_ERROR_NOT_FOUND);
	assert_string_equal(change(bus, "SetLogLevel", "s", 0, 0, "loud"),
			    SD_BUS_ERROR_INVALID_ARGS);
	get_string(bus, "LogLevel", "error");
	assert_string_equal(change(bus, "SetLogLevel", "s", 0, 0, "notice"), "");
	get_string(bus, "LogLevel", "notice");
	fake.bad_config = true;
	assert_string_equal(change(bus, "Reload", "", 0, 0, NULL), DRAY_DBUS_ERROR_CONFIG);
	sd_bus_flush_close_unref(bus);
}

static void pending_cancels_are_limited_and_end_with_their_caller(void **state)
{
	sd_bus *bus = client(true), *other = client(true);
	int counts[2] = { 0, 0 };

	for (int i = 0; i < 65; i++)
		assert_true(sd_bus_call_method_async(bus, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
						     DRAY_DBUS_INTERFACE, "CancelTransfer",
						     count_answer, counts, "tt", (uint64_t)7,
						     (uint64_t)4) >= 0);
	/* one too many; the others never end */
	settle(bus, &counts[1], 1);
	assert_int_equal(counts[0], 0);
	/* closing the connection ends its requests */
	sd_bus_flush_close_unref(bus);
	for (int tries = 0; order(ORDER_COUNT), its.cancels; tries++) {
		assert_true(tries < 10000);
		get_string(other, "State", "running");
	}
	sd_bus_flush_close_unref(other);
}

static void bus_clients_find_a_bus(void **state)
{
	sd_bus_error err = SD_BUS_ERROR_NULL;
	sd_bus *bus = client(true);
	sd_bus_message *m = NULL;
	const char *name, *owner;

	assert_true(sd_bus_get_unique_name(bus, &name) >= 0);
	assert_string_equal(name, ":1.1");
	assert_true(sd_bus_call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus",
				       "org.freedesktop.DBus", "Hello", &err, NULL, "") < 0);
	assert_string_equal(err.name, SD_BUS_ERROR_FAILED);
	sd_bus_error_free(&err);
	assert_true(sd_bus_call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus",
				       "org.freedesktop.DBus", "GetNameOwner", &err, &m, "s",
				       DRAY_DBUS_INTERFACE) >= 0);
	assert_true(sd_bus_message_read(m, "s", &owner) > 0);
	assert_string_equal(owner, ":1.0");
	sd_bus_message_unref(m);
	assert_true(sd_bus_call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus",
				       "org.freedesktop.DBus", "GetNameOwner", &err, NULL, "s",
				       "com.example.Nobody") < 0);
	assert_string_equal(err.name, SD_BUS_ERROR_NAME_HAS_NO_OWNER);
	sd_bus_error_free(&err);
	assert_true(sd_bus_call_method(bus, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
				       DRAY_DBUS_INTERFACE, "NoSuchMethod", &err, NULL, "") < 0);
	assert_string_equal(err.name, SD_BUS_ERROR_UNKNOWN_METHOD);
	sd_bus_error_free(&err);
	sd_bus_flush_close_unref(bus);
}

/* Long lists are made in several turns of the loop, for several clients at a time. */
static void long_lists_take_turns(void **state)
{
	const int n = 3 * LISTED_PER_TURN + 1;
	sd_bus *bus = client(true), *gone = client(true);
	int counts[2] = { 0 };

	fake.n_leases = fake.n_scopes = (uint32_t)n;
	/* a client that does not wait for its lists */
	assert_true(sd_bus_call_method_async(gone, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListLeases", count_answer,
					     counts, "") >= 0);
	assert_true(sd_bus_call_method_async(gone, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListHints", count_answer, counts,
					     "") >= 0);
	sd_bus_flush_close_unref(gone);
	assert_int_equal(rows_check(call(bus, "ListLeases"), dray_dbus_lease_fields,
				    DRAY_DBUS_LEASE_FIELD_N, see_setting),
			 n);
	assert_int_equal(rows_check(call(bus, "ListHints"), dray_dbus_hint_fields,
				    DRAY_DBUS_HINT_FIELD_N, see_setting),
			 n);
	assert_in_range(fake.most_listed, 1, LISTED_PER_TURN);
	sd_bus_flush_close_unref(bus);
}

struct answers {
	int n, long_list; /* which of the answers it was */
};

static int long_list_answered(sd_bus_message *m, void *arg, sd_bus_error *reterr)
{
	struct answers *a = arg;

	assert_int_equal(rows_check(sd_bus_message_ref(m), dray_dbus_session_fields,
				    DRAY_DBUS_SESSION_FIELD_N, see_setting),
			 fake.n_sessions);
	a->long_list = ++a->n;
	return 0;
}

static int short_list_answered(sd_bus_message *m, void *arg, sd_bus_error *reterr)
{
	assert_false(sd_bus_message_is_method_error(m, NULL));
	((struct answers *)arg)->n++;
	return 0;
}

/* Calls that come behind that of a long list do not wait for the list. */
static void calls_overtake_long_lists(void **state)
{
	sd_bus *bus = client(true);
	struct answers a = { 0 };

	fake.n_sessions = 40 * LISTED_PER_TURN;
	get_string(bus, "State", "running");
	order(ORDER_HOLD);
	assert_true(sd_bus_call_method_async(bus, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListSessions",
					     long_list_answered, &a, "") >= 0);
	assert_true(sd_bus_call_method_async(bus, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListRegions",
					     short_list_answered, &a, "") >= 0);
	assert_true(sd_bus_flush(bus) >= 0);
	let_go();
	settle(bus, &a.n, 2);
	assert_int_equal(a.long_list, 2);
	sd_bus_flush_close_unref(bus);
}

static void ask_sessions(sd_bus *bus, int *counts)
{
	assert_true(sd_bus_call_method_async(bus, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListSessions", count_answer,
					     counts, "") >= 0);
}

/* Until n lists have come or were refused. */
static void lists_end(sd_bus *bus, const int *counts, int n)
{
	while (counts[0] + counts[1] < n)
		if (sd_bus_process(bus, NULL) == 0)
			assert_true(sd_bus_wait(bus, 5 * SECOND) > 0);
}

/* A connection may have a few lists that are not made yet. */
static void pending_lists_are_few(void **state)
{
	sd_bus *bus = client(true);
	int counts[2] = { 0 };

	fake.n_sessions = 6 * LISTED_PER_TURN;
	get_string(bus, "State", "running");
	order(ORDER_HOLD);
	for (int i = 0; i < 8; i++)
		ask_sessions(bus, counts);
	assert_true(sd_bus_flush(bus) >= 0);
	let_go();
	lists_end(bus, counts, 8);
	assert_in_range(counts[0], 4, 7);
	sd_bus_flush_close_unref(bus);
}

/* Long lists that are not made yet count as those that the client has not read. */
static void unread_lists_have_few_bytes(void **state)
{
	sd_bus *bus = client(true);
	int counts[2] = { 0 };

	fake.n_sessions = 40 * LISTED_PER_TURN;
	for (int i = 0; i < 4; i++)
		ask_sessions(bus, counts);
	/* the agent has handled what was sent before */
	get_string(bus, "State", "running");
	lists_end(bus, counts, 4);
	assert_int_equal(counts[0], 1);
	/* once it has read them it gets more */
	sd_bus_message_unref(call(bus, "ListSessions"));
	sd_bus_flush_close_unref(bus);
}

/* Lists of transfers come when the workers have answered, several at a time. */
static void lists_that_come_later_have_few_bytes(void **state)
{
	sd_bus *bus = client(true);
	int counts[2] = { 0 };

	/* some 2.5 MB */
	fake.n_transfers = 4096;
	fake.hold = true;
	for (int i = 0; i < 4; i++)
		ask_transfers(bus, counts);
	order(ORDER_ANSWER);
	/* the calls during that listing share a second one */
	order(ORDER_ANSWER);
	lists_end(bus, counts, 4);
	assert_int_equal(counts[0], 2);
	sd_bus_flush_close_unref(bus);
}

static void clients_that_do_not_read_are_disconnected(void **state)
{
	sd_bus *slow = client(true), *other = client(true);
	int counts[2] = { 0 };
	bool refused = false;

	fake.n_sessions = 1000;
	get_string(slow, "State", "running");
	for (int i = 0; i < 100000 && !refused; i++) {
		/* only sends, and never reads */
		refused = sd_bus_call_method_async(slow, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
						   DRAY_DBUS_INTERFACE,
						   i % 2 ? "ListSessions" : "ListRegions",
						   count_answer, counts, "") < 0 ||
			  sd_bus_flush(slow) < 0;
		if (i % 100 == 0)
			get_string(other, "State", "running");
	}
	assert_true(refused);
	get_string(other, "State", "running");
	sd_bus_close_unref(slow);

	/* a client that reads gets every answer */
	for (int i = 0; i < 40; i++)
		sd_bus_message_unref(call(other, "ListSessions"));
	sd_bus_flush_close_unref(other);
}

static void unauthenticated_connections_do_no_harm(void **state)
{
	static const char garbage[] = "GET / HTTP/1.1\r\nHost: dray\r\n\r\n";
	static const char half[] = "\0AUTH EXTERNAL ";
	char long_line[70000];
	int fds[256], silent;
	sd_id128_t id;
	sd_bus *bus;

	silent = raw_client();
	fds[0] = raw_client();
	assert_true(write(fds[0], garbage, sizeof(garbage)) > 0);
	assert_true(ends(fds[0]));
	fds[1] = raw_client();
	assert_true(write(fds[1], half, sizeof(half) - 1) > 0);
	fds[2] = raw_client();
	memset(long_line, 'A', sizeof(long_line));
	long_line[0] = '\0';
	send(fds[2], long_line, sizeof(long_line), MSG_NOSIGNAL);
	assert_true(ends(fds[2]));
	for (int i = 0; i < 3; i++)
		close(fds[i]);

	/* as many connections as are allowed; the silent one is among them */
	for (int i = 0; i < 256; i++)
		fds[i] = raw_client();
	assert_true(ends(fds[255]));
	for (int i = 0; i < 256; i++)
		close(fds[i]);
	/* others are accepted as soon as the agent has noticed that these are gone */
	for (int tries = 0;; tries++) {
		bus = client(true);
		if (sd_bus_get_bus_id(bus, &id) >= 0)
			break;
		assert_true(tries < 1000);
		sd_bus_close_unref(bus);
	}
	get_string(bus, "State", "running");
	sd_bus_flush_close_unref(bus);
	close(silent);
}

static void accepting_pauses_without_descriptors(void **state)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct rlimit old, none;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct timespec began, now;
	sd_bus *bus;

	memcpy(sa.sun_path, fake.path, strlen(fake.path));
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = (struct rlimit){ .rlim_cur = 0, .rlim_max = old.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
	/* long enough to distinguish a loop that spins from one that sleeps */
	poll(NULL, 0, 150);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_true((now.tv_sec - began.tv_sec) * 1000000000 + now.tv_nsec - began.tv_nsec <
		    100000000);

	assert_true(sd_bus_new(&bus) >= 0);
	assert_true(sd_bus_set_fd(bus, fd, fd) >= 0);
	assert_true(sd_bus_start(bus) >= 0);
	get_string(bus, "State", "running");
	sd_bus_flush_close_unref(bus);
}

/* The client reads nothing, so a flush without a limit would never return. */
static void flushing_has_a_limit(void **state)
{
	int counts[2] = { 0 };
	sd_bus *slow = client(true);

	fake.n_sessions = 5000;
	get_string(slow, "State", "running");
	assert_true(sd_bus_call_method_async(slow, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListSessions", count_answer,
					     counts, "") >= 0);
	sd_bus_flush(slow);
	order(ORDER_FLUSH);
	sd_bus_close_unref(slow);
}

/* sd-bus waits for each connection at the end of the event loop: 90 s for one that does not authenticate, without a limit for
 * one that does not read. tear_down() ends the loop. */
static void idle_clients_do_not_delay_the_exit(void **state)
{
	static const char half[] = "\0AUTH EXTERNAL ";
	int counts[2] = { 0 };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(its.silent); i++)
		its.silent[i] = raw_client();
	assert_true(write(its.silent[1], half, sizeof(half) - 1) > 0);
	its.slow = client(true);
	fake.n_sessions = 5000;
	get_string(its.slow, "State", "running");
	assert_true(sd_bus_call_method_async(its.slow, NULL, DRAY_DBUS_INTERFACE, DRAY_DBUS_PATH,
					     DRAY_DBUS_INTERFACE, "ListSessions", count_answer,
					     counts, "") >= 0);
	sd_bus_flush(its.slow);
	order(ORDER_FLUSH);
}

/* --- busctl ------------------------------------------------------------------------------------- */

#define BUSCTL_MAX (1 << 20)
/* Columns of busctl's tables, which are as wide as their widest value. */
#define COLUMNS_MAX 200

static void busctl(const char *args, const char *const *expected)
{
	char command[600];
	dray_auto_free char *text = calloc(1, BUSCTL_MAX);
	size_t n;
	FILE *f;

	snprintf(command, sizeof(command),
		 "timeout 20 busctl --no-pager --address=unix:path=%s %s 2>&1", fake.path, args);
	f = popen(command, "r");
	assert_true(f && text);
	n = fread(text, 1, BUSCTL_MAX - 1, f);
	text[n] = '\0';
	if (pclose(f) != 0)
		fail_msg("%s: %s", command, text);
	for (; *expected; expected++)
		if (!strstr(text, *expected))
			fail_msg("%s: no %s in %s", command, *expected, text);
	if (!strncmp(args, "introspect", 10))
		for (const char *line = text; *line;
		     line += strcspn(line, "\n"), line += *line != 0)
			assert_true(strcspn(line, "\n") <= COLUMNS_MAX);
}

#define AGENT DRAY_DBUS_INTERFACE " " DRAY_DBUS_PATH
#define EXPECT(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void busctl_works(void **state)
{
	if (system("busctl --version >/dev/null 2>&1"))
		skip();
	busctl("call " AGENT " " DRAY_DBUS_INTERFACE " ListPeers", EXPECT("aa{sv} 2", "fd00::1"));
	busctl("--json=short call " AGENT " " DRAY_DBUS_INTERFACE " ListTransfers",
	       EXPECT("\"direction\":{\"type\":\"s\",\"data\":\"read\"}"));
	busctl("get-property " AGENT " " DRAY_DBUS_INTERFACE " State", EXPECT("s \"running\""));
	busctl("introspect " AGENT,
	       EXPECT(DRAY_DBUS_INTERFACE, ".ListSessions", ".ListRegions", ".ListPeers",
		      ".ListTransfers", ".Drain", ".Resume", ".StateChanged", ".Counters",
		      ".UptimeNs", "emits-change"));
	busctl("introspect --xml-interface " AGENT,
	       EXPECT("name=\"timeout_ms\"", "name=\"stay\"", "name=\"transfers\""));
	busctl("get-property " AGENT " " DRAY_DBUS_INTERFACE " Counters", EXPECT("dray_sessions"));
	busctl("tree " DRAY_DBUS_INTERFACE, EXPECT(DRAY_DBUS_PATH));
	busctl("call " AGENT " " DRAY_DBUS_INTERFACE " Drain ub 0 false", EXPECT(""));
}

/* Reads until the text is in buf. */
static void read_until(int fd, char *buf, size_t size, const char *text)
{
	size_t n = strlen(buf);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	while (!strstr(buf, text)) {
		ssize_t got = n + 1 < size && poll(&p, 1, 10000) > 0 ?
				      read(fd, buf + n, size - 1 - n) :
				      0;

		if (got <= 0)
			fail_msg("no %s in %s", text, buf);
		n += (size_t)got;
		buf[n] = '\0';
	}
}

static void busctl_monitors(void **state)
{
	char address[sizeof(fake.path) + 32], text[16384] = "";
	int out[2], status;
	sd_bus *bus;
	pid_t pid;

	if (system("busctl --version >/dev/null 2>&1"))
		skip();
	snprintf(address, sizeof(address), "--address=unix:path=%s", fake.path);
	assert_int_equal(pipe(out), 0);
	pid = fork();
	if (pid == 0) {
		dup2(out[1], 1);
		dup2(out[1], 2);
		execlp("busctl", "busctl", address, "monitor", NULL);
		_exit(127);
	}
	close(out[1]);
	/* busctl prints this as soon as it is a monitor */
	read_until(out[0], text, sizeof(text), "Monitoring");
	bus = client(true);
	assert_true(drain(bus, 0, true, NULL) >= 0);
	read_until(out[0], text, sizeof(text), "Member=StateChanged");
	read_until(out[0], text, sizeof(text), "PropertiesChanged");
	sd_bus_flush_close_unref(bus);
	kill(pid, SIGTERM);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(out[0]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(properties_are_read),
		TEST(lists_have_the_keys_of_the_schema),
		TEST(placement_is_listed),
		TEST(long_lists_take_turns),
		TEST(calls_overtake_long_lists),
		TEST(pending_lists_are_few),
		TEST(unread_lists_have_few_bytes),
		TEST(lists_that_come_later_have_few_bytes),
		TEST(objects_are_found_later),
		TEST(hints_are_put_and_forgotten),
		TEST(health_asks_the_workers),
		TEST(listings_are_shared),
		TEST(health_does_not_wait_for_a_listing),
		TEST(drain_is_signalled_to_all),
		TEST(changes_follow_the_interface),
		TEST(pending_cancels_are_limited_and_end_with_their_caller),
		TEST(bus_clients_find_a_bus),
		TEST(clients_that_do_not_read_are_disconnected),
		TEST(unauthenticated_connections_do_no_harm),
		TEST(accepting_pauses_without_descriptors),
		TEST(flushing_has_a_limit),
		TEST(idle_clients_do_not_delay_the_exit),
		TEST(busctl_works),
		TEST(busctl_monitors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
