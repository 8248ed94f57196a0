/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the agent ready for work? Conditions, each with its reason in words, from facts that the caller gathers.
 * Pure: nothing here looks around.
 */
#ifndef DRAY_AGENT_CONTROL_READY_H
#define DRAY_AGENT_CONTROL_READY_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/config/ready_words.h"

/* running, listener, rdma, tcp, and each required segment. */
#define READY_CONDITIONS_MAX (4 + READY_REQUIRE_MAX)
#define READY_REASON_BYTES 160

struct ready_condition {
	const char *name; /* static, or a word of the configuration */
	bool ok;
	bool required; /* without it the agent is not ready */
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
	/* Is the agent at that segment connected, and takes work? Writes why, or why not. */
	bool (*segment)(void *arg, const char *segment, char reason[READY_REASON_BYTES]);
	void *arg;
};

/* require: words that have passed ready_check_words(); *ret borrows them. */
void ready_evaluate(const struct ready_facts *f, const struct dray_strv *require,
		    struct ready *ret);

#endif
