/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that leave the caches alone. */
#ifndef DRAY_LIB_COPY_H
#define DRAY_LIB_COPY_H

#include <stddef.h>

/*
 * memcpy by non-temporal stores where the processor has them, for what is larger than the caches: the
 * destination is neither read before it is written nor kept. Ordered before later stores like any other
 * copy. Where both overlap, the destination's bytes are undefined afterwards. Any thread; keeps to the
 * two ranges.
 */
void dray_copy_stream(void *dst, const void *src, size_t n);

#endif
