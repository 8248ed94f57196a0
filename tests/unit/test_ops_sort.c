/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in the order of one side: none is lost, and equal ones stay in their order. */
#include "agent/data/transfer/ops_sort.h"

#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define N_MAX 65536u

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* The length is the place in the list, so that an operation shows where it was. */
static void check(struct ops_store *s, struct xfer_op *ops, uint32_t n, bool local)
{
	uint8_t *seen = calloc(n, 1);

	assert_non_null(seen);
	for (uint32_t i = 0; i < n; i++)
		ops[i].length = i;
	assert_true(ops_sort(s, ops, n, local));
	for (uint32_t i = 0; i < n; i++) {
		uint64_t now = local ? ops[i].local : ops[i].remote;

		assert_false(seen[ops[i].length]++);
		if (i) {
			uint64_t before = local ? ops[i - 1].local : ops[i - 1].remote;

			assert_true(before < now ||
				    (before == now && ops[i - 1].length < ops[i].length));
		}
	}
	free(seen);
}

static void sorts(void **state)
{
	static const struct {
		uint32_t n;
		uint64_t range, unit, base;
	} rows[] = {
		{ 1, 1, 1, 0 },
		{ 2, 2, 4096, 0 },
		{ 64, 64, 16384, 1ull << 40 },
		{ 300, 1, 16384, 77 }, /* all are equal */
		{ 4096, 3, 1, 5 },
		{ 32768, 32768, 16384, 12345 },
		{ 1000, 1u << 31, 1, 0 },
		{ N_MAX, 1u << 30, 1ull << 20, 0 },
		{ 2000, 2, UINT64_MAX / 2, 1 }, /* the widest range */
	};
	struct xfer_op *ops = malloc(N_MAX * sizeof(*ops)), *was = malloc(N_MAX * sizeof(*ops));
	struct ops_store s = { .kept = 0 };
	uint64_t random = 1;

	assert_true(ops && was);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		for (uint32_t k = 0; k < rows[i].n; k++)
			ops[k] = (struct xfer_op){
				.local =
					rows[i].base + next(&random) % rows[i].range * rows[i].unit,
				.remote =
					rows[i].base + next(&random) % rows[i].range * rows[i].unit
			};
		memcpy(was, ops, rows[i].n * sizeof(*ops));
		for (unsigned local = 0; local < 2; local++) {
			memcpy(ops, was, rows[i].n * sizeof(*ops));
			check(&s, ops, rows[i].n, local);
			/* both sides of an operation stay together */
			for (uint32_t k = 0; k < rows[i].n; k++) {
				const struct xfer_op *before = &was[ops[k].length];

				assert_true(ops[k].local == before->local &&
					    ops[k].remote == before->remote);
			}
			/* a list in order stays as it is */
			check(&s, ops, rows[i].n, local);
			for (uint32_t k = 0; k < rows[i].n; k++)
				assert_int_equal(ops[k].length, k);
		}
	}
	ops_store_deinit(&s);
	free(ops);
	free(was);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sorts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
