/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a value gets from each source into struct dray_config, and every way in which it can be
 * wrong.
 */
#include "agent/config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/config/args.h"
#include "agent/config/internal.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

#define KEY(name) DRAY_CONFIG_KEY_##name

static char dir[CM_DIR_BYTES], file[CM_DIR_BYTES + 16];

static int group_setup(void **state)
{
	cm_dir_make(dir);
	snprintf(file, sizeof(file), "%s/drayd.conf", dir);
	return 0;
}

static int group_teardown(void **state)
{
	cm_dir_remove(dir);
	return 0;
}

/* Loads a file with this text, environment and command line (lists that end in NULL). c is freed by the caller, even on errors. */
static int load_all(struct config *c, const char *text, char *const *env, char **argv,
		    struct dray_err *reterr)
{
	struct args a = ARGS_NULL;
	int argc = 0, r;

	*reterr = DRAY_ERR_NULL;
	while (argv && argv[argc])
		argc++;
	r = args_parse(&a, argc, argv, reterr);
	assert_int_equal(r, 0);
	a.config.file = "";
	if (text) {
		cm_file_write(dir, "drayd.conf", text);
		a.config.file = file;
	}
	a.config.env = env;
	*c = CONFIG_NULL;
	r = config_load(c, &a.config, reterr);
	args_deinit(&a);
	return r;
}

/* The same, but an error frees c. */
static int load(struct config *c, const char *text, char *const *env, char **argv,
		struct dray_err *reterr)
{
	int r = load_all(c, text, env, argv, reterr);

	if (r < 0)
		config_deinit(c);
	return r;
}

static void good(struct config *c, const char *text)
{
	struct dray_err e;

	if (load(c, text, NULL, NULL, &e) < 0)
		fail_msg("%s: %s", text ? text : "no file", e.msg);
}

/* Checks that the text is refused with this message after the file's name. */
static void bad(const char *text, const char *message)
{
	struct dray_err e;
	struct config c;
	int r = load(&c, text, NULL, NULL, &e);

	if (r != -EINVAL || e.code != DRAY_E_INVALID)
		fail_msg("%s: %d", text, r);
	if (strncmp(e.msg, file, strlen(file)) || strcmp(e.msg + strlen(file), message))
		fail_msg("%s: %s", text ? text : "no file", e.msg);
}

static void no_file_gives_the_defaults(void **state)
{
	struct config c;

	good(&c, NULL);
	assert_string_equal(c.v.agent.state_dir, "/var/lib/dray");
	assert_int_equal(c.v.agent.poll_time, 30000);
	assert_int_equal(c.v.data.mode, 0660);
	assert_int_equal(c.v.log.level, DRAY_CONFIG_LOG_LEVEL_INFO);
	assert_false(c.v.peer.allow_insecure);
	assert_int_equal(c.v.peer.listen.n, 0);
	assert_true(c.v.limits.pool_bytes == (int64_t)64 << 30);
	assert_int_equal(c.warnings.n, 0);
	assert_null(c.file);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		assert_string_equal(config_origin(&c, (enum dray_config_key_id)i), "default");
	config_deinit(&c);
}

static void a_named_file_must_exist(void **state)
{
	struct config_args args = { .file = "/nonexistent/drayd.conf" };
	struct dray_err e = DRAY_ERR_NULL;
	struct config c = CONFIG_NULL;

	assert_int_equal(config_load(&c, &args, &e), -ENOENT);
	config_deinit(&c);
	assert_string_equal(e.msg, "/nonexistent/drayd.conf: there is no such file; "
				   "name another one with --config");
}

static void refuse_file(const char *name)
{
	struct config_args args = { .file = name };
	struct dray_err e = DRAY_ERR_NULL;
	struct config c = CONFIG_NULL;
	char want[sizeof(dir) + 64];

	assert_int_equal(config_load(&c, &args, &e), -EINVAL);
	snprintf(want, sizeof(want), "%s is not a regular file", name);
	if (strncmp(e.msg, want, strlen(want)) != 0)
		fail_msg("%s", e.msg);
	config_deinit(&c);
}

/* None of these waits for a writer, and a pipe with a configuration is not read: a reload would find nothing in it. */
static void a_file_can_be_read_again(void **state)
{
	static const char text[] = "agent: { workers = 2; };";
	char name[sizeof(dir) + 8];
	struct dray_err e = DRAY_ERR_NULL;
	struct config c = CONFIG_NULL;
	int ends[2];

	assert_int_equal(config_load(&c, &(struct config_args){ .file = "/dev/null" }, &e), 0);
	config_deinit(&c);
	refuse_file("/dev/zero");
	refuse_file(dir);
	snprintf(name, sizeof(name), "%s/pipe", dir);
	assert_int_equal(mkfifo(name, 0600), 0);
	refuse_file(name);
	assert_int_equal(load(&c, "@include \"pipe\"", NULL, NULL, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "/pipe is not a regular file"));
	unlink(name);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
	snprintf(name, sizeof(name), "/dev/fd/%d", ends[0]);
	refuse_file(name);
	close(ends[0]);
	close(ends[1]);
}

