/* SPDX-License-Identifier: Apache-2.0 */
/* Extents in GPU memory. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/region/extents.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

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

static int parts_new(const struct region_spec *spec, const struct piece *v, unsigned n,
		     struct gpu_part **ret, struct dray_err *reterr)
{
	struct gpu_part *parts dray_auto_free = calloc(n, sizeof(*parts));

	if (!parts)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (uint32_t i = 0; i < spec->m->extents.n; i++) {
		uint64_t *bytes = &parts[v[i].part].spec.bytes;

		*bytes = dray_max(*bytes, v[i].offset + v[i].length);
	}
	for (unsigned i = 0; i < n; i++) {
		struct gpu_import_spec *s = &parts[i].spec;

		s->write = spec->m->access & DMSG_ACCESS_WRITE;
		if (i >= spec->n_fds) {
			s->kind = GPU_IMPORT_IPC;
			s->fd = -1;
			memcpy(s->handle, spec->m->handles.p + (i - spec->n_fds) * GPU_HANDLE_BYTES,
			       GPU_HANDLE_BYTES);
			continue;
		}
		s->kind = GPU_IMPORT_VMM;
		s->fd = spec->fds[i];
		s->allocation = allocation_at(spec->m, i);
		if (s->allocation && s->allocation < s->bytes)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extents of descriptor %u end at %" PRIu64
					    ", its allocation has %" PRIu64 " bytes",
					    i, s->bytes, s->allocation);
	}
	*ret = dray_take(parts);
	return 0;
}

int extents_read_gpu(const struct region_spec *spec, struct extents *e, struct gpu_part **ret_parts,
		     unsigned *ret_n, struct dray_err *reterr)
{
	unsigned n_handles = spec->m->handles.n / GPU_HANDLE_BYTES;
	struct piece *pieces dray_auto_free = NULL;
	int r = check_handles(spec->m, spec->n_fds, reterr);

	*ret_n = spec->n_fds + n_handles;
	if (r >= 0)
		r = pieces_read(spec->m, spec->n_fds, n_handles, &pieces, reterr);
	if (r >= 0)
		r = extents_init(e, pieces, spec->m, reterr);
	if (r >= 0)
		r = parts_new(spec, pieces, *ret_n, ret_parts, reterr);
	if (r < 0)
		return r;
	e->open = calloc((size_t)*ret_n + 1, sizeof(*e->open));
	if (!e->open)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	e->view->memory = REGION_GPU;
	e->view->n_parts = *ret_n;
	e->view->open = e->open;
	return 0;
}

void extents_part_opened(struct extents *e, unsigned device, unsigned part, uint64_t address)
{
	struct region_view *v = e->view;

	/* workers that use an earlier part read it */
	if (v->gpu != device)
		v->gpu = (uint8_t)device;
	for (uint32_t i = 0; i < v->n_extents; i++)
		if (v->extents[i].part == part)
			v->extents[i].base = (uint8_t *)(uintptr_t)(address + e->dmabufs[i].offset);
	__atomic_store_n(&v->open[part], 1, __ATOMIC_RELEASE);
}

void extents_opened(struct extents *e, const struct gpu_part *parts)
{
	for (uint32_t i = 0; i < e->view->n_extents; i++)
		e->dmabufs[i].fd = parts[e->view->extents[i].part].dmabuf;
	__atomic_store_n(&e->view->open[e->view->n_parts], 1, __ATOMIC_RELEASE);
}
