/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that GPUs reach. A range is registered in any one context, which serves all contexts. Without a context
 * memory of the plug-in's own is only listed, and the next context registers it. Existing memory is not pinned then, and no
 * later context registers it: the driver may refuse it, which must not hinder the start of a device.
 */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "schema/gen/errors.h"

struct range {
	struct dray_list link;
	void *base;
	uint64_t bytes;
	bool write, allocated;        /* allocated: by cuda_host_alloc() */
	struct cuda_context *context; /* that registered it, or NULL */
};

/* With or without the lock; the caller holds a reference of the context. */
static int range_register(const struct range *g, struct cuda_context *c, bool read_only,
			  struct dray_err *reterr)
{
	unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
	cudaError_t r = cuda_context_set(c->cu);

	if (!g->write && read_only)
		flags |= cudaHostRegisterReadOnly;
	if (r == cudaSuccess)
		r = cudaHostRegister(g->base, g->bytes, flags);
	if (r == cudaErrorMemoryAllocation)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "%llu bytes of host memory cannot be pinned for GPUs",
				    (unsigned long long)g->bytes);
	return r == cudaSuccess ? 0 : cuda_fail(reterr, r, "host memory cannot be pinned for GPUs");
}

/* The caller holds the lock. */
static void range_unregister(struct gpu_plugin *p, struct range *g)
{
	if (!g->context)
		return;
	/* a lost context drops the registration when it is destroyed */
	if (cuda_context_set(g->context->cu) == cudaSuccess)
		cudaHostUnregister(g->base);
	cuda_context_unref(g->context);
	g->context = NULL;
	cuda_stopped_free(p);
}

static bool all_pin_read_only(const struct gpu_plugin *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->devices[i].info.usable && !p->devices[i].pin_read_only)
			return false;
	return true;
}

static struct cuda_context *some_context(struct gpu_plugin *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		struct cuda_context *c = atomic_load(&p->devices[i].context);

		if (c && !atomic_load(&c->lost))
			return c;
	}
	return NULL;
}

static int not_started(struct dray_err *reterr)
{
	return dray_err_set(reterr, -EIO, DRAY_E_GPU_LOST,
			    "memory is pinned only while a GPU is started");
}

static int range_add(struct gpu_plugin *p, const struct range *range, struct dray_err *reterr)
{
	struct range *g = malloc(sizeof(*g));
	struct cuda_context *c;
	int r = 0;

	if (!g)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	*g = *range;
	pthread_mutex_lock(&p->lock);
	g->context = some_context(p);
	if (g->context)
		cuda_context_ref(g->context);
	pthread_mutex_unlock(&p->lock);

	/* without the lock, since it takes long; the range is in no list yet */
	if (g->context)
		r = range_register(g, g->context, all_pin_read_only(p), reterr);
	else if (!g->allocated)
		r = not_started(reterr);

	pthread_mutex_lock(&p->lock);
	c = some_context(p);
	if (g->context && r < 0) {
		cuda_context_unref(g->context);
		cuda_stopped_free(p);
	} else if (g->context && !c) {
		range_unregister(p, g);
		if (!g->allocated)
			r = not_started(reterr);
	} else if (r == 0 && !g->context && c) {
		/* a device was started meanwhile, and has not seen this range */
		r = range_register(g, c, all_pin_read_only(p), reterr);
		if (r == 0)
			g->context = cuda_context_ref(c);
	}
	if (r == 0)
		dray_list_add(&p->ranges, &g->link);
	pthread_mutex_unlock(&p->lock);
	if (r < 0)
		free(g);
	return r;
}

void cuda_unpin(struct gpu_plugin *p, void *base)
{
	struct range *found = NULL;

	pthread_mutex_lock(&p->lock);
	dray_list_for_each(&p->ranges, g, struct range, link)
		if (g->base == base)
			found = g;
	if (found) {
		dray_list_del(&found->link);
		range_unregister(p, found);
	}
	pthread_mutex_unlock(&p->lock);
	if (found && found->allocated)
		munmap(found->base, found->bytes);
	free(found);
}

int cuda_pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *reterr)
{
	return range_add(p, &(struct range){ .base = base, .bytes = bytes, .write = write },
			 reterr);
}

int cuda_host_alloc(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *reterr)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct range g = { .base = base, .bytes = bytes, .write = true, .allocated = true };
	int r;

	if (base == MAP_FAILED)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "%llu bytes of host memory cannot be allocated",
				    (unsigned long long)bytes);
	/* huge pages need fewer translations by the GPU; a child must not get copies of what the GPU writes */
	madvise(base, bytes, MADV_HUGEPAGE);
	madvise(base, bytes, MADV_DONTFORK);
	r = range_add(p, &g, reterr);
	if (r < 0)
		munmap(base, bytes);
	else
		*ret = base;
	return r;
}

int cuda_ranges_register(struct gpu_plugin *p, struct cuda_context *c, struct dray_err *reterr)
{
	dray_list_for_each(&p->ranges, g, struct range, link) {
		int r;

		if (g->context || !g->allocated)
			continue;
		r = range_register(g, c, all_pin_read_only(p), reterr);
		if (r < 0)
			return r;
		g->context = cuda_context_ref(c);
	}
	return 0;
}

void cuda_ranges_unregister(struct gpu_plugin *p)
{
	dray_list_for_each(&p->ranges, g, struct range, link)
		range_unregister(p, g);
}
