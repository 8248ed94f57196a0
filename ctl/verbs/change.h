/* SPDX-License-Identifier: Apache-2.0 */
/* For verbs that change something by one call. */
#ifndef DRAY_CTL_VERBS_CHANGE_H
#define DRAY_CTL_VERBS_CHANGE_H

#include "ctl/ctl.h"

/* What came of it: {"key": "value"} in JSON, else the value alone. */
void ctl_result_print(struct ctl *c, const char *key, const char *value);

/* A handle or request id of the command line. 0, or -1 with wrong use. what: as the help names it. */
int ctl_handle_parse(const char *what, const char *text, uint64_t *ret, struct ctl_err *reterr);

#endif
