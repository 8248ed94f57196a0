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

/* Each share has a descriptor or a handle, and a region limits the number of both. */
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

/* The description of ranges in progress. */
struct walk {
	const struct cuda_driver *c;
	struct described *w;
	const enum dray_kind *kinds;
	size_t kinds_n;
	cu_device device; /* of the first allocation; -1 before that */
	struct found f;
	struct dray_err *err;
};

/* The functions below return 0, or negative with k->err. */

#define refuse(k, code, ...) dray_err_set((k)->err, -1, (code), __VA_ARGS__)

static int refuse_unsupported(struct walk *k, const char *why)
{
	return refuse(k, DRAY_E_UNSUPPORTED, "memory at 0x%" PRIx64 " %s", k->f.at, why);
}

static int check(struct walk *k, cu_result error, const char *what)
{
	return dc_cuda_check(k->c, error, what, k->err);
}

static bool is_on_gpu(const struct walk *k, cu_device *ret)
{
	unsigned type = 0;

	return !k->c->pointer_attribute(&type, CU_ATTRIBUTE_MEMORY_TYPE, k->f.at) &&
	       type == CU_MEMORY_DEVICE &&
	       !k->c->pointer_attribute(ret, CU_ATTRIBUTE_DEVICE_ORDINAL, k->f.at);
}

static bool is_managed(const struct walk *k)
{
	int managed = 0;

	return !k->c->pointer_attribute(&managed, CU_ATTRIBUTE_IS_MANAGED, k->f.at) && managed;
}

static int refuse_absent(struct walk *k, int code)
{
	return refuse(k, code, "there is no memory of a GPU at 0x%" PRIx64, k->f.at);
}

/* Queries the driver for the allocation at k->f.at. */
static int find(struct walk *k)
{
	const struct cuda_driver *c = k->c;
	struct found *f = &k->f;
	void *address;

	if (!is_on_gpu(k, &f->device))
		return refuse_absent(k, DRAY_E_INVALID);
	if (is_managed(k))
		return refuse_unsupported(k, "is managed memory, which cannot be shared; use "
					     "cudaMalloc() or cuMemCreate()");
	if (c->pointer_attribute(&f->context, CU_ATTRIBUTE_CONTEXT, f->at))
		f->context = NULL;
	memcpy(&address, &f->at, sizeof(address));
	if (c->allocation_retain(&f->allocation, address))
		f->allocation = 0;
	return 0;
}

static bool is_part(const struct walk *k, cu_pointer p)
{
	cu_allocation other = 0;
	void *address;

	memcpy(&address, &p, sizeof(address));
	if (k->c->allocation_retain(&other, address))
		return false;
	k->c->allocation_release(other);
	return other == k->f.allocation;
}

