/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times by their frequency, in fixed memory: 64 steps to each power of two, so that a quantile is at most
 * 1.6 % above the truth.
 */
#ifndef DRAY_CTL_BENCH_HISTOGRAM_H
#define DRAY_CTL_BENCH_HISTOGRAM_H

#include <stdint.h>

#define CTL_HISTOGRAM_STEPS 64
#define CTL_HISTOGRAM_N ((64 - 6 + 1) * CTL_HISTOGRAM_STEPS)

struct ctl_histogram {
	uint64_t count, sum, min, max;
	uint64_t buckets[CTL_HISTOGRAM_N];
};

void ctl_histogram_add(struct ctl_histogram *h, uint64_t v);

/* All that the other one holds. */
void ctl_histogram_merge(struct ctl_histogram *h, const struct ctl_histogram *from);

/* The smallest value that at least this share (0 to 1) of all are not above; 0 without any. */
uint64_t ctl_histogram_quantile(const struct ctl_histogram *h, double share);

#endif
