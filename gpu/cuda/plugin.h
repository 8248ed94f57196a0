/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of the plug-in (gpu/plugin.h). A started device has its own context instead of the primary one, so that the
 * context can be destroyed and made again after a loss. Every object of a context holds a reference to it, so after a
 * loss the context may live longer than stop().
 *
 * `lock` guards lists, references and the devices' contexts. Each queue belongs to one thread.
 */
#pragma once

#include <pthread.h>

#include "gpu/cuda/driver.h"
#include "gpu/plugin.h"
#include "lib/list.h"

/* Memory of a peer, by its address in the peer's context. */
struct cuda_view {
	uint64_t begin, end, distance; /* to its address in this context */
	uint32_t slot;
};

struct cuda_context {
	CUcontext cu;
	unsigned refs;
	uint64_t bytes;          /* GPU memory that it took; 0: unknown */
	_Atomic bool lost;       /* no new work starts in it */
	_Atomic int64_t lost_ns; /* when it was lost, on the clock of dray_now() */
	int priority_low, priority_high;
	/* alias.c: addresses of peers' memory in this context; made with the first entry */
	struct copy_alias *aliases; /* GPU memory */
	bool *alias_used;
	_Atomic uint32_t n_aliases; /* entries of the table that copies read */
	pthread_mutex_t views_lock; /* held for some microseconds, also by queues */
	struct cuda_view *views;    /* the same, sorted */
	unsigned n_views;
};

struct cuda_device {
	struct gpu_device_info info;
	bool write64;       /* streams can write 64-bit words */
	bool flush;         /* cudaDeviceFlushGPUDirectRDMAWrites() works */
	bool pin_read_only; /* can pin memory that this process may not write */
	/* guarded by the lock: peers without access, in either direction, since start() */
	uint32_t unreached;
	_Atomic(struct cuda_context *) context; /* NULL: not started */
	/*
	 * Guarded by the lock: of a stopped device, because host memory is registered in it, which other devices use. The
	 * next start takes it; else it ends with that host memory. NULL: none.
	 */
	struct cuda_context *stopped;
};

struct gpu_plugin {
	pthread_mutex_t lock;
	unsigned n;
	struct cuda_device devices[GPU_DEVICES_MAX];
	struct dray_list imports;
	struct dray_list ranges; /* of pinned host memory */
	bool lists;              /* the driver has calls for lists of copies */
	char version[96];
};

/* device.c: fills in p->devices. 0 or -errno. */
int cuda_devices_find(struct gpu_plugin *p, struct dray_err *reterr);

/* context.c: start and stop of the table. The caller of ref and unref holds the lock. */
int cuda_start(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes, uint32_t *ret_peers,
	       struct dray_err *reterr);
void cuda_stop(struct gpu_plugin *p, unsigned device);
struct cuda_context *cuda_context_ref(struct cuda_context *c);
void cuda_context_unref(struct cuda_context *c);
/* Frees the contexts of stopped devices in which nothing is registered any more. The caller holds the lock. */
void cuda_stopped_free(struct gpu_plugin *p);
/* Makes the context of a started device current. 0, or -EIO if it is not started or is lost. Any thread. */
int cuda_enter(struct gpu_plugin *p, unsigned device, struct cuda_context **ret,
	       struct dray_err *reterr);
/* Marks the context as lost: no new work starts in it, and its queues wait for copies in flight. Returns -EIO. */
int cuda_lost(struct cuda_context *c);

/*
 * alias.c: maps [begin, begin + bytes), an address of the owning device, to `address` in this context, which is current.
 * The caller holds the lock, and deletes the entry only without a copy in flight. 0 or -errno.
 */
int cuda_alias_add(struct cuda_context *c, uint64_t begin, uint64_t bytes, uint64_t address,
		   uint32_t *ret_slot, struct dray_err *reterr);
void cuda_alias_del(struct cuda_context *c, uint32_t slot);
/* Replaces addresses of peers' memory by those in this context. Any thread. */
void cuda_alias_translate(struct cuda_context *c, void **v, size_t n);

/* import.c: import, release and export_dmabuf of the table. */
int cuda_import(struct gpu_plugin *p, const struct gpu_import_spec *spec, struct gpu_import **ret,
		uint64_t *ret_address, uint64_t *ret_bytes, struct dray_err *reterr);
void cuda_release(struct gpu_import *i);
int cuda_export_dmabuf(struct gpu_import *i, uint64_t offset, uint64_t bytes,
		       struct dray_err *reterr);
/*
 * Gives a device that was just started access to the imports of its peers. If one cannot be opened, the device gets no
 * access to that peer, with a reason in ret_left_out. 0, or -EIO: the device is lost. The caller of both holds the lock.
 */
int cuda_imports_open_to(struct gpu_plugin *p, unsigned device, struct dray_err *ret_left_out,
			 struct dray_err *reterr);
/* Closes what was opened for a device that stops. */
void cuda_imports_close_to(struct gpu_plugin *p, unsigned device);

/* block.c: memory of the plug-in's own. */
int cuda_block_alloc(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		     uint64_t *ret_address, struct dray_err *reterr);
void cuda_block_free(struct gpu_block *b);
int cuda_block_handle(struct gpu_block *b, uint8_t ret[GPU_HANDLE_BYTES], struct dray_err *reterr);

/* host.c: host memory of the table. cuda_unpin() also frees allocated memory. */
int cuda_host_alloc(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *reterr);
int cuda_pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *reterr);
void cuda_unpin(struct gpu_plugin *p, void *base);
/*
 * For the first context, which is current: registers allocated memory; and before the last one is destroyed. The caller holds
 * the lock.
 */
int cuda_ranges_register(struct gpu_plugin *p, struct cuda_context *c, struct dray_err *reterr);
void cuda_ranges_unregister(struct gpu_plugin *p);

/* nvml.c: GPU memory in use by all processes, read without a context; 0 if NVML is missing. Blocks. */
uint64_t cuda_memory_used(const char *bdf);

/*
 * engines.c: lists of pieces that copy engines move, for a queue. The context is current in all of these. NULL, or a
 * driver without calls for lists: each piece takes a call of its own.
 */
struct cuda_engines;
cudaError_t cuda_engines_new(struct cuda_engines **ret, int priority);
/*
 * The stream's work is the list's, too: what comes after it in the stream runs when all pieces are in place; after an error only
 * with cuda_engines_join().
 */
cudaError_t cuda_engines_copy(struct cuda_engines *e, struct cuda_context *context,
			      cudaStream_t stream, const struct gpu_copy *c);
/* What comes later in the stream runs when no piece of an earlier list is in flight. */
cudaError_t cuda_engines_join(struct cuda_engines *e, cudaStream_t stream);
/* No piece is in flight on other streams than the queue's. */
bool cuda_engines_idle(const struct cuda_engines *e);
void cuda_engines_free(struct cuda_engines *e);

/* queue.c: queues of the table. */
int cuda_queue_new(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		   struct dray_err *reterr);
void cuda_queue_free(struct gpu_queue *head);
int cuda_queue_submit(struct gpu_queue *head, const struct gpu_copy *c);
int cuda_queue_check(struct gpu_queue *head);
int cuda_queue_notify(struct gpu_queue *head, void (*fn)(void *arg), void *arg);
