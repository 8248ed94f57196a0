/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data workers as the control thread sees them. All functions: control thread only.
 */
#ifndef DRAY_AGENT_DATA_WORKER_WORKER_H
#define DRAY_AGENT_DATA_WORKER_WORKER_H

#include <sched.h>

#include "agent/data/transfer/core.h"
#include "agent/model/message.h"
#include "lib/err.h"

struct crew;
struct worker;

/* Longest wait for its thread to end. */
#define WORKER_QUIT_LIMIT_NS (3 * DRAY_NS_PER_SEC)

/* One without a thread, which may be given commands. max_transfers: limits.transfers. 0 or -errno with reterr. */
int worker_make(struct worker **ret, unsigned index, const struct core_config *cfg,
		uint32_t max_transfers, struct dray_err *reterr);

/* It helps the others of the crew, and they it; before its thread starts. Borrowed. 0 or -errno with reterr. */
int worker_join(struct worker *w, struct crew *crew, struct dray_err *reterr);

/* Starts its thread. 0 or -errno with reterr. */
int worker_start(struct worker *w, struct dray_err *reterr);

/* The CPUs its thread may run on. 0 or -errno. */
int worker_place(struct worker *w, const cpu_set_t *cpus);

/*
 * Sends COMMAND_QUIT, joins, frees. Sessions must be gone. False: the thread does not end (a debugger holds it,
 * or a device); it and all that it may look at are left to the end of the process.
 */
bool worker_free(struct worker *w);

/* Queues a command; never fails for lack of ring space (an overflow list holds it), only on -ENOMEM, which aborts. */
void worker_post(struct worker *w, const struct command *cmd);

/* Readable when events wait. */
int worker_event_fd(struct worker *w);

/* Takes the next event; also moves overflowed commands on. False when there is none. */
bool worker_next_event(struct worker *w, struct event *ret);

const struct core_counters *worker_counters(struct worker *w);

#endif
