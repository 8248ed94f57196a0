/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "lib/backoff.h"
#include "lib/random.h"
#include "tests/unit/cm.h"

static void fill_writes_all_bytes_and_no_others(void **state)
{
	static uint8_t seen[1001], bytes[1001];

	/*
	 * a byte that is 0 in all 20 draws was not written; by chance this has the probability
	 * 2^-160
	 */
	for (unsigned draw = 0; draw < 20; draw++) {
		assert_int_equal(dray_random_fill(bytes, 1000), 0);
		for (unsigned i = 0; i < 1001; i++)
			seen[i] |= bytes[i];
	}
	for (unsigned i = 0; i < 1000; i++)
		assert_int_not_equal(seen[i], 0);
	assert_int_equal(seen[1000], 0);
	assert_int_equal(dray_random_fill(NULL, 0), 0);
}

static void numbers_differ(void **state)
{
	uint64_t a = dray_random(), b = dray_random();

	assert_int_not_equal(a, b);
}

static void spread_stays_between_half_and_all(void **state)
{
	int64_t low = INT64_MAX, high = 0;

	for (unsigned i = 0; i < 1000; i++) {
		int64_t pause = backoff_spread(1000);

		low = dray_min(low, pause);
		high = dray_max(high, pause);
	}
	assert_in_range(low, 500, 600);
	assert_in_range(high, 900, 1000);
	assert_int_equal(backoff_spread(0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fill_writes_all_bytes_and_no_others),
		cmocka_unit_test(numbers_differ),
		cmocka_unit_test(spread_stays_between_half_and_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
