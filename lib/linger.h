/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how long a thread polls for work before it sleeps. Both ends of a ring use it.
 *
 * The polling budget is at most the configured limit. It doubles when polling finds work and halves when polling ends
 * without work, down to 0, so a thread with rare work sleeps at once. Work that arrives soon after the thread
 * fell asleep would have been found by polling, so the thread then tries the whole limit once. But where
 * both ends share a CPU, the work may have arrived only because the thread slept. So a trial that finds
 * nothing ends polling, and doubles the number of early wake-ups that the next trial needs.
 *
 * Pure: the caller gives times, in nanoseconds of one clock. A zeroed struct never polls.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum dray_linger_state { DRAY_LINGER_WORKING, DRAY_LINGER_POLLING, DRAY_LINGER_ASLEEP };

struct dray_linger {
	int64_t max_ns, budget_ns;
	int64_t since_ns; /* when the work ended */
	enum dray_linger_state state;
	bool trial;            /* polls the whole limit once; nothing found so far */
	uint32_t early;        /* wake-ups within the limit since the last trial */
	uint32_t early_to_try; /* number of early wake-ups that start the next trial */
};

#define DRAY_LINGER_EARLY_MAX 256 /* of early_to_try */

/* Sets the limit; 0: never poll. A new limit is the budget to begin with. */
void dray_linger_limit(struct dray_linger *l, int64_t max_ns);

/* The thread has found no work. True: poll again. False: sleep. */
bool dray_linger_idle(struct dray_linger *l, int64_t now_ns);

/* The thread has found work, by polling or after a wake-up. */
void dray_linger_worked(struct dray_linger *l, int64_t now_ns);

/* Begins a wait, without counting how the last one ended. */
static inline void dray_linger_begin(struct dray_linger *l)
{
	l->state = DRAY_LINGER_WORKING;
}
