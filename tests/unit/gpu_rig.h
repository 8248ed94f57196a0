/* SPDX-License-Identifier: Apache-2.0 */
/* The core rig with transport gpu on the fake plug-in: devices, their queues, and regions of their memory. */
#pragma once

#include "agent/data/gpu_queue/gpu_queue.h"
#include "tests/gpu/fake.h"
#include "tests/unit/core_rig.h"

#define GPU_RIG_DEVICES 2

struct gpu_rig_region {
	struct rig_region region;
	struct gpu_import *import;
};

struct gpu_rig {
	struct rig rig;
	struct rig_session s;
	struct gpu_plugin *plugin;
	struct gpu_queues queues[GPU_RIG_DEVICES];
	struct gpu_load loads[GPU_RIG_DEVICES];
	unsigned n_regions, n_pinned;
	struct gpu_rig_region regions[8];
	void *pinned[8];
	struct gpu_staging staging;
	struct gpu_copy_memory memories[GPU_RIG_DEVICES];
	struct gpu_block *blocks[GPU_RIG_DEVICES];
	void *lists;
	struct remote_view *remotes[8];
};

/* pieces: number of pieces that each queue holds */
void gpu_rig_init(struct gpu_rig *g, uint32_t pieces);
/* The same with queues for copy engines and for probes, so that copies follow the load. */
void gpu_rig_init_watched(struct gpu_rig *g, uint32_t pieces);
/* Checks that everything the plug-in gave was returned, and that no forbidden memory was accessed. */
void gpu_rig_deinit(struct gpu_rig *g);

/*
 * As the core rig's regions; device below 0: host memory. The handles of region and remote have the
 * same number, counted from 1.
 */
struct rig_region *gpu_rig_region(struct gpu_rig *g, int device, uint64_t bytes,
				  uint32_t n_extents);
/* Makes a region of host memory accessible to devices. */
void gpu_rig_pin(struct gpu_rig *g, struct rig_region *r);
/* Adds memory for lists of pieces that devices read. */
void gpu_rig_lists(struct gpu_rig *g);
/* Tells the worker that a device is there, or is not; at first all are. Waits until the worker has no more use for it. */
void gpu_rig_device(struct gpu_rig *g, unsigned device, bool up);
/* Tells the worker that no copy of the device is in flight any more. */
void gpu_rig_ended(struct gpu_rig *g, unsigned device);
/* Adds staging memory. */
void gpu_rig_stage(struct gpu_rig *g, uint64_t bytes);
/* Gives the worker copy memory on a device; 0 bytes: refuses it. And whether the worker has asked for it, or returned it. */
void gpu_rig_memory(struct gpu_rig *g, unsigned device, uint64_t bytes);
bool gpu_rig_told(const struct gpu_rig *g, enum gpu_event type, uint64_t id);
dray_handle gpu_rig_handle(unsigned n);

/* Submits a transfer between a local region and a remote, given by number. id is its request id. */
void gpu_rig_submit(struct gpu_rig *g, uint64_t id, bool write, unsigned local, unsigned remote,
		    const uint64_t (*ops)[3], uint32_t n);
/* Finds a transfer in flight by its request id. */
struct xfer *gpu_rig_xfer(struct gpu_rig *g, uint64_t id);
bool gpu_rig_turn(struct gpu_rig *g);
/* Runs until n transfers in total have ended. */
void gpu_rig_until(struct gpu_rig *g, unsigned ended);
/* Waits until n copies wait to be released. */
void gpu_rig_held(uint64_t n);
