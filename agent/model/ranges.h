/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges of a lease: strided pieces of a region, checked by arithmetic. Ranges with one stride, number of pieces and first
 * stride form a class. Within a class they are intervals of one stride, sorted and without overlaps, so that a binary search finds
 * the piece at an offset, however many pieces there are. Immutable, and read by any thread; references are the control thread's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/data.h"

/* A search looks into each class. */
#define RANGE_CLASSES_MAX 16

struct range_class {
	uint64_t stride; /* count 1: 0 */
	uint64_t base;   /* offset of the first piece's stride in the region */
	uint64_t count;
	uint32_t first, n; /* in `intervals` */
};

/* Offsets from the beginning of a stride; `end` may pass the end of the stride. */
struct range_interval {
	uint64_t start, end;
};

struct ranges {
	uint32_t refs;
	uint32_t n; /* intervals */
	uint32_t n_classes;
	uint64_t pieces, bytes; /* overlaps between classes count twice */
	struct range_class classes[RANGE_CLASSES_MAX];
	struct range_interval intervals[];
};

/*
 * Reads n records of dmsg_range, which pmsg_range equals, for a region of `length` bytes. One reference. Errors: `invalid` (no ranges,
 * an impossible one, too many classes), `range` (one passes the end of the region), no_memory.
 */
int ranges_new(struct ranges **ret, const void *wire, uint32_t n, uint64_t length,
	       struct dray_err *reterr);
struct ranges *ranges_ref(struct ranges *r);
/* NULL is allowed. Returns NULL. */
struct ranges *ranges_unref(struct ranges *r);

/* Interval i as a record of dmsg_range. */
struct dmsg_range ranges_get(const struct ranges *r, uint32_t i);

/*
 * True if all bytes [offset, offset + length) lie in the ranges. *steps: how many pieces the search may still walk over; it is
 * counted down, and false at 0, because pieces that join could be arbitrarily small.
 */
bool ranges_cover(const struct ranges *r, uint64_t offset, uint64_t length, uint32_t *steps);

/* Steps for a list of n pieces: most lie in one piece of the lease each. */
static inline uint32_t ranges_steps(uint32_t n)
{
	return 4 * n + 4096;
}
