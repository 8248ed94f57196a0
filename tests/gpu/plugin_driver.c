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

#define DEVICES 3
#define ATTRIBUTES 256
#define STEPS_MAX 64

struct CUstream_st {
	CUcontext context;
	bool unjoined; /* has copies of lists, for which no other stream waits */
};

struct CUevent_st {
	cudaStream_t stream; /* in which it was recorded last */
};

/* A step of a stream: the end of a copy, or a call of a function. */
struct step {
	cudaStream_t stream;
	CUcontext context;
	uint64_t *done, number;
	cudaStreamCallback_t fn; /* NULL: a copy */
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
static int version;
static int waits, cut, calls, listed, joined, events, foreign, rows, plain;

void plugin_driver_reset(void)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(contexts); i++)
		contexts[i] = (struct CUctx_st){ .device = -1 };
	for (unsigned i = 0; i < ATTRIBUTES; i++)
		attributes[i] = 1;
	attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 99;
	attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT;
	attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 0;
	plugin_driver = (struct plugin_driver){ .contexts = contexts };
	memset(streams, 0, sizeof(streams));
	n_steps = 0;
	held = false;
	finish_after = 0;
	version = CUDART_VERSION;
	waits = cut = calls = listed = joined = events = foreign = rows = plain = 0;
}

void plugin_driver_version(int to)
{
	version = to;
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
	d->failing[d->n_failing].after = 0;
	d->failing[d->n_failing++].result = (cudaError_t)result;
}

void plugin_driver_fail_after(unsigned n)
{
	plugin_driver.failing[plugin_driver.n_failing - 1].after = n;
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

cudaError_t plugin_driver_entered(const char *function)
{
	struct plugin_driver *d = &plugin_driver;

	if (!d->current)
		return cudaErrorDeviceUninitialized;
	if (d->current->lost)
		return cudaErrorIllegalAddress;
	for (unsigned i = 0; i < d->n_failing; i++)
		if (is_for(function, d->failing[i].function) &&
		    d->current->device == d->failing[i].device) {
			if (!d->failing[i].after)
				return d->failing[i].result;
			d->failing[i].after--;
		}
	if (is_for(function, d->losing)) {
		d->losing = NULL;
		plugin_driver_lose(d->losing_device);
	}
	return cudaSuccess;
}

/* --- versions, errors and devices ---------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *ret)
{
	*ret = version;
	return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}

cudaError_t cudaGetDeviceCount(int *ret)
{
	*ret = DEVICES;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
	*ret = (struct cudaDeviceProp){ .totalGlobalMem = PLUGIN_DRIVER_MEMORY };
	memset(&ret->uuid, device, sizeof(ret->uuid));
	snprintf(ret->name, sizeof(ret->name), "device %d", device);
	return device < DEVICES ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetPCIBusId(char *bdf, int n, int device)
{
	snprintf(bdf, (size_t)n, "0000:F%d:00.0", device);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *ret, enum cudaDeviceAttr which, int device)
{
	*ret = attributes[which];
	return device < DEVICES ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer)
{
	*ret = device != peer;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *ret, enum cudaDeviceP2PAttr which, int device, int peer)
{
	*ret = which == cudaDevP2PAttrNativeAtomicSupported && device != peer;
	return cudaSuccess;
}

/* --- contexts ----------------------------------------------------------------------------------- */

static CUresult context_create(CUcontext *ret, unsigned flags, CUdevice device)
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

static CUresult context_destroy(CUcontext c)
{
	unsigned left = 0;

	plugin_driver_forget(c);
	for (unsigned i = 0; i < n_steps; i++)
		if (steps[i].context != c)
			steps[left++] = steps[i];
		else if (steps[i].fn)
			steps[i].fn(steps[i].stream, cudaErrorContextIsDestroyed, steps[i].arg);
	n_steps = left;
	c->device = -1;
	if (plugin_driver.current == c)
		plugin_driver.current = NULL;
	return CUDA_SUCCESS;
}

static CUresult context_set(CUcontext c)
{
	plugin_driver.current = c;
	return CUDA_SUCCESS;
}

static CUresult context_enable_peer(CUcontext peer, unsigned flags)
{
	CUresult r = (CUresult)plugin_driver_entered("cuCtxEnablePeerAccess");

	if (r != CUDA_SUCCESS)
		return r;
	return peer->device < 0 || flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	ENTERED();
	*ret_least = 0;
	*ret_greatest = -5;
	return cudaSuccess;
}

/* Of the kernel, which is never run. */
void dray_copy(struct copy_args a)
{
	abort();
}

static bool is_kernel(const void *function)
{
	return (uintptr_t)function == (uintptr_t)dray_copy;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *function)
{
	ENTERED();
	*ret = (struct cudaFuncAttributes){ .maxThreadsPerBlock = COPY_THREADS_MAX };
	return is_kernel(function) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
					       enum cudaFlushGPUDirectRDMAWritesScope scope)
{
	ENTERED();
	return target == cudaFlushGPUDirectRDMAWritesTargetCurrentDevice &&
			       scope == cudaFlushGPUDirectRDMAWritesToAllDevices ?
		       cudaSuccess :
		       cudaErrorInvalidValue;
}

/* --- streams ------------------------------------------------------------------------------------ */

/* Carries out the steps of a stream (NULL: of all). Steps in a lost context never end. */
static void drain(cudaStream_t stream)
{
	unsigned left = 0;

	for (unsigned i = 0; i < n_steps; i++) {
		struct step s = steps[i];

		if ((stream && s.stream != stream) || s.context->lost)
			steps[left++] = s;
		else if (s.fn)
			s.fn(s.stream, cudaSuccess, s.arg);
		else
			__atomic_store_n(s.done, s.number, __ATOMIC_RELEASE);
	}
	n_steps = left;
}

static cudaError_t step_add(struct step s)
{
	if (n_steps == STEPS_MAX)
		abort();
	s.context = s.stream->context;
	steps[n_steps++] = s;
	if (!held)
		drain(s.stream);
	return cudaSuccess;
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

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
	cudaStream_t s;

	ENTERED();
	s = calloc(1, sizeof(*s));
	if (!s || !flags || priority > 0)
		abort();
	s->context = plugin_driver.current;
	streams[plugin_driver.current->device]++;
	*ret = s;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	streams[s->context->device]--;
	for (unsigned i = 0; i < n_steps; i++)
		cut += steps[i].stream == s && !steps[i].fn && !s->context->lost;
	free(s);
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	if (finish_after && !--finish_after)
		drain(s);
	ENTERED();
	for (unsigned i = 0; i < n_steps; i++)
		if (steps[i].stream == s)
			return cudaErrorNotReady;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	ENTERED();
	waits++;
	drain(s);
	return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t fn, void *arg,
				  unsigned flags)
{
	ENTERED();
	return flags ? cudaErrorInvalidValue :
		       step_add((struct step){ .stream = stream, .fn = fn, .arg = arg });
}

static bool is_one(struct dim3 d)
{
	return d.x && d.y == 1 && d.z == 1;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function, void **args)
{
	const struct copy_args *a = args[0];

	ENTERED();
	if (!is_kernel(function) || !is_one(c->gridDim) || !is_one(c->blockDim) ||
	    c->dynamicSmemBytes)
		return cudaErrorInvalidValue;
	return step_add((struct step){ .stream = c->stream, .done = a->done, .number = a->number });
}

static CUresult stream_write64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
	CUresult r = (CUresult)plugin_driver_entered("cuStreamWriteValue64");

	if (r != CUDA_SUCCESS)
		return r;
	return (CUresult)step_add((struct step){
		.stream = stream, .done = (uint64_t *)(uintptr_t)at, .number = value });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	ENTERED();
	foreign += plugin_driver_is_foreign(to) + plugin_driver_is_foreign(from);
	plain++;
	return to && from && bytes && stream && kind == cudaMemcpyDefault ? cudaSuccess :
									    cudaErrorInvalidValue;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			      size_t width, size_t height, enum cudaMemcpyKind kind,
			      cudaStream_t stream)
{
	ENTERED();
	if (!to || !from || !width || to_pitch != width || from_pitch != width || height != 2 ||
	    kind != cudaMemcpyDefault || !stream)
		return cudaErrorInvalidValue;
	rows += (int)(height * width);
	return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes,
				 size_t n, struct cudaMemcpyAttributes *how, size_t *begins,
				 size_t n_attributes, cudaStream_t stream)
