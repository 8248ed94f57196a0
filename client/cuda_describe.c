/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device pointers into extents. Another process can open an allocation only as a whole, from its
 * base. So the driver is queried for base and size of each allocation, and extents count from
 * there.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cuda_driver.h"
#include "client/internal.h"
#include "lib/cleanup.h"

/* Each has a descriptor or a handle, whose number is limited for a region. */
#define SHARES_MAX (DMSG_FDS_MAX + HANDLES_MAX)

/* An allocation that is shared. */
struct share {
	cu_pointer base;
	uint64_t bytes;
	enum dray_kind kind;
	bool continues; /* of cuMemCreate(): a range may go on in another allocation */
	int fd;         /* -1: none */
	struct cu_ipc_handle handle;
};

/* dray_cuda_extents.own */
struct described {
	uint32_t extents_n, shares_n, fds_n, handles_n, dmabufs_n;
	struct dray_extent extents[DMSG_EXTENTS_MAX];
	struct share shares[SHARES_MAX];
};

/* An allocation before it is shared. */
struct found {
	cu_pointer at, end; /* the rest of the range */
	cu_device device;
	cu_context context;       /* NULL: none, as for memory of cuMemCreate() */
	cu_allocation allocation; /* 0: not of cuMemCreate() */
};

static void described_free(struct described *w)
{
	for (uint32_t i = 0; i < w->shares_n; i++)
		dray_close(w->shares[i].fd);
	free(w);
}
DRAY_DEFINE_CLEANUP(struct described *, described_free);

static int refuse_unsupported(const struct found *f, const char *why, struct dray_err *reterr)
{
	return dray_err_set(reterr, -1, DRAY_E_UNSUPPORTED, "memory at 0x%" PRIx64 " %s", f->at,
			    why);
}

/* Queries the driver for the allocation at f->at. */
static int find(const struct cuda_driver *c, struct found *f, struct dray_err *reterr)
{
	unsigned type = 0;
	int managed = 0, ordinal = 0;
	void *address;

	if (c->pointer_attribute(&type, CU_ATTRIBUTE_MEMORY_TYPE, f->at) ||
	    type != CU_MEMORY_DEVICE ||
	    c->pointer_attribute(&ordinal, CU_ATTRIBUTE_DEVICE_ORDINAL, f->at))
		return dray_err_set(reterr, -1, DRAY_E_INVALID,
				    "there is no memory of a GPU at 0x%" PRIx64, f->at);
	if (!c->pointer_attribute(&managed, CU_ATTRIBUTE_IS_MANAGED, f->at) && managed)
		return refuse_unsupported(f,
					  "is managed memory, which cannot be shared; use "
					  "cudaMalloc() or cuMemCreate()",
					  reterr);
	f->device = ordinal;
	if (c->pointer_attribute(&f->context, CU_ATTRIBUTE_CONTEXT, f->at))
		f->context = NULL;
	memcpy(&address, &f->at, sizeof(address));
	if (c->allocation_retain(&f->allocation, address))
		f->allocation = 0;
	return 0;
}

static bool is_part_of(const struct cuda_driver *c, cu_pointer p, cu_allocation allocation)
{
	cu_allocation other = 0;
	void *address;

	memcpy(&address, &p, sizeof(address));
	if (c->allocation_retain(&other, address))
		return false;
	c->allocation_release(other);
	return other == allocation;
}

static bool is_mapping(const struct cuda_driver *c, const struct found *f, cu_pointer base,
		       size_t bytes, struct share *ret)
{
	if (base > f->at || f->at - base >= bytes || !is_part_of(c, base, f->allocation) ||
	    !is_part_of(c, base + bytes - 1, f->allocation))
		return false;
	ret->base = base;
	ret->bytes = bytes;
	return true;
}

/*
 * Finds base and size of the allocation from its mapping. Drivers differ in which query is about
 * this mapping and which about all adjacent ones: a result is used if both ends are of this
 * allocation.
 */
static int find_mapping(const struct cuda_driver *c, const struct found *f, struct share *s,
			struct dray_err *reterr)
{
	cu_pointer base;
	size_t bytes;

	if (!c->pointer_attribute(&base, CU_ATTRIBUTE_MAPPING_BASE, f->at) &&
	    !c->pointer_attribute(&bytes, CU_ATTRIBUTE_MAPPING_SIZE, f->at) &&
	    is_mapping(c, f, base, bytes, s))
		return 0;
	if (!c->address_range(&base, &bytes, f->at) && is_mapping(c, f, base, bytes, s))
		return 0;
	return refuse_unsupported(f, "is mapped, but the driver does not tell from where to where",
				  reterr);
}

