/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Folds both halves of the product, so that each bit of the input changes every bit of the result. */
static inline uint64_t dray_hash_mix(uint64_t a, uint64_t b)
{
	unsigned __int128 p = (unsigned __int128)a * b;

	return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Of foreign keys: nobody can choose keys that collide without the seed. key may be NULL if n is 0. */
static inline uint64_t dray_hash(uint64_t seed, const void *key, size_t n)
{
	const uint8_t *p = key;
	uint64_t h = dray_hash_mix(seed ^ n, 0x9e3779b97f4a7c15u), word;

	for (; n > sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = dray_hash_mix(h ^ word, seed | 1);
	}
	word = 0;
	if (n)
		memcpy(&word, p, n);
	/* one product alone would leave the steps of a counter in the result */
	return dray_hash_mix(dray_hash_mix(h ^ word, 0xd1b54a32d192ed03u) ^ seed,
			     0x9e3779b97f4a7c15u);
}
