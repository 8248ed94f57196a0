/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVIDIA driver's functions, looked up at run time: neither libcuda nor the CUDA runtime is linked, so the plug-in
 * loads on any machine and reports what is missing. Each name means the version of its function in cuda.h.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>

#include "lib/err.h"

/* Required; drivers have them since CUDA 11.2. */
#define CUDA_NEEDED(X)                                            \
	X(init, cuInit)                                           \
	X(driver_version, cuDriverGetVersion)                     \
	X(error_name, cuGetErrorName)                             \
	X(error_string, cuGetErrorString)                         \
	X(device_count, cuDeviceGetCount)                         \
	X(device_get, cuDeviceGet)                                \
	X(device_name, cuDeviceGetName)                           \
	X(device_memory, cuDeviceTotalMem)                        \
	X(device_attribute, cuDeviceGetAttribute)                 \
	X(device_bus_id, cuDeviceGetPCIBusId)                     \
	X(device_can_access_peer, cuDeviceCanAccessPeer)          \
	X(device_p2p_attribute, cuDeviceGetP2PAttribute)          \
	X(context_destroy, cuCtxDestroy)                          \
	X(context_set, cuCtxSetCurrent)                           \
	X(context_enable_peer, cuCtxEnablePeerAccess)             \
	X(context_priorities, cuCtxGetStreamPriorityRange)        \
	X(module_load, cuModuleLoadData)                          \
	X(module_function, cuModuleGetFunction)                   \
	X(launch, cuLaunchKernel)                                 \
	X(mem_alloc, cuMemAlloc)                                  \
	X(mem_free, cuMemFree)                                    \
	X(memcpy_to_device, cuMemcpyHtoD)                         \
	X(memset_async, cuMemsetD8Async)                          \
	X(mem_range, cuMemGetAddressRange)                        \
	X(pointer_attribute, cuPointerGetAttribute)               \
	X(host_register, cuMemHostRegister)                       \
	X(host_unregister, cuMemHostUnregister)                   \
	X(ipc_handle, cuIpcGetMemHandle)                          \
	X(ipc_open, cuIpcOpenMemHandle)                           \
	X(ipc_close, cuIpcCloseMemHandle)                         \
	X(vmm_import, cuMemImportFromShareableHandle)             \
	X(vmm_properties, cuMemGetAllocationPropertiesFromHandle) \
	X(vmm_granularity, cuMemGetAllocationGranularity)         \
	X(vmm_reserve, cuMemAddressReserve)                       \
	X(vmm_unreserve, cuMemAddressFree)                        \
	X(vmm_map, cuMemMap)                                      \
	X(vmm_unmap, cuMemUnmap)                                  \
	X(vmm_set_access, cuMemSetAccess)                         \
	X(vmm_release, cuMemRelease)                              \
	X(stream_create, cuStreamCreateWithPriority)              \
	X(stream_destroy, cuStreamDestroy)                        \
	X(stream_query, cuStreamQuery)                            \
	X(stream_synchronize, cuStreamSynchronize)                \
	X(stream_callback, cuStreamAddCallback)                   \
	X(stream_wait, cuStreamWaitEvent)                         \
	X(event_create, cuEventCreate)                            \
	X(event_record, cuEventRecord)                            \
	X(event_destroy, cuEventDestroy)                          \
	X(memcpy_async, cuMemcpyAsync)                            \
	X(memcpy_2d_async, cuMemcpy2DAsync)

/* NULL if the driver is too old. */
#define CUDA_OPTIONAL(X)                               \
	X(device_uuid, cuDeviceGetUuid)                \
	X(range_handle, cuMemGetHandleForAddressRange) \
	X(flush_rdma, cuFlushGPUDirectRDMAWrites)      \
	X(stream_write64, cuStreamWriteValue64)        \
	X(launch_ex, cuLaunchKernelEx)

/* CUmemcpyAttributes, which cuda.h declares since CUDA 12.8. */
struct cuda_batch_attributes {
	unsigned access_order; /* CU_MEMCPY_SRC_ACCESS_ORDER_* */
	struct {
		unsigned type;
		int id;
	} from, to; /* of managed memory alone */
	unsigned flags;
};
#define CUDA_ACCESS_ORDER_STREAM 1u

struct cuda_driver {
	/* cuCtxCreate_v2, which every driver has; cuda.h declares newer forms */
	CUresult (*context_create)(CUcontext *ret, unsigned flags, CUdevice device);
	/* cuMemcpyBatchAsync_v2, which drivers have since CUDA 13; NULL: this one is older */
	CUresult (*memcpy_batch)(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
				 struct cuda_batch_attributes *attributes, size_t *begins,
				 size_t n_attributes, CUstream stream);
#define CUDA_MEMBER(name, function) __typeof__(&(function)) name;
	CUDA_NEEDED(CUDA_MEMBER)
	CUDA_OPTIONAL(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Valid after cuda_driver_load(). */
extern struct cuda_driver cuda;

/* Loads libcuda.so.1, for the life of the process. 0, or -ENOENT with DRAY_E_UNSUPPORTED. Blocks. One thread at a time. */
int cuda_driver_load(struct dray_err *reterr);

/* error.c: true if the context is unusable from now on: the device, or something that ran on it, failed. */
bool cuda_is_lost(CUresult r);
/* error.c: returns -errno for a failure, and sets reterr: "WHAT: CUDA_ERROR_X (its text)", with advice if there is any. */
int cuda_fail(struct dray_err *reterr, CUresult r, const char *what);
