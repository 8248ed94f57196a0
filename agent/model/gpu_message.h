/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between transport `gpu` in a worker and agent/control/gpu.
 *
 * The control thread starts devices, makes each worker's queues and staging memory, and pins host memory; a worker submits
 * to its queues. Either side may find a device lost. After DOWN the worker ends its work on the device
 * with gpu_lost and sends GONE.
 */
#pragma once

#include "agent/model/gpu_rates.h"
#include "gpu/plugin.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"

/* Pinned memory of one worker for lists of operations: eight of the longest. */
#define GPU_LISTS_BYTES (8ull * DMSG_OPS_MAX * DMSG_OP_SIZE)

/* To the worker. */
enum gpu_command {
	GPU_UP,      /* id: device; arg: struct gpu_queues of this worker, borrowed until GONE */
	GPU_DOWN,    /* id: device; answered by GONE. Regions on it are dropped, or being dropped */
	GPU_ENDED,   /* id: device: no copy of its queues is in flight any more */
	GPU_STAGING, /* arg: struct gpu_staging of this worker, borrowed for its life */
	GPU_LISTS, /* arg: GPU_LISTS_BYTES of pinned memory for this worker, borrowed for its life */
	GPU_COPY_MEMORY, /* id: device; arg: struct gpu_copy_memory, borrowed until COPY_MEMORY_BACK; NULL: there is none now */
	GPU_RATES, /* id: device; arg: const struct gpu_rates, borrowed for the worker's life */
	GPU_PINNED, /* id: handle of a region of host memory: devices reach it until it is dropped, or UNPINNED */
	GPU_UNPINNED, /* id: likewise. No device is up, so no copy reaches it */
};

/* From the worker. */
enum gpu_event {
	GPU_LOST, /* id: device: it failed; answered by DOWN */
	GPU_REFUSED, /* id: device; arg: static text: the driver's error when it refused a copy. At most one a second */
	GPU_GONE,               /* id: device: its queues are not used any more */
	GPU_COPY_MEMORY_WANTED, /* id: device; answered by COPY_MEMORY */
	GPU_COPY_MEMORY_BACK, /* id: device: no new copy uses it. Copies of a device that is lost may still be in flight */
};

/*
 * Whether other processes keep a device busy, seen by how long kernels of this agent wait there; gpu_queue/load.h. All
 * workers share it, and one at a time measures.
 */
struct gpu_load {
	_Atomic int64_t due_ns; /* of the next measurement; INT64_MAX while one is made */
	_Atomic bool busy;
	unsigned quick, slow; /* measurements of this sort in a row; of the worker that measures */
	_Atomic int64_t wait_ns; /* of a kernel on the busy device, on average; 0: not seen yet */
	_Atomic bool
		measured; /* rates are being measured now; a worker that copies ends that by false */
};

/*
 * Queues of a worker on a device: kernels by class, then the same for copy engines, and one that measures waiting times.
 * Engines have their own, so that their copies do not stand behind a kernel that waits.
 */
enum gpu_lane {
	GPU_LANE_KERNEL,                       /* + enum dmsg_class */
	GPU_LANE_ENGINE = GPU_LANE_KERNEL + 2, /* likewise */
	GPU_LANE_COPY_N = GPU_LANE_ENGINE + 2,
	GPU_LANE_PROBE = GPU_LANE_COPY_N,
	GPU_LANE_N,
};

/* Queues of one device, of one worker. */
struct gpu_queues {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	unsigned device;
	bool rdma_ordered; /* writes of RDMA devices to it need no flush */
	uint32_t peers; /* mask of devices that it reaches directly and that reach it, itself too */
	/* by enum gpu_lane; without a probe nothing is measured */
	struct gpu_queue *queue[GPU_LANE_N];
	struct dray_piece
		*pieces[GPU_LANE_COPY_N];   /* pinned room for the pieces of copies in flight */
	uint32_t n_pieces, n_engine_pieces; /* of each queue of kernels, of engines */
	struct gpu_load *load;
	const struct gpu_rates *rates; /* until GPU_RATES */
	bool shared;                   /* kernels of several processes run at the same time (MPS) */
	uint32_t nvlink;               /* those of `peers` with NVLink; the others use PCIe */
	enum dray_config_gpu_copy copy;
	uint64_t copy_memory; /* bytes that a worker gets if it asks; 0: never */
};

/* Memory on a device that staged copies of one worker pass through. */
struct gpu_copy_memory {
	uint64_t address, bytes;
};

/* Pinned memory for bytes that no device can move directly. */
struct gpu_staging {
	uint8_t *base;
	uint64_t bytes;
};
