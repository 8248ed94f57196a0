/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processor time of the turns of one thread. The thread's clock is read between turns, at most once a millisecond, because each
 * reading is a system call. So what is observed is one long turn, and less than a millisecond of shorter ones before it.
 */
#pragma once

#include "agent/model/counters.h"
#include "lib/time.h"

struct turn_meter {
	int64_t read_ns; /* time of the last reading */
	int64_t used_ns; /* the thread's processor time then */
	struct data_histogram turns;
};

/* Reads the clock of the calling thread. */
void turn_meter_read(struct turn_meter *m, int64_t now_ns);

/* Between two turns of the thread that owns the meter. */
static inline void turn_meter_between(struct turn_meter *m, int64_t now_ns)
{
	if (now_ns - m->read_ns >= DRAY_NS_PER_MS)
		turn_meter_read(m, now_ns);
}
