/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of pieces for the copy engines. A call for a list saves most of the time that a call for each piece takes. A GPU has
 * several engines, but serves a stream by one at a time, so long lists are spread over several streams. The queue's
 * own stream waits for the others; these wait for nothing, because copies that are in flight at the same time are
 * independent of each other.
 *
 * For small pieces from the host the driver takes time slices, as a kernel does: beside an engine each list, and each call, waits
 * for 2.5 ms and slows the engine down, by a quarter with lists on several streams. It leaves rectangles to copy engines, at 3.5 us
 * for each. So small pieces from the host go as rectangles; but where thousands come without a pause, as lists on one stream, at
 * 0.7 us for each: of these only the first one waits.
 */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>

/* Besides the queue's own. */
#define STREAMS 3u
/*
 * Shorter lists take one call: 64 pieces of 32 KiB between GPUs take 59 us on one stream of an H200, and 87 us on four. To and from
 * the host 113 us on one stream of an H100, and 85 us on four.
 */
#define SPREAD_MIN 256u
#define SPREAD_MIN_HOST 32u
/* Pieces of a call: engines begin with the first call while the next one is made. */
#define CALL_PIECES 512u

struct cuda_engines {
	struct {
		cudaStream_t stream;
		cudaEvent_t end;
	} side[STREAMS];
	/* of one call */
	void *to[CALL_PIECES], *from[CALL_PIECES];
	size_t bytes[CALL_PIECES];
};

cudaError_t cuda_engines_new(struct cuda_engines **ret, int priority)
{
	struct cuda_engines *e = calloc(1, sizeof(*e));
	cudaError_t r = e ? cudaSuccess : cudaErrorMemoryAllocation;

	for (unsigned i = 0; i < STREAMS && r == cudaSuccess; i++) {
		r = cudaStreamCreateWithPriority(&e->side[i].stream, cudaStreamNonBlocking,
						 priority);
		if (r == cudaSuccess)
			r = cudaEventCreateWithFlags(&e->side[i].end, cudaEventDisableTiming);
	}
	if (r == cudaSuccess)
		*ret = e;
	else
		cuda_engines_free(e);
	return r;
}

void cuda_engines_free(struct cuda_engines *e)
{
	for (unsigned i = 0; e && i < STREAMS; i++) {
		if (e->side[i].end)
			cudaEventDestroy(e->side[i].end);
		if (e->side[i].stream)
			cudaStreamDestroy(e->side[i].stream);
	}
	free(e);
}

/* What comes later in `stream` waits for the first n other streams. */
static cudaError_t join(struct cuda_engines *e, cudaStream_t stream, unsigned n)
{
	cudaError_t r = cudaSuccess;

	for (unsigned i = 0; i < n && r == cudaSuccess; i++) {
		r = cudaEventRecord(e->side[i].end, e->side[i].stream);
		if (r == cudaSuccess)
			r = cudaStreamWaitEvent(stream, e->side[i].end, 0);
	}
	return r;
}

cudaError_t cuda_engines_join(struct cuda_engines *e, cudaStream_t stream)
{
	return e ? join(e, stream, STREAMS) : cudaSuccess;
}

bool cuda_engines_idle(const struct cuda_engines *e)
{
	for (unsigned i = 0; e && i < STREAMS; i++)
		if (cudaStreamQuery(e->side[i].stream) != cudaSuccess)
			return false;
	return true;
}

static void *to_of(const struct gpu_copy *c, uint32_t i)
{
	const struct dray_piece *p = &c->pieces[i];

	return cuda_pointer(cuda_address(c->swapped ? p->from : p->to) + c->to_base);
}

static void *from_of(const struct gpu_copy *c, uint32_t i)
{
	const struct dray_piece *p = &c->pieces[i];

	return cuda_pointer(cuda_address(c->swapped ? p->to : p->from) + c->from_base);
}

static bool is_small(const struct gpu_copy *c, uint32_t i)
{
	return c->route == GPU_FROM_HOST && c->pieces[i].bytes <= GPU_SMALL_FROM_HOST;
}

