/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System call filter of a running agent, by libseccomp. Calls on the allow-list (sandbox_calls.c) work. Calls that only an
 * intruder would make, such as execve, ptrace, mount or setuid, kill the process. All other calls fail with EPERM: a
 * C library, driver or kernel newer than the list then loses one feature, and the agent keeps running with its
 * transfers. The kernel's audit log names each refused call.
 *
 * The filter checks the arguments of some calls. Sockets must be of the families Unix, IPv4, IPv6 and netlink. clone can
 * create threads, but no processes or namespaces; a filter cannot see the flags of clone3, so that returns ENOSYS and the C
 * library uses clone. Memory is never writable and executable, and becomes executable only by mapping a file: libibverbs
 * and its drivers are loaded when the first device appears, and the CUDA plug-in with the first region that needs it. The
 * filter cannot see which file that is, so a memfd can be mapped as code, too, whatever its flags and seals. If neither
 * RDMA nor GPUs are enabled, no library is loaded any more, and nothing can become executable. Arguments of calls on the
 * data path are not checked: since Linux 5.11 the kernel caches that they are allowed and skips the filter.
 *
 * DRAY_TEST builds also allow the calls of sanitizers: their leak check traces the process at its end.
 */
#pragma once

#include <stdbool.h>

#include "lib/err.h"
#include "schema/gen/config.h"

/*
 * Installs the filter for all present and future threads of this process. LOG: no call fails but clone3, the audit log names
 * the others that would. OFF: no filter. A kernel without seccomp filters causes a warning. libraries: some may still be
 * loaded. Needs no_new_privs. 0, or -errno with reterr.
 */
int sandbox_enter(enum dray_config_agent_seccomp mode, bool libraries, struct dray_err *reterr);

/*
 * sandbox_calls.c: names of system calls, ending in NULL. Names unknown to the architecture or to libseccomp are
 * ignored.
 */
extern const char *const sandbox_allowed[], *const sandbox_forbidden[];
