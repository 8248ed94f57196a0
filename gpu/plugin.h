/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of a GPU plug-in: a shared object that exports one table of functions, gpu_plugin_ops. Only the
 * plug-in knows CUDA; agent and drayctl load it at run time (loader.h), and tests load a fake. Addresses of GPU
 * memory are valid on GPUs only; a CPU must not access them.
 *
 * Threads: functions marked "blocks" run on threads that may wait, never on the control thread or a data worker,
 * and several threads may call them at once. A queue belongs to one thread; its functions return at once,
 * do not allocate and do not log.
 *
 * Errors: 0, or -errno with reterr set if the function has one. -EIO: the device is lost. No new copy starts on it,
 * and its queues, imports and memory can only be released, queues first: queue_free() returns after
 * the copies in flight have ended.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/copy.h"
#include "lib/err.h"

#define GPU_PLUGIN_ABI 7
#define GPU_PLUGIN_SYMBOL "gpu_plugin_ops"
#define GPU_DEVICES_MAX 32
#define GPU_HANDLE_BYTES 64 /* of a legacy CUDA IPC handle */
/* The longest piece for the copy kernel; the planner cuts longer ones. */
#define GPU_PIECE_MAX (256u << 10)
#define GPU_NOTIFY_MAX 16 /* pending calls of notify() in a queue */
/* Pieces from host memory up to this length are small: copy engines move them in lists only as part of a series (struct gpu_copy). */
#define GPU_SMALL_FROM_HOST (24u << 10)

struct gpu_plugin;
struct gpu_import;
struct gpu_block; /* memory of the plug-in's own on a device */

struct gpu_device_info {
	char uuid[48]; /* GPU-8-4-4-4-12, lower case */
	char bdf[16];  /* 0000:3b:00.0, lower case, as in /sys */
	char name[96];
	uint64_t memory; /* bytes */
	unsigned multiprocessors;
	unsigned major, minor; /* compute capability */
	bool usable;           /* the plug-in has code for it */
	bool dmabuf;           /* its memory can be exported as DMA-BUF */
	bool ipc, vmm;         /* kinds that it can import */
	/*
	 * This GPU sees RDMA writes in the order of their arrival, without a flush
	 * (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING).
	 */
	bool rdma_ordered;
	bool shared;     /* kernels of several processes run at the same time (MPS), not in turn */
	uint32_t peers;  /* a bit for each device that it may reach directly, see start() */
	uint32_t nvlink; /* those of them with NVLink; the others use PCIe */
};

enum gpu_import_kind { GPU_IMPORT_IPC, GPU_IMPORT_VMM };

struct gpu_import_spec {
	enum gpu_import_kind kind;
	unsigned device;
	uint8_t handle[GPU_HANDLE_BYTES]; /* ipc */
	int fd;                           /* vmm: borrowed for the call */
	/* vmm: mapped bytes, rounded up to the granularity; the allocation must have them */
	uint64_t bytes;
	/* vmm: size of the allocation; 0: unknown, and found by trying sizes from `bytes` upwards */
	uint64_t allocation;
	bool write; /* also map for writing, if the kind distinguishes that */
};

/* Where a copy reads and writes; selects the launch size. */
enum gpu_route {
	GPU_WITHIN,    /* inside one device */
	GPU_PEER,      /* between two devices, by NVLink or PCIe */
	GPU_TO_HOST,   /* into pinned host memory */
	GPU_FROM_HOST, /* from pinned host memory */
	GPU_ROUTE_N
};

/*
 * A list of copies. Piece i copies pieces[i].bytes from pieces[i].from + from_base to pieces[i].to + to_base; if swapped,
 * the two addresses are exchanged. Bytes of overlapping destinations are undefined. Copies may run in parallel: a copy
 * that needs the result of another must be submitted after that one is done.
 */
struct gpu_copy {
	const struct dray_piece
		*pieces; /* in memory of host_alloc(), unchanged until the copy is done */
	uint32_t n;
	bool swapped;
	/* true: by copy engines, pieces of any length; false: by the kernel, pieces of at most GPU_PIECE_MAX */
	bool engine;
	/*
	 * engine: one of many copies that are submitted without a pause. Small pieces from host memory then go as lists: fast as long as
	 * one follows the other, but the first one waits for a time slice beside an engine.
	 */
	bool lists;
	enum gpu_route route;
	uint64_t to_base, from_base;
	uint64_t bytes; /* of all pieces */
};

/* First member of the plug-in's own struct. */
struct gpu_queue {
	/*
	 * Number of copies that are done, in the order of submission. Their bytes are visible to CPUs, other devices and
	 * later work of any GPU. Written by the device or a thread of the driver; load it with acquire.
	 */
	const _Atomic uint64_t *done;
	/* The driver's error when it refused a copy last, as static text; NULL: it has refused none. Of the queue's thread. */
	const char *refusal;
};

struct gpu_queue_spec {
	unsigned device;
	bool latency;   /* runs before other queues of this process */
	bool engines;   /* for long lists of pieces for copy engines */
	unsigned share; /* percentage of the multiprocessors that one copy may use */
};

struct gpu_plugin_ops {
	uint32_t abi;     /* GPU_PLUGIN_ABI; with any other value the rest is undefined */
	const char *name; /* "cuda" */

