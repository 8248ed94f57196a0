/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents in memory of devices. A part is what the client names one piece of memory by: a descriptor, or a legacy CUDA
 * IPC handle.
 *
 * A DMA-BUF has no address here: the CPU has no business in it. RDMA devices want one nevertheless, and whatever
 * looks after memory tells regions apart by theirs. So each gets a stretch of the address space with nothing behind
 * it, where a stray access faults.
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

struct piece {
	uint64_t offset, length;
	uint32_t part, index;
};

/* What the client sent along, and what of it was named. */
struct sent {
	const struct dmsg_region_add *m;
	unsigned n_fds, n_handles;
	bool *used; /* descriptors, then handles */
};

static int refuse(struct dray_err *reterr, int code, uint32_t index, const char *why)
{
	return dray_err_set(reterr, -EINVAL, code, "extent %" PRIu32 ": %s", index, why);
}

static void extent_at(const struct dmsg_region_add *m, uint32_t i, struct dmsg_extent *ret)
{
	dmsg_extent_get(m->extents.p + (size_t)i * DMSG_EXTENT_SIZE, ret);
}

static enum region_memory memory_of(enum dmsg_kind kind)
{
	switch (kind) {
	case DMSG_KIND_DMABUF:
		return REGION_RDMA;
	case DMSG_KIND_CUDA_IPC:
	case DMSG_KIND_CUDA_VMM:
		return REGION_GPU;
	case DMSG_KIND_MEMFD:
	case DMSG_KIND_POOL:
		break;
	}
	return REGION_HOST;
}

int extents_memory(const struct dmsg_region_add *m, enum region_memory *ret,
		   enum dmsg_kind *ret_kind, struct dray_err *reterr)
{
	struct dmsg_extent first, e;

	extent_at(m, 0, &first);
	*ret_kind = (enum dmsg_kind)first.kind;
	*ret = memory_of(*ret_kind);
	for (uint32_t i = 1; i < m->extents.n; i++) {
		extent_at(m, i, &e);
		if (first.kind == DMSG_KIND_POOL || e.kind == DMSG_KIND_POOL)
			return refuse(reterr, DRAY_E_INVALID, i,
				      "a pool is the only extent of its region");
		if (memory_of((enum dmsg_kind)e.kind) != *ret)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"extent %" PRIu32
				" is of kind %s and others of %s: a region is all "
				"memfd, all dmabuf, or all cuda_ipc and cuda_vmm of one "
				"GPU; add one for each",
				i, dmsg_kind_name((enum dmsg_kind)e.kind),
				dmsg_kind_name(*ret_kind));
	}
	if (*ret == REGION_HOST && m->device.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "device is for GPU memory, and extents are of kind %s",
				    dmsg_kind_name(*ret_kind));
	if (*ret != REGION_GPU && m->handles.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "handles are for kind cuda_ipc, and extents are of kind %s",
				    dmsg_kind_name(*ret_kind));
	if (*ret != REGION_GPU && m->allocations.n)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"sizes of allocations are for kind cuda_vmm, and extents are of kind %s",
			dmsg_kind_name(*ret_kind));
	return 0;
}

/* --- what all of them have -------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->part != y->part)
		return x->part < y->part ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return 0;
}

static int by_index(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->index < y->index ? -1 : x->index > y->index;
}

/* Two extents in the same bytes would make one transfer's destinations overlap where its offsets do not. */
static int check_overlap(struct piece *v, uint32_t n, struct dray_err *reterr)
{
	int ret = 0;

	qsort(v, n, sizeof(*v), by_place);
	for (uint32_t i = 1; i < n && ret >= 0; i++)
		if (v[i].part == v[i - 1].part && v[i].offset < v[i - 1].offset + v[i - 1].length)
			ret = dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					   "extents %" PRIu32 " and %" PRIu32
					   " overlap, which is allowed for reading only",
					   v[i - 1].index, v[i].index);
	qsort(v, n, sizeof(*v), by_index);
	return ret;
}

static int read_piece(struct sent *s, uint32_t i, struct piece *ret, struct dray_err *reterr)
{
	struct dmsg_extent e;
	bool ipc;

	extent_at(s->m, i, &e);
	ipc = e.kind == DMSG_KIND_CUDA_IPC;
	if (ipc && e.fd_index >= s->n_handles)
		return refuse(reterr, DRAY_E_INVALID, i,
			      "fd_index is not that of a handle that came with the message");
	if (!ipc && e.fd_index >= s->n_fds)
		return refuse(reterr, DRAY_E_FD_COUNT, i,
			      "fd_index is not that of a descriptor that came with the message");
	*ret = (struct piece){ e.offset, e.length, ipc ? s->n_fds + e.fd_index : e.fd_index, i };
	s->used[ret->part] = true;
	return 0;
}

