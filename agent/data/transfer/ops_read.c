/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/ops_read.h"

#include <errno.h>

#include "lib/cleanup.h"
#include "lib/fault.h"

_Static_assert(sizeof(struct xfer_op) == DMSG_OP_SIZE, "operations are decoded in place");

#ifdef __x86_64__
#include <immintrin.h>

/* If all offsets and lengths are below this, no sum of OPS_READ_MAX of them exceeds 63 bits. */
#define SMALL_BITS 52
#define TOGETHER 4u
#define LEAST 16u
#define SIGN (1ull << 63)
/*
 * The client has just written the list, so it comes from another processor's cache. Prefetch distance in bytes, into the
 * second level, which allows more requests in flight. The prefetch may pass the end of the list: its data is not used.
 */
#define AHEAD 4096u

struct reading {
	struct xfer_op *ops;
	const uint8_t *wire;
	uint32_t n; /* a multiple of TOGETHER */
	struct ops_bounds bounds;
	struct ops_seen seen;
	uint64_t all;   /* bits that are set in any offset or length */
	uint64_t wrong; /* SIGN set: an operation is empty or exceeds a side */
	bool joins;
};

typedef __m256i V;

#define TARGET __attribute__((target("avx2")))

TARGET static inline V vector(uint64_t v)
{
	return _mm256_set1_epi64x((long long)v);
}

/* A load that the compiler cannot repeat: the checked value is the copied one. */
TARGET static inline V move(uint8_t *to, const uint8_t *from)
{
	V v = _mm256_loadu_si256((const void *)from);

	__asm__("" : "+x"(v));
	_mm256_storeu_si256((void *)to, v);
	return v;
}

static inline void fetch_ahead(const uint8_t *from)
{
	_mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
	_mm_prefetch((const char *)from + AHEAD + 64, _MM_HINT_T1);
}

/* Alternates 64-bit lanes of a and b; the bits of `which` select the first or second lane of each half. */
#define PICK(a, b, which)    \
	_mm256_castpd_si256( \
		_mm256_shuffle_pd(_mm256_castsi256_pd(a), _mm256_castsi256_pd(b), which))

TARGET static inline uint64_t any_of(V v)
{
	__m128i h = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	return (uint64_t)_mm_extract_epi64(h, 0) | (uint64_t)_mm_extract_epi64(h, 1);
}

TARGET static inline uint64_t sum_of(V v)
{
	__m128i h = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	return (uint64_t)_mm_extract_epi64(h, 0) + (uint64_t)_mm_extract_epi64(h, 1);
}

TARGET static inline uint64_t max_of(V v)
{
	uint64_t w[TOGETHER], most = 0;

	_mm256_storeu_si256((void *)w, v);
	for (unsigned i = 0; i < TOGETHER; i++)
		most = dray_max(most, w[i]);
	return most;
}

/* Without branches, because most lists are correct and no operation needs a decision of its own. */
TARGET static void read_avx2(void *arg)
{
	struct reading *r = arg;
	const V ones = vector(UINT64_MAX), near = vector(r->bounds.local_length),
		far = vector(r->bounds.remote_length);
	V near_end = vector(r->bounds.local_end), far_end = vector(r->bounds.remote_end);
	V all = _mm256_setzero_si256(), wrong = all, joins = all, bytes = all, longest = all;

	for (uint32_t i = 0; i < r->n; i += TOGETHER) {
		const uint8_t *from = r->wire + (size_t)i * DMSG_OP_SIZE;
		uint8_t *to = (uint8_t *)&r->ops[i];
		/* l r n, four times, is l r n l | r n l r | n l r n */
		V a = move(to, from), b = move(to + 32, from + 32), c = move(to + 64, from + 64);
		V first = _mm256_permute2x128_si256(a, b, 0x30);  /* l0 r0 l2 r2 */
		V second = _mm256_permute2x128_si256(a, c, 0x21); /* n0 l1 n2 l3 */
		V third = _mm256_permute2x128_si256(b, c, 0x30);  /* r1 n1 r3 n3 */
		V l = PICK(first, second, 0xa), f = PICK(first, third, 0x5);
		V n = PICK(second, third, 0xa);
		V l_end = _mm256_add_epi64(l, n), f_end = _mm256_add_epi64(f, n);
		/* ends of the previous operations: the first lane takes the last end of the previous four */
		V l_turned = _mm256_permute4x64_epi64(l_end, 0x93);
		V f_turned = _mm256_permute4x64_epi64(f_end, 0x93);
		V l_before = _mm256_blend_epi32(l_turned, near_end, 3);
		V f_before = _mm256_blend_epi32(f_turned, far_end, 3);

		fetch_ahead(from);
		near_end = l_turned;
		far_end = f_turned;
		joins = _mm256_or_si256(joins, _mm256_and_si256(_mm256_cmpeq_epi64(l, l_before),
								_mm256_cmpeq_epi64(f, f_before)));
		all = _mm256_or_si256(all, _mm256_or_si256(n, _mm256_or_si256(l, f)));
		wrong = _mm256_or_si256(wrong, _mm256_add_epi64(n, ones));
		wrong = _mm256_or_si256(wrong, _mm256_sub_epi64(near, l_end));
		wrong = _mm256_or_si256(wrong, _mm256_sub_epi64(far, f_end));
		bytes = _mm256_add_epi64(bytes, n);
		longest = _mm256_blendv_epi8(longest, n, _mm256_cmpgt_epi64(n, longest));
	}
	r->all = any_of(all);
	r->wrong = any_of(wrong);
	r->joins = any_of(joins);
	r->seen = (struct ops_seen){ sum_of(bytes), max_of(longest) };
}

uint32_t ops_read_many(uint32_t n)
{
	return n >= LEAST && __builtin_cpu_supports("avx2") ? n - n % TOGETHER : 0;
}

int ops_read(struct xfer_op *ops, const uint8_t *wire, uint32_t n, const struct ops_bounds *b,
	     struct ops_seen *ret)
{
	struct reading r = { .ops = ops, .wire = wire, .n = n, .bounds = *b };

	/* no correct operation reaches beyond SMALL_BITS */
	r.bounds.local_length = dray_min(b->local_length, 2ull << SMALL_BITS);
	r.bounds.remote_length = dray_min(b->remote_length, 2ull << SMALL_BITS);
	if (fault_run(read_avx2, &r) < 0)
		return -EFAULT;
	*ret = r.seen;
	return !(r.all >> SMALL_BITS) && !(r.wrong & SIGN) && !r.joins;
}

#else

uint32_t ops_read_many(uint32_t n)
{
	return 0;
}

int ops_read(struct xfer_op *ops, const uint8_t *wire, uint32_t n, const struct ops_bounds *b,
	     struct ops_seen *ret)
{
	*ret = (struct ops_seen){ 0 };
	return fault_copy(ops, wire, (size_t)n * DMSG_OP_SIZE);
}

#endif
