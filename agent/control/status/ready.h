/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the agent is ready for work: conditions, each with its reason in words. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_STATUS_READY_H
#define DRAY_AGENT_CONTROL_STATUS_READY_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/config/words.h"

/* running, listener, rdma, tcp, and each required segment. */
#define READY_CONDITIONS_MAX (4 + READY_REQUIRE_MAX)
#define READY_REASON_BYTES 160

struct agent;

struct ready_condition {
	const char *name; /* static, or a word in the configuration */
	bool ok;
	bool required; /* the agent is not ready unless it holds */
	char reason[READY_REASON_BYTES];
};

struct ready {
	bool ready; /* every required condition holds */
	size_t n;
	struct ready_condition conditions[READY_CONDITIONS_MAX];
};

/* *ret borrows words of ready.require. */
void agent_ready(struct agent *a, struct ready *ret);

#endif
