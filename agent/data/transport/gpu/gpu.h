/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `gpu`; its files share this header. A path is one way of copying (plan.h) for one device and
 * class, and the channel of the transfers that use it. A slice that a path has taken ends in progress() or
 * stop() of the transport: one that is done before that waits in `over`, so that no transfer ends in the
 * middle of other work.
 */
#pragma once

#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/gpu_queue/way.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transport/gpu/plan.h"
#include "agent/data/transport/stage/stage.h"

extern const struct transport_ops transport_gpu;

struct gpu_path;
struct gpu_relay;
struct gpu_transport;

/* A copy in flight. */
struct gpu_batch {
	struct gpu_task task;
	struct dray_list link; /* on its path, oldest first; or on the free list */
	struct gpu_path *path;
	struct dray_list slices;  /* whose last bytes it copies */
	struct dray_list stopped; /* stopped ones, of which it copies a part */
	uint64_t bytes;
	enum dmsg_gpu_way way;
};

/* A slice that passes through a staging buffer, which belongs to the slice. */
struct gpu_job {
	struct gpu_task task;
	struct dray_list link; /* on its path, oldest first; or on the free list */
	struct gpu_path *path;
	struct slice *slice;
	struct local_walk walk; /* what the current step has not submitted */
	uint64_t at;            /* position of the walk in the buffer */
	bool second;            /* from the buffer; else into it */
	bool busy;              /* a copy is in flight */
	uint32_t code;          /* of the last copy */
};

struct gpu_path {
	struct channel channel;
	struct gpu_transport *owner;
	struct dray_list link; /* on ready[] while it has work */
	struct dray_list batches;
	unsigned n_batches;
	uint64_t bytes; /* of all batches */
	uint8_t device;
	enum gpu_path_kind kind;
	/*
	 * The slice that comes next, how it is copied, and whether none of it is submitted. Else the rest of it, and the batch in
	 * flight with its last bytes so far: the rest takes the same queue, so that it ends later.
	 */
	struct slice *open;
	struct gpu_way way;
	bool whole;
	struct local_walk walk;
	struct gpu_batch *carrier;
	struct dray_list relays; /* jobs of relay.c */
	/* staged kinds */
	struct dray_list jobs;
	struct stage_waiter waiter;
};

struct gpu_transport {
	/* by device, made when it is first up: one path for each class and kind */
	struct gpu_path *devices[GPU_DEVICES_MAX];
	uint32_t peers[GPU_DEVICES_MAX]; /* by device: those that reach each other and are up */
	struct dray_list ready[2];       /* by class */
	struct dray_list over; /* slices none of whose bytes move any more, with their end_code */
	struct dray_list free; /* batches */
	struct gpu_batch *batches;
	struct dray_list free_jobs;
	struct gpu_job *jobs;
	struct gpu_relay *relay; /* NULL until a device is first up */
	bool buffer_came;        /* since the last turn, for a path that waited */
};

/* The slice, which is on no list, ends with this code; DRAY_E_CANCELLED: with that of its transfer, which stops; DRAY_E_INTERNAL: `refused` says why. */
void gpu_slice_over(struct gpu_transport *g, struct slice *s, uint32_t code);
/* Queues a path that has work. */
void gpu_path_ready(struct gpu_path *p);

/* staged.c */
void gpu_staged_init(struct gpu_transport *g);
/* Does a bounded part of a staged path's work. True: there is more to do at once. */
bool gpu_staged_run(struct core *c, struct gpu_path *p);
/* Stops the jobs of the transfer, like the transport's stop(). */
void gpu_staged_stop(struct core *c, struct gpu_path *p, const struct xfer *x, bool urgent);
/* Its device is not up: ends jobs that have no copy in flight. */
void gpu_staged_fail(struct gpu_path *p);

/*
 * order.c: between a device and the host, puts the operations of the slice's transfer in the order of their places in host memory. The
 * slice is its first one, and nothing of it was submitted; otherwise nothing happens.
 */
void gpu_order(struct core *c, struct slice *s);

/* relay.c: staged copies */
void gpu_relay_init(struct gpu_transport *g);
void gpu_relay_deinit(struct gpu_transport *g);

/* Bytes of copy memory on each device that the transfer needs some of; 0: there is none. */
uint64_t gpu_relay_memory(const struct gpu_path *p, const struct xfer *x);
/* The same, at most, once they have been asked for. */
uint64_t gpu_relay_could_have(const struct core *c, const struct gpu_path *p);
/* Asks for the memory that the transfer needs and that is not here. */
void gpu_relay_want(struct core *c, struct gpu_path *p, const struct xfer *x);
/* Bytes that follow each other in host memory, by the first operations of the slice. */
uint64_t gpu_relay_host_run(const struct slice *s);
/* A staged copy may read bytes of host memory behind the slice's own. */
bool gpu_relay_can_pad(const struct gpu_path *p, const struct slice *s);
/* The longest slice of a staged copy on the path; 0: its device has no copy memory. */
uint64_t gpu_relay_slice(const struct gpu_path *p);

/* Makes a job of the path's open slice, of which nothing was submitted. False: there is no room now. */
bool gpu_relay_take(struct core *c, struct gpu_path *p);
/* Continues the path's jobs. */
void gpu_relay_run(struct core *c, struct gpu_path *p);
/* Stops the jobs of the transfer, like the transport's stop(). */
void gpu_relay_stop(struct core *c, struct gpu_path *p, const struct xfer *x, bool urgent);
/* The path's device is not up: ends jobs that have no copy in flight. */
void gpu_relay_fail(struct core *c, struct gpu_path *p);

/* Messages of the control thread. m: NULL: there is none now. */
void gpu_relay_given(struct core *c, struct gpu_transport *g, unsigned device,
		     const struct gpu_copy_memory *m);
void gpu_relay_down(struct core *c, struct gpu_transport *g, unsigned device);
/* Gives back what was not used for a while; returns when to call again at the latest, ns. */
int64_t gpu_relay_tick(struct core *c, struct gpu_transport *g);
