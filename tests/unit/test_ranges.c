/* SPDX-License-Identifier: Apache-2.0 */
/* The strided ranges of leases. */
#include <stdlib.h>
#include <string.h>

#include "agent/model/ranges.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

#define RANDOM_LENGTH 600ull
#define RANGES_MAX 24u

static struct dray_err err;

static struct ranges *make(const struct dmsg_range *v, uint32_t n, uint64_t length)
{
	uint8_t wire[RANGES_MAX * DMSG_RANGE_SIZE];
	struct ranges *r = NULL;

	for (uint32_t i = 0; i < n; i++)
		dmsg_range_put(wire + i * DMSG_RANGE_SIZE, &v[i]);
	err = DRAY_ERR_NULL;
	if (ranges_new(&r, wire, n, length, &err) < 0)
		assert_null(r);
	return r;
}

static bool covers(const struct ranges *r, uint64_t offset, uint64_t length)
{
	uint32_t steps = UINT32_MAX;

	return ranges_cover(r, offset, length, &steps);
}

static void test_blocks_of_layers(void **state)
{
	/* blocks 5, 6 and 9 of 4 KiB, in each of 32 layers of 1 MiB */
	const struct dmsg_range v[] = {
		{ 9 * 4096, 4096, 1 << 20, 32 },
		{ 5 * 4096, 4096, 1 << 20, 32 },
		{ 6 * 4096, 4096, 1 << 20, 32 },
	};
	struct ranges *r = make(v, 3, 32ull << 20);

	assert_non_null(r);
	assert_int_equal(r->n_classes, 1);
	assert_int_equal(r->n, 2);
	assert_int_equal(r->pieces, 64);
	assert_int_equal(r->bytes, 32 * 3 * 4096);
	for (uint64_t layer = 0; layer < 32; layer++) {
		uint64_t at = layer << 20;

		assert_true(covers(r, at + 5 * 4096, 2 * 4096));
		assert_true(covers(r, at + 9 * 4096 + 4095, 1));
		assert_false(covers(r, at + 5 * 4096 - 1, 2));
		assert_false(covers(r, at + 6 * 4096, 4097));
		assert_false(covers(r, at + 8 * 4096, 1));
		assert_false(covers(r, at, 1));
	}
	assert_false(covers(r, (32ull << 20) + 5 * 4096, 1));
	ranges_unref(r);
}

static void test_refusals(void **state)
{
	static const struct {
		struct dmsg_range v;
		int code;
	} bad[] = {
		{ { 0, 0, 0, 1 }, DRAY_E_INVALID },
		{ { 0, 1, 1, 0 }, DRAY_E_INVALID },
		{ { 0, 10, 9, 2 }, DRAY_E_INVALID },
		{ { 0, 101, 0, 1 }, DRAY_E_RANGE },
		{ { 101, 1, 0, 1 }, DRAY_E_RANGE },
		{ { 100, 1, 0, 1 }, DRAY_E_RANGE },
		{ { UINT64_MAX, 1, 0, 1 }, DRAY_E_RANGE },
		{ { 0, 10, 10, 11 }, DRAY_E_RANGE },
		{ { 1, 10, 30, 4 }, DRAY_E_RANGE },
		{ { 0, 1, UINT64_MAX / 2, 4 }, DRAY_E_RANGE },
		{ { 0, 1, 2, UINT64_MAX }, DRAY_E_RANGE },
	};
	struct dmsg_range many[RANGE_CLASSES_MAX + 1];
	struct ranges *r;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		assert_null(make(&bad[i].v, 1, 100));
		assert_int_equal(err.code, bad[i].code);
	}
	assert_null(make(NULL, 0, 100));
	assert_int_equal(err.code, DRAY_E_INVALID);
	for (unsigned i = 0; i <= RANGE_CLASSES_MAX; i++)
		many[i] = (struct dmsg_range){ i, 1, 2 + i, 2 };
	r = make(many, RANGE_CLASSES_MAX, 100);
	assert_non_null(r);
	ranges_unref(r);
	assert_null(make(many, RANGE_CLASSES_MAX + 1, 100));
	assert_int_equal(err.code, DRAY_E_INVALID);
	/* the largest that fits */
	r = make(&(struct dmsg_range){ 0, 10, 30, 4 }, 1, 100);
	assert_non_null(r);
	ranges_unref(r);
}

