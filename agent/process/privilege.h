/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process may do beyond other processes. It starts with what it was given and gives back, for
 * ever: at once what it never needs, and each thread, as soon as it has bound and opened what takes more,
 * all but the right to pin memory beyond RLIMIT_MEMLOCK (CAP_IPC_LOCK), which registering with RDMA devices
 * goes on needing. What was not given is not missed here: where it is needed, the call that fails says so.
 */
#ifndef DRAY_AGENT_PROCESS_PRIVILEGE_H
#define DRAY_AGENT_PROCESS_PRIVILEGE_H

#include "lib/err.h"

/*
 * Before any thread is started: no exec brings privileges (PR_SET_NO_NEW_PRIVS), and of the capabilities only
 * those for starting stay. 0, or -errno with reterr set.
 */
int privilege_init(struct dray_err *reterr);

/*
 * The calling thread keeps what work needs, and so do threads that it starts from then on. Capabilities belong to
 * threads: one that was started before calls this itself. 0 or -errno. Idempotent.
 */
int privilege_drop(void);

#endif
