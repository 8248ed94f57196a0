/* SPDX-License-Identifier: Apache-2.0 */
/* Copies past the caches: every byte arrives and no other changes, for all alignments and lengths. */
#include "lib/copy.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define BLOCK (4 * 4096)
#define ROOM (4 * BLOCK)

static uint8_t *pattern(void)
{
	uint8_t *p = malloc(ROOM);
	uint32_t v = 1;

	assert_non_null(p);
	for (size_t i = 0; i < ROOM; i++) {
		v = v * 1664525 + 1013904223;
		p[i] = (uint8_t)(v >> 24);
	}
	return p;
}

static void all_lengths_and_alignments(void **state)
{
	static const size_t starts[] = { 0, 1, 31, 32, 63, 64 };
	static const size_t lengths[] = { 0,          1,
					  63,         64,
					  BLOCK - 1,  BLOCK,
					  BLOCK + 1,  BLOCK + 63,
					  BLOCK + 64, 2 * BLOCK - 1,
					  2 * BLOCK,  2 * BLOCK + 127 };
	uint8_t *from dray_auto_free = pattern();
	uint8_t *to dray_auto_free = malloc(ROOM);
	uint8_t *want dray_auto_free = malloc(ROOM);

	assert_true(to && want);
	for (size_t t = 0; t < DRAY_ARRAY_SIZE(starts); t++)
		for (size_t f = 0; f < DRAY_ARRAY_SIZE(starts); f++)
			for (size_t n = 0; n < DRAY_ARRAY_SIZE(lengths); n++) {
				memset(to, 0xee, ROOM);
				memset(want, 0xee, ROOM);
				memcpy(want + starts[t], from + starts[f], lengths[n]);
				dray_copy_stream(to + starts[t], from + starts[f], lengths[n]);
				assert_memory_equal(to, want, ROOM);
			}
}

/* The result is undefined inside the destination, and only there. */
static void overlap_stays_inside(void **state)
{
	uint8_t *p dray_auto_free = pattern();
	uint8_t *was dray_auto_free = pattern();

	dray_copy_stream(p + 100, p + 50, 2 * BLOCK);
	assert_memory_equal(p, was, 100);
	assert_memory_equal(p + 100 + 2 * BLOCK, was + 100 + 2 * BLOCK, ROOM - 100 - 2 * BLOCK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_lengths_and_alignments),
		cmocka_unit_test(overlap_stays_inside),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
