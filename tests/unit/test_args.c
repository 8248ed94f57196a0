/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define WORDS_MAX 8

/* Parses the words of text, which stay valid until the next call. */
static int parse(struct args *a, const char *text, struct dray_err *reterr)
{
	static char words[512];
	char *argv[WORDS_MAX + 1] = { words }, *save = NULL;
	int argc = 0;

	snprintf(words, sizeof(words), "drayd %s", text);
	for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		assert_true(argc < WORDS_MAX);
		argv[argc++] = w;
	}
	*a = ARGS_NULL;
	*reterr = DRAY_ERR_NULL;
	return args_parse(a, argc, argv, reterr);
}

static void good(struct args *a, const char *text)
{
	struct dray_err e;

	if (parse(a, text, &e) < 0)
		fail_msg("%s: %s", text, e.msg);
}

static void bad(const char *text, const char *message)
{
	struct dray_err e;
	struct args a;

	assert_int_equal(parse(&a, text, &e), -EINVAL);
	assert_string_equal(e.msg, message);
	assert_null(strchr(e.msg, '\n'));
	args_deinit(&a);
}

static void actions_are_distinguished(void **state)
{
	static const struct {
		const char *text;
		enum args_action action;
	} rows[] = {
		{ "", ARGS_RUN },
		{ "--help", ARGS_HELP },
		{ "-h", ARGS_HELP },
		{ "--version", ARGS_VERSION },
		{ "--check-config", ARGS_CHECK_CONFIG },
		/* help is printed, whatever follows */
		{ "--check-config --help --nonsense", ARGS_HELP },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		struct args a;

		good(&a, rows[i].text);
		assert_int_equal(a.action, rows[i].action);
		args_deinit(&a);
	}
}

static void values_follow_or_are_attached(void **state)
{
	struct args a;

	good(&a, "--config /x.conf --set agent.workers=2 --log-level=debug --state-dir /s");
	assert_string_equal(a.config.file, "/x.conf");
	assert_int_equal(a.config.n_settings, 3);
	assert_int_equal(a.config.settings[0].key, DRAY_CONFIG_KEY_AGENT_WORKERS);
	assert_string_equal(a.config.settings[0].value, "2");
	assert_string_equal(a.config.settings[1].option, "--log-level");
	assert_string_equal(a.config.settings[1].value, "debug");
	assert_string_equal(a.config.settings[2].value, "/s");
	args_deinit(&a);
	good(&a, "--config=/y.conf --set=data.group=a=b");
	assert_string_equal(a.config.file, "/y.conf");
	assert_string_equal(a.config.settings[0].value, "a=b");
	args_deinit(&a);
}

static void list_flags_add_up(void **state)
{
	struct args a;

	good(&a, "--listen 127.0.0.1:1 --listen [::1]:2,127.0.0.1:3");
	assert_int_equal(a.config.n_settings, 1);
	assert_string_equal(a.config.settings[0].value, "127.0.0.1:1,[::1]:2,127.0.0.1:3");
	args_deinit(&a);
	bad("--listen 127.0.0.1:1 --listen none",
	    "command line --listen: peer.listen: \"none\" must stand alone");
}

static void switches_need_no_value(void **state)
{
	struct args a;

	good(&a, "--allow-insecure --check-config");
	assert_string_equal(a.config.settings[0].value, "true");
	args_deinit(&a);
	good(&a, "--allow-insecure=no");
	assert_string_equal(a.config.settings[0].value, "no");
	args_deinit(&a);
}

static void errors_of_usage_are_one_line(void **state)
{
	bad("--confg x", "unknown option --confg, did you mean --config?");
	bad("--state_dir=/x", "unknown option --state_dir, did you mean --state-dir?");
	bad("--zzzzzzzzzz", "unknown option --zzzzzzzzzz; drayd --help lists all");
	bad("-x", "unknown option -x; drayd --help lists all");
	bad("start", "\"start\" is not an option; drayd --help lists all");
	bad("--config", "--config needs a value");
	bad("--config=", "--config needs the name of a file");
	bad("--state-dir", "--state-dir needs a value");
	bad("--check-config=yes", "--check-config takes no value");
	bad("--set", "--set needs a value");
	bad("--set workers", "--set workers: the form is KEY=VALUE, such as agent.workers=4");
	bad("--set workers=4", "--set: unknown key workers, did you mean agent.workers?");
	bad("--set agent.wrokers=4",
	    "--set: unknown key agent.wrokers, did you mean agent.workers?");
	bad("--set agent.workers=9",
	    "command line --set: agent.workers: \"9\" is not allowed (allowed: 0 to 8)");
	bad("--allow-insecure=maybe",
	    "command line --allow-insecure: peer.allow_insecure: \"maybe\" is "
	    "not allowed (allowed: true or false)");
}

static void help_has_every_key_and_flag(void **state)
{
	dray_auto_free char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	args_help(f);
	fclose(f);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];

		if (!strstr(text, key->path) || !strstr(text, key->def) ||
		    !strstr(text, key->doc) || (key->flag && !strstr(text, key->flag)))
			fail_msg("%s", key->path);
	}
	assert_non_null(strstr(text, "--check-config"));
}

/* No flag of a key equals another option, or another option's text before its =. */
static void flags_are_distinct(void **state)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		for (int j = 0; j < i; j++)
			if (dray_config_keys[i].flag && dray_config_keys[j].flag)
				assert_string_not_equal(dray_config_keys[i].flag,
							dray_config_keys[j].flag);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(actions_are_distinguished),
		cmocka_unit_test(values_follow_or_are_attached),
		cmocka_unit_test(list_flags_add_up),
		cmocka_unit_test(switches_need_no_value),
		cmocka_unit_test(errors_of_usage_are_one_line),
		cmocka_unit_test(help_has_every_key_and_flag),
		cmocka_unit_test(flags_are_distinct),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
