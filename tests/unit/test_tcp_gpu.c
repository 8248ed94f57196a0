/* SPDX-License-Identifier: Apache-2.0 */
/* Transport tcp with GPU memory on one side or both: what is asked for arrives, through staging memory. */
#include <stdlib.h>
#include <string.h>

#include "agent/transport/tcp.h"
#include "tests/gpu/fake.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1u << 20)

static struct lab lab;
static struct lab_side *const a = &lab.side[0], *const b = &lab.side[1];

/* sides: bit 0 the importing one, bit 1 the owner. */
static void start(unsigned sides, uint64_t bytes, uint32_t extents, uint64_t staging)
{
	lab_prepare(&lab);
	for (unsigned i = 0; i < 2; i++)
		lab.side[i].gpu_staging = sides >> i & 1 ? staging : 0;
	lab_start(&lab, bytes, extents);
}

static void run_one(uint64_t id, enum dmsg_direction d, enum dmsg_class class,
		    const uint64_t (*ops)[3], uint32_t n)
{
	uint64_t bytes = 0;

	lab_transfer(a, id, d, class, ops, n);
	lab_until(&lab, lab_end(a, id));
	for (uint32_t i = 0; i < n; i++)
		bytes += ops[i][2];
	assert_int_equal(lab_end(a, id)->code, 0);
	assert_int_equal(lab_end(a, id)->bytes, bytes);
}

static void test_one_operation(void **state)
{
	static const uint64_t lengths[] = { 1,     31,    4095, 16384,      16385,
					    65536, 65537, MIB,  3 * MIB + 5 };

	for (unsigned sides = 1; sides < 4; sides++) {
		uint64_t id = 1, moved = 0;

		start(sides, 8 * MIB, 1, 8 * MIB);
		for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lengths); i++) {
			const uint64_t op[1][3] = { { 3, 4 * MIB + 1, lengths[i] } };
			uint8_t before = *lab_at(b, 4 * MIB),
				after = *lab_at(b, 4 * MIB + 1 + lengths[i]);

			lab_fill(a, 3, lengths[i], (uint32_t)i);
			run_one(id++, DMSG_DIRECTION_WRITE, i % 2, op, 1);
			assert_true(lab_equal(b, 4 * MIB + 1, lab_at(a, 3), lengths[i]));
			assert_int_equal(*lab_at(b, 4 * MIB), before);
			assert_int_equal(*lab_at(b, 4 * MIB + 1 + lengths[i]), after);
			memset(a->region.memory, 0, a->region.bytes);
			run_one(id++, DMSG_DIRECTION_READ, i % 2, op, 1);
			assert_true(lab_filled(a, 3, lengths[i], (uint32_t)i));
			assert_int_equal(*lab_at(a, 2), 0);
			assert_int_equal(*lab_at(a, 3 + lengths[i]), 0);
			moved += 2 * lengths[i];
		}
		for (unsigned i = 0; i < 2; i++)
			assert_int_equal(lab_counter(&lab.side[i],
						     DRAY_METRIC_GPU_STAGED_BYTES_TOTAL),
					 sides >> i & 1 ? moved : 0);
		lab_deinit(&lab);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_operation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
