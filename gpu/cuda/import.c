/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes: legacy IPC handles, which each context opens, and VMM descriptors, which are mapped once. */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "schema/gen/errors.h"

/* Sizes of a VMM allocation that are tried: 1 GiB of granules of 2 MiB. */
#define TRIES_MAX 512u

/* ipc: the memory as opened in the context of a peer. */
struct ipc_view {
	struct cuda_context *context; /* NULL: none */
	CUdeviceptr address;
	uint32_t alias;
	bool aliased;
};

struct gpu_import {
	struct dray_list link;
	struct gpu_plugin *plugin;
	enum gpu_import_kind kind;
	unsigned device;
	unsigned refs; /* ipc: imports of the same memory share one */
	CUdeviceptr address;
	uint64_t bytes;
	struct cuda_context *context;     /* ipc: the one that opened it */
	struct ipc_view *views;           /* ipc: by device; NULL if no peer has one */
	uint8_t handle[GPU_HANDLE_BYTES]; /* ipc */
	uint64_t reserved;                /* vmm: bytes of reserved addresses */
	bool mapped, write;               /* vmm */
};

/* Opens the handle of an import in the current context. */
static int ipc_open_handle(const struct gpu_import *i, CUdeviceptr *ret, struct dray_err *reterr)
{
	cudaIpcMemHandle_t handle;
	void *p = NULL;
	cudaError_t r;

	memcpy(&handle, i->handle, sizeof(handle));
	r = cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess);
	*ret = cuda_address(p);
	/* the driver takes two processes with the same process ID for one */
	if (r == cudaErrorDeviceUninitialized)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_GPU_HANDLE,
			"the CUDA IPC handle's owner has the same process ID as the agent, as in two "
			"containers that are both PID 1: let them share a PID namespace, or use kind "
			"cuda_vmm");
	return r == cudaSuccess ? 0 : cuda_fail(reterr, r, "the CUDA IPC handle cannot be opened");
}

static int device_check(const struct gpu_plugin *p, unsigned wanted, int ordinal,
			struct dray_err *reterr)
{
	if (ordinal == (int)wanted)
		return 0;
	if (ordinal >= 0 && ordinal < (int)p->n)
		return dray_err_set(reterr, -EXDEV, DRAY_E_GPU_DEVICE,
				    "the memory is on GPU %s, not on %s",
				    p->devices[ordinal].info.uuid, p->devices[wanted].info.uuid);
	return dray_err_set(reterr, -EXDEV, DRAY_E_GPU_DEVICE, "the memory is not on GPU %s",
			    p->devices[wanted].info.uuid);
}

static int ipc_measure(struct gpu_import *i, struct dray_err *reterr)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;
	struct cudaPointerAttributes attributes;
	cudaError_t r = cudaPointerGetAttributes(&attributes, cuda_pointer(i->address));

	if (r == cudaSuccess)
		r = CUDA_DRIVER_CALL(mem_range, &base, &bytes, i->address);
	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "the memory of the CUDA IPC handle cannot be examined");
	i->bytes = bytes - (i->address - base);
	return device_check(i->plugin, i->device, attributes.device, reterr);
}

static int ipc_open(struct gpu_import *i, struct cuda_context *c, struct dray_err *reterr)
{
	int r = ipc_open_handle(i, &i->address, reterr);

	if (r < 0)
		return r;
	i->context = cuda_context_ref(c);
	return ipc_measure(i, reterr);
}

static void ipc_view_close(struct ipc_view *v)
{
	if (!v->context)
		return;
	if (cuda_context_set(v->context->cu) == cudaSuccess) {
		if (v->aliased)
			cuda_alias_del(v->context, v->alias);
		cudaIpcCloseMemHandle(cuda_pointer(v->address));
	}
	cuda_context_unref(v->context);
	*v = (struct ipc_view){ 0 };
}

/* Opens the import in the context of a started peer. */
static int ipc_open_to(struct gpu_import *i, unsigned device, struct dray_err *reterr)
{
	struct cuda_context *c;
	struct ipc_view *v;
	int r;

	if (!i->views)
		i->views = calloc(GPU_DEVICES_MAX, sizeof(*i->views));
	if (!i->views)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	v = &i->views[device];
	r = cuda_enter(i->plugin, device, &c, reterr);
	if (r >= 0)
		r = ipc_open_handle(i, &v->address, reterr);
	if (r < 0)
		return r;
	v->context = cuda_context_ref(c);
	if (v->address == i->address)
		return 0;
	r = cuda_alias_add(c, i->address, i->bytes, v->address, &v->alias, reterr);
	v->aliased = r == 0;
	if (r < 0)
		ipc_view_close(v);
	return r;
}

