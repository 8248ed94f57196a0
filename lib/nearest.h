/* SPDX-License-Identifier: Apache-2.0 */
/* Which known word did somebody mean? */
#ifndef DRAY_LIB_NEAREST_H
#define DRAY_LIB_NEAREST_H

struct dray_nearest {
	const char *word;
	const char *best; /* NULL while nothing offered is near enough */
	unsigned distance;
};

#define DRAY_NEAREST(w) ((struct dray_nearest){ .word = (w) })

/* The candidate is borrowed. */
void dray_nearest_offer(struct dray_nearest *n, const char *candidate);

/* Insertions, deletions, changes, swaps of neighbours; UINT_MAX where a word is over 63 bytes. */
unsigned dray_text_distance(const char *a, const char *b);

#endif
