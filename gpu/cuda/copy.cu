/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel: gathers and scatters by a list of pieces of any length and alignment. Warps take parts of
 * pieces, neighbouring ones together, so that a line of the list is read once. Destinations are written 16 aligned
 * bytes a lane; where the source is aligned otherwise, it is read 16 aligned bytes a lane too, and shifted.
 */
#include "gpu/cuda/copy.h"

#define LANES 32u
#define ALL 0xffffffffu
/* 16-byte loads that a lane has under way */
#define DEPTH 4u
#define DEPTH_SHIFTED 2u
/* parts end at multiples of this, which all lanes together copy in one step */
#define STEP (LANES * 16u)

struct part {
	uint64_t to, from;
	uint32_t bytes;
};

/* Nothing is read twice: what passes through leaves the caches to others. */
static __device__ __forceinline__ uint4 load(const uint4 *p)
{
	return __ldcs(p);
}

static __device__ __forceinline__ void store(uint4 *p, uint4 v)
{
	__stcs(p, v);
}

static __device__ __forceinline__ struct part part_get(const struct copy_args &a, uint32_t unit)
{
	uint32_t index = unit >> a.parts, nth = unit & ((1u << a.parts) - 1);
	struct copy_piece p;
	struct part r = { 0, 0, 0 };

	if (index >= a.n)
		return r;
	if (a.pieces) {
		p = a.pieces[index];
	} else {
		p = a.few[index];
	}

	uint32_t bytes = (uint32_t)p.bytes;
	uint32_t each = (((bytes + (1u << a.parts) - 1) >> a.parts) + STEP - 1) / STEP * STEP;
	uint32_t begin = each * nth;

	if (begin >= bytes)
		return r;
	r.to = (a.swapped ? p.from : p.to) + a.to_base + begin;
	r.from = (a.swapped ? p.to : p.from) + a.from_base + begin;
	r.bytes = min(each, bytes - begin);
	return r;
}

static __device__ __forceinline__ void copy_bytes(uint64_t to, uint64_t from, uint32_t n,
						  uint32_t lane)
{
	if (lane < n)
		*(uint8_t *)(to + lane) = *(const uint8_t *)(from + lane);
}

/* n vectors of 16 bytes, both sides aligned. */
static __device__ __forceinline__ void copy_vectors(uint4 *to, const uint4 *from, uint32_t n,
						    uint32_t lane)
{
	uint32_t i = lane;

	for (; i + (DEPTH - 1) * LANES < n; i += DEPTH * LANES) {
		uint4 v[DEPTH];

#pragma unroll
		for (uint32_t k = 0; k < DEPTH; k++)
			v[k] = load(from + i + k * LANES);
#pragma unroll
		for (uint32_t k = 0; k < DEPTH; k++)
			store(to + i + k * LANES, v[k]);
	}

	uint4 v[DEPTH - 1];

#pragma unroll
	for (uint32_t k = 0; k < DEPTH - 1; k++)
		if (i + k * LANES < n)
			v[k] = load(from + i + k * LANES);
#pragma unroll
	for (uint32_t k = 0; k < DEPTH - 1; k++)
		if (i + k * LANES < n)
			store(to + i + k * LANES, v[k]);
}

/* The 16 bytes that begin `shift` bytes into low, high: 1 to 15. */
static __device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t shift)
{
	uint32_t bits = (shift & 3) * 8;
	uint32_t a = low.x, b = low.y, c = low.z, d = low.w, e = high.x, f = high.y, g = high.z,
		 h = high.w;

	if (shift & 8) {
		a = c, b = d, c = e, d = f, e = g, f = h;
	}
	if (shift & 4) {
		a = b, b = c, c = d, d = e, e = f;
	}
	return make_uint4(__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits),
			  __funnelshift_r(c, d, bits), __funnelshift_r(d, e, bits));
}

