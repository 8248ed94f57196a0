/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's environment as the agent tells it, and what becomes of each variable here. */
#ifndef DRAY_CTL_VERBS_ENV_H
#define DRAY_CTL_VERBS_ENV_H

#include "ctl/bus/bus.h"
#include "ctl/bus/rows.h"

struct ctl_variables {
	struct ctl_rows rows;  /* records of the interface */
	sd_bus_message *reply; /* holds the texts */
	bool without_preference;
};

#define CTL_VARIABLES_NULL ((struct ctl_variables){ .reply = NULL })

/*
 * Asks for the profiles of --profile. 0 or -1, also for names that no shell could assign to. The texts live as long
 * as the variables.
 */
int ctl_variables_get(struct ctl *c, struct ctl_bus *b, struct ctl_variables *v,
		      struct ctl_err *reterr);
void ctl_variables_deinit(struct ctl_variables *v);

enum ctl_fate {
	CTL_FATE_SET,
	CTL_FATE_ARGUMENT, /* of a command line */
	CTL_FATE_LEFT_OUT,
	CTL_FATE_SAME, /* set already, to that, by the caller or by an earlier one */
};

struct ctl_variable {
	const char *profile, *name, *value;
	enum ctl_fate fate;
	const char *reason; /* where it comes from, or why it is left out */
};

/* The i-th one. */
struct ctl_variable ctl_variable_at(struct ctl *c, const struct ctl_variables *v, size_t i);

/* A line on the error stream for each that is left out. */
void ctl_variables_note(struct ctl *c, const struct ctl_variables *v);

#endif
