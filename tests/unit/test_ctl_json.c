/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of drayctl --json for a fake agent, compared byte by byte with tests/data/golden/json.
 * DRAY_GOLDEN=write writes these files anew.
 */
#include <pthread.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include "ctl/bench/bench.h"
#include "ctl/ctl.h"
#include "lib/cleanup.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"
#include "schema/gen/metrics.h"
#include "tests/unit/cm.h"

#define GOLDEN "tests/data/golden/json"
#define RELEASE "0.0.0" /* of the fake agent, and in the golden files */
#define BIGGEST "18446744073709551615"

/* --- the agent ---------------------------------------------------------------------------------- */

/* Rows of a list method, fields in the order of the schema. */
static const struct list {
	const char *member;
	const struct dray_dbus_field *fields;
	unsigned n_fields;
	const char *rows[4];
} lists[] = {
	{ DRAY_DBUS_METHOD_LIST_SESSIONS,
	  dray_dbus_session_fields,
	  DRAY_DBUS_SESSION_FIELD_N,
	  { "4294967297|vllm \"0\"|pod|default|1000|1000|4711|0|2|1|3|1|60000000000|1234|5000000000",
	    "4294967298|caf\xc3\xa9\t\\\x01||team-a|4294967295|0|0|1|0|0|0|0|" BIGGEST "|0|0" } },
	{ DRAY_DBUS_METHOD_LIST_REGIONS,
	  dray_dbus_region_fields,
	  DRAY_DBUS_REGION_FIELD_N,
	  { "4294967299|kv|4294967297|memfd|rw|32|17179869184|1|2|live|mlx5_0: registered|",
	    "4294967300||4294967298|pool|r|1|" BIGGEST "|0|0|removing||",
	    "4294967301|kv gpu|4294967297|cuda_vmm|rw|1|2097152|0|0|live|mlx5_0: registered|"
	    "GPU-00000000-1111-2222-3333-444444444444" } },
	{ DRAY_DBUS_METHOD_LIST_LEASES,
	  dray_dbus_lease_fields,
	  DRAY_DBUS_LEASE_FIELD_N,
	  { "1970324836974593|4294967297|4294967299|r|128|4096|536870912|2|1|0|waiting|2000000000|28000000000",
	    "1970324836974594|4294967297|4294967299|w|1|1|" BIGGEST
	    "|1|1|0|expired|60000000000|0" } },
	{ DRAY_DBUS_METHOD_LIST_MAILBOXES,
	  dray_dbus_mailbox_fields,
	  DRAY_DBUS_MAILBOX_FIELD_N,
	  { "2251799813685249|engine \"0\"|default|4294967297|1000|1000|open|3|1024|12800|4711|1|60000000000",
	    "0|prefill-1|team-a|0|4294967295|0|reserved|0|16|0|" BIGGEST "|0|0" } },
	{ DRAY_DBUS_METHOD_LIST_QUOTAS,
	  dray_dbus_quota_fields,
	  DRAY_DBUS_QUOTA_FIELD_N,
	  { "default|1000|sessions|3|510|7|1024|0",
	    "team-a|4294967295|mapped_bytes|17592186044416|26388279066624|35184372088832|70368744177664|" BIGGEST } },
	{ DRAY_DBUS_METHOD_LIST_STORE,
	  dray_dbus_store_space_fields,
	  DRAY_DBUS_STORE_SPACE_FIELD_N,
	  { "|default|1000|2000|4194304000|4294967296|64|1500|3145728000|ok|1610612736|838860800|ok|12|34|7|14680064|2001|9|5|56",
	    "kv \"0\"||0|" BIGGEST "|0|0|0|0|0|full|0|" BIGGEST "|refusing|0|0|0|0|0|0|0|0" } },
	{ DRAY_DBUS_METHOD_LIST_PEERS,
	  dray_dbus_peer_fields,
	  DRAY_DBUS_PEER_FIELD_N,
	  { "1|abababababababababababababababab|7|10.0.0.1:7411|ready|hello answered|5000000000|1|2|1|8|"
	    "900000000|rdma|2|4|0123abcd|5000000000|6000000000",
	    "2||0|[fd00::1]:7411|connecting|connection refused|" BIGGEST
	    "|0|0|0|0|0||0|0||0|" BIGGEST } },
	{ DRAY_DBUS_METHOD_LIST_RAILS,
	  dray_dbus_rail_fields,
	  DRAY_DBUS_RAIL_FIELD_N,
	  { "mlx5_0|1|ACTIVE|1|Ethernet|200000000000|4096|eth0|0|3|::ffff:10.0.0.1|"
	    "RoCE v2, IPv4 10.0.0.1 on eth0, up|0|up||4|1|5000000000|6000000000|7000|1|0",
	    "mlx5_1|2|DOWN|0|InfiniBand|0|0||-1|-1||no GID: the port is down|-1|||0|0|0|0|0|0|" BIGGEST } },
	{ DRAY_DBUS_METHOD_LIST_PATHS,
	  dray_dbus_path_fields,
	  DRAY_DBUS_PATH_FIELD_N,
	  { "1|10.0.0.1:7411|mlx5_0|1|::ffff:10.0.0.2|0|::ffff:10.0.0.1|4096|up|same subnet|4|5000000000|"
	    "6000000000|7000|1|0",
	    "2|[fd00::1]:7411|mlx5_1|1|fd00::2|1|fd00::1|1024|failed|timed out|0|0|0|0|" BIGGEST
	    "|3" } },
	{ DRAY_DBUS_METHOD_LIST_GPUS,
	  dray_dbus_gpu_fields,
	  DRAY_DBUS_GPU_FIELD_N,
	  { "0|NVIDIA H200|GPU-00000000-1111-2222-3333-444444444444|0000:19:00.0|ready||150754820096|524288000|536870912|1|"
	    "2097152|0|measured|within 1187.4, nvlink 318.0, pcie 50.0, to_host 51.9, from_host 50.2|132|1|"
	    "NVLink 1|7516192768|18446744073709551615",
	    "1|NVIDIA H200|GPU-1|0000:29:00.0|lost|an uncorrectable error|" BIGGEST
	    "|0|0|0|0|1|built_in|within 1100.0, nvlink 320.0, pcie 50.0, to_host 52.0, from_host 51.0|"
	    "4294967295|0|none|0|5368709120" } },
	{ DRAY_DBUS_METHOD_LIST_TRANSFERS,
	  dray_dbus_transfer_fields,
	  DRAY_DBUS_TRANSFER_FIELD_N,
	  { "4294967297|8|read|latency|rdma|direct|none|mlx5_0|running|3|1099511627776|4096|2|1500000|28500000000|chatcmpl-7",
	    "4294967298|" BIGGEST "|write|bulk|gpu|peer|mixed||waiting|4294967295|0|0|0|0|0|" } },
	{ DRAY_DBUS_METHOD_LIST_ENDED_TRANSFERS,
	  dray_dbus_ended_transfer_fields,
	  DRAY_DBUS_ENDED_TRANSFER_FIELD_N,
	  { "4294967297|8|10.0.0.1:7411|read|latency|rdma|direct|none|0,2|ok|3|4096|4096|1|0|100|1|2|90|7|5000000000|chatcmpl-7",
	    "4294967298|9||write|bulk|none|none|none||deadline|1|" BIGGEST
	    "|0|0|0|60|60|0|0|0|1|" } },
	{ DRAY_DBUS_METHOD_LIST_TRANSFER_TIMES,
	  dray_dbus_transfer_time_fields,
	  DRAY_DBUS_TRANSFER_TIME_FIELD_N,
	  { "tcp|bulk|1234|5000000|6000000000|7000", "rdma|latency|" BIGGEST "|0|1|" BIGGEST } },
	{ DRAY_DBUS_METHOD_LIST_EVENTS,
	  dray_dbus_event_fields,
	  DRAY_DBUS_EVENT_FIELD_N,
	  { "1|1700000000000000000|rail|mlx5_0/1|opening|up|opened",
	    "2|1700000001000000000|session|4294967297 vllm \"0\"|open|closed|the client closed" } },
	{ DRAY_DBUS_METHOD_DUMP_CONFIG,
	  dray_dbus_setting_fields,
	  DRAY_DBUS_SETTING_FIELD_N,
	  { "log.level|info|default|1",
	    "peer.listen|10.0.0.1:7411,[::1]:7411|/etc/dray/drayd.conf:3|0" } },
	{ DRAY_DBUS_METHOD_LIST_SEGMENTS,
	  dray_dbus_segment_fields,
	  DRAY_DBUS_SEGMENT_FIELD_N,
	  { "10.0.0.2:50053|ready|1|1|1|listener,state|mooncake||the handshake was answered|5000000000|412000|17|0|"
	    "9000000000|17179869184|4096|0",
	    "node7.example:50053|lost|0|0|0|config|http|http://node7.example:9300/health|503 from before|" BIGGEST
	    "|0|3|3|250000000|0|0|60000000000" } },
	{ DRAY_DBUS_METHOD_LIST_CANDIDATES,
	  dray_dbus_candidate_fields,
	  DRAY_DBUS_CANDIDATE_FIELD_N,
	  { "1|10.0.0.2:50053|detected|ready|1|ready on this node; nothing stronger speaks for another",
	    "2|[fd00::1]:50053|hint|lost|0|a hint of score 7, but it is lost" } },
	{ DRAY_DBUS_METHOD_FIND_STORE_OBJECTS,
	  dray_dbus_store_object_fields,
	  DRAY_DBUS_STORE_OBJECT_FIELD_N,
	  { "prompt/17|2097152|125000000|4|250000|1|1|0", "\\x00\\xff|" BIGGEST "|0|1|0|0|1|1" } },
	{ DRAY_DBUS_METHOD_FIND_MOONCAKE_OBJECT,
	  dray_dbus_replica_fields,
	  DRAY_DBUS_REPLICA_FIELD_N,
	  { "10.0.0.2:15000|140149111390208|5000|tcp|http://10.0.0.9:9003",
	    "[fd00::1]:15001|" BIGGEST "|1||http://10.0.0.9:9003" } },
	{ DRAY_DBUS_METHOD_LIST_HINTS,
	  dray_dbus_hint_fields,
	  DRAY_DBUS_HINT_FIELD_N,
	  { "llama-70b|10.0.0.2:50053|explicit|0|4294967295|60000000000|86340000000000|1",
	    "|10.0.0.3:50053|client|1000|0|" BIGGEST "|0|0" } },
	{ DRAY_DBUS_METHOD_LIST_ENVIRONMENT,
	  dray_dbus_variable_fields,
	  DRAY_DBUS_VARIABLE_FIELD_N,
	  { "dray|DRAY_SOCKET|/run/it's \"here\"/dray.sock|0|0|data.socket of the agent",
	    "nccl|NCCL_IB_GID_INDEX||1|0|the ports have different GID indices: 3 on mlx5_0; 5 on mlx5_1",
	    "mooncake-owner|--host|[fd00::1]:50053|0|1|port of mooncake.owner_segment" } },
};

