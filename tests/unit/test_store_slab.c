/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/slab.h"

#include <string.h>
#include <sys/mman.h>

#include "lib/random.h"
#include "tests/unit/cm.h"

#define PAGE 4096

static uint32_t resident_pages(const struct slabs *s, uint64_t bytes)
{
	static unsigned char in[1024];
	uint32_t n = 0;

	assert_in_range(bytes / PAGE, 1, sizeof(in));
	assert_int_equal(mincore(s->base, bytes, in), 0);
	for (uint64_t i = 0; i < bytes / PAGE; i++)
		n += in[i] & 1;
	return n;
}

static void test_blocks_have_their_bytes(void **state)
{
	enum { N = 2000, TURNS = 20000 };
	static uint8_t *blocks[N];
	static size_t bytes[N];
	struct slabs s;

	(void)state;
	assert_int_equal(slabs_init(&s), 0);
	slabs_free(&s, NULL);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		uint32_t i = (uint32_t)(dray_random() % N);

		for (size_t at = 0; blocks[i] && at < bytes[i]; at++)
			assert_int_equal(blocks[i][at], (uint8_t)i);
		slabs_free(&s, blocks[i]);
		blocks[i] = NULL;
		if (dray_random() % 3 == 0)
			continue;
		bytes[i] = 1 + dray_random() % SLAB_BLOCK_MAX;
		blocks[i] = slabs_alloc(&s, bytes[i]);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % SLAB_STEP, 0);
		for (size_t at = 0; at < bytes[i]; at++)
			assert_int_equal(blocks[i][at], 0);
		memset(blocks[i], (uint8_t)i, bytes[i]);
	}
	slabs_deinit(&s);
}

/* Many blocks take little more than their bytes, and what is freed serves blocks of other sizes, or goes back to the system. */
static void test_slabs_give_memory_back(void **state)
{
	enum { N = 20000, BLOCK = 120, OTHER = 128 };
	static void *blocks[N];
	struct slabs s;
	uint32_t n;

	(void)state;
	assert_int_equal(slabs_init(&s), 0);
	for (unsigned i = 0; i < N; i++)
		assert_non_null(blocks[i] = slabs_alloc(&s, BLOCK));
	n = resident_pages(&s, 1024 * PAGE);
	assert_in_range(n, N * BLOCK / PAGE, N * BLOCK / PAGE * 101 / 100 + 1);
	for (unsigned i = 0; i < N; i++)
		slabs_free(&s, blocks[i]);
	assert_in_range(resident_pages(&s, 1024 * PAGE), 1, n / 4);
	for (unsigned i = 0; i < N; i++)
		assert_non_null(blocks[i] = slabs_alloc(&s, OTHER));
	assert_in_range(resident_pages(&s, 1024 * PAGE), N * OTHER / PAGE,
			N * OTHER / PAGE * 101 / 100 + 10);
	slabs_deinit(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_have_their_bytes),
		cmocka_unit_test(test_slabs_give_memory_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
