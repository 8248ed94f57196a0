/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/linger.h"

#include "lib/cleanup.h"

/* A budget below 1/16 of the limit becomes 0; after success it is at least 1/8. */
#define LEAST 16
#define RESTART 8

void dray_linger_limit(struct dray_linger *l, int64_t max_ns, int64_t trial_ns)
{
	if (max_ns == l->max_ns && trial_ns == l->trial_ns)
		return;
	l->max_ns = l->budget_ns = max_ns;
	l->trial_ns = trial_ns;
	l->trials = 0;
	l->early = 0;
	l->early_to_try = 1;
}

static void found_nothing(struct dray_linger *l)
{
	l->budget_ns /= 2;
	if (l->trials) {
		l->budget_ns = 0;
		l->early_to_try = dray_min(l->early_to_try * 2, (uint32_t)DRAY_LINGER_EARLY_MAX);
	}
	l->trials = 0;
	if (l->budget_ns < l->max_ns / LEAST)
		l->budget_ns = 0;
}

static void found(struct dray_linger *l, int64_t waited_ns)
{
	bool late = waited_ns > l->max_ns;

	/* in a long trial, work may come late because the other end had to wake up */
	if (late && l->trials > 1 && waited_ns <= l->trial_ns) {
		l->trials--;
		return;
	}
	/* or this thread was descheduled, and the thread that ran instead did the work */
	if (waited_ns > 2 * l->max_ns || (late && l->trials && l->trial_ns > l->max_ns)) {
		found_nothing(l);
		return;
	}
	l->budget_ns = dray_max(l->budget_ns * 2, l->max_ns / RESTART);
	l->budget_ns = dray_min(l->budget_ns, l->max_ns);
	l->trials = 0;
	l->early = 0;
	l->early_to_try = 1;
}

static void woken(struct dray_linger *l, int64_t waited_ns)
{
	if (waited_ns > l->trial_ns || ++l->early < l->early_to_try)
		return;
	l->early = 0;
	l->trials = l->trial_ns > l->max_ns ? DRAY_LINGER_TRIALS : 1;
	l->budget_ns = l->trial_ns;
}

bool dray_linger_idle(struct dray_linger *l, int64_t now_ns)
{
	switch (l->state) {
	case DRAY_LINGER_WORKING:
		/* counts from the end of the work */
		l->since_ns = now_ns;
		l->state = l->budget_ns ? DRAY_LINGER_POLLING : DRAY_LINGER_ASLEEP;
		break;
	case DRAY_LINGER_POLLING:
		if (now_ns - l->since_ns < l->budget_ns)
			break;
		found_nothing(l);
		l->state = DRAY_LINGER_ASLEEP;
		break;
	case DRAY_LINGER_ASLEEP:
		break;
	}
	return l->state == DRAY_LINGER_POLLING;
}

void dray_linger_worked(struct dray_linger *l, int64_t now_ns)
{
	switch (l->state) {
	case DRAY_LINGER_WORKING:
		break;
	case DRAY_LINGER_POLLING:
		found(l, now_ns - l->since_ns);
		break;
	case DRAY_LINGER_ASLEEP:
		woken(l, now_ns - l->since_ns);
		break;
	}
	l->state = DRAY_LINGER_WORKING;
}
