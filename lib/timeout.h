/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A time limit for a loop that polls a condition. Between two checks no more than DRAY_TIMEOUT_STEP counts: the rest is time
 * during which this thread was descheduled, and the thread it waits for may have been descheduled too.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/time.h"

#define DRAY_TIMEOUT_STEP ((int64_t)(10 * DRAY_NS_PER_MS))

struct dray_timeout {
	int64_t limit_ns, checked_ns, waited_ns;
};

static inline struct dray_timeout dray_timeout_start(int64_t limit_ns)
{
	return (struct dray_timeout){ .limit_ns = limit_ns, .checked_ns = dray_now().ns };
}

/* Called after each check that found the condition false. True: the limit is reached. */
static inline bool dray_timeout_passed(struct dray_timeout *t, int64_t now_ns)
{
	t->waited_ns += dray_min(now_ns - t->checked_ns, DRAY_TIMEOUT_STEP);
	t->checked_ns = now_ns;
	return t->waited_ns >= t->limit_ns;
}

/*
 * Sleeps until *ended, whose change is signalled, or until the limit. Returns *ended. The caller holds the lock; the
 * condition variable uses CLOCK_MONOTONIC.
 */
static inline bool dray_timeout_await(const bool *ended, pthread_cond_t *wake,
				      pthread_mutex_t *lock, int64_t limit_ns)
{
	struct dray_timeout t = dray_timeout_start(limit_ns);

	while (!*ended && !dray_timeout_passed(&t, dray_now().ns)) {
		int64_t check_ns = t.checked_ns + DRAY_TIMEOUT_STEP;
		struct timespec check = { .tv_sec = check_ns / DRAY_NS_PER_SEC,
					  .tv_nsec = check_ns % DRAY_NS_PER_SEC };

		pthread_cond_timedwait(wake, lock, &check);
	}
	return *ended;
}
