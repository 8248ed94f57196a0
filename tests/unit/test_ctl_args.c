/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of drayctl, up to where an agent is needed. */
#include <stdlib.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/command_line/values.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "tests/unit/cm.h"

#define ARGV(...) ((char *const[]){ (char[]){ "drayctl" }, __VA_ARGS__ __VA_OPT__(, ) NULL })

static const struct ctl_env env = { .control = "/nowhere/control.sock", .in = -1 };

struct run {
	int status;
	char *out, *err;
};

/* The words of the line, by spaces. */
static struct run run_with(const struct ctl_env *e, const char *line)
{
	char copy[400], *argv[20] = { (char[]){ "drayctl" } }, *save = NULL;
	struct run r;
	size_t out_n, err_n;
	FILE *out = open_memstream(&r.out, &out_n), *err = open_memstream(&r.err, &err_n);
	int argc = 1;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	r.status = ctl_run(e, out, err, argc, argv);
	fclose(out);
	fclose(err);
	return r;
}

static void done(struct run *r)
{
	free(r->out);
	free(r->err);
}

static void wrong_use_is_one_line(void **state)
{
	static const struct {
		const char *line, *says;
	} rows[] = {
		{ "stauts", "unknown verb stauts, did you mean status?" },
		{ "teapot", "unknown verb teapot; drayctl --help lists all" },
		{ "status too many", "drayctl status takes no argument, and \"too\" is one" },
		{ "help a b", "drayctl help takes one argument, and \"b\" is another" },
		{ "help stats", "unknown verb stats, did you mean status?" },
		{ "--jsn", "unknown option --jsn, did you mean --json?" },
		{ "status --frobnicate",
		  "unknown option --frobnicate; drayctl status --help lists all" },
		{ "--wait drain",
		  "--wait is an option of drayctl drain, and comes after that word" },
		{ "status --size 4",
		  "--size is an option of drayctl bench, and comes after that word" },
		{ "--control", "--control needs a value, PATH" },
		{ "--control=", "--control needs a path" },
		{ "--json=yes", "--json takes no value" },
		{ "--json --plain", "--json and --plain exclude each other" },
		{ "--timeout 5", "--timeout 5: 1ms to 1h is allowed" },
		{ "--timeout 0", "--timeout 0: 1ms to 1h is allowed" },
		{ "--timeout soon", "--timeout soon: 1ms to 1h is allowed" },
		{ "drain --timeout 10", "--timeout 10: 1ms to 1d is allowed" },
		{ "bench --size 0", "--size 0: 1 to 1TiB is allowed" },
		{ "segments --scope x", "--scope goes with --explain" },
		{ "segments --explain=x", "--explain takes no value" },
		{ "hints --set x", "--set x: SCOPE=HOST:PORT is allowed" },
		{ "hints --set x=a:1 --forget x",
		  "--set, --forget and --forget-all exclude each other" },
		{ "hints --ttl 1h", "--score and --ttl go with --set" },
		{ "env --format yaml", "--format yaml: shell|dotenv|json|args is allowed" },
		{ "env --format json --json", "--format and --json or --plain exclude each other" },
		{ "exec", "exec needs a command: drayctl exec [OPTION]... -- COMMAND [ARG]..." },
		{ "exec --wait-ready 30s -- true",
		  "--wait-ready takes its time after =, as in --wait-ready=30s" },
		{ "exec --wait-ready=0 true", "--wait-ready 0: 1ms to 1d is allowed" },
		{ "exec --on-timeout=no true", "--on-timeout no: fail|start is allowed" },
		{ "exec --kv-transfer-config {} true",
		  "--kv-transfer-config is for vllm serve and python -m vllm.entrypoints..., and true "
		  "is neither" },
		{ "--profile x env",
		  "--profile is an option of drayctl env, and comes after that word" },
		{ "wait segment=x", "segment=x: HOST:PORT, local or preferred is allowed" },
		{ "wait state=ready", "state= goes with segment=" },
		{ "wait segment=a:1 state=up",
		  "state=up: unknown, probing, ready or lost is allowed" },
		{ "wait segment=a:1 --for live", "--for and segment= exclude each other" },
		{ "bench --size 1mb", "--size 1mb: 1 to 1TiB is allowed" },
		{ "bench --ops 65537", "--ops 65537: 1 to 65536 is allowed" },
		{ "bench --batch 0x", "--batch 0x: 1 to 4096 is allowed" },
		{ "bench --class fast", "--class fast: bulk|latency is allowed" },
		{ "bench --direction up", "--direction up: read|write is allowed" },
		{ "bench --count 1 --duration 1s", "--count and --duration exclude each other" },
		{ "bench --serve --size 4",
		  "--serve and --size exclude each other: the end that measures decides" },
		{ "bench --serve --token x",
		  "--serve and --token exclude each other: the end that measures decides" },
		{ "bench --size 1TiB --ops 2",
		  "--size times --ops times --batch may be 1TiB at most" },
		{ "bench --size 1TiB --ops 65536 --batch 4096",
		  "--size times --ops times --batch may be 1TiB at most" },
		{ "bench --memory 4KiB",
		  "--memory 4KiB: --size times --ops times --batch needs 8MiB" },
		{ "bench --sessions 65", "--sessions 65: 1 to 64 is allowed" },
		{ "bench --sessions 0", "--sessions 0: 1 to 64 is allowed" },
		{ "bench --wait busy", "--wait busy: adaptive|spin|sleep is allowed" },
		{ "bench --ceiling=yes", "--ceiling takes no value" },
		{ "bench --rounds 3", "--rounds goes with --ceiling" },
		{ "bench --ceiling --rounds 0", "--rounds 0: 1 to 1000 is allowed" },
		{ "bench --ceiling --rounds 1001", "--rounds 1001: 1 to 1000 is allowed" },
		{ "bench --ceiling --count 10",
		  "--count 10: each of --rounds 11 needs one at least" },
		{ "bench --ceiling --rounds 20 --duration 19ms",
		  "--duration 19ms: each of --rounds 20 needs 1ms at least" },
		{ "bench --ceiling --token x",
		  "--token and --ceiling exclude each other: a ceiling needs both ends on this "
		  "machine, as with --owner" },
		{ "bench --owner /x --token x",
		  "--token and --owner exclude each other: each says where the other end is" },
		{ "bench --serve --owner /x",
		  "--serve and --owner exclude each other: the end that measures decides" },
		{ "bench --serve --sessions 2",
		  "--serve and --sessions exclude each other: the end that measures decides" },
		{ "bench --serve --wait spin",
		  "--serve and --wait exclude each other: the end that measures decides" },
		{ "bench --serve --ceiling",
		  "--serve and --ceiling exclude each other: the end that measures decides" },
		{ "bench --serve --rounds 3",
		  "--serve and --rounds exclude each other: the end that measures decides" },
		{ "bench --size 1TiB --batch 1 --sessions 2",
		  "--size times --ops times --batch times --sessions may be 1TiB at most" },
		{ "bench --size 1 --ops 65536 --batch 11",
		  "--ops times --batch: a session has room for lists of 16MiB, which is a --batch "
		  "of 10 here" },
		{ "bench --token x", "--token: that is not what drayctl bench --serve printed" },
		{ "bench --token -", "--token -: there is no token on standard input" },
		{ "-x", "unknown option -x; drayctl --help lists all" },
		{ "-- --json", "unknown verb --json; drayctl --help lists all" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		struct run r = run_with(&env, rows[i].line);
		char expected[300];

		snprintf(expected, sizeof(expected), "drayctl: %s\n", rows[i].says);
		if (r.status != CTL_EXIT_USAGE || strcmp(r.err, expected) || *r.out)
			fail_msg("%s: %d, \"%s\"", rows[i].line, r.status, r.err);
		done(&r);
	}
}

static void help_names_everything(void **state)
{
	struct run all = run_with(&env, "--help");
	char line[80];

	assert_int_equal(all.status, 0);
	assert_string_equal(all.err, "");
	for (unsigned i = 0; i < ctl_verbs_n; i++) {
		const struct ctl_verb *v = &ctl_verbs[i];
		struct run a, b;

		assert_non_null(v->more);
		assert_true(*v->more);
		assert_non_null(strstr(all.out, v->name));
		assert_non_null(strstr(all.out, v->help));
		snprintf(line, sizeof(line), "%s --help", v->name);
		a = run_with(&env, line);
		snprintf(line, sizeof(line), "help %s", v->name);
		b = run_with(&env, line);
		assert_int_equal(a.status, 0);
		assert_string_equal(a.out, b.out);
		assert_non_null(strstr(a.out, v->help));
		assert_non_null(strstr(a.out, v->example));
		/* examples are commands that exist */
		assert_non_null(strstr(v->example, v->name));
		for (unsigned o = 0; v->options[o]; o++)
			assert_non_null(strstr(a.out, ctl_options[v->options[o]].help));
		done(&a);
		done(&b);
	}
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		assert_non_null(strstr(all.out, ctl_options[i].name));
	done(&all);
	all = run_with(&env, "-h");
	assert_int_equal(all.status, 0);
	done(&all);
	all = run_with(&env, "help");
	assert_int_equal(all.status, 0);
	done(&all);
	all = run_with(&env, "--version");
	assert_string_equal(all.out, "drayctl " DRAY_VERSION "\n");
	done(&all);
}

static void parse(struct ctl *c, int argc, char *const *argv, const char *verb)
{
	struct ctl_err err = CTL_ERR_NULL;
	const struct ctl_verb *v = NULL;

	*c = (struct ctl){ .env = &env };
	if (ctl_args_parse(c, argc, argv, &v, &err) < 0)
		fail_msg("%s", err.msg);
	if (verb)
		assert_string_equal(v ? v->name : "none", verb);
	else
		assert_null(v);
}

static void options_are_taken(void **state)
{
	struct ctl c;
	char control[] = "--control=/x", json[] = "--json", drain[] = "drain", t[] = "--timeout";
	char two[] = "2s", ten[] = "10s", wait[] = "--wait", no[] = "--no-color";

	parse(&c, 1, ARGV(), NULL);
	assert_string_equal(c.control, "/nowhere/control.sock");
	assert_int_equal(c.format, CTL_TEXT);
	assert_int_equal(c.timeout_ns, 5 * DRAY_NS_PER_SEC);

	parse(&c, 4, ARGV(control, drain, json), "drain");
	assert_string_equal(c.control, "/x");
	assert_int_equal(c.format, CTL_JSON);

	/* before the verb it is every verb's, after it drain's */
	parse(&c, 7, ARGV(t, two, drain, wait, t, ten), "drain");
	assert_int_equal(c.timeout_ns, 2 * DRAY_NS_PER_SEC);
	assert_string_equal(c.values[CTL_OPTION_LIMIT], "10s");
	assert_non_null(c.values[CTL_OPTION_WAIT]);
	assert_null(c.values[CTL_OPTION_STAY]);
	parse(&c, 2, ARGV(no), NULL);
	assert_false(c.color);
}

static void the_environment_is_asked_last(void **state)
{
	struct ctl_env empty = { .control = "" };
	struct ctl c = { .env = &empty };
	struct ctl_err err = CTL_ERR_NULL;
	const struct ctl_verb *v;

	assert_int_equal(ctl_args_parse(&c, 1, ARGV(), &v, &err), 0);
	assert_string_equal(c.control, "/run/dray/control.sock");
}

static void no_agent_is_told_from_wrong_use(void **state)
{
	static const char *const verbs[] = { "",        "status",       "sessions",
					     "regions", "peers",        "transfers",
					     "drain",   "drain --wait", "resume" };
	struct run r;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(verbs); i++) {
		r = run_with(&env, verbs[i]);
		assert_int_equal(r.status, CTL_EXIT_UNREACHABLE);
		assert_string_equal(r.out, "");
		assert_non_null(strstr(r.err, "no agent on /nowhere/control.sock"));
		done(&r);
	}
	r = run_with(&env, "bench --socket /nowhere/data.sock");
	assert_int_equal(r.status, CTL_EXIT_UNREACHABLE);
	done(&r);
	/* its own release it knows all the same */
	r = run_with(&env, "version --plain");
	assert_int_equal(r.status, CTL_EXIT_OK);
	assert_string_equal(r.out, "drayctl\t" DRAY_VERSION "\ndrayd\t\n");
	done(&r);
}