static int read_pieces(struct sent *s, struct piece *v, struct dray_err *reterr)
{
	for (uint32_t i = 0; i < s->m->extents.n; i++) {
		int ret = read_piece(s, i, &v[i], reterr);

		if (ret < 0)
			return ret;
	}
	for (unsigned i = 0; i < s->n_fds; i++)
		if (!s->used[i])
			return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT,
					    "descriptor %u of %u belongs to no extent", i,
					    s->n_fds);
	for (unsigned i = 0; i < s->n_handles; i++)
		if (!s->used[s->n_fds + i])
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "handle %u of %u belongs to no extent", i,
					    s->n_handles);
	return 0;
}

static int extents_alloc(struct extents *e, uint32_t n, uint16_t access, struct dray_err *reterr)
{
	*e = (struct extents){
		.view = calloc(1, sizeof(*e->view) + n * sizeof(e->view->extents[0])),
		.parts = calloc(n, sizeof(*e->parts)),
		.dmabufs = calloc(n, sizeof(*e->dmabufs)),
	};
	if (!e->view || !e->parts || !e->dmabufs) {
		extents_deinit(e);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	}
	e->view->o.access = access;
	return 0;
}

/* Bases are offsets in their parts as yet. Extents that go on where the one before ends become one. */
static void build_view(struct extents *e, const struct piece *v, uint32_t n)
{
	struct region_view *view = e->view;
	uint64_t start = 0, end = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = view->n_extents;

		if (k && e->parts[k - 1] == v[i].part && v[i].offset == end)
			view->extents[k - 1].length += v[i].length;
		else {
			view->extents[k] = (struct extent_view){ .start = start,
								 .length = v[i].length,
								 .node = -1 };
			e->parts[k] = v[i].part;
			e->dmabufs[k] = (struct region_dmabuf){ -1, v[i].offset };
			view->n_extents++;
		}
		start += v[i].length;
		end = v[i].offset + v[i].length;
	}
	view->o.length = start;
}

/* The part's addresses are known; fd: its DMA-BUF, or -1. */
static void place(struct extents *e, uint32_t part, uintptr_t base, int fd)
{
	for (uint32_t i = 0; i < e->view->n_extents; i++) {
		if (e->parts[i] != part)
			continue;
		e->view->extents[i].base = (uint8_t *)(base + e->dmabufs[i].offset);
		e->dmabufs[i].fd = fd;
	}
}

/* --- DMA-BUF ------------------------------------------------------------------------------------------ */

/*
 * Of a descriptor's own code in the kernel, so that no file system in user space is asked: only DMA-BUFs say who
 * exported them.
 */
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

static int buffer_take(struct extent_buffer *b, int fd, unsigned index, bool write,
		       struct dray_err *reterr)
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
				    "descriptor %u is a DMA-BUF that does not tell its size",
				    index);
	b->dev = st.st_dev;
	b->ino = st.st_ino;
	b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (b->fd < 0)
		return dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
				    "a region's descriptor cannot be kept: %s",
				    dray_errno_text(errno));
	b->base = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		       -1, 0);
	if (b->base == MAP_FAILED) {
		b->base = NULL;
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no addresses for a DMA-BUF of %lld bytes", (long long)bytes);
	}
	b->bytes = (uint64_t)bytes;
	return 0;
}

/* The same buffer may have come twice. */
static uint32_t first_of(const struct extent_buffer *v, uint32_t i)
{
	uint32_t k = 0;

	while (v[k].dev != v[i].dev || v[k].ino != v[i].ino)
		k++;
	return k;
}

static int check_buffers(const struct extents *e, struct piece *v, uint32_t n,
			 struct dray_err *reterr)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct extent_buffer *b = &e->buffers[v[i].part];

		if (v[i].offset + v[i].length > b->bytes)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extent %" PRIu32 " ends at %" PRIu64
					    ", its DMA-BUF has %" PRIu64 " bytes",
					    v[i].index, v[i].offset + v[i].length, b->bytes);
		v[i].part = first_of(e->buffers, v[i].part);
	}
	return e->view->o.access & DMSG_ACCESS_WRITE ? check_overlap(v, n, reterr) : 0;
}

