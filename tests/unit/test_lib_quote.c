/* SPDX-License-Identifier: Apache-2.0 */
/* Quoted texts, checked with real shells. */
#include "lib/quote.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static const char *const values[] = {
	"",
	"plain",
	"10.0.0.1:50053",
	"[fd00::1]:50053",
	"=mlx5_0:1,mlx5_1:1",
	"a b",
	" both ends ",
	"\ttab",
	"it's",
	"''",
	"'",
	"say \"it's\"",
	"\"",
	"\\",
	"\\\\",
	"\\n",
	"a\\",
	"it's $HOME",
	"it's `id`!",
	"$(touch /tmp/dray-owned)",
	"`id`",
	"$IFS",
	"${X:-y}",
	"~",
	"~root:~",
	"a=~/b",
	"-leading",
	"--all=x",
	"*",
	"?[a-z]*",
	"{a,b}",
	"a;b",
	"a&&b|c>d<e",
	"(sub)",
	"#hash",
	"a #hash",
	"!!",
	"%s%n",
	"caf\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x90\x8e",
	"\xff\xfe bytes",
	"bell\a esc\x1b[31m",
	"\x7f",
	"a\rb",
};

static const char *const shells[] = { "/bin/sh", "/bin/bash", "/bin/dash" };

/* Runs the script; returns its output, each text followed by a newline. */
static char *run(const char *shell, const char *script)
{
	char c[] = "-c", *argv[] = { strdup(shell), c, strdup(script), NULL };
	char path[CM_DIR_BYTES + 8];
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int status;

	snprintf(path, sizeof(path), "%s/out", cm_dir);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(posix_spawn(&pid, shell, &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	free(argv[0]);
	free(argv[2]);
	return cm_file_read(cm_dir, "out");
}

static void compare(const char *shell, const char *got)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(values); i++) {
		size_t n = strlen(values[i]);

		if (strncmp(got, values[i], n) || got[n] != '\n')
			fail_msg("%s: not \"%s\" but %.40s", shell, values[i], got);
		got += n + 1;
	}
	assert_string_equal(got, "");
}

static void words_of_a_command(void **state)
{
	dray_auto_free char *script = NULL;
	size_t n;
	FILE *f = open_memstream(&script, &n);

	fputs("printf '%s\\n'", f);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(values); i++) {
		fputc(' ', f);
		dray_quote_shell(f, values[i]);
	}
	fclose(f);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(shells); i++) {
		dray_auto_free char *got = run(shells[i], script);

		compare(shells[i], got);
	}
}

static void a_file_that_shells_read(void **state)
{
	dray_auto_free char *file = NULL, *script = NULL;
	size_t n, script_n;
	FILE *f = open_memstream(&file, &n), *s = open_memstream(&script, &script_n);

	fprintf(s, "set -a; . %s/env; set +a; env_of() { printf '%%s\\n' \"$1\"; }\n", cm_dir);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(values); i++) {
		fprintf(f, "V%zu=", i);
		dray_quote_dotenv(f, values[i]);
		fputc('\n', f);
		fprintf(s, "env_of \"$V%zu\"\n", i);
	}
	fclose(f);
	fclose(s);
	cm_file_write(cm_dir, "env", file);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(shells); i++) {
		dray_auto_free char *got = run(shells[i], script);

		compare(shells[i], got);
	}
}

static void dotenv_quotes_only_where_needed(void **state)
{
	static const char *const rows[][2] = {
		{ "", "" },
		{ "mlx5_0,mlx5_1", "mlx5_0,mlx5_1" },
		{ "=mlx5_0:1", "=mlx5_0:1" },
		{ "[fd00::1]:50053", "[fd00::1]:50053" },
		{ "/run/dray/dray.sock", "/run/dray/dray.sock" },
		{ "a b", "'a b'" },
		{ "$x", "'$x'" },
		{ "it's", "\"it's\"" },
		{ "it's $x", "'it'\\''s $x'" },
		{ "~/x", "'~/x'" },
		{ "a#b", "'a#b'" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		dray_auto_free char *got = NULL;
		size_t n;
		FILE *f = open_memstream(&got, &n);

		dray_quote_dotenv(f, rows[i][0]);
		fclose(f);
		assert_string_equal(got, rows[i][1]);
	}
}

static void names_of_variables(void **state)
{
	assert_true(dray_env_name_valid("MC_GID_INDEX"));
	assert_true(dray_env_name_valid("_a1"));
	assert_false(dray_env_name_valid(""));
	assert_false(dray_env_name_valid("1A"));
	assert_false(dray_env_name_valid("A-B"));
	assert_false(dray_env_name_valid("A=B"));
	assert_false(dray_env_name_valid("A;id"));
	assert_false(dray_env_name_valid("A\n"));
	assert_false(dray_env_name_valid("\xc3\xa9"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cm_test_in_dir(words_of_a_command),
		cm_test_in_dir(a_file_that_shells_read),
		cmocka_unit_test(dotenv_quotes_only_where_needed),
		cmocka_unit_test(names_of_variables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
