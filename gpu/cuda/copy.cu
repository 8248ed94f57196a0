/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel: gathers and scatters a list of pieces of any length and alignment. A block takes a tile of
 * neighbouring parts of pieces, and its warps copy the parts. Each lane writes 16 aligned bytes; a source with another
 * alignment is also read in 16 aligned bytes and then shifted.
 */
#include "gpu/cuda/copy.h"

#define LANES 32u
#define ALL 0xffffffffu
/* 16-byte loads in flight for each lane */
#define DEPTH 4u
#define DEPTH_SHIFTED 2u
/* parts end at multiples of the bytes that all lanes copy in one step */
#define STEP (LANES * 16u)
/* 64-bit words of a piece */
#define WORDS 3u

struct part {
	uint64_t to, from;
	uint32_t bytes;
};

/*
 * Nothing is read twice, so loads and stores keep the caches free for others. Loads bypass the cache of the
 * multiprocessor: it may hold bytes of an earlier copy that the owner has overwritten since.
 */
static __device__ __forceinline__ uint4 load(const uint4 *p)
{
	return __ldcg(p);
}

static __device__ __forceinline__ void store(uint4 *p, uint4 v)
{
	__stcs(p, v);
}

/* A part of a piece. It is empty if the piece is too short for the number of parts, which all pieces share. */
static __device__ __forceinline__ struct part part_of(const struct copy_args &a,
						      const struct copy_piece &p, uint32_t nth)
{
	uint32_t bytes = (uint32_t)p.bytes;
	uint32_t each = (((bytes + (1u << a.parts) - 1) >> a.parts) + STEP - 1) / STEP * STEP;
	uint32_t begin = each * nth;
	struct part r;

	r.to = (a.swapped ? p.from : p.to) + a.to_base + begin;
	r.from = (a.swapped ? p.to : p.from) + a.from_base + begin;
	r.bytes = begin < bytes ? min(each, bytes - begin) : 0;
	return r;
}

static __device__ __forceinline__ void copy_bytes(uint64_t to, uint64_t from, uint32_t n,
						  uint32_t lane)
{
	if (lane < n)
		*(uint8_t *)(to + lane) = __ldcg((const unsigned char *)(from + lane));
}

/* Copies n vectors of 16 bytes; both sides are aligned. */
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
 * Copies n vectors from `shift` bytes into from[0] to an aligned destination. It reads up to from[n]. Bytes read outside
 * the source share their 16 aligned bytes with a byte of the source, so they are never on another page.
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
			/* the vector of the next lane; for the last lane, that of the first lane in the next row */
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

/*
 * Kernels of a queue overlap if the hardware can: blocks of the next one start as soon as there is room, or, for a copy
 * with a limited share, when all blocks of this one have copied. Only the write to `done` waits for earlier kernels.
 */
static __device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void await_earlier()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The last block to end writes the number of the copy. */
static __device__ __forceinline__ void finish(const struct copy_args &a)
{
	uint32_t *blocks = &a.control->blocks[a.number % COPY_OVERLAP];

	__syncthreads();
	let_next_begin();
	if (threadIdx.x)
		return;
	/* the bytes of this block are visible before its ticket, and so before the number that the last block writes */
	__threadfence_system();
	if (gridDim.x > 1) {
		if (atomicAdd(blocks, 1) + 1 < gridDim.x)
			return;
		*blocks = 0;
		__threadfence_system();
	}
	await_earlier();
	*(volatile uint64_t *)a.done = a.number;
}

/* The distance to add to an address of a peer. Few tables have more than one entry for each layer. */
static __device__ __forceinline__ uint64_t distance_of(const struct copy_args &a, uint64_t address)
{
	for (uint32_t i = 0; i < a.n_aliases; i++) {
		ulonglong2 range = __ldcg((const ulonglong2 *)&a.aliases[i]);

		if (address >= range.x && address < range.y)
			return __ldcg(&a.aliases[i].distance);
	}
	return 0;
}

/* One lane's share of the words of a tile's pieces: every 32nd word, so that neighbouring lanes read neighbouring words. */
struct words {
	uint64_t v[WORDS];
};

/*
 * Reads the words with a whole warp, so that neighbouring words cross the bus together. The loads bypass the cache of the
 * multiprocessor, which may hold words of an earlier list, but not that of the GPU, whose lines of host memory
 * each launch invalidates. Bypassing both would fetch words that blocks share several times: half the rate with 16 KiB pages.
 */
static __device__ __forceinline__ struct words words_get(const struct copy_args &a, uint32_t first,
							 uint32_t pieces, uint32_t lane)
{
	const uint64_t *few = (const uint64_t *)a.few, *list = (const uint64_t *)a.pieces;
	uint32_t from = (first >> a.parts) * WORDS, n = min(pieces * WORDS, a.n * WORDS - from);
	struct words w;

#pragma unroll
	for (uint32_t k = 0; k < WORDS; k++) {
		uint32_t i = k * LANES + lane;

		w.v[k] = 0;
		if (i < n)
			w.v[k] = list ? __ldcg(list + from + i) : few[from + i];
	}
	return w;
}

/* Stores the words as pieces for the block, translated by the alias table. By the same warp. */
static __device__ __forceinline__ void words_put(const struct copy_args &a, struct copy_piece *list,
						 const struct words &w, uint32_t pieces,
						 uint32_t lane)
{
	uint64_t *to = (uint64_t *)list;

#pragma unroll
	for (uint32_t k = 0; k < WORDS; k++)
		to[k * LANES + lane] = w.v[k];
	if (!a.n_aliases)
		return;
	__syncwarp();
	if (lane < pieces) {
		struct copy_piece *p = &list[lane];

		p->to += distance_of(a, p->to + (a.swapped ? a.from_base : a.to_base));
		p->from += distance_of(a, p->from + (a.swapped ? a.to_base : a.from_base));
	}
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS_MAX)
	dray_copy(const __grid_constant__ struct copy_args a)
{
	__shared__ struct copy_piece list[2][LANES];
	const uint32_t lane = threadIdx.x % LANES, warp = threadIdx.x / LANES,
		       warps = blockDim.x / LANES;
	const uint32_t units = a.n << a.parts, tile = warps * a.batch, stride = tile * gridDim.x;
	/* the first warp reads the list for all: many small reads of host memory are slow */
	const bool reader = warp == 0;
	const uint32_t pieces = ((tile - 1) >> a.parts) + 1;
	uint32_t half = 0;

	if (!a.alone)
		let_next_begin();
	if (reader && blockIdx.x * tile < units)
		words_put(a, list[0], words_get(a, blockIdx.x * tile, pieces, lane), pieces, lane);
	__syncthreads();
	for (uint32_t first = blockIdx.x * tile; first < units; first += stride, half ^= 1) {
		struct words next;

		/* loads the next part of the list while this tile is copied */
		if (reader && first + stride < units)
			next = words_get(a, first + stride, pieces, lane);
		for (uint32_t unit = first + warp; unit < min(first + tile, units); unit += warps) {
			struct part p = part_of(a,
						list[half][(unit >> a.parts) - (first >> a.parts)],
						unit & ((1u << a.parts) - 1));

			if (p.bytes)
				part_copy(p.to, p.from, p.bytes, lane);
		}
		if (reader && first + stride < units)
			words_put(a, list[half ^ 1], next, pieces, lane);
		__syncthreads();
	}
	finish(a);
}
