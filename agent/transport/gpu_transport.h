/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by gpu.c and gpu_staged.c. A path is how the bytes of some transfers go (gpu_plan.h), one for each device, class and
 * kind; it is the channel that they wait in. A slice that a path has taken ends in the transport's progress(), or
 * in stop(): what ends before is kept in `over`, so that no transfer ends underneath somebody else's hands.
 */
#ifndef DRAY_AGENT_TRANSPORT_GPU_TRANSPORT_H
#define DRAY_AGENT_TRANSPORT_GPU_TRANSPORT_H

#include "agent/transport/gpu.h"
#include "agent/transport/gpu_plan.h"

/* How a slice ended. */
enum gpu_end {
	GPU_END_OK,
	GPU_END_LOST,    /* its device is */
	GPU_END_STOPPED, /* cut short: ends as its transfer does */
	GPU_END_N
};

struct gpu_path;
struct gpu_transport;

/* A copy under way. */
struct gpu_batch {
	struct gpu_task task;
	struct dray_list link; /* on its path, oldest first; or on the free list */
	struct gpu_path *path;
	struct dray_list slices;  /* whose last byte it copies */
	struct dray_list stopped; /* whose later bytes are not copied any more */
	uint64_t bytes;
};

struct gpu_path {
	struct channel channel;
	struct gpu_transport *owner;
	struct dray_list link; /* on ready[], while it has something to do */
	struct dray_list batches;
	unsigned n_batches;
	uint64_t bytes; /* of all of them */
	uint8_t device;
	enum gpu_path_kind kind;
	/* the slice that there was no room for all of, what is left of it, and who carries its last bytes so far */
	struct slice *open;
	struct local_walk walk;
	struct gpu_batch *carrier;
};

/* Paths of one device, made when it first comes up. */
struct gpu_paths {
	struct gpu_path v[2][GPU_PATH_N]; /* by class */
};

struct gpu_transport {
	struct gpu_paths *devices[GPU_DEVICES_MAX];
	uint32_t peers[GPU_DEVICES_MAX]; /* of those that are up */
	struct dray_list ready[2];       /* by class */
	struct dray_list over[GPU_END_N];
	struct dray_list free; /* batches */
	struct gpu_batch *batches;
};

/* The slice is over; nothing of it moves any more. */
void gpu_slice_over(struct gpu_transport *g, struct slice *s, enum gpu_end end);

#endif
