/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in byte buffers, and the strings, bytes and records that decoded messages point to. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct dray_str {
	const char *p; /* not terminated */
	uint32_t n;
};

struct dray_blob {
	const uint8_t *p;
	uint32_t n;
};

struct dray_vec {
	const uint8_t *p; /* records in wire form */
	uint32_t n;       /* how many records */
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DRAY_LE16(v) (v)
#define DRAY_LE32(v) (v)
#define DRAY_LE64(v) (v)
#else
#define DRAY_LE16(v) __builtin_bswap16(v)
#define DRAY_LE32(v) __builtin_bswap32(v)
#define DRAY_LE64(v) __builtin_bswap64(v)
#endif

#define DRAY_WIRE_DEFINE_(bits)                                         \
	static inline uint##bits##_t dray_le_get##bits(const void *p)   \
	{                                                               \
		uint##bits##_t v;                                       \
                                                                        \
		memcpy(&v, p, sizeof(v));                               \
		return (uint##bits##_t)DRAY_LE##bits(v);                \
	}                                                               \
	static inline void dray_le_put##bits(void *p, uint##bits##_t v) \
	{                                                               \
		v = (uint##bits##_t)DRAY_LE##bits(v);                   \
		memcpy(p, &v, sizeof(v));                               \
	}

DRAY_WIRE_DEFINE_(16)
DRAY_WIRE_DEFINE_(32)
DRAY_WIRE_DEFINE_(64)
