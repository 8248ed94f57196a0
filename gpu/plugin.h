/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU plug-in does for dray: a shared object whose one exported name, gpu_plugin_ops, is a table of
 * functions. Nothing but the plug-in knows CUDA; agent and drayctl load it at run time (loader.h), tests put a
 * fake in its place. All memory is named by addresses that only GPUs know; a CPU must not touch them.
 *
 * Threads: what is marked "blocks" runs on threads that may wait (never the control thread, never a data
 * worker) and may be called from several at once. The functions of a queue belong to the one thread that uses
 * the queue, return at once, allocate nothing and write nothing to the log.
 *
 * Errors: 0, or -errno with reterr set where there is one. -EIO: the device is lost, and so is everything on it:
 * no copy begins any more, and all of its queues, imports and memory can only be given back, queues first: what is
 * under way in one ends before queue_free() does.
 */
#ifndef DRAY_GPU_PLUGIN_H
#define DRAY_GPU_PLUGIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/copy.h"
#include "lib/err.h"

#define GPU_PLUGIN_ABI 1
#define GPU_PLUGIN_SYMBOL "gpu_plugin_ops"
#define GPU_DEVICES_MAX 32
#define GPU_HANDLE_BYTES 64 /* of a legacy CUDA IPC handle */
/* The copy kernel's pieces are no longer than this: what is longer is cut (plan.h). */
#define GPU_PIECE_MAX (256u << 10)
#define GPU_NOTIFY_MAX 16 /* calls of notify() in a queue that have not run yet */

struct gpu_plugin;
struct gpu_import;

struct gpu_device_info {
	char uuid[48]; /* GPU-8-4-4-4-12, lower case */
	char bdf[16];  /* 0000:3b:00.0, lower case, as in /sys */
	char name[96];
	uint64_t memory; /* bytes */
	unsigned multiprocessors;
	unsigned major, minor; /* compute capability */
	bool usable;           /* the plug-in has code for it */
	bool dmabuf;           /* exports its memory as DMA-BUF */
	bool ipc, vmm;         /* kinds it can import */
	/*
	 * RDMA writes of a device are seen by this GPU in the order in which they came, without a flush
	 * (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING).
	 */
	bool rdma_ordered;
	uint32_t peers;  /* a bit for each device that it may reach directly, see start() */
	uint32_t nvlink; /* of these, by NVLink; the others by PCIe */
};

enum gpu_import_kind { GPU_IMPORT_IPC, GPU_IMPORT_VMM };

struct gpu_import_spec {
	enum gpu_import_kind kind;
	unsigned device;
	uint8_t handle[GPU_HANDLE_BYTES]; /* ipc */
	int fd;                           /* vmm: borrowed for the call */
	/* vmm: so much of the allocation is mapped, rounded up to its granularity; what is asked for must be there */
	uint64_t bytes;
	/* vmm: its size; 0: not known, and found by trying, which takes the longer the more follows behind `bytes` */
	uint64_t allocation;
	bool write; /* mapped for writing too, where the kind can tell */
};

/* Which way a copy goes; chooses launch sizes. */
enum gpu_route {
	GPU_WITHIN,    /* inside one device */
	GPU_PEER,      /* between two, by NVLink or PCIe */
	GPU_TO_HOST,   /* into pinned host memory */
	GPU_FROM_HOST, /* out of it */
	GPU_ROUTE_N
};

/*
 * A list of copies. Piece i copies pieces[i].bytes from pieces[i].from + from_base to pieces[i].to + to_base; swapped:
 * the two addresses stand in the other order. Destinations do not overlap, or the bytes there are undefined; nor do
 * copies wait for each other: what one is to find of another must be done before it is submitted.
 */
struct gpu_copy {
	const struct dray_piece
		*pieces; /* in memory of host_alloc(), unchanged until the copy is done */
	uint32_t n;
	bool swapped;
	/* by copy engines, one call a piece, of any length; else by the kernel, none longer than GPU_PIECE_MAX */
	bool engine;
	enum gpu_route route;
	uint64_t to_base, from_base;
	uint64_t bytes; /* of all pieces */
};

/* Head of a plug-in's own structure. */
struct gpu_queue {
	/*
	 * Copies done so far, in the order of submission; all they wrote is visible to CPUs, to other devices and to later
	 * work of any GPU. Written by the device or a thread of the driver; load it with acquire.
	 */
	const _Atomic uint64_t *done;
};

struct gpu_queue_spec {
	unsigned device;
	bool latency;   /* before other queues of this process */
	unsigned share; /* of the multiprocessors for one copy, percent */
};

