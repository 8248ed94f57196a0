/* SPDX-License-Identifier: Apache-2.0 */
/* How drayctl renders numbers, texts, tables, JSON and quantiles. */
#include <stdlib.h>
#include <string.h>

#include "ctl/bench/histogram.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/render/screen.h"
#include "ctl/render/table.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static void numbers(void **state)
{
	static const struct {
		uint64_t n;
		const char *size, *span, *count;
	} rows[] = {
		{ 0, "0 B", "0 ns", "0" },
		{ 999, "999 B", "999 ns", "999" },
		{ 1000, "1000 B", "1.0 us", "1,000" },
		{ 1023, "1023 B", "1.0 us", "1,023" },
		{ 1536, "1.5 KiB", "1.5 us", "1,536" },
		{ 999499, "976 KiB", "999 us", "999,499" },
		{ 999500, "976 KiB", "1.0 ms", "999,500" },
		{ 1048575, "1.0 MiB", "1.0 ms", "1,048,575" },
		{ 16ull << 30, "16.0 GiB", "17.2 s", "17,179,869,184" },
		{ 59999999999, "55.9 GiB", "60.0 s", "59,999,999,999" },
		{ 192000000000, "179 GiB", "3 min 12 s", "192,000,000,000" },
		{ 7500000000000, "6.8 TiB", "2 h 5 min", "7,500,000,000,000" },
		{ 273600000000000, "249 TiB", "3 d 4 h", "273,600,000,000,000" },
		{ UINT64_MAX, "16.0 EiB", "213503 d 23 h", "18,446,744,073,709,551,615" },
	};
	char buf[CTL_HUMAN_BYTES];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		assert_string_equal(ctl_show_size(rows[i].n, buf), rows[i].size);
		assert_string_equal(ctl_show_span(rows[i].n, buf), rows[i].span);
		assert_string_equal(ctl_show_count(rows[i].n, buf), rows[i].count);
	}
	assert_string_equal(ctl_show_rate(0, buf), "0.0 B/s");
	assert_string_equal(ctl_show_rate(12.34e9, buf), "12.3 GB/s");
	assert_string_equal(ctl_show_rate(999.6e6, buf), "1.0 GB/s");
	assert_string_equal(ctl_show_rate(5e15, buf), "5000 TB/s");
}

static void foreign_texts_are_escaped(void **state)
{
	static const struct {
		const char *in, *out;
	} rows[] = {
		{ "engine", "engine" },
		{ "caf\xc3\xa9", "caf\xc3\xa9" },
		{ "a\tb\nc\\d", "a\\tb\\nc\\\\d" },
		{ "\033[31mred", "\\x1b[31mred" },
		{ "\x7f", "\\x7f" },
		{ "\xc2\x9b"
		  "31m",
		  "\\x9b31m" },
		{ "\xc2\xa0", "\xc2\xa0" },
		{ "\xff\x9b"
		  "31m\xc3",
		  "\\xff\\x9b31m\\xc3" },
	};
	char buf[64], small[12];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++)
		assert_string_equal(ctl_show_text(rows[i].in, buf, sizeof(buf)), rows[i].out);
	assert_true(strlen(ctl_show_text("0123456789abcdef", small, sizeof(small))) <
		    sizeof(small));
	assert_true(strlen(ctl_show_text("\1\1\1\1\1\1\1\1", small, sizeof(small))) <
		    sizeof(small));
	assert_int_equal(ctl_text_width("caf\xc3\xa9"), 4);
}

static void tables_are_aligned(void **state)
{
	static const char *const cells[] = { "NAME", "BYTES", "STATE", "caf\xc3\xa9", "1", "ready",
					     "x",    "12345", "" };
	static const char expected[] = "NAME  BYTES  STATE\n"
				       "caf\xc3\xa9      1  ready\n"
				       "x     12345  -\n";
	struct ctl_table t = CTL_TABLE_NULL;
	char *text;
	size_t n;
	FILE *f;

	for (int color = 0; color < 2; color++) {
		for (size_t i = 0; i < 3; i++)
			ctl_table_column(&t, cells[i], i == 1);
		for (size_t i = 3; i < DRAY_ARRAY_SIZE(cells); i++)
			ctl_table_add(&t, cells[i], ctl_mood_of(cells[i]));
		f = open_memstream(&text, &n);
		assert_int_equal(ctl_table_finish(&t, f, color), 0);
		fclose(f);
		if (color)
			assert_non_null(strstr(text, "\033[32mready\033[0m\n"));
		else
			assert_string_equal(text, expected);
		free(text);
	}
}

