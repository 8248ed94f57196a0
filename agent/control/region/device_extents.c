/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents in device memory.
 *
 * The CPU does not map a DMA-BUF. RDMA devices need an address for it nevertheless, and the agent tells regions apart by
 * their addresses. So each DMA-BUF gets a range of the address space without memory, where a stray access faults.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/control/region/extents.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* Only DMA-BUFs name their exporter. The kernel answers by itself, without a file system in user space. */
static bool is_dmabuf(int fd)
{
	char path[40], line[256];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		found = !strncmp(line, "exp_name:", strlen("exp_name:"));
	fclose(f);
	return found;
}

static int buffer_take(struct extent_buffer *b, struct file_id *id, int fd, unsigned index,
		       bool write, struct dray_err *reterr)
{
	struct stat st;
	off_t bytes;

	if (!is_dmabuf(fd))
		return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_KIND,
				    "descriptor %u is not a DMA-BUF", index);
	if (write && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
		return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_READ_ONLY,
				    "write access was asked for, but descriptor %u is a DMA-BUF "
				    "for reading only",
				    index);
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes <= 0 || fstat(fd, &st) < 0)
		return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_KIND,
				    "descriptor %u is a DMA-BUF of unknown size", index);
	*id = (struct file_id){ st.st_dev, st.st_ino };
	b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (b->fd < 0)
		return dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
				    "the descriptor of a region cannot be duplicated: %s",
				    dray_errno_text(errno));
	b->base = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		       -1, 0);
	if (b->base == MAP_FAILED) {
		b->base = NULL;
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no address space for a DMA-BUF of %lld bytes",
				    (long long)bytes);
	}
	b->bytes = (uint64_t)bytes;
	return 0;
}

static int take_buffers(struct extents *e, const struct dmsg_region_add *m, struct piece *v,
			const int *fds, unsigned n_fds, struct dray_err *reterr)
{
	struct file_id *ids dray_auto_free = calloc(n_fds, sizeof(*ids));

	e->buffers = calloc(n_fds, sizeof(*e->buffers));
	if (!ids || !e->buffers)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (unsigned i = 0; i < n_fds; i++) {
		int r;

		e->buffers[e->n_buffers++].fd = -1;
		r = buffer_take(&e->buffers[i], &ids[i], fds[i], i, m->access & DMSG_ACCESS_WRITE,
				reterr);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < m->extents.n; i++) {
		const struct extent_buffer *b = &e->buffers[v[i].part];

		if (v[i].offset + v[i].length > b->bytes)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extent %" PRIu32 " ends at %" PRIu64
					    ", its DMA-BUF has %" PRIu64 " bytes",
					    v[i].index, v[i].offset + v[i].length, b->bytes);
	}
	pieces_join(v, m->extents.n, ids);
	return 0;
}

/* In regions that are written to. The pieces keep the order of the extents. */
static int check_overlap(struct piece *v, const struct dmsg_region_add *m, struct dray_err *reterr)
{
	int r;

	if (!(m->access & DMSG_ACCESS_WRITE))
		return 0;
	pieces_by_place(v, m->extents.n);
	r = pieces_check_overlap(v, m->extents.n, reterr);
	pieces_by_index(v, m->extents.n);
	return r;
}