static int own_descriptor(struct described *w, struct share *s, int fd, struct dray_err *reterr)
{
	s->fd = fd;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return dray_err_set(reterr, -1, DRAY_E_IO, "descriptor %d of the driver: %s", fd,
				    dray_errno_text(errno));
	if (w->fds_n == DMSG_FDS_MAX)
		return dray_err_set(
			reterr, -1, DRAY_E_FD_LIMIT,
			"the ranges need more than %d descriptors, one for each allocation; "
			"make several regions, or larger allocations",
			DMSG_FDS_MAX);
	return 0;
}

static int share_vmm(const struct cuda_driver *c, struct described *w, const struct found *f,
		     struct share *s, struct dray_err *reterr)
{
	struct cu_allocation_prop prop = { 0 };
	cu_result error;
	int fd = -1;

	if (find_mapping(c, f, s, reterr) < 0)
		return -1;
	error = c->allocation_prop(&prop, f->allocation);
	if (error)
		return dc_cuda_error(c, error, "cuMemGetAllocationPropertiesFromHandle", reterr);
	if (!(prop.handle_types & CU_HANDLE_POSIX_FD))
		return refuse_unsupported(
			f,
			prop.handle_types & CU_HANDLE_FABRIC ?
				"exports fabric handles only: make it with a POSIX descriptor "
				"handle; PyTorch: take expandable_segments out of "
				"PYTORCH_CUDA_ALLOC_CONF, or keep /dev/nvidia-caps-imex-channels "
				"out of the container" :
				"was made without a handle for export: make it with "
				"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; PyTorch: set "
				"TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or take expandable_segments "
				"out of PYTORCH_CUDA_ALLOC_CONF",
			reterr);
	error = c->allocation_export(&fd, f->allocation, CU_HANDLE_POSIX_FD, 0);
	if (error)
		return dc_cuda_error(c, error, "cuMemExportToShareableHandle", reterr);
	return own_descriptor(w, s, fd, reterr);
}

static int share_ipc(const struct cuda_driver *c, struct described *w, const struct found *f,
		     struct share *s, struct dray_err *reterr)
{
	int capable = 1;
	size_t bytes = 0;
	cu_result error;

	if (!c->pointer_attribute(&capable, CU_ATTRIBUTE_IS_LEGACY_IPC_CAPABLE, f->at) && !capable)
		return refuse_unsupported(f,
					  "cannot be shared by a legacy IPC handle (memory of a "
					  "stream-ordered pool, cudaMallocAsync, never can); use "
					  "cudaMalloc() or cuMemCreate()",
					  reterr);
	error = c->address_range(&s->base, &bytes, f->at);
	if (error)
		return dc_cuda_error(c, error, "cuMemGetAddressRange", reterr);
	s->bytes = bytes;
	error = c->ipc_handle(&s->handle, s->base);
	if (error)
		return dc_cuda_error(c, error, "cuIpcGetMemHandle", reterr);
	if (w->handles_n == HANDLES_MAX)
		return dray_err_set(
			reterr, -1, DRAY_E_TOO_LARGE,
			"the ranges need more than %d handles, one for each allocation; make "
			"several regions",
			HANDLES_MAX);
	return 0;
}

/*
 * The driver exports whole pages. An allocation may begin inside a page; the export, from which
 * offsets count, then begins before it.
 */
static int share_dmabuf(const struct cuda_driver *c, struct described *w, const struct found *f,
			struct share *s, struct dray_err *reterr)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	cu_pointer base = f->at, end = f->end;
	int supported = 0, fd = -1;
	size_t bytes = 0;
	cu_result error;

	if (!c->range_handle ||
	    c->device_attribute(&supported, CU_DEVICE_DMABUF_SUPPORTED, f->device) || !supported)
		return refuse_unsupported(f, "cannot be shared as DMA-BUF by this GPU and driver",
					  reterr);
	if (!f->allocation) {
		error = c->address_range(&base, &bytes, f->at);
		if (error)
			return dc_cuda_error(c, error, "cuMemGetAddressRange", reterr);
		end = base + bytes;
	}
	base -= base % page;
	end += (page - end % page) % page;
	error = c->range_handle(&fd, base, end - base, CU_RANGE_DMABUF, 0);
	if (error)
		return dc_cuda_error(c, error, "cuMemGetHandleForAddressRange", reterr);
	s->base = base;
	s->bytes = end - base;
	return own_descriptor(w, s, fd, reterr);
}

/*
 * Shares by the first kind that works. On failure reports the error of the first kind that applies.
 */
static int share_by(const struct cuda_driver *c, struct described *w, const struct found *f,
		    const enum dray_kind *kinds, size_t kinds_n, struct share *s,
		    struct dray_err *reterr)
{
	struct dray_err first = DRAY_ERR_NULL;

