/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy queues of a worker on GPUs. Transport gpu uses them for transfers between regions of this agent, and
 * transport/stage for bytes of GPU memory that go over the network. Worker thread only; nothing blocks except
 * an urgent gpu_task_stop(), nothing allocates on the data path.
 */
#pragma once

#include "agent/data/transfer/core.h"
#include "agent/model/gpu_message.h"

/* Embedded in the object that waits for a copy. */
struct gpu_task {
	struct dray_list link;
	uint64_t number; /* of its last copy in its queue */
	uint8_t device, lane;
	uint32_t n_pieces; /* of the ring for pieces, returned when it is done */
	const char *
		refused; /* by the driver, in part: why, as a sentence in memory of the worker; or NULL */
	/*
	 * Code 0: every byte is in place. DRAY_E_GPU_LOST: bytes may still move until the memory is closed. DRAY_E_INTERNAL: the
	 * driver refused the copy, and no byte moves. Runs in the worker's turn, from progress(), stop() or drop() of transport gpu, never inside gpu_submit().
	 */
	void (*done)(struct core *c, struct gpu_task *t, uint32_t code);
};

/* This worker can submit copies to the device now. */
bool gpu_is_up(const struct core *c, unsigned device);

/*
 * lane: enum gpu_lane, with the class. A copy of at most gpu_room() pieces: the caller writes them to gpu_pieces(), and gpu_submit() submits the first n. It sets
 * `pieces` and `n` of `copy`. If the caller has set `pieces`, they lie in memory that the plug-in reaches, and do not
 * change until the task is done; gpu_room() must not be 0 in this case either. 0; -EAGAIN: no room until the
 * transport's next progress(); -EIO: the device is lost or not up, and done() will not run.
 */
uint32_t gpu_room(const struct core *c, unsigned device, unsigned lane);
struct dray_piece *gpu_pieces(struct core *c, unsigned device, unsigned lane);
int gpu_submit(struct core *c, unsigned device, unsigned lane, struct gpu_copy *copy, uint32_t n,
	       struct gpu_task *t);

/* The device is up. */
enum dray_config_gpu_copy gpu_copy_setting(const struct core *c, unsigned device);
uint64_t gpu_copy_memory_setting(const struct core *c, unsigned device);
const struct gpu_rates *gpu_rates(const struct core *c, unsigned device);
/* Between the device and another one. */
enum gpu_bus gpu_bus_between(const struct core *c, unsigned device, unsigned other);
/* Kernels of several processes run there at the same time (MPS). */
bool gpu_is_shared(const struct core *c, unsigned device);
/* Other processes keep the device busy, as far as was seen; kernels of this agent wait there. */
bool gpu_is_busy(const struct core *c, unsigned device);
/* How long a kernel of this agent waits there while it is busy. */
int64_t gpu_wait_ns(const struct core *c, unsigned device);
/* There is traffic for which that matters: measures it at intervals. */
void gpu_watch(struct core *c, unsigned device);
/*
 * Whether copy engines make a copy between pieces on the device, which is up, and a row in the agent's own host memory. route:
 * GPU_TO_HOST or GPU_FROM_HOST. Watches the device. Only how large the pieces are matters if it says no.
 */
bool gpu_row_by_engines(struct core *c, unsigned device, enum gpu_route route, uint64_t bytes,
			uint32_t pieces);

/*
 * The task, which is in flight, was stopped. urgent: blocks until it is done or its device lost, at most a second, and runs done(). Else it
 * goes on: if its queue makes no progress for transfer.slice_timeout, the device counts as lost, unless MPS shares it.
 */
void gpu_task_stop(struct core *c, struct gpu_task *t, bool urgent);

/*
 * Makes bytes that RDMA devices have written to the device visible to it; takes microseconds. 0, or -EIO: it is lost or
 * not up.
 */
int gpu_flush_rdma(struct core *c, unsigned device);

/* For transport gpu, which owns c->gpu: the queues that the control thread has given to this worker. */
int gpu_queues_init(struct core *c);
/* Waits up to a second for callbacks of the plug-in that still write to the worker's descriptor. */
void gpu_queues_deinit(struct core *c);
void gpu_queues_up(struct core *c, const struct gpu_queues *q);
/* The device has other rates now. */
void gpu_queues_rates(struct core *c, unsigned device, const struct gpu_rates *rates);
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