static void every_type_is_read(void **state)
{
	struct config c;

	good(&c, "# a comment\n"
		 "agent: { state_dir = \"/x y\"; workers = 4; poll_time = \"0us\"; };\n"
		 "log = { level = \"debug\"; }\n"
		 "data: { mode = \"0600\"; group = 100; allow_uids = [ 0, 1000 ];\n"
		 "        allow_gids = (\"5\", 6L); };\n"
		 "peer: { listen = \"127.0.0.1:0, [::1]:7411\"; allow_insecure = True; }\n"
		 "tcp: { buffer = 65536; streams = 0x4 }; /* another */\n"
		 "limits: { pool_bytes = \"1.5GiB\", bytes_per_group = 8589934592L };\n");
	assert_string_equal(c.v.agent.state_dir, "/x y");
	assert_int_equal(c.v.agent.workers, 4);
	assert_int_equal(c.v.agent.poll_time, 0);
	assert_int_equal(c.v.log.level, DRAY_CONFIG_LOG_LEVEL_DEBUG);
	assert_int_equal(c.v.data.mode, 0600);
	assert_string_equal(c.v.data.group, "100");
	assert_int_equal(c.v.data.allow_uids.n, 2);
	assert_string_equal(c.v.data.allow_uids.v[1], "1000");
	assert_string_equal(c.v.data.allow_gids.v[1], "6");
	assert_int_equal(c.v.peer.listen.n, 2);
	assert_string_equal(c.v.peer.listen.v[1], "[::1]:7411");
	assert_true(c.v.peer.allow_insecure);
	assert_int_equal(c.v.tcp.buffer, 65536);
	assert_int_equal(c.v.tcp.streams, 4);
	assert_true(c.v.limits.pool_bytes == 1610612736);
	assert_true(c.v.limits.bytes_per_group == 8589934592);
	assert_string_equal(c.file, file);
	assert_true(c.origin[KEY(DATA_MODE)].source == CONFIG_FILE);
	assert_string_equal(config_origin(&c, KEY(DATA_ALLOW_GIDS)) + strlen(file), ":5");
	config_deinit(&c);
}

/* libconfig alone would read 0, 0, -1 and 660. */
static void numbers_are_never_truncated(void **state)
{
	struct config c;

	bad("agent: { workers = 4294967296; };",
	    ":1: agent.workers: \"4294967296\" is not allowed (allowed: 0 to 8)");
	bad("agent: { workers = 4294967297L; };",
	    ":1: agent.workers: \"4294967297L\" is not allowed (allowed: 0 to 8)");
	bad("agent: { workers = 18446744073709551617; };",
	    ":1: agent.workers: \"18446744073709551617\" is not allowed (allowed: 0 to 8)");
	bad("agent: { workers = 0x100000001; };",
	    ":1: agent.workers: \"0x100000001\" is not allowed (allowed: 0 to 8)");
	bad("\nlimits:\n{\n\tpool_bytes = 4294967296;\n};",
	    ":4: limits.pool_bytes: \"4294967296\" does not fit into 32 bits; write \"4GiB\"");
	bad("limits: { pool_bytes = 99999999999999999999L; };",
	    ":1: limits.pool_bytes: \"99999999999999999999L\" is not allowed (allowed: \"0\" to "
	    "\"1024TiB\")");
	bad("data: { allow_uids = [ 4294967296 ]; };",
	    ":1: data.allow_uids: \"4294967296\" is not a number of 0 to 4294967294");
	/* two values on one line, one of them wrong */
	bad("tcp: { streams = 1; }; agent: { workers = 9; };",
	    ":1: agent.workers: \"9\" is not allowed (allowed: 0 to 8)");
	good(&c, "limits: { pool_bytes = 4294967296L; };");
	assert_true(c.v.limits.pool_bytes == 4294967296);
	config_deinit(&c);
}

static void numa_nodes_are_numbers_or_none(void **state)
{
	struct config c;

	good(&c, "agent: { numa_nodes = [ \"2\", \"0\" ]; };");
	config_deinit(&c);
	good(&c, "agent: { numa_nodes = [ \"none\" ]; };");
	config_deinit(&c);
	bad("agent: { numa_nodes = [ \"1x\" ]; };",
	    ":1: agent.numa_nodes: \"1x\" is not a NUMA node: write numbers such as 0, 1, or none alone");
	bad("agent: { numa_nodes = [ \"0\", \"none\" ]; };",
	    ":1: agent.numa_nodes: \"none\" is not a NUMA node: write numbers such as 0, 1, or none alone");
}

static void modes_are_octal(void **state)
{
	struct config c;

	good(&c, "data: { mode = 0640; }; control: { mode = 0; };");
	assert_int_equal(c.v.data.mode, 0640);
	assert_int_equal(c.v.control.mode, 0);
	config_deinit(&c);
	bad("data: { mode = 640; };",
	    ":1: data.mode: \"640\" is octal and must start with 0, such as \"0660\"");
	bad("data: { mode = \"660\"; };",
	    ":1: data.mode: \"660\" is octal and must start with 0, such as \"0660\"");
	bad("data: { mode = 0888; };",
	    ":1: data.mode: \"0888\" is not allowed (allowed: octal, 0 to 0777)");
	bad("data: { mode = 01777; };",
	    ":1: data.mode: \"01777\" is not allowed (allowed: octal, 0 to 0777)");
	bad("agent: { workers = 04; };",
	    ":1: agent.workers: \"04\" is not allowed (allowed: 0 to 8)");
}

