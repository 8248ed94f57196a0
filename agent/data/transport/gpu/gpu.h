/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by gpu.c and gpu_staged.c. A path is how the bytes of some transfers go (gpu_plan.h), one for each device, class and
 * kind; it is the channel that they wait in. A slice that a path has taken ends in the transport's progress(), or
 * in stop(): what ends before is kept in `over`, so that no transfer ends underneath somebody else's hands.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_GPU_GPU_H
#define DRAY_AGENT_DATA_TRANSPORT_GPU_GPU_H

#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transport/gpu/plan.h"
#include "agent/data/transport/stage/stage.h"

extern const struct transport_ops transport_gpu;

/* How a slice ended. */
enum gpu_end {
	GPU_END_OK,
	GPU_END_LOST,    /* its device is */
	GPU_END_STOPPED, /* cut short: ends as its transfer does */
	GPU_END_FAULT,   /* memory of the side that is host memory is not there */
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

/* A slice on its way through a staging buffer, which is the slice's. */
struct gpu_job {
	struct gpu_task task;
	struct dray_list link; /* on its path, oldest first; or on the free list */
	struct gpu_path *path;
	struct slice *slice;
	struct local_walk walk; /* what the present step has not handed out */
	uint64_t at;            /* in the buffer, of the same */
	bool second;            /* out of the buffer; else into it */
	bool busy;              /* a copy is under way */
	uint32_t code;          /* of the last one */
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
	/* staged kinds: their jobs, and whether it waits for a buffer */
	struct dray_list jobs;
	struct stage_waiter waiter;
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
	struct dray_list free_jobs;
	struct gpu_job *jobs;
	bool buffer_came; /* for a path that waited, since the last turn */
};

/* It has something to do. */
void gpu_path_ready(struct gpu_path *p);

/* The slice is over; nothing of it moves any more. */
void gpu_slice_over(struct gpu_transport *g, struct slice *s, enum gpu_end end);

/* --- gpu_staged.c -------------------------------------------------------------------------------- */

/* 0 or -ENOMEM. */
int gpu_staged_init(struct gpu_transport *g);
void gpu_staged_deinit(struct gpu_transport *g);
/* A bounded piece of what a staged path has to do. True if there is more at once. */
bool gpu_staged_run(struct core *c, struct gpu_path *p);
/* As the transport's stop(): jobs of the transfer. */
void gpu_staged_stop(struct core *c, struct gpu_path *p, const struct xfer *x, bool urgent);
/* Its device is not there: jobs with nothing under way are over. */
void gpu_staged_fail(struct gpu_path *p);

#endif
