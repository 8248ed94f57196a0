/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/plugin_driver_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/cleanup.h"

#define OPENS_MAX 64
#define IPC_BYTES (1u << 20)

static struct {
	CUcontext context; /* NULL: this element is free */
	const void *address;
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

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
	unsigned i = 0;

	ENTERED();
	while (i < OPENS_MAX && allocated[i].base)
		i++;
	if (i == OPENS_MAX)
		return cudaErrorMemoryAllocation;
	allocated[i].context = plugin_driver.current;
	allocated[i].base = calloc(1, bytes);
	*ret = allocated[i].base;
	return *ret ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *address)
{
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (address && allocated[i].base == address) {
			allocated_free(i);
			return cudaSuccess;
		}
	return cudaErrorInvalidValue;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	ENTERED();
	memcpy(to, from, bytes);
	return kind == cudaMemcpyHostToDevice ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
	ENTERED();
	memset(at, value, bytes);
	return stream ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned flags)
{
	ENTERED();
	return base && bytes && flags ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostUnregister(void *base)
{
	ENTERED();
	return base ? cudaSuccess : cudaErrorInvalidValue;
}

/* Of whole allocations. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *ret, void *address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (address && allocated[i].base == address) {
			*ret = (cudaIpcMemHandle_t){
				.reserved = { (char)allocated[i].context->device, (char)i }
			};
			return cudaSuccess;
		}
	return cudaErrorInvalidValue;
}

bool plugin_driver_is_foreign(const void *p)
{
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context && (uintptr_t)p - (uintptr_t)opens[i].address < 1 << 24)
			return opens[i].context != plugin_driver.current;
	return false;
}

/* The address differs in each context. */
cudaError_t cudaIpcOpenMemHandle(void **ret, cudaIpcMemHandle_t handle, unsigned flags)
{
	unsigned i = 0;

	ENTERED();
	while (i < OPENS_MAX && opens[i].context)
		i++;
	if (i == OPENS_MAX || flags != cudaIpcMemLazyEnablePeerAccess)
		return cudaErrorMemoryAllocation;
	opens[i].context = plugin_driver.current;
	opens[i].device = handle.reserved[0];
	opens[i].address = *ret =
		(void *)(uintptr_t)(UINT64_C(0x7f0000000000) +
				    ((uint64_t)(plugin_driver.current - plugin_driver.contexts)
				     << 32) +
				    ((uint64_t)handle.reserved[1] << 24));
	return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context == plugin_driver.current && opens[i].address == address) {
			opens[i].context = NULL;
			return cudaSuccess;
		}
	return cudaErrorInvalidValue;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret, const void *address)
{
	ENTERED();
	for (unsigned i = 0; i < OPENS_MAX; i++)
		if (opens[i].context && opens[i].address == address) {
			*ret = (struct cudaPointerAttributes){ .type = cudaMemoryTypeDevice,
							       .device = opens[i].device };
			return cudaSuccess;
		}
	return cudaErrorInvalidValue;
}

/* --- functions of the driver -------------------------------------------------------------------- */

CUresult cuMemGetAddressRange(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr address)
{
	DRIVER_ENTERED();
	*ret_base = address;
	*ret_bytes = IPC_BYTES;
	return CUDA_SUCCESS;
}

/* The handle of an allocation is its size. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *handle,
					CUmemAllocationHandleType type)
{
	struct stat st;

	DRIVER_ENTERED();
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
	DRIVER_ENTERED();
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
	DRIVER_ENTERED();
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
	DRIVER_ENTERED();
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

	DRIVER_ENTERED();
	memcpy(ret, &fd, sizeof(fd));
	return address && bytes && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && !flags ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

void *plugin_driver_memory_function(const char *name)
{
#define FUNCTION(f)                        \
	{                                  \
#f, (void *)(uintptr_t)(f) \
	}
	const struct {
		const char *name;
		void *function;
	} functions[] = {
		FUNCTION(cuMemGetAddressRange),
		FUNCTION(cuMemImportFromShareableHandle),
		FUNCTION(cuMemGetAllocationPropertiesFromHandle),
		FUNCTION(cuMemGetAllocationGranularity),
		FUNCTION(cuMemAddressReserve),
		FUNCTION(cuMemAddressFree),
		FUNCTION(cuMemMap),
		FUNCTION(cuMemUnmap),
		FUNCTION(cuMemSetAccess),
		FUNCTION(cuMemRelease),
		FUNCTION(cuMemGetHandleForAddressRange),
	};
#undef FUNCTION

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(functions); i++)
		if (!strcmp(name, functions[i].name))
			return functions[i].function;
	return NULL;
}
