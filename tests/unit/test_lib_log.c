/* SPDX-License-Identifier: Apache-2.0 */
/* Output on stderr, captured in a file. */
#include "lib/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static char text[65536];
static int saved_stderr = -1, catcher = -1;

static void stderr_catch(void)
{
	catcher = memfd_create("stderr", MFD_CLOEXEC);
	assert_true(catcher >= 0);
	saved_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	assert_true(dup2(catcher, STDERR_FILENO) >= 0);
}

/* Returns the captured text and restores stderr. */
static const char *stderr_caught(void)
{
	ssize_t n;

	assert_true(dup2(saved_stderr, STDERR_FILENO) >= 0);
	n = pread(catcher, text, sizeof(text) - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	catcher = dray_close(catcher);
	saved_stderr = dray_close(saved_stderr);
	return text;
}

/* The part of a text line after its time. */
static const char *after_time(const char *line)
{
	int n = 0;

	sscanf(line, "%*4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*6dZ %n", &n);
	assert_int_equal(n, 28);
	return line + n;
}

static void text_has_time_level_area(void **state)
{
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_TEXT);
	stderr_catch();
	log_warning("peer", "%s is lost", "10.0.0.1:7411");
	log_debug("peer", "not seen");
	assert_string_equal(after_time(stderr_caught()), "warning peer: 10.0.0.1:7411 is lost\n");
}

static void level_can_change(void **state)
{
	dray_log_setup(DRAY_LOG_ERROR, DRAY_LOG_FORMAT_JOURNAL);
	stderr_catch();
	log_warning("a", "one");
	dray_log_set_level(DRAY_LOG_DEBUG);
	assert_int_equal(dray_log_get_level(), DRAY_LOG_DEBUG);
	log_error("a", "e");
	log_warning("a", "w");
	log_notice("a", "n");
	log_info("a", "i");
	log_debug("a", "d");
	assert_string_equal(stderr_caught(), "<3>a: e\n<4>a: w\n<5>a: n\n<6>a: i\n<7>a: d\n");
}

static void controls_are_escaped(void **state)
{
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_JOURNAL);
	stderr_catch();
	log_info("a", "one\ntwo\t\x1b[31m\x7f \xc2\x9b \xff caf\xc3\xa9 \\ \"");
	assert_string_equal(stderr_caught(),
			    "<6>a: one\\ntwo\\t\\x1b[31m\\x7f \\x9b \\xff caf\xc3\xa9 \\ \"\n");
}

static void json_has_fields(void **state)
{
	const char *s;

	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_JSON);
	stderr_catch();
	log_notice("peer", "lost it, a=b is not last peer=10.0.0.1:7411 session=7 path=\"x\\\n");
	s = stderr_caught();
	assert_true(!strncmp(s, "{\"ts\":\"20", 9));
	assert_non_null(
		strstr(s, "Z\",\"level\":\"notice\",\"area\":\"peer\",\"msg\":\"lost it, a=b is "
			  "not last\",\"peer\":\"10.0.0.1:7411\",\"session\":\"7\","
			  "\"path\":\"\\\"x\\\\\\n\"}\n"));
}

static void json_members_are_never_twice(void **state)
{
	const char *s;

	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_JSON);
	stderr_catch();
	log_info("a", "m level=9 k=1 k=2");
	log_info("a", "only=fields here=too");
	log_info("a", "%s", "");
	s = stderr_caught();
	assert_non_null(strstr(s, "\"msg\":\"m level=9 k=1\",\"k\":\"2\"}\n"));
	assert_non_null(strstr(s, "\"msg\":\"\",\"only\":\"fields\",\"here\":\"too\"}\n"));
	assert_non_null(strstr(s, "\"msg\":\"\"}\n"));
}

static void json_is_always_utf8(void **state)
{
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_JSON);
	stderr_catch();
	log_info("a", "\xff \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xc3\xa9 \xe2\x82 \x01");
	assert_non_null(strstr(stderr_caught(),
			       "\"msg\":\"\\ufffd \\ufffd\\ufffd \\ufffd\\ufffd\\ufffd "
			       "\\ufffd\\ufffd\\ufffd\\ufffd \xc3\xa9 \\ufffd\\ufffd "
			       "\\u0001\"}\n"));
}

/* Whatever the length, each format writes one complete line of at most 1,000 bytes. */
static void long_lines_are_cut(void **state)
{
	static const char fills[] = { 'x', '\n', '"', '\xff' };
	char value[1100], msg[2 * sizeof(value) + 32];

	for (size_t f = 0; f < sizeof(fills); f++)
		for (size_t n = 100; n < sizeof(value); n += 13)
			for (int format = DRAY_LOG_FORMAT_TEXT; format <= DRAY_LOG_FORMAT_JSON;
			     format++) {
				const char *s;

				memset(value, fills[f], n);
				snprintf(msg, sizeof(msg), "%.*s key=%.*s other=1", (int)n, value,
					 (int)n, value);
				dray_log_setup(DRAY_LOG_INFO, (enum dray_log_format)format);
				stderr_catch();
				log_info("area", "%s", msg);
				s = stderr_caught();
				assert_true(strlen(s) <= 1000);
				assert_ptr_equal(strchr(s, '\n'), s + strlen(s) - 1);
				if (format == DRAY_LOG_FORMAT_JSON)
					assert_string_equal(s + strlen(s) - 3, "\"}\n");
				else if (n == 1088)
					assert_non_null(strstr(s, "...\n"));
			}
}

static void errno_is_kept_and_a_bad_stderr_does_no_harm(void **state)
{
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_TEXT);
	stderr_catch();
	assert_int_equal(close(STDERR_FILENO), 0);
	errno = ENOTTY;
	log_info("a", "nobody reads this");
	assert_int_equal(errno, ENOTTY);
	stderr_caught();
}

