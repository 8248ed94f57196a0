/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how long a thread polls for work before it sleeps. Both ends of a ring use it.
 *
 * The polling budget is at most the configured limit. It doubles when polling finds work and halves when polling ends
 * without work, down to 0, so a thread with rare work sleeps at once. Work that arrives soon after the thread
 * fell asleep would have been found by polling, so the thread then tries to poll. But where both ends share a
 * CPU, the work may have arrived only because the thread slept. So a trial that finds nothing ends polling, and doubles
 * the number of early wake-ups that the next trial needs.
 *
 * Where both ends sleep, each wait includes the wake-up of the other end, which is often longer than the limit. Neither
 * would ever try again. So one end, whose limit for trials is longer, polls long enough for the other end to wake up, a
 * few waits in a row: the other end then gets work early, and begins to poll too. Such a trial has succeeded when
 * work comes within the ordinary limit.
 *
 * Pure: the caller gives times, in nanoseconds of one clock. A zeroed struct never polls.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum dray_linger_state { DRAY_LINGER_WORKING, DRAY_LINGER_POLLING, DRAY_LINGER_ASLEEP };

struct dray_linger {
	int64_t max_ns, trial_ns, budget_ns;
	int64_t since_ns; /* when the work ended */
	enum dray_linger_state state;
	uint32_t trials;       /* waits that the trial has left; 0: no trial */
	uint32_t early;        /* wake-ups within the limit of trials since the last one */
	uint32_t early_to_try; /* number of early wake-ups that start the next trial */
};

#define DRAY_LINGER_EARLY_MAX 256 /* of early_to_try */
#define DRAY_LINGER_TRIALS 4      /* waits of a trial that is longer than the limit */

/* Sets the limits; 0: never poll. trial_ns is at least max_ns. A new limit is the budget to begin with. */
void dray_linger_limit(struct dray_linger *l, int64_t max_ns, int64_t trial_ns);

/* The thread has found no work. True: poll again. False: sleep. */
bool dray_linger_idle(struct dray_linger *l, int64_t now_ns);

/* The thread has found work, by polling or after a wake-up. */
void dray_linger_worked(struct dray_linger *l, int64_t now_ns);

/* Begins a wait, without counting how the last one ended. */
static inline void dray_linger_begin(struct dray_linger *l)
{
	l->state = DRAY_LINGER_WORKING;
}
