/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes are a polynomial over GF(2). Its first bit has the highest power, and the CRC is the remainder of the division by
 * POLYNOMIAL. So the CRC is linear: the CRC of A and B in a row is that of B, xor that of A times x to the number of bits of B.
 *
 * The instruction has a latency of three cycles, and one can start in each cycle. So three parts of LANE bytes are
 * computed at once. `advance` has the product with x to the bits of LANE bytes, for each byte of the CRC. Without prefetching,
 * three streams of reads from memory reach a third of the speed.
 *
 * Folding replaces a block of 128 bits by a block with the same remainder that lies further behind: each half of the block
 * is multiplied by the remainder of the power of x by which it moves, and both products are added to the block there (Intel:
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"). A register holds four blocks, and four
 * registers are in flight, because a carry-less multiplication has a latency of several cycles. The register that is
 * left goes through the instruction. With registers of 128 bits folding is slower than the instruction.
 * Processors do not prefetch across the end of a page, so the next one is asked for here.
 */
#include "lib/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bits reversed, without x^32 */
#define ONE 0x80000000u        /* x^0, in a remainder: bit 31 - n is x^n */
#define LANE 1024u
#define NIBBLES (2 * sizeof(size_t))

static uint32_t by_byte[8][256]; /* [k]: for a byte that k others follow */
static uint32_t advance[4][256];
static uint32_t zero_bytes[NIBBLES][16]; /* x to the bits of [n] * 16^[k] bytes */
static enum dray_crc32c_way fastest;
static bool has[DRAY_CRC32C_N];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t times_x(uint32_t a)
{
	return a >> 1 ^ (-(a & 1) & POLYNOMIAL);
}

static uint32_t product(uint32_t a, uint32_t b)
{
	uint32_t sum = 0;

	for (; a; a <<= 1) {
		sum ^= -(a >> 31) & b;
		b = times_x(b);
	}
	return sum;
}

static uint32_t bytes_by_table(uint32_t crc, const uint8_t *p, size_t n)
{
	while (n--)
		crc = by_byte[0][(crc ^ *p++) & 0xff] ^ crc >> 8;
	return crc;
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8) {
		uint32_t low = crc ^ (p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);

		crc = by_byte[3][p[4]] ^ by_byte[2][p[5]] ^ by_byte[1][p[6]] ^ by_byte[0][p[7]];
		for (unsigned i = 0; i < 4; i++)
			crc ^= by_byte[7 - i][low >> 8 * i & 0xff];
	}
	return bytes_by_table(crc, p, n);
}

#if defined(__x86_64__) || defined(__aarch64__)
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

/* Of leaf 7: the names in cpuid.h differ between compilers. */
#define EBX_AVX512F (1u << 16)
#define ECX_VPCLMULQDQ (1u << 10)
/* XCR0: the kernel saves the registers of SSE, AVX and AVX-512. */
#define XCR0_OF_512_BITS 0xe6u

#define INSTRUCTION __attribute__((target("sse4.2,crc32")))

INSTRUCTION static inline uint64_t crc_of_8(uint64_t crc, uint64_t bytes)
{
	return __builtin_ia32_crc32di(crc, bytes);
}

INSTRUCTION static inline uint32_t crc_of_1(uint32_t crc, uint8_t byte)
{
	return __builtin_ia32_crc32qi(crc, byte);
}

static bool has_instruction(void)
{
	unsigned a, b, c, d;

	/* not by __builtin_cpu_supports(), whose data is in a library that not every linker has */
	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_2;
}
#else
#include <sys/auxv.h>

#define INSTRUCTION

/* Compilers spell the builtins and the target of these instructions differently. */
static inline uint64_t crc_of_8(uint64_t crc, uint64_t bytes)
{
	__asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(bytes));
	return crc;
}

static inline uint32_t crc_of_1(uint32_t crc, uint8_t byte)
{
	__asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
	return crc;
}

static bool has_instruction(void)
{
	return getauxval(AT_HWCAP) & HWCAP_CRC32;
}
#endif

static uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static uint32_t advanced(uint64_t crc)
{
	return advance[0][crc & 0xff] ^ advance[1][crc >> 8 & 0xff] ^ advance[2][crc >> 16 & 0xff] ^
	       advance[3][crc >> 24 & 0xff];
}

INSTRUCTION static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
	uint64_t a = crc, b, c;

	for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
		b = c = 0;
		for (unsigned i = 0; i < 3 * LANE; i += 64)
			__builtin_prefetch(p + 3 * LANE + i);
		for (unsigned i = 0; i < LANE; i += 8) {
			a = crc_of_8(a, load64(p + i));
			b = crc_of_8(b, load64(p + LANE + i));
			c = crc_of_8(c, load64(p + 2 * LANE + i));
		}
		a = c ^ advanced(b ^ advanced(a));
	}
	for (; n >= 8; n -= 8, p += 8)
		a = crc_of_8(a, load64(p));
	for (; n; n--)
		a = crc_of_1((uint32_t)a, *p++);
	return (uint32_t)a;
}

#else
#define by_instruction by_table

static bool has_instruction(void)
{
	return false;
}
#endif

#ifdef __x86_64__
#define WIDE __attribute__((target("sse4.2,crc32,avx512f,pclmul,vpclmulqdq")))
#define REGISTER 64u /* bytes */
#define IN_FLIGHT (4 * REGISTER)
#define PAGE 4096u

/* Factors of both halves of a block of 128 bits, to move it by one register or by IN_FLIGHT. */
static uint64_t by_register[2], by_flight[2];

static void make_factors(uint64_t ret_factors[2], size_t bytes)
{
	uint32_t power = ONE;

	/*
	 * The half with the lower addresses has the higher powers. The product of two reversed halves of 64 bits has 127 bits, so
	 * the block of 128 bits that holds it is its product with x; hence one power less.
	 */
	for (size_t i = 1; i < 8 * bytes + 64; i++) {
		power = times_x(power);
		if (i == 8 * bytes - 1)
			ret_factors[1] = (uint64_t)power << 32;
	}
	ret_factors[0] = (uint64_t)power << 32;
}

WIDE static inline __m512i load512(const uint8_t *p)
{
	return _mm512_loadu_si512(p);
}

WIDE static inline __m512i load_factors(const uint64_t factors[2])
{
	return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)factors));
}

WIDE static inline __m512i fold(__m512i a, __m512i factors, __m512i onto)
{
	__m512i low = _mm512_clmulepi64_epi128(a, factors, 0x00);
	__m512i high = _mm512_clmulepi64_epi128(a, factors, 0x11);

	/* xor of all three */
	return _mm512_ternarylogic_epi64(onto, low, high, 0x96);
}

WIDE static inline uint32_t by_halves(uint64_t crc, __m128i block)
{
	crc = __builtin_ia32_crc32di(crc, (uint64_t)_mm_cvtsi128_si64(block));
	return (uint32_t)__builtin_ia32_crc32di(crc, (uint64_t)_mm_extract_epi64(block, 1));
}

WIDE static uint32_t by_folding(uint32_t crc, const uint8_t *p, size_t n)
{
	__m512i one = load_factors(by_register), flight = load_factors(by_flight);
	__m512i a, b, c, d;

	if (n < IN_FLIGHT)
		return by_instruction(crc, p, n);
	a = _mm512_xor_si512(load512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	b = load512(p + REGISTER);
	c = load512(p + 2 * REGISTER);
	d = load512(p + 3 * REGISTER);
	p += IN_FLIGHT;
	for (n -= IN_FLIGHT; n >= IN_FLIGHT; n -= IN_FLIGHT, p += IN_FLIGHT) {
		/* what lies behind the end may be written by others */
		for (unsigned i = 0; n >= PAGE + IN_FLIGHT && i < IN_FLIGHT; i += REGISTER)
			__builtin_prefetch(p + PAGE + i);
		a = fold(a, flight, load512(p));
		b = fold(b, flight, load512(p + REGISTER));
		c = fold(c, flight, load512(p + 2 * REGISTER));
		d = fold(d, flight, load512(p + 3 * REGISTER));
	}
	d = fold(fold(fold(a, one, b), one, c), one, d);
	/* not by way of the stack: gcc 12 takes it for aligned where AddressSanitizer puts it elsewhere */
	crc = by_halves(0, _mm512_castsi512_si128(d));
	crc = by_halves(crc, _mm512_extracti32x4_epi32(d, 1));
	crc = by_halves(crc, _mm512_extracti32x4_epi32(d, 2));
	crc = by_halves(crc, _mm512_extracti32x4_epi32(d, 3));
	/* gcc 12 leaves this out, and then later SSE code runs at half its speed on Zen 5 */
	_mm256_zeroupper();
	return by_instruction(crc, p, n);
}

static bool can_fold(void)
{
	unsigned a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return false;
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & XCR0_OF_512_BITS) == XCR0_OF_512_BITS &&
	       __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & EBX_AVX512F && c & ECX_VPCLMULQDQ;
}