static void units_are_required(void **state)
{
	struct config c;

	bad("limits: { pool_bytes = 16G; };",
	    ":1: 16G is not a number; a value with a unit needs quotes, such as \"16GiB\"");
	bad("limits: { pool_bytes = 16GiB; };",
	    ":1: 16GiB is not a number; a value with a unit needs quotes, such as \"16GiB\"");
	bad("limits: { pool_bytes = \"16G\"; };",
	    ":1: limits.pool_bytes: \"16G\" is not a size: a number and KiB, MiB, GiB or TiB, such as "
	    "\"16MiB\"");
	bad("peer: { heartbeat = 1; };",
	    ":1: peer.heartbeat: \"1\" is not a duration: a number and ns, us, ms, s, min or h, such as "
	    "\"500ms\"");
	bad("peer: { heartbeat = \"1\"; };",
	    ":1: peer.heartbeat: \"1\" is not a duration: a number and ns, us, ms, s, min or h, such as "
	    "\"500ms\"");
	bad("peer: { heartbeat = \"2min\"; };",
	    ":1: peer.heartbeat: \"2min\" is not allowed (allowed: \"50ms\" to \"60s\")");
	bad("peer: { heartbeat = \"-1s\"; };",
	    ":1: peer.heartbeat: \"-1s\" is not allowed (allowed: \"50ms\" to \"60s\")");
	bad("transfer: { slice_size = \"32MiB\"; };",
	    ":1: transfer.slice_size: \"32MiB\" is not allowed (allowed: \"64KiB\" to \"16MiB\")");
	bad("limits: { pool_bytes = \"9999999999999TiB\"; };",
	    ":1: limits.pool_bytes: \"9999999999999TiB\" is not allowed (allowed: \"0\" to "
	    "\"1024TiB\")");
	good(&c, "agent: { drain_timeout = 0; };");
	assert_int_equal(c.v.agent.drain_timeout, 0);
	config_deinit(&c);
}

static void unknown_keys_are_refused(void **state)
{
	bad("agent: { worker = 4; };", ":1: unknown key agent.worker, did you mean agent.workers?");
	bad("agnet: { workers = 4; };", ":1: unknown key agnet, did you mean agent?");
	bad("\nworkers = 4;", ":2: unknown key workers, did you mean agent.workers?");
	bad("peer: { streams = 4; };", ":1: unknown key peer.streams, did you mean tcp.streams?");
	bad("zzz: { };", ":1: unknown key zzz; drayd --help lists all keys");
	bad("agent.workers = 4;", ":1: a key must be inside its group: agent: { workers = 4; };");
}

static void duplicates_are_refused(void **state)
{
	bad("agent: {\n workers = 4;\n workers = 4;\n};",
	    ":3: duplicate setting name in: workers = 4;");
	bad("agent: { workers = 4; };\nagent: { poll_time = \"1us\"; };",
	    ":2: duplicate setting name in: agent: { poll_time = \"1us\"; };");
}

static void wrong_types_are_refused(void **state)
{
	bad("agent = 5;", ":1: agent is a group: agent: { name = value; };");
	bad("agent: { workers = { }; };", ":1: agent.workers takes a value, not a group");
	bad("agent: { workers = [ 1 ]; };", ":1: agent.workers takes one value, not a list");
	bad("agent: { workers = true; };",
	    ":1: agent.workers: \"true\" is not allowed (allowed: 0 to 8)");
	bad("agent: { workers = 1.5; };",
	    ":1: agent.workers: \"1.5\" is not allowed (allowed: 0 to 8)");
	bad("agent: { state_dir = 5; };", ":1: agent.state_dir: \"5\" must be in quotes");
	bad("peer: { allow_insecure = \"maybe\"; };",
	    ":1: peer.allow_insecure: \"maybe\" is not allowed (allowed: true or false)");
	bad("log: { level = \"Info\"; };",
	    ":1: log.level: \"Info\" is not one of: error, warning, notice, info, debug");
	bad("log: { level = info; };", ":1: info must be in quotes");
	bad("data: { allow_uids = ( ( 1 ) ); };",
	    ":1: data.allow_uids takes strings and numbers, not lists and groups");
}

static void syntax_errors_have_their_line(void **state)
{
	bad("agent: {\n\n workers 4;\n};", ":3: 4: after = there must be exactly one value");
	bad("\n/* it\n ends never", ":2: the comment that starts here does not end");
	bad("log: { level = \"info; };\n",
	    ":1: the string that starts here does not end on its line");
	bad("log: { level = \"a\\x00b\"; };\n", ":1: the string has a NUL");
	bad("@include \"x", ":1: the name after @include does not end on its line");
	bad("a = 1 @include \"x\"", ":1: @include \"FILE\" must stand alone on its line");
	bad("/**/@include \"x\"", ":1: @include \"FILE\" must stand alone on its line");
	bad("@include x", ":1: @include needs a file name in quotes");
}

static void odd_bytes_are_refused(void **state)
{
	static const char nul[] = "agent: { workers = 4; };\0agent: { workers = 5; };";
	struct dray_err e = DRAY_ERR_NULL;
	struct config c = CONFIG_NULL;
	FILE *f = fopen(file, "we");
	char path[160];

	assert_non_null(f);
	assert_int_equal(fwrite(nul, 1, sizeof(nul), f), sizeof(nul));
	fclose(f);
	assert_int_equal(config_file_load(&c, file, &e), -EINVAL);
	assert_string_equal(e.msg + strlen(file), ": the file has a NUL byte");
	bad("agent: { state_dir = \"/a\\nb\"; };",
	    ":1: agent.state_dir: \"/a?b\" has a control character");
	bad("data: { socket = \"\"; };", ":1: data.socket: \"\" must not be empty");
	memset(path, 'a', 130);
	memcpy(path, "data: { socket = \"/", 19);
	snprintf(path + 130, sizeof(path) - 130, "\"; };");
	assert_int_equal(load(&c, path, NULL, NULL, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "107 bytes"));
}

