/* SPDX-License-Identifier: Apache-2.0 */
/* Names of system calls, ending in NULL. Names unknown to the architecture or to libseccomp are ignored. */
#ifndef DRAY_AGENT_PROCESS_SANDBOX_CALLS_H
#define DRAY_AGENT_PROCESS_SANDBOX_CALLS_H

extern const char *const sandbox_allowed[];
extern const char *const sandbox_forbidden[];

#endif
