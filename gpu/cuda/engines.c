/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of pieces for the copy engines. A call for a list saves most of the time that a call for each piece takes. A GPU has
 * several engines, but serves a stream by one at a time, so long lists are spread over several streams. The queue's
 * own stream waits for the others; these wait for nothing, because copies that are in flight at the same time are
 * independent of each other.
 */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>

/* Besides the queue's own. */
#define STREAMS 3u
/* Shorter lists take one call: 64 pieces of 32 KiB take 59 us on one stream of an H200, and 87 us on four. */
#define SPREAD_MIN 256u
/* Pieces of a call: engines begin with the first call while the next one is made. */
#define CALL_PIECES 512u

struct cuda_engines {
	struct {
		CUstream stream;
		CUevent end;
	} side[STREAMS];
	/* of one call */
	CUdeviceptr to[CALL_PIECES], from[CALL_PIECES];
	size_t bytes[CALL_PIECES];
};

CUresult cuda_engines_new(struct cuda_engines **ret, int priority)
{
	struct cuda_engines *e = calloc(1, sizeof(*e));
	CUresult r = e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (unsigned i = 0; i < STREAMS && r == CUDA_SUCCESS; i++) {
		r = cuda.stream_create(&e->side[i].stream, CU_STREAM_NON_BLOCKING, priority);
		if (r == CUDA_SUCCESS)
			r = cuda.event_create(&e->side[i].end, CU_EVENT_DISABLE_TIMING);
	}
	if (r == CUDA_SUCCESS)
		*ret = e;
	else
		cuda_engines_free(e);
	return r;
}

void cuda_engines_free(struct cuda_engines *e)
{
	for (unsigned i = 0; e && i < STREAMS; i++) {
		if (e->side[i].end)
			cuda.event_destroy(e->side[i].end);
		if (e->side[i].stream)
			cuda.stream_destroy(e->side[i].stream);
	}
	free(e);
}

static CUdeviceptr to_of(const struct gpu_copy *c, uint32_t i)
{
	const struct dray_piece *p = &c->pieces[i];

	return (uint64_t)(uintptr_t)(c->swapped ? p->from : p->to) + c->to_base;
}

static CUdeviceptr from_of(const struct gpu_copy *c, uint32_t i)
{
	const struct dray_piece *p = &c->pieces[i];

	return (uint64_t)(uintptr_t)(c->swapped ? p->to : p->from) + c->from_base;
}

static CUresult one_by_one(struct cuda_context *context, CUstream stream, const struct gpu_copy *c)
{
	CUresult r = CUDA_SUCCESS;

	for (uint32_t i = 0; i < c->n && r == CUDA_SUCCESS; i++) {
		CUdeviceptr at[] = { to_of(c, i), from_of(c, i) };

		if (c->route == GPU_PEER)
			cuda_alias_translate(context, at, DRAY_ARRAY_SIZE(at));
		r = cuda.memcpy_async(at[0], at[1], c->pieces[i].bytes, stream);
	}
	return r;
}

static CUresult call(struct cuda_engines *e, struct cuda_context *context, CUstream stream,
		     const struct gpu_copy *c, uint32_t first, uint32_t n)
{
	struct cuda_batch_attributes attributes = { .access_order = CUDA_ACCESS_ORDER_STREAM };
	size_t begins = 0;

	for (uint32_t i = 0; i < n; i++) {
		e->to[i] = to_of(c, first + i);
		e->from[i] = from_of(c, first + i);
		e->bytes[i] = c->pieces[first + i].bytes;
	}
	if (c->route == GPU_PEER) {
		cuda_alias_translate(context, e->to, n);
		cuda_alias_translate(context, e->from, n);
	}
	return cuda.memcpy_batch(e->to, e->from, e->bytes, n, &attributes, &begins, 1, stream);
}

/* What comes later in `stream` waits for the first n other streams. */
static CUresult join(struct cuda_engines *e, CUstream stream, unsigned n)
{
	CUresult r = CUDA_SUCCESS;

	for (unsigned i = 0; i < n && r == CUDA_SUCCESS; i++) {
		r = cuda.event_record(e->side[i].end, e->side[i].stream);
		if (r == CUDA_SUCCESS)
			r = cuda.stream_wait(stream, e->side[i].end, 0);
	}
	return r;
}

CUresult cuda_engines_copy(struct cuda_engines *e, struct cuda_context *context, CUstream stream,
			   const struct gpu_copy *c)
{
	uint32_t streams, each, turn = 0;

	if (!e || !cuda.memcpy_batch || c->n < 2)
		return one_by_one(context, stream, c);
	streams = c->n < SPREAD_MIN ? 1 : STREAMS + 1;
	each = dray_min((c->n + streams - 1) / streams, CALL_PIECES);
	for (uint32_t first = 0; first < c->n; first += each, turn++) {
		CUstream own = turn % streams ? e->side[turn % streams - 1].stream : stream;
		CUresult r = call(e, context, own, c, first, dray_min(each, c->n - first));

		if (r != CUDA_SUCCESS)
			return r;
	}
	return join(e, stream, streams - 1);
}
