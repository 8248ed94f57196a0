/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit for one who looks again and again, in nanoseconds of waiting. What passes between two looks counts for no more than
 * DRAY_PATIENCE_STEP: who had no processor for longer has not waited, and others may have had none either.
 */
#ifndef DRAY_LIB_PATIENCE_H
#define DRAY_LIB_PATIENCE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/time.h"

#define DRAY_PATIENCE_STEP ((int64_t)(10 * DRAY_NS_PER_MS))

struct dray_patience {
	int64_t limit_ns, looked_ns, waited_ns;
};

static inline struct dray_patience dray_patience(int64_t limit_ns)
{
	return (struct dray_patience){ .limit_ns = limit_ns, .looked_ns = dray_now().ns };
}

/* Of a look that was in vain. True: the limit is reached. */
static inline bool dray_patience_ends(struct dray_patience *p, int64_t now_ns)
{
	int64_t since = now_ns - p->looked_ns;

	p->waited_ns += dray_min(since, DRAY_PATIENCE_STEP);
	p->looked_ns = now_ns;
	return p->waited_ns >= p->limit_ns;
}

/*
 * Sleeps till *ended, which is signalled, and gives what it is then: false where the limit was reached. With the lock held;
 * the condition variable goes by CLOCK_MONOTONIC.
 */
static inline bool dray_patience_await(const bool *ended, pthread_cond_t *wake,
				       pthread_mutex_t *lock, int64_t limit_ns)
{
	struct dray_patience p = dray_patience(limit_ns);

	while (!*ended && !dray_patience_ends(&p, dray_now().ns)) {
		int64_t look_ns = p.looked_ns + DRAY_PATIENCE_STEP;
		struct timespec look = { .tv_sec = look_ns / DRAY_NS_PER_SEC,
					 .tv_nsec = look_ns % DRAY_NS_PER_SEC };

		pthread_cond_timedwait(wake, lock, &look);
	}
	return *ended;
}

#endif
