/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver and what of it is here, without CUDA: /proc/driver/nvidia, device nodes, libcuda. */
#ifndef DRAY_NETDETECT_GPU_NVIDIA_H
#define DRAY_NETDETECT_GPU_NVIDIA_H

#include "lib/err.h"
#include "netdetect/source/source.h"
#include "netdetect/topology/topology.h"

/* A GPU that the driver knows. */
struct nd_nvidia_gpu {
	char bdf[16];
	char uuid[48]; /* "GPU-...", as CUDA has it; "" while the driver has not asked the device */
	char name[96];
	int minor; /* its node is /dev/nvidia<minor>; -1 unknown */
	/* errno; 0: the node is here, and its mode lets this process open it; ENODATA: unknown which it is */
	int node_error;
	bool in_sysfs;
};

struct nd_nvidia {
	bool present;     /* anything of it is here */
	char version[32]; /* of the kernel modules; "" unknown */
	bool open_modules;
	struct nd_nvidia_gpu *gpus; /* by bdf */
	size_t n_gpus;
	unsigned nodes;    /* /dev/nvidia[0-9]*, also where the driver does not tell of GPUs */
	int control_error; /* of /dev/nvidiactl, as node_error */
	int uvm_error;     /* of /dev/nvidia-uvm */
	/* libcuda.so.1; "": not found. Looked for where the loader looks, and where GPUs' operators put it. */
	char libcuda[256];
	bool libcuda_loads; /* the loader finds it */
	bool dma_buf; /* GPU memory can be exported as DMA-BUF and registered with RDMA devices */
	char dma_buf_reason[160];
};

/*
 * topology: of the same scan. Nodes are looked at and not opened, since that wakes a GPU up. 0 or -ENOMEM; on error
 * nothing is left. Any thread, blocking on files.
 */
int nd_nvidia_scan(const struct nd_source *s, const struct nd_topology *topology,
		   struct nd_nvidia *ret, struct dray_err *reterr);
void nd_nvidia_deinit(struct nd_nvidia *n);

/* NULL where the driver does not tell of it. */
const struct nd_nvidia_gpu *nd_nvidia_by_bdf(const struct nd_nvidia *n, const char *bdf);

/* "yes", "not here", "unknown", or another reason why the node cannot be opened. */
const char *nd_nvidia_node_text(int error);

/* --- for tests --- */

/* Fills what the text of /proc/driver/nvidia/gpus/BDF/information says. Pure. */
void nd_nvidia_parse(const char *text, struct nd_nvidia_gpu *g);

#endif
