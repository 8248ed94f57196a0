/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime, which is linked statically and loads libcuda.so.1 itself, and the functions of the driver for what it lacks:
 * contexts besides the primary ones, virtual memory, handles, and words that streams write. A function of the runtime works in the
 * context that is current, whoever has made it. Without a current one it would make the primary context, which costs as much
 * memory as another: so a context is current in every call that needs one.
 *
 * The numbers of errors are the same in both, and all functions here return them as the runtime's.
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"

#if CUDART_VERSION < 12080
#error "the CUDA plug-in needs a CUDA toolkit of 12.8 or later: set CUDA_HOME"
#endif

/* member, function and the CUDA version whose form of it is meant */
#define CUDA_DRIVER(X)                                                   \
	X(context_destroy, cuCtxDestroy, 4000)                           \
	X(context_set, cuCtxSetCurrent, 4000)                            \
	X(context_enable_peer, cuCtxEnablePeerAccess, 4000)              \
	X(mem_range, cuMemGetAddressRange, 3020)                         \
	X(range_handle, cuMemGetHandleForAddressRange, 11070)            \
	X(vmm_import, cuMemImportFromShareableHandle, 10020)             \
	X(vmm_properties, cuMemGetAllocationPropertiesFromHandle, 10020) \
	X(vmm_granularity, cuMemGetAllocationGranularity, 10020)         \
	X(vmm_reserve, cuMemAddressReserve, 10020)                       \
	X(vmm_unreserve, cuMemAddressFree, 10020)                        \
	X(vmm_map, cuMemMap, 10020)                                      \
	X(vmm_unmap, cuMemUnmap, 10020)                                  \
	X(vmm_set_access, cuMemSetAccess, 10020)                         \
	X(vmm_release, cuMemRelease, 10020)                              \
	X(stream_write64, cuStreamWriteValue64, 11070)

struct cuda_driver {
	/* the form of CUDA 3.2, which cuda.h declares no longer */
	CUresult (*context_create)(CUcontext *ret, unsigned flags, CUdevice device);
#define CUDA_MEMBER(name, function, version) __typeof__(&(function)) name;
	CUDA_DRIVER(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Valid after cuda_driver_load(). */
extern struct cuda_driver cuda_driver;

/*
 * Finds the functions. Gives the version of CUDA that the driver is for, as the runtime counts: 13000. 0, or -ENOENT with
 * DRAY_E_UNSUPPORTED: there is no driver, or it is too old for this build's runtime. Blocks. One thread at a time.
 */
int cuda_driver_load(int *ret_version, struct dray_err *reterr);

/* A call of the driver, with its error as the runtime names it. */
#define CUDA_DRIVER_CALL(member, ...) ((cudaError_t)cuda_driver.member(__VA_ARGS__))

static inline cudaError_t cuda_context_set(CUcontext c)
{
	return CUDA_DRIVER_CALL(context_set, c);
}

/* The runtime's and the driver's form of an address on a device. */
static inline void *cuda_pointer(CUdeviceptr address)
{
	return (void *)(uintptr_t)address;
}

static inline CUdeviceptr cuda_address(const void *p)
{
	return (uintptr_t)p;
}

/* error.c: true if the context is unusable from now on: the device, or something that ran on it, failed. */
bool cuda_is_lost(cudaError_t r);
/* error.c: returns -errno for a failure, and sets reterr: "WHAT: cudaErrorX (its text)", with advice if there is any. */
int cuda_fail(struct dray_err *reterr, cudaError_t r, const char *what);
