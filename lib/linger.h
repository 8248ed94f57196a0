/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long to go on looking for work before sleeping, by how it went so far. One rule for both ends of a
 * ring: the worker after its last work, and libdray in a wait.
 *
 * The budget is at most what the user allows. It doubles when work comes while it lasts, and halves when it
 * runs out in vain, down to nothing: whoever has work now and then only sleeps at once. Work that comes soon
 * after falling asleep would have been found by polling on, so the whole budget is tried. But sleeping may be
 * the very reason why it came so soon, where both ends share a CPU: if the trial is in vain there is no
 * polling, and each such trial doubles how many wake-ups must have come soon before the next.
 *
 * Pure: times are the caller's, in nanoseconds of one clock. Zeroed is one that never polls.
 */
#ifndef DRAY_LIB_LINGER_H
#define DRAY_LIB_LINGER_H

#include <stdbool.h>
#include <stdint.h>

enum dray_linger_state { DRAY_LINGER_WORKING, DRAY_LINGER_POLLING, DRAY_LINGER_ASLEEP };

struct dray_linger {
	int64_t max_ns, budget_ns;
	int64_t since_ns; /* when it had nothing to do any more */
	enum dray_linger_state state;
	bool trial;        /* the budget was given for a trial, which has not found anything yet */
	uint32_t soon;     /* wake-ups that came soon, since the last trial */
	uint32_t patience; /* so many make the next one */
};

/* Most of them. */
#define DRAY_LINGER_PATIENCE_MAX 256

/* Another bound; 0: never poll. All of it is the budget, unless the bound is what it was. */
void dray_linger_limit(struct dray_linger *l, int64_t max_ns);

/* There is nothing to do. True: look again; false: sleep, this was long enough. */
bool dray_linger_idle(struct dray_linger *l, int64_t now_ns);

/* There was something to do: found by looking, or woken up for it. */
void dray_linger_worked(struct dray_linger *l, int64_t now_ns);

/* A wait begins anew; how the last one ended says nothing. */
static inline void dray_linger_begin(struct dray_linger *l)
{
	l->state = DRAY_LINGER_WORKING;
}

#endif
