/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/plain.h"

#include "lib/cleanup.h"

size_t dray_plain(char *to, size_t cap, const char *from, size_t n)
{
	n = dray_min(n, cap - 1);
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	to[n] = '\0';
	return n;
}
