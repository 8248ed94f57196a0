/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the known word that a misspelt word is nearest to. */
#pragma once

struct dray_nearest {
	const char *word;
	const char *best; /* NULL while nothing offered is near enough */
	unsigned distance;
};

#define DRAY_NEAREST(w) ((struct dray_nearest){ .word = (w) })

/* Keeps a pointer to the candidate if it is the nearest so far. */
void dray_nearest_offer(struct dray_nearest *n, const char *candidate);

/* Number of insertions, deletions, changes and swaps of neighbours; UINT_MAX if a word has over 63 bytes. */
unsigned dray_text_distance(const char *a, const char *b);
