/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that changed while it was not known what is on disk: none is forgotten, and name spaces do not harm each other. */
#include "agent/store/changed.h"
#include "tests/unit/cm.h"

static void add(struct changed_keys *c, uint64_t space, uint32_t key)
{
	changed_add(c, space, &key, sizeof(key));
}

static bool has(const struct changed_keys *c, uint64_t space, uint32_t key)
{
	return changed_has(c, space, &key, sizeof(key));
}

/* Of keys that did not change. */
static unsigned false_ones(const struct changed_keys *c, uint64_t space)
{
	unsigned n = 0;

	for (uint32_t k = 0; k < 10000; k++)
		n += has(c, space, UINT32_MAX - k);
	return n;
}

static void test_keys(void **state)
{
	struct changed_keys c = { .seed = 0 };

	assert_false(has(&c, 1, 0));
	for (uint32_t k = 0; k < 100000; k++)
		add(&c, 1, k);
	for (uint32_t k = 0; k < 100000; k++)
		assert_true(has(&c, 1, k));
	assert_in_range(false_ones(&c, 1), 1, 500);
	assert_false(has(&c, 2, 0));
	changed_forget(&c);
	assert_false(has(&c, 1, 0));
	changed_forget(&c);
}

/* Keys that count upwards spread over the filter with each seed. */
static void test_seeds(void **state)
{
	for (uint64_t i = 1; i <= 40; i++) {
		/* the bits of a random seed, which dray_random() has */
		struct changed_keys c = { .seed = i * 0x9e3779b97f4a7c15u | 1 };

		for (uint32_t k = 0; k < 100000; k++)
			add(&c, 1, k);
		assert_in_range(false_ones(&c, 1), 200, 400);
		changed_forget(&c);
	}
}

/* What one name space changes without end costs no other one anything, unless that came after many others. */
static void test_spaces(void **state)
{
	struct changed_keys c = { .seed = 0 };

	for (uint64_t s = 0; s < CHANGED_SPACES + 2; s++)
		add(&c, s, (uint32_t)s);
	for (uint32_t k = 0; k < 20000; k++) {
		add(&c, 0, k);
		add(&c, CHANGED_SPACES, k);
	}
	for (uint64_t s = 0; s < CHANGED_SPACES + 2; s++)
		assert_true(has(&c, s, (uint32_t)s));
	assert_int_equal(false_ones(&c, 1), 0);
	assert_in_range(false_ones(&c, CHANGED_SPACES + 1), 1, 100);
	changed_forget(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_spaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