static bool is_mapping(const struct walk *k, cu_pointer base, size_t bytes, struct share *ret)
{
	if (base > k->f.at || k->f.at - base >= bytes || !is_part(k, base) ||
	    !is_part(k, base + bytes - 1))
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
static int find_mapping(struct walk *k, struct share *s)
{
	const struct cuda_driver *c = k->c;
	cu_pointer base;
	size_t bytes;

	if (!c->pointer_attribute(&base, CU_ATTRIBUTE_MAPPING_BASE, k->f.at) &&
	    !c->pointer_attribute(&bytes, CU_ATTRIBUTE_MAPPING_SIZE, k->f.at) &&
	    is_mapping(k, base, bytes, s))
		return 0;
	if (!c->address_range(&base, &bytes, k->f.at) && is_mapping(k, base, bytes, s))
		return 0;
	return refuse_unsupported(
		k, "is mapped, but the driver does not report the bounds of its mapping");
}

static int own_descriptor(struct walk *k, struct share *s, int fd)
{
	s->fd = fd;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return refuse(k, DRAY_E_IO, "descriptor %d of the driver: %s", fd,
			      dray_errno_text(errno));
	if (k->w->fds_n == DMSG_FDS_MAX)
		return refuse(k, DRAY_E_FD_LIMIT,
			      "the ranges need more than %d descriptors, one for each allocation; "
			      "make several regions, or larger allocations",
			      DMSG_FDS_MAX);
	return 0;
}

static int share_vmm(struct walk *k, struct share *s)
{
	struct cu_allocation_prop prop = { 0 };
	int fd = -1;

	if (find_mapping(k, s) < 0 || check(k, k->c->allocation_prop(&prop, k->f.allocation),
					    "cuMemGetAllocationPropertiesFromHandle") < 0)
		return -1;
	if (!(prop.handle_types & CU_HANDLE_POSIX_FD))
		return refuse_unsupported(
			k,
			prop.handle_types & CU_HANDLE_FABRIC ?
				"exports fabric handles only: make it with a POSIX descriptor "
				"handle; PyTorch: take expandable_segments out of "
				"PYTORCH_CUDA_ALLOC_CONF, or keep /dev/nvidia-caps-imex-channels "
				"out of the container" :
				"was made without a handle for export: make it with "
				"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; PyTorch: set "
				"TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or take expandable_segments "
				"out of PYTORCH_CUDA_ALLOC_CONF");
	if (check(k, k->c->allocation_export(&fd, k->f.allocation, CU_HANDLE_POSIX_FD, 0),
		  "cuMemExportToShareableHandle") < 0)
		return -1;
	return own_descriptor(k, s, fd);
}

static int share_ipc(struct walk *k, struct share *s)
{
	const struct cuda_driver *c = k->c;
	int capable = 1;
	size_t bytes = 0;

	if (!c->pointer_attribute(&capable, CU_ATTRIBUTE_IS_LEGACY_IPC_CAPABLE, k->f.at) &&
	    !capable)
		return refuse_unsupported(k, "cannot be shared by a legacy IPC handle (memory of a "
					     "stream-ordered pool, cudaMallocAsync, never can); "
					     "use cudaMalloc() or cuMemCreate()");
	if (check(k, c->address_range(&s->base, &bytes, k->f.at), "cuMemGetAddressRange") < 0 ||
	    check(k, c->ipc_handle(&s->handle, s->base), "cuIpcGetMemHandle") < 0)
		return -1;
	s->bytes = bytes;
	if (k->w->handles_n == HANDLES_MAX)
		return refuse(k, DRAY_E_TOO_LARGE,
			      "the ranges need more than %d handles, one for each allocation; make "
			      "several regions",
			      HANDLES_MAX);
	return 0;
}

/*
 * The driver exports whole pages. An allocation may begin inside a page; the export, from which
 * offsets count, then begins before it.
 */
static int share_dmabuf(struct walk *k, struct share *s)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const struct cuda_driver *c = k->c;
	cu_pointer base = k->f.at, end = k->f.end;
	int supported = 0, fd = -1;
	size_t bytes = 0;

	if (!c->range_handle ||
	    c->device_attribute(&supported, CU_DEVICE_DMABUF_SUPPORTED, k->f.device) || !supported)
		return refuse_unsupported(k, "cannot be shared as DMA-BUF by this GPU and driver");
	if (!k->f.allocation) {
		if (check(k, c->address_range(&base, &bytes, k->f.at), "cuMemGetAddressRange") < 0)
			return -1;
		end = base + bytes;
	}
	base -= base % page;
	end += (page - end % page) % page;
	if (check(k, c->range_handle(&fd, base, end - base, CU_RANGE_DMABUF, 0),
		  "cuMemGetHandleForAddressRange") < 0)
		return -1;
	s->base = base;
	s->bytes = end - base;
	return own_descriptor(k, s, fd);
}

/* Shares by the first kind that works. On failure, k->err is of the first kind that applies. */
static int share_by_kinds(struct walk *k, struct share *s)
{
	bool vmm = k->f.allocation;

	for (size_t i = 0; i < k->kinds_n; i++) {
		int error = -1;

		s->kind = k->kinds[i];
		if (s->kind == DRAY_KIND_DMABUF)
			error = share_dmabuf(k, s);
		else if (s->kind == DRAY_KIND_CUDA_VMM && vmm)
			error = share_vmm(k, s);
		else if (s->kind == DRAY_KIND_CUDA_IPC && !vmm)
			error = share_ipc(k, s);
		if (!error) {
			*k->err = DRAY_ERR_NULL;
			return 0;
		}
		s->fd = dray_close(s->fd);
	}
	return refuse_unsupported(k, vmm ? "is of cuMemCreate(): use kind cuda_vmm" :
					   "is not of cuMemCreate(): use kind cuda_ipc");
}