static const struct list conditions = {
	DRAY_DBUS_METHOD_HEALTH,
	dray_dbus_condition_fields,
	DRAY_DBUS_CONDITION_FIELD_N,
	{ "running|1|1|running", "rdma|0|1|no rail is up" },
};

static void value_append(sd_bus_message *m, const struct dray_dbus_field *field, const char *text)
{
	sd_bus_message_open_container(m, 'e', "sv");
	sd_bus_message_append(m, "s", field->key);
	if (*field->type == 's')
		sd_bus_message_append(m, "v", "s", text);
	else if (*field->type == 't')
		sd_bus_message_append(m, "v", "t", (uint64_t)strtoull(text, NULL, 10));
	else
		sd_bus_message_append(m, "v", field->type, (int)strtoll(text, NULL, 10));
	sd_bus_message_close_container(m);
}

/* fields: number of fields; an earlier release has fewer. */
static void list_append(sd_bus_message *m, const struct list *l, unsigned fields)
{
	sd_bus_message_open_container(m, 'a', "a{sv}");
	for (const char *const *row = l->rows; *row; row++) {
		dray_auto_free char *copy = strdup(*row);
		char *rest = copy;

		sd_bus_message_open_container(m, 'a', "{sv}");
		for (unsigned i = 0; i < fields && rest; i++)
			value_append(m, &l->fields[i], strsep(&rest, "|"));
		sd_bus_message_close_container(m);
	}
	sd_bus_message_close_container(m);
}