static void a_number_can_end_the_text(void **state)
{
	bad("agent: { workers = 4; }; zzz = 06",
	    ":1: unknown key zzz; drayd --help lists all keys");
}

static void lists_are_checked(void **state)
{
	struct config c;

	bad("data: { allow_uids = [ \"root\" ]; };",
	    ":1: data.allow_uids: \"root\" is not a number of 0 to 4294967294");
	for (const char *const *word = (const char *const[]){ "1-2", "1.5", "5LLL", "0x1", NULL };
	     *word; word++) {
		char text[64], message[80];

		snprintf(text, sizeof(text), "data: { allow_uids = [ %s ]; };", *word);
		snprintf(message, sizeof(message), ":1: data.allow_uids: \"%s\" must be in quotes",
			 *word);
		bad(text, message);
	}
	bad("data: { allow_uids = [ -1 ]; };",
	    ":1: data.allow_uids: \"-1\" is not a number of 0 to 4294967294");
	bad("peer: { listen = [ \"localhost:7411\" ]; };",
	    ":1: peer.listen: \"localhost:7411\" is a name; listeners take addresses: 10.0.0.1:7411, "
	    "[::]:7411, none");
	bad("peer: { listen = [ \"127.0.0.1:1\", \"none\" ]; };",
	    ":1: peer.listen: \"none\" must stand alone");
	bad("peer: { listen = \"127.0.0.1:1,\"; };", ":1: peer.listen: \"\" has an empty element");
	bad("peer: { advertise = \"0.0.0.0:7411\"; };",
	    ":1: peer.advertise: \"0.0.0.0:7411\" is not a segment: host:port or [addr]:port that "
	    "others can reach");
	bad("segment: { known = [ \"10.0.0.1:7411\", \"10.0.0.2:7411\", \"10.0.0.1:7411 tcp\" ]; };",
	    ":1: segment.known: \"10.0.0.1:7411 tcp\" is there twice");
	bad("mooncake: { master_rpc = \"10.0.0.9:50051 x\"; };",
	    ":1: mooncake.master_rpc: \"10.0.0.9:50051 x\" is not the address of a master: write "
	    "HOST:PORT, or another form that its clients take, without blanks");
	good(&c, "segment: { known = [ \"10.0.0.1:7411\", \"10.0.0.1:7412 tcp\" ]; };");
	config_deinit(&c);
	good(&c, "peer: { listen = \"none\"; advertise = \"node-1:7411\"; };");
	assert_string_equal(c.v.peer.listen.v[0], "none");
	config_deinit(&c);
	good(&c, "peer: { listen = [ ]; };");
	assert_int_equal(c.v.peer.listen.n, 0);
	assert_true(c.origin[KEY(PEER_LISTEN)].source == CONFIG_FILE);
	config_deinit(&c);
}

static void keys_are_checked_against_each_other(void **state)
{
	struct config c;

	bad("peer: {\n heartbeat = \"3s\"; };",
	    ":2: peer.heartbeat_limit (3s) must be above peer.heartbeat (3s)");
	bad("peer: { backoff_max = \"10ms\"; };",
	    ":1: peer.backoff_max (10ms) must not be below peer.backoff_min (50ms)");
	bad("data: { socket = \"/run/dray/control.sock\"; };",
	    ":1: data.socket and control.socket must be two paths");
	bad("peer: { listen = [ \"127.0.0.1:1\", \"[::]:1\" ]; };",
	    ":1: peer.listen: \"[::]:1\" is beyond loopback and needs peer.key_file (or "
	    "peer.allow_insecure = true)");
	good(&c, "peer: { listen = [ \"[::]:1\" ]; key_file = \"/k\"; };");
	config_deinit(&c);
	good(&c, "peer: { listen = [ \"[::]:1\" ]; allow_insecure = true; };");
	config_deinit(&c);
	bad("store: { replicas = 2; peers = [ \"10.0.0.2:7411\" ]; };",
	    ":1: store.replicas = 2 needs store.peers and store.lend = true; set both");
	good(&c, "store: { replicas = 2; lend = true; peers = [ \"10.0.0.2:7411\" ]; };");
	config_deinit(&c);
	bad("store: { put_at = \"10.0.0.2:7411\"; peers = [ \"10.0.0.2:7411\" ]; };",
	    ":1: store.put_at needs store.peers and store.lend = true; set both");
	bad("store: { put_at = \"host\"; lend = true; peers = [ \"10.0.0.2:7411\" ]; };",
	    ":1: store.put_at: \"host\" is not an agent: write HOST:PORT as in store.peers, or "
	    "local, or leave it out");
	bad("store: { put_at = \"10.0.0.2:7411\"; replicas = 2; lend = true; "
	    "peers = [ \"10.0.0.2:7411\" ]; };",
	    ":1: store.put_at and store.replicas = 2 exclude each other: leave one out");
	good(&c,
	     "store: { put_at = \"10.0.0.2:7411\"; lend = true; peers = [ \"10.0.0.2:7411\" ]; };");
	assert_int_equal(c.warnings.n, 0);
	config_deinit(&c);
	good(&c,
	     "store: { put_at = \"10.0.0.3:7411\"; lend = true; peers = [ \"10.0.0.2:7411\" ]; };");
	assert_int_equal(c.warnings.n, 1);
	assert_non_null(strstr(c.warnings.v[0],
			       ":1: store.put_at is 10.0.0.3:7411, which is not in store.peers"));
	config_deinit(&c);
	good(&c, "store: { put_at = \"local\"; };");
	config_deinit(&c);
	/* the smaller limit is effective; a default above it is no error */
	good(&c, "limits: { sessions = 10; regions = 5; regions_per_group = 6; };");
	assert_int_equal(c.warnings.n, 1);
	assert_string_equal(
		c.warnings.v[0] + strlen(file),
		":1: limits.regions_per_group (6) is over limits.regions (5), which is the effective limit");
	config_deinit(&c);
}

