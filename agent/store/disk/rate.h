/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of a disk for requests of one kind, learned from the requests themselves. A measurement is a window of time in which
 * requests were in flight: at least RATE_WINDOW_NS, and four times as many requests as keep all threads busy. Time without a request
 * does not count, and a window counts only if the threads were busy for most of it. The rate is the median of the last windows, so that
 * one of them, such as a burst that a cache of the device has taken, does not change it.
 *
 * A window in which the disk also had requests of the other kind measures what those have left: it counts only until
 * there is a rate. Pure: the caller gives the time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/time.h"

#define RATE_WINDOW_NS (50 * DRAY_NS_PER_MS)
#define RATE_WINDOWS 9u

struct rate {
	unsigned threads; /* so many requests in flight keep all threads busy */
	uint64_t value;   /* bytes a second; 0: not known yet */
	bool mixed;       /* it is that of a window with requests of the other kind */
	unsigned in_flight;
	/* the window that is open */
	int64_t since_ns; /* up to here the next three are counted */
	int64_t busy_ns, threads_ns, other_ns;
	uint64_t bytes;
	unsigned ended;
	uint64_t windows[RATE_WINDOWS];
	unsigned n; /* windows so far */
};

/* A request begins. other: of the other kind, at the same disk. */
void rate_begin(struct rate *r, const struct rate *other, int64_t now_ns);
/* It ends. bytes: that the disk has moved; 0: it failed, and the open window does not count. */
void rate_end(struct rate *r, const struct rate *other, int64_t now_ns, uint64_t bytes);
/* Before a request of the other kind begins or ends. */
void rate_pass(struct rate *r, const struct rate *other, int64_t now_ns);
