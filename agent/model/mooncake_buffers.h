/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registered memory of an engine with Mooncake, by its addresses: ascending, without overlaps. A request must lie within one buffer,
 * so buffers that join are kept apart. Immutable.
 */
#pragma once

#include <stdint.h>

struct mooncake_buffers {
	uint32_t n;
	struct mooncake_buffer {
		uint64_t start, end;
	} v[];
};

/* End of the buffer that holds the address; 0: none does. */
static inline uint64_t mooncake_buffers_end(const struct mooncake_buffers *b, uint64_t address)
{
	uint32_t low = 0, high = b->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (b->v[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < b->n && b->v[low].start <= address ? b->v[low].end : 0;
}
