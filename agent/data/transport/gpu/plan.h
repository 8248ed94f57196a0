/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the bytes of a transfer between two regions of this agent go, one of which is GPU memory: by which device, and in
 * lists of which pieces. Pure.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_GPU_PLAN_H
#define DRAY_AGENT_DATA_TRANSPORT_GPU_PLAN_H

#include "agent/data/transport/local/local.h"
#include "gpu/plugin.h"

enum gpu_path_kind {
	GPU_PATH_WITHIN, /* one device copies inside its memory */
	GPU_PATH_PEER,   /* it copies from or to a peer */
	GPU_PATH_TO_HOST,
	GPU_PATH_FROM_HOST,
	/* Through staging memory, in two steps: by a device and by this worker, or by two devices. */
	GPU_PATH_TO_HOST_STAGED,
	GPU_PATH_FROM_HOST_STAGED,
	GPU_PATH_PEER_STAGED,
	GPU_PATH_N,
	GPU_PATH_NONE = GPU_PATH_N,
};

static inline bool gpu_path_is_staged(enum gpu_path_kind k)
{
	return k >= GPU_PATH_TO_HOST_STAGED;
}

struct gpu_path_choice {
	enum gpu_path_kind kind;
	uint8_t device; /* whose queue copies; staged: that of the first step that a device makes */
	uint8_t second; /* peer_staged: of the second step */
};

/*
 * peers: for each device those that it reaches, itself too; 0: it cannot be given work. staging: there is memory for it.
 * from_pinned, to_pinned: devices reach that region of host memory.
 */
struct gpu_path_choice gpu_plan_path(const struct region_view *from, bool from_pinned,
				     const struct region_view *to, bool to_pinned,
				     const uint32_t peers[GPU_DEVICES_MAX], bool staging);

/* By kind. */
struct gpu_plan_limits {
	enum gpu_route route;
	uint64_t slice; /* bytes of a copy: how long it holds up what comes behind it, some hundred microseconds */
	uint64_t under_way; /* so many bytes keep the device busy; staged paths: their buffers decide */
	uint64_t engine_min; /* contiguous pieces from there on go by copy engines */
};
extern const struct gpu_plan_limits gpu_plan_limits[GPU_PATH_N];

/* A list of pieces that is being made: all for the kernel, or all for copy engines. */
struct gpu_plan {
	const struct gpu_plan_limits *limits;
	struct dray_piece *pieces;
	const struct dray_piece *list; /* they are these instead; NULL: they are not */
	uint32_t n, max;
	uint64_t bytes;
	bool engine;
	/* pieces are operations as they are, relative to these (gpu/plugin.h, struct gpu_copy) */
	bool relative, swapped;
	uint64_t to_base, from_base;
};

void gpu_plan_init(struct gpu_plan *p, enum gpu_path_kind kind, struct dray_piece *pieces,
		   uint32_t max);

/*
 * Adds what the walk gives, as far as there is room and it is of the same sort. True: all of it. Pieces too long for the
 * kernel are cut into equal ones.
 */
bool gpu_plan_add(struct gpu_plan *p, struct local_walk *w);

/*
 * Adds a slice whose operations are pieces as they stand, since each region is one extent: what costs least for lists of
 * thousands, above all where a device reads the transfer's own list. The slice is the last one that its transfer has handed out. False: it must be walked.
 */
bool gpu_plan_add_ops(struct gpu_plan *p, const struct slice *s);

#endif