static void check_warning(const char *text, const char *want)
{
	struct config c;

	good(&c, text);
	assert_int_equal(c.warnings.n, want ? 1 : 0);
	if (want)
		assert_string_equal(c.warnings.v[0] + strlen(file), want);
	config_deinit(&c);
}

static void limits_of_the_store_fit_together(void **state)
{
	bad("store: { disk_dir = \"/d\"; }; limits: { store_bytes = \"64MiB\"; };",
	    ":1: store.disk_dir is set and limits.store_disk_bytes is 0; set the bytes that the disk "
	    "tier may use");
	check_warning(
		"store: { disk_dir = \"/d\"; }; limits: { store_disk_bytes = \"2TiB\"; };",
		":1: store.disk_dir has no effect without limits.store_bytes, the memory of the "
		"store");
	check_warning("limits: { store_bytes = \"64MiB\"; store_disk_bytes = \"2TiB\"; };",
		      ":1: limits.store_disk_bytes has no effect without store.disk_dir");
	check_warning(
		"limits: { store_bytes = \"1GiB\"; store_bytes_per_owner = \"2GiB\"; };",
		":1: limits.store_bytes_per_owner (2GiB) is over limits.store_bytes (1GiB), which "
		"is the effective limit");
	check_warning("limits: { store_bytes = \"32MiB\"; };", NULL);
	check_warning(
		"store: { segment_size = \"64MiB\"; }; limits: { store_bytes = \"32MiB\"; };",
		":1: store.segment_size (64MiB) is over limits.store_bytes (32MiB), which is the "
		"effective limit");
}

static void objects_of_the_store_fit_into_its_limits(void **state)
{
	check_warning("store: { disk_dir = \"/d\"; };\n"
		      "limits: { store_bytes = \"64MiB\"; store_disk_bytes = \"64MiB\"; };",
		      NULL);
	check_warning(
		"store: { disk_dir = \"/d\"; };\n"
		"limits: { store_bytes = \"64MiB\"; store_disk_bytes = \"2MiB\"; };",
		":2: limits.store_disk_bytes lets one owner have 1MiB, and its objects in memory "
		"may have 32MiB: larger ones are never written to disk");
	check_warning(
		"store: { disk_dir = \"/d\"; };\n"
		"limits: { store_bytes = \"64MiB\"; store_disk_bytes = \"64MiB\";\n"
		"  store_disk_bytes_per_owner = \"31MiB\"; };",
		":3: limits.store_disk_bytes lets one owner have 31MiB, and its objects in memory "
		"may have 32MiB: larger ones are never written to disk");
	check_warning(
		"limits: { store_bytes = \"64MiB\"; store_bytes_per_owner = \"64MiB\";\n"
		"  store_held_bytes = \"64MiB\"; };",
		":2: limits.store_held_bytes lets one owner have 32MiB, and its objects in memory "
		"may have 64MiB: larger ones can never be pinned or read in place");
	check_warning("limits: { store_bytes = \"64MiB\"; store_held_bytes = \"0\"; };", NULL);
}

static void includes_are_found_and_named(void **state)
{
	struct config c;
	struct dray_err e;
	char want[200];

	cm_file_write(dir, "conf.d/one.conf", "# first\nlog: {\n level = \"debug\";\n};");
	cm_file_write(dir, "conf.d/workers.conf", "workers = 3; @nothing");
	good(&c, "@include \"conf.d/one.conf\"\nagent: { state_dir = \"/after\"; };\n");
	snprintf(want, sizeof(want), "%s/conf.d/one.conf:3", dir);
	assert_string_equal(config_origin(&c, KEY(LOG_LEVEL)), want);
	assert_string_equal(config_origin(&c, KEY(AGENT_STATE_DIR)) + strlen(file), ":2");
	config_deinit(&c);

	/* in the middle of a group; errors name the included file */
	assert_int_equal(load(&c, "agent: {\n\t@include \"conf.d/workers.conf\"\n};", NULL, NULL,
			      &e),
			 -EINVAL);
	snprintf(want, sizeof(want),
		 "%s/conf.d/workers.conf:1: @include \"FILE\" must stand alone on its "
		 "line",
		 dir);
	assert_string_equal(e.msg, want);
	cm_file_write(dir, "conf.d/workers.conf", "\nworkers = 4294967299;");
	assert_int_equal(load(&c, "agent: {\n\t@include \"conf.d/workers.conf\"\n};", NULL, NULL,
			      &e),
			 -EINVAL);
	snprintf(want, sizeof(want),
		 "%s/conf.d/workers.conf:2: agent.workers: \"4294967299\" is not "
		 "allowed (allowed: 0 to 8)",
		 dir);
	assert_string_equal(e.msg, want);

	assert_int_equal(load(&c, "\n@include \"gone.conf\"", NULL, NULL, &e), -EINVAL);
	snprintf(want, sizeof(want), "%s:2: @include: there is no file %s/gone.conf", file, dir);
	assert_string_equal(e.msg, want);
	assert_int_equal(load(&c, "@include \"drayd.conf\"", NULL, NULL, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "nested more than 10 deep"));
	/* not in a comment or a string */
	good(&c,
	     "# @include \"gone\"\n/*\n@include \"gone\"\n*/ agent: { state_dir = \"@include\"; };");
	config_deinit(&c);
}

