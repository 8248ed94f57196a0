/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian cursors over byte buffers, with a sticky error: read or write all fields, then check `bad` once. A cursor
 * never leaves [p, end).
 */
#ifndef DRAY_LIB_WIRE_H
#define DRAY_LIB_WIRE_H

#include <stdbool.h>
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

struct dray_rd {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct dray_rd dray_rd_init(const void *p, size_t n)
{
	return (struct dray_rd){ p, (const uint8_t *)p + n, false };
}

static inline size_t dray_rd_left(const struct dray_rd *r)
{
	return (size_t)(r->end - r->p);
}

/* n bytes in place, or NULL (and bad) where there are fewer. */
static inline const uint8_t *dray_rd_bytes(struct dray_rd *r, size_t n)
{
	const uint8_t *p = r->p;

	if (r->bad || dray_rd_left(r) < n) {
		r->bad = true;
		return NULL;
	}
	r->p += n;
	return p;
}

static inline uint8_t dray_rd_u8(struct dray_rd *r)
{
	const uint8_t *p = dray_rd_bytes(r, 1);

	return p ? *p : 0;
}

static inline uint16_t dray_rd_u16(struct dray_rd *r)
{
	const uint8_t *p = dray_rd_bytes(r, 2);

	return p ? dray_le_get16(p) : 0;
}

static inline uint32_t dray_rd_u32(struct dray_rd *r)
{
	const uint8_t *p = dray_rd_bytes(r, 4);

	return p ? dray_le_get32(p) : 0;
}

static inline uint64_t dray_rd_u64(struct dray_rd *r)
{
	const uint8_t *p = dray_rd_bytes(r, 8);

	return p ? dray_le_get64(p) : 0;
}

struct dray_wr {
	uint8_t *p, *end, *start;
	bool bad;
};

static inline struct dray_wr dray_wr_init(void *p, size_t n)
{
	return (struct dray_wr){ p, (uint8_t *)p + n, p, false };
}

static inline size_t dray_wr_done(const struct dray_wr *w)
{
	return (size_t)(w->p - w->start);
}

/* Room for n bytes, or NULL (and bad). */
static inline uint8_t *dray_wr_room(struct dray_wr *w, size_t n)
{
	uint8_t *p = w->p;

	if (w->bad || (size_t)(w->end - w->p) < n) {
		w->bad = true;
		return NULL;
	}
	w->p += n;
	return p;
}

static inline void dray_wr_bytes(struct dray_wr *w, const void *src, size_t n)
{
	uint8_t *p = dray_wr_room(w, n);

	if (p && n)
		memcpy(p, src, n);
}

static inline void dray_wr_u8(struct dray_wr *w, uint8_t v)
{
	dray_wr_bytes(w, &v, 1);
}

static inline void dray_wr_u16(struct dray_wr *w, uint16_t v)
{
	uint8_t *p = dray_wr_room(w, 2);

	if (p)
		dray_le_put16(p, v);
}

static inline void dray_wr_u32(struct dray_wr *w, uint32_t v)
{
	uint8_t *p = dray_wr_room(w, 4);

	if (p)
		dray_le_put32(p, v);
}

static inline void dray_wr_u64(struct dray_wr *w, uint64_t v)
{
	uint8_t *p = dray_wr_room(w, 8);

	if (p)
		dray_le_put64(p, v);
}

#endif
