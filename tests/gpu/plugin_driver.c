/* SPDX-License-Identifier: Apache-2.0 */
#define PLUGIN_DRIVER_API __attribute__((visibility("default")))
#include "tests/gpu/plugin_driver.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/copy.h"
#include "lib/cleanup.h"
#include "tests/gpu/plugin_driver_internal.h"
/* after it, which makes the functions of cuda.h visible */
#include "gpu/cuda/driver.h"

#define DEVICES 3
#define ATTRIBUTES 256
#define STEPS_MAX 64

struct CUstream_st {
	CUcontext context;
	bool unjoined; /* has copies of lists, for which no other stream waits */
};

struct CUevent_st {
	CUstream stream; /* in which it was recorded last */
};

/* cuda.h declares it since CUDA 13, with a type that older ones lack. */
PLUGIN_DRIVER_API CUresult copy_list(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
				     const struct cuda_batch_attributes *how, size_t *begins,
				     size_t n_attributes,
				     CUstream stream) __asm__("cuMemcpyBatchAsync_v2");

/* A step of a stream: the end of a copy, or a call of a function. */
struct step {
	CUstream stream;
	CUcontext context;
	uint64_t *done, number;
	CUstreamCallback fn; /* NULL: a copy */
	void *arg;
};

struct plugin_driver plugin_driver;

static struct CUctx_st contexts[PLUGIN_DRIVER_CONTEXTS];
static struct step steps[STEPS_MAX];
static unsigned n_steps;
static int attributes[ATTRIBUTES];
static int streams[DEVICES];
static bool held;
static unsigned finish_after; /* 0: never */
static int waits, cut, calls, listed, joined, events, foreign, rows, plain;

void plugin_driver_reset(void)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(contexts); i++)
		contexts[i] = (struct CUctx_st){ .device = -1 };
	for (unsigned i = 0; i < ATTRIBUTES; i++)
		attributes[i] = 1;
	attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 99;
	attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT;
	plugin_driver = (struct plugin_driver){ .contexts = contexts };
	memset(streams, 0, sizeof(streams));
	n_steps = 0;
	held = false;
	finish_after = 0;
	waits = cut = calls = listed = joined = events = foreign = rows = plain = 0;
}

void plugin_driver_fail(const char *function, int device, int result)
{
	struct plugin_driver *d = &plugin_driver;

	if (!function) {
		d->n_failing = 0;
		return;
	}
	if (d->n_failing == PLUGIN_DRIVER_FAILING)
		abort();
	d->failing[d->n_failing].function = function;
	d->failing[d->n_failing].device = device;
	d->failing[d->n_failing++].result = (CUresult)result;
}

void plugin_driver_attribute(int attribute, int value)
{
	attributes[attribute] = value;
}

void plugin_driver_lose(int device)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(contexts); i++)
		if (contexts[i].device == device)
			contexts[i].lost = true;
}

int plugin_driver_count(const char *what, int device)
{
	int n = 0;

	if (!strcmp(what, "maps"))
		return plugin_driver.maps;
	if (!strcmp(what, "waits"))
		return waits;
	if (!strcmp(what, "cut"))
		return cut;
	if (!strcmp(what, "calls"))
		return calls;
	if (!strcmp(what, "listed"))
		return listed;
	if (!strcmp(what, "joined"))
		return joined;
	if (!strcmp(what, "foreign"))
		return foreign;
	if (!strcmp(what, "rows"))
		return rows;
	if (!strcmp(what, "plain"))
		return plain;
	if (!strcmp(what, "events"))
		return events;
	if (!strcmp(what, "opened"))
		return plugin_driver_opened(device);
	if (!strcmp(what, "streams"))
		return streams[device];
	if (!strcmp(what, "waiting"))
		for (unsigned i = 0; i < n_steps; i++)
			n += steps[i].fn && steps[i].context->device == device;
	if (!strcmp(what, "contexts"))
		for (unsigned i = 0; i < DRAY_ARRAY_SIZE(contexts); i++)
			n += contexts[i].device == device;
	return n;
}

