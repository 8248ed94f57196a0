/* SPDX-License-Identifier: Apache-2.0 */
/* The extents of a new region: checked, duplicated, populated, and in wire form. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "lib/cleanup.h"

static bool is_cuda(enum dray_kind kind)
{
	return kind == DRAY_KIND_CUDA_IPC || kind == DRAY_KIND_CUDA_VMM;
}

static int check_extent(struct dray *d, const struct dray_region_spec *s, size_t i)
{
	const struct dray_extent *e = &s->extents[i];

	if (!dmsg_kind_valid(e->kind) || (int)e->kind == DMSG_KIND_POOL)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu has the unknown kind %u", i, e->kind);
	if (!e->length)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu is empty", i);
	if (e->kind == DRAY_KIND_CUDA_IPC && !e->handle)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu has no handle", i);
	if (is_cuda(e->kind) && (!s->device || !*s->device))
		return dc_fail(d, DRAY_E_INVALID, "extent %zu is GPU memory: device is missing", i);
	return 0;
}

int dc_extents_check(struct dray *d, const struct dray_region_spec *s)
{
	const unsigned int unknown =
		s->flags & ~(DRAY_REGION_HUGE | DRAY_REGION_NO_POPULATE | DRAY_REGION_WAIT);
	int error = 0;

	if (!s->access || (s->access & ~DMSG_ACCESS_ALL))
		return dc_fail(d, DRAY_E_INVALID, "access is 0x%x", s->access);
	if (unknown)
		return dc_fail(d, DRAY_E_UNSUPPORTED, "flags has unknown bits 0x%x", unknown);
	if (s->name && strlen(s->name) > NAME_MAX_BYTES)
		return dc_fail(d, DRAY_E_TOO_LARGE, "name is over %d bytes", NAME_MAX_BYTES);
	if (s->device && strlen(s->device) > NAME_MAX_BYTES)
		return dc_fail(d, DRAY_E_TOO_LARGE, "device is over %d bytes", NAME_MAX_BYTES);
	if (!s->pool_bytes == !s->extents_n || (s->extents_n && !s->extents))
		return dc_fail(d, DRAY_E_INVALID, "a region needs either extents or pool_bytes");
	if (s->extents_n > DMSG_EXTENTS_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%zu extents, the limit is %d", s->extents_n,
			       DMSG_EXTENTS_MAX);
	for (size_t i = 0; i < s->extents_n && !error; i++)
		error = check_extent(d, s, i);
	return error;
}

int dc_extents_populate(struct dray *d, const struct dray_region_spec *s)
{
	struct dray_err err = DRAY_ERR_NULL;

	for (size_t i = 0; i < s->extents_n; i++) {
		const struct dray_extent *e = &s->extents[i];

		if (e->kind != DRAY_KIND_CUDA_IPC && fcntl(e->fd, F_GETFD) < 0)
			return dc_fail(d, DRAY_E_INVALID, "descriptor %d of extent %zu: %s", e->fd,
				       i, dray_errno_text(errno));
		if (e->kind == DRAY_KIND_MEMFD && !(s->flags & DRAY_REGION_NO_POPULATE) &&
		    dc_memory_populate(e->fd, e->offset, e->length, &err) < 0)
			return dc_fail(d, err.code, "%s", err.msg);
	}
	return 0;
}

/* Notes the size of extent i's allocation, which other extents of its descriptor may leave out. */
static int add_allocation(struct dray *d, struct region *g, uint32_t fd, uint64_t bytes, size_t i)
{
	uint8_t *at = g->allocations + fd * DMSG_ALLOCATION_SIZE;
	uint64_t known = dray_le_get64(at);

	if (!bytes)
		return (int)fd;
	if (known && known != bytes)
		return dc_fail(
			d, DRAY_E_INVALID,
			"extent %zu is in an allocation of %llu bytes, others of its descriptor in "
			"one of %llu",
			i, (unsigned long long)bytes, (unsigned long long)known);
	dmsg_allocation_put(at, &(struct dmsg_allocation){ bytes });
	g->has_sizes = true;
	return (int)fd;
}

