/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data worker: its thread is made, started and ended. Control thread only.
 */
#ifndef DRAY_AGENT_DATA_WORKER_WORKER_H
#define DRAY_AGENT_DATA_WORKER_WORKER_H

#include "agent/data/data.h"
#include "lib/err.h"

struct workshare;

/* Makes a worker without a thread; commands may be posted to it. max_transfers: limits.transfers. 0 or -errno with reterr. */
int worker_make(struct worker **ret, unsigned index, const struct data_config *cfg,
		uint32_t max_transfers, struct dray_err *reterr);

/* The worker shares work through `workshare`, which is borrowed. Before its thread starts. 0 or -errno with reterr. */
int worker_join(struct worker *w, struct workshare *workshare, struct dray_err *reterr);

/* Starts its thread. 0 or -errno with reterr. */
int worker_start(struct worker *w, struct dray_err *reterr);

/* The CPUs its thread may run on. 0 or -errno. */
int worker_place(struct worker *w, const cpu_set_t *cpus);

/*
 * Sends COMMAND_QUIT, joins, frees. Sessions must be gone. False: the thread does not end (a debugger holds it,
 * or a device); it and all that it may look at are left to the end of the process.
 */
bool worker_free(struct worker *w);

#endif
