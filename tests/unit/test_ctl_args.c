/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of drayctl, without an agent. */
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "tests/unit/cm.h"

#define ARGV(...) ((char *const[]){ (char[]){ "drayctl" }, __VA_ARGS__ __VA_OPT__(, ) NULL })

static const struct ctl_env env = { .control = "/nowhere/control.sock", .in = -1 };

struct run {
	int status;
	char *out, *err;
};

/* Splits the line at spaces. */
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

static void usage_errors_are_one_line(void **state)
{
	static const struct {
		const char *line, *says;
	} rows[] = {
		{ "stauts", "unknown verb stauts, did you mean status?" },
		{ "teapot", "unknown verb teapot; drayctl --help lists all" },
		{ "status too many", "drayctl status takes no argument; remove \"too\"" },
		{ "help a b", "drayctl help takes one argument; remove \"b\"" },
		{ "help stats", "unknown verb stats, did you mean status?" },
		{ "--jsn", "unknown option --jsn, did you mean --json?" },
		{ "status --frobnicate",
		  "unknown option --frobnicate; drayctl status --help lists all" },
		{ "--wait drain",
		  "--wait is an option of drayctl drain, bench; put it after the verb" },
		{ "status --size 4",
		  "drayctl status has no option --size; it is one of drayctl bench" },
		{ "status --interval 1s",
		  "drayctl status has no option --interval; it is one of drayctl transfers, top" },
		{ "--owner a:1 store",
		  "--owner is an option of drayctl store, bench; put it after the verb" },
		{ "--control", "--control needs a value: PATH" },
		{ "store --evict --owner default:0", "--evict needs a value: SIZE" },
		{ "store --trace -h", "--trace needs a value: FILE" },
		{ "inject --parameters -f pod.yaml", "--parameters needs a value: FILE" },
		{ "inject -f -h", "--file needs a value: FILE" },
		{ "exec --profile -- true", "--profile needs a value: NAME[,NAME]..." },
		{ "--control=", "--control needs a path" },
		{ "--json=yes", "--json takes no value" },
		{ "drain --timeout 5s --timeout=6s", "--timeout is given twice; give it once" },
		{ "--timeout 5s --timeout soon", "--timeout soon is not allowed; use 1ms to 1h" },
		{ "inject -f a --file b", "--file is given twice; give it once" },
		{ "exec --wait-ready --wait-ready=1s true",
		  "--wait-ready is given twice; give it once" },
		{ "--json --plain", "--json and --plain exclude each other; give one of them" },
		{ "--timeout 5",
		  "--timeout 5 has no unit; write 5s, or use ns, us, ms, min, h or d" },
		{ "--timeout 0", "--timeout 0 is not allowed; use 1ms to 1h" },
		{ "--timeout soon", "--timeout soon is not allowed; use 1ms to 1h" },
		{ "drain --timeout 10",
		  "--timeout 10 has no unit; write 10s, or use ns, us, ms, min, h or d" },
		{ "config teapot", "config teapot is not known; use show, explain or check" },
		{ "config show x", "config show takes no argument; remove \"x\"" },
		{ "config explain", "config explain needs a KEY; drayctl config lists keys" },
		{ "config explain peer.heartbat",
		  "unknown key peer.heartbat, did you mean peer.heartbeat?" },
		{ "config check --changed", "--origin and --changed are options of config show" },
		{ "bench --size 0", "--size 0 is not allowed; use 1 to 1TiB" },
		{ "segments --scope x", "--scope has no effect without --explain; give both" },
		{ "segments --explain=x", "--explain takes no value" },
		{ "hints --set x", "--set x is not allowed; use SCOPE=HOST:PORT" },
		{ "hints --set x=a:1 --forget x",
		  "--set and --forget exclude each other; give one of them" },
		{ "hints --ttl 1h", "--ttl has no effect without --set; give both" },
		{ "env --format yaml", "--format yaml is not allowed; use shell|dotenv|json|args" },
		{ "env --format json --json",
		  "--format and --json exclude each other; --format json prints variables by name" },
		{ "exec", "exec needs a command: drayctl exec [OPTION]... -- COMMAND [ARG]..." },
		{ "exec --wait-ready 30s -- true",
		  "--wait-ready takes its value after =; write --wait-ready=30s" },
		{ "exec --wait-ready=0 true", "--wait-ready 0 is not allowed; use 1ms to 1d" },
		{ "exec --on-timeout=no true", "--on-timeout no is not allowed; use fail|start" },
		{ "exec --kv-transfer-config {} true",
		  "--kv-transfer-config needs vllm serve or python -m vllm.entrypoints...; the command is true" },
		{ "--profile x env",
		  "--profile is an option of drayctl env, exec; put it after the verb" },
		{ "wait segment=x", "segment=x is not allowed; use HOST:PORT, local or preferred" },
		{ "wait segment=a:1 segment=b:1", "segment= is given twice; give it once" },
		{ "wait state=ready", "state= has no effect without segment=; give both" },
		{ "wait segment=a:1 state=up",
		  "state=up is not allowed; use unknown, probing, ready or lost" },
		{ "wait segment=a:1 --for live",
		  "--for and segment= exclude each other; give one of them" },
		{ "bench --size 1mb", "--size 1mb is not allowed; use 1 to 1TiB" },
		{ "bench --ops 65537", "--ops 65537 is not allowed; use 1 to 65536" },
		{ "bench --batch 0x", "--batch 0x is not allowed; use 1 to 4096" },
		{ "bench --class fast", "--class fast is not allowed; use bulk|latency" },
		{ "bench --direction up", "--direction up is not allowed; use read|write" },
		{ "bench --count 1 --duration 1s",
		  "--count and --duration exclude each other; give one of them" },
		{ "bench --serve --size 4",
		  "--serve and --size exclude each other; give the second one at the end that measures" },
		{ "bench --serve --token x",
		  "--serve and --token exclude each other; give the second one at the end that measures" },
		{ "bench --size 1TiB --ops 2",
		  "--size times --ops times --batch is too large; use at most 1TiB" },
		{ "bench --size 1TiB --ops 65536 --batch 4096",
		  "--size times --ops times --batch is too large; use at most 1TiB" },
		{ "bench --memory 4KiB",
		  "--memory 4KiB is not enough; --size times --ops times --batch needs 8MiB" },
		{ "bench --sessions 65", "--sessions 65 is not allowed; use 1 to 64" },
		{ "bench --sessions 0", "--sessions 0 is not allowed; use 1 to 64" },
		{ "bench --wait busy", "--wait busy is not allowed; use adaptive|spin|sleep" },
		{ "bench --ceiling=yes", "--ceiling takes no value" },
		{ "bench --rounds 3", "--rounds has no effect without --ceiling; give both" },
		{ "bench --ceiling --rounds 0", "--rounds 0 is not allowed; use 1 to 1000" },
		{ "bench --ceiling --rounds 1001", "--rounds 1001 is not allowed; use 1 to 1000" },
		{ "bench --ceiling --count 10",
		  "--count 10 is not enough for --rounds 11; each round needs 1" },
		{ "bench --ceiling --rounds 20 --duration 19ms",
		  "--duration 19ms is not enough for --rounds 20; each round needs 1ms" },
		{ "bench --ceiling --token x",
		  "--token and --ceiling exclude each other; a ceiling needs both ends on this machine, as with --owner" },
		{ "bench --owner /x --token x",
		  "--token and --owner exclude each other; each names the other end" },
		{ "bench --serve --owner /x",
		  "--serve and --owner exclude each other; give the second one at the end that measures" },
		{ "bench --serve --sessions 2",
		  "--serve and --sessions exclude each other; give the second one at the end that measures" },
		{ "bench --serve --wait spin",
		  "--serve and --wait exclude each other; give the second one at the end that measures" },
		{ "bench --serve --ceiling",
		  "--serve and --ceiling exclude each other; give the second one at the end that measures" },
		{ "bench --serve --rounds 3",
		  "--serve and --rounds exclude each other; give the second one at the end that measures" },
		{ "bench --size 1TiB --batch 1 --sessions 2",
		  "--size times --ops times --batch times --sessions is too large; use at most 1TiB" },
		{ "bench --size 1 --ops 65536 --batch 11",
		  "--ops times --batch is too large for the 16MiB of lists of a session; use --batch 10 or less" },
		{ "bench --token x", "--token: this is not a token; use the output of --serve" },
		{ "bench --token -",
		  "--token -: standard input has no token; pipe the output of --serve" },
		{ "-x", "unknown option -x; drayctl --help lists all" },
		{ "-- --json", "unknown verb --json; drayctl --help lists all" },
		{ "transfers --count 3", "--count has no effect without --watch; give both" },
		{ "drain --force --timeout 1s",
		  "--force and --timeout exclude each other; --force sets the limit to now" },
		{ "rails --enable a --disable b",
		  "--enable and --disable exclude each other; give one of them" },
		{ "store --evict 1 --space a --owner b:1",
		  "--space and --owner exclude each other; give one of them" },
		{ "store --evict 1",
		  "--evict needs --space NAME or --owner TENANT:UID; drayctl store lists both" },
		{ "store --evict 1 --owner b",
		  "--owner b is not allowed; use TENANT:UID, such as default:0" },
		{ "store --space a",
		  "--space and --owner have no effect without --keys, --warm, --verify or --evict" },
		{ "store --keys 1",
		  "--keys needs --space NAME or --owner TENANT:UID; drayctl store lists both" },
		{ "store --keys 1001 --space a", "--keys 1001 is not allowed; use 1 to 1000" },
		{ "store --keys 1 --evict 1 --space a",
		  "--keys and --evict exclude each other; give one of them" },
		{ "store --warm 1 --owner b",
		  "--owner b is not allowed; use TENANT:UID, such as default:0" },
		{ "detect --explain x --json",
		  "--explain and --json exclude each other; --json alone has every GID with its score and reason" },
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

static void help_lists_every_verb_and_option(void **state)
{
	struct run all = run_with(&env, "--help");
	char line[80];

	assert_int_equal(all.status, 0);
	assert_string_equal(all.err, "");
	for (unsigned i = 0; i < CTL_VERB_N; i++) {
		const struct ctl_verb *v = &ctl_verbs[i];
		struct run a, b;

		assert_non_null(strstr(all.out, v->name));
		snprintf(line, sizeof(line), "%s --help", v->name);
		a = run_with(&env, line);
		snprintf(line, sizeof(line), "help %s", v->name);
		b = run_with(&env, line);
		assert_int_equal(a.status, 0);
		assert_string_equal(a.out, b.out);
		assert_string_equal(a.out, v->help);
		for (unsigned o = 0; v->options[o]; o++)
			assert_non_null(strstr(a.out, ctl_options[v->options[o]].name));
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
	*c = (struct ctl){ .env = &env };
	if (ctl_args_parse(c, argc, argv) < 0)
		fail_msg("%s", c->failure.msg);
	if (verb)
		assert_string_equal(c->verb ? c->verb->name : "none", verb);
	else
		assert_null(c->verb);
}

static void options_are_parsed(void **state)
{
	struct ctl c;
	char control[] = "--control=/x", json[] = "--json", drain[] = "drain", t[] = "--timeout";
	char two[] = "2s", ten[] = "10s", wait[] = "--wait", no[] = "--no-color";

	parse(&c, 1, ARGV(), NULL);
	assert_string_equal(c.control, "/nowhere/control.sock");
	assert_int_equal(c.format, CTL_TEXT);
	assert_int_equal(c.numbers[CTL_OPTION_TIMEOUT], 5 * DRAY_NS_PER_SEC);

	parse(&c, 4, ARGV(control, drain, json), "drain");
	assert_string_equal(c.control, "/x");
	assert_int_equal(c.format, CTL_JSON);

	/* Before the verb it is the global option, after it the option of drain. */
	parse(&c, 7, ARGV(t, two, drain, wait, t, ten), "drain");
	assert_int_equal(c.numbers[CTL_OPTION_TIMEOUT], 2 * DRAY_NS_PER_SEC);
	assert_string_equal(c.values[CTL_OPTION_LIMIT], "10s");
	assert_non_null(c.values[CTL_OPTION_WAIT]);
	assert_null(c.values[CTL_OPTION_STAY]);
	parse(&c, 2, ARGV(no), NULL);
	assert_false(c.color);
}

static void options_override_the_environment(void **state)
{
	struct ctl_env empty = { .control = "" };
	struct ctl c = { .env = &empty };

	assert_int_equal(ctl_args_parse(&c, 1, ARGV()), 0);
	assert_string_equal(c.control, "/run/dray/control.sock");
}

static void a_missing_agent_is_not_a_usage_error(void **state)
{
	static const char *const verbs[] = { "--timeout 1ms", "--timeout 1ms status",
					     "sessions",      "regions",
					     "peers",         "transfers",
					     "drain",         "drain --wait",
					     "resume" };
	struct run r;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(verbs); i++) {
		r = run_with(&env, verbs[i]);
		assert_int_equal(r.status, CTL_EXIT_UNREACHABLE);
		assert_string_equal(r.out, "");
		assert_non_null(strstr(r.err, "no agent on /nowhere/control.sock"));
		done(&r);
	}
	r = run_with(&env, "--control / status");
	assert_int_equal(r.status, CTL_EXIT_UNREACHABLE);
	assert_non_null(strstr(r.err, "/ is a folder, not a socket; name"));
	done(&r);
	r = run_with(&env, "bench --socket /nowhere/data.sock");
	assert_int_equal(r.status, CTL_EXIT_UNREACHABLE);
	done(&r);
	/* drayctl knows its own release without an agent. */
	r = run_with(&env, "version --plain");
	assert_int_equal(r.status, CTL_EXIT_OK);
	assert_string_equal(r.out, "drayctl\t" DRAY_VERSION "\ndrayd\t\n");
	done(&r);
}

static void a_full_disk_is_an_error(void **state)
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
		cmocka_unit_test(usage_errors_are_one_line),
		cmocka_unit_test(help_lists_every_verb_and_option),
		cmocka_unit_test(options_are_parsed),
		cmocka_unit_test(options_override_the_environment),
		cmocka_unit_test(a_missing_agent_is_not_a_usage_error),
		cmocka_unit_test(a_full_disk_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