/* Index of a duplicate of extent i's descriptor, shared with earlier extents; or a negated code. */
static int add_fd(struct dray *d, struct region *g, const struct dray_extent *e, size_t i)
{
	int fd;

	for (size_t k = 0; k < i; k++)
		if (e[k].kind != DRAY_KIND_CUDA_IPC && e[k].fd == e[i].fd)
			return add_allocation(d, g,
					      dray_le_get16(g->extents + k * DMSG_EXTENT_SIZE + 2),
					      e[i].allocation, i);
	if (g->fds_n == DMSG_FDS_MAX)
		return dc_fail(d, DRAY_E_FD_LIMIT, "more than %d descriptors", DMSG_FDS_MAX);
	fd = fcntl(e[i].fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return dc_fail(d, dc_code_of_errno(errno), "descriptor %d of extent %zu: %s",
			       e[i].fd, i, dray_errno_text(errno));
	g->fds[g->fds_n] = fd;
	return add_allocation(d, g, g->fds_n++, e[i].allocation, i);
}

/* Index of a copy of the handle, shared with earlier extents; or a negated code. */
static int add_handle(struct dray *d, struct region *g, const void *handle)
{
	uint32_t k;

	for (k = 0; k < g->handles_n; k++)
		if (!memcmp(g->handles + k * DRAY_CUDA_IPC_BYTES, handle, DRAY_CUDA_IPC_BYTES))
			return (int)k;
	if (k == HANDLES_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "more than %d handles", HANDLES_MAX);
	memcpy(g->handles + k * DRAY_CUDA_IPC_BYTES, handle, DRAY_CUDA_IPC_BYTES);
	g->handles_n++;
	return (int)k;
}

static int take_extent(struct dray *d, struct region *g, const struct dray_region_spec *s, size_t i)
{
	const struct dray_extent *e = &s->extents[i];
	int index = e->kind == DRAY_KIND_CUDA_IPC ? add_handle(d, g, e->handle) :
						    add_fd(d, g, s->extents, i);

	if (index < 0)
		return index;
	g->needs_gpu |= is_cuda(e->kind);
	dmsg_extent_put(g->extents + i * DMSG_EXTENT_SIZE,
			&(struct dmsg_extent){ (uint16_t)e->kind, (uint16_t)index, 0, e->offset,
					       e->length });
	if (__builtin_add_overflow(g->length, e->length, &g->length))
		return dc_fail(d, DRAY_E_RANGE, "the extents are over 2^64 bytes");
	return 0;
}

static void take_pool(struct region *g, const struct dray_region_spec *s)
{
	g->is_pool = true;
	g->flags = s->flags & DRAY_REGION_HUGE ? DMSG_REGION_FLAG_HUGE : 0;
	g->length = s->pool_bytes;
	dmsg_extent_put(g->extents,
			&(struct dmsg_extent){ DMSG_KIND_POOL, UINT16_MAX, 0, 0, s->pool_bytes });
}

int dc_extents_take(struct dray *d, struct region *g, const struct dray_region_spec *s)
{
	size_t fds = dray_min(s->extents_n, (size_t)DMSG_FDS_MAX), handles = 0;
	int error = 0;

	for (size_t i = 0; i < s->extents_n; i++)
		handles += s->extents[i].kind == DRAY_KIND_CUDA_IPC;
	g->extents_n = s->pool_bytes ? 1 : (uint32_t)s->extents_n;
	g->extents = calloc(g->extents_n, DMSG_EXTENT_SIZE);
	g->fds = calloc(fds + 1, sizeof(*g->fds));
	g->handles = calloc(dray_min(handles, (size_t)HANDLES_MAX) + 1, DRAY_CUDA_IPC_BYTES);
	g->allocations = calloc(fds + 1, DMSG_ALLOCATION_SIZE);
	if (!g->extents || !g->fds || !g->handles || !g->allocations)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
	if (s->pool_bytes)
		take_pool(g, s);
	for (size_t i = 0; i < s->extents_n && !error; i++)
		error = take_extent(d, g, s, i);
	return error;
}
