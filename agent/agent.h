/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, runs and ends the agent. Control thread only. */
#pragma once

#include <stdio.h>

#include "agent/control/agent.h"

/*
 * Reads the files that the configuration names, and looks for its groups, as the start does. Prints each error. A file that this user may
 * not use is no error, because the agent may run as another one. 0 or -errno.
 */
int agent_check(const struct dray_config *cfg, FILE *out);

/* Starts all modules. config and args are borrowed. 0, or -errno with reterr; agent_deinit() follows either. */
int agent_start(struct agent *a, struct config *config, const struct config_args *args,
		struct dray_err *reterr);

/* Runs until the agent stops; returns the exit status. */
int agent_run(struct agent *a);
/* False: a worker does not end. Its memory is not freed, and the caller must exit with _exit(). */
bool agent_deinit(struct agent *a);