static struct gpu_import *ipc_find(struct gpu_plugin *p, const struct gpu_import_spec *spec,
				   const struct cuda_context *c)
{
	dray_list_for_each(&p->imports, i, struct gpu_import, link)
		if (i->kind == GPU_IMPORT_IPC && i->context == c &&
		    memcmp(i->handle, spec->handle, GPU_HANDLE_BYTES) == 0)
			return i;
	return NULL;
}

/* The driver ignores some bytes of a handle: another import that was opened at the same address has the same memory. */
static struct gpu_import *ipc_same(const struct gpu_import *i)
{
	dray_list_for_each(&i->plugin->imports, other, struct gpu_import, link)
		if (other != i && other->kind == GPU_IMPORT_IPC && other->context == i->context &&
		    other->address == i->address && other->bytes == i->bytes)
			return other;
	return NULL;
}

static cudaError_t vmm_access(const struct gpu_import *i, unsigned device, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device },
		.flags = flags,
	};

	return CUDA_DRIVER_CALL(vmm_set_access, i->address, i->bytes, &access, 1);
}

static int vmm_open_to(const struct gpu_import *i, unsigned device, struct dray_err *reterr)
{
	cudaError_t r = cudaErrorNotSupported;
	int entered = cuda_enter(i->plugin, device, NULL, reterr);

	/* the driver reports faults of the current context here, whatever device the call names */
	if (entered < 0)
		return entered;
	/* some drivers have no read-only access to device memory; the agent checks every access itself anyway */
	if (!i->write)
		r = vmm_access(i, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
	if (r != cudaSuccess && !cuda_is_lost(r))
		r = vmm_access(i, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	return r == cudaSuccess ?
		       0 :
		       cuda_fail(reterr, r, "the GPU cannot be given access to the memory");
}

/* No allocation is larger than its device. */
static uint64_t vmm_most(const struct gpu_import *i, uint64_t granularity)
{
	return i->plugin->devices[i->device].info.memory / granularity * granularity;
}

/*
 * The driver maps an allocation only as a whole and does not report its size. Unless the exporter gave the size, it is
 * found by trying, from the end of the used part upwards by granules. A failed try costs up to 4 us, and other imports wait.
 */
static cudaError_t vmm_map_whole(struct gpu_import *i, CUmemGenericAllocationHandle handle,
				 const struct gpu_import_spec *spec, uint64_t granularity)
{
	uint64_t most = vmm_most(i, granularity);
	uint64_t least = spec->allocation ? spec->allocation : spec->bytes, reserved;
	cudaError_t r = cudaErrorInvalidValue;

	if (spec->bytes > least || least > most)
		return r;
	i->bytes = (least + granularity - 1) / granularity * granularity;
	reserved = spec->allocation ? least :
				      dray_min(most, i->bytes + (TRIES_MAX - 1) * granularity);
	r = CUDA_DRIVER_CALL(vmm_reserve, &i->address, reserved, 0, 0, 0);
	if (r != cudaSuccess)
		return r;
	i->reserved = reserved;
	r = i->bytes <= i->reserved ?
		    CUDA_DRIVER_CALL(vmm_map, i->address, i->bytes, 0, handle, 0) :
		    cudaErrorInvalidValue;
	while (r == cudaErrorNotSupported && i->bytes < i->reserved) {
		i->bytes += granularity;
		r = CUDA_DRIVER_CALL(vmm_map, i->address, i->bytes, 0, handle, 0);
	}
	i->mapped = r == cudaSuccess;
	return r == cudaErrorNotSupported ? cudaErrorInvalidValue : r;
}

static int vmm_map(struct gpu_import *i, CUmemGenericAllocationHandle handle,
		   const struct gpu_import_spec *spec, struct dray_err *reterr)
{
	CUmemAllocationProp prop;
	size_t granularity = 0;
	cudaError_t r = CUDA_DRIVER_CALL(vmm_properties, &prop, handle);
	int checked;

	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "the VMM allocation cannot be examined");
	if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return dray_err_set(reterr, -EXDEV, DRAY_E_GPU_DEVICE,
				    "the VMM allocation is not in a GPU's memory");
	checked = device_check(i->plugin, i->device, prop.location.id, reterr);
	if (checked < 0)
		return checked;
	r = CUDA_DRIVER_CALL(vmm_granularity, &granularity, &prop,
			     CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (r != cudaSuccess || !granularity)
		return cuda_fail(reterr, r, "the VMM allocation cannot be examined");
	r = vmm_map_whole(i, handle, spec, granularity);
	if (r == cudaErrorInvalidValue && spec->allocation)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "the size of the VMM allocation is not %llu bytes",
				    (unsigned long long)spec->allocation);
	if (r == cudaErrorInvalidValue && i->reserved && i->reserved < vmm_most(i, granularity))
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "the VMM allocation has none of the sizes from %llu to %llu "
				    "bytes: send its size with the descriptor, or a shorter extent",
				    (unsigned long long)spec->bytes,
				    (unsigned long long)i->reserved);
	if (r == cudaErrorInvalidValue)
		return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
				    "the VMM allocation has less than %llu bytes",
				    (unsigned long long)spec->bytes);
	return r == cudaSuccess ? 0 : cuda_fail(reterr, r, "the VMM allocation cannot be mapped");
}

