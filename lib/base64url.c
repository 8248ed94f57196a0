/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base64url.h"

#include <errno.h>
#include <stdint.h>

static const char alphabet[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void dray_base64url_encode(const void *src, size_t n, char *dst)
{
	const uint8_t *s = src;
	uint32_t acc = 0;
	unsigned bits = 0;

	for (size_t i = 0; i < n; i++) {
		acc = acc << 8 | s[i];
		for (bits += 8; bits >= 6; bits -= 6)
			*dst++ = alphabet[acc >> (bits - 6) & 63];
	}
	if (bits)
		*dst++ = alphabet[acc << (6 - bits) & 63];
	*dst = '\0';
}

static int value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '-')
		return 62;
	return c == '_' ? 63 : -1;
}

long dray_base64url_decode(const char *src, size_t n, void *dst, size_t cap)
{
	uint8_t *d = dst;
	uint32_t acc = 0;
	unsigned bits = 0;
	size_t len = 0;

	if (n % 4 == 1)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		int v = value_of(src[i]);

		if (v < 0)
			return -EINVAL;
		acc = acc << 6 | (uint32_t)v;
		bits += 6;
		if (bits < 8)
			continue;
		bits -= 8;
		if (len == cap)
			return -EMSGSIZE;
		d[len++] = (uint8_t)(acc >> bits);
	}
	/* one text for each value: bits that no byte uses are 0 */
	if (acc & ((1U << bits) - 1))
		return -EINVAL;
	return (long)len;
}