static void properties_append(sd_bus_message *m)
{
	sd_bus_message_open_container(m, 'a', "{sv}");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_STATE, "s", "running");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_VERSION, "s", RELEASE);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_AGENT_ID, "s",
			      "12000000000000000000000000000000");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_INCARNATION, "t", UINT64_MAX);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_SEGMENT, "s", "10.0.0.2:7411");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_KEYS, "s", "0123abcd 4567cdef");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_PREFERRED_SEGMENT, "s",
			      "10.0.0.2:50053");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_PID, "u", 4711);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_WORKERS, "u", 2);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_POLL_TIME_NS, "t", (uint64_t)0);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_POLL_REASON, "s", "1 CPU allowed");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_GPU_PLUGIN, "s", "CUDA 13.0");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_UPTIME_NS, "t",
			      (uint64_t)3600000000000);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_LOG_LEVEL, "s", "info");
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_TRANSFERS_LEFT, "t", (uint64_t)1);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_BYTES_LEFT, "t", (uint64_t)2);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_GRANTS_LEFT, "t", (uint64_t)3);
	sd_bus_message_append(m, "{sv}", DRAY_DBUS_PROPERTY_DEADLINE_NS, "t", (uint64_t)4);
	sd_bus_message_close_container(m);
}

/* The answer to Get, which is only called for them. */
static void counters_append(sd_bus_message *m)
{
	sd_bus_message_open_container(m, 'v', "a{st}");
	sd_bus_message_open_container(m, 'a', "{st}");
	for (unsigned i = 0; i < DRAY_METRIC_N; i++)
		sd_bus_message_append(m, "{st}", dray_metrics[i].name, (uint64_t)i + 1000);
	sd_bus_message_close_container(m);
	sd_bus_message_close_container(m);
}

