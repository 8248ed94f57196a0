/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/plain.h"

#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static void other_bytes_are_replaced(void **state)
{
	char to[32];

	assert_int_equal(dray_plain(to, sizeof(to), "a ~\n\x7f\xc3\xa9\0b", 9), 9);
	assert_string_equal(to, "a ~?????b");
}

static void what_does_not_fit_is_left_out(void **state)
{
	char to[4];

	assert_int_equal(dray_plain(to, sizeof(to), "abcd", 4), 3);
	assert_string_equal(to, "abc");
	assert_int_equal(dray_plain(to, sizeof(to), NULL, 0), 0);
	assert_string_equal(to, "");
}

static void in_place(void **state)
{
	char to[] = "a\tb";

	assert_int_equal(dray_plain(to, sizeof(to), to, strlen(to)), 3);
	assert_string_equal(to, "a?b");
}

static void characters_have_a_length(void **state)
{
	static const struct {
		const char *text;
		size_t n;
	} rows[] = {
		{ "a", 1 },
		{ "\n", 1 },
		{ "\xc3\xa9", 2 },
		{ "\xe2\x82\xac", 3 },
		{ "\xf0\x9f\x98\x80", 4 },
		{ "\xff", 0 },
		{ "\xa9", 0 },
		{ "\xc3", 0 },
		{ "\xf0\x9f\x98", 0 },
		{ "\xc0\x80", 0 },
		{ "\xed\xa0\x80", 0 },
		{ "\xf4\x90\x80\x80", 0 },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++)
		assert_int_equal(dray_utf8_length(rows[i].text), rows[i].n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(characters_have_a_length),
		cmocka_unit_test(other_bytes_are_replaced),
		cmocka_unit_test(what_does_not_fit_is_left_out),
		cmocka_unit_test(in_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