/* Ranges that join are one run, whatever their pieces. */
static void test_joins(void **state)
{
	struct ranges *r = make(
		(struct dmsg_range[]){ { 0, 1, 2, 1u << 20 }, { 1, 1, 2, 1u << 20 } }, 2, 1u << 21);
	uint32_t steps = 1;

	assert_int_equal(r->n, 1);
	assert_true(ranges_cover(r, 0, 1u << 21, &steps));
	assert_int_equal(steps, 0);
	ranges_unref(r);

	/* pieces that reach into the next stride */
	r = make((struct dmsg_range[]){ { 6, 6, 10, 3 } }, 1, 100);
	assert_true(covers(r, 6, 6));
	assert_true(covers(r, 20, 2));
	assert_true(covers(r, 31, 1));
	assert_false(covers(r, 30, 3));
	assert_false(covers(r, 12, 1));
	assert_false(covers(r, 36, 1));
	ranges_unref(r);

	/* two patterns that fill each other's gaps cost a step for each piece */
	r = make(
		(struct dmsg_range[]){
			{ 0, 2, 4, 1000 }, { 2, 1, 4, 1000 }, { 3, 1, 8, 500 }, { 7, 1, 8, 500 } },
		4, 4000);
	steps = 100;
	assert_false(ranges_cover(r, 0, 4000, &steps));
	assert_int_equal(steps, 0);
	steps = 4000;
	assert_true(ranges_cover(r, 0, 4000, &steps));
	ranges_unref(r);
}

static uint64_t below(uint64_t n)
{
	return (uint64_t)rand() % n;
}

/* Compares with a map of all bytes, and what a peer reads from the ranges as they are sent. */
static void test_random(void **state)
{
	srand(7);
	for (unsigned round = 0; round < 3000; round++) {
		uint8_t map[RANDOM_LENGTH] = { 0 }, wire[RANGES_MAX * DMSG_RANGE_SIZE];
		struct dmsg_range v[RANGES_MAX];
		uint32_t n = 1 + (uint32_t)below(RANGES_MAX);
		struct ranges *r, *copy;

		for (uint32_t i = 0; i < n; i++) {
			/* few strides, so that ranges share their classes */
			uint64_t stride = 4 + below(3) * 13, length = 1 + below(stride);
			uint64_t offset = below(RANDOM_LENGTH - length);
			uint64_t most = 1 + (RANDOM_LENGTH - length - offset) / stride;

			v[i] = (struct dmsg_range){ offset, length, stride,
						    round & 1 ? most : 1 + below(most) };
			for (uint64_t k = 0; k < v[i].count; k++)
				memset(map + offset + k * stride, 1, length);
		}
		r = make(v, n, RANDOM_LENGTH);
		if (!r) {
			assert_int_equal(err.code, DRAY_E_INVALID);
			continue;
		}
		for (uint32_t i = 0; i < r->n; i++) {
			struct dmsg_range sent = ranges_get(r, i);

			dmsg_range_put(wire + i * DMSG_RANGE_SIZE, &sent);
		}
		assert_int_equal(ranges_new(&copy, wire, r->n, RANDOM_LENGTH, &err), 0);
		assert_int_equal(copy->n, r->n);
		assert_int_equal(copy->pieces, r->pieces);
		for (uint64_t at = 0; at < RANDOM_LENGTH; at++) {
			uint64_t length = 1 + below(RANDOM_LENGTH - at);
			bool all = !memchr(map + at, 0, length);

			assert_int_equal(covers(r, at, 1), map[at]);
			assert_int_equal(covers(r, at, length), all);
			assert_int_equal(covers(copy, at, length), all);
		}
		ranges_unref(copy);
		ranges_unref(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_of_layers),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_joins),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
