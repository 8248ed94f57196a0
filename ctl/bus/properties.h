/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's properties, all at once. */
#pragma once

#include "ctl/bus/bus.h"

struct ctl_counter {
	const char *name; /* in the reply */
	uint64_t value;
};

struct ctl_properties {
	sd_bus_message *reply;          /* holds the texts */
	sd_bus_message *counters_reply; /* holds the counters' names; NULL: the reply does */
	struct dray_dbus_properties v;  /* texts that an older agent leaves out are "", numbers 0 */
	struct ctl_counter *counters;   /* in the agent's order; none before ctl_counters_get() */
	size_t n_counters;
	bool has_counters;
};

#define CTL_PROPERTIES_NULL ((struct ctl_properties){ .reply = NULL })

/* All but the counters. 0 or -1. */
int ctl_properties_get(struct ctl *c, struct ctl_properties *p);
/* Then the counters. 0 or -1. */
int ctl_counters_get(struct ctl *c, struct ctl_properties *p);
void ctl_properties_deinit(struct ctl_properties *p);
#define ctl_auto_properties __attribute__((cleanup(ctl_properties_deinit)))

/* 0 for a counter that the agent does not have. */
uint64_t ctl_properties_counter(const struct ctl_properties *p, const char *name);
