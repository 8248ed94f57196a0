/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver as files show it, without CUDA: /proc/driver/nvidia, device nodes, libcuda. */
#pragma once

#include "netdetect/gpu/gpu.h"

/* A GPU that the driver lists. */
struct nd_nvidia_gpu {
	char bdf[16];
	char uuid[48]; /* "GPU-...", as in CUDA; "" until the driver has read it from the device */
	char name[96];
	int minor; /* its node is /dev/nvidia<minor>; -1 unknown */
	/* errno; 0: the node exists, and its mode allows this process to open it; ENODATA: the node is unknown */
	int node_error;
	bool in_sysfs;
};

struct nd_nvidia {
	bool present;     /* any part of the driver is here */
	char version[32]; /* of the kernel modules; "" unknown */
	bool open_modules;
	struct nd_nvidia_gpu *gpus; /* by bdf */
	size_t n_gpus;
	unsigned nodes;     /* /dev/nvidia[0-9]*; also set if the driver lists no GPUs */
	int control_error;  /* of /dev/nvidiactl, as node_error */
	int uvm_error;      /* of /dev/nvidia-uvm */
	char libcuda[256];  /* path of libcuda.so.1, "" if not found */
	bool libcuda_loads; /* the loader finds it there */
	bool dma_buf; /* GPU memory can be exported as DMA-BUF and registered with RDMA devices */
	char dma_buf_reason[160];
};

/*
 * gpus: those in sysfs. Checks the nodes without opening them, which would wake a GPU up. 0, or -ENOMEM with *ret
 * unchanged. Any thread; blocks on files.
 */
int nd_nvidia_scan(const struct nd_source *s, const struct nd_gpu *gpus, size_t n_gpus,
		   struct nd_nvidia *ret);
void nd_nvidia_deinit(struct nd_nvidia *n);

/* NULL if the driver does not list it. */
const struct nd_nvidia_gpu *nd_nvidia_by_bdf(const struct nd_nvidia *n, const char *bdf);

/* "yes", "not here", "unknown", or another reason why the node cannot be opened. */
const char *nd_nvidia_node_text(int error);

/* Parses the text of /proc/driver/nvidia/gpus/BDF/information into g. Pure; public for its test. */
void nd_nvidia_parse(const char *text, struct nd_nvidia_gpu *g);
