/* SPDX-License-Identifier: Apache-2.0 */
/* Netlink attributes and growing arrays, for the parsers of this folder. */
#ifndef DRAY_NETDETECT_SOURCE_ATTR_H
#define DRAY_NETDETECT_SOURCE_ATTR_H

#include <stddef.h>
#include <stdint.h>

/* Within the message it came in. */
struct nd_attr {
	uint16_t type; /* without the flags of nesting and byte order */
	const void *data;
	size_t n;
};

/* Returns 0 to go on or -errno. */
typedef int (*nd_attr_fn)(const struct nd_attr *a, void *arg);

/* Walks attributes. 0, -EBADMSG where one is cut short, or what fn returned. Any alignment. */
int nd_attrs(const void *p, size_t n, nd_attr_fn fn, void *arg);

/* 0 where the attribute is shorter than the number. */
uint8_t nd_attr_u8(const struct nd_attr *a);
uint16_t nd_attr_u16(const struct nd_attr *a);
uint32_t nd_attr_u32(const struct nd_attr *a);
uint64_t nd_attr_u64(const struct nd_attr *a);

/* What fits of the text, always terminated; control characters become '?'. */
void nd_attr_text(const struct nd_attr *a, char *buf, size_t n);

/*
 * Room for one more element at the end of an array that was only ever grown by this: capacities are the
 * powers of two. Counts it. NULL: no memory, and nothing has changed.
 */
void *nd_grow(void **v, size_t *n, size_t size);

/* "0000:3b:00.0" into ret where the text is one, "" otherwise. */
void nd_bdf_of(const char *text, char ret[16]);

#endif
