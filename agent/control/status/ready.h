/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the agent is ready for work: conditions, each with its reason in words. Control thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "agent/config/words.h"
#include "schema/gen/dbus.h"

/* running, listener, rdma, tcp, and each required segment. */
#define READY_CONDITIONS_MAX (4 + READY_REQUIRE_MAX)
#define READY_REASON_BYTES 160

struct agent;

struct ready {
	bool ready; /* every required condition holds */
	size_t n;
	struct dray_dbus_condition conditions[READY_CONDITIONS_MAX];
	char reasons[READY_CONDITIONS_MAX][READY_REASON_BYTES];
};

/* *ret borrows words of ready.require. It must not be copied: conditions refer to reasons. */
void agent_ready(struct agent *a, struct ready *ret);
