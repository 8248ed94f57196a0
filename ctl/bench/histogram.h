/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of times in constant memory, with 64 buckets for each power of two, so that a quantile is at most 1.6 %
 * above the true value.
 */
#pragma once

#include <stdint.h>

#define CTL_HISTOGRAM_STEPS 64
#define CTL_HISTOGRAM_N ((64 - 6 + 1) * CTL_HISTOGRAM_STEPS)

struct ctl_histogram {
	uint64_t count, sum, min, max;
	uint64_t buckets[CTL_HISTOGRAM_N];
};

void ctl_histogram_add(struct ctl_histogram *h, uint64_t v);

/* Adds all values of `from`. */
void ctl_histogram_merge(struct ctl_histogram *h, const struct ctl_histogram *from);

/* The quantile of this share (0 to 1); 0 for an empty histogram. */
uint64_t ctl_histogram_quantile(const struct ctl_histogram *h, double share);
