/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <time.h>

/* A point on CLOCK_MONOTONIC or a span, in nanoseconds; a struct so that units are not mixed up. */
struct dray_time {
	int64_t ns;
};

#define DRAY_NS_PER_MS 1000000LL
#define DRAY_NS_PER_SEC 1000000000LL

static inline struct dray_time dray_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (struct dray_time){ (int64_t)ts.tv_sec * DRAY_NS_PER_SEC + ts.tv_nsec };
}

/* A span as a number that is not negative: differences of clock readings can be slightly below 0. */
static inline uint64_t dray_span(int64_t ns)
{
	return ns > 0 ? (uint64_t)ns : 0;
}

/* For people to read. */
static inline double dray_ms(int64_t ns)
{
	return (double)ns / (double)DRAY_NS_PER_MS;
}

/* Unix time in milliseconds: only for what other hosts read. */
static inline uint64_t dray_unix_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}