static void find_ways(void)
{
	make_factors(by_register, REGISTER);
	make_factors(by_flight, IN_FLIGHT);
	has[DRAY_CRC32C_INSTRUCTION] = has_instruction();
	has[DRAY_CRC32C_FOLD] = has[DRAY_CRC32C_INSTRUCTION] && can_fold();
}
#else
#define by_folding by_table

static void find_ways(void)
{
	has[DRAY_CRC32C_INSTRUCTION] = has_instruction();
}
#endif

static void make_tables(void)
{
	static const uint8_t zeros[LANE];

	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (unsigned bit = 0; bit < 8; bit++)
			crc = times_x(crc);
		by_byte[0][i] = crc;
	}
	for (unsigned k = 1; k < 8; k++)
		for (uint32_t i = 0; i < 256; i++)
			by_byte[k][i] = by_byte[0][by_byte[k - 1][i] & 0xff] ^
					by_byte[k - 1][i] >> 8;
	for (unsigned k = 0; k < 4; k++)
		for (uint32_t i = 0; i < 256; i++)
			advance[k][i] = by_table(i << 8 * k, zeros, LANE);
	for (unsigned k = 0; k < NIBBLES; k++) {
		zero_bytes[k][0] = ONE;
		zero_bytes[k][1] = k ? product(zero_bytes[k - 1][15], zero_bytes[k - 1][1]) :
				       ONE >> 8;
		for (unsigned i = 2; i < 16; i++)
			zero_bytes[k][i] = product(zero_bytes[k][i - 1], zero_bytes[k][1]);
	}
}

static void prepare(void)
{
	make_tables();
	find_ways();
	has[DRAY_CRC32C_TABLE] = true;
	for (unsigned way = 0; way < DRAY_CRC32C_N; way++)
		if (has[way])
			fastest = way;
}

static uint32_t continued(enum dray_crc32c_way way, uint32_t crc, const void *p, size_t n)
{
	static uint32_t (*const ways[])(uint32_t crc, const uint8_t *p, size_t n) = {
		[DRAY_CRC32C_TABLE] = by_table,
		[DRAY_CRC32C_INSTRUCTION] = by_instruction,
		[DRAY_CRC32C_FOLD] = by_folding,
	};

	return ~ways[way](~crc, p, n);
}

uint32_t dray_crc32c(uint32_t crc, const void *p, size_t n)
{
	pthread_once(&once, prepare);
	return continued(fastest, crc, p, n);
}

uint32_t dray_crc32c_combine(uint32_t a, uint32_t b, size_t bytes_of_b)
{
	pthread_once(&once, prepare);
	for (unsigned k = 0; bytes_of_b; k++, bytes_of_b >>= 4)
		if (bytes_of_b & 15)
			a = product(zero_bytes[k][bytes_of_b & 15], a);
	return a ^ b;
}

bool dray_crc32c_has(enum dray_crc32c_way way)
{
	pthread_once(&once, prepare);
	return has[way];
}

uint32_t dray_crc32c_by(enum dray_crc32c_way way, uint32_t crc, const void *p, size_t n)
{
	pthread_once(&once, prepare);
	return continued(way, crc, p, n);
}
