/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses between retries. */
#pragma once

#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/random.h"

/* The pause after so many failures in a row, from 1: doubles from min to max, in their unit. */
static inline int64_t backoff_pause(uint32_t failures, int64_t min, int64_t max)
{
	int64_t pause = min;

	max = dray_max(min, max);
	for (uint32_t i = 1; i < failures && pause < max; i++)
		pause *= 2;
	return dray_min(pause, max);
}

/* A random pause between half of it and all of it, so that the retries of many processes spread. */
static inline int64_t backoff_spread(int64_t pause)
{
	return pause - (int64_t)(dray_random() % (uint64_t)(pause / 2 + 1));
}