static void health_append(sd_bus_message *m)
{
	sd_bus_message_append(m, "bsb", 1, "", 0);
	list_append(m, &conditions, conditions.n_fields);
}

/* A call for 7000 bytes of owner default:1000, or for the 1000 that an answer has left. */
static bool asks_of_owner(sd_bus_message *m, uint64_t *ret_bytes)
{
	const char *space, *tenant;
	uint32_t uid;

	return sd_bus_message_read(m, "ssut", &space, &tenant, &uid, ret_bytes) >= 0 && !*space &&
	       !strcmp(tenant, "default") && uid == 1000 &&
	       (*ret_bytes == 7000 || *ret_bytes == 1000);
}

/* As an agent that reads some objects in the first call, and then has no room in memory. */
static void warmed_append(sd_bus_message *m, sd_bus_message *reply)
{
	uint64_t bytes;
	bool first;

	if (!asks_of_owner(m, &bytes))
		return;
	first = bytes == 7000;
	sd_bus_message_append(reply, "utbb", first ? 3u : 0u, first ? UINT64_C(6000) : UINT64_C(0),
			      (int)!first, (int)first);
}

/* As an agent that goes on after the first call. */
static void verified_append(sd_bus_message *m, sd_bus_message *reply)
{
	static unsigned calls;
	const char *space, *tenant;
	uint64_t rate;
	uint32_t uid;

	if (sd_bus_message_read(m, "ssut", &space, &tenant, &uid, &rate) < 0 ||
	    strcmp(space, "kv") != 0 || rate != 1 << 20)
		return;
	calls++;
	sd_bus_message_append(reply, "ttttttb", UINT64_C(5) * calls, UINT64_C(5000) * calls,
			      UINT64_C(2), UINT64_C(2000), UINT64_C(1), UINT64_C(1000), calls == 1);
}

/* As an agent with three requests for two keys, the last one in the second call. */
static void traced_append(sd_bus_message *reply)
{
	static unsigned calls;

	calls++;
	sd_bus_message_open_container(reply, 'a', "(tusttuss)");
	if (calls == 1)
		sd_bus_message_append(reply, "(tusttuss)(tusttuss)", UINT64_C(1000), 1u, "get",
				      UINT64_C(77), UINT64_C(0), 0u, "not_found", "none",
				      UINT64_C(2000), 1u, "put", UINT64_C(77), UINT64_C(10), 5u,
				      "ok", "none");
	if (calls == 2)
		sd_bus_message_append(reply, "(tusttuss)", UINT64_C(3000), 2u, "get", UINT64_C(88),
				      UINT64_C(20), 6u, "ok", "disk");
	sd_bus_message_close_container(reply);
	sd_bus_message_append(reply, "tb", UINT64_C(4), calls == 1);
}

