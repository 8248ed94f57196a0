/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that a running agent can make, by libseccomp. What is on the list (sandbox_calls.c)
 * works as ever. What only an intruder would call, such as execve, ptrace, mount or setuid, kills the process. All
 * else fails with EPERM: a C library, driver or kernel younger than the list then meets what it must
 * expect anyway, a call that is refused, and one feature is lost instead of the agent with every
 * transfer in flight. The kernel's audit log names each call that was refused.
 *
 * Some calls are looked into: sockets are of the families Unix, IPv4, IPv6 and netlink; clone makes threads and
 * no processes or namespaces (clone3, whose flags no filter sees, answers ENOSYS and the C library
 * takes clone); memory is never writable and executable, and is made executable only by mapping a file. The
 * latter has to stay, since libibverbs loads a driver when its first device appears, and the C
 * library loads what looks up group names. Calls of the data path are not looked into: the kernel remembers
 * that they are allowed (since 5.11) and does not run the filter for them.
 *
 * DRAY_TEST builds are allowed what sanitizers do beside that: their leak check traces the process at its end.
 */
#ifndef DRAY_AGENT_PROCESS_SANDBOX_H
#define DRAY_AGENT_PROCESS_SANDBOX_H

#include "lib/err.h"
#include "schema/gen/config.h"

/*
 * Puts all threads of this process, now and later, under the filter. LOG: nothing fails, the audit log names
 * what would. OFF does nothing. A kernel without seccomp filters is a warning in the log. 0, or -errno with
 * reterr set. Needs no_new_privs.
 */
int sandbox_enter(enum dray_config_agent_seccomp mode, struct dray_err *reterr);

#endif
