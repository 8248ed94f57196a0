/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/histogram.h"

#include "lib/cleanup.h"

/* Each value below 64 has its own bucket; for others, the seven highest bits select it. */
static unsigned bucket_of(uint64_t v)
{
	unsigned shift;

	if (v < CTL_HISTOGRAM_STEPS)
		return (unsigned)v;
	shift = 63 - (unsigned)__builtin_clzll(v) - 6;
	return (shift + 1) * CTL_HISTOGRAM_STEPS + (unsigned)(v >> shift) % CTL_HISTOGRAM_STEPS;
}

/* The largest value of a bucket. */
static uint64_t bucket_top(unsigned i)
{
	unsigned shift = i / CTL_HISTOGRAM_STEPS;
	uint64_t step = i % CTL_HISTOGRAM_STEPS;

	if (!shift)
		return step;
	shift--;
	return ((CTL_HISTOGRAM_STEPS + step) << shift) + ((1ull << shift) - 1);
}

void ctl_histogram_add(struct ctl_histogram *h, uint64_t v)
{
	h->min = h->count ? dray_min(h->min, v) : v;
	h->max = dray_max(h->max, v);
	h->count++;
	h->sum += v;
	h->buckets[bucket_of(v)]++;
}

void ctl_histogram_merge(struct ctl_histogram *h, const struct ctl_histogram *from)
{
	if (!from->count)
		return;
	h->min = h->count ? dray_min(h->min, from->min) : from->min;
	h->max = dray_max(h->max, from->max);
	h->count += from->count;
	h->sum += from->sum;
	for (unsigned i = 0; i < CTL_HISTOGRAM_N; i++)
		h->buckets[i] += from->buckets[i];
}

uint64_t ctl_histogram_quantile(const struct ctl_histogram *h, double share)
{
	double wanted = share * (double)h->count;
	uint64_t seen = 0;

	for (unsigned i = 0; i < CTL_HISTOGRAM_N; i++) {
		seen += h->buckets[i];
		if (seen && (double)seen >= wanted)
			return dray_min(bucket_top(i), h->max);
	}
	return h->max;
}
