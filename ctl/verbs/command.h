/* SPDX-License-Identifier: Apache-2.0 */
/* A command that takes this process's place. */
#ifndef DRAY_CTL_VERBS_COMMAND_H
#define DRAY_CTL_VERBS_COMMAND_H

#include "ctl/ctl.h"

struct ctl_command {
	char *const *argv; /* NULL at its end */
	unsigned n;
};

/*
 * The file that a shell would run for it, the caller's to free; path: $PATH, or NULL. 0, or -1 with 127 (there is
 * none) or 126 (it cannot be run).
 */
int ctl_command_find(const char *name, const char *path, char **ret, struct ctl_err *reterr);

/* Does not return but with -1, and 126 or 127. A file without #! is a script of sh, as everywhere. */
int ctl_command_exec(const char *file, char *const *argv, char *const *variables,
		     struct ctl_err *reterr);

/* vllm serve, or python -m vllm.entrypoints..., also behind numactl and the like. */
bool ctl_command_is_vllm(char *const *argv, unsigned n);

/* Has it a --kv-transfer-config, in any of the spellings that vLLM takes? */
bool ctl_command_has_kv_transfer(char *const *argv, unsigned n);

#endif
