/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the agent is ready for work: conditions, each with its reason in words. A pure function of facts that the
 * caller gathers.
 */
#ifndef DRAY_AGENT_CONTROL_READY_H
#define DRAY_AGENT_CONTROL_READY_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/config/words.h"

/* running, listener, rdma, tcp, and each required segment. */
#define READY_CONDITIONS_MAX (4 + READY_REQUIRE_MAX)
#define READY_REASON_BYTES 160

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

struct ready_facts {
	const char *state;
	bool running;
	bool wants_listener; /* peer.listen is not "none" */
	unsigned listeners;
	bool rdma_enabled;
	unsigned rails_up;
	/* Whether the agent at that segment is connected and accepts work; reason: why, or why not. */
	bool (*segment)(void *arg, const char *segment, char reason[READY_REASON_BYTES]);
	void *arg;
};

/* require: words of ready.require, which the configuration has checked; *ret borrows them. */
void ready_evaluate(const struct ready_facts *f, const struct dray_strv *require,
		    struct ready *ret);

#endif
