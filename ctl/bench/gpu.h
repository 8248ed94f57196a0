/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of ends. The plug-in that drayctl loads for it has a context of its own on each GPU, as an engine has, and the
 * agent opens the memory by a handle.
 */
#pragma once

#include "ctl/ctl.h"
#include "gpu/plugin.h"

struct bench_gpus; /* the plug-in, and the GPUs that take part */
struct bench_gpu_memory;

/* Loads the plug-in (plugin: its file, or NULL) and starts the GPUs, by UUID or PCI address; NULL: none. 0 or -1. */
int bench_gpus_open(struct bench_gpus **ret, struct ctl *c, const char *plugin, const char *near,
		    const char *far);
/* After all memory and loads. NULL is allowed. */
void bench_gpus_close(struct bench_gpus *g);

struct bench_gpu {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	struct gpu_device_info info;
	unsigned index; /* of the device, for the plug-in */
};

/* Those that take part, each once. */
unsigned bench_gpus_n(const struct bench_gpus *g);
const struct bench_gpu *bench_gpus_at(const struct bench_gpus *g, unsigned i);

/* Memory on the GPU with this name, which was opened. 0 or -1. */
int bench_gpu_memory_new(struct bench_gpus *g, const char *name, uint64_t bytes,
			 struct bench_gpu_memory **ret);
/* No transfer uses it. NULL is allowed. */
void bench_gpu_memory_free(struct bench_gpu_memory *m);
const uint8_t *bench_gpu_memory_handle(const struct bench_gpu_memory *m);
const char *bench_gpu_memory_device(const struct bench_gpu_memory *m);

/* Copies between this memory and host memory, and wait for it. 0 or -1. */
int bench_gpu_put(struct bench_gpu_memory *m, uint64_t at, const void *from, uint64_t bytes);
int bench_gpu_get(struct bench_gpu_memory *m, uint64_t at, void *to, uint64_t bytes);