static int vmm_open(struct gpu_import *i, const struct gpu_import_spec *spec,
		    struct dray_err *reterr)
{
	CUmemGenericAllocationHandle handle;
	cudaError_t result = CUDA_DRIVER_CALL(vmm_import, &handle, (void *)(intptr_t)spec->fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	int r;

	/* the results for a descriptor of another kind */
	if (result == cudaErrorOperatingSystem || result == cudaErrorUnknown)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "the descriptor is not that of a CUDA VMM allocation");
	if (result != cudaSuccess)
		return cuda_fail(reterr, result, "the VMM allocation cannot be imported");
	r = vmm_map(i, handle, spec, reterr);
	/* the mapping keeps the allocation */
	cuda_driver.vmm_release(handle);
	return r == 0 ? vmm_open_to(i, i->device, reterr) : r;
}

/* Gives a device access to the import if it is a started peer with access. -EIO: that device is lost. */
static int open_to(struct gpu_import *i, unsigned device, struct dray_err *reterr)
{
	const struct cuda_device *d = &i->plugin->devices[device];
	const struct cuda_device *own = &i->plugin->devices[i->device];
	struct cuda_context *c = d->context;
	int r;

	if (device == i->device || !c || c->lost || !(d->info.peers & 1u << i->device) ||
	    d->unreached & 1u << i->device || own->unreached & 1u << device)
		return 0;
	r = i->kind == GPU_IMPORT_IPC ? ipc_open_to(i, device, reterr) :
					vmm_open_to(i, device, reterr);
	return r == -EIO ? cuda_lost(c) : r;
}

/* Opens the import for all peers. The loss of a peer does not fail the import. */
static int open_to_all(struct gpu_import *i, struct dray_err *reterr)
{
	for (unsigned k = 0; k < i->plugin->n; k++) {
		struct dray_err err = DRAY_ERR_NULL;
		int r = open_to(i, k, &err);

		if (r < 0 && r != -EIO)
			return dray_err_set(reterr, r, err.code, "%s", err.msg);
	}
	return 0;
}

/* Closes an import, also one that was opened in part. The caller holds the lock. */
static void import_free(struct gpu_import *i)
{
	for (unsigned k = 0; i->views && k < GPU_DEVICES_MAX; k++)
		ipc_view_close(&i->views[k]);
	free(i->views);
	if (i->context) {
		if (cuda_context_set(i->context->cu) == cudaSuccess)
			cudaIpcCloseMemHandle(cuda_pointer(i->address));
		cuda_context_unref(i->context);
	}
	if (i->mapped)
		cuda_driver.vmm_unmap(i->address, i->bytes);
	if (i->reserved)
		cuda_driver.vmm_unreserve(i->address, i->reserved);
	dray_list_del(&i->link);
	free(i);
}