/* As an agent that evicts some objects in each call. */
static void evicted_append(sd_bus_message *m, sd_bus_message *reply)
{
	uint64_t bytes;
	bool first;

	if (!asks_of_owner(m, &bytes))
		return;
	first = bytes == 7000;
	sd_bus_message_append(reply, "utb", first ? 3u : 2u,
			      first ? UINT64_C(6000) : UINT64_C(1000), (int)first);
}

static int answer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *member = sd_bus_message_get_member(m);
	sd_bus_message *reply;

	if (sd_bus_message_new_method_return(m, &reply) < 0)
		return 0;
	if (!strcmp(member, "GetAll"))
		properties_append(reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_HEALTH))
		health_append(reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_CANCEL_TRANSFER))
		sd_bus_message_append(reply, "s", "cancelled");
	if (!strcmp(member, DRAY_DBUS_METHOD_RELOAD))
		sd_bus_message_append(reply, "asas", 1, "log.level", 2, "tcp.buffer",
				      "tcp.streams");
	if (!strcmp(member, DRAY_DBUS_METHOD_EVICT_STORE))
		evicted_append(m, reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_WARM_STORE))
		warmed_append(m, reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_VERIFY_STORE))
		verified_append(m, reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_TRACE_STORE))
		traced_append(reply);
	if (!strcmp(member, DRAY_DBUS_METHOD_FORGET_HINTS))
		sd_bus_message_append(reply, "u", 2);
	if (!strcmp(member, "Get"))
		counters_append(reply);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lists); i++)
		if (!strcmp(member, lists[i].member))
			list_append(reply, &lists[i], lists[i].n_fields);
	sd_bus_send(NULL, reply, NULL);
	sd_bus_message_unref(reply);
	return 1;
}

static struct {
	char dir[CM_DIR_BYTES], path[CM_DIR_BYTES + 16];
	pthread_t thread;
	int fd;
	sd_bus_message_handler_t answer;
} agent;

/* An agent of an earlier release: fewer methods, properties and fields. */
static int answer_old(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *member = sd_bus_message_get_member(m);
	sd_bus_message *reply;

	if (strcmp(member, "GetAll") && strcmp(member, lists[0].member)) {
		sd_bus_reply_method_errorf(m, SD_BUS_ERROR_UNKNOWN_METHOD, "Unknown method %s",
					   member);
		return 1;
	}
	if (sd_bus_message_new_method_return(m, &reply) < 0)
		return 0;
	if (!strcmp(member, "GetAll")) {
		sd_bus_message_open_container(reply, 'a', "{sv}");
		sd_bus_message_append(reply, "{sv}", DRAY_DBUS_PROPERTY_STATE, "s", "running");
		sd_bus_message_append(reply, "{sv}", DRAY_DBUS_PROPERTY_VERSION, "s", RELEASE);
		sd_bus_message_append(reply, "{sv}", "Forgotten", "ai", 1, 2);
		sd_bus_message_append(reply, "{sv}", DRAY_DBUS_PROPERTY_COUNTERS, "a{st}", 0);
		sd_bus_message_close_container(reply);
	} else {
		list_append(reply, &lists[0], DRAY_DBUS_SESSION_FIELD_RING);
	}
	sd_bus_send(NULL, reply, NULL);
	sd_bus_message_unref(reply);
	return 1;
}

/* An agent whose clients ask for more of the store than anybody can take. */
static int answer_endless(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	sd_bus_message *reply;

	if (sd_bus_message_new_method_return(m, &reply) < 0)
		return 0;
	sd_bus_message_append(reply, "a(tusttuss)", 1, UINT64_C(1000), 1u, "get", UINT64_C(77),
			      UINT64_C(0), 0u, "not_found", "none");
	sd_bus_message_append(reply, "tb", UINT64_C(0), 1);
	sd_bus_send(NULL, reply, NULL);
	sd_bus_message_unref(reply);
	return 1;
}