static void includes_cannot_grow_without_end(void **state)
{
	static const char line[] = "@include \"wide.conf\"\n";
	char text[20 * (sizeof(line) - 1) + 1];
	struct dray_err e;
	struct config c;

	for (size_t i = 0; i < 20; i++)
		memcpy(text + i * (sizeof(line) - 1), line, sizeof(line));
	cm_file_write(dir, "wide.conf", text);
	assert_true(load(&c, text, NULL, NULL, &e) < 0);
	assert_int_equal(e.code, DRAY_E_INVALID);
}

static void later_sources_win(void **state)
{
	char *env[] = { (char[]){ "DRAY_AGENT_WORKERS=2" }, (char[]){ "DRAY_TCP_STREAMS=5" },
			(char[]){ "DRAY_PEER_LISTEN=127.0.0.1:1,[::1]:2" }, (char[]){ "HOME=/" },
			NULL };
	char *argv[] = { (char[]){ "drayd" }, (char[]){ "--set" }, (char[]){ "agent.workers=3" },
			 (char[]){ "--set=agent.workers=4" }, NULL };
	struct dray_err e;
	struct config c;

	assert_int_equal(load(&c, "agent: { workers = 1; poll_time = \"1us\"; };", env, argv, &e),
			 0);
	assert_int_equal(c.v.agent.workers, 4);
	assert_int_equal(c.v.tcp.streams, 5);
	assert_int_equal(c.v.agent.poll_time, 1000);
	assert_int_equal(c.v.peer.listen.n, 2);
	assert_string_equal(config_origin(&c, KEY(AGENT_WORKERS)), "command line");
	assert_string_equal(config_origin(&c, KEY(TCP_STREAMS)), "environment DRAY_TCP_STREAMS");
	assert_string_equal(config_origin(&c, KEY(AGENT_POLL_TIME)) + strlen(file), ":1");
	assert_int_equal(c.warnings.n, 0);
	config_deinit(&c);
}

static void environment_errors_name_the_variable(void **state)
{
	static const struct {
		const char *variable, *message;
	} rows[] = {
		{ "DRAY_AGENT_WORKERS=9",
		  "environment DRAY_AGENT_WORKERS: agent.workers: \"9\" is not "
		  "allowed (allowed: 0 to 8)" },
		{ "DRAY_AGENT_WORKERS=",
		  "environment DRAY_AGENT_WORKERS: agent.workers: \"\" is not "
		  "allowed (allowed: 0 to 8)" },
		{ "DRAY_DATA_MODE=660",
		  "environment DRAY_DATA_MODE: data.mode: \"660\" is octal and must "
		  "start with 0, such as \"0660\"" },
		{ "DRAY_PEER_HEARTBEAT=4s",
		  "environment DRAY_PEER_HEARTBEAT: peer.heartbeat_limit (3s) "
		  "must be above peer.heartbeat (4s)" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		char variable[64], *env[] = { variable, NULL };
		struct dray_err e;
		struct config c;

		snprintf(variable, sizeof(variable), "%s", rows[i].variable);
		assert_int_equal(load(&c, NULL, env, NULL, &e), -EINVAL);
		assert_string_equal(e.msg, rows[i].message);
	}
}

/* One refused key does not hide errors of other keys, and causes no errors of combinations with it. */
static void all_errors_are_found(void **state)
{
	static const char *const messages[] = {
		":1: agent.workers: \"9\" is not allowed (allowed: 0 to 8)",
		":3: unknown key peer.streams, did you mean tcp.streams?",
		":2: peer.heartbeat: \"1\" "
	};
	struct dray_err e;
	struct config c;

	assert_int_equal(load_all(&c,
				  "agent: { workers = 9; };\npeer: { heartbeat = \"1\"; "
				  "heartbeat_limit = \"100ms\";\n streams = 2; };",
				  NULL, NULL, &e),
			 -EINVAL);
	assert_int_equal(c.errors.n, 3);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(messages); i++) {
		bool found = false;

		for (size_t k = 0; k < c.errors.n; k++)
			found |= strstr(c.errors.v[k], messages[i]) != NULL;
		if (!found)
			fail_msg("%s is not among the errors", messages[i]);
	}
	assert_true(!strncmp(e.msg, "3 errors, the first: ", 21));
	assert_non_null(strstr(e.msg, messages[0]));
	config_deinit(&c);
}

/*
 * Kubernetes puts these into every container of a namespace with a Service named dray or dray-peer.
 */
