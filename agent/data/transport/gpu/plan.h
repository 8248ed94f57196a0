/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between two regions of this agent, one of which is GPU memory: between which places, and lists
 * of which pieces. No state.
 */
#pragma once

#include "agent/data/transport/local/local.h"
#include "gpu/plugin.h"

enum gpu_path_kind {
	GPU_PATH_WITHIN, /* inside one device's memory */
	GPU_PATH_PEER,   /* between devices that reach each other */
	GPU_PATH_TO_HOST,
	GPU_PATH_FROM_HOST,
	/*
	 * From here on through staging memory in two steps: one by a device and one by this worker, or one by each of
	 * two devices.
	 */
	GPU_PATH_TO_HOST_STAGED,
	GPU_PATH_FROM_HOST_STAGED,
	GPU_PATH_PEER_STAGED,
	GPU_PATH_N,
	GPU_PATH_NONE = GPU_PATH_N,
};

struct gpu_path_choice {
	enum gpu_path_kind kind;
	uint8_t device; /* whose queue copies; staged: the device of the first step by a device */
};

/*
 * peers: for each device the set that it reaches, including itself; 0: the device takes no work. staging:
 * there is staging memory. from_pinned, to_pinned: devices reach that region of host memory.
 */
struct gpu_path_choice gpu_plan_path(const struct region_view *from, bool from_pinned,
				     const struct region_view *to, bool to_pinned,
				     const uint32_t peers[GPU_DEVICES_MAX], bool staging);

/* By kind. */
struct gpu_plan_limits {
	enum gpu_route route;
	enum dmsg_gpu_path path; /* as clients and metrics see it */
	uint64_t slice; /* bytes of a copy, which delay the copies behind it by some hundred microseconds */
	uint64_t engines_slice; /* the same if the load leaves it to copy engines, whose calls take longer */
	uint64_t shared_slice; /* the same on a device that MPS shares */
	uint64_t under_way; /* bytes in flight that keep the device busy; staged paths: limited by buffers */
	uint64_t engine_min; /* pieces of this size and larger use copy engines */
};
extern const struct gpu_plan_limits gpu_plan_limits[GPU_PATH_N];

/* A list of pieces that is being built: all for the kernel, or all for copy engines. */
struct gpu_plan {
	const struct gpu_plan_limits *limits;
	struct dray_piece *pieces;
	uint32_t n, max;
	bool engines;         /* all pieces are for copy engines, of whatever size */
	bool relative;        /* pieces are unchanged operations, relative to the copy's bases */
	struct gpu_copy copy; /* pieces NULL: those above */
};

void gpu_plan_init(struct gpu_plan *p, enum gpu_path_kind kind, struct dray_piece *pieces,
		   uint32_t max);

/*
 * Adds pieces of the walk while there is room and they are of the same sort. True: the walk has ended.
 * Pieces that are too long for the kernel are cut into equal ones.
 */
bool gpu_plan_add(struct gpu_plan *p, struct local_walk *w);

/*
 * Adds a slice whose operations are the pieces, because each region is one extent. This is cheapest for
 * lists of thousands, above all if the device reads the transfer's own list. The slice must be the last one
 * that its transfer has handed out. False: the slice must be walked.
 */
bool gpu_plan_add_ops(struct gpu_plan *p, const struct slice *s);
