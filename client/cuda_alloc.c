/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that other processes can open and RDMA devices can reach, for allocators of frameworks. */
#include <inttypes.h>
#include <string.h>

#include "client/cuda_driver.h"
#include "client/dray.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static struct cu_allocation_prop shareable(const struct cuda_driver *c, int device)
{
	struct cu_allocation_prop prop = { .type = CU_ALLOCATION_PINNED,
					   .handle_types = CU_HANDLE_POSIX_FD,
					   .location_type = CU_LOCATION_DEVICE,
					   .location = device };
	int rdma = 0;

	if (!c->device_attribute(&rdma, CU_DEVICE_VMM_RDMA_SUPPORTED, device) && rdma)
		prop.flags[CU_ALLOCATION_FLAG_RDMA] = 1;
	return prop;
}

/* Rounds up to what the driver allocates. */
static int round_up(const struct cuda_driver *c, const struct cu_allocation_prop *prop,
		    uint64_t bytes, size_t *ret, struct dray_err *reterr)
{
	size_t granule = 0;
	int r = dc_cuda_check(c, c->allocation_granularity(&granule, prop, CU_GRANULARITY_MINIMUM),
			      "cuMemGetAllocationGranularity", reterr);

	if (r)
		return r;
	if (!bytes || bytes > INT64_MAX - granule)
		return dray_err_set(reterr, -1, DRAY_E_INVALID,
				    "memory of %" PRIu64 " bytes cannot be allocated", bytes);
	*ret = (bytes + granule - 1) / granule * granule;
	return 0;
}

/* Gives an allocation an address where the device can use it. */
static int map(const struct cuda_driver *c, cu_allocation allocation, size_t bytes, int device,
	       cu_pointer *ret, struct dray_err *reterr)
{
	struct cu_access access = { CU_LOCATION_DEVICE, device, CU_ACCESS_READ_WRITE };
	cu_pointer at = 0;
	int r = dc_cuda_check(c, c->address_reserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve",
			      reterr);

	if (r)
		return r;
	r = dc_cuda_check(c, c->map(at, bytes, 0, allocation, 0), "cuMemMap", reterr);
	if (!r) {
		r = dc_cuda_check(c, c->set_access(at, bytes, &access, 1), "cuMemSetAccess",
				  reterr);
		if (r)
			c->unmap(at, bytes);
	}
	if (r) {
		c->address_free(at, bytes);
		return r;
	}
	*ret = at;
	return 0;
}

static int allocate(const struct cuda_driver *c, uint64_t bytes, int device, cu_pointer *ret,
		    struct dray_err *reterr)
{
	struct cu_allocation_prop prop = shareable(c, device);
	cu_allocation allocation;
	size_t rounded;
	cu_result error;
	int r = round_up(c, &prop, bytes, &rounded, reterr);

	if (r)
		return r;
	error = c->allocation_create(&allocation, rounded, &prop, 0);
	if (error == CU_NOT_SUPPORTED)
		return dray_err_set(
			reterr, -1, DRAY_E_UNSUPPORTED,
			"GPU %d cannot share virtual memory by descriptors; use cudaMalloc()",
			device);
	r = dc_cuda_check(c, error, "cuMemCreate", reterr);
	if (r)
		return r;
	r = map(c, allocation, rounded, device, ret, reterr);
	c->allocation_release(allocation); /* the mapping keeps it */
	return r;
}

int dray_cuda_alloc(uint64_t bytes, int device, uint64_t *ret, char *why, size_t why_size)
{
	struct dray_err err = { 0 };
	struct cuda_driver c;
	struct cuda_scope scope;
	int r = dc_cuda_open(&c, &err);

	if (!r) {
		dc_cuda_enter(&c, NULL, device, &scope);
		r = allocate(&c, bytes, device, ret, &err);
		dc_cuda_leave(&c, &scope);
		dc_cuda_close(&c);
	}
	return r ? dc_cuda_why(&err, why, why_size) : 0;
}

void dray_cuda_free(uint64_t address, uint64_t bytes, int device)
{
	struct dray_err err = { 0 };
	struct cuda_driver c;
	struct cuda_scope scope;
	struct cu_allocation_prop prop;
	size_t rounded;

	if (!address || dc_cuda_open(&c, &err))
		return;
	prop = shareable(&c, device);
	dc_cuda_enter(&c, NULL, device, &scope);
	if (!round_up(&c, &prop, bytes, &rounded, &err)) {
		c.context_synchronize(); /* kernels may still use the memory */
		c.unmap(address, rounded);
		c.address_free(address, rounded);
	}
	dc_cuda_leave(&c, &scope);
	dc_cuda_close(&c);
}

void *dray_cuda_torch_alloc(ptrdiff_t bytes, int device, void *stream)
{
	uint64_t at = 0;

	(void)stream;
	if (bytes <= 0 || dray_cuda_alloc((uint64_t)bytes, device, &at, NULL, 0))
		return NULL;
	return (void *)(uintptr_t)at;
}

void dray_cuda_torch_free(void *address, ptrdiff_t bytes, int device, void *stream)
{
	(void)stream;
	dray_cuda_free((uintptr_t)address, (uint64_t)bytes, device);
}
