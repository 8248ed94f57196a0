/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of drayd. */
#pragma once

#include <stdio.h>

#include "agent/config/config.h"
#include "lib/err.h"

enum args_action { ARGS_RUN, ARGS_HELP, ARGS_VERSION, ARGS_CHECK_CONFIG };

struct args {
	enum args_action action;
	struct config_args config; /* env is NULL; the caller sets it */
};

#define ARGS_NULL ((struct args){ .action = ARGS_RUN })

/*
 * Fills a, which must be ARGS_NULL; config.file points into argv. 0, -EINVAL (wrong use; one line in reterr) or -ENOMEM.
 * The caller calls args_deinit() in each case.
 */
int args_parse(struct args *a, int argc, char **argv, struct dray_err *reterr);
void args_deinit(struct args *a);

/* Prints all options, and all keys with their defaults. */
void args_help(FILE *f);
void args_version(FILE *f);
