/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver of this process, libcuda.so.1, found at run time. What it takes of its interface is declared
 * here, so that no toolkit is needed to build. Opened for one call at a time or for the life of an object: nothing
 * is kept between.
 */
#ifndef DRAY_CLIENT_CUDA_DRIVER_H
#define DRAY_CLIENT_CUDA_DRIVER_H

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

enum {
	CU_SUCCESS = 0,
	CU_OUT_OF_MEMORY = 2,

	CU_ATTRIBUTE_CONTEXT = 1,
	CU_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_ATTRIBUTE_IS_MANAGED = 8,
	CU_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_ATTRIBUTE_IS_LEGACY_IPC_CAPABLE = 10,
	CU_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_ATTRIBUTE_MAPPING_BASE = 19,

	CU_MEMORY_DEVICE = 2,

	CU_HANDLE_POSIX_FD = 1,
	CU_HANDLE_FABRIC = 8,
	CU_RANGE_DMABUF = 1,
	CU_DEVICE_DMABUF_SUPPORTED = 124,

	CU_REGISTER_PORTABLE = 1,
	CU_REGISTER_DEVICEMAP = 2,
};

/* Names as in libcuda.so.1: those that end in _v2 are what the names without mean in cuda.h. */
struct cuda_driver {
	void *library;
	cu_result (*error_name)(cu_result error, const char **ret);
	cu_result (*pointer_attribute)(void *ret, int attribute, cu_pointer p);
	cu_result (*device_attribute)(int *ret, int attribute, cu_device device);
	cu_result (*device_uuid)(struct cu_uuid *ret, cu_device device);
	cu_result (*context_current)(cu_context *ret);
	cu_result (*context_device)(cu_device *ret);
	cu_result (*context_push)(cu_context context);
	cu_result (*context_pop)(cu_context *ret);
	cu_result (*primary_state)(cu_device device, unsigned *ret_flags, int *ret_active);
	cu_result (*primary_retain)(cu_context *ret, cu_device device);
	cu_result (*primary_release)(cu_device device);
	cu_result (*address_range)(cu_pointer *ret_base, size_t *ret_bytes, cu_pointer p);
	cu_result (*ipc_handle)(struct cu_ipc_handle *ret, cu_pointer base);
	cu_result (*allocation_retain)(cu_allocation *ret, void *p);
	cu_result (*allocation_release)(cu_allocation allocation);
	cu_result (*allocation_prop)(struct cu_allocation_prop *ret, cu_allocation allocation);
	cu_result (*allocation_export)(void *ret, cu_allocation allocation, int handle_type,
				       unsigned long long flags);
	/* since CUDA 11.7; NULL in an older driver */
	cu_result (*range_handle)(void *ret, cu_pointer p, size_t bytes, int handle_type,
				  unsigned long long flags);
	cu_result (*host_register)(void *p, size_t bytes, unsigned flags);
	cu_result (*host_unregister)(void *p);
	cu_result (*host_device_pointer)(cu_pointer *ret, void *p, unsigned flags);
	cu_result (*stream_context)(cu_stream stream, cu_context *ret);
	/* since CUDA 11.7; NULL in an older driver */
	cu_result (*stream_write)(cu_stream stream, cu_pointer p, uint32_t value, unsigned flags);
	cu_result (*stream_wait)(cu_stream stream, cu_pointer p, uint32_t value, unsigned flags);
};

/* 0, or negative with reterr. */
int dc_cuda_open(struct cuda_driver *ret, struct dray_err *reterr);
void dc_cuda_close(struct cuda_driver *c);

/* What the driver answered into a code and a sentence, "<what>: <name of the error>". Negative. */
int dc_cuda_error(const struct cuda_driver *c, cu_result error, const char *what,
		  struct dray_err *reterr);

/* For functions without a handle: err's sentence into why (of n bytes, may be NULL). Its negated code. */
int dc_cuda_why(const struct dray_err *err, char *why, size_t n);

/* A context that is current for some calls, in place of the caller's. */
struct cuda_scope {
	bool pushed, retained;
	cu_device device;
};

/*
 * Makes `context` current; NULL: one of the device that is there already. Where there is none, nothing is changed:
 * the calls that need one answer that.
 */
void dc_cuda_enter(const struct cuda_driver *c, cu_context context, cu_device device,
		   struct cuda_scope *ret);
/* The caller's is current again. */
void dc_cuda_leave(const struct cuda_driver *c, const struct cuda_scope *s);

#endif
