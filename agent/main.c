/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/config/args.h"
#include "agent/config/config.h"
#include "agent/config/machine.h"
#include "agent/placement/detect/detect.h"
#include "agent/process/journal.h"
#include "agent/process/privilege.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Exit statuses: 0 drained, 1 failed, 2 wrong use of the command line. */
static int run(struct config *config, const struct config_args *args)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct agent agent;
	int status;

	dray_log_set_journal(journal_send);
	dray_log_setup((enum dray_log_level)config->v.log.level,
		       (enum dray_log_format)config->v.log.format);
	for (size_t i = 0; i < config->warnings.n; i++)
		log_warning("config", "%s", config->warnings.v[i]);
	if (agent_start(&agent, config, args, &err) < 0) {
		log_error("agent", "%s", err.msg);
		status = 1;
	} else {
		status = agent_run(&agent);
	}
	/* a thread that does not end may still use the configuration */
	if (!agent_deinit(&agent))
		_exit(status);
	return status;
}

/* Returns the exit status of a command that wrote to standard output. */
static int output_end(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	fprintf(stderr, "drayd: cannot write to standard output: %s\n", dray_errno_text(errno));
	return 1;
}

/* A folder of a disk that hangs does not keep an agent from starting. */
static int warn_of_machine(struct config *config, bool disk, struct dray_err *reterr)
{
	int r = config_warn_memory(config);

	if (!r && disk)
		r = config_warn_disk(config);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "out of memory") : 0;
}

int main(int argc, char **argv)
{
	struct args args = ARGS_NULL;
	struct config config = CONFIG_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	int status = 0;

	dray_reserve_standard_fds();
	/* two arenas are enough for few threads, and keep an idle agent small */
	mallopt(M_ARENA_MAX, 2);
	if (privilege_init(&err) < 0) {
		fprintf(stderr, "drayd: %s\n", err.msg);
		return 1;
	}
	if (args_parse(&args, argc, argv, &err) < 0) {
		fprintf(stderr, "drayd: %s\n", err.msg);
		args_deinit(&args);
		return 2;
	}
	args.config.env = environ;
	args.config.check = detect_check_config;
	if (args.action == ARGS_HELP) {
		args_help(stdout);
		status = output_end(0);
	} else if (args.action == ARGS_VERSION) {
		args_version(stdout);
		status = output_end(0);
	} else if (config_load(&config, &args.config, &err) < 0 ||
		   warn_of_machine(&config, args.action == ARGS_CHECK_CONFIG, &err) < 0) {
		for (size_t i = 0; i < config.errors.n; i++)
			fprintf(stderr, "drayd: %s\n", config.errors.v[i]);
		if (!config.errors.n)
			fprintf(stderr, "drayd: %s\n", err.msg);
		status = 1;
	} else if (args.action == ARGS_CHECK_CONFIG) {
		config_show(&config, stdout);
		for (size_t i = 0; i < config.warnings.n; i++)
			fprintf(stderr, "drayd: %s\n", config.warnings.v[i]);
		status = output_end(agent_check(&config.v, stderr) < 0);
	} else {
		status = run(&config, &args.config);
	}
	config_deinit(&config);
	args_deinit(&args);
	return status;
}
