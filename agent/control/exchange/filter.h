/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Bloom filter of objects. It has all that were added, and of the others about one in 400 with 16 bits for each object that was added,
 * or one in 40 with 8. Its bits come from the SHA-256 of name space and key, so that all agents have the same for one object, and from a
 * salt. Clients do not know the salt: else one could choose a key of its own name space whose bits are those of another one's key, and
 * would learn from the time of an answer whether that is anywhere.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FILTER_BITS_MIN (UINT64_C(1) << 16)
#define FILTER_BITS_MAX (UINT64_C(1) << 28)
/* Bits for each object, of a filter that is full. */
#define FILTER_FULL 8

/* The start of the SHA-256. */
struct filter_digest {
	uint64_t a, b;
};

/* Zeroed: there is none. */
struct filter {
	uint64_t bits; /* a power of two */
	uint64_t salt;
	uint8_t *bytes;
};

/* Bits of a filter that stays good while as many objects come as there are. */
uint64_t filter_bits_for(uint64_t objects);
bool filter_bits_valid(uint64_t bits);

/* With nothing in it. 0 or -ENOMEM. */
int filter_init(struct filter *f, uint64_t bits, uint64_t salt);
void filter_deinit(struct filter *f);
void filter_add(struct filter *f, struct filter_digest d);
bool filter_has(const struct filter *f, struct filter_digest d);
/* The same for n objects: takes these bits from the sets of those that it does not have. Returns how many these are. */
uint32_t filter_sift(const struct filter *f, const struct filter_digest *d, uint32_t n,
		     uint64_t *sets, uint64_t bits);
