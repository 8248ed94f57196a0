/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that differ by place and seed, so that a byte at a wrong place is detected. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint64_t pattern_word(uint64_t seed, uint64_t i)
{
	uint64_t x = (i + seed * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xd6e8feb86659fd93);

	return (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

/* Bytes at .. at + n - 1 of the pattern. */
static inline void pattern_fill(uint8_t *to, uint64_t at, uint64_t n, uint64_t seed)
{
	while (n) {
		uint64_t word = pattern_word(seed, at / 8);
		uint64_t skip = at % 8, take = 8 - skip < n ? 8 - skip : n;

		if (take == 8)
			memcpy(to, &word, 8);
		else
			memcpy(to, (const uint8_t *)&word + skip, take);
		to += take;
		at += take;
		n -= take;
	}
}
