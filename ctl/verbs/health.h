/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent says of itself: alive, and ready by which conditions. */
#ifndef DRAY_CTL_VERBS_HEALTH_H
#define DRAY_CTL_VERBS_HEALTH_H

#include "ctl/bus/bus.h"
#include "ctl/ctl.h"
#include "ctl/bus/rows.h"

struct ctl_health {
	bool alive, ready;
	const char *reason; /* why it is not alive, "" otherwise; the reply's */
	struct ctl_rows conditions;
};

#define CTL_HEALTH_NULL ((struct ctl_health){ .reason = "", .conditions = CTL_ROWS_NULL })

/* 0 or -1. Conditions and reply are the caller's, also on errors. */
int ctl_health_ask(struct ctl_bus *b, struct ctl_health *h, sd_bus_message **ret_reply,
		   struct ctl_err *reterr);

#endif
