/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for operations: blocks in use never overlap, and pinned memory can serve each size class
 * in turn.
 */
#include "agent/data/transfer/ops_store.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"

#define HELD 100

struct block {
	struct xfer_op *ops;
	uint32_t n;
	uint8_t mark;
};

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static void check(const struct block *b)
{
	const uint8_t *p = (const uint8_t *)b->ops;

	for (size_t i = 0; i < b->n * sizeof(*b->ops); i++)
		assert_int_equal(p[i], b->mark);
}

static void blocks_do_not_overlap(void **state)
{
	struct ops_store s = { .kept = 0 };
	void *memory = malloc(OPS_PINNED_BYTES);
	struct block held[HELD] = { { .n = 0 } };
	unsigned pinned = 0, none = 0;
	uint64_t random = 1;

	s.pinned = memory;
	for (unsigned i = 0; i < 3000; i++) {
		struct block *b = &held[next(&random) % HELD];

		if (b->ops) {
			check(b);
			ops_store_put(&s, b->ops, b->n);
		}
		b->n = 1 +
		       (uint32_t)(next(&random) % (1u << (5 + i / 300 % 7 + next(&random) % 5)));
		b->mark = (uint8_t)i;
		b->ops = ops_store_get_pinned(&s, b->n);
		pinned += b->n >= OPS_PINNED_MIN && b->ops;
		none += b->n >= OPS_PINNED_MIN && !b->ops;
		if (b->ops)
			assert_true(
				b->n >= OPS_PINNED_MIN && (uint8_t *)b->ops >= (uint8_t *)memory &&
				(uint8_t *)(b->ops + b->n) <= (uint8_t *)memory + OPS_PINNED_BYTES);
		else
			b->ops = ops_store_get(&s, b->n);
		assert_non_null(b->ops);
		memset(b->ops, b->mark, b->n * sizeof(*b->ops));
	}
	assert_true(pinned > 100 && none > 0);
	for (unsigned i = 0; i < HELD; i++)
		if (held[i].ops) {
			check(&held[i]);
			ops_store_put(&s, held[i].ops, held[i].n);
		}
	ops_store_deinit(&s);
	free(memory);
}

/* Allocates all memory in one class, after another class has used it. */
static void every_class(void **state)
{
	struct ops_store s = { .kept = 0 };
	void *memory = malloc(OPS_PINNED_BYTES);

	s.pinned = memory;
	for (uint32_t n = OPS_PINNED_MIN; n <= DMSG_OPS_MAX; n *= 2) {
		unsigned all = OPS_SLABS * (DMSG_OPS_MAX / n);
		struct xfer_op **got = malloc(all * sizeof(*got));

		for (unsigned i = 0; i < all; i++) {
			got[i] = ops_store_get_pinned(&s, n);
			assert_non_null(got[i]);
		}
		assert_null(ops_store_get_pinned(&s, n));
		ops_store_put(&s, got[0], n);
		assert_ptr_equal(ops_store_get_pinned(&s, n), got[0]);
		for (unsigned i = 0; i < all; i++)
			ops_store_put(&s, got[i], n);
		free(got);
	}
	ops_store_deinit(&s);
	free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_do_not_overlap),
		cmocka_unit_test(every_class),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