static int share_new(struct walk *k, const struct share *before)
{
	struct share s = { .fd = -1 };
	struct cuda_scope scope;
	int error = find(k);

	if (error)
		return error;
	s.continues = k->f.allocation;
	if (before && !s.continues) {
		error = refuse(k, DRAY_E_INVALID,
			       "the allocations behind the range end at 0x%" PRIx64, k->f.at);
	} else if (k->device >= 0 && k->device != k->f.device) {
		error = refuse(
			k, DRAY_E_GPU_DEVICE,
			"memory at 0x%" PRIx64
			" is on device %d, the memory before it on %d: make a region for each",
			k->f.at, k->f.device, k->device);
	} else {
		dc_cuda_enter(k->c, k->f.context, k->f.device, &scope);
		error = share_by_kinds(k, &s);
		dc_cuda_leave(k->c, &scope);
	}
	if (k->f.allocation)
		k->c->allocation_release(k->f.allocation);
	if (error)
		return error;
	k->device = k->f.device;
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

static int range_describe(struct walk *k, const struct dray_cuda_range *range)
{
	struct described *w = k->w;
	struct found *f = &k->f;
	const struct share *s = NULL;

	*f = (struct found){ .at = range->address };
	if (!range->length || __builtin_add_overflow(range->address, range->length, &f->end))
		return refuse(k, DRAY_E_INVALID,
			      "the range at 0x%" PRIx64 " is empty, or passes the end of memory",
			      range->address);
	while (f->at < f->end) {
		const struct share *before = s;
		uint64_t length;

		if (before && !before->continues)
			return refuse(k, DRAY_E_INVALID,
				      "the allocation behind the range ends at 0x%" PRIx64, f->at);
		s = share_find(w, f->at);
		if (!s) {
			if (share_new(k, before) < 0)
				return -1;
			s = &w->shares[w->shares_n - 1];
		}
		if (w->extents_n == DMSG_EXTENTS_MAX)
			return refuse(k, DRAY_E_TOO_LARGE, "more than %d extents",
				      DMSG_EXTENTS_MAX);
		length = dray_min(f->end - f->at, s->bytes - (f->at - s->base));
		w->extents[w->extents_n++] = (struct dray_extent){
			.kind = s->kind,
			.fd = s->fd,
			.offset = f->at - s->base,
			.length = length,
			.handle = s->kind == DRAY_KIND_CUDA_IPC ? &s->handle : NULL,
			.allocation = s->kind == DRAY_KIND_CUDA_VMM ? s->bytes : 0,
		};
		f->at += length;
	}
	return 0;
}

static int device_name(struct walk *k, char ret[48])
{
	static const char pattern[] = "GPU-xxxx-xx-xx-xx-xxxxxx"; /* an x for each byte */
	struct cu_uuid uuid;
	unsigned byte = 0;
	size_t n = 0;

	if (check(k, k->c->device_uuid(&uuid, k->device), "cuDeviceGetUuid") < 0)
		return -1;
	for (const char *p = pattern; *p; p++)
		if (*p == 'x')
			n += (size_t)snprintf(ret + n, 48 - n, "%02x", uuid.bytes[byte++]);
		else
			ret[n++] = *p;
	ret[n] = '\0';
	return 0;
}

static const enum dray_kind default_kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_CUDA_IPC };

