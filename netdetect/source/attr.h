/* SPDX-License-Identifier: Apache-2.0 */
/* Parses netlink attributes. Pure; the bytes may be malformed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Points into its message. */
struct nd_attr {
	uint16_t type; /* without the flags for nesting and byte order */
	const void *data;
	size_t n;
};

/* Returns 0 to continue or -errno. */
typedef int (*nd_attr_fn)(const struct nd_attr *a, void *arg);

/* Calls fn for each attribute. 0, -EBADMSG if one is cut short, or what fn returned. p is aligned to 4 bytes. */
int nd_attrs(const void *p, size_t n, nd_attr_fn fn, void *arg);

/* A number of 1, 2, 4 or 8 bytes in the byte order of this host; 0 if the attribute is shorter. */
uint64_t nd_attr_number(const struct nd_attr *a, size_t width);

/* Copies as much text as fits and terminates it; control characters become '?'. */
void nd_attr_text(const struct nd_attr *a, char *buf, size_t n);

/* An attribute, and the member of an object that holds its value. */
struct nd_field {
	uint16_t type;
	uint8_t width; /* of a number in the attribute; 0: a text */
	size_t size, offset;
};

#define ND_NUMBER(type, width, object, member)                                       \
	{                                                                            \
		type, width, sizeof(((object *)0)->member), offsetof(object, member) \
	}
#define ND_TEXT(type, object, member) ND_NUMBER(type, 0, object, member)

struct nd_fields {
	const struct nd_field *v;
	size_t n;
};
#define ND_FIELDS(array) ((struct nd_fields){ array, sizeof(array) / sizeof((array)[0]) })

/* Stores the attribute if one of the fields wants it. */
void nd_attr_store(const struct nd_attr *a, struct nd_fields f, void *object);

/* nd_attrs() with nd_attr_store(). */
int nd_attrs_store(const void *p, size_t n, struct nd_fields f, void *object);
