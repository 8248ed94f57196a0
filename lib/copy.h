/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of lists of pieces, and copies that leave the caches alone. */
#ifndef DRAY_LIB_COPY_H
#define DRAY_LIB_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dray_piece {
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
};

/*
 * memcpy of each piece, in order or not. While one is copied the lines of the next are fetched, so a list in
 * which neighbours lie far apart is copied faster than by one memcpy a piece. stream: large pieces go by
 * dray_copy_stream(). Where pieces overlap, the destinations' bytes are undefined afterwards. Any thread;
 * keeps to the ranges of the list.
 */
void dray_copy_pieces(const struct dray_piece *v, unsigned n, bool stream);

/*
 * memcpy by non-temporal stores where the processor has them, for what is larger than the caches: the
 * destination is neither read before it is written nor kept. Ordered before later stores like any other
 * copy. Where both overlap, the destination's bytes are undefined afterwards. Any thread; keeps to the
 * two ranges.
 */
void dray_copy_stream(void *dst, const void *src, size_t n);

#endif
