/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver of this process, libcuda.so.1, loaded at run time. Its interface is declared here
 * as far as it is used, so that the build needs no toolkit. A driver is opened for one call or for
 * the life of an object; the library keeps no global state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_pointer;    /* CUdeviceptr */
typedef uint64_t cu_allocation; /* CUmemGenericAllocationHandle */
typedef void *cu_context;
typedef void *cu_stream;

struct cu_ipc_handle {
	uint8_t bytes[64];
};

struct cu_uuid {
	uint8_t bytes[16];
};

/* CUmemAllocationProp */
struct cu_allocation_prop {
	int type, handle_types, location_type, location;
	void *unused;
	uint8_t flags[8];
};

/* CUmemAccessDesc */
struct cu_access {
	int location_type, location, flags;
};

enum {
	CU_SUCCESS = 0,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_SUPPORTED = 801,

	CU_ATTRIBUTE_CONTEXT = 1,
	CU_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_ATTRIBUTE_BUFFER_ID = 7,
	CU_ATTRIBUTE_IS_MANAGED = 8,
	CU_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_ATTRIBUTE_IS_LEGACY_IPC_CAPABLE = 10,
	CU_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_ATTRIBUTE_MAPPING_BASE = 19,

	CU_MEMORY_DEVICE = 2,

	CU_HANDLE_POSIX_FD = 1,
	CU_HANDLE_FABRIC = 8,
	CU_RANGE_DMABUF = 1,
	CU_DEVICE_VMM_RDMA_SUPPORTED = 110,
	CU_DEVICE_DMABUF_SUPPORTED = 124,

	CU_ALLOCATION_PINNED = 1,
	CU_LOCATION_DEVICE = 1,
	CU_ALLOCATION_FLAG_RDMA = 1, /* byte of cu_allocation_prop.flags */
	CU_GRANULARITY_MINIMUM = 0,
	CU_ACCESS_READ_WRITE = 3,

	CU_REGISTER_PORTABLE = 1,
	CU_REGISTER_DEVICEMAP = 2,
};

/*
 * Functions of the driver: member, symbol, parameters. Symbols that end in _v2 are those that
 * cuda.h gives the names without. X marks what every driver has; O what drivers before CUDA 11.7
 * lack, where the member is NULL.
 */