static uint32_t count_small(const struct gpu_copy *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n && c->route == GPU_FROM_HOST; i++)
		n += is_small(c, i);
	return n;
}

/* The pieces that are small, or those that are not. */
static cudaError_t one_by_one(struct cuda_context *context, cudaStream_t stream,
			      const struct gpu_copy *c, bool small)
{
	cudaError_t r = cudaSuccess;

	for (uint32_t i = 0; i < c->n && r == cudaSuccess; i++) {
		void *at[] = { to_of(c, i), from_of(c, i) };
		size_t bytes = c->pieces[i].bytes;

		if (is_small(c, i) != small)
			continue;
		if (c->route == GPU_PEER)
			cuda_alias_translate(context, at, DRAY_ARRAY_SIZE(at));
		/* small: as a rectangle of two rows */
		r = small && bytes % 2 == 0 ?
			    cudaMemcpy2DAsync(at[0], bytes / 2, at[1], bytes / 2, bytes / 2, 2,
					      cudaMemcpyDefault, stream) :
			    cudaMemcpyAsync(at[0], at[1], bytes, cudaMemcpyDefault, stream);
	}
	return r;
}

/* A call for the pieces that were put into e. CUDA 12 also tells which piece it refuses. */
static cudaError_t call(struct cuda_engines *e, struct cuda_context *context, cudaStream_t stream,
			enum gpu_route route, uint32_t n)
{
	struct cudaMemcpyAttributes attributes = { .srcAccessOrder =
							   cudaMemcpySrcAccessOrderStream };
	size_t begins = 0;

	if (route == GPU_PEER) {
		cuda_alias_translate(context, e->to, n);
		cuda_alias_translate(context, e->from, n);
	}
#if CUDART_VERSION >= 13000
	return cudaMemcpyBatchAsync(e->to, (const void *const *)e->from, e->bytes, n, &attributes,
				    &begins, 1, stream);
#else
	return cudaMemcpyBatchAsync(e->to, e->from, e->bytes, n, &attributes, &begins, 1, NULL,
				    stream);
#endif
}

static uint32_t streams_for(const struct gpu_copy *c, uint32_t n, bool small)
{
	bool host = c->route == GPU_TO_HOST || c->route == GPU_FROM_HOST;

	return small || n < (host ? SPREAD_MIN_HOST : SPREAD_MIN) ? 1 : STREAMS + 1;
}

/* n pieces: those that are not small, or all, some of which are small. */
static cudaError_t lists(struct cuda_engines *e, struct cuda_context *context, cudaStream_t stream,
			 const struct gpu_copy *c, uint32_t n, bool small)
{
	uint32_t streams = streams_for(c, n, small), turn = 0;
	uint32_t each = dray_min((n + streams - 1) / streams, CALL_PIECES);

	for (uint32_t i = 0, left = n, put = 0; left; i++) {
		cudaStream_t own = turn % streams ? e->side[turn % streams - 1].stream : stream;
		cudaError_t r;

		if (is_small(c, i) && !small)
			continue;
		e->to[put] = to_of(c, i);
		e->from[put] = from_of(c, i);
		e->bytes[put++] = c->pieces[i].bytes;
		left--;
		if (left && put < each)
			continue;
		r = call(e, context, own, c->route, put);
		if (r != cudaSuccess)
			return r;
		put = 0;
		turn++;
	}
	return join(e, stream, streams - 1);
}

cudaError_t cuda_engines_copy(struct cuda_engines *e, struct cuda_context *context,
			      cudaStream_t stream, const struct gpu_copy *c)
{
	uint32_t small = count_small(c), large = c->n - small;
	cudaError_t r;

	/* small pieces go as lists, too */
	if (small && c->lists && e)
		return lists(e, context, stream, c, c->n, true);
	r = small ? one_by_one(context, stream, c, true) : cudaSuccess;
	if (r != cudaSuccess || !large)
		return r;
	return e && large > 1 ? lists(e, context, stream, c, large, false) :
				one_by_one(context, stream, c, false);
}
