/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/cuda/copy.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

struct cuda_context *cuda_context_ref(struct cuda_context *c)
{
	c->refs++;
	return c;
}

void cuda_context_unref(struct cuda_context *c)
{
	if (--c->refs)
		return;
	cuda_driver.context_destroy(c->cu);
	free(c->alias_used);
	free(c->views);
	pthread_mutex_destroy(&c->views_lock);
	free(c);
}

DRAY_DEFINE_CLEANUP(struct cuda_context *, cuda_context_unref);

int cuda_enter(struct gpu_plugin *p, unsigned device, struct cuda_context **ret,
	       struct dray_err *reterr)
{
	struct cuda_context *c = device < p->n ? p->devices[device].context : NULL;
	cudaError_t r;

	if (!c || c->lost)
		return dray_err_set(reterr, -EIO, DRAY_E_GPU_LOST, "the GPU %s",
				    c ? "is lost" : "is not started");
	r = cuda_context_set(c->cu);
	if (r != cudaSuccess) {
		cuda_lost(c);
		return cuda_fail(reterr, r, "the GPU's context cannot be used");
	}
	if (ret)
		*ret = c;
	return 0;
}

int cuda_lost(struct cuda_context *c)
{
	int64_t never = 0;

	atomic_compare_exchange_strong(&c->lost_ns, &never, dray_now().ns);
	c->lost = true;
	return -EIO;
}

void cuda_stopped_free(struct gpu_plugin *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		struct cuda_device *d = &p->devices[i];

		if (d->stopped && d->stopped->refs == 1)
			cuda_context_unref(dray_take(d->stopped));
	}
}

static int context_new(unsigned device, struct cuda_context **ret, struct dray_err *reterr)
{
	dray_auto_free struct cuda_context *c = calloc(1, sizeof(*c));
	struct cudaFuncAttributes attributes;
	cudaError_t r;

	if (!c)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	c->refs = 1;
	/* threads that wait in the driver sleep */
	r = CUDA_DRIVER_CALL(context_create, &c->cu, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST,
			     (CUdevice)device);
	/* after a fault of a kernel or a link the driver refuses this process until it ends */
	if (cuda_is_lost(r))
		return cuda_fail(
			reterr, r,
			"CUDA does not work in this process any more after a fault: restart the agent");
	if (r != cudaSuccess)
		return cuda_fail(reterr, r, "no context can be made on the GPU");
	/* loads it now rather than at its first launch */
	r = cudaFuncGetAttributes(&attributes, (const void *)(uintptr_t)dray_copy);
	if (r == cudaSuccess)
		r = cudaDeviceGetStreamPriorityRange(&c->priority_low, &c->priority_high);
	if (r != cudaSuccess) {
		cuda_driver.context_destroy(c->cu);
		return cuda_fail(reterr, r, "the copy kernel cannot be loaded");
	}
	pthread_mutex_init(&c->views_lock, NULL);
	*ret = dray_take(c);
	return 0;
}

/* The context of a device that starts, which is current then. */
static int context_get(struct gpu_plugin *p, unsigned device, struct cuda_context **ret,
		       struct dray_err *reterr)
{
	struct cuda_device *d = &p->devices[device];
	uint64_t before, after;
	int r;

	if (d->stopped && cuda_context_set(d->stopped->cu) == cudaSuccess) {
		*ret = dray_take(d->stopped);
		return 0;
	}
	before = cuda_memory_used(d->info.bdf);
	r = context_new(device, ret, reterr);
	if (r < 0)
		return r;
	after = cuda_memory_used(d->info.bdf);
	(*ret)->bytes = before && after > before ? after - before : 0;
	return 0;
}

static bool is_enabled(cudaError_t r)
{
	return r == cudaSuccess || r == cudaErrorPeerAccessAlreadyEnabled;
}

/*
 * Gives the device and its started peers access to each other. A pair that gets none is left out, with a reason in
 * ret_left_out. `c` is current, and stays so.
 */
static int peers_open(struct gpu_plugin *p, unsigned device, struct cuda_context *c,
		      struct dray_err *ret_left_out, struct dray_err *reterr)
{
	struct cuda_device *d = &p->devices[device];

	for (unsigned i = 0; i < p->n; i++) {
		struct cuda_context *peer = p->devices[i].context;
		cudaError_t to = cudaSuccess, from = cudaSuccess;

		if (!peer || peer->lost)
			continue;
		if (d->info.peers & 1u << i)
			to = CUDA_DRIVER_CALL(context_enable_peer, peer->cu, 0);
		if (cuda_is_lost(to))
			return cuda_fail(reterr, to, "the GPU cannot reach its peer");
		if (p->devices[i].info.peers & 1u << device) {
			from = cuda_context_set(peer->cu);
			if (from == cudaSuccess)
				from = CUDA_DRIVER_CALL(context_enable_peer, c->cu, 0);
			if (cuda_is_lost(from))
				cuda_lost(peer);
			cuda_context_set(c->cu);
		}
		if (is_enabled(to) && is_enabled(from))
			continue;
		cuda_fail(ret_left_out, is_enabled(to) ? from : to,
			  "the GPU cannot reach its peer");
		d->unreached |= 1u << i;
	}
	return 0;
}

static bool any_started(const struct gpu_plugin *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->devices[i].context)
			return true;
	return false;
}

static int start_locked(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes,
			struct dray_err *ret_left_out, struct dray_err *reterr)
{
	struct cuda_device *d = &p->devices[device];
	dray_auto(cuda_context_unref) struct cuda_context *c = NULL;
	int r;

	*ret_bytes = 0;
	if (d->context)
		return 0;
	if (!d->info.usable)
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"the plug-in has no code for %s (compute capability %u.%u), or its compute "
			"mode prohibits contexts",
			d->info.name, d->info.major, d->info.minor);
	r = context_get(p, device, &c, reterr);
	if (r == 0)
		r = peers_open(p, device, c, ret_left_out, reterr);
	if (r == 0)
		r = cuda_ranges_register(p, c, reterr);
	if (r < 0)
		return r;
	*ret_bytes = c->bytes;
	d->context = dray_take(c);
	return cuda_imports_open_to(p, device, ret_left_out, reterr);
}

static void stop_locked(struct gpu_plugin *p, unsigned device)
{
	struct cuda_device *d = &p->devices[device];
	struct cuda_context *c = atomic_exchange(&d->context, NULL);

	cuda_imports_close_to(p, device);
	d->unreached = 0;
	if (!any_started(p))
		cuda_ranges_unregister(p);
	/* Pinned memory keeps the context that registered it, because it serves the contexts of other devices too. */
	if (c && !c->lost && c->refs > 1 && !d->stopped)
		d->stopped = dray_take(c);
	if (c)
		cuda_context_unref(c);
	cuda_stopped_free(p);
}

int cuda_start(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes, uint32_t *ret_peers,
	       struct dray_err *reterr)
{
	const struct cuda_device *d = &p->devices[device];
	struct dray_err left_out = DRAY_ERR_NULL;
	int r;

	pthread_mutex_lock(&p->lock);
	r = start_locked(p, device, ret_bytes, &left_out, reterr);
	*ret_peers = d->info.peers & ~d->unreached;
	if (r < 0)
		stop_locked(p, device);
	else if (left_out.code)
		dray_err_set(reterr, 0, left_out.code, "%s", left_out.msg);
	pthread_mutex_unlock(&p->lock);
	return r;
}

void cuda_stop(struct gpu_plugin *p, unsigned device)
{
	pthread_mutex_lock(&p->lock);
	stop_locked(p, device);
	pthread_mutex_unlock(&p->lock);
}
