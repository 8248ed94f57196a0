/* SPDX-License-Identifier: Apache-2.0 */
/* Copies lists of pieces, and large pieces without filling the caches. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dray_piece {
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
};

/*
 * memcpy of each piece, in no particular order. Prefetches the next piece while it copies one, so a list of scattered pieces
 * is copied faster than by one memcpy for each. stream: copies large pieces by dray_copy_stream(). If pieces
 * overlap, the bytes of the destination are undefined. Any thread; accesses the ranges of the list only.
 */
void dray_copy_pieces(const struct dray_piece *v, unsigned n, bool stream);

/*
 * memcpy by non-temporal stores where the processor has them, for ranges larger than the caches: the processor neither reads
 * the destination first nor keeps it. Ordered before later stores like any copy. If the ranges overlap, the
 * bytes of the destination are undefined. Any thread; accesses the two ranges only.
 */
void dray_copy_stream(void *dst, const void *src, size_t n);