static int import_locked(struct gpu_plugin *p, const struct gpu_import_spec *spec,
			 struct gpu_import **ret, struct dray_err *reterr)
{
	struct gpu_import *i, *same;
	struct cuda_context *c;
	int r = cuda_enter(p, spec->device, &c, reterr);

	if (r < 0)
		return r;
	i = spec->kind == GPU_IMPORT_IPC ? ipc_find(p, spec, c) : NULL;
	if (i) {
		i->refs++;
		*ret = i;
		return 0;
	}
	i = calloc(1, sizeof(*i));
	if (!i)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	i->plugin = p;
	i->kind = spec->kind;
	i->device = spec->device;
	i->refs = 1;
	i->write = spec->write;
	memcpy(i->handle, spec->handle, GPU_HANDLE_BYTES);
	dray_list_add(&p->imports, &i->link);
	r = spec->kind == GPU_IMPORT_IPC ? ipc_open(i, c, reterr) : vmm_open(i, spec, reterr);
	if (r == -EIO)
		cuda_lost(c);
	same = r == 0 && spec->kind == GPU_IMPORT_IPC ? ipc_same(i) : NULL;
	if (r == 0 && !same)
		r = open_to_all(i, reterr);
	if (r < 0 || same)
		import_free(i);
	if (r < 0)
		return r;
	*ret = same ? same : i;
	if (same)
		same->refs++;
	return 0;
}

int cuda_import(struct gpu_plugin *p, const struct gpu_import_spec *spec, struct gpu_import **ret,
		uint64_t *ret_address, uint64_t *ret_bytes, struct dray_err *reterr)
{
	struct gpu_import *i = NULL;
	int r;

	pthread_mutex_lock(&p->lock);
	r = import_locked(p, spec, &i, reterr);
	if (i) {
		*ret = i;
		*ret_address = i->address;
		*ret_bytes = i->bytes;
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

void cuda_release(struct gpu_import *i)
{
	struct gpu_plugin *p = i->plugin;

	pthread_mutex_lock(&p->lock);
	if (--i->refs == 0)
		import_free(i);
	pthread_mutex_unlock(&p->lock);
}

int cuda_export_dmabuf(struct gpu_import *i, uint64_t offset, uint64_t bytes,
		       struct dray_err *reterr)
{
	int fd = -1, r = cuda_enter(i->plugin, i->device, NULL, reterr);
	cudaError_t result;

	if (r < 0)
		return r;
	if (!i->plugin->devices[i->device].info.dmabuf)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "driver or kernel cannot export this GPU's memory as DMA-BUF");
	if (!i->plugin->devices[i->device].info.rdma_ordered &&
	    !i->plugin->devices[i->device].flush)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "RDMA writes to this GPU cannot be made visible to it");
	result = CUDA_DRIVER_CALL(range_handle, &fd, i->address + offset, bytes,
				  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	if (result == cudaSuccess)
		return fd;
	if (cuda_is_lost(result))
		return cuda_fail(reterr, result, "the memory cannot be exported as DMA-BUF");
	cuda_fail(reterr, result, "the driver does not export another process's memory as DMA-BUF");
	return -EOPNOTSUPP;
}

int cuda_imports_open_to(struct gpu_plugin *p, unsigned device, struct dray_err *ret_left_out,
			 struct dray_err *reterr)
{
	dray_list_for_each(&p->imports, i, struct gpu_import, link) {
		const struct cuda_context *owner = p->devices[i->device].context;
		struct dray_err err = DRAY_ERR_NULL;
		int r;

		/* opening memory of a lost peer would look like a loss of this device */
		if (!owner || owner->lost)
			r = dray_err_set(&err, -EXDEV, DRAY_E_GPU_LOST,
					 "a peer with open imports was lost");
		else
			r = open_to(i, device, &err);
		if (r == -EIO)
			return dray_err_set(reterr, r, err.code, "%s", err.msg);
		if (r < 0) {
			dray_err_set(ret_left_out, r, err.code, "%s", err.msg);
			p->devices[device].unreached |= 1u << i->device;
		}
	}
	return 0;
}

void cuda_imports_close_to(struct gpu_plugin *p, unsigned device)
{
	dray_list_for_each(&p->imports, i, struct gpu_import, link)
		if (i->views)
			ipc_view_close(&i->views[device]);
}
