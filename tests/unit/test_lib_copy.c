/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that bypass the caches: for all alignments and lengths every byte arrives and no other
 * byte changes.
 */
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

/* The result is undefined, but only inside the destination. */
static void overlap_stays_inside(void **state)
{
	uint8_t *p dray_auto_free = pattern();
	uint8_t *was dray_auto_free = pattern();

	dray_copy_stream(p + 100, p + 50, 2 * BLOCK);
	assert_memory_equal(p, was, 100);
	assert_memory_equal(p + 100 + 2 * BLOCK, was + 100 + 2 * BLOCK, ROOM - 100 - 2 * BLOCK);
}

/*
 * Three pieces of every length up to some cache lines and around a block, with all relevant
 * alignments.
 */
static void lists(void **state)
{
	static const size_t starts[] = { 0, 1, 15, 33, 63 };
	static const size_t lengths[] = { 256,   257,   320,   321,   1000,  4096, 5000,
					  16383, 16384, 16385, 16640, 16641, 20000 };
	uint8_t *from dray_auto_free = pattern();
	uint8_t *to dray_auto_free = malloc(ROOM);
	uint8_t *want dray_auto_free = malloc(ROOM);

	assert_true(to && want && ROOM >= 3 * 20100);
	for (size_t t = 0; t < DRAY_ARRAY_SIZE(starts); t++)
		for (size_t f = 0; f < DRAY_ARRAY_SIZE(starts); f++)
			for (size_t n = 0; n < 200 + DRAY_ARRAY_SIZE(lengths); n++) {
				size_t bytes = n < 200 ? n : lengths[n - 200];
				struct dray_piece v[3];

				memset(to, 0xee, ROOM);
				memset(want, 0xee, ROOM);
				for (size_t i = 0; i < 3; i++) {
					v[i] = (struct dray_piece){
						to + starts[t] + i * (bytes + 1),
						from + starts[f] + (2 - i) * bytes, bytes
					};
					memcpy(want + (v[i].to - to), v[i].from, bytes);
				}
				dray_copy_pieces(v, 3, n % 2);
				assert_memory_equal(to, want, ROOM);
			}
}

/* More pieces than the copy prefetches, of mixed lengths. */
static void long_list(void **state)
{
	uint8_t *from dray_auto_free = pattern();
	uint8_t *to dray_auto_free = calloc(1, ROOM);
	struct dray_piece v[100];
	size_t at = 0;

	assert_non_null(to);
	for (size_t i = 0; i < 100; i++) {
		size_t n = i % 3 ? i : i * 11;

		v[i] = (struct dray_piece){ to + at, from + at, n };
		at += n;
	}
	assert_true(at <= ROOM);
	dray_copy_pieces(v, 100, false);
	assert_memory_equal(to, from, at);
	for (size_t i = at; i < ROOM; i++)
		assert_int_equal(to[i], 0);
}

static void list_overlap_stays_inside(void **state)
{
	static const size_t lengths[] = { 60, 200, 3000, 3 * BLOCK / 2 };
	uint8_t *was dray_auto_free = pattern();

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lengths); i++) {
		uint8_t *p dray_auto_free = pattern();
		size_t n = lengths[i];

		dray_copy_pieces(&(struct dray_piece){ p + 100, p + 70, n }, 1, false);
		assert_memory_equal(p, was, 100);
		assert_memory_equal(p + 100 + n, was + 100 + n, ROOM - 100 - n);
	}
}

/* Pieces around the size from which they are copied in another way. */
static void large_pieces(void **state)
{
	enum { LARGE = 128 << 10, SPACE = LARGE + 512 };
	static const size_t starts[] = { 0, 1, 63 };
	static const size_t lengths[] = { LARGE - 1, LARGE, LARGE + 1, LARGE + 127 };
	uint8_t *from dray_auto_free = malloc(SPACE);
	uint8_t *to dray_auto_free = malloc(SPACE);
	uint8_t *want dray_auto_free = malloc(SPACE);

	assert_true(from && to && want);
	for (size_t i = 0; i < SPACE; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 24);
	for (size_t t = 0; t < DRAY_ARRAY_SIZE(starts); t++)
		for (size_t f = 0; f < DRAY_ARRAY_SIZE(starts); f++)
			for (size_t n = 0; n < DRAY_ARRAY_SIZE(lengths); n++) {
				struct dray_piece p = { to + starts[t], from + starts[f],
							lengths[n] };

				memset(to, 0xee, SPACE);
				memset(want, 0xee, SPACE);
				memcpy(want + starts[t], from + starts[f], lengths[n]);
				dray_copy_pieces(&p, 1, false);
				assert_memory_equal(to, want, SPACE);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_lengths_and_alignments),
		cmocka_unit_test(overlap_stays_inside),
		cmocka_unit_test(lists),
		cmocka_unit_test(long_list),
		cmocka_unit_test(list_overlap_stays_inside),
		cmocka_unit_test(large_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