#else
cudaError_t cudaMemcpyBatchAsync(void **to, void **from, size_t *bytes, size_t n,
				 struct cudaMemcpyAttributes *how, size_t *begins,
				 size_t n_attributes, size_t *refused, cudaStream_t stream)
#endif
{
	ENTERED();
	if (!n || n_attributes != 1 || *begins ||
	    how->srcAccessOrder != cudaMemcpySrcAccessOrderStream || !stream)
		return cudaErrorInvalidValue;
	for (size_t i = 0; i < n; i++) {
		if (!to[i] || !from[i] || !bytes[i])
			return cudaErrorInvalidValue;
		foreign += plugin_driver_is_foreign(to[i]) + plugin_driver_is_foreign(from[i]);
	}
	calls++;
	listed += (int)n;
	stream->unjoined = true;
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
	ENTERED();
	*ret = calloc(1, sizeof(**ret));
	if (!*ret || flags != cudaEventDisableTiming)
		abort();
	events++;
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	free(e);
	events--;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
	ENTERED();
	e->stream = stream;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
	ENTERED();
	if (flags || !e->stream || e->stream == stream)
		return cudaErrorInvalidValue;
	joined += e->stream->unjoined;
	e->stream->unjoined = false;
	return cudaSuccess;
}

/* --- functions of the driver -------------------------------------------------------------------- */

/* ISO C has no cast between functions and objects. */
#define FUNCTION(f) ((void *)(uintptr_t)(f))

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **ret, unsigned since,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *ret_found)
{
	const struct {
		const char *name;
		void *function;
	} functions[] = {
		{ "cuCtxCreate", FUNCTION(context_create) },
		{ "cuCtxDestroy", FUNCTION(context_destroy) },
		{ "cuCtxSetCurrent", FUNCTION(context_set) },
		{ "cuCtxEnablePeerAccess", FUNCTION(context_enable_peer) },
		{ "cuStreamWriteValue64", FUNCTION(stream_write64) },
	};

	*ret = plugin_driver_memory_function(name);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(functions); i++)
		if (!strcmp(name, functions[i].name))
			*ret = functions[i].function;
	for (unsigned i = 0; i < plugin_driver.n_failing; i++)
		if (!strcmp(name, plugin_driver.failing[i].function) &&
		    plugin_driver.failing[i].device < 0)
			*ret = NULL;
	*ret_found = *ret ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
	return since && flags == cudaEnableDefault ? cudaSuccess : cudaErrorInvalidValue;
}
