/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs, on the control thread: the plug-in, loaded when the first region of GPU memory is added; devices, started
 * when first needed; memory of clients that is opened on them; host memory that is pinned for them; queues and
 * staging memory for the workers. What blocks is done by threads of its own. Asynchronous ends run their
 * callback exactly once, never inside the call.
 */
#ifndef DRAY_AGENT_CONTROL_GPU_GPUS_H
#define DRAY_AGENT_CONTROL_GPU_GPUS_H

#include <systemd/sd-event.h>

#include "agent/model/view.h"
#include "agent/data/data.h"
#include "gpu/plugin.h"
#include "schema/gen/config.h"

struct gpus;
struct gpu_staging;
struct gpu_memory; /* the opened handles of one region */
struct gpu_host;   /* pinned host memory that somebody asked for */

struct gpus_upcalls {
	/* The device is lost: regions on it end with gpu_lost. gpu_close() of each is still awaited. */
	void (*lost)(void *arg, unsigned device);
	/* The worker has staging memory now, which lasts until gpus_free(). Once for each that has. */
	void (*staging)(void *arg, unsigned worker, const struct gpu_staging *staging);
	/* Descriptors that a client sent, and that may block when they are closed: closed elsewhere. */
	void (*close_fds)(void *arg, int *fds, unsigned n);
};

struct gpus_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	const struct gpus_upcalls *up;
	void *arg;
};

int gpus_new(struct gpus **ret, const struct gpus_deps *deps);
/* After the workers have ended. False: a call into the driver does not return; its thread is left alone. */
bool gpus_free(struct gpus *g);

/* One handle of a region, and what of its allocation is used. */
struct gpu_part {
	enum gpu_import_kind kind;
	uint8_t handle[GPU_HANDLE_BYTES];
	int fd; /* vmm: duplicated by the call, and the duplicate closed as soon as it is opened */
	uint64_t bytes;      /* the end of the last extent in it */
	uint64_t allocation; /* vmm: all of it, 0: not known */
	uint64_t address;    /* result: where the allocation begins */
};

/*
 * Opens n parts on the device (UUID or PCI address), loading and starting what that takes. done(): memory with
 * *ret_device and the parts' addresses (`parts` are the module's copy, until gpu_close()), or NULL with err. 0, or -errno
 * with reterr set where it is refused at once.
 */
typedef void (*gpu_opened_fn)(void *arg, struct gpu_memory *memory, unsigned device,
			      const struct gpu_part *parts, const struct dray_err *err);
int gpu_open(struct gpus *g, const char *device, const struct gpu_part *parts, unsigned n,
	     bool write, gpu_opened_fn done, void *arg, struct dray_err *reterr);

/*
 * Who began it with this arg has no use for it any more: done() of gpu_open() will not run. What was opened is closed,
 * then cancelled(arg).
 */
void gpu_open_cancel(struct gpus *g, void *arg, void (*cancelled)(void *arg));

/* Nobody uses it any more: closes it, then done(done_arg). It comes before whatever was asked for later. */
void gpu_close(struct gpu_memory *m, void (*done)(void *arg), void *done_arg);

/*
 * Descriptors of a DMA-BUF for each part, from its allocation's first byte on, for RDMA devices; -1 where the driver
 * gives none. As gpu_open() found; they last until gpu_close().
 */
const int *gpu_memory_dmabufs(const struct gpu_memory *m, unsigned *ret_n);

/*
 * Bytes that RDMA devices wrote to the device until now are visible to it afterwards; microseconds. False: it is lost,
 * or not in use.
 */
bool gpus_flush_rdma(struct gpus *g, unsigned device);

/* Regions of host memory: pinned while a GPU is in use. removed(): unpinned, then done(done_arg), possibly inside the call. */
void gpus_region_added(struct gpus *g, const struct region_view *view);
void gpus_region_removed(struct gpus *g, dray_handle region, void (*done)(void *arg),
			 void *done_arg);

/*
 * Pinned host memory that every device reaches. done(): with it, or NULL with err. 0, or -errno: there is no plug-in. It lasts
 * until gpus_host_free(), for which nothing may be under way in it, or gpus_free().
 */
typedef void (*gpu_host_fn)(void *arg, struct gpu_host *h, void *base, const struct dray_err *err);
int gpus_host_new(struct gpus *g, uint64_t bytes, gpu_host_fn done, void *arg);
void gpus_host_free(struct gpu_host *h);

/* From transport gpu of a worker. */
void gpus_message(struct gpus *g, unsigned worker, const struct transport_message *m);

struct gpu_info {
	unsigned index;
	const struct gpu_device_info *device;
	const char *state;             /* unused, starting, ready, lost, excluded */
	const char *reason;            /* of lost and excluded; "" */
	uint64_t context_bytes, bytes; /* GPU memory that its context takes; of regions on it */
	uint32_t regions;
};

/* Nothing before the plug-in was loaded. */
void gpus_each(struct gpus *g, void (*fn)(void *arg, const struct gpu_info *info), void *arg);

struct gpus_totals {
	unsigned contexts;
	uint64_t pinned_bytes, lost;
	const char *
		plugin; /* what is known of it: "not loaded yet", its version, or why it cannot be used */
};
struct gpus_totals gpus_totals(const struct gpus *g);

#endif
