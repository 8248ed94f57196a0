/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transport `gpu` in a worker and agent/gpu on the control thread say to each other.
 *
 * The control thread starts devices, makes each worker's queues and staging memory, and pins host memory; a worker
 * submits to what it was given. Either may find that a device is lost. Then the worker ends what it has
 * there with gpu_lost and says GONE, once it has been told DOWN.
 */
#ifndef DRAY_AGENT_MODEL_GPU_MESSAGE_H
#define DRAY_AGENT_MODEL_GPU_MESSAGE_H

#include "gpu/plugin.h"
#include "schema/gen/data.h"

/* Pinned memory of one worker for lists of operations: eight of the longest. */
#define GPU_LISTS_BYTES (8ull * DMSG_OPS_MAX * DMSG_OP_SIZE)

enum gpu_message {
	/* to the worker */
	GPU_UP, /* id: device; arg: struct gpu_queues of this worker, borrowed until GONE */
	GPU_DOWN, /* id: device; answered by GONE. Regions on it are dropped already, or being dropped */
	GPU_STAGING, /* arg: struct gpu_staging of this worker, borrowed for its life */
	GPU_LISTS, /* arg: GPU_LISTS_BYTES of pinned memory for this worker, borrowed for its life */
	GPU_PINNED, /* id: handle of a region of host memory: devices reach it. Lasts until it is dropped */
	/* from the worker */
	GPU_LOST, /* id: device: it failed; DOWN is awaited */
	GPU_GONE, /* id: device: its queues are not used any more */
};

/* Queues of one device, of one worker. */
struct gpu_queues {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	unsigned device;
	bool rdma_ordered; /* what RDMA devices write to it needs no flush */
	uint32_t peers;    /* devices that it reaches directly and that reach it, itself too */
	struct gpu_queue *queue[2];   /* by enum dmsg_class */
	struct dray_piece *pieces[2]; /* pinned: room for pieces of copies under way, by class */
	uint32_t n_pieces;            /* of each */
};

/* Pinned memory for bytes that no device can move directly. */
struct gpu_staging {
	uint8_t *base;
	uint64_t bytes;
};

#endif