/* Serves one client after the other until the socket is closed. */
static void *serve(void *arg)
{
	sd_id128_t id = { .bytes = { 1 } };
	sd_bus *bus;
	int fd, ret;

	while ((fd = accept(agent.fd, NULL, NULL)) >= 0) {
		if (sd_bus_new(&bus) < 0)
			break;
		ret = sd_bus_set_fd(bus, fd, fd);
		if (ret >= 0)
			ret = sd_bus_set_server(bus, true, id);
		if (ret >= 0)
			ret = sd_bus_add_filter(bus, NULL, agent.answer, NULL);
		if (ret >= 0)
			ret = sd_bus_start(bus);
		while (ret >= 0 && (ret = sd_bus_process(bus, NULL)) >= 0)
			if (!ret)
				ret = sd_bus_wait(bus, UINT64_MAX);
		sd_bus_close_unref(bus);
	}
	return NULL;
}

static int set_up_with(sd_bus_message_handler_t fn)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	agent.answer = fn;
	cm_dir_make(agent.dir);
	snprintf(agent.path, sizeof(agent.path), "%s/c.sock", agent.dir);
	memcpy(sa.sun_path, agent.path, strlen(agent.path));
	agent.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(agent.fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(agent.fd, 8) < 0)
		return -1;
	return pthread_create(&agent.thread, NULL, serve, NULL);
}

static int set_up(void **state)
{
	return set_up_with(answer);
}

static int set_up_old(void **state)
{
	return set_up_with(answer_old);
}

static int set_up_endless(void **state)
{
	return set_up_with(answer_endless);
}

static int tear_down(void **state)
{
	shutdown(agent.fd, SHUT_RDWR);
	pthread_join(agent.thread, NULL);
	close(agent.fd);
	cm_dir_remove(agent.dir);
	return 0;
}

/* --- the output --------------------------------------------------------------------------------- */

static void compare(const char *name, const char *text)
{
	dray_auto_free char *golden = NULL;
	char file[64];

	snprintf(file, sizeof(file), "%s.json", name);
	if (getenv("DRAY_GOLDEN") && !strcmp(getenv("DRAY_GOLDEN"), "write"))
		cm_file_write(GOLDEN, file, text);
	golden = cm_file_read(GOLDEN, file);
	if (strcmp(golden, text))
		fail_msg("output of %s differs from %s/%s; DRAY_GOLDEN=write writes it anew:\n%s",
			 name, GOLDEN, file, text);
}

/* Our own release changes, but the golden files do not. */
static char *without_release(char *text)
{
	static const char ours[] = "\"" DRAY_VERSION "\"", theirs[] = "\"" RELEASE "\"";
	char *at = strstr(text, ours), *changed;

	if (!at || asprintf(&changed, "%.*s%s%s", (int)(at - text), text, theirs,
			    at + sizeof(ours) - 1) < 0)
		return text;
	free(text);
	return changed;
}

static void verbs_print_the_golden_text(void **state)
{
	static const struct {
		const char *name, *line; /* line NULL: the same as name */
	} runs[] = {
		{ "status", NULL },
		{ "sessions", NULL },
		{ "regions", NULL },
		{ "leases", NULL },
		{ "mailboxes", NULL },
		{ "quotas", NULL },
		{ "store_spaces", "store" },
		{ "store_evict", "store --evict 7000 --owner default:1000" },
		{ "store_objects", "store --keys 2 --space kv" },
		{ "store_warm", "store --warm 7000 --owner default:1000" },
		{ "store_verify", "store --verify --rate 1MiB --space kv" },
		{ "store_trace", "store --trace /dev/null --duration 1ms" },
		{ "peers", NULL },
		{ "rails", NULL },
		{ "rails_enable", "rails --enable mlx5_0/2" },
		{ "rails_disable", "rails --disable mlx5_0" },
		{ "paths", NULL },
		{ "gpus", NULL },
		{ "transfers", NULL },
		{ "ended_transfers", "transfers --recent" },
		{ "top", "top --count 1" },
		{ "events", NULL },
		{ "cancel", "cancel 4294967297 8" },
		{ "close", "close 4294967297 tired" },
		{ "segments", NULL },
		{ "candidates", "segments --explain --scope llama-70b" },
		{ "replicas", "segments --object llama/70b" },
		{ "hints", NULL },
		{ "hints_set", "hints --set llama-70b=10.0.0.2:50053 --score 7 --ttl 1h" },
		{ "hints_forget", "hints --forget llama-70b" },
		{ "variables", "env --profile dray,nccl,mooncake-owner" },
		{ "health", NULL },
		{ "wait", "wait --for live" },
		{ "drain", NULL },
		{ "resume", NULL },
		{ "reload", NULL },
		{ "settings", "config" },
		{ "config_explain", "config explain peer.heartbeat" },
		{ "log_level", "log-level" },
		{ "version", NULL },
	};
	const struct ctl_env env = { .control = agent.path, .in = -1 };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(runs); i++) {
		char line[80], json[] = "--json", name[] = "drayctl", *save = NULL;
		char *argv[12] = { name, json };
		dray_auto_free char *out = NULL;
		int argc = 2;
		size_t n;
		FILE *f = open_memstream(&out, &n);

		snprintf(line, sizeof(line), "%s", runs[i].line ? runs[i].line : runs[i].name);
		for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
			argv[argc++] = w;
		/* wait does not fail when the agent is not ready */
		bool fails = !strcmp(runs[i].name, "health") ||
			     !strcmp(runs[i].name, "store_verify");

		assert_int_equal(ctl_run(&env, f, stderr, argc, argv),
				 fails ? CTL_EXIT_FAILED : CTL_EXIT_OK);
		fclose(f);
		out = without_release(out);
		compare(runs[i].name, out);
	}
}

