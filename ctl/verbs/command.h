/* SPDX-License-Identifier: Apache-2.0 */
/* A command that replaces this process. */
#ifndef DRAY_CTL_VERBS_COMMAND_H
#define DRAY_CTL_VERBS_COMMAND_H

#include "ctl/ctl.h"

/*
 * Finds the file that a shell would run, which the caller frees; path: $PATH, or NULL. 0, or -1 with
 * CTL_EXIT_NOT_FOUND or CTL_EXIT_NOT_EXECUTABLE.
 */
int ctl_command_find(struct ctl *c, const char *name, const char *path, char **ret);

/* Returns only on failure: -1. A file without #! is a script of sh, as with execvp(3). */
int ctl_command_exec(struct ctl *c, const char *file, char *const *argv, char *const *variables);

/* True for vllm serve and python -m vllm.entrypoints..., also behind numactl and similar programs. */
bool ctl_command_is_vllm(char *const *argv, unsigned n);

/* True if there is a --kv-transfer-config, in any spelling that vLLM accepts. */
bool ctl_command_has_kv_transfer(char *const *argv, unsigned n);

#endif
