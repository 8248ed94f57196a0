/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/attr.h"

#include <ctype.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <string.h>

union number {
	uint8_t u8;
	uint16_t u16;
	uint32_t u32;
	uint64_t u64;
};

int nd_attrs(const void *p, size_t n, nd_attr_fn fn, void *arg)
{
	const uint8_t *end = (const uint8_t *)p + n;

	/* fewer bytes than a header are padding */
	for (const struct nlattr *h = p; end - (const uint8_t *)h >= (ptrdiff_t)sizeof(*h);
	     h = mnl_attr_next(h)) {
		struct nd_attr a;
		int r;

		if (!mnl_attr_ok(h, (int)(end - (const uint8_t *)h)))
			return -EBADMSG;
		a = (struct nd_attr){ .type = mnl_attr_get_type(h),
				      .data = mnl_attr_get_payload(h),
				      .n = mnl_attr_get_payload_len(h) };
		r = fn(&a, arg);
		if (r < 0)
			return r;
	}
	return 0;
}

uint64_t nd_attr_number(const struct nd_attr *a, size_t width)
{
	union number v;

	if (a->n < width)
		return 0;
	memcpy(&v, a->data, width);
	return width == 1 ? v.u8 : width == 2 ? v.u16 : width == 4 ? v.u32 : v.u64;
}

void nd_attr_text(const struct nd_attr *a, char *buf, size_t n)
{
	size_t length = strnlen(a->data, a->n);

	if (length >= n)
		length = n - 1;
	memcpy(buf, a->data, length);
	buf[length] = '\0';
	for (char *p = buf; *p; p++)
		if (iscntrl((unsigned char)*p))
			*p = '?';
}

static void store_number(void *to, size_t size, uint64_t v)
{
	union number x;

	if (size == 1)
		x.u8 = (uint8_t)v;
	else if (size == 2)
		x.u16 = (uint16_t)v;
	else if (size == 4)
		x.u32 = (uint32_t)v;
	else
		x.u64 = v;
	memcpy(to, &x, size);
}

void nd_attr_store(const struct nd_attr *a, struct nd_fields f, void *object)
{
	for (const struct nd_field *x = f.v; x < f.v + f.n; x++) {
		char *to = (char *)object + x->offset;

		if (x->type == a->type && !x->width)
			nd_attr_text(a, to, x->size);
		else if (x->type == a->type)
			store_number(to, x->size, nd_attr_number(a, x->width));
	}
}

struct store {
	struct nd_fields fields;
	void *object;
};

static int store_attr(const struct nd_attr *a, void *arg)
{
	const struct store *s = arg;

	nd_attr_store(a, s->fields, s->object);
	return 0;
}

int nd_attrs_store(const void *p, size_t n, struct nd_fields f, void *object)
{
	struct store s = { f, object };

	return nd_attrs(p, n, store_attr, &s);
}
