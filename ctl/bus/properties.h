/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's properties, all at once. */
#ifndef DRAY_CTL_BUS_PROPERTIES_H
#define DRAY_CTL_BUS_PROPERTIES_H

#include "ctl/bus/bus.h"

struct ctl_counter {
	const char *name; /* in the reply */
	uint64_t value;
};

/* Texts that an older agent leaves out are "", numbers 0. */
struct ctl_properties {
	sd_bus_message *reply; /* holds the texts */
	const char *state, *version, *agent_id, *segment, *preferred_segment;
	const char *log_level, *poll_reason, *gpu_plugin;
	uint64_t incarnation, uptime_ns, poll_time_ns, pid, workers;
	uint64_t transfers_left, bytes_left, grants_left, deadline_ns; /* during a drain */
	struct ctl_counter *counters;                                  /* in the agent's order */
	size_t n_counters, cap;
};

#define CTL_PROPERTIES_NULL ((struct ctl_properties){ .reply = NULL })

/* The properties but the counters, in the order of status --json and --plain. */
struct ctl_property {
	const char *name; /* on D-Bus */
	const char *key;  /* in output */
	const char *type; /* "s", "u" or "t" */
	size_t offset;    /* of a const char * or uint64_t in struct ctl_properties */
};

extern const struct ctl_property ctl_properties_known[];
extern const unsigned ctl_properties_known_n;

static inline const char *ctl_property_text(const struct ctl_properties *p,
					    const struct ctl_property *k)
{
	return *(const char *const *)((const char *)p + k->offset);
}

static inline uint64_t ctl_property_number(const struct ctl_properties *p,
					   const struct ctl_property *k)
{
	return *(const uint64_t *)((const char *)p + k->offset);
}

/* 0 or -1. */
int ctl_properties_get(struct ctl *c, struct ctl_properties *p, struct ctl_err *reterr);
void ctl_properties_deinit(struct ctl_properties *p);
#define ctl_auto_properties __attribute__((cleanup(ctl_properties_deinit)))

/* 0 for a counter that the agent does not have. */
uint64_t ctl_properties_counter(const struct ctl_properties *p, const char *name);

#endif
