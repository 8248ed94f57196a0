/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const kinds[] = {
	[MEMORY_HOST] = "memfd",
	[MEMORY_IPC] = "cuda_ipc",
	[MEMORY_VMM] = "cuda_vmm",
	[MEMORY_DMABUF] = "dmabuf",
};

enum dray_kind memory_region_kind(const struct memory *m)
{
	switch (m->kind) {
	case MEMORY_IPC:
		return DRAY_KIND_CUDA_IPC;
	case MEMORY_VMM:
		return DRAY_KIND_CUDA_VMM;
	case MEMORY_DMABUF:
		return DRAY_KIND_DMABUF;
	case MEMORY_HOST:
		break;
	}
	return DRAY_KIND_MEMFD;
}

static bool host_alloc(struct memory *m, char *why, size_t n)
{
	m->fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m->fd >= 0 && !ftruncate(m->fd, (off_t)m->bytes) &&
	    !fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		void *p = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			       m->fd, 0);

		m->host = p == MAP_FAILED ? NULL : p;
	}
	if (!m->host)
		snprintf(why, n, "memfd: %s", strerror(errno));
	return m->host;
}

static bool vmm_alloc(struct memory *m, struct cuda *c, char *why, size_t n)
{
	struct cuda_allocation what = { .type = 1,
					.handle_types = 1,
					.location = { 1, m->device } };
	struct cuda_access access = { { 1, m->device }, 3 };
	size_t granule;

	if (!cuda_ok(c, c->granularity(&granule, &what, 0), "cuMemGetAllocationGranularity", why,
		     n))
		return false;
	m->mapped = (m->bytes + granule - 1) / granule * granule;
	return cuda_ok(c, c->create(&m->vmm, m->mapped, &what, 0), "cuMemCreate", why, n) &&
	       cuda_ok(c, c->reserve(&m->address, m->mapped, 0, 0, 0), "cuMemAddressReserve", why,
		       n) &&
	       cuda_ok(c, c->map(m->address, m->mapped, 0, m->vmm, 0), "cuMemMap", why, n) &&
	       cuda_ok(c, c->set_access(m->address, m->mapped, &access, 1), "cuMemSetAccess", why,
		       n) &&
	       cuda_ok(c, c->export_handle(&m->fd, m->vmm, 1, 0), "cuMemExportToShareableHandle",
		       why, n);
}

static bool gpu_alloc(struct memory *m, struct cuda *c, char *why, size_t n)
{
	struct cuda_ipc ipc;

	if (!cuda_use(c, m->device, why, n) || !cuda_uuid(c, m->device, m->device_name, why, n))
		return false;
	if (m->kind == MEMORY_VMM)
		return vmm_alloc(m, c, why, n);
	/* whole pages, so that it can be exported as a descriptor */
	if (!cuda_ok(c, c->alloc(&m->address, (m->bytes + 65535) & ~UINT64_C(65535)), "cuMemAlloc",
		     why, n))
		return false;
	if (m->kind == MEMORY_DMABUF)
		return cuda_ok(c,
			       c->get_range_handle(&m->fd, m->address,
						   (m->bytes + 65535) & ~UINT64_C(65535),
						   CUDA_DMABUF, 0),
			       "cuMemGetHandleForAddressRange", why, n);
	if (!cuda_ok(c, c->ipc_handle(&ipc, m->address), "cuIpcGetMemHandle", why, n))
		return false;
	memcpy(m->handle, &ipc, sizeof(m->handle));
	return true;
}

bool memory_alloc(struct memory *m, struct cuda *c, const char *kind, uint64_t bytes, int device,
		  char *why, size_t n)
{
	unsigned k = 0;
	bool ok;

	while (k < sizeof(kinds) / sizeof(kinds[0]) && strcmp(kinds[k], kind) != 0)
		k++;
	*m = (struct memory){ .kind = k, .device = device, .bytes = bytes, .fd = -1 };
	switch (m->kind) {
	case MEMORY_HOST:
		ok = host_alloc(m, why, n);
		break;
	case MEMORY_IPC:
	case MEMORY_VMM:
	case MEMORY_DMABUF:
		ok = gpu_alloc(m, c, why, n);
		break;
	default:
		snprintf(why, n, "unknown kind of memory: %s", kind);
		return false;
	}
	if (!ok)
		memory_free(m, c);
	return ok;
}

void memory_free(struct memory *m, struct cuda *c)
{
	char why[64];

	if (m->host)
		munmap(m->host, m->bytes);
	else if (m->address && cuda_use(c, m->device, why, sizeof(why))) {
		if (m->kind == MEMORY_VMM) {
			c->unmap(m->address, m->mapped);
			c->unreserve(m->address, m->mapped);
		} else
			c->free(m->address);
	}
	if (m->vmm)
		c->release(m->vmm);
	if (m->fd >= 0)
		close(m->fd);
	*m = (struct memory){ .fd = -1 };
}

bool memory_write(struct memory *m, struct cuda *c, uint64_t at, const void *from, uint64_t bytes,
		  char *why, size_t n)
{
	if (m->host)
		memcpy(m->host + at, from, bytes);
	else
		/* the call may return before the last bytes are in place, and another process reads them next */
		return cuda_use(c, m->device, why, n) &&
		       cuda_ok(c, c->to_device(m->address + at, from, bytes), "cuMemcpyHtoD", why,
			       n) &&
		       cuda_ok(c, c->synchronize(), "cuCtxSynchronize", why, n);
	return true;
}

bool memory_read(struct memory *m, struct cuda *c, uint64_t at, void *to, uint64_t bytes, char *why,
		 size_t n)
{
	if (m->host)
		memcpy(to, m->host + at, bytes);
	else
		return cuda_use(c, m->device, why, n) &&
		       cuda_ok(c, c->to_host(to, m->address + at, bytes), "cuMemcpyDtoH", why, n);
	return true;
}
