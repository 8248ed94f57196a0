/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses before something that failed is tried again. */
#ifndef DRAY_LIB_BACKOFF_H
#define DRAY_LIB_BACKOFF_H

#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/random.h"

/* After so many failures in a row, from 1: doubles from min to max. In the unit of these. */
static inline int64_t backoff_pause(uint32_t failures, int64_t min, int64_t max)
{
	int64_t pause = min;

	max = dray_max(min, max);
	for (uint32_t i = 1; i < failures && pause < max; i++)
		pause *= 2;
	return dray_min(pause, max);
}

/* Between half of it and all of it, so that two sides, or many that lost the same switch, do not meet again. */
static inline int64_t backoff_spread(int64_t pause)
{
	return pause - (int64_t)(dray_random() % (uint64_t)(pause / 2 + 1));
}

#endif
