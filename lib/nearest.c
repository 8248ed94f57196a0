/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/nearest.h"

#include <limits.h>
#include <string.h>

#include "lib/cleanup.h"

#define WORD_MAX 63

unsigned dray_text_distance(const char *a, const char *b)
{
	size_t na = strlen(a), nb = strlen(b);
	unsigned rows[3][WORD_MAX + 1];

	if (na > WORD_MAX || nb > WORD_MAX)
		return UINT_MAX;
	for (size_t j = 0; j <= nb; j++)
		rows[0][j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned *now = rows[i % 3], *before = rows[(i + 2) % 3];
		const unsigned *two_before = rows[(i + 1) % 3];

		now[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned change = before[j - 1] + (a[i - 1] != b[j - 1]);
			unsigned v = dray_min(before[j], now[j - 1]) + 1;

			v = dray_min(v, change);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				v = dray_min(v, two_before[j - 2] + 1);
			now[j] = v;
		}
	}
	return rows[na % 3][nb];
}

void dray_nearest_offer(struct dray_nearest *n, const char *candidate)
{
	unsigned distance = dray_text_distance(n->word, candidate);
	unsigned limit = dray_max((unsigned)strlen(candidate) / 3, 1U);

	if (distance <= limit && (!n->best || distance < n->distance)) {
		n->best = candidate;
		n->distance = distance;
	}
}
