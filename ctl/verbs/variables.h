/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of an engine, as the agent describes it, and what happens to each variable here. */
#ifndef DRAY_CTL_VERBS_VARIABLES_H
#define DRAY_CTL_VERBS_VARIABLES_H

#include "ctl/bus/rows.h"
#include "ctl/ctl.h"

struct ctl_variables {
	struct ctl_rows rows; /* the agent's records; they own the texts */
	bool without_preference;
};

#define CTL_VARIABLES_NULL ((struct ctl_variables){ .rows = CTL_ROWS_NULL })

/* Calls the agent for the profiles of --profile. 0 or -1, also for names that a shell cannot assign. */
int ctl_variables_get(struct ctl *c, struct ctl_variables *v);

enum ctl_fate {
	CTL_FATE_SET,
	CTL_FATE_ARGUMENT, /* of a command line */
	CTL_FATE_LEFT_OUT,
	CTL_FATE_SAME, /* has this value already, from the caller or an earlier record */
};

struct ctl_variable {
	const char *profile, *name, *value;
	enum ctl_fate fate;
	const char *reason; /* the origin, or why it is omitted */
};

/* The i-th variable. */
struct ctl_variable ctl_variable_at(struct ctl *c, const struct ctl_variables *v, size_t i);

/* Prints a line for each omitted variable on the error stream. */
void ctl_variables_note(struct ctl *c, const struct ctl_variables *v);

/* The value of a variable in the caller's environment, or NULL. */
const char *ctl_variable_given(const struct ctl *c, const char *name);

#endif
