/* SPDX-License-Identifier: Apache-2.0 */
/* Identity and abilities of the devices, read without a context. */
#include "gpu/cuda/plugin.h"

#include <ctype.h>
#include <stdio.h>

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which cuda.h declares since CUDA 12; older drivers refuse it. */
#define MPS_ENABLED ((CUdevice_attribute)133)

static int attribute(const struct cuda_device *d, CUdevice_attribute a)
{
	int value = 0;

	return cuda.device_attribute(&value, a, d->cu) == CUDA_SUCCESS ? value : 0;
}

static void read_identity(struct cuda_device *d)
{
	CUuuid uuid;
	const uint8_t *u = (const uint8_t *)uuid.bytes;
	size_t memory = 0;

	if (cuda.device_uuid && cuda.device_uuid(&uuid, d->cu) == CUDA_SUCCESS)
		snprintf(d->info.uuid, sizeof(d->info.uuid),
			 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
			 u[12], u[13], u[14], u[15]);
	if (cuda.device_bus_id(d->info.bdf, sizeof(d->info.bdf), d->cu) != CUDA_SUCCESS)
		d->info.bdf[0] = '\0';
	for (char *s = d->info.bdf; *s; s++)
		*s = (char)tolower((unsigned char)*s);
	if (cuda.device_name(d->info.name, sizeof(d->info.name), d->cu) != CUDA_SUCCESS)
		d->info.name[0] = '\0';
	cuda.device_memory(&memory, d->cu);
	d->info.memory = memory;
}

static void read_abilities(struct cuda_device *d)
{
	struct gpu_device_info *i = &d->info;
	int flush = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);

	i->multiprocessors = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	i->major = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
	i->minor = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	/* copies use the process's own addresses of host memory */
	i->usable = i->major * 10 + i->minor >= DRAY_CUDA_LOWEST &&
		    attribute(d, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) &&
		    attribute(d, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) &&
		    attribute(d, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) &&
		    attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) != CU_COMPUTEMODE_PROHIBITED;
	i->dmabuf = cuda.range_handle && attribute(d, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
	i->ipc = i->usable;
	i->vmm = i->usable &&
		 attribute(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
		 attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	i->rdma_ordered = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
			  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
	i->shared = attribute(d, MPS_ENABLED);
	d->flush = cuda.flush_rdma && (flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
	d->write64 = cuda.stream_write64 &&
		     attribute(d, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
	d->pin_read_only = attribute(d, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
}

/* Atomics between GPUs work over NVLink only, so they tell it from PCIe. */
static void check_peer(struct gpu_plugin *p, unsigned from, unsigned to)
{
	struct cuda_device *a = &p->devices[from], *b = &p->devices[to];
	int yes = 0;

	if (!a->info.usable || !b->info.usable ||
	    cuda.device_can_access_peer(&yes, a->cu, b->cu) != CUDA_SUCCESS || !yes)
		return;
	a->info.peers |= 1u << to;
	yes = 0;
	if (cuda.device_p2p_attribute(&yes, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a->cu,
				      b->cu) == CUDA_SUCCESS &&
	    yes)
		a->info.nvlink |= 1u << to;
}

int cuda_devices_find(struct gpu_plugin *p, struct dray_err *reterr)
{
	int n = 0;
	CUresult r = cuda.device_count(&n);

	if (r != CUDA_SUCCESS)
		return cuda_fail(reterr, r, "the CUDA driver does not list its devices");
	p->n = (unsigned)dray_min(n, GPU_DEVICES_MAX);
	for (unsigned i = 0; i < p->n; i++) {
		r = cuda.device_get(&p->devices[i].cu, (int)i);
		if (r != CUDA_SUCCESS)
			return cuda_fail(reterr, r, "a CUDA device cannot be opened");
		read_identity(&p->devices[i]);
		read_abilities(&p->devices[i]);
	}
	for (unsigned i = 0; i < p->n; i++)
		for (unsigned k = 0; k < p->n; k++)
			if (i != k)
				check_peer(p, i, k);
	return 0;
}
