/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC memory is opened in each context separately and has another address in each; the agent knows only the one
 * of its own device. A table in GPU memory translates for the copy kernel, and a sorted one in host memory for copy engines,
 * which accept the first address everywhere, but for which the driver then takes 16 us for each piece instead of 0.6 (H100, CUDA
 * 13). VMM memory has the same address in all contexts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/copy.h"
#include "gpu/cuda/plugin.h"
#include "schema/gen/errors.h"

static cudaError_t entry_write(const struct cuda_context *c, uint32_t slot,
			       const struct copy_alias *entry)
{
	struct copy_alias *at = &c->aliases[slot];
	size_t range = offsetof(struct copy_alias, distance);
	cudaError_t r = cudaSuccess;

	/* first, so that a kernel that finds the range reads the right distance */
	if (entry->end)
		r = cudaMemcpy(&at->distance, &entry->distance, sizeof(*entry) - range,
			       cudaMemcpyHostToDevice);
	if (r == cudaSuccess)
		r = cudaMemcpy(at, entry, range, cudaMemcpyHostToDevice);
	/* a copy from pageable memory may return before it has arrived, and queues do not wait for this stream */
	return r == cudaSuccess ? cudaStreamSynchronize(NULL) : r;
}

static cudaError_t table_make(struct cuda_context *c)
{
	void *aliases;
	cudaError_t r;

	if (!c->alias_used)
		c->alias_used = calloc(COPY_ALIASES_MAX, sizeof(*c->alias_used));
	if (!c->views)
		c->views = calloc(COPY_ALIASES_MAX, sizeof(*c->views));
	if (!c->alias_used || !c->views)
		return cudaErrorMemoryAllocation;
	r = cudaMalloc(&aliases, COPY_ALIASES_MAX * sizeof(*c->aliases));
	if (r == cudaSuccess)
		c->aliases = aliases;
	return r;
}

/* The number of views that begin at the address or below it. */
static unsigned views_below(const struct cuda_context *c, uint64_t address)
{
	unsigned low = 0, high = c->n_views;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (c->views[middle].begin <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void view_add(struct cuda_context *c, const struct cuda_view *view)
{
	unsigned at;

	pthread_mutex_lock(&c->views_lock);
	at = views_below(c, view->begin);
	memmove(&c->views[at + 1], &c->views[at], (c->n_views - at) * sizeof(*view));
	c->views[at] = *view;
	c->n_views++;
	pthread_mutex_unlock(&c->views_lock);
}

static void view_del(struct cuda_context *c, uint32_t slot)
{
	unsigned at = 0;

	pthread_mutex_lock(&c->views_lock);
	while (c->views[at].slot != slot)
		at++;
	c->n_views--;
	memmove(&c->views[at], &c->views[at + 1], (c->n_views - at) * sizeof(*c->views));
	pthread_mutex_unlock(&c->views_lock);
}

void cuda_alias_translate(struct cuda_context *c, void **v, size_t n)
{
	const struct cuda_view *view = NULL;

	/* includes every import that the agent knew when it submitted the copy */
	if (!c->n_aliases)
		return;
	pthread_mutex_lock(&c->views_lock);
	for (size_t i = 0; i < n; i++) {
		uint64_t address = cuda_address(v[i]);
		unsigned below;

		/* neighbours in a list mostly lie in one allocation */
		if (!view || address < view->begin || address >= view->end) {
			below = views_below(c, address);
			view = below ? &c->views[below - 1] : NULL;
		}
		if (view && address < view->end)
			v[i] = cuda_pointer(address + view->distance);
	}
	pthread_mutex_unlock(&c->views_lock);
}

int cuda_alias_add(struct cuda_context *c, uint64_t begin, uint64_t bytes, uint64_t address,
		   uint32_t *ret_slot, struct dray_err *reterr)
{
	struct copy_alias entry = { begin, begin + bytes, address - begin, 0 };
	cudaError_t r = cudaSuccess;
	uint32_t slot = 0;

	if (!c->aliases)
		r = table_make(c);
	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "the table of peers' memory cannot be made on the GPU");
	while (slot < COPY_ALIASES_MAX && c->alias_used[slot])
		slot++;
	if (slot == COPY_ALIASES_MAX)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "a GPU reaches at most %d CUDA IPC allocations of its peers: "
				    "use fewer and larger ones, or kind cuda_vmm",
				    COPY_ALIASES_MAX);
	r = entry_write(c, slot, &entry);
	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "the table of peers' memory cannot be written");
	c->alias_used[slot] = true;
	view_add(c, &(struct cuda_view){ begin, begin + bytes, address - begin, slot });
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
	view_del(c, slot);
	c->alias_used[slot] = false;
	for (n = c->n_aliases; n && !c->alias_used[n - 1];)
		n--;
	c->n_aliases = n;
}
