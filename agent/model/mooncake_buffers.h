/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registered memory of an engine with Mooncake, by its addresses: ascending, without overlaps. A request must lie within one buffer,
 * so buffers that join are kept apart. Immutable, and read by any thread; references are the control thread's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/model/ranges.h"
#include "lib/err.h"

struct mooncake_buffer {
	uint64_t start, end;
};

struct mooncake_buffers {
	uint32_t refs;
	uint32_t n;
	struct ranges *ranges; /* the same memory */
	struct mooncake_buffer v[];
};

/* n: at least 1. One reference. 0, or -errno with reterr. */
int mooncake_buffers_new(struct mooncake_buffers **ret, const struct mooncake_buffer *v, uint32_t n,
			 struct dray_err *reterr);
bool mooncake_buffers_same(const struct mooncake_buffers *a, const struct mooncake_buffers *b);
struct mooncake_buffers *mooncake_buffers_ref(struct mooncake_buffers *b);
/* NULL is allowed. Returns NULL. */
struct mooncake_buffers *mooncake_buffers_unref(struct mooncake_buffers *b);

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
