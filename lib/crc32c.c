/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction has a latency of three cycles, and one can start in each cycle. So three parts of LANE bytes are
 * computed at once. A CRC is linear: the CRC of A and B in a row is that of B, xor that of A advanced over as many zero
 * bytes as B has. `advance` has this for LANE bytes, for each byte of the CRC.
 */
#include "lib/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bits reversed */
#define LANE 1024u

static uint32_t by_byte[8][256]; /* [k]: for a byte that k others follow */
static uint32_t advance[4][256];
static bool has_instruction;
static pthread_once_t once = PTHREAD_ONCE_INIT;

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

static void make_tables(void)
{
	static const uint8_t zeros[LANE];

	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		by_byte[0][i] = crc;
	}
	for (unsigned k = 1; k < 8; k++)
		for (uint32_t i = 0; i < 256; i++)
			by_byte[k][i] = by_byte[0][by_byte[k - 1][i] & 0xff] ^
					by_byte[k - 1][i] >> 8;
	for (unsigned k = 0; k < 4; k++)
		for (uint32_t i = 0; i < 256; i++)
			advance[k][i] = by_table(i << 8 * k, zeros, LANE);
#ifdef __x86_64__
	has_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

#ifdef __x86_64__
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

__attribute__((target("sse4.2,crc32"))) static uint32_t by_instruction(uint32_t crc,
								       const uint8_t *p, size_t n)
{
	uint64_t a = crc, b, c;

	for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
		b = c = 0;
		for (unsigned i = 0; i < LANE; i += 8) {
			a = __builtin_ia32_crc32di(a, load64(p + i));
			b = __builtin_ia32_crc32di(b, load64(p + LANE + i));
			c = __builtin_ia32_crc32di(c, load64(p + 2 * LANE + i));
		}
		a = c ^ advanced(b ^ advanced(a));
	}
	for (; n >= 8; n -= 8, p += 8)
		a = __builtin_ia32_crc32di(a, load64(p));
	for (; n; n--)
		a = __builtin_ia32_crc32qi((uint32_t)a, *p++);
	return (uint32_t)a;
}
#else
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
	return by_table(crc, p, n);
}
#endif

uint32_t dray_crc32c(uint32_t crc, const void *p, size_t n)
{
	pthread_once(&once, make_tables);
	return ~(has_instruction ? by_instruction(~crc, p, n) : by_table(~crc, p, n));
}

uint32_t dray_crc32c_by_table(uint32_t crc, const void *p, size_t n)
{
	pthread_once(&once, make_tables);
	return ~by_table(~crc, p, n);
}
