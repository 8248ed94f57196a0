/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's properties, all at once. */
#ifndef DRAY_CTL_BUS_PROPERTIES_H
#define DRAY_CTL_BUS_PROPERTIES_H

#include "ctl/bus/bus.h"

struct ctl_counter {
	const char *name; /* the message's */
	uint64_t value;
};

struct ctl_properties {
	sd_bus_message *reply; /* holds the texts */
	const char *state, *version, *agent_id, *segment, *preferred_segment;
	const char *log_level, *poll_reason, *gpu_plugin;
	uint64_t incarnation, uptime_ns, poll_time_ns;
	uint64_t transfers_left, bytes_left, grants_left, deadline_ns; /* while it drains */
	uint32_t pid, workers;
	struct ctl_counter *counters; /* in the agent's order */
	size_t n_counters;
};

#define CTL_PROPERTIES_NULL ((struct ctl_properties){ .reply = NULL })

/* 0 or -1. */
int ctl_properties_get(struct ctl_properties *p, struct ctl_bus *b, struct ctl_err *reterr);
void ctl_properties_deinit(struct ctl_properties *p);

/* 0 where the agent does not know it. */
uint64_t ctl_properties_counter(const struct ctl_properties *p, const char *name);

#endif
