/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/plain.h"

#include <stdint.h>

#include "lib/cleanup.h"

size_t dray_plain(char *to, size_t cap, const char *from, size_t n)
{
	n = dray_min(n, cap - 1);
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	to[n] = '\0';
	return n;
}

size_t dray_utf8_length(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t n = *p < 0x80           ? 1 :
		   (*p & 0xe0) == 0xc0 ? 2 :
		   (*p & 0xf0) == 0xe0 ? 3 :
		   (*p & 0xf8) == 0xf0 ? 4 :
					 0;
	uint32_t v = n == 1 ? *p : n ? *p & (0x7fu >> n) : 0;
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };

	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		v = v << 6 | (p[i] & 0x3f);
	}
	return v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000) ? 0 : n;
}
