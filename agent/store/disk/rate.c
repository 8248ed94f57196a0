/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/disk/rate.h"

#include <stdlib.h>

#include "lib/cleanup.h"

/* A request that ends while each thread has had so many. */
#define REQUESTS_PER_THREAD 4

static void window_reset(struct rate *r)
{
	r->busy_ns = r->threads_ns = r->other_ns = 0;
	r->bytes = 0;
	r->ended = 0;
}

void rate_pass(struct rate *r, const struct rate *other, int64_t now_ns)
{
	int64_t ns = r->in_flight ? now_ns - r->since_ns : 0;

	r->since_ns = now_ns;
	r->busy_ns += ns;
	r->threads_ns += ns * (int64_t)dray_min(r->in_flight, r->threads);
	if (other->in_flight)
		r->other_ns += ns;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return dray_compare(*x, *y);
}

static uint64_t median(const struct rate *r)
{
	unsigned n = dray_min(r->n, RATE_WINDOWS);
	uint64_t sorted[RATE_WINDOWS];

	for (unsigned i = 0; i < n; i++)
		sorted[i] = r->windows[i];
	qsort(sorted, n, sizeof(sorted[0]), by_value);
	return sorted[n / 2];
}

static void window_add(struct rate *r, bool mixed)
{
	if (mixed && r->value && !r->mixed)
		return;
	/* what was measured beside others is forgotten */
	if (!mixed && r->mixed)
		r->n = 0;
	r->mixed = mixed;
	r->windows[r->n++ % RATE_WINDOWS] =
		(uint64_t)((double)r->bytes * DRAY_NS_PER_SEC / (double)r->busy_ns);
	r->value = median(r);
}

static void window_close(struct rate *r)
{
	/* three quarters of the threads had a request, on average */
	if (r->threads_ns / 3 >= r->busy_ns / 4 * r->threads)
		window_add(r, r->other_ns > r->busy_ns / 4);
	window_reset(r);
}

void rate_begin(struct rate *r, const struct rate *other, int64_t now_ns)
{
	rate_pass(r, other, now_ns);
	r->in_flight++;
}

void rate_end(struct rate *r, const struct rate *other, int64_t now_ns, uint64_t bytes)
{
	rate_pass(r, other, now_ns);
	r->in_flight--;
	if (!bytes) {
		window_reset(r);
		return;
	}
	r->bytes += bytes;
	r->ended++;
	if (r->busy_ns >= RATE_WINDOW_NS && r->ended >= r->threads * REQUESTS_PER_THREAD)
		window_close(r);
}
