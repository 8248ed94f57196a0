/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the agent again and again, for verbs that show how things move. */
#ifndef DRAY_CTL_VERBS_WATCH_H
#define DRAY_CTL_VERBS_WATCH_H

#include "ctl/bus/bus.h"
#include "ctl/ctl.h"

/* Prints one look. 0 or -1. */
typedef int (*ctl_look_fn)(struct ctl *c, struct ctl_bus *b, void *arg, struct ctl_err *reterr);

/*
 * One look each --interval, --count of them or until somebody ends it; on a terminal each takes the place of the
 * one before. Returns the exit status.
 */
int ctl_watch(struct ctl *c, ctl_look_fn look, void *arg);

#endif
