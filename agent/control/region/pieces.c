/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the extents of a REGION_ADD that need no descriptor. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/region/extents.h"
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
				    "the request has no extents; a region needs at least one");
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

/* Refuses fields that only other kinds of memory have. */
static int check_fields(const struct dmsg_region_add *m, enum dmsg_kind kind,
			struct dray_err *reterr)
{
	enum region_memory memory = memory_of(kind);
	const char *field = NULL, *kinds = "GPU memory";

	if (memory == REGION_HOST && m->device.n) {
		field = "device is";
	} else if (memory != REGION_GPU && m->handles.n) {
		field = "handles are";
		kinds = "kind cuda_ipc";
	} else if (memory != REGION_GPU && m->allocations.n) {
		field = "sizes of allocations are";
		kinds = "kind cuda_vmm";
	} else if (kind != DMSG_KIND_POOL && m->flags & DMSG_REGION_FLAG_HUGE) {
		field = "flag huge is";
		kinds = "pools";
	}
	if (!field)
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "%s for %s, and the extents are of kind %s; leave it out", field, kinds,
			    dmsg_kind_name(kind));
}

int extents_check(const struct dmsg_region_add *m, enum dmsg_kind *ret_kind,
		  enum region_memory *ret_memory, struct dray_err *reterr)
{
	uint64_t length;
	int r = extents_length(m, &length, reterr);
	enum dmsg_kind kind;

	if (r < 0)
		return r;
	kind = *ret_kind = (enum dmsg_kind)extent_at(m, 0).kind;
	*ret_memory = memory_of(kind);
	for (uint32_t i = 1; i < m->extents.n; i++) {
		enum dmsg_kind other = (enum dmsg_kind)extent_at(m, i).kind;

		if (kind == DMSG_KIND_POOL || other == DMSG_KIND_POOL)
			return pieces_refuse(reterr, DRAY_E_INVALID, i,
					     "a pool is the only extent of its region");
		if (memory_of(other) != *ret_memory)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"extent %" PRIu32
				" is of kind %s and extent 0 of %s: the extents of "
				"a region are all memfd, all dmabuf, or all on one GPU; add a region "
				"for each",
				i, dmsg_kind_name(other), dmsg_kind_name(kind));
	}
	return check_fields(m, kind, reterr);
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
					     ipc ? "fd_index is beyond the handles of the message" :
						   "fd_index is beyond the descriptors of the "
						   "message");
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
