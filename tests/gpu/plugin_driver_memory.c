/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/plugin_driver_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OPENS_MAX 64
#define IPC_BYTES (1u << 20)

static struct {
	CUcontext context; /* NULL: this element is free */
	CUdeviceptr address;
	int device;
} opens[OPENS_MAX];

/* Freed with its context. */
static struct {
	CUcontext context;
	void *base; /* NULL: this element is free */
} allocated[OPENS_MAX];

static void allocated_free(unsigned i)
{
	free(allocated[i].base);
	allocated[i].base = NULL;
}

int plugin_driver_opened(int device)
{
	int n = 0;

	for (unsigned i = 0; i < OPENS_MAX; i++)
		n += opens[i].context && opens[i].context->device == device;
	return n;
}

void plugin_driver_forget(CUcontext c)
{
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context == c)
			opens[i].context = NULL;
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (allocated[i].context == c)
			allocated_free(i);
}

CUresult cuMemAlloc(CUdeviceptr *ret, size_t bytes)
{
	unsigned i = 0;

	ENTERED();
	while (i < OPENS_MAX && allocated[i].base)
		i++;
	if (i == OPENS_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocated[i].context = plugin_driver.current;
	allocated[i].base = calloc(1, bytes);
	*ret = (CUdeviceptr)(uintptr_t)allocated[i].base;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr address)
{
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (address && (uintptr_t)allocated[i].base == address) {
			allocated_free(i);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	ENTERED();
	memcpy((void *)(uintptr_t)to, from, bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
	ENTERED();
	memset((void *)(uintptr_t)at, value, bytes);
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister(void *base, size_t bytes, unsigned flags)
{
	ENTERED();
	return base && bytes && flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostUnregister(void *base)
{
	ENTERED();
	return base ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Of whole allocations. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (address && (uintptr_t)allocated[i].base == address) {
			*ret = (CUipcMemHandle){ .reserved = { (char)allocated[i].context->device,
							       (char)i } };
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

bool plugin_driver_is_foreign(CUdeviceptr address)
{
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context && address - opens[i].address < 1 << 24)
			return opens[i].context != plugin_driver.current;
	return false;
}

/* The address differs in each context. */
CUresult cuIpcOpenMemHandle(CUdeviceptr *ret, CUipcMemHandle handle, unsigned flags)
{
	unsigned i = 0;

	ENTERED();
	while (i < OPENS_MAX && opens[i].context)
		i++;
	if (i == OPENS_MAX || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	opens[i].context = plugin_driver.current;
	opens[i].device = handle.reserved[0];
	opens[i].address = *ret =
		UINT64_C(0x7f0000000000) +
		((uint64_t)(plugin_driver.current - plugin_driver.contexts) << 32) +
		((uint64_t)handle.reserved[1] << 24);
	return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context == plugin_driver.current && opens[i].address == address) {
			opens[i].context = NULL;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *ret, CUpointer_attribute which, CUdeviceptr address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context && opens[i].address == address &&
		    which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
			memcpy(ret, &opens[i].device, sizeof(opens[i].device));
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr address)
{
	ENTERED();
	*ret_base = address;
	*ret_bytes = IPC_BYTES;
	return CUDA_SUCCESS;
}

/* The handle of an allocation is its size. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *handle,
					CUmemAllocationHandleType type)
{
	struct stat st;

	ENTERED();
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    fstat((int)(intptr_t)handle, &st) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*ret = (CUmemGenericAllocationHandle)st.st_size;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *ret,
						CUmemGenericAllocationHandle handle)
{
	*ret = (CUmemAllocationProp){ .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(size_t *ret, const CUmemAllocationProp *what,
				       CUmemAllocationGranularity_flags which)
{
	*ret = PLUGIN_DRIVER_GRANULE;
	return what && which == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? CUDA_SUCCESS :
								   CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr at,
			     unsigned long long flags)
{
	ENTERED();
	*ret = UINT64_C(0x600000000000);
	return alignment || at || flags || bytes > PLUGIN_DRIVER_MEMORY ? CUDA_ERROR_INVALID_VALUE :
									  CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	return address && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	ENTERED();
	plugin_driver.maps++;
	if (!address || offset || flags || bytes % PLUGIN_DRIVER_GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	return bytes == handle ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	return address && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	ENTERED();
	return address && bytes && n == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetHandleForAddressRange(void *ret, CUdeviceptr address, size_t bytes,
				       CUmemRangeHandleType type, unsigned long long flags)
{
	int fd = 0;

	ENTERED();
	memcpy(ret, &fd, sizeof(fd));
	return address && bytes && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && !flags ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}
