/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that several verbs use. */
#ifndef DRAY_CTL_VERBS_VERBS_H
#define DRAY_CTL_VERBS_VERBS_H

#include "ctl/bus/list.h"
#include "ctl/bus/properties.h"

/* Prints the result of a change: {"key": "value"} in JSON, else the value alone. */
void ctl_result_print(struct ctl *c, const char *key, const char *value);

/* The agent's health; the conditions own the reply. */
struct ctl_health {
	bool alive, ready;
	const char *reason; /* why it is not alive, or "" */
	struct ctl_rows conditions;
};

#define CTL_HEALTH_NULL ((struct ctl_health){ .reason = "", .conditions = CTL_ROWS_NULL })

/* 0 or -1; the caller owns the conditions in any case. */
int ctl_health_get(struct ctl *c, struct ctl_health *h);

/* The work that is left of a drain, and its limit. Fills buf and returns it. */
#define CTL_DRAIN_BYTES 200
const char *ctl_drain_text(const struct ctl_properties *p, char *buf, size_t n);

/* Calls `print` every --interval, --count times or until interrupted. On a terminal, each output replaces the last. */
typedef int (*ctl_print_fn)(struct ctl *c, void *arg);
int ctl_watch(struct ctl *c, ctl_print_fn print, void *arg);

#endif
