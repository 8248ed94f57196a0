/* SPDX-License-Identifier: Apache-2.0 */
/* Elements that find a ring between two threads full. */
#include "lib/spsc.h"

#include "tests/unit/cm.h"

/* Some elements always wait: they keep their order, and memory for as many as wait at a time is enough. */
static void test_backlog(void **state)
{
	uint32_t sent = 0, got = 0, v;
	struct dray_spsc r;

	assert_int_equal(dray_spsc_init(&r, 4, sizeof(v)), 0);
	while (sent < 40)
		dray_spsc_send(&r, &(uint32_t){ sent++ });
	for (unsigned i = 0; i < 100000; i++) {
		assert_true(dray_spsc_pop(&r, &v));
		assert_int_equal(v, got++);
		assert_false(dray_spsc_flush(&r));
		dray_spsc_send(&r, &(uint32_t){ sent++ });
	}
	assert_true(r.late_cap <= 256);
	while (got < sent) {
		dray_spsc_flush(&r);
		assert_true(dray_spsc_pop(&r, &v));
		assert_int_equal(v, got++);
	}
	assert_true(dray_spsc_flush(&r));
	assert_true(dray_spsc_empty(&r));
	dray_spsc_deinit(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_backlog),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
