/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, which is read by the tables of schema/drayctl.yaml. */
#ifndef DRAY_CTL_COMMAND_LINE_ARGS_H
#define DRAY_CTL_COMMAND_LINE_ARGS_H

#include "ctl/ctl.h"

/*
 * Fills verb, values, numbers, args and settings of c. Options may stand anywhere, those of a verb after it. 0, or -1 with
 * CTL_EXIT_USAGE.
 */
int ctl_args_parse(struct ctl *c, int argc, char *const *argv);

/* The verb of that name, or NULL with CTL_EXIT_USAGE and the nearest name. */
const struct ctl_verb *ctl_verb_find(struct ctl *c, const char *name);

#endif
