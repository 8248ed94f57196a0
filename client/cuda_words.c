/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words between transfers and streams. They lie in a memfd for the agent, and are registered with
 * the driver for the GPUs of this process.
 */
#include <stdlib.h>

#include "client/cuda_driver.h"
#include "client/internal.h"
#include "lib/cleanup.h"

#define WORDS_MAX 65536u

_Static_assert(DRAY_CUDA_WAIT_GEQ == 0 && DRAY_CUDA_WAIT_EQ == 1, "CU_STREAM_WAIT_VALUE_*");

struct dray_cuda_words {
	struct cuda_driver c;
	struct dray_memory memory;
	cu_context context; /* that the memory was registered in */
	cu_pointer address; /* for the GPUs */
	dray_region region; /* id 0: none */
	unsigned count;
};

/* Frees everything except the region. */
static void words_free(struct dray_cuda_words *w)
{
	cu_context popped;

	if (w->address && !w->c.context_push(w->context)) {
		w->c.host_unregister(w->memory.address);
		w->c.context_pop(&popped);
	}
	dray_memory_free(&w->memory);
	dc_cuda_close(&w->c);
	free(w);
}
DRAY_DEFINE_CLEANUP(struct dray_cuda_words *, words_free);

static int words_register(struct dray_cuda_words *w, struct dray_err *reterr)
{
	cu_result error;

	error = w->c.context_current(&w->context);
	if (error)
		return dc_cuda_check(&w->c, error, "cuCtxGetCurrent", reterr);
	if (!w->context)
		return dray_err_set(reterr, -1, DRAY_E_INVALID,
				    "no CUDA context is current on this thread");
	error = w->c.host_register(w->memory.address, w->memory.length,
				   CU_REGISTER_PORTABLE | CU_REGISTER_DEVICEMAP);
	if (error)
		return dc_cuda_check(&w->c, error, "cuMemHostRegister", reterr);
	error = w->c.host_device_pointer(&w->address, w->memory.address, 0);
	if (!error)
		return 0;
	w->address = 0;
	w->c.host_unregister(w->memory.address);
	return dc_cuda_check(&w->c, error, "cuMemHostGetDevicePointer", reterr);
}

int dray_cuda_words_new(struct dray *d, unsigned int count, struct dray_cuda_words **ret)
{
	struct dray_cuda_words *w dray_auto(words_free) = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	int error;

	if (dc_is_inherited(d))
		return -DRAY_E_OUT_OF_ORDER;
	if (!count || count > WORDS_MAX)
		return dc_fail(d, DRAY_E_INVALID, "%u words: the number must be 1 to %u", count,
			       WORDS_MAX);
	w = calloc(1, sizeof(*w));
	if (!w)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
	w->count = count;
	w->memory.fd = -1;
	if (dc_cuda_open(&w->c, &err) < 0)
		return dc_fail(d, err.code, "%s", err.msg);
	if (!w->c.stream_write || !w->c.stream_wait)
		return dc_fail(d, DRAY_E_UNSUPPORTED,
			       "the driver is too old for words of streams; they need CUDA 11.7");
	error = dray_memory_alloc((uint64_t)count * sizeof(uint32_t), 0, &w->memory);
	if (error)
		return dc_fail(d, -error, "memory for words: %s", dray_strerror(error));
	if (words_register(w, &err) < 0)
		return dc_fail(d, err.code, "%s", err.msg);
	error = dray_region_add_memory(d, &w->memory, DRAY_READ | DRAY_WRITE, &w->region);
	if (error)
		return error;
	*ret = dray_take(w);
	return 0;
}

/* If the region is not removed, the agent keeps the pages of the memfd. */
void dray_cuda_words_free(struct dray *d, struct dray_cuda_words *w)
{
	if (!w)
		return;
	if (d && w->region.id)
		dray_region_remove(d, w->region);
	words_free(w);
}

struct dray_word dray_cuda_word(const struct dray_cuda_words *w, unsigned int index, uint32_t value)
{
	if (index >= w->count)
		return (struct dray_word){ 0 };
	return (struct dray_word){ w->region, index * sizeof(uint32_t), value };
}

uint32_t *dray_cuda_words_memory(const struct dray_cuda_words *w)
{
	return w->memory.address;
}

/* Enqueues a write, or for `wait` not NULL a wait, with the stream's context current. */
static int try_enqueue(const struct dray_cuda_words *w, cu_stream stream, unsigned index,
		       uint32_t value, const enum dray_cuda_wait *wait, struct dray_err *reterr)
{
	cu_pointer word = w->address + index * sizeof(uint32_t);
	cu_context context = NULL, popped;
	cu_result error;

	if (index >= w->count)
		return dray_err_set(reterr, -1, DRAY_E_RANGE, "word %u of %u does not exist", index,
				    w->count);
	if (wait && *wait != DRAY_CUDA_WAIT_GEQ && *wait != DRAY_CUDA_WAIT_EQ)
		return dray_err_set(reterr, -1, DRAY_E_INVALID, "%u is not a way to wait", *wait);
	error = stream ? w->c.stream_context(stream, &context) : 0;
	if (dc_cuda_check(&w->c, error, "cuStreamGetCtx", reterr) < 0)
		return -1;
	error = context ? w->c.context_push(context) : 0;
	if (dc_cuda_check(&w->c, error, "cuCtxPushCurrent", reterr) < 0)
		return -1;
	error = wait ? w->c.stream_wait(stream, word, value, *wait) :
		       w->c.stream_write(stream, word, value, 0);
	if (context)
		w->c.context_pop(&popped);
	return dc_cuda_check(&w->c, error, wait ? "cuStreamWaitValue32" : "cuStreamWriteValue32",
			     reterr);
}

static int enqueue(const struct dray_cuda_words *w, cu_stream stream, unsigned index,
		   uint32_t value, const enum dray_cuda_wait *wait, char *why, size_t why_size)
{
	struct dray_err err = DRAY_ERR_NULL;
	int error = try_enqueue(w, stream, index, value, wait, &err);

	return error ? dc_cuda_why(&err, why, why_size) : 0;
}

int dray_cuda_stream_write(const struct dray_cuda_words *w, void *stream, unsigned int index,
			   uint32_t value, char *why, size_t why_size)
{
	return enqueue(w, stream, index, value, NULL, why, why_size);
}

int dray_cuda_stream_wait(const struct dray_cuda_words *w, void *stream, unsigned int index,
			  uint32_t value, enum dray_cuda_wait wait, char *why, size_t why_size)
{
	return enqueue(w, stream, index, value, &wait, why, why_size);
}
