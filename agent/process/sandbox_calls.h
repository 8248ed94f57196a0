/* SPDX-License-Identifier: Apache-2.0 */
/* System calls by name, NULL at the end. Names that this architecture or library does not know do no harm. */
#ifndef DRAY_AGENT_PROCESS_SANDBOX_CALLS_H
#define DRAY_AGENT_PROCESS_SANDBOX_CALLS_H

extern const char *const sandbox_allowed[];
extern const char *const sandbox_forbidden[];

#endif
