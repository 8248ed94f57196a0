/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver that the tests use, resolved at run time, so that programs build without a
 * toolkit and start without a driver. Types are those of the driver's stable ABI.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long cuda_address;
typedef unsigned long long cuda_handle;

struct cuda_location {
	int type; /* 1: a device */
	int id;
};

struct cuda_allocation {
	int type;         /* 1: pinned to its place */
	int handle_types; /* 1: POSIX descriptor */
	struct cuda_location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct cuda_access {
	struct cuda_location location;
	int flags; /* 3: read and write */
};

struct cuda_ipc {
	char bytes[64];
};

enum {
	CUDA_DMABUF = 1,      /* of get_range_handle() */
	CUDA_HOST_MAPPED = 2, /* of host_register() */
	CUDA_STREAM_NON_BLOCKING = 1,
	CUDA_WAIT_GEQ = 0,
};

/* Member of struct cuda, name in the driver, arguments. All return 0 or an error. */
#define CUDA_FUNCTIONS(X)                                                                      \
	X(init, "cuInit", (unsigned))                                                          \
	X(error_name, "cuGetErrorName", (int, const char **))                                  \
	X(device_count, "cuDeviceGetCount", (int *))                                           \
	X(device_get, "cuDeviceGet", (int *, int))                                             \
	X(device_name, "cuDeviceGetName", (char *, int, int))                                  \
	X(device_uuid, "cuDeviceGetUuid_v2", (unsigned char *, int))                           \
	X(device_bdf, "cuDeviceGetPCIBusId", (char *, int, int))                               \
	X(context_retain, "cuDevicePrimaryCtxRetain", (void **, int))                          \
	X(context_set, "cuCtxSetCurrent", (void *))                                            \
	X(synchronize, "cuCtxSynchronize", (void))                                             \
	X(mem_info, "cuMemGetInfo_v2", (size_t *, size_t *))                                   \
	X(alloc, "cuMemAlloc_v2", (cuda_address *, size_t))                                    \
	X(free, "cuMemFree_v2", (cuda_address))                                                \
	X(to_device, "cuMemcpyHtoD_v2", (cuda_address, const void *, size_t))                  \
	X(to_host, "cuMemcpyDtoH_v2", (void *, cuda_address, size_t))                          \
	X(copy_async, "cuMemcpyDtoDAsync_v2", (cuda_address, cuda_address, size_t, void *))    \
	X(set_async, "cuMemsetD32Async", (cuda_address, unsigned, size_t, void *))             \
	X(ipc_handle, "cuIpcGetMemHandle", (struct cuda_ipc *, cuda_address))                  \
	X(ipc_open, "cuIpcOpenMemHandle_v2", (cuda_address *, struct cuda_ipc, unsigned))      \
	X(ipc_close, "cuIpcCloseMemHandle", (cuda_address))                                    \
	X(granularity, "cuMemGetAllocationGranularity",                                        \
	  (size_t *, const struct cuda_allocation *, int))                                     \
	X(create, "cuMemCreate",                                                               \
	  (cuda_handle *, size_t, const struct cuda_allocation *, unsigned long long))         \
	X(release, "cuMemRelease", (cuda_handle))                                              \
	X(reserve, "cuMemAddressReserve",                                                      \
	  (cuda_address *, size_t, size_t, cuda_address, unsigned long long))                  \
	X(unreserve, "cuMemAddressFree", (cuda_address, size_t))                               \
	X(map, "cuMemMap", (cuda_address, size_t, size_t, cuda_handle, unsigned long long))    \
	X(unmap, "cuMemUnmap", (cuda_address, size_t))                                         \
	X(set_access, "cuMemSetAccess",                                                        \
	  (cuda_address, size_t, const struct cuda_access *, size_t))                          \
	X(export_handle, "cuMemExportToShareableHandle",                                       \
	  (void *, cuda_handle, int, unsigned long long))                                      \
	X(get_range_handle, "cuMemGetHandleForAddressRange",                                   \
	  (void *, cuda_address, size_t, int, unsigned long long))                             \
	X(stream_new, "cuStreamCreate", (void **, unsigned))                                   \
	X(stream_free, "cuStreamDestroy_v2", (void *))                                         \
	X(stream_synchronize, "cuStreamSynchronize", (void *))                                 \
	X(stream_wait, "cuStreamWaitValue32_v2", (void *, cuda_address, uint32_t, unsigned))   \
	X(stream_write, "cuStreamWriteValue32_v2", (void *, cuda_address, uint32_t, unsigned)) \
	X(host_register, "cuMemHostRegister_v2", (void *, size_t, unsigned))                   \
	X(host_unregister, "cuMemHostUnregister", (void *))                                    \
	X(host_address, "cuMemHostGetDevicePointer_v2", (cuda_address *, void *, unsigned))

#define CUDA_DEVICES_MAX 16

struct cuda {
#define CUDA_POINTER(name, symbol, arguments) int(*name) arguments;
	CUDA_FUNCTIONS(CUDA_POINTER)
#undef CUDA_POINTER
	int devices;
	void *context[CUDA_DEVICES_MAX]; /* primary contexts, made on first use */
};

/* Loads the driver once. False, with the reason in why (of n bytes): there is no driver, or no device. */
bool cuda_open(struct cuda *c, char *why, size_t n);

/* Makes a device's primary context current. */
bool cuda_use(struct cuda *c, int device, char *why, size_t n);

/* True if rc is success; otherwise why has the error. */
bool cuda_ok(struct cuda *c, int rc, const char *what, char *why, size_t n);

/* UUID in the form GPU-8-4-4-4-12. */
bool cuda_uuid(struct cuda *c, int device, char uuid[48], char *why, size_t n);
