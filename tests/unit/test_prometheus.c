/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus' text format: samples that are read, and lines that are refused. */
#include "agent/placement/master/prometheus.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

struct seen {
	/*
	 * each sample as "name{label=value,...} value;"; ? for a value that is not a whole number
	 */
	char text[4096];
	unsigned n;
	int stop_with;
};

__attribute__((format(printf, 2, 3))) static void note(struct seen *s, const char *fmt, ...)
{
	size_t n = strlen(s->text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->text + n, sizeof(s->text) - n, fmt, ap);
	va_end(ap);
}

static int on_sample(void *arg, const struct prometheus_sample *p)
{
	struct seen *s = arg;

	s->n++;
	note(s, "%s{", p->name);
	for (unsigned i = 0; i < p->n_labels; i++)
		note(s, "%s%s=%s", i ? "," : "", p->labels[i].name, p->labels[i].value);
	if (p->whole)
		note(s, "} %lld", (long long)p->integer);
	else
		note(s, "} ?");
	note(s, ";");
	return s->stop_with;
}

/* Parses a copy without a NUL, so that the sanitizer finds every read beyond. */
static int parse(const char *text, size_t n, struct seen *s, struct dray_err *err)
{
	dray_auto_free char *copy = malloc(n ? n : 1);

	assert_non_null(copy);
	memcpy(copy, text, n);
	return prometheus_parse(copy, n, on_sample, s, err);
}

static void assert_read(const char *text, const char *samples)
{
	struct seen s = { .n = 0 };
	struct dray_err err = DRAY_ERR_NULL;

	if (parse(text, strlen(text), &s, &err) != 0)
		fail_msg("%s", err.msg);
	assert_string_equal(s.text, samples);
}

static void assert_refused(const char *text, unsigned line, const char *words)
{
	struct seen s = { .n = 0 };
	struct dray_err err = DRAY_ERR_NULL;
	char where[32];

	if (parse(text, strlen(text), &s, &err) != -EPROTO)
		fail_msg("\"%s\" is read as %s", text, s.text);
	assert_int_equal(err.code, DRAY_E_PROTOCOL);
	snprintf(where, sizeof(where), "line %u: ", line);
	if (strncmp(err.msg, where, strlen(where)) != 0 || !strstr(err.msg, words))
		fail_msg("\"%s\" does not contain \"%s%s\"", err.msg, where, words);
}

static void test_samples(void **state)
{
	assert_read("", "");
	assert_read("\n\n \t\n\r\n", "");
	assert_read("up 1\n", "up{} 1;");
	assert_read("a:b_9 -0\n", "a:b_9{} 0;");
	assert_read("segment_allocated_bytes{segment=\"10.0.0.5:12345\"} -4096\n",
		    "segment_allocated_bytes{segment=10.0.0.5:12345} -4096;");
	assert_read("x{}1\nx{a=\"b\"}2\n", "x{} 1;x{a=b} 2;");
	assert_read("x{b=\"1\",a=\"2\",c=\"\"} 3 1700000000123\n", "x{b=1,a=2,c=} 3;");
	assert_read("\t x { a = \"b\" , c\t=\"d\" , }\t7 \t -5 \n", "x{a=b,c=d} 7;");
	assert_read("x 1\r\ny{a=\"b\"} 2\r\n", "x{} 1;y{a=b} 2;");
	assert_read("h_bucket{le=\"+Inf\"} 3\nh_bucket{le=\"4096.000000\"} 1\n",
		    "h_bucket{le=+Inf} 3;h_bucket{le=4096.000000} 1;");
	assert_read("x{a=\"\xc3\xa9 \xff}{,=#\"} 1\n", "x{a=\xc3\xa9 \xff}{,=#} 1;");
}

static void test_escapes(void **state)
{
	assert_read("x{a=\"\\\\\"} 1\n", "x{a=\\} 1;");
	assert_read("x{a=\"q\\\"q\\nq\\\\n\"} 1\n", "x{a=q\"q\nq\\n} 1;");
	assert_refused("x{a=\"\\t\"} 1\n", 1, "backslash");
	assert_refused("x{a=\"\\\"} 1\n", 1, "does not end");
	assert_refused("x{a=\"b\\\n", 1, "backslash");
}

/*
 * Some masters write a name with an unescaped quote: the parser must not read another name from it.
 */
static void test_not_escaped(void **state)
{
	assert_refused("up 1\nsegment_total_capacity_bytes{segment=\"a\"b\\c\"} 5\n", 2,
		       "was a quote not escaped?");
	assert_refused("m{segment=\"a\\c:1\"} 5\n", 1, "backslash");
	assert_refused("m{segment=\"10.0.0.1:1\" 10.0.0.2:2\"} 5\n", 1, "quote not escaped");
	assert_refused("m{segment=\"a\nb\"} 5\n", 1, "does not end");
}

static void test_comments(void **state)
{
	assert_read("# any\n#\n#HELPER\n  # TYPE\tx  gauge \n# HELP x \\ \" any {text\n# HELP x\n"
		    "# TYPED x\n# EOF\nx 1\n# TYPE x counter\r\n",
		    "x{} 1;");
	assert_refused("# HELP\n", 1, "HELP or TYPE");
	assert_refused("# TYPE 9 gauge\n", 1, "HELP or TYPE");
	assert_refused("# HELP x-y z\n", 1, "HELP or TYPE");
	assert_refused("\n# TYPE x\n", 2, "without a type");
	assert_refused("# TYPE x gauge y\n", 1, "follows the type");
}