/* The output of an option for programs that start others. */
static void env_prints_the_golden_text(void **state)
{
	const struct ctl_env env = { .control = agent.path, .in = -1 };
	char *const argv[] = { (char[]){ "drayctl" }, (char[]){ "env" },
			       (char[]){ "--format=json" } };
	dray_auto_free char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);

	assert_int_equal(ctl_run(&env, f, stderr, 3, argv), CTL_EXIT_OK);
	fclose(f);
	compare("env", out);
}

/* Missing values are null, "-" or 0; a missing method is an error of one line. */
static void an_agent_of_an_earlier_release_is_understood(void **state)
{
	static const struct {
		const char *verb, *format, *out, *err;
		int status;
	} runs[] = {
		{ "status", "--plain", "log_level\t\n", "", 0 },
		{ "status", "--json", "\"transfers_left\": 0", "", 0 },
		{ "status", "--no-color", "drayd " RELEASE, "", 0 },
		{ "sessions", "--json", "\"bytes\": null", "", 0 },
		{ "sessions", "--no-color", "vllm", "", 0 },
		{ "top", "--count=1", "running", "does not know this method", 1 },
		{ "events", "--json", "", "does not know this method", 1 },
		{ "health", "--json", "", "does not know this method", 1 },
		{ "reload", "--json", "", "does not know this method", 1 },
	};
	const struct ctl_env env = { .control = agent.path, .in = -1 };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(runs); i++) {
		char verb[16], format[16], name[] = "drayctl";
		char *const argv[] = { name, verb, format, NULL };
		dray_auto_free char *out = NULL, *err = NULL;
		size_t n;
		FILE *f = open_memstream(&out, &n), *e = open_memstream(&err, &n);
		int status;

		snprintf(verb, sizeof(verb), "%s", runs[i].verb);
		snprintf(format, sizeof(format), "%s", runs[i].format);
		status = ctl_run(&env, f, e, 3, argv);
		fclose(f);
		fclose(e);
		if (status != runs[i].status || !strstr(err, runs[i].err) ||
		    (!status && !strstr(out, runs[i].out)))
			fail_msg("%s: %d, %s, %s", verb, status, out, err);
	}
}

/* It ends when its time is over, and by a signal, also while the agent always has more. */
static void a_trace_ends(void **state)
{
	const struct ctl_env env = { .control = agent.path, .in = -1 };
	char *const by_time[] = { (char[]){ "drayctl" },    (char[]){ "store" },
				  (char[]){ "--trace" },    (char[]){ "/dev/null" },
				  (char[]){ "--duration" }, (char[]){ "1ms" } };
	sigset_t term, former;

	alarm(60);
	assert_int_equal(ctl_run(&env, stderr, stderr, 6, by_time), CTL_EXIT_OK);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &former);
	raise(SIGTERM);
	assert_int_equal(ctl_run(&env, stderr, stderr, 4, by_time), CTL_EXIT_OK);
	sigprocmask(SIG_SETMASK, &former, NULL);
	alarm(0);
}

