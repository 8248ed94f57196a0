/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli), as in RFC 3720, by the fastest way that the processor has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Slowest first. Every processor has the first. */
enum dray_crc32c_way {
	DRAY_CRC32C_TABLE,
	DRAY_CRC32C_INSTRUCTION,
	DRAY_CRC32C_FOLD, /* by carry-less multiplication of 512 bits at once */
	DRAY_CRC32C_N,
};

/* Continues crc, which is 0 at the beginning. Any thread. */
uint32_t dray_crc32c(uint32_t crc, const void *p, size_t n);

/* The CRC of A and B in a row, from that of each and the number of bytes of B. It takes the time of a few hundred bytes. */
uint32_t dray_crc32c_combine(uint32_t a, uint32_t b, size_t bytes_of_b);

bool dray_crc32c_has(enum dray_crc32c_way way);

/* dray_crc32c() by a way that the processor has. */
uint32_t dray_crc32c_by(enum dray_crc32c_way way, uint32_t crc, const void *p, size_t n);
