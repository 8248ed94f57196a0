/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/attr.h"

#include <ctype.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nd_attrs(const void *p, size_t n, nd_attr_fn fn, void *arg)
{
	const uint8_t *at = p;

	while (n) {
		struct nlattr h;
		struct nd_attr a;
		size_t step;
		int r;

		/* padding after the last one */
		if (n < sizeof(h))
			return n < NLA_ALIGNTO ? 0 : -EBADMSG;
		memcpy(&h, at, sizeof(h));
		if (h.nla_len < sizeof(h) || h.nla_len > n)
			return -EBADMSG;
		a = (struct nd_attr){ .type = h.nla_type & NLA_TYPE_MASK,
				      .data = at + sizeof(h),
				      .n = h.nla_len - sizeof(h) };
		r = fn(&a, arg);
		if (r < 0)
			return r;
		step = ((size_t)h.nla_len + NLA_ALIGNTO - 1) & ~(size_t)(NLA_ALIGNTO - 1);
		if (step > n)
			step = n;
		at += step;
		n -= step;
	}
	return 0;
}

static uint64_t number(const struct nd_attr *a, void *p, size_t n)
{
	if (a->n < n)
		return 0;
	memcpy(p, a->data, n);
	return 1;
}

uint8_t nd_attr_u8(const struct nd_attr *a)
{
	uint8_t v = 0;

	return number(a, &v, sizeof(v)) ? v : 0;
}

uint16_t nd_attr_u16(const struct nd_attr *a)
{
	uint16_t v = 0;

	return number(a, &v, sizeof(v)) ? v : 0;
}

uint32_t nd_attr_u32(const struct nd_attr *a)
{
	uint32_t v = 0;

	return number(a, &v, sizeof(v)) ? v : 0;
}

uint64_t nd_attr_u64(const struct nd_attr *a)
{
	uint64_t v = 0;

	return number(a, &v, sizeof(v)) ? v : 0;
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

void *nd_grow(void **v, size_t *n, size_t size)
{
	/* full at 0 and at each power of two */
	if ((*n & (*n - 1)) == 0) {
		size_t cap = *n ? *n * 2 : 1;
		void *grown = reallocarray(*v, cap, size);

		if (!grown)
			return NULL;
		*v = grown;
	}
	return (uint8_t *)*v + (*n)++ * size;
}

void nd_bdf_of(const char *text, char ret[16])
{
	unsigned domain, bus, device, function;
	int end = 0;

	ret[0] = '\0';
	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 &&
	    !text[end])
		snprintf(ret, 16, "%04x:%02x:%02x.%x", domain & 0xffffff, bus & 0xff, device & 0x1f,
			 function & 7);
}
