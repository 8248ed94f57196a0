/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the agent alive? Whoever asks makes every worker say what it has in hand. Alive: the event loop turns,
 * which the answer itself shows; every worker has answered within health.worker_limit; and no transfer is
 * past its deadline by more than its end may take (transfer.slice_timeout and peer.heartbeat_limit together).
 * While nobody asks, nothing happens. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_STATUS_HEALTH_H
#define DRAY_AGENT_CONTROL_STATUS_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "lib/list.h"

struct agent;
struct health;

struct health_report {
	bool alive;
	char reason[DRAY_ERR_MSG_MAX]; /* what is wrong, in words; "" while alive */
};

/* One question. It is the caller's, and stays where it is until fn has run or it is cancelled. */
struct health_check {
	struct dray_list link;
	void (*fn)(struct health_check *c, const struct health_report *report);
	int64_t end_ns;
};

#define HEALTH_CHECK_INIT(c, callback) \
	((struct health_check){ .link = { &(c).link, &(c).link }, .fn = (callback) })

/* The agent is borrowed. 0 or -errno. */
int health_new(struct health **ret, struct agent *a);
/* Questions that are open are never answered. */
struct health *health_free(struct health *h);

/*
 * c->fn runs exactly once, after this call and within health.worker_limit. Those who ask while the workers
 * are being asked share the answer; workers that never answer are not asked again.
 */
void health_ask(struct health *h, struct health_check *c);

/* Idempotent. */
void health_cancel(struct health_check *c);

#endif