	for (size_t i = 0; i < kinds_n; i++) {
		struct dray_err err = DRAY_ERR_NULL;
		int error = -1;

		s->kind = kinds[i];
		if (kinds[i] == DRAY_KIND_DMABUF)
			error = share_dmabuf(c, w, f, s, &err);
		else if (kinds[i] == DRAY_KIND_CUDA_VMM && f->allocation)
			error = share_vmm(c, w, f, s, &err);
		else if (kinds[i] == DRAY_KIND_CUDA_IPC && !f->allocation)
			error = share_ipc(c, w, f, s, &err);
		if (!error)
			return 0;
		s->fd = dray_close(s->fd);
		if (err.code && !first.code)
			first = err;
	}
	if (first.code)
		return dray_err_set(reterr, -1, first.code, "%s", first.msg);
	return refuse_unsupported(f,
				  f->allocation ? "is of cuMemCreate(): use kind cuda_vmm" :
						  "is not of cuMemCreate(): use kind cuda_ipc",
				  reterr);
}

struct walk {
	const struct cuda_driver *c;
	struct described *w;
	const enum dray_kind *kinds;
	size_t kinds_n;
	cu_device device; /* of the first allocation; -1 before that */
};

static int share_new(struct walk *k, struct found *f, const struct share *before,
		     struct dray_err *reterr)
{
	struct share s = { .fd = -1 };
	struct cuda_scope scope;
	int error = find(k->c, f, reterr);

	if (error)
		return error;
	s.continues = f->allocation;
	if (before && !s.continues)
		error = dray_err_set(reterr, -1, DRAY_E_INVALID,
				     "the allocations behind the range end at 0x%" PRIx64, f->at);
	else if (k->device >= 0 && k->device != f->device)
		error = dray_err_set(
			reterr, -1, DRAY_E_GPU_DEVICE,
			"memory at 0x%" PRIx64
			" is on device %d, the memory before it on %d: make a region for each",
			f->at, f->device, k->device);
	if (!error) {
		dc_cuda_enter(k->c, f->context, f->device, &scope);
		error = share_by(k->c, k->w, f, k->kinds, k->kinds_n, &s, reterr);
		dc_cuda_leave(k->c, &scope);
	}
	if (f->allocation)
		k->c->allocation_release(f->allocation);
	if (error)
		return error;
	k->device = f->device;
	k->w->shares[k->w->shares_n++] = s;
	k->w->fds_n += s.fd >= 0;
	k->w->handles_n += s.kind == DRAY_KIND_CUDA_IPC;
	k->w->dmabufs_n += s.kind == DRAY_KIND_DMABUF;
	return 0;
}

static const struct share *share_find(const struct described *w, cu_pointer at)
{
	for (uint32_t i = w->shares_n; i-- > 0;)
		if (w->shares[i].base <= at && at - w->shares[i].base < w->shares[i].bytes)
			return &w->shares[i];
	return NULL;
}

static int range_describe(struct walk *k, const struct dray_cuda_range *range,
			  struct dray_err *reterr)
{
	struct found f = { .at = range->address };
	const struct share *s = NULL;

	if (!range->length || __builtin_add_overflow(range->address, range->length, &f.end))
		return dray_err_set(reterr, -1, DRAY_E_INVALID,
				    "the range at 0x%" PRIx64
				    " is empty, or passes the end of memory",
				    range->address);
	while (f.at < f.end) {
		const struct share *before = s;
		uint64_t length;

		if (before && !before->continues)
			return dray_err_set(reterr, -1, DRAY_E_INVALID,
					    "the allocation behind the range ends at 0x%" PRIx64,
					    f.at);
		s = share_find(k->w, f.at);
		if (!s) {
			int error = share_new(k, &f, before, reterr);

			if (error)
				return error;
			s = &k->w->shares[k->w->shares_n - 1];
		}
		if (k->w->extents_n == DMSG_EXTENTS_MAX)
			return dray_err_set(reterr, -1, DRAY_E_TOO_LARGE, "more than %d extents",
					    DMSG_EXTENTS_MAX);
		length = dray_min(f.end - f.at, s->bytes - (f.at - s->base));
		k->w->extents[k->w->extents_n++] = (struct dray_extent){
			.kind = s->kind,
			.fd = s->fd,
			.offset = f.at - s->base,
			.length = length,
			.handle = s->kind == DRAY_KIND_CUDA_IPC ? &s->handle : NULL,
			.allocation = s->kind == DRAY_KIND_CUDA_VMM ? s->bytes : 0,
		};
		f.at += length;
	}
	return 0;
}

static int device_name(const struct cuda_driver *c, cu_device device, char ret[48],
		       struct dray_err *reterr)
{
	static const char pattern[] = "GPU-xxxx-xx-xx-xx-xxxxxx"; /* an x for each byte */
	struct cu_uuid uuid;
	cu_result error = c->device_uuid(&uuid, device);
	unsigned byte = 0;
	size_t n = 0;