/* Completion knows a verb's arguments by its help. */
static void arguments_are_known(void **state)
{
	static const struct {
		const char *args;
		unsigned i;
		const char *name;
		bool words;
	} rows[] = {
		{ "[VERB]", 0, "VERB", false },
		{ "", 0, "", false },
		{ "KEY", 1, "", false },
		{ "error|warn|info|debug", 0, "error|warn|info|debug", true },
		{ "[get|set KEY]", 0, "get|set", true },
		{ "[get|set KEY]", 1, "KEY", false },
		{ "rail DEVICE[/PORT]", 0, "rail", true },
		{ "rail DEVICE[/PORT]", 1, "DEVICE[/PORT]", false },
		{ "[DEVICE[/PORT]]", 0, "DEVICE[/PORT]", false },
		{ "[--wait] [--timeout DURATION] SESSION...", 0, "SESSION", false },
		{ "[--serve | --token TOKEN] [OPTION]... a-b|c_2", 0, "a-b|c_2", true },
		{ "[--explain DEVICE[/PORT] | --watch] KEY VALUE", 1, "VALUE", false },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		struct ctl_verb v = { .args = rows[i].args };
		struct ctl_values got = ctl_values_of_argument(&v, rows[i].i);

		if (got.name.n != strlen(rows[i].name) ||
		    memcmp(got.name.s, rows[i].name, got.name.n) ||
		    got.words.n != (rows[i].words ? got.name.n : 0))
			fail_msg("%s, %u: %.*s", rows[i].args, rows[i].i, (int)got.name.n,
				 got.name.s);
	}
}

static void a_full_disk_is_no_success(void **state)
{
	FILE *full = fopen("/dev/full", "w"), *err = tmpfile();
	char *argv[] = { (char[]){ "drayctl" }, (char[]){ "--help" }, NULL };

	if (!full)
		skip();
	assert_int_equal(ctl_run(&env, full, err, 2, argv), CTL_EXIT_FAILED);
	fclose(full);
	fclose(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_use_is_one_line),
		cmocka_unit_test(help_names_everything),
		cmocka_unit_test(options_are_taken),
		cmocka_unit_test(the_environment_is_asked_last),
		cmocka_unit_test(no_agent_is_told_from_wrong_use),
		cmocka_unit_test(arguments_are_known),
		cmocka_unit_test(a_full_disk_is_no_success),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
