/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state behind the table of gpu/plugin.h. A device that was started has a context of its own, not the primary
 * one, so that it can be destroyed and made anew after the device was lost. Whatever belongs to a context holds
 * it: it goes with the last of these, which after a loss may be later than stop().
 *
 * Lists, references and devices' contexts are guarded by `lock`. Queues belong to their threads.
 */
#ifndef DRAY_GPU_CUDA_PLUGIN_H
#define DRAY_GPU_CUDA_PLUGIN_H

#include <pthread.h>

#include "gpu/cuda/driver.h"
#include "gpu/plugin.h"
#include "lib/list.h"

struct cuda_context {
	CUcontext cu;
	unsigned refs;
	_Atomic bool lost;       /* nothing is begun in it any more */
	_Atomic int64_t lost_ns; /* since when */
	CUfunction copy;
	int priority_low, priority_high;
	/* alias.c: what peers' memory is called here; made with the first */
	CUdeviceptr aliases;
	bool *alias_used;
	_Atomic uint32_t n_aliases; /* entries of the table that copies look at */
};

struct cuda_device {
	struct gpu_device_info info;
	CUdevice cu;
	bool write64;       /* streams can write 64-bit words */
	bool flush;         /* cuFlushGPUDirectRDMAWrites works */
	bool pin_read_only; /* memory that this process cannot write can be pinned */
	/* guarded by the lock: peers that it got no access to, or they to it, when it was started */
	uint32_t unreached;
	_Atomic(struct cuda_context *) context; /* NULL: not started */
};

struct gpu_plugin {
	pthread_mutex_t lock;
	unsigned n;
	struct cuda_device devices[GPU_DEVICES_MAX];
	struct dray_list imports;
	struct dray_list ranges; /* of pinned host memory */
	char version[96];
};

/* device.c: fills in p->devices. 0 or -errno. */
int cuda_devices_find(struct gpu_plugin *p, struct dray_err *reterr);

/* context.c: start and stop of the table. The caller of the other two holds the lock. */
int cuda_start(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes, uint32_t *ret_peers,
	       struct dray_err *reterr);
void cuda_stop(struct gpu_plugin *p, unsigned device);
struct cuda_context *cuda_context_ref(struct cuda_context *c);
void cuda_context_unref(struct cuda_context *c);
/* Makes the context of a started device current. 0, or -EIO where it is not started or lost. Any thread. */
int cuda_enter(struct gpu_plugin *p, unsigned device, struct cuda_context **ret,
	       struct dray_err *reterr);
/* Of the clock that waiting goes by. */
int64_t cuda_now_ns(void);
/* Something failed: nothing is begun in it any more. What is under way is awaited by its queues. Returns -EIO. */
int cuda_lost(struct cuda_context *c);

/*
 * alias.c: [begin, begin + bytes), as its own device knows it, is at `address` in this context, which is current. The
 * caller holds the lock. 0 or -errno. No copy of it is under way when it is taken back.
 */
int cuda_alias_add(struct cuda_context *c, uint64_t begin, uint64_t bytes, uint64_t address,
		   uint32_t *ret_slot, struct dray_err *reterr);
void cuda_alias_del(struct cuda_context *c, uint32_t slot);

/* import.c: import, release and export_dmabuf of the table. */
int cuda_import(struct gpu_plugin *p, const struct gpu_import_spec *spec, struct gpu_import **ret,
		uint64_t *ret_address, uint64_t *ret_bytes, struct dray_err *reterr);
void cuda_release(struct gpu_import *i);
int cuda_export_dmabuf(struct gpu_import *i, uint64_t offset, uint64_t bytes,
		       struct dray_err *reterr);
/*
 * `device` was started: it gets access to what its peers have imported, or none to the peer where some of that cannot be
 * opened, with ret_left_out. 0, or -EIO: it is lost. The caller of both holds the lock.
 */
int cuda_imports_open_to(struct gpu_plugin *p, unsigned device, struct dray_err *ret_left_out,
			 struct dray_err *reterr);
/* It stops: what was opened for it is closed. */
void cuda_imports_close_to(struct gpu_plugin *p, unsigned device);

/* host.c: host memory of the table. */
int cuda_host_alloc(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *reterr);
void cuda_host_free(struct gpu_plugin *p, void *base);
int cuda_pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *reterr);
void cuda_unpin(struct gpu_plugin *p, void *base);
/* A first context is there, and current; the last one is about to go. The caller holds the lock. */
int cuda_ranges_register(struct gpu_plugin *p, struct cuda_context *c, struct dray_err *reterr);
void cuda_ranges_unregister(struct gpu_plugin *p);

/* queue.c: queues of the table. */
int cuda_queue_new(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		   struct dray_err *reterr);
void cuda_queue_free(struct gpu_queue *head);
int cuda_queue_submit(struct gpu_queue *head, const struct gpu_copy *c);
int cuda_queue_check(struct gpu_queue *head);
int cuda_queue_notify(struct gpu_queue *head, void (*fn)(void *arg), void *arg);

#endif