int extents_take_buffers(struct dray_jobs *closer, const struct dmsg_region_add *m, const int *fds,
			 unsigned n_fds, struct extents *ret, struct dray_err *reterr)
{
	struct piece *pieces dray_auto_free = NULL;
	struct extents e = { .closer = closer };
	int r;

	r = pieces_read(m, n_fds, 0, &pieces, reterr);
	if (r >= 0)
		r = take_buffers(&e, m, pieces, fds, n_fds, reterr);
	if (r >= 0)
		r = check_overlap(pieces, m, reterr);
	if (r >= 0)
		r = extents_init(&e, pieces, m->extents.n, m->access, reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	e.view->memory = REGION_RDMA;
	for (uint32_t i = 0; i < e.view->n_extents; i++) {
		const struct extent_buffer *b = &e.buffers[e.parts[i]];

		e.view->extents[i].base = b->base + e.dmabufs[i].offset;
		e.dmabufs[i].fd = b->fd;
	}
	*ret = e;
	return 0;
}

static int check_handles(const struct dmsg_region_add *m, unsigned n_fds, struct dray_err *reterr)
{
	if (!m->device.n)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_GPU_DEVICE,
			"kinds cuda_ipc and cuda_vmm need the GPU that the memory is on: "
			"give its UUID or PCI address as device");
	if (m->handles.n % GPU_HANDLE_BYTES)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "handles are %d bytes each, and %" PRIu32 " came",
				    GPU_HANDLE_BYTES, m->handles.n);
	if (m->allocations.n > n_fds)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "sizes of %" PRIu32 " allocations came with %u descriptors",
				    m->allocations.n, n_fds);
	for (uint32_t i = GPU_HANDLE_BYTES; i < m->handles.n; i += GPU_HANDLE_BYTES)
		for (uint32_t k = 0; k < i; k += GPU_HANDLE_BYTES)
			if (!memcmp(m->handles.p + i, m->handles.p + k, GPU_HANDLE_BYTES))
				return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
						    "handles %u and %u are the same: send it once",
						    k / GPU_HANDLE_BYTES, i / GPU_HANDLE_BYTES);
	return 0;
}

/* The client's statement of the size of a descriptor's allocation; 0: none. */
static uint64_t allocation_at(const struct dmsg_region_add *m, unsigned fd)
{
	struct dmsg_allocation a = { 0 };

	if (fd < m->allocations.n)
		dmsg_allocation_get(m->allocations.p + (size_t)fd * DMSG_ALLOCATION_SIZE, &a);
	return a.bytes;
}

static int parts_new(const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		     const struct piece *v, unsigned n, struct gpu_part **ret,
		     struct dray_err *reterr)
{
	struct gpu_part *parts dray_auto_free = calloc(n, sizeof(*parts));

	if (!parts)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (uint32_t i = 0; i < m->extents.n; i++) {
		struct gpu_part *p = &parts[v[i].part];

		p->bytes = dray_max(p->bytes, v[i].offset + v[i].length);
	}
	for (unsigned i = 0; i < n_fds; i++) {
		struct gpu_part *p = &parts[i];

		p->kind = GPU_IMPORT_VMM;
		p->fd = fds[i];
		p->allocation = allocation_at(m, i);
		if (p->allocation && p->allocation < p->bytes)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extents of descriptor %u end at %" PRIu64
					    ", its allocation has %" PRIu64 " bytes",
					    i, p->bytes, p->allocation);
	}
	for (unsigned i = n_fds; i < n; i++) {
		parts[i].kind = GPU_IMPORT_IPC;
		parts[i].fd = -1;
		memcpy(parts[i].handle, m->handles.p + (size_t)(i - n_fds) * GPU_HANDLE_BYTES,
		       GPU_HANDLE_BYTES);
	}
	*ret = dray_take(parts);
	return 0;
}

int extents_read_gpu(const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		     struct extents *ret, struct gpu_part **ret_parts, unsigned *ret_n,
		     struct dray_err *reterr)
{
	unsigned n = n_fds + m->handles.n / GPU_HANDLE_BYTES;
	struct piece *pieces dray_auto_free = NULL;
	int r = check_handles(m, n_fds, reterr);

	*ret = (struct extents){ .view = NULL };
	if (r >= 0)
		r = pieces_read(m, n_fds, n - n_fds, &pieces, reterr);
	if (r >= 0)
		r = check_overlap(pieces, m, reterr);
	if (r >= 0)
		r = extents_init(ret, pieces, m->extents.n, m->access, reterr);
	if (r >= 0)
		r = parts_new(m, fds, n_fds, pieces, n, ret_parts, reterr);
	*ret_n = n;
	if (r < 0) {
		extents_deinit(ret);
		return r;
	}
	ret->view->memory = REGION_GPU;
	return 0;
}

void extents_opened(struct extents *e, unsigned device, const struct gpu_part *parts,
		    const int *dmabufs)
{
	e->view->gpu = (uint8_t)device;
	for (uint32_t i = 0; i < e->view->n_extents; i++) {
		uint32_t part = e->parts[i];

		e->view->extents[i].base =
			(uint8_t *)(uintptr_t)(parts[part].address + e->dmabufs[i].offset);
		e->dmabufs[i].fd = dmabufs[part];
	}
}
