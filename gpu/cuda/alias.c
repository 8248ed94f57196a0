/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC memory is opened in each context separately and has another address in each; the agent knows only the one
 * of its own device. A table in GPU memory translates for the copy kernel. VMM memory has the same address in all
 * contexts, and copy engines accept the first address everywhere.
 */
#include <errno.h>
#include <stdlib.h>

#include "gpu/cuda/copy.h"
#include "gpu/cuda/plugin.h"
#include "schema/gen/errors.h"

static CUresult entry_write(const struct cuda_context *c, uint32_t slot,
			    const struct copy_alias *entry)
{
	CUdeviceptr at = c->aliases + slot * sizeof(*entry);
	size_t range = offsetof(struct copy_alias, distance);
	CUresult r = CUDA_SUCCESS;

	/* first, so that a kernel that finds the range reads the right distance */
	if (entry->end)
		r = cuda.memcpy_to_device(at + range, &entry->distance, sizeof(*entry) - range);
	if (r == CUDA_SUCCESS)
		r = cuda.memcpy_to_device(at, entry, range);
	/* a copy from pageable memory may return before it has arrived, and queues do not wait for this stream */
	return r == CUDA_SUCCESS ? cuda.stream_synchronize(NULL) : r;
}

static CUresult table_make(struct cuda_context *c)
{
	if (!c->alias_used)
		c->alias_used = calloc(COPY_ALIASES_MAX, sizeof(*c->alias_used));
	if (!c->alias_used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return cuda.mem_alloc(&c->aliases, COPY_ALIASES_MAX * sizeof(struct copy_alias));
}

int cuda_alias_add(struct cuda_context *c, uint64_t begin, uint64_t bytes, uint64_t address,
		   uint32_t *ret_slot, struct dray_err *reterr)
{
	struct copy_alias entry = { begin, begin + bytes, address - begin, 0 };
	CUresult r = CUDA_SUCCESS;
	uint32_t slot = 0;

	if (!c->aliases)
		r = table_make(c);
	if (r != CUDA_SUCCESS)
		return cuda_fail(reterr, r, "the table of peers' memory cannot be made on the GPU");
	while (slot < COPY_ALIASES_MAX && c->alias_used[slot])
		slot++;
	if (slot == COPY_ALIASES_MAX)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "a GPU reaches at most %d CUDA IPC allocations of its peers: "
				    "use fewer and larger ones, or kind cuda_vmm",
				    COPY_ALIASES_MAX);
	r = entry_write(c, slot, &entry);
	if (r != CUDA_SUCCESS)
		return cuda_fail(reterr, r, "the table of peers' memory cannot be written");
	c->alias_used[slot] = true;
	*ret_slot = slot;
	if (slot >= c->n_aliases)
		c->n_aliases = slot + 1;
	return 0;
}

void cuda_alias_del(struct cuda_context *c, uint32_t slot)
{
	static const struct copy_alias none;
	uint32_t n;

	/* a failure means that the context is lost, and every copy fails too */
	entry_write(c, slot, &none);
	c->alias_used[slot] = false;
	for (n = c->n_aliases; n && !c->alias_used[n - 1];)
		n--;
	c->n_aliases = n;
}