void plugin_driver_lose_in(const char *function, int device)
{
	plugin_driver.losing = function;
	plugin_driver.losing_device = device;
}

static bool is_for(const char *function, const char *prefix)
{
	return prefix && !strncmp(function, prefix, strlen(prefix));
}

CUresult plugin_driver_entered(const char *function)
{
	struct plugin_driver *d = &plugin_driver;

	if (!d->current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (d->current->lost)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (unsigned i = 0; i < d->n_failing; i++)
		if (is_for(function, d->failing[i].function) &&
		    d->current->device == d->failing[i].device)
			return d->failing[i].result;
	if (is_for(function, d->losing)) {
		d->losing = NULL;
		plugin_driver_lose(d->losing_device);
	}
	return CUDA_SUCCESS;
}

/* --- driver and devices ------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *ret)
{
	*ret = 12080;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **ret)
{
	*ret = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **ret)
{
	*ret = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *ret)
{
	*ret = DEVICES;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret, int ordinal)
{
	*ret = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int n, CUdevice device)
{
	snprintf(name, (size_t)n, "device %d", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *ret, CUdevice device)
{
	memset(ret, device, sizeof(*ret));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bdf, int n, CUdevice device)
{
	snprintf(bdf, (size_t)n, "0000:F%d:00.0", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *ret, CUdevice device)
{
	*ret = PLUGIN_DRIVER_MEMORY;
	return device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *ret, CUdevice_attribute which, CUdevice device)
{
	*ret = attributes[which];
	return device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *ret, CUdevice device, CUdevice peer)
{
	*ret = device != peer;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *ret, CUdevice_P2PAttribute which, CUdevice device,
				 CUdevice peer)
{
	*ret = which == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED && device != peer;
	return CUDA_SUCCESS;
}

/* --- contexts ----------------------------------------------------------------------------------- */

PLUGIN_DRIVER_API CUresult cuCtxCreate_v2(CUcontext *ret, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *ret, unsigned flags, CUdevice device)
{
	unsigned i = 0;

	while (i < DRAY_ARRAY_SIZE(contexts) && contexts[i].device >= 0)
		i++;
	if (i == DRAY_ARRAY_SIZE(contexts) || !flags)
		return CUDA_ERROR_OUT_OF_MEMORY;
	contexts[i] = (struct CUctx_st){ .device = device };
	*ret = plugin_driver.current = &contexts[i];
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext c)
{
	unsigned left = 0;

	plugin_driver_forget(c);
	for (unsigned i = 0; i < n_steps; i++)
		if (steps[i].context != c)
			steps[left++] = steps[i];
		else if (steps[i].fn)
			steps[i].fn(steps[i].stream, CUDA_ERROR_CONTEXT_IS_DESTROYED, steps[i].arg);
	n_steps = left;
	c->device = -1;
	if (plugin_driver.current == c)
		plugin_driver.current = NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext c)
{
	plugin_driver.current = c;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTERED();
	return peer->device < 0 || flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	ENTERED();
	*ret_least = 0;
	*ret_greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *ret, const void *image)
{
	ENTERED();
	*ret = NULL;
	return image ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name)
{
	ENTERED();
	*ret = NULL;
	return module || !name ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
				    CUflushGPUDirectRDMAWritesScope scope)
{
	ENTERED();
	return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
			       scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

/* --- streams ------------------------------------------------------------------------------------ */

/* Carries out the steps of a stream (NULL: of all). Steps in a lost context never end. */
static void drain(CUstream stream)
{
	unsigned left = 0;

	for (unsigned i = 0; i < n_steps; i++) {
		struct step s = steps[i];

		if ((stream && s.stream != stream) || s.context->lost)
			steps[left++] = s;
		else if (s.fn)
			s.fn(s.stream, CUDA_SUCCESS, s.arg);
		else
			__atomic_store_n(s.done, s.number, __ATOMIC_RELEASE);
	}
	n_steps = left;
}

static CUresult step_add(struct step s)
{
	if (n_steps == STEPS_MAX)
		abort();
	s.context = s.stream->context;
	steps[n_steps++] = s;
	if (!held)
		drain(s.stream);
	return CUDA_SUCCESS;
}

void plugin_driver_hold(bool hold)
{
	held = hold;
	if (!held)
		drain(NULL);
}

void plugin_driver_finish_after(unsigned looks)
{
	finish_after = looks;
}

CUresult cuStreamCreateWithPriority(CUstream *ret, unsigned flags, int priority)
{
	CUstream s;

	ENTERED();
	s = calloc(1, sizeof(*s));
	if (!s || !flags || priority > 0)
		abort();
	s->context = plugin_driver.current;
	streams[plugin_driver.current->device]++;
	*ret = s;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s)
{
	streams[s->context->device]--;
	for (unsigned i = 0; i < n_steps; i++)
		cut += steps[i].stream == s && !steps[i].fn && !s->context->lost;
	free(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s)
{
	if (finish_after && !--finish_after)
		drain(s);
	ENTERED();
	for (unsigned i = 0; i < n_steps; i++)
		if (steps[i].stream == s)
			return CUDA_ERROR_NOT_READY;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s)
{
	ENTERED();
	waits++;
	drain(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *arg, unsigned flags)
{
	ENTERED();
	return flags ? CUDA_ERROR_INVALID_VALUE :
		       step_add((struct step){ .stream = stream, .fn = fn, .arg = arg });
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
			void **extra)
{
	const struct copy_args *a = params[0];

	ENTERED();
	if (f || !gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	return step_add((struct step){ .stream = stream, .done = a->done, .number = a->number });
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	ENTERED();
	foreign += plugin_driver_is_foreign(to) + plugin_driver_is_foreign(from);
	plain++;
	return to && from && bytes && stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream)
{
	ENTERED();
	if (c->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
	    c->dstMemoryType != CU_MEMORYTYPE_UNIFIED || !c->srcDevice || !c->dstDevice ||
	    !c->WidthInBytes || c->srcPitch != c->WidthInBytes || c->dstPitch != c->WidthInBytes ||
	    c->Height != 2 || !stream)
		return CUDA_ERROR_INVALID_VALUE;
	rows += (int)(c->Height * c->WidthInBytes);
	return CUDA_SUCCESS;
}

CUresult copy_list(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
		   const struct cuda_batch_attributes *how, size_t *begins, size_t n_attributes,
		   CUstream stream)
{
	CUresult r = plugin_driver_entered("cuMemcpyBatchAsync_v2");

	if (r != CUDA_SUCCESS)
		return r;
	if (!n || n_attributes != 1 || *begins || how->access_order != 1 || !stream)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		if (!to[i] || !from[i] || !bytes[i])
			return CUDA_ERROR_INVALID_VALUE;
		foreign += plugin_driver_is_foreign(to[i]) + plugin_driver_is_foreign(from[i]);
	}
	calls++;
	listed += (int)n;
	stream->unjoined = true;
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *ret, unsigned flags)
{
	ENTERED();
	*ret = calloc(1, sizeof(**ret));
	if (!*ret || flags != CU_EVENT_DISABLE_TIMING)
		abort();
	events++;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent e)
{
	free(e);
	events--;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream stream)
{
	ENTERED();
	e->stream = stream;
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent e, unsigned flags)
{
	ENTERED();
	if (flags || !e->stream || e->stream == stream)
		return CUDA_ERROR_INVALID_VALUE;
	joined += e->stream->unjoined;
	e->stream->unjoined = false;
	return CUDA_SUCCESS;
}
