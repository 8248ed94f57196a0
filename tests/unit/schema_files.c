/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/schema_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	abort();
}

uint8_t *exact_copy(const void *src, size_t n)
{
	uint8_t *p = malloc(n ? n : 1);

	if (!p)
		fail("malloc", "no memory");
	if (n)
		memcpy(p, src, n);
	return p;
}

uint8_t *read_whole(const char *path, size_t *ret_n)
{
	static uint8_t buf[1 << 20];
	FILE *f = fopen(path, "rb");

	if (!f)
		fail(path, "cannot be read (tests run in the root of the tree)");
	*ret_n = fread(buf, 1, sizeof(buf), f);
	fclose(f);
	if (*ret_n == sizeof(buf))
		fail(path, "too large");
	return exact_copy(buf, *ret_n);
}

static unsigned int digit(char c)
{
	return (unsigned int)(c <= '9' ? c - '0' : c - 'a' + 10) & 0xf;
}

size_t unhex(const char *hex, uint8_t *out, size_t cap)
{
	size_t n = strspn(hex, "0123456789abcdef") / 2;

	if (n > cap)
		fail("hex", "too long");
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
	return n;
}
