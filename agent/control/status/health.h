/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the agent is alive. A check queries every worker. The agent is alive if the event loop turns, which the answer
 * itself proves, if every worker answers within health.worker_limit, and if no transfer has passed its deadline by more
 * than transfer.slice_timeout plus peer.heartbeat_limit, the longest time that its end may take. Without checks nothing
 * runs. Control thread only; nothing blocks.
 */
#pragma once

#include <stdint.h>

#include "lib/err.h"
#include "lib/list.h"

struct agent;
struct health;

/* One check. The caller owns it, and does not move it until fn has run or the check is cancelled. */
struct health_check {
	struct dray_list link;
	void (*fn)(struct health_check *c, const char *fault); /* fault: "" if the agent is alive */
	int64_t end_ns;
};

#define HEALTH_CHECK_INIT(c, callback) \
	((struct health_check){ .link = { &(c).link, &(c).link }, .fn = (callback) })

/* The agent is borrowed. 0 or -errno. */
int health_new(struct health **ret, struct agent *a);
/* Pending checks are never answered. */
struct health *health_free(struct health *h);

/*
 * c->fn runs exactly once, after this call and within health.worker_limit. Checks that come during a query of the workers
 * share its answer; a worker that has not answered gets no second query.
 */
void health_ask(struct health *h, struct health_check *c);

/* Idempotent. */
void health_cancel(struct health_check *c);
