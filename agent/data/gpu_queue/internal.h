/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's GPU queues, for transport gpu: the queues given by the control thread, and copies in flight. Worker thread only. */
#ifndef DRAY_AGENT_DATA_GPU_QUEUE_INTERNAL_H
#define DRAY_AGENT_DATA_GPU_QUEUE_INTERNAL_H

#include "agent/data/gpu_queue/gpu_queue.h"

/* Makes c->gpu. 0 or -errno. */
int gpu_queues_init(struct core *c);
/* Waits up to a second for callbacks of the plug-in that still write to the worker's descriptor. */
void gpu_queues_deinit(struct core *c);

void gpu_queues_up(struct core *c, const struct gpu_queues *q);
/* Ends the copies in flight, then sends GPU_GONE, possibly inside the call. */
void gpu_queues_down(struct core *c, unsigned device);

/* Ends tasks whose copies are done or lost. True if there were any. */
bool gpu_queues_poll(struct core *c);
/* When to poll again at the latest, ns. Checks devices without progress. */
int64_t gpu_queues_tick(struct core *c);
/* The worker will be woken when copies are done. True: some are done or lost now. */
bool gpu_queues_announce(struct core *c);

/* Devices that this one reaches directly, itself included; 0: it is not up. */
uint32_t gpu_queues_peers(const struct core *c, unsigned device);

#endif
