/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By one digit after the other, the least one first. Offsets of pages have equal low bits, and differ in few others: two or three
 * passes do for the pages of most regions.
 */
#include "agent/data/transfer/ops_sort.h"

#include <string.h>

#include "lib/cleanup.h"

#define DIGIT_BITS 8u
#define DIGITS (1u << DIGIT_BITS)

static uint64_t offset_of(const struct xfer_op *op, bool local)
{
	return local ? op->local : op->remote;
}

/* The bits in which offsets differ from the least one; 0: the list is in order. */
static uint64_t differences(const struct xfer_op *ops, uint32_t n, bool local, uint64_t *ret_least)
{
	uint64_t least = offset_of(&ops[0], local), before = least, bits = 0;
	bool in_order = true;

	for (uint32_t i = 1; i < n; i++) {
		uint64_t offset = offset_of(&ops[i], local);

		in_order &= before <= offset;
		least = dray_min(least, offset);
		before = offset;
	}
	*ret_least = least;
	for (uint32_t i = 0; i < n && !in_order; i++)
		bits |= offset_of(&ops[i], local) - least;
	return bits;
}

static void pass(struct xfer_op *to, const struct xfer_op *from, uint32_t n, bool local,
		 uint64_t least, unsigned shift)
{
	uint32_t places[DIGITS] = { 0 }, place = 0;

	for (uint32_t i = 0; i < n; i++)
		places[(offset_of(&from[i], local) - least) >> shift & (DIGITS - 1)]++;
	for (unsigned i = 0; i < DIGITS; i++) {
		uint32_t count = places[i];

		places[i] = place;
		place += count;
	}
	for (uint32_t i = 0; i < n; i++)
		to[places[(offset_of(&from[i], local) - least) >> shift & (DIGITS - 1)]++] =
			from[i];
}

bool ops_sort(struct ops_store *s, struct xfer_op *ops, uint32_t n, bool local)
{
	struct xfer_op *other, *from = ops, *to;
	uint64_t least, bits = differences(ops, n, local, &least);
	unsigned shift;

	if (!bits)
		return true;
	other = ops_store_get(s, n);
	if (!other)
		return false;
	to = other;
	shift = (unsigned)__builtin_ctzll(bits);
	for (bits >>= shift; bits; bits >>= DIGIT_BITS, shift += DIGIT_BITS) {
		pass(to, from, n, local, least, shift);
		from = to;
		to = from == ops ? other : ops;
	}
	if (from != ops)
		memcpy(ops, from, n * sizeof(*ops));
	ops_store_put(s, other, n);
	return true;
}