static void injected_variables_are_ignored(void **state)
{
	char *env[] = { (char[]){ "DRAY_PORT=tcp://10.0.0.1:7411" },
			(char[]){ "DRAY_PORT_7411_TCP=tcp://10.0.0.1:7411" },
			(char[]){ "DRAY_PORT_7411_TCP_ADDR=10.0.0.1" },
			(char[]){ "DRAY_PORT_7411_TCP_PORT=7411" },
			(char[]){ "DRAY_PORT_7411_TCP_PROTO=tcp" },
			(char[]){ "DRAY_PORT_7412_UDP=udp://10.0.0.1:7412" },
			(char[]){ "DRAY_SERVICE_HOST=10.0.0.1" },
			(char[]){ "DRAY_SERVICE_PORT=7411" },
			(char[]){ "DRAY_SERVICE_PORT_METRICS=7412" },
			(char[]){ "DRAY_PEER_SERVICE_HOST=10.0.0.1" },
			(char[]){ "DRAY_PEER_PORT_7411_TCP_ADDR=10.0.0.1" },
			(char[]){ "DRAY_SOCKET=/run/dray/dray.sock" },
			(char[]){ "DRAY_LOG=debug" },
			(char[]){ "DRAY_SEGMENT=10.0.0.1:7411" },
			(char[]){ "DRAY_SPIN=0" },
			(char[]){ "DRAY_LIBRARY=/lib/libdray.so.0" },
			(char[]){ "DRAY_MOONCAKE_SEGMENT=10.0.0.1:15000" },
			(char[]){ "DRAY_MOONCAKE_ANY_UID=1" },
			(char[]){ "DRAYTON=1" },
			NULL };
	struct dray_err e;
	struct config c;

	assert_int_equal(load(&c, NULL, env, NULL, &e), 0);
	for (size_t i = 0; i < c.warnings.n; i++)
		fail_msg("%s", c.warnings.v[i]);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		assert_true(c.origin[i].source == CONFIG_DEFAULT);
	config_deinit(&c);
}

static void unknown_variables_only_warn(void **state)
{
	char *env[] = { (char[]){ "DRAY_AGENT_WORKER=3" }, (char[]){ "DRAY_PORTER=1" },
			(char[]){ "DRAY_PORT_X_TCP=1" }, (char[]){ "DRAY_NO_EQUALS" }, NULL };
	struct dray_err e;
	struct config c;

	assert_int_equal(load(&c, NULL, env, NULL, &e), 0);
	assert_int_equal(c.warnings.n, 3);
	assert_string_equal(c.warnings.v[0], "environment DRAY_AGENT_WORKER is not a setting, "
					     "ignoring it; did you mean DRAY_AGENT_WORKERS?");
	assert_string_equal(c.warnings.v[1],
			    "environment DRAY_PORTER is not a setting, ignoring it");
	config_deinit(&c);
}

static void wrong_variables_of_other_programs_only_warn(void **state)
{
	static const struct {
		const char *variable, *name, *why;
	} wrong[] = {
		{ "MOONCAKE_PREFERRED_SEGMENT=", "MOONCAKE_PREFERRED_SEGMENT=\"\" is ignored",
		  "it is blank" },
		{ "MOONCAKE_PREFERRED_SEGMENT= \t", "MOONCAKE_PREFERRED_SEGMENT=\" ?\" is ignored",
		  "HOST:PORT" },
		{ "MOONCAKE_PREFERRED_SEGMENT=10.0.0.5",
		  "MOONCAKE_PREFERRED_SEGMENT=\"10.0.0.5\" is ignored", "HOST:PORT" },
		{ "MOONCAKE_MASTER_METRICS_URL=ftp://x",
		  "MOONCAKE_MASTER_METRICS_URL=\"ftp://x\" is ignored", "http://" },
		{ "MOONCAKE_MASTER_METRICS_URL= ", "MOONCAKE_MASTER_METRICS_URL=\" \" is ignored",
		  "http://" },
		{ "MOONCAKE_MASTER_METRICS_URL=", "MOONCAKE_MASTER_METRICS_URL=\"\" is ignored",
		  "http://" },
		{ "MOONCAKE_MASTER=", "MOONCAKE_MASTER=\"\" is ignored", "HOST:PORT" },
		{ "MOONCAKE_MASTER= bad val ", "MOONCAKE_MASTER=\" bad val \" is ignored",
		  "HOST:PORT" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(wrong); i++) {
		char *env[] = { (char *)(uintptr_t)wrong[i].variable, NULL };
		struct dray_err e;
		struct config c;

		assert_int_equal(load(&c, NULL, env, NULL, &e), 0);
		assert_int_equal(c.warnings.n, 1);
		if (!strstr(c.warnings.v[0], wrong[i].name) ||
		    !strstr(c.warnings.v[0], wrong[i].why))
			fail_msg("%s", c.warnings.v[0]);
		config_deinit(&c);
	}
}

/* For any Service name, no variable that Kubernetes injects is the name of a key's variable. */
static void no_key_matches_an_injected_variable(void **state)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const char *env = dray_config_keys[i].env;

		assert_null(strstr(env, "_SERVICE_"));
		assert_null(strstr(env, "_PORT_"));
		assert_true(strcmp(env + strlen(env) - 5, "_PORT") != 0);
		assert_string_not_equal(env, "DRAY_SOCKET");
	}
}

static void systemd_names_the_default_state_directory(void **state)
{
	char *env[] = { (char[]){ "STATE_DIRECTORY=/var/lib/one:/var/lib/two" }, NULL };
	struct dray_err e;
	struct config c;

	assert_int_equal(load(&c, NULL, env, NULL, &e), 0);
	assert_string_equal(c.v.agent.state_dir, "/var/lib/one");
	assert_string_equal(config_origin(&c, KEY(AGENT_STATE_DIR)), "environment STATE_DIRECTORY");
	config_deinit(&c);
	assert_int_equal(load(&c, "agent: { state_dir = \"/mine\"; };", env, NULL, &e), 0);
	assert_string_equal(c.v.agent.state_dir, "/mine");
	config_deinit(&c);
}