static void test_numbers(void **state)
{
	assert_read("x 9223372036854775807\nx -9223372036854775808\nx +5\nx 007\n",
		    "x{} 9223372036854775807;x{} -9223372036854775808;x{} 5;x{} 7;");
	assert_read("x 9007199254740993\nx 4.294967296e+09\nx 1E3\nx 5.\nx .5e1\nx 12.000000\n",
		    "x{} 9007199254740993;x{} 4294967296;x{} 1000;x{} 5;x{} 5;x{} 12;");
	assert_read("x 9223372036854775808\nx .5\nx 1e400\nx -1e-400\n",
		    "x{} ?;x{} ?;x{} ?;x{} 0;");
	assert_read("x NaN\nx +Inf\nx -Inf\nx inf\nx -infinity\n",
		    "x{} ?;x{} ?;x{} ?;x{} ?;x{} ?;");
	for (const char *const *bad =
		     (const char *const[]){ "x\n", "x \n", "x{} \n", "x -\n", "x .\n", "x 1e\n",
					    "x 0x10\n", "x 1_0\n", "x nan(1)\n", "x +nan\n",
					    "x 1,5\n", "x --1\n", "x e5\n", "x \"1\"\n", NULL };
	     *bad; bad++)
		assert_refused(*bad, 1, "the value");
	assert_refused("x 1 1.5\n", 1, "time stamp");
	assert_refused("x 1 9223372036854775808\n", 1, "time stamp");
	assert_refused("x 1 2 3\n", 1, "follows the time stamp");
	assert_refused("x 1 # no\n", 1, "time stamp");
}

static void test_refused(void **state)
{
	assert_refused("up 1\n9x 1\n", 2, "name of the metric");
	assert_refused("<html>\n", 1, "name of the metric");
	assert_refused("HTTP/1.1 200 OK\n", 1, "not allowed");
	assert_refused("{a=\"b\"} 1\n", 1, "name of the metric");
	assert_refused("x{a:b=\"c\"} 1\n", 1, "no =");
	assert_refused("x{9=\"c\"} 1\n", 1, "label name");
	assert_refused("x{,} 1\n", 1, "label name");
	assert_refused("x{a=\"b\",,} 1\n", 1, "label name");
	assert_refused("x{a=b} 1\n", 1, "not in quotes");
	assert_refused("x{a} 1\n", 1, "no =");
	assert_refused("x{a=\"b\" c=\"d\"} 1\n", 1, "a comma or brace");
	assert_refused("x{a=\"b\",a=\"c\"} 1\n", 1, "twice");
	assert_refused("x{a=\"b\"\n", 1, "a comma or brace");
	assert_refused("x{\n", 1, "label name");
	assert_refused("x{a=\"b\"}} 1\n", 1, "the value");
}

/* A page that was cut off anywhere but between two lines is refused. */
static void test_truncated(void **state)
{
	static const char page[] = "# HELP x y\nx{a=\"b\"} 4096\ny 2\n";
	struct dray_err err;
	struct seen s;

	for (size_t n = 0; n < sizeof(page); n++) {
		bool between = n == 0 || page[n - 1] == '\n';

		err = DRAY_ERR_NULL;
		s = (struct seen){ .n = 0 };
		if (n == sizeof(page) - 1)
			assert_int_equal(parse(page, n, &s, &err), 0);
		else
			assert_int_equal(parse(page, n, &s, &err), between ? 0 : -EPROTO);
		if (!between)
			assert_non_null(strstr(err.msg, "ends in the middle"));
	}
	assert_refused("x 1\ny 2", 2, "ends in the middle");
}

static void test_limits(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct seen s = { .n = 0 };
	char *line = malloc(PROMETHEUS_LINE_MAX + 16), many[1024] = "x{";
	size_t n = 2;

	assert_non_null(line);
	for (unsigned i = 0; i <= PROMETHEUS_LABELS_MAX; i++)
		n += (size_t)snprintf(many + n, sizeof(many) - n, "l%u=\"\",", i);
	snprintf(many + n, sizeof(many) - n, "} 1\n");
	assert_refused(many, 1, "too many labels");
	/* one label more than is allowed */
	snprintf(strstr(many, "l32="), 8, "} 1\n");

	assert_int_equal(parse(many, strlen(many), &s, &err), 0);
	assert_int_equal(s.n, 1);

	/* the longest line, with the shortest names */
	memset(line, 'x', PROMETHEUS_LINE_MAX);
	memcpy(line + PROMETHEUS_LINE_MAX - 2, " 1\n", 4);
	s = (struct seen){ .n = 0 };
	assert_int_equal(parse(line, strlen(line), &s, &err), 0);
	/* a value without an end reaches the end of the parser's buffer, and is not read further */
	memcpy(line, "x{a=\"", 5);
	memcpy(line + PROMETHEUS_LINE_MAX, "\n", 2);
	assert_refused(line, 1, "does not end");
	line[PROMETHEUS_LINE_MAX - 1] = '\\';
	assert_refused(line, 1, "must come before");
	memset(line, 'x', PROMETHEUS_LINE_MAX);
	memcpy(line + PROMETHEUS_LINE_MAX - 1, " 1\n", 4);
	assert_refused(line, 1, "too long");
	assert_int_equal(parse("a\0b 1\n", 6, &s, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "NUL"));
	err = DRAY_ERR_NULL;
	s = (struct seen){ .stop_with = 7 };
	assert_int_equal(parse("x 1\ny 2\nbad\n", 12, &s, &err), 7);
	assert_int_equal(s.n, 1);
	assert_int_equal(err.code, 0);
	free(line);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_samples),     cmocka_unit_test(test_escapes),
		cmocka_unit_test(test_not_escaped), cmocka_unit_test(test_comments),
		cmocka_unit_test(test_numbers),     cmocka_unit_test(test_refused),
		cmocka_unit_test(test_truncated),   cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
