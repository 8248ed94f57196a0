/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/ceiling_lab.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu/loader.h"
#include "lib/cpu.h"
#include "schema/gen/errors.h"

void lab_die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "ceiling_gpu: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	exit(1);
}

void lab_cuda_check(cudaError_t r, const char *what)
{
	if (r != cudaSuccess)
		lab_die("%s: %s", what, cudaGetErrorName(r));
}

void lab_client(unsigned device)
{
	LAB_CUDA_OK(cudaSetDevice((int)device));
}

bool lab_open(struct lab *l, const char *plugin)
{
	struct dray_err err = DRAY_ERR_NULL;
	int version;

	if (gpu_load(plugin, &l->ops, &err) < 0 || l->ops->open(&l->plugin, &err) < 0) {
		printf("{\"skip\": \"%s\"}\n", err.msg);
		return false;
	}
	l->n = l->ops->devices(l->plugin, l->devices, GPU_DEVICES_MAX);
	for (unsigned i = 0; i < l->n; i++) {
		const struct gpu_device_info *d = &l->devices[i];

		printf("{\"device\": %u, \"uuid\": \"%s\", \"bdf\": \"%s\", \"name\": \"%s\", \"memory\": %llu, "
		       "\"multiprocessors\": %u, \"capability\": \"%u.%u\", \"usable\": %d, \"dmabuf\": %d, "
		       "\"ipc\": %d, \"vmm\": %d, \"rdma_ordered\": %d, \"peers\": %u, \"nvlink\": %u, "
		       "\"driver\": \"%s\"}\n",
		       i, d->uuid, d->bdf, d->name, (unsigned long long)d->memory,
		       d->multiprocessors, d->major, d->minor, d->usable, d->dmabuf, d->ipc, d->vmm,
		       d->rdma_ordered, d->peers, d->nvlink, l->ops->version(l->plugin));
	}
	l->n = dray_min(l->n, 2u);
	for (unsigned i = 0; i < l->n; i++) {
		double begin = lab_seconds();
		uint64_t bytes = 0;
		uint32_t peers;

		LAB_OK(l->ops->start(l->plugin, i, &bytes, &peers, &err), &err);
		printf("{\"start\": %u, \"seconds\": %.3f, \"context_bytes\": %llu}\n", i,
		       lab_seconds() - begin, (unsigned long long)bytes);
	}
	LAB_OK(cuda_driver_load(&version, &err), &err);
	return l->n;
}

/* The plug-in exports no memory, so its table of the driver's functions lacks these. */
static void *driver_function(const char *name)
{
	enum cudaDriverEntryPointQueryResult found;
	void *address = NULL;

	LAB_CUDA_OK(
		cudaGetDriverEntryPointByVersion(name, &address, 10020, cudaEnableDefault, &found));
	return address;
}

int lab_vmm_new(unsigned device, uint64_t *bytes)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device },
	};
	void *create = driver_function("cuMemCreate"),
	     *export = driver_function("cuMemExportToShareableHandle");
	__typeof__(&cuMemCreate) vmm_create;
	__typeof__(&cuMemExportToShareableHandle) vmm_export;
	CUmemGenericAllocationHandle handle;
	size_t granularity;
	int fd;

	memcpy(&vmm_create, &create, sizeof(create));
	memcpy(&vmm_export, &export, sizeof(export));
	LAB_CUDA_OK(
		cuda_driver.vmm_granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	*bytes = (*bytes + granularity - 1) / granularity * granularity;
	LAB_CUDA_OK(vmm_create(&handle, *bytes, &prop, 0));
	LAB_CUDA_OK(vmm_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	LAB_CUDA_OK(cuda_driver.vmm_release(handle));
	return fd;
}

uint64_t lab_device_memory(struct lab *l, unsigned device, uint64_t bytes)
{
	struct gpu_import_spec spec = {
		.kind = GPU_IMPORT_VMM, .device = device, .bytes = bytes, .write = true
	};
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t address, there, size = bytes;
	struct gpu_import *import;

	lab_client(device);
	spec.fd = lab_vmm_new(device, &size);
	LAB_OK(l->ops->import(l->plugin, &spec, &import, &address, &there, &err), &err);
	close(spec.fd);
	return address;
}

void *lab_host_memory(struct lab *l, uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;
	void *base;

	LAB_OK(l->ops->host_alloc(l->plugin, bytes, &base, &err), &err);
	return base;
}

struct gpu_queue *lab_queue(struct lab *l, unsigned device, bool latency, unsigned share)
{
	struct gpu_queue_spec spec = { .device = device, .latency = latency, .share = share };
	struct dray_err err = DRAY_ERR_NULL;
	struct gpu_queue *q;

	LAB_OK(l->ops->queue_new(l->plugin, &spec, &q, &err), &err);
	return q;
}

void lab_submit(struct lab *l, struct gpu_queue *q, const struct gpu_copy *c)
{
	int r = l->ops->submit(q, c);

	if (r < 0)
		lab_die("a copy is refused: %d", r);
}

void lab_wait(struct lab *l, struct gpu_queue *q, uint64_t number)
{
	double begin = lab_seconds();

	for (uint64_t turns = 1; atomic_load_explicit(q->done, memory_order_acquire) < number;
	     turns++) {
		dray_cpu_relax();
		if (turns % (1u << 20) == 0 && l->ops->check(q) < 0)
			lab_die("the device is lost");
		if (turns % (1u << 20) == 0 && lab_seconds() - begin > 60)
			lab_die("a copy takes longer than a minute");
	}
}

uint64_t lab_random(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

double lab_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