/* The lists above have every list method of the interface. */
static void no_list_is_missing(void **state)
{
	for (size_t i = 0; i < DRAY_DBUS_METHOD_N; i++) {
		const struct dray_dbus_method *m = &dray_dbus_methods[i];
		bool found = strcmp(m->out, "aa{sv}") != 0;

		for (size_t k = 0; k < DRAY_ARRAY_SIZE(lists); k++)
			found = found || !strcmp(m->name, lists[k].member);
		if (!found)
			fail_msg("method %s has no rows in this test", m->name);
	}
	/* each row has all fields */
	for (size_t k = 0; k < DRAY_ARRAY_SIZE(lists); k++)
		for (const char *const *row = lists[k].rows; *row; row++) {
			unsigned n = 1;

			for (const char *s = *row; *s; s++)
				n += *s == '|';
			if (n != lists[k].n_fields)
				fail_msg("%s: %u values for %u fields: %s", lists[k].member, n,
					 lists[k].n_fields, *row);
		}
}

static void bench_prints_the_golden_text(void **state)
{
	const struct bench_plan plan = { .size = 65536,
					 .ops = 256,
					 .batch = 8,
					 .sessions = 4,
					 .rounds = 11,
					 .wait = CTL_WAIT_METHOD_SPIN,
					 .direction = DRAY_DIRECTION_WRITE,
					 .priority = DRAY_PRIORITY_LATENCY };
	struct bench_result *result = calloc(1, sizeof(*result));
	dray_auto_free char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);

	assert_non_null(result);
	result->transport = DMSG_TRANSPORT_TCP;
	result->transfers = 1000;
	result->bytes = 1000ull * 256 * 65536;
	result->duration_ns = 3000000000;
	result->fairness = 0.9875;
	result->ceilings[0] = (struct bench_ceiling_result){
		"socket_loop", "bare socket loop", false, 5e9, 6e9, 0.84, 0.8, 0.9
	};
	result->ceilings[1] = (struct bench_ceiling_result){
		"tcp_echo", "bare TCP request and answer", true, 50000, 10000.5, 5, 4.75, 6
	};
	result->n_ceilings = 2;
	result->loads[0] = (struct bench_load_result){ "GPU-00000000-0000-4000-8000-000000000000",
						       400, 380, 1.0526, 250000 };
	result->n_loads = 1;
	for (uint64_t i = 1; i <= 1000; i++)
		ctl_histogram_add(&result->latency, i * 1000);
	bench_json(&plan, result, f);
	fclose(f);
	free(result);
	compare("bench", out);
}

/* Half of the speed for three seconds, in which 3 GB moved: the load lost half a second for each. */
static void a_load_is_compared(void **state)
{
	const struct bench_result transfers = { .duration_ns = 3000000000, .bytes = 3000000000 };
	struct bench_load_result l;

	bench_load_compare(&l, 400, 200, &transfers);
	assert_true(fabs(l.slowdown - 2) < 1e-9 && fabs(l.lost_ns_per_gb - 5e8) < 1);
	bench_load_compare(&l, 400, 400, &transfers);
	assert_true(fabs(l.slowdown - 1) < 1e-9 && fabs(l.lost_ns_per_gb) < 1);
	bench_load_compare(&l, 400, 500, &transfers);
	assert_true(l.slowdown < 1 && l.lost_ns_per_gb < 0);
	/* no step ended beside them */
	bench_load_compare(&l, 400, 0, &transfers);
	assert_true(fabs(l.slowdown) < 1e-9 && fabs(l.lost_ns_per_gb - 1e9) < 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(verbs_print_the_golden_text, set_up, tear_down),
		cmocka_unit_test_setup_teardown(env_prints_the_golden_text, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_agent_of_an_earlier_release_is_understood,
						set_up_old, tear_down),
		cmocka_unit_test_setup_teardown(a_trace_ends, set_up_endless, tear_down),
		cmocka_unit_test(no_list_is_missing),
		cmocka_unit_test(bench_prints_the_golden_text),
		cmocka_unit_test(a_load_is_compared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