struct gpu_plugin_ops {
	uint32_t abi;     /* GPU_PLUGIN_ABI, or nothing behind it means anything */
	const char *name; /* "cuda" */

	/* Loads the driver and looks at its devices; makes no context. Blocks, up to seconds. */
	int (*open)(struct gpu_plugin **ret, struct dray_err *reterr);
	/* Everything was given back. Blocks. */
	void (*close)(struct gpu_plugin *p);
	/* What driver that is, for people. The plug-in's. */
	const char *(*version)(const struct gpu_plugin *p);
	/* Fills v, at most max. Returns how many there are. Any thread; does not block. */
	unsigned (*devices)(const struct gpu_plugin *p, struct gpu_device_info *v, unsigned max);

	/*
	 * Makes the device usable: one context, the copy kernel, access to and from those of its peers that were
	 * started. *ret_bytes: GPU memory that this took, 0 where NVML does not tell. *ret_peers: with these it can copy
	 * directly until it is stopped; where some of its peers are left out, reterr says of one of them why. Done already:
	 * 0. Blocks, up to a second and for what is to be pinned.
	 */
	int (*start)(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes,
		     uint32_t *ret_peers, struct dray_err *reterr);
	/* Ends what start() made; imports, queues and pins of it are gone or unused. It may be started again. Blocks. */
	void (*stop)(struct gpu_plugin *p, unsigned device);

	/*
	 * Opens another process's memory on a device that was started. *ret_address: where its allocation begins, for the
	 * device and for its peers that were started, unless these are lost. *ret_bytes: what of it is there. DRAY_E_GPU_HANDLE, _GPU_DEVICE,
	 * _REGION_TOO_SMALL, _UNSUPPORTED, _NO_MEMORY, _GPU_LOST. Blocks.
	 */
	int (*import)(struct gpu_plugin *p, const struct gpu_import_spec *spec,
		      struct gpu_import **ret, uint64_t *ret_address, uint64_t *ret_bytes,
		      struct dray_err *reterr);
	/* No copy of it is under way. From here on nothing keeps its owner's memory allocated. Blocks. */
	void (*release)(struct gpu_import *i);
	/*
	 * A new DMA-BUF descriptor for a range of it, both multiples of the page size, for RDMA devices; -EOPNOTSUPP
	 * where the driver gives none for memory of others, or what they write could not be made visible. Blocks.
	 */
	int (*export_dmabuf)(struct gpu_import *i, uint64_t offset, uint64_t bytes,
			     struct dray_err *reterr);
	/*
	 * RDMA writes to the device that have been completed become visible to it. 0, -EIO, or -EOPNOTSUPP where the driver
	 * has no such thing: then there are no such writes. Any thread; microseconds.
	 */
	int (*flush_rdma)(struct gpu_plugin *p, unsigned device);

	/* Pinned host memory that every device started now or later reaches at the same address. Blocks. */
	int (*host_alloc)(struct gpu_plugin *p, uint64_t bytes, void **ret,
			  struct dray_err *reterr);
	void (*host_free)(struct gpu_plugin *p, void *base);
	/* The same of memory that is there; base and bytes are multiples of the page size. Blocks, 0.1 s a GiB. */
	int (*pin)(struct gpu_plugin *p, void *base, uint64_t bytes, bool write,
		   struct dray_err *reterr);
	void (*unpin)(struct gpu_plugin *p, void *base);

	/*
	 * Blocks, both. Nothing is under way in a queue that is freed: that is awaited for as long as it takes, or for
	 * seconds where the driver says nothing of it any more.
	 */
	int (*queue_new)(struct gpu_plugin *p, const struct gpu_queue_spec *spec,
			 struct gpu_queue **ret, struct dray_err *reterr);
	void (*queue_free)(struct gpu_queue *q);
	/* Hands a copy to the device; it is done when *q->done has reached the number of copies submitted. -EIO: lost. */
	int (*submit)(struct gpu_queue *q, const struct gpu_copy *c);
	/* Is the device well? For who has waited long: *q->done alone does not tell. 0 or -EIO. */
	int (*check)(struct gpu_queue *q);
	/*
	 * fn(arg) runs exactly once, when everything submitted until now is done or lost: on a thread of the plug-in, or in a
	 * call for this queue, that which answers -EIO or queue_free() at the latest. It must do no more than write to a
	 * descriptor. 0, or it will not run: -EIO, or -EAGAIN where GPU_NOTIFY_MAX wait already.
	 */
	int (*notify)(struct gpu_queue *q, void (*fn)(void *arg), void *arg);
};

#endif
