/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: makes its modules, runs, ends. Control thread only. */
#ifndef DRAY_AGENT_AGENT_H
#define DRAY_AGENT_AGENT_H

#include "agent/control/agent.h"

/* Starts everything; on error nothing is left. The configuration, and where it came from, are borrowed. */
int agent_start(struct agent *a, struct config *config, const struct config_args *args,
		struct dray_err *reterr);

/* Runs until the end; returns the exit status. */
int agent_run(struct agent *a);
/* False: a worker does not end, so that most is left as it is and the process must end without more ado. */
bool agent_deinit(struct agent *a);

#endif