#define CUDA_FUNCTIONS(X, O)                                                                     \
	X(error_name, "cuGetErrorName", (cu_result error, const char **ret))                     \
	X(pointer_attribute, "cuPointerGetAttribute", (void *ret, int attribute, cu_pointer p))  \
	X(device_attribute, "cuDeviceGetAttribute", (int *ret, int attribute, cu_device device)) \
	X(device_uuid, "cuDeviceGetUuid", (struct cu_uuid * ret, cu_device device))              \
	X(context_current, "cuCtxGetCurrent", (cu_context * ret))                                \
	X(context_device, "cuCtxGetDevice", (cu_device * ret))                                   \
	X(context_push, "cuCtxPushCurrent_v2", (cu_context context))                             \
	X(context_pop, "cuCtxPopCurrent_v2", (cu_context * ret))                                 \
	X(context_synchronize, "cuCtxSynchronize", (void))                                       \
	X(primary_state, "cuDevicePrimaryCtxGetState",                                           \
	  (cu_device device, unsigned *ret_flags, int *ret_active))                              \
	X(primary_retain, "cuDevicePrimaryCtxRetain", (cu_context * ret, cu_device device))      \
	X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                   \
	X(address_range, "cuMemGetAddressRange_v2",                                              \
	  (cu_pointer * ret_base, size_t * ret_bytes, cu_pointer p))                             \
	X(ipc_handle, "cuIpcGetMemHandle", (struct cu_ipc_handle * ret, cu_pointer base))        \
	X(allocation_granularity, "cuMemGetAllocationGranularity",                               \
	  (size_t * ret, const struct cu_allocation_prop *prop, int which))                      \
	X(allocation_create, "cuMemCreate",                                                      \
	  (cu_allocation * ret, size_t bytes, const struct cu_allocation_prop *prop,             \
	   unsigned long long flags))                                                            \
	X(address_reserve, "cuMemAddressReserve",                                                \
	  (cu_pointer * ret, size_t bytes, size_t alignment, cu_pointer at,                      \
	   unsigned long long flags))                                                            \
	X(address_free, "cuMemAddressFree", (cu_pointer p, size_t bytes))                        \
	X(map, "cuMemMap",                                                                       \
	  (cu_pointer p, size_t bytes, size_t offset, cu_allocation allocation,                  \
	   unsigned long long flags))                                                            \
	X(unmap, "cuMemUnmap", (cu_pointer p, size_t bytes))                                     \
	X(set_access, "cuMemSetAccess",                                                          \
	  (cu_pointer p, size_t bytes, const struct cu_access *access, size_t n))                \
	X(allocation_retain, "cuMemRetainAllocationHandle", (cu_allocation * ret, void *p))      \
	X(allocation_release, "cuMemRelease", (cu_allocation allocation))                        \
	X(allocation_prop, "cuMemGetAllocationPropertiesFromHandle",                             \
	  (struct cu_allocation_prop * ret, cu_allocation allocation))                           \
	X(allocation_export, "cuMemExportToShareableHandle",                                     \
	  (void *ret, cu_allocation allocation, int handle_type, unsigned long long flags))      \
	O(range_handle, "cuMemGetHandleForAddressRange",                                         \
	  (void *ret, cu_pointer p, size_t bytes, int handle_type, unsigned long long flags))    \
	X(host_register, "cuMemHostRegister_v2", (void *p, size_t bytes, unsigned flags))        \
	X(host_unregister, "cuMemHostUnregister", (void *p))                                     \
	X(host_device_pointer, "cuMemHostGetDevicePointer_v2",                                   \
	  (cu_pointer * ret, void *p, unsigned flags))                                           \
	X(stream_context, "cuStreamGetCtx", (cu_stream stream, cu_context * ret))                \
	O(stream_write, "cuStreamWriteValue32_v2",                                               \
	  (cu_stream stream, cu_pointer p, uint32_t value, unsigned flags))                      \
	O(stream_wait, "cuStreamWaitValue32_v2",                                                 \
	  (cu_stream stream, cu_pointer p, uint32_t value, unsigned flags))

#define CUDA_MEMBER_(member, symbol, parameters) cu_result(*member) parameters;
struct cuda_driver {
	void *library;
	CUDA_FUNCTIONS(CUDA_MEMBER_, CUDA_MEMBER_)
};

/* 0, or negative with reterr. */
int dc_cuda_open(struct cuda_driver *ret, struct dray_err *reterr);
void dc_cuda_close(struct cuda_driver *c);
/* A driver is loaded in this process, maybe not by the library. */
bool dc_cuda_is_loaded(void);

/* 0; or for an error of the driver negative, with reterr: "<what>: <name of the error>". */
int dc_cuda_check(const struct cuda_driver *c, cu_result error, const char *what,
		  struct dray_err *reterr);

/* Copies the text of err to why (n bytes, may be NULL). Returns the negated code. */
int dc_cuda_why(const struct dray_err *err, char *why, size_t n);

/* A context that replaces the caller's for some calls. */
struct cuda_scope {
	bool pushed, retained;
	cu_device device;
};

/*
 * Makes `context` current, or for NULL an existing one of the device. If there is none, nothing
 * changes, and the driver refuses the calls that need one.
 */
void dc_cuda_enter(const struct cuda_driver *c, cu_context context, cu_device device,
		   struct cuda_scope *ret);
/* Makes the caller's context current again. */
void dc_cuda_leave(const struct cuda_driver *c, const struct cuda_scope *s);
