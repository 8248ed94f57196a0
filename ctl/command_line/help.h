/* SPDX-License-Identifier: Apache-2.0 */
/* Help, from the tables of verbs and options. */
#ifndef DRAY_CTL_COMMAND_LINE_HELP_H
#define DRAY_CTL_COMMAND_LINE_HELP_H

#include "ctl/ctl.h"

/* v: NULL for the list of verbs. */
void ctl_help_print(FILE *f, const struct ctl_verb *v);

#endif
