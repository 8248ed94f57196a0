/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/idset.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define N 4096u
/* At most half of the slots are used: runs of random ids are a tenth as long. */
#define RUN_MAX 512u

/* Ids that a client or a peer may choose, and those that programs do choose. */
static uint64_t same_place_unseeded(uint64_t k)
{
	return k * 0xf1de83e19937733dULL; /* the inverse of 0x9e3779b97f4a7c15 */
}

static uint64_t neighbours_unseeded(uint64_t k)
{
	return same_place_unseeded(k << 32);
}

static uint64_t same_low_bits(uint64_t k)
{
	return k << 48;
}

static uint64_t counter(uint64_t k)
{
	return k;
}

static uint64_t handle(uint64_t k)
{
	return k % 7 << 40 | k << 8;
}

static uint64_t (*const kinds[])(uint64_t k) = { same_place_unseeded, neighbours_unseeded,
						 same_low_bits, counter, handle };
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static uint32_t longest_run(const struct idset *m)
{
	uint32_t longest = 0, n = 0;

	for (uint32_t i = 0; i < 2 * m->mask; i++) {
		n = m->slots[i & m->mask].used ? n + 1 : 0;
		longest = n > longest ? n : longest;
	}
	return longest;
}

static void test_no_long_runs(void **state)
{
	for (unsigned kind = 0; kind < N_KINDS; kind++) {
		struct idset m = { 0 };

		for (uint64_t k = 1; k <= N; k++)
			assert_int_equal(idset_add(&m, kinds[kind](k)), 0);
		/* the first has the longest way to the end of its run */
		assert_true(idset_del(&m, kinds[kind](1)));
		assert_in_range(longest_run(&m), 1, RUN_MAX);
		idset_deinit(&m);
	}
}

static void test_add_and_delete(void **state)
{
	for (unsigned kind = 0; kind < N_KINDS; kind++) {
		struct idset m = { 0 };

		assert_false(idset_has(&m, 1));
		assert_false(idset_del(&m, 1));
		for (uint64_t k = 0; k < N; k++)
			assert_int_equal(idset_add(&m, kinds[kind](k)), 0);
		for (uint64_t k = 0; k < N; k += 3)
			assert_true(idset_del(&m, kinds[kind](k)));
		for (uint64_t k = 0; k < N; k++) {
			assert_int_equal(idset_has(&m, kinds[kind](k)), k % 3 != 0);
			assert_int_equal(idset_add(&m, kinds[kind](k)), k % 3 ? -EEXIST : 0);
		}
		assert_int_equal(m.n, N);
		for (uint64_t k = N; k-- > 0;)
			assert_true(idset_del(&m, kinds[kind](k)));
		assert_int_equal(m.n, 0);
		assert_int_equal(longest_run(&m), 0);
		idset_deinit(&m);
	}
}

/* Ids of requests that replace each other take no further slots. */
static void test_stays_small(void **state)
{
	struct idset m = { 0 };

	for (uint64_t k = 0; k < 10 * N; k++) {
		assert_int_equal(idset_add(&m, k), 0);
		if (k >= 4)
			assert_true(idset_del(&m, k - 4));
	}
	assert_int_equal(m.mask, 15);
	idset_deinit(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_long_runs),
		cmocka_unit_test(test_add_and_delete),
		cmocka_unit_test(test_stays_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
