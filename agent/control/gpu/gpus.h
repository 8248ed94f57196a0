/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: the plug-in, loaded at the first use of a GPU; devices, started when a session announces them or at their first use,
 * and stopped when they are unused; memory of clients that is opened on them; host memory that is pinned for them; queues and staging memory for the workers. Control thread
 * only; calls that may block run on threads of their own. Every callback runs exactly once, never inside the call.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/data/data.h"
#include "agent/model/view.h"
#include "gpu/plugin.h"
#include "schema/gen/config.h"
#include "schema/gen/dbus.h"
#include "schema/gen/metrics.h"

struct gpus;
struct rails;
struct regions;
struct state;
struct state_gpu_rate;
struct gpu_memory; /* the opened handles of one region */
struct gpu_announcement;
struct gpu_host; /* pinned host memory of a window */

struct gpus_upcalls {
	/* The device is lost: ends regions on it with gpu_lost, each by gpu_close(). */
	void (*lost)(struct regions *regions, unsigned device);
	/* The worker has staging memory, which lasts until gpus_free(). At most once for each worker. */
	void (*staging)(struct rails *rails, unsigned worker, void *base, uint64_t bytes);
	/* Closes descriptors of a client, whose close may block, on another thread. arg: of gpu_open(). */
	void (*close_fds)(void *arg, int *fds, unsigned n);
	/* A part of gpu_open() is open at this address, on a thread of the module. arg: of gpu_open(). */
	void (*part_opened)(void *arg, unsigned device, unsigned part, uint64_t address);
};

struct gpus_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	const struct gpus_upcalls *up;
	/* set before the first upcall */
	struct regions *const *regions;
	struct rails *const *rails;
	struct state *const *state; /* that keeps measured rates; NULL in it: nothing is kept */
};

int gpus_new(struct gpus **ret, const struct gpus_deps *deps);
/* After the workers have ended. False: a call into the driver does not return; its thread goes on. */
bool gpus_free(struct gpus *g);

/*
 * A session will have memory on the device (UUID or PCI address): the device is started now, and kept until
 * gpus_announce_end(). NULL: GPUs are not used, or no memory. Names that are unknown have no effect.
 */
struct gpu_announcement *gpus_announce(struct gpus *g, const char *device);
/* NULL is allowed. */
void gpus_announce_end(struct gpu_announcement *a);
/* Starts every device that may be used, if gpu.keep is set. Once, when the agent starts. */
void gpus_keep(struct gpus *g);

/* A row of the state, at the start; and all rows for a refill. */
void gpus_rates_load(struct gpus *g, const struct state_gpu_rate *r);
void gpus_rates_refill(struct gpus *g);

/* One handle of a region, and the used part of its allocation. */
struct gpu_part {
	/*
	 * bytes: the end of the last extent in it. fd: the module duplicates it, and closes the duplicate after the import.
	 * The module sets the device.
	 */
	struct gpu_import_spec spec;
	/* results */
	int dmabuf; /* of the allocation, for RDMA devices, until gpu_close(); -1: the driver gives none */
	struct gpu_import *import;
};

/*
 * Opens n parts on the device (UUID or PCI address), one after the other; loads the plug-in and starts the device if needed. done(): the
 * memory with the parts' results (`parts` are the module's copy, until gpu_close()), or err. used: parts are used as soon as they are open.
 * So after an error those that are open stay until gpu_close(): done() has err with the memory, which is NULL if no part was begun.
 * owner: of the client; owners take turns, and each has one gpu_open() under way at a time.
 * 0, or -errno with reterr, without done().
 */
typedef void (*gpu_opened_fn)(void *arg, struct gpu_memory *memory, const struct gpu_part *parts,
			      const struct dray_err *err);
int gpu_open(struct gpus *g, const void *owner, const char *device, const struct gpu_part *parts,
	     unsigned n, bool used, gpu_opened_fn done, void *arg, struct dray_err *reterr);

/* The gpu_open() with this arg is under way on the device, or waits for it. */
bool gpu_opens_on(const struct gpus *g, const void *arg, unsigned device);

/* Cancels the gpu_open() with this arg: its done() will not run. Closes parts that are open, then runs cancelled(arg). */
void gpu_open_cancel(struct gpus *g, void *arg, void (*cancelled)(void *arg));

/* Closes memory that is not used any more, before any later request, then runs done(done_arg). */
void gpu_close(struct gpu_memory *m, void (*done)(void *arg), void *done_arg);

/* Makes all earlier writes of RDMA devices visible to the device; takes microseconds. False: it is lost or not in use. */
bool gpus_flush_rdma(struct gpus *g, unsigned device);

/* Regions of host memory, pinned while a GPU is started. removed() unpins, then runs done(done_arg), possibly inside the call. */
void gpus_region_added(struct gpus *g, const struct region_view *view);
void gpus_region_removed(struct gpus *g, dray_handle region, void (*done)(void *arg),
			 void *done_arg);

/*
 * Pinned host memory that every device reaches. done(): the memory, or NULL with err. 0, or -errno without a plug-in. It
 * lasts until gpus_host_free(), when no copy may use it, or gpus_free().
 */
typedef void (*gpu_host_fn)(void *arg, struct gpu_host *h, void *base, const struct dray_err *err);
int gpus_host_new(struct gpus *g, uint64_t bytes, gpu_host_fn done, void *arg);
void gpus_host_free(struct gpu_host *h);

/* From transport gpu of that worker. */
void gpus_message(struct gpus *g, unsigned worker, const struct transport_message *m);

/* Runs fn for each GPU that the plug-in has found; there are none before it is loaded. */
void gpus_each(struct gpus *g, void (*fn)(void *arg, const struct dray_dbus_gpu *gpu), void *arg);
/* "" for an unknown device. */
const char *gpus_uuid(const struct gpus *g, unsigned device);

/* The state of the plug-in: "not loaded yet", its version, or the reason why it cannot be used. */
const char *gpus_plugin(const struct gpus *g);
void gpus_metrics(const struct gpus *g, uint64_t v[DRAY_METRIC_N]);