	/* Loads the driver and lists its devices, without a context. Blocks, up to seconds. */
	int (*open)(struct gpu_plugin **ret, struct dray_err *reterr);
	/* The caller has released everything. Blocks. */
	void (*close)(struct gpu_plugin *p);
	/* Versions of plug-in and driver, as text. Owned by the plug-in. */
	const char *(*version)(const struct gpu_plugin *p);
	/* Fills at most max elements of v. Returns the number of devices. Any thread; does not block. */
	unsigned (*devices)(const struct gpu_plugin *p, struct gpu_device_info *v, unsigned max);

	/*
	 * Makes the device usable: one context, the copy kernel, access to and from its started peers. *ret_bytes: GPU memory
	 * that this took, 0 if NVML does not know. *ret_peers: devices with which it can copy directly until it is stopped;
	 * if a peer is left out, reterr has the reason of one. 0 also if it is started already. Blocks, up to a second
	 * and for the time that pinning takes.
	 */
	int (*start)(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes,
		     uint32_t *ret_peers, struct dray_err *reterr);
	/* Undoes start(). Imports, queues and pins of the device are released or unused. It can be started again. Blocks. */
	void (*stop)(struct gpu_plugin *p, unsigned device);

	/*
	 * Opens another process's memory on a started device. *ret_address: the begin of the allocation, for the device and
	 * its started peers. *ret_bytes: its length. DRAY_E_GPU_HANDLE, _GPU_DEVICE, _REGION_TOO_SMALL, _UNSUPPORTED,
	 * _NO_MEMORY, _GPU_LOST. Blocks.
	 */
	int (*import)(struct gpu_plugin *p, const struct gpu_import_spec *spec,
		      struct gpu_import **ret, uint64_t *ret_address, uint64_t *ret_bytes,
		      struct dray_err *reterr);
	/* No copy of it is in flight. Afterwards the plug-in no longer keeps the owner's memory allocated. Blocks. */
	void (*release)(struct gpu_import *i);
	/*
	 * Returns a new DMA-BUF descriptor for a range, for RDMA devices; offset and bytes are multiples of the page size.
	 * -EOPNOTSUPP if the driver exports no imported memory, or cannot make RDMA writes to it visible. Blocks.
	 */
	int (*export_dmabuf)(struct gpu_import *i, uint64_t offset, uint64_t bytes,
			     struct dray_err *reterr);
	/*
	 * Makes completed RDMA writes to the device visible to it. 0, -EIO, or -EOPNOTSUPP if the driver cannot; then
	 * export_dmabuf() refuses memory whose writes are not ordered. Any thread; microseconds.
	 */
	int (*flush_rdma)(struct gpu_plugin *p, unsigned device);

	/*
	 * Allocates memory on a started device, for itself and its started peers, at the same address for all. DRAY_E_NO_MEMORY,
	 * _GPU_LOST. Blocks.
	 */
	int (*block_alloc)(struct gpu_plugin *p, unsigned device, uint64_t bytes,
			   struct gpu_block **ret, uint64_t *ret_address, struct dray_err *reterr);
	/* No copy of it is in flight. Blocks. */
	void (*block_free)(struct gpu_block *b);
	/* A handle of kind ipc, by which other processes can open the block until it is freed. -EIO, -EOPNOTSUPP. Blocks. */
	int (*block_handle)(struct gpu_block *b, uint8_t ret[GPU_HANDLE_BYTES],
			    struct dray_err *reterr);

	/* Allocates pinned host memory, which every device started now or later reaches at the same address. Blocks. */
	int (*host_alloc)(struct gpu_plugin *p, uint64_t bytes, void **ret,
			  struct dray_err *reterr);
	void (*host_free)(struct gpu_plugin *p, void *base);
	/*
	 * Pins existing memory in the same way; base and bytes are multiples of the page size. Fails while no device is
	 * started. The end of the last device ends the pin, which unpin() still deletes. Blocks, 0.1 s for each GiB.
	 */
	int (*pin)(struct gpu_plugin *p, void *base, uint64_t bytes, bool write,
		   struct dray_err *reterr);
	void (*unpin)(struct gpu_plugin *p, void *base);

	/*
	 * Both block. queue_free() waits until no copy of the queue is in flight; if the driver no longer reports on
	 * them, it waits for some seconds.
	 */
	int (*queue_new)(struct gpu_plugin *p, const struct gpu_queue_spec *spec,
			 struct gpu_queue **ret, struct dray_err *reterr);
	void (*queue_free)(struct gpu_queue *q);
	/*
	 * Submits a copy, also of no pieces, whose time shows how long kernels of this process wait. It is done when *q->done has
	 * reached the number of copies submitted until then. -EIO: lost. -EINVAL: the driver refused a part of it, and `refusal` says
	 * why; it counts as submitted, and is done when the rest of it is.
	 */
	int (*submit)(struct gpu_queue *q, const struct gpu_copy *c);
	/* Checks the device after a long wait, since *q->done alone does not show a loss. 0 or -EIO. */
	int (*check)(struct gpu_queue *q);
	/*
	 * Runs fn(arg) exactly once, when everything submitted until now is done or lost: on a thread of the plug-in, or in a
	 * call for this queue that returns -EIO, or at the latest in queue_free(). fn may only write to a descriptor. If fn
	 * will not run: -EIO, or -EAGAIN if GPU_NOTIFY_MAX calls are pending.
	 */
	int (*notify)(struct gpu_queue *q, void (*fn)(void *arg), void *arg);
};
