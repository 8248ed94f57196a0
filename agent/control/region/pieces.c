/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/pieces.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

int pieces_refuse(struct dray_err *reterr, int code, uint32_t index, const char *why)
{
	return dray_err_set(reterr, -EINVAL, code, "extent %" PRIu32 ": %s", index, why);
}

static struct dmsg_extent extent_at(const struct dmsg_region_add *m, uint32_t i)
{
	struct dmsg_extent e;

	dmsg_extent_get(m->extents.p + (size_t)i * DMSG_EXTENT_SIZE, &e);
	return e;
}

int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr)
{
	uint64_t sum = 0;

	if (!m->extents.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "a region has at least one extent");
	for (uint32_t i = 0; i < m->extents.n; i++) {
		struct dmsg_extent e = extent_at(m, i);

		if (!e.length)
			return pieces_refuse(reterr, DRAY_E_INVALID, i, "its length is 0");
		if (e.offset > INT64_MAX || e.length > INT64_MAX - e.offset)
			return pieces_refuse(reterr, DRAY_E_RANGE, i, "offset and length overflow");
		if (__builtin_add_overflow(sum, e.length, &sum) || sum > INT64_MAX)
			return pieces_refuse(reterr, DRAY_E_RANGE, i,
					     "the sum of the lengths overflows");
	}
	*ret_length = sum;
	return 0;
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

/* Refuses a field that only other kinds of memory have. */
static int check_field(bool wrong, const char *field, const char *kinds, enum dmsg_kind kind,
		       struct dray_err *reterr)
{
	if (!wrong)
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "%s for %s, and extents are of kind %s; leave it out", field, kinds,
			    dmsg_kind_name(kind));
}

int extents_memory(const struct dmsg_region_add *m, enum region_memory *ret,
		   enum dmsg_kind *ret_kind, struct dray_err *reterr)
{
	enum dmsg_kind kind = (enum dmsg_kind)extent_at(m, 0).kind;
	int r;

	*ret_kind = kind;
	*ret = memory_of(kind);
	for (uint32_t i = 1; i < m->extents.n; i++) {
		enum dmsg_kind other = (enum dmsg_kind)extent_at(m, i).kind;

		if (kind == DMSG_KIND_POOL || other == DMSG_KIND_POOL)
			return pieces_refuse(reterr, DRAY_E_INVALID, i,
					     "a pool is the only extent of its region");
		if (memory_of(other) != *ret)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"extent %" PRIu32
				" is of kind %s and others of %s: a region is all "
				"memfd, all dmabuf, or all cuda_ipc and cuda_vmm of one "
				"GPU; add one for each",
				i, dmsg_kind_name(other), dmsg_kind_name(kind));
	}
	r = check_field(*ret == REGION_HOST && m->device.n, "device is", "GPU memory", kind,
			reterr);
	if (r >= 0)
		r = check_field(*ret != REGION_GPU && m->handles.n, "handles are", "kind cuda_ipc",
				kind, reterr);
	if (r >= 0)
		r = check_field(*ret != REGION_GPU && m->allocations.n, "sizes of allocations are",
				"kind cuda_vmm", kind, reterr);
	return r;
}

static int check_used(const bool *used, unsigned n, const char *what, int code,
		      struct dray_err *reterr)
{
	for (unsigned i = 0; i < n; i++)
		if (!used[i])
			return dray_err_set(reterr, -EINVAL, code,
					    "%s %u of %u belongs to no extent", what, i, n);
	return 0;
}

int pieces_read(const struct dmsg_region_add *m, unsigned n_fds, unsigned n_handles,
		struct piece **ret, struct dray_err *reterr)
{
	struct piece *v dray_auto_free = calloc(m->extents.n, sizeof(*v));
	bool *used dray_auto_free = calloc(n_fds + n_handles + 1, sizeof(*used));
	int r;

	if (!v || !used)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (uint32_t i = 0; i < m->extents.n; i++) {
		struct dmsg_extent e = extent_at(m, i);
		bool ipc = e.kind == DMSG_KIND_CUDA_IPC;

		if (e.fd_index >= (ipc ? n_handles : n_fds))
			return pieces_refuse(reterr, ipc ? DRAY_E_INVALID : DRAY_E_FD_COUNT, i,
					     ipc ? "fd_index is not that of a handle that came "
						   "with the message" :
						   "fd_index is not that of a descriptor that "
						   "came with the message");
		v[i] = (struct piece){ e.offset, e.length, e.fd_index + (ipc ? n_fds : 0), i };
		used[v[i].part] = true;
	}
	r = check_used(used, n_fds, "descriptor", DRAY_E_FD_COUNT, reterr);
	if (r >= 0)
		r = check_used(used + n_fds, n_handles, "handle", DRAY_E_INVALID, reterr);
	if (r >= 0)
		*ret = dray_take(v);
	return r;
}

void pieces_join(struct piece *v, uint32_t n, const struct file_id *ids)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = 0, part = v[i].part;

		while (ids[k].dev != ids[part].dev || ids[k].ino != ids[part].ino)
			k++;
		v[i].part = k;
	}
}

static int compare_places(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->part != y->part ? dray_compare(x->part, y->part) :
				    dray_compare(x->offset, y->offset);
}

static int compare_indexes(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return dray_compare(x->index, y->index);
}

void pieces_by_place(struct piece *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), compare_places);
}

void pieces_by_index(struct piece *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), compare_indexes);
}

int pieces_check_overlap(const struct piece *v, uint32_t n, struct dray_err *reterr)
{
	for (uint32_t i = 1; i < n; i++)
		if (v[i].part == v[i - 1].part && v[i].offset < v[i - 1].offset + v[i - 1].length)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "extents %" PRIu32 " and %" PRIu32
					    " overlap, which is allowed for reading only",
					    v[i - 1].index, v[i].index);
	return 0;
}