static int describe(const struct cuda_driver *c, const struct dray_cuda_range *ranges,
		    size_t ranges_n, const enum dray_kind *kinds, size_t kinds_n,
		    struct dray_cuda_extents *ret, struct dray_err *reterr)
{
	struct described *w dray_auto(described_free) = calloc(1, sizeof(*w));
	struct dray_cuda_extents e = { .extents = NULL };
	struct walk k = {
		.c = c,
		.w = w,
		.kinds = kinds ? kinds : default_kinds,
		.kinds_n = kinds ? kinds_n : DRAY_ARRAY_SIZE(default_kinds),
		.device = -1,
		.err = reterr,
	};

	if (!w)
		return refuse(&k, DRAY_E_NO_MEMORY, "no memory");
	for (size_t i = 0; i < ranges_n; i++)
		if (range_describe(&k, &ranges[i]) < 0)
			return -1;
	if (w->dmabufs_n && w->dmabufs_n != w->shares_n)
		return refuse(&k, DRAY_E_UNSUPPORTED,
			      "%u of %u allocations can be shared only as dmabuf, which one region "
			      "does not mix with other kinds: make several regions",
			      w->dmabufs_n, w->shares_n);
	if (device_name(&k, e.device) < 0)
		return -1;
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
	int error;

	if (!ranges_n)
		return dray_err_set(reterr, -1, DRAY_E_INVALID, "there are no ranges");
	for (size_t i = 0; kinds && i < kinds_n; i++)
		if (kinds[i] != DRAY_KIND_CUDA_VMM && kinds[i] != DRAY_KIND_CUDA_IPC &&
		    kinds[i] != DRAY_KIND_DMABUF)
			return dray_err_set(reterr, -1, DRAY_E_INVALID,
					    "kind %u is not a kind of GPU memory", kinds[i]);
	if (dc_cuda_open(&c, reterr) < 0)
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

/* Base and size of the allocation at k->f.at. */
static int bounds(struct walk *k, struct share *ret)
{
	size_t bytes = 0;
	int error;

	if (k->f.allocation)
		return find_mapping(k, ret);
	error = check(k, k->c->address_range(&ret->base, &bytes, k->f.at), "cuMemGetAddressRange");
	ret->bytes = bytes;
	return error;
}

static int allocation_find(struct walk *k, struct dray_cuda_allocation *ret)
{
	struct dray_cuda_allocation a = { 0 };
	struct share s = { .fd = -1 };
	struct cuda_scope scope;
	int error;

	if (!is_on_gpu(k, &k->f.device) || is_managed(k))
		return refuse_absent(k, DRAY_E_NOT_FOUND);
	if (find(k) < 0)
		return -1;
	dc_cuda_enter(k->c, k->f.context, k->f.device, &scope);
	error = bounds(k, &s);
	if (k->c->pointer_attribute(&a.id, CU_ATTRIBUTE_BUFFER_ID, k->f.at))
		a.id = 0;
	dc_cuda_leave(k->c, &scope);
	if (k->f.allocation)
		k->c->allocation_release(k->f.allocation);
	a.address = s.base;
	a.length = s.bytes;
	if (!error)
		*ret = a;
	return error;
}

int dray_cuda_find(uint64_t address, struct dray_cuda_allocation *ret, char *why, size_t why_size)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct cuda_driver c;
	struct walk k = { .c = &c, .f = { .at = address }, .err = &err };
	int error;

	if (!dc_cuda_is_loaded()) {
		error = refuse_absent(&k, DRAY_E_NOT_FOUND);
	} else {
		error = dc_cuda_open(&c, &err);
		if (!error) {
			error = allocation_find(&k, ret);
			dc_cuda_close(&c);
		}
	}
	return error ? dc_cuda_why(&err, why, why_size) : 0;
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
	int error;

	if (dc_is_inherited(d))
		return -DRAY_E_OUT_OF_ORDER;
	if (open_and_describe(ranges, ranges_n, kinds, kinds_n, &e, &err) < 0)
		return dc_fail(d, err.code, "%s", err.msg);
	whole.extents = e.extents;
	whole.extents_n = e.extents_n;
	whole.device = e.device;
	whole.pool_bytes = 0;
	error = dray_region_add(d, &whole, ret);
	dray_cuda_extents_free(&e);
	return error;
}