	if (error)
		return dc_cuda_error(c, error, "cuDeviceGetUuid", reterr);
	for (const char *p = pattern; *p; p++)
		if (*p == 'x')
			n += (size_t)snprintf(ret + n, 48 - n, "%02x", uuid.bytes[byte++]);
		else
			ret[n++] = *p;
	ret[n] = '\0';
	return 0;
}

static const enum dray_kind default_kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_CUDA_IPC };

static int check_arguments(size_t ranges_n, const enum dray_kind *kinds, size_t kinds_n,
			   struct dray_err *reterr)
{
	if (!ranges_n)
		return dray_err_set(reterr, -1, DRAY_E_INVALID, "there are no ranges");
	for (size_t i = 0; kinds && i < kinds_n; i++)
		if (kinds[i] != DRAY_KIND_CUDA_VMM && kinds[i] != DRAY_KIND_CUDA_IPC &&
		    kinds[i] != DRAY_KIND_DMABUF)
			return dray_err_set(reterr, -1, DRAY_E_INVALID,
					    "kind %u is not a kind of GPU memory", kinds[i]);
	return 0;
}

static int describe(const struct cuda_driver *c, const struct dray_cuda_range *ranges,
		    size_t ranges_n, const enum dray_kind *kinds, size_t kinds_n,
		    struct dray_cuda_extents *ret, struct dray_err *reterr)
{
	struct described *w dray_auto(described_free) = calloc(1, sizeof(*w));
	struct dray_cuda_extents e = { .extents = NULL };
	struct walk k = { c, w, kinds, kinds_n, -1 };
	int error = 0;

	if (!w)
		return dray_err_set(reterr, -1, DRAY_E_NO_MEMORY, "no memory");
	if (!kinds) {
		k.kinds = default_kinds;
		k.kinds_n = DRAY_ARRAY_SIZE(default_kinds);
	}
	for (size_t i = 0; i < ranges_n && !error; i++)
		error = range_describe(&k, &ranges[i], reterr);
	if (!error && w->dmabufs_n && w->dmabufs_n != w->shares_n)
		error = dray_err_set(
			reterr, -1, DRAY_E_UNSUPPORTED,
			"%u of %u allocations can be shared only as dmabuf, which one region does "
			"not mix with other kinds: make several regions",
			w->dmabufs_n, w->shares_n);
	if (!error)
		error = device_name(c, k.device, e.device, reterr);
	if (error)
		return error;
	e.extents = w->extents;
	e.extents_n = w->extents_n;
	e.own = dray_take(w);
	*ret = e;
	return 0;
}

static int open_and_describe(const struct dray_cuda_range *ranges, size_t ranges_n,
			     const enum dray_kind *kinds, size_t kinds_n,
			     struct dray_cuda_extents *ret, struct dray_err *reterr)
{
	struct cuda_driver c;
	int error = check_arguments(ranges_n, kinds, kinds_n, reterr);

	if (error || dc_cuda_open(&c, reterr) < 0)
		return -1;
	error = describe(&c, ranges, ranges_n, kinds, kinds_n, ret, reterr);
	dc_cuda_close(&c);
	return error;
}

int dray_cuda_describe(const struct dray_cuda_range *ranges, size_t ranges_n,
		       const enum dray_kind *kinds, size_t kinds_n, struct dray_cuda_extents *ret,
		       char *why, size_t why_size)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (open_and_describe(ranges, ranges_n, kinds, kinds_n, ret, &err) == 0)
		return 0;
	return dc_cuda_why(&err, why, why_size);
}

void dray_cuda_extents_free(struct dray_cuda_extents *e)
{
	if (!e || !e->own)
		return;
	described_free(e->own);
	*e = (struct dray_cuda_extents){ .own = NULL };
}

int dray_cuda_region_add(struct dray *d, const struct dray_region_spec *spec,
			 const struct dray_cuda_range *ranges, size_t ranges_n,
			 const enum dray_kind *kinds, size_t kinds_n, dray_region *ret)
{
	struct dray_region_spec whole = *spec;
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_cuda_extents e;
	int error = dc_enter(d);

	if (error)
		return error;
	if (open_and_describe(ranges, ranges_n, kinds, kinds_n, &e, &err) < 0)
		return dc_fail_err(d, &err, DRAY_E_INTERNAL);
	whole.extents = e.extents;
	whole.extents_n = e.extents_n;
	whole.device = e.device;
	whole.pool_bytes = 0;
	error = dray_region_add(d, &whole, ret);
	dray_cuda_extents_free(&e);
	return error;
}
