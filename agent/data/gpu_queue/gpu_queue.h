/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy queues of a worker on GPUs. Transport gpu uses them for transfers between regions of this agent, and
 * transport/stage for bytes of GPU memory that go over the network. Worker thread only; nothing blocks except
 * gpu_finish(), nothing allocates on the data path.
 */
#ifndef DRAY_AGENT_DATA_GPU_QUEUE_GPU_QUEUE_H
#define DRAY_AGENT_DATA_GPU_QUEUE_GPU_QUEUE_H

#include "agent/data/transfer/core.h"
#include "agent/model/gpu_message.h"

/* Embedded in the object that waits for a copy. */
struct gpu_task {
	struct dray_list link;
	uint64_t number; /* of its last copy in its queue */
	uint8_t device, class;
	uint32_t n_pieces; /* of the ring for pieces, returned when it is done */
	/*
	 * All copies are done: code 0, and every byte is in place; or DRAY_E_GPU_LOST: what of it may still move has ended
	 * when its memory is closed.
	 * Runs in the worker's turn, from transport gpu's progress(), stop() or drop(), never inside the call that made it.
	 */
	void (*done)(struct core *c, struct gpu_task *t, uint32_t code);
};

/* This worker can submit copies to the device now. */
bool gpu_is_up(const struct core *c, unsigned device);

/*
 * A copy of at most gpu_room() pieces. gpu_pieces() is where they are written, then gpu_submit() hands the first n of
 * them over, as `copy` says (its `pieces` and `n` are filled in). Where its `pieces` are set, these are handed over, in
 * memory of the plug-in's that stays as it is until the task is done; gpu_room() must not be 0 all the same. 0; -EAGAIN: no room for now, progress() of the
 * transport makes some; -EIO: the device is lost or not up, and done() will not run.
 */
uint32_t gpu_room(const struct core *c, unsigned device, enum dmsg_class class);
struct dray_piece *gpu_pieces(struct core *c, unsigned device, enum dmsg_class class);
int gpu_submit(struct core *c, unsigned device, enum dmsg_class class, struct gpu_copy *copy,
	       uint32_t n, struct gpu_task *t);

/* Blocks until the task is done or its device lost, at most a second, and runs done(). */
void gpu_finish(struct core *c, struct gpu_task *t);

/*
 * Makes bytes that RDMA devices have written to the device visible to it; takes microseconds. 0, or -EIO: it is lost or
 * not up.
 */
int gpu_flush_rdma(struct core *c, unsigned device);

#endif