static void json_is_escaped_and_nested(void **state)
{
	static const char expected[] =
		"{\n"
		"  \"s\": \"a\\\"b\\\\c\\n\\t\\u0001\\u007f\xc3\xa9\\u00ff\\u00e9\",\n"
		"  \"n\": 18446744073709551615,\n"
		"  \"i\": -5,\n"
		"  \"r\": 1.500,\n"
		"  \"list\": [\n"
		"    {\n"
		"      \"b\": true\n"
		"    },\n"
		"    null\n"
		"  ],\n"
		"  \"none\": [],\n"
		"  \"empty\": {}\n"
		"}\n";
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_TEXT("s", "a\"b\\c\n\t\1\x7f\xc3\xa9\xff\xe9"), J_UINT("n", UINT64_MAX),
		     J_INT("i", -5), J_REAL("r", 1.5));
	ctl_json_array(&j, "list");
	ctl_json_record(&j, NULL, J_BOOL("b", true));
	ctl_json_add(&j, J_NULL(NULL));
	ctl_json_end(&j);
	ctl_json_array(&j, "none");
	ctl_json_end(&j);
	ctl_json_object(&j, "empty");
	ctl_json_end(&j);
	ctl_json_end(&j);
	fclose(f);
	assert_string_equal(text, expected);
	free(text);
}

static void screens_are_cut(void **state)
{
	static const struct {
		const char *text;
		unsigned rows, columns;
		const char *shown;
	} cases[] = {
		{ "", 4, 4, "" },
		{ "abc\ndefgh\ni\n", 3, 4, "abc\ndefg\n" },
		{ "abc\ndefgh\ni\n", 0, 0, "abc\ndefgh\ni\n" },
		{ "no end", 9, 80, "no end\n" },
		{ "a\n\nb\n", 9, 1, "a\n\nb\n" },
		/* colours take no columns and end behind the cut; a character of two bytes takes one column */
		{ "\033[32mgreen\033[0m x\n", 9, 3, "\033[32mgre\033[0m\n" },
		{ "\xc3\xa9\xc3\xa9\xc3\xa9\n", 9, 2, "\xc3\xa9\xc3\xa9\n" },
		/* a sequence without an end */
		{ "\033[32\n", 9, 80, "\033[32\n" },
		{ "a\n", 1, 80, "" },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		dray_auto_free char *out = NULL;
		size_t n;
		FILE *f = open_memstream(&out, &n);

		ctl_screen_print(f, cases[i].text, cases[i].rows, cases[i].columns);
		fclose(f);
		assert_memory_equal(out, "\033[H\033[2J", 7);
		assert_string_equal(out + 7, cases[i].shown);
	}
}

static void quantiles_are_accurate(void **state)
{
	static const double shares[] = { 0, 0.001, 0.5, 0.99, 0.999, 1 };
	struct ctl_histogram *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	assert_int_equal(ctl_histogram_quantile(h, 0.5), 0);
	for (uint64_t i = 1; i <= 100000; i++)
		ctl_histogram_add(h, i * 1000);
	assert_int_equal(h->min, 1000);
	assert_int_equal(h->max, 100000000);
	assert_int_equal(h->count, 100000);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(shares); i++) {
		double truth = dray_max(shares[i] * 1e8, 1000.0);
		double got = (double)ctl_histogram_quantile(h, shares[i]);

		if (got < truth * 0.9999 || got > truth * 1.017)
			fail_msg("%g: %g instead of %g", shares[i], got, truth);
	}
	memset(h, 0, sizeof(*h));
	for (uint64_t i = 0; i < 64; i++)
		ctl_histogram_add(h, i);
	for (uint64_t i = 0; i < 64; i++)
		assert_int_equal(ctl_histogram_quantile(h, (double)(i + 1) / 64), i);
	/* the smallest and the largest number */
	memset(h, 0, sizeof(*h));
	ctl_histogram_add(h, 0);
	ctl_histogram_add(h, UINT64_MAX);
	assert_int_equal(ctl_histogram_quantile(h, 0.5), 0);
	assert_true(ctl_histogram_quantile(h, 1) == UINT64_MAX);
	free(h);
}

/* Two merged halves equal a histogram of all the numbers. */
static void merged_halves_equal_the_whole(void **state)
{
	struct ctl_histogram *h = calloc(4, sizeof(*h)), *all = h + 1, *low = h + 2, *high = h + 3;

	assert_non_null(h);
	for (uint64_t i = 0; i < 10000; i++) {
		ctl_histogram_add(all, 7 + i * i);
		ctl_histogram_add(i < 5000 ? low : high, 7 + i * i);
	}
	/* The order does not matter, and an empty histogram changes nothing. */
	ctl_histogram_merge(h, high);
	ctl_histogram_merge(h, low);
	assert_memory_equal(h, all, sizeof(*all));
	memset(low, 0, sizeof(*low));
	ctl_histogram_merge(h, low);
	assert_memory_equal(h, all, sizeof(*all));
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),
		cmocka_unit_test(foreign_texts_are_escaped),
		cmocka_unit_test(tables_are_aligned),
		cmocka_unit_test(json_is_escaped_and_nested),
		cmocka_unit_test(screens_are_cut),
		cmocka_unit_test(quantiles_are_accurate),
		cmocka_unit_test(merged_halves_equal_the_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