static void auto_detects_the_journal(void **state)
{
	struct stat st;
	char env[64];

	stderr_catch();
	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", env, 1);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_AUTO);
	log_info("a", "journal");
	/* inherited by a process with another stderr */
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino + 1);
	setenv("JOURNAL_STREAM", env, 1);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_AUTO);
	log_info("a", "text");
	setenv("JOURNAL_STREAM", "nonsense", 1);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_AUTO);
	log_info("a", "text");
	unsetenv("JOURNAL_STREAM");
	stderr_caught();
	assert_true(!strncmp(text, "<6>a: journal\n20", 16));
	assert_null(strstr(text + 3, "<6>"));
}

static void a_limit_counts_dropped_lines(void **state)
{
	struct dray_log_limit l = { 0 };
	uint32_t dropped;

	for (int i = 0; i < 10; i++)
		assert_true(dray_log_limit_pass(&l, 10, &dropped));
	for (int i = 0; i < 5; i++)
		assert_false(dray_log_limit_pass(&l, 10, &dropped));
	l.window_ns -= 1000000000;
	assert_true(dray_log_limit_pass(&l, 10, &dropped));
	assert_int_equal(dropped, 5);
	assert_true(dray_log_limit_pass(&l, 10, &dropped));
	assert_int_equal(dropped, 0);
}

static bool passes(struct dray_log_limits *all, const char *name)
{
	uint32_t dropped;

	return dray_log_limit_pass(dray_log_limit_of(all, name), 2, &dropped);
}

static void each_name_has_its_own_limit(void **state)
{
	struct dray_log_limits all = { 0 };
	unsigned passed = 0;

	for (int i = 0; i < 2; i++)
		assert_true(passes(&all, "agent=1"));
	assert_false(passes(&all, "agent=1"));
	assert_true(passes(&all, "agent=2"));
	/* many names together are bounded */
	for (unsigned i = 0; i < 1000; i++) {
		char name[200];

		snprintf(name, sizeof(name), "%u%0100u", i, 0);
		passed += passes(&all, name);
	}
	assert_true(passed <= 2 * DRAY_LOG_NAMES);
	/* those of a former second are forgotten */
	for (unsigned i = 0; i < DRAY_LOG_NAMES; i++)
		all.v[i].limit.window_ns -= 1000000000;
	for (int i = 0; i < 2; i++)
		assert_true(passes(&all, "agent=1"));
	assert_false(passes(&all, "agent=1"));
}

static char journal[1200];
static bool journal_takes;

static bool take(int priority, const char *area, const char *line, size_t n,
		 const struct dray_log_field *fields, unsigned n_fields)
{
	int at = snprintf(journal, sizeof(journal), "%d %s [%.*s]", priority, area, (int)n, line);

	for (unsigned i = n_fields; i > 0; i--)
		at += snprintf(journal + at, sizeof(journal) - (size_t)at, " %.*s:%.*s",
			       (int)fields[i - 1].n_key, fields[i - 1].key,
			       (int)fields[i - 1].n_value, fields[i - 1].value);
	return journal_takes;
}

static void setup_as_journal(enum dray_log_format format)
{
	char stream[64];
	struct stat st;

	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	dray_log_set_journal(take);
	dray_log_setup(DRAY_LOG_INFO, format);
	unsetenv("JOURNAL_STREAM");
}

static void the_journal_gets_fields(void **state)
{
	stderr_catch();
	setup_as_journal(DRAY_LOG_FORMAT_AUTO);
	journal_takes = true;
	log_warning("peer", "it is\nlost peer=7 dev=mlx5_0");
	/* a journal that refuses everything */
	journal_takes = false;
	log_info("peer", "it is back");
	dray_log_set_journal(NULL);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_TEXT);
	assert_string_equal(stderr_caught(), "<6>peer: it is back\n");
	assert_string_equal(journal, "6 peer [peer: it is back]");
}

static void the_journal_gets_lines_escaped(void **state)
{
	stderr_catch();
	setup_as_journal(DRAY_LOG_FORMAT_JOURNAL);
	journal_takes = true;
	log_warning("peer", "it is\nlost peer=7 dev=mlx5_0");
	dray_log_set_journal(NULL);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_TEXT);
	assert_string_equal(stderr_caught(), "");
	assert_string_equal(journal,
			    "4 peer [peer: it is\\nlost peer=7 dev=mlx5_0] peer:7 dev:mlx5_0");
}

/* stderr is not the journal. */
static void a_file_gets_no_journal(void **state)
{
	dray_log_set_journal(take);
	dray_log_setup(DRAY_LOG_INFO, DRAY_LOG_FORMAT_JOURNAL);
	journal[0] = '\0';
	stderr_catch();
	log_info("peer", "it is back");
	dray_log_set_journal(NULL);
	assert_string_equal(stderr_caught(), "<6>peer: it is back\n");
	assert_string_equal(journal, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_has_time_level_area),
		cmocka_unit_test(level_can_change),
		cmocka_unit_test(controls_are_escaped),
		cmocka_unit_test(json_has_fields),
		cmocka_unit_test(json_members_are_never_twice),
		cmocka_unit_test(json_is_always_utf8),
		cmocka_unit_test(long_lines_are_cut),
		cmocka_unit_test(errno_is_kept_and_a_bad_stderr_does_no_harm),
		cmocka_unit_test(auto_detects_the_journal),
		cmocka_unit_test(a_limit_counts_dropped_lines),
		cmocka_unit_test(each_name_has_its_own_limit),
		cmocka_unit_test(the_journal_gets_fields),
		cmocka_unit_test(the_journal_gets_lines_escaped),
		cmocka_unit_test(a_file_gets_no_journal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
