/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/units.h"

#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

struct row {
	const char *text;
	int r;
	int64_t v;
};

static void check(int (*parse)(const char *, int64_t *), const struct row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int64_t v = -7;
		int r = parse(rows[i].text, &v);

		if (r != rows[i].r || v != (r ? -7 : rows[i].v))
			fail_msg("\"%s\": %d, %lld", rows[i].text, r, (long long)v);
	}
}

static void sizes_are_read(void **state)
{
	static const struct row rows[] = {
		{ "0", 0, 0 },
		{ "4096", 0, 4096 },
		{ "4294967296", 0, 4294967296 },
		{ "64KiB", 0, 65536 },
		{ "16GiB", 0, 17179869184 },
		{ "1.5GiB", 0, 1610612736 },
		{ "0.5KiB", 0, 512 },
		{ "10MB", 0, 10000000 },
		{ "1kB", 0, 1000 },
		{ "1KB", 0, 1000 },
		{ "12B", 0, 12 },
		{ "1024TiB", 0, 1125899906842624 },
		{ "9223372036854775807", 0, INT64_MAX },
		{ "7.999999999EiB", 0, 9223372035701854303 },
		{ "9223372036854775808", -ERANGE, 0 },
		{ "18446744073709551616", -ERANGE, 0 },
		{ "8EiB", -ERANGE, 0 },
		{ "99999999999999999999999999999999", -ERANGE, 0 },
		{ "9007199254740992KiB", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "16G", -EINVAL, 0 },
		{ "16gib", -EINVAL, 0 },
		{ "16 GiB", -EINVAL, 0 },
		{ " 16GiB", -EINVAL, 0 },
		{ "16GiB ", -EINVAL, 0 },
		{ "-1", -EINVAL, 0 },
		{ "+1", -EINVAL, 0 },
		{ "1.5", -EINVAL, 0 },
		{ "1.5B", -EINVAL, 0 },
		{ "1.GiB", -EINVAL, 0 },
		{ ".5GiB", -EINVAL, 0 },
		{ "0x10", -EINVAL, 0 },
		{ "1.0000000000GiB", -EINVAL, 0 },
		{ "GiB", -EINVAL, 0 },
		{ "0.0001KiB", -EINVAL, 0 },
	};

	check(dray_size_parse, rows, DRAY_ARRAY_SIZE(rows));
}

static void durations_are_read(void **state)
{
	static const struct row rows[] = {
		{ "0", 0, 0 },
		{ "0ms", 0, 0 },
		{ "5ns", 0, 5 },
		{ "30us", 0, 30000 },
		{ "500ms", 0, 500000000 },
		{ "1.5s", 0, 1500000000 },
		{ "10min", 0, 600000000000 },
		{ "24h", 0, 86400000000000 },
		{ "7d", 0, 604800000000000 },
		{ "106751d", 0, 9223286400000000000 },
		{ "106752d", -ERANGE, 0 },
		{ "1", -EINVAL, 0 },
		{ "5m", -EINVAL, 0 },
		{ "1sec", -EINVAL, 0 },
		{ "-1s", -EINVAL, 0 },
		{ "0.1ns", -EINVAL, 0 },
		{ "", -EINVAL, 0 },
	};

	check(dray_duration_parse, rows, DRAY_ARRAY_SIZE(rows));
}

static int parse_decimal(const char *s, int64_t *ret)
{
	return dray_int_parse(s, 0, ret);
}

static int parse_octal(const char *s, int64_t *ret)
{
	return dray_int_parse(s, 1, ret);
}

static void integers_are_read(void **state)
{
	static const struct row rows[] = {
		{ "0", 0, 0 },
		{ "-0", 0, 0 },
		{ "42", 0, 42 },
		{ "-42", 0, -42 },
		{ "+42", 0, 42 },
		{ "0x2A", 0, 42 },
		{ "4294967296", 0, 4294967296 },
		{ "9223372036854775807", 0, INT64_MAX },
		{ "-9223372036854775808", 0, INT64_MIN },
		{ "9223372036854775808", -ERANGE, 0 },
		{ "0x10000000000000000", -ERANGE, 0 },
		{ "9223372036854775808x", -EINVAL, 0 },
		{ "010", -EINVAL, 0 },
		{ "", -EINVAL, 0 },
		{ "-", -EINVAL, 0 },
		{ "0x", -EINVAL, 0 },
		{ "4k", -EINVAL, 0 },
		{ " 4", -EINVAL, 0 },
		{ "4 ", -EINVAL, 0 },
	};
	static const struct row octal[] = {
		{ "0660", 0, 0660 },     { "0", 0, 0 },          { "660", 0, 660 },
		{ "0o660", -EINVAL, 0 }, { "0888", -EINVAL, 0 },
	};

	check(parse_decimal, rows, DRAY_ARRAY_SIZE(rows));
	check(parse_octal, octal, DRAY_ARRAY_SIZE(octal));
}

static void shown_values_are_read_back(void **state)
{
	static const struct {
		int64_t v;
		const char *size, *duration;
	} rows[] = {
		{ 0, "0", "0s" },
		{ 1, "1", "1ns" },
		{ 1024, "1KiB", "1024ns" },
		{ 1000, "1kB", "1us" },
		{ 17179869184, "16GiB", NULL },
		{ 1610612736, "1536MiB", NULL },
		{ 500000000, NULL, "500ms" },
		{ 90000000000, NULL, "90s" },
		{ 600000000000, NULL, "10min" },
		{ 86400000000000, NULL, "1d" },
		{ INT64_MAX, "9223372036854775807", "9223372036854775807ns" },
	};
	char buf[32];
	int64_t v;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		dray_size_show(rows[i].v, buf, sizeof(buf));
		if (rows[i].size)
			assert_string_equal(buf, rows[i].size);
		assert_int_equal(dray_size_parse(buf, &v), 0);
		assert_true(v == rows[i].v);
		dray_duration_show(rows[i].v, buf, sizeof(buf));
		if (rows[i].duration)
			assert_string_equal(buf, rows[i].duration);
		assert_int_equal(dray_duration_parse(buf, &v), 0);
		assert_true(v == rows[i].v);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_read),
		cmocka_unit_test(durations_are_read),
		cmocka_unit_test(integers_are_read),
		cmocka_unit_test(shown_values_are_read_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
