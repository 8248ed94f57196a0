/* SPDX-License-Identifier: Apache-2.0 */
/* What ceiling_gpu measures and checks with: the plug-in loaded, GPU memory of its own opened through it, queues. */
#ifndef DRAY_TESTS_GPU_CEILING_LAB_H
#define DRAY_TESTS_GPU_CEILING_LAB_H

#include <cuda.h>
#include <stdio.h>

#include "gpu/plugin.h"
#include "lib/cleanup.h"

/* Driver functions that a client of the agent uses, and the plug-in does not. */
#define LAB_CUDA(X)                                       \
	X(context_synchronize, cuCtxSynchronize)          \
	X(ipc_get, cuIpcGetMemHandle)                     \
	X(mem_alloc, cuMemAlloc)                          \
	X(mem_free, cuMemFree)                            \
	X(mem_info, cuMemGetInfo)                         \
	X(vmm_create, cuMemCreate)                        \
	X(vmm_release, cuMemRelease)                      \
	X(vmm_export, cuMemExportToShareableHandle)       \
	X(vmm_granularity, cuMemGetAllocationGranularity) \
	X(to_device, cuMemcpyHtoD)                        \
	X(to_host, cuMemcpyDtoH)                          \
	X(set, cuMemsetD8)                                \
	X(context_set, cuCtxSetCurrent)                   \
	X(device_get, cuDeviceGet)                        \
	X(init, cuInit)                                   \
	X(stream_create, cuStreamCreate)                  \
	X(stream_synchronize, cuStreamSynchronize)        \
	X(module_load, cuModuleLoadData)                  \
	X(module_function, cuModuleGetFunction)           \
	X(launch, cuLaunchKernel)

struct lab_cuda {
	CUresult (*context_create)(CUcontext *ret, unsigned flags, CUdevice device);
#define LAB_MEMBER(name, function) __typeof__(&(function)) name;
	LAB_CUDA(LAB_MEMBER)
#undef LAB_MEMBER
};
extern struct lab_cuda lab_cuda;

struct lab {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	struct gpu_device_info devices[GPU_DEVICES_MAX];
	CUcontext contexts[GPU_DEVICES_MAX]; /* of this program, beside the plug-in's */
	unsigned n;
};

/* Any failure ends the program, saying what and where. */
_Noreturn void lab_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lab_cuda_check(CUresult r, const char *what);
#define LAB_CUDA_OK(call) lab_cuda_check(call, #call)
#define LAB_OK(call, err)                                                            \
	do {                                                                         \
		if ((call) < 0)                                                      \
			lab_die("%s: error %d: %s", #call, (err)->code, (err)->msg); \
	} while (0)

/* The driver alone, with a context on `device`, as a client has it. */
CUcontext lab_client(unsigned device);

/* False where there is no GPU to use, which has then been said. Two devices at most are started. */
bool lab_open(struct lab *l, const char *plugin);

/* A descriptor of a new VMM allocation on a device; *bytes is rounded up to what there is then. */
int lab_vmm_new(unsigned device, uint64_t *bytes);

/* Memory of a device, opened through the plug-in; lives as long as the program. */
uint64_t lab_device_memory(struct lab *l, unsigned device, uint64_t bytes);
void *lab_host_memory(struct lab *l, uint64_t bytes);
struct gpu_queue *lab_queue(struct lab *l, unsigned device, bool latency, unsigned share);

/* Submits, and ends the program where that fails. */
void lab_submit(struct lab *l, struct gpu_queue *q, const struct gpu_copy *c);
/* Until so many copies of it are done. */
void lab_wait(struct lab *l, struct gpu_queue *q, uint64_t number);

uint64_t lab_random(void);
double lab_seconds(void);

/* ceiling_check.c: all that is checked. ceiling_import.c: imports. Both return how many checks failed. */
unsigned lab_check(struct lab *l, int exporter, bool quick);
unsigned lab_check_imports(struct lab *l, int exporter);
/* Serves lab_check_imports() from another process: exports memory, verifies it, until the socket's end. */
void lab_export(int sock);

#endif
