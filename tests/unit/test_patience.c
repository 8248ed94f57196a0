/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/patience.h"

#include "tests/unit/cm.h"

#define MS DRAY_NS_PER_MS

static void waiting_counts(void **state)
{
	struct dray_patience p = { .limit_ns = 30 * MS };

	(void)state;
	for (int64_t now = MS; now < 30 * MS; now += MS)
		assert_false(dray_patience_ends(&p, now));
	assert_true(dray_patience_ends(&p, 30 * MS));
	assert_true(dray_patience_ends(&p, 30 * MS));
}

static void standing_still_does_not(void **state)
{
	struct dray_patience p = { .limit_ns = 2 * DRAY_PATIENCE_STEP };

	(void)state;
	assert_false(dray_patience_ends(&p, 5000 * MS));
	assert_false(dray_patience_ends(&p, 5001 * MS));
	assert_true(dray_patience_ends(&p, 9000 * MS));
}

static void begins_now(void **state)
{
	struct dray_patience p = dray_patience(MS);

	(void)state;
	assert_false(dray_patience_ends(&p, p.looked_ns));
	assert_true(dray_patience_ends(&p, p.looked_ns + MS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiting_counts),
		cmocka_unit_test(standing_still_does_not),
		cmocka_unit_test(begins_now),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
