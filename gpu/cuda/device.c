/* SPDX-License-Identifier: Apache-2.0 */
/* Identity and abilities of the devices, read without a context. */
#include "gpu/cuda/plugin.h"

#include <ctype.h>
#include <stdio.h>

/* The runtime has no names for some of the driver's attributes, but knows them. */
static int attribute(unsigned device, CUdevice_attribute a)
{
	int value = 0;

	return cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)a, (int)device) == cudaSuccess ?
		       value :
		       0;
}

static void read_identity(unsigned device, struct gpu_device_info *i)
{
	struct cudaDeviceProp properties;
	const uint8_t *u = (const uint8_t *)properties.uuid.bytes;

	if (cudaGetDeviceProperties(&properties, (int)device) == cudaSuccess) {
		snprintf(i->uuid, sizeof(i->uuid),
			 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
			 u[12], u[13], u[14], u[15]);
		snprintf(i->name, sizeof(i->name), "%.*s", (int)sizeof(i->name) - 1,
			 properties.name);
		i->memory = properties.totalGlobalMem;
	}
	if (cudaDeviceGetPCIBusId(i->bdf, sizeof(i->bdf), (int)device) != cudaSuccess)
		i->bdf[0] = '\0';
	for (char *s = i->bdf; *s; s++)
		*s = (char)tolower((unsigned char)*s);
}

static void read_abilities(unsigned device, struct cuda_device *d)
{
	struct gpu_device_info *i = &d->info;
	int flush = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);

	i->multiprocessors = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	i->major = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
	i->minor = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	/* copies use the process's own addresses of host memory */
	i->usable =
		i->major * 10 + i->minor >= DRAY_CUDA_LOWEST &&
		attribute(device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) &&
		attribute(device, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) &&
		attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) &&
		attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) != CU_COMPUTEMODE_PROHIBITED;
	i->dmabuf = attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
	i->ipc = i->usable;
	i->vmm = i->usable &&
		 attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
		 attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	i->rdma_ordered = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
			  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
	i->shared = attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
	d->flush = flush & cudaFlushGPUDirectRDMAWritesOptionHost;
	d->write64 = attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
	d->pin_read_only = attribute(device, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
}

/* Atomics between GPUs work over NVLink only, so they tell it from PCIe. */
static void check_peer(struct gpu_plugin *p, unsigned from, unsigned to)
{
	struct cuda_device *a = &p->devices[from], *b = &p->devices[to];
	int yes = 0;

	if (!a->info.usable || !b->info.usable ||
	    cudaDeviceCanAccessPeer(&yes, (int)from, (int)to) != cudaSuccess || !yes)
		return;
	a->info.peers |= 1u << to;
	yes = 0;
	if (cudaDeviceGetP2PAttribute(&yes, cudaDevP2PAttrNativeAtomicSupported, (int)from,
				      (int)to) == cudaSuccess &&
	    yes)
		a->info.nvlink |= 1u << to;
}

int cuda_devices_find(struct gpu_plugin *p, struct dray_err *reterr)
{
	int n = 0;
	cudaError_t r = cudaGetDeviceCount(&n);

	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "the CUDA driver does not list its devices");
	p->n = (unsigned)dray_min(n, GPU_DEVICES_MAX);
	for (unsigned i = 0; i < p->n; i++) {
		read_identity(i, &p->devices[i].info);
		read_abilities(i, &p->devices[i]);
	}
	for (unsigned i = 0; i < p->n; i++)
		for (unsigned k = 0; k < p->n; k++)
			if (i != k)
				check_peer(p, i, k);
	return 0;
}