static __device__ __forceinline__ uint4 shuffled(uint4 v, uint32_t lane)
{
	return make_uint4(__shfl_sync(ALL, v.x, lane), __shfl_sync(ALL, v.y, lane),
			  __shfl_sync(ALL, v.z, lane), __shfl_sync(ALL, v.w, lane));
}

/*
 * n vectors to an aligned destination from `shift` bytes into from[0]. What is read beyond the source's ends lies in
 * the same 16 aligned bytes as some byte of it, so never on another page; the last is from[n].
 */
static __device__ __forceinline__ void copy_shifted(uint4 *to, const uint4 *from, uint32_t shift,
						    uint32_t n, uint32_t lane)
{
	for (uint32_t base = 0; base < n; base += DEPTH_SHIFTED * LANES) {
		uint4 v[DEPTH_SHIFTED + 1];

#pragma unroll
		for (uint32_t k = 0; k <= DEPTH_SHIFTED; k++) {
			uint32_t i = base + k * LANES + lane;

			v[k] = make_uint4(0, 0, 0, 0);
			if (i <= n && (k < DEPTH_SHIFTED || lane == 0))
				v[k] = load(from + i);
		}
#pragma unroll
		for (uint32_t k = 0; k < DEPTH_SHIFTED; k++) {
			/* what the lane after this one has; after the last comes the first, a row on */
			uint4 next = shuffled(lane ? v[k] : v[k + 1], (lane + 1) % LANES);
			uint32_t i = base + k * LANES + lane;

			if (i < n)
				store(to + i, shifted(v[k], next, shift));
		}
	}
}

static __device__ __forceinline__ void part_copy(uint64_t to, uint64_t from, uint32_t bytes,
						 uint32_t lane)
{
	uint32_t head = min((uint32_t)(-to & 15), bytes), n = (bytes - head) / 16;
	uint32_t tail = bytes - head - n * 16;
	uint64_t aligned = to + head, source = from + head;
	uint32_t shift = (uint32_t)source & 15;

	copy_bytes(to, from, head, lane);
	copy_bytes(to + bytes - tail, from + bytes - tail, tail, lane);
	if (!n)
		return;
	if (shift)
		copy_shifted((uint4 *)aligned, (const uint4 *)(source - shift), shift, n, lane);
	else
		copy_vectors((uint4 *)aligned, (const uint4 *)source, n, lane);
}

/* The last block to end says that all is done. */
static __device__ __forceinline__ void finish(const struct copy_args &a)
{
	__syncthreads();
	if (threadIdx.x)
		return;
	/* what this block wrote comes before its ticket, for everyone that sees the last ticket's holder's word */
	__threadfence_system();
	if (gridDim.x > 1) {
		if (atomicAdd(&a.control->blocks, 1) + 1 < gridDim.x)
			return;
		a.control->blocks = 0;
		__threadfence_system();
	}
	*(volatile uint64_t *)a.done = a.number;
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS_MAX)
	dray_copy(const __grid_constant__ struct copy_args a)
{
	const uint32_t lane = threadIdx.x % LANES;
	const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
	const uint32_t warps = gridDim.x * blockDim.x / LANES;
	const uint32_t units = a.n << a.parts, stride = warps * a.batch;
	struct part next = { 0, 0, 0 };

	if (lane < a.batch && warp * a.batch + lane < units)
		next = part_get(a, warp * a.batch + lane);
	for (uint32_t first = warp * a.batch; first < units; first += stride) {
		struct part mine = next;
		uint32_t count = min(a.batch, units - first);

		/* the list is far away: the next of it is fetched while these are copied */
		next.bytes = 0;
		if (lane < a.batch && first + stride + lane < units)
			next = part_get(a, first + stride + lane);
		for (uint32_t k = 0; k < count; k++) {
			uint32_t bytes = __shfl_sync(ALL, mine.bytes, k);
			uint64_t to = __shfl_sync(ALL, mine.to, k),
				 from = __shfl_sync(ALL, mine.from, k);

			if (bytes)
				part_copy(to, from, bytes, lane);
		}
	}
	finish(a);
}
