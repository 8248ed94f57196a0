/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux capabilities of the process. At its start it drops the ones that it never needs. When the sockets are bound and
 * the files are open, each thread drops all but CAP_IPC_LOCK, which registration with RDMA devices needs beyond
 * RLIMIT_MEMLOCK. A capability that the process does not have is not an error here; the call that needs it fails with its
 * own message.
 */
#pragma once

#include "lib/err.h"

/*
 * Before any thread starts: sets PR_SET_NO_NEW_PRIVS and keeps only the capabilities for starting. 0, or -errno with
 * reterr.
 */
int privilege_init(struct dray_err *reterr);

/*
 * The calling thread keeps only the capabilities for work. Threads that it starts later inherit them; threads that run
 * already must call this themselves. 0 or -errno. Idempotent.
 */
int privilege_drop(void);