static char *show(const struct config *c)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	assert_non_null(f);
	config_show(c, f);
	fclose(f);
	return text;
}

/* The output of --check-config is a configuration file that gives the same values. */
static void shown_configuration_round_trips(void **state)
{
	char *env[] = { (char[]){ "DRAY_DATA_ALLOW_UIDS=1,2,3" }, NULL };
	struct config a, b;
	struct dray_err e;
	dray_auto_free char *first = NULL;
	dray_auto_free char *second = NULL;

	assert_int_equal(
		load(&a,
		     "agent: { state_dir = \"/with \\\"quotes\\\" and \\\\ \xc3\xa9\"; };\n"
		     "data: { mode = 0; group = \"kvm\"; };\n"
		     "peer: { heartbeat = \"1500ms\"; listen = [\"127.0.0.1:5\"]; };\n"
		     "limits: { pool_bytes = \"4294967297\"; bytes_per_group = \"5TiB\"; };\n",
		     env, NULL, &e),
		0);
	first = show(&a);
	assert_non_null(strstr(first, "\tmode = \"0\"; # "));
	assert_non_null(strstr(first, "\tpool_bytes = \"4294967297\"; # "));
	assert_non_null(strstr(first, "\tallow_uids = [ \"1\", \"2\", \"3\" ]; # environment "
				      "DRAY_DATA_ALLOW_UIDS\n"));
	assert_non_null(strstr(first, "\tworkers = 0; # default\n"));
	good(&b, first);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		dray_auto_free char *x = config_value_text(&a.v, (enum dray_config_key_id)i);
		dray_auto_free char *y = config_value_text(&b.v, (enum dray_config_key_id)i);

		assert_string_equal(x, y);
		assert_true(b.origin[i].source == CONFIG_FILE);
	}
	second = show(&b);
	assert_true(strlen(second) > strlen(first));
	config_deinit(&a);
	config_deinit(&b);
}

/* Every key can be set to its own default by each source. */
static void every_key_takes_its_default(void **state)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];
		char variable[256], set[256];
		char *env[] = { variable, NULL };
		char *argv[] = { (char[]){ "drayd" }, (char[]){ "--set" }, set, NULL };
		struct dray_err e;
		struct config c;

		snprintf(variable, sizeof(variable), "%s=%s", key->env, key->def);
		snprintf(set, sizeof(set), "%s=%s", key->path, key->def);
		if (load(&c, NULL, env, NULL, &e) < 0)
			fail_msg("%s", e.msg);
		assert_true(c.origin[i].source == CONFIG_ENVIRONMENT);
		config_deinit(&c);
		assert_int_equal(load(&c, NULL, NULL, argv, &e), 0);
		assert_true(c.origin[i].source == CONFIG_COMMAND_LINE);
		config_deinit(&c);
	}
}

static void long_names_leave_room_for_the_reason(void **state)
{
	char name[250], path[sizeof(dir) + sizeof(name)], text[300];
	struct dray_err e = DRAY_ERR_NULL;
	struct config c = CONFIG_NULL;

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	snprintf(text, sizeof(text), "agent: { workers = \"%s\"; };", name);
	cm_file_write(dir, name, text);
	assert_int_equal(config_file_load(&c, path, &e), 0);
	assert_int_equal(c.errors.n, 1);
	assert_non_null(strstr(c.errors.v[0], "n:1: agent.workers: "));
	assert_non_null(strstr(c.errors.v[0], "0 to 8)"));
	config_deinit(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_file_gives_the_defaults),
		cmocka_unit_test(a_named_file_must_exist),
		cmocka_unit_test(a_file_can_be_read_again),
		cmocka_unit_test(every_type_is_read),
		cmocka_unit_test(numbers_are_never_truncated),
		cmocka_unit_test(numa_nodes_are_numbers_or_none),
		cmocka_unit_test(modes_are_octal),
		cmocka_unit_test(units_are_required),
		cmocka_unit_test(unknown_keys_are_refused),
		cmocka_unit_test(duplicates_are_refused),
		cmocka_unit_test(wrong_types_are_refused),
		cmocka_unit_test(syntax_errors_have_their_line),
		cmocka_unit_test(odd_bytes_are_refused),
		cmocka_unit_test(a_number_can_end_the_text),
		cmocka_unit_test(lists_are_checked),
		cmocka_unit_test(keys_are_checked_against_each_other),
		cmocka_unit_test(limits_of_the_store_fit_together),
		cmocka_unit_test(objects_of_the_store_fit_into_its_limits),
		cmocka_unit_test(includes_are_found_and_named),
		cmocka_unit_test(includes_cannot_grow_without_end),
		cmocka_unit_test(later_sources_win),
		cmocka_unit_test(environment_errors_name_the_variable),
		cmocka_unit_test(all_errors_are_found),
		cmocka_unit_test(injected_variables_are_ignored),
		cmocka_unit_test(unknown_variables_only_warn),
		cmocka_unit_test(wrong_variables_of_other_programs_only_warn),
		cmocka_unit_test(no_key_matches_an_injected_variable),
		cmocka_unit_test(systemd_names_the_default_state_directory),
		cmocka_unit_test(shown_configuration_round_trips),
		cmocka_unit_test(every_key_takes_its_default),
		cmocka_unit_test(long_names_leave_room_for_the_reason),
	};

	return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