int extents_take_buffers(struct dray_jobs *closer, const struct dmsg_region_add *m, const int *fds,
			 unsigned n_fds, struct extents *ret, struct dray_err *reterr)
{
	struct piece *pieces dray_auto_free = calloc(m->extents.n, sizeof(*pieces));
	bool *used dray_auto_free = calloc(n_fds + 1, sizeof(*used));
	struct sent sent = { .m = m, .n_fds = n_fds, .used = used };
	struct extents e;
	int r;

	if (!pieces || !used)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	r = read_pieces(&sent, pieces, reterr);
	if (r >= 0)
		r = extents_alloc(&e, m->extents.n, m->access, reterr);
	if (r < 0)
		return r;
	e.closer = closer;
	e.buffers = calloc(n_fds, sizeof(*e.buffers));
	if (!e.buffers)
		r = dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (unsigned i = 0; i < n_fds && r >= 0; i++) {
		e.buffers[i].fd = -1;
		e.n_buffers++;
		r = buffer_take(&e.buffers[i], fds[i], i, m->access & DMSG_ACCESS_WRITE, reterr);
	}
	if (r >= 0)
		r = check_buffers(&e, pieces, m->extents.n, reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	e.view->memory = REGION_RDMA;
	build_view(&e, pieces, m->extents.n);
	for (uint32_t i = 0; i < e.n_buffers; i++)
		place(&e, i, (uintptr_t)e.buffers[i].base, e.buffers[i].fd);
	*ret = e;
	return 0;
}

/* --- CUDA --------------------------------------------------------------------------------------------- */

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

/* What the client says of the size of a descriptor's allocation. */
static uint64_t allocation_at(const struct dmsg_region_add *m, unsigned fd)
{
	struct dmsg_allocation a = { 0 };

	if (fd < m->allocations.n)
		dmsg_allocation_get(m->allocations.p + (size_t)fd * DMSG_ALLOCATION_SIZE, &a);
	return a.bytes;
}

static int check_allocations(const struct gpu_part *parts, unsigned n, struct dray_err *reterr)
{
	for (unsigned i = 0; i < n; i++)
		if (parts[i].allocation && parts[i].allocation < parts[i].bytes)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extents of descriptor %u end at %" PRIu64
					    ", its allocation has %" PRIu64 " bytes",
					    i, parts[i].bytes, parts[i].allocation);
	return 0;
}

static struct gpu_part *parts_new(const struct sent *s, const int *fds, const struct piece *v)
{
	struct gpu_part *parts = calloc(s->n_fds + s->n_handles, sizeof(*parts));

	if (!parts)
		return NULL;
	for (unsigned i = 0; i < s->n_fds + s->n_handles; i++) {
		bool ipc = i >= s->n_fds;

		parts[i].kind = ipc ? GPU_IMPORT_IPC : GPU_IMPORT_VMM;
		parts[i].fd = ipc ? -1 : fds[i];
		parts[i].allocation = ipc ? 0 : allocation_at(s->m, i);
		if (ipc)
			memcpy(parts[i].handle,
			       s->m->handles.p + (size_t)(i - s->n_fds) * GPU_HANDLE_BYTES,
			       GPU_HANDLE_BYTES);
	}
	for (uint32_t i = 0; i < s->m->extents.n; i++) {
		struct gpu_part *p = &parts[v[i].part];

		p->bytes = dray_max(p->bytes, v[i].offset + v[i].length);
	}
	return parts;
}

int extents_read_gpu(const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		     struct extents *ret, struct gpu_part **ret_parts, unsigned *ret_n,
		     struct dray_err *reterr)
{
	unsigned n = n_fds + m->handles.n / GPU_HANDLE_BYTES;
	struct piece *pieces dray_auto_free = calloc(m->extents.n, sizeof(*pieces));
	bool *used dray_auto_free = calloc(n + 1, sizeof(*used));
	struct sent sent = { m, n_fds, n - n_fds, used };
	int r = check_handles(m, n_fds, reterr);

	if (r < 0)
		return r;
	if (!pieces || !used)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	r = read_pieces(&sent, pieces, reterr);
	if (r >= 0 && m->access & DMSG_ACCESS_WRITE)
		r = check_overlap(pieces, m->extents.n, reterr);
	if (r >= 0)
		r = extents_alloc(ret, m->extents.n, m->access, reterr);
	if (r < 0)
		return r;
	*ret_parts = parts_new(&sent, fds, pieces);
	*ret_n = n;
	r = *ret_parts ? check_allocations(*ret_parts, n, reterr) :
			 dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	if (r < 0) {
		extents_deinit(ret);
		return r;
	}
	ret->view->memory = REGION_GPU;
	build_view(ret, pieces, m->extents.n);
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
