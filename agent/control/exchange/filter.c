/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/filter.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/hash.h"

/* Bits that each object sets. */
#define BITS_OF_OBJECT 4
/* Objects whose first bits are on their way from memory: filters exceed the caches. */
#define AHEAD 16

uint64_t filter_bits_for(uint64_t objects)
{
	uint64_t bits = FILTER_BITS_MIN;

	while (bits < FILTER_BITS_MAX && bits / (2 * FILTER_FULL) < objects)
		bits *= 2;
	return bits;
}

bool filter_bits_valid(uint64_t bits)
{
	return bits >= FILTER_BITS_MIN && bits <= FILTER_BITS_MAX && !(bits & (bits - 1));
}

int filter_init(struct filter *f, uint64_t bits, uint64_t salt)
{
	*f = (struct filter){ .bytes = calloc(bits / 8, 1) };
	if (!f->bytes)
		return -ENOMEM;
	f->bits = bits;
	f->salt = salt;
	return 0;
}

void filter_deinit(struct filter *f)
{
	free(f->bytes);
	*f = (struct filter){ .bits = 0 };
}

static uint64_t place(const struct filter *f, struct filter_digest d, unsigned i)
{
	uint64_t first = dray_hash_mix(d.a ^ f->salt, d.b | 1);
	uint64_t step = dray_hash_mix(d.b ^ f->salt, d.a | 1);

	/* an odd step meets all places */
	return (first + i * (step | 1)) & (f->bits - 1);
}

void filter_add(struct filter *f, struct filter_digest d)
{
	for (unsigned i = 0; i < BITS_OF_OBJECT; i++) {
		uint64_t at = place(f, d, i);

		f->bytes[at / 8] |= (uint8_t)(1u << at % 8);
	}
}

bool filter_has(const struct filter *f, struct filter_digest d)
{
	for (unsigned i = 0; i < BITS_OF_OBJECT; i++) {
		uint64_t at = place(f, d, i);

		if (!(f->bytes[at / 8] >> at % 8 & 1))
			return false;
	}
	return true;
}

uint32_t filter_sift(const struct filter *f, const struct filter_digest *d, uint32_t n,
		     uint64_t *sets, uint64_t bits)
{
	uint32_t absent = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (i + AHEAD < n)
			__builtin_prefetch(&f->bytes[place(f, d[i + AHEAD], 0) / 8]);
		if (filter_has(f, d[i]))
			continue;
		sets[i] &= ~bits;
		absent++;
	}
	return absent;
}
