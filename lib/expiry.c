/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/expiry.h"

#include <errno.h>
#include <stdlib.h>

static void put(struct dray_expiry *x, uint32_t pos, struct dray_expiry_entry *e)
{
	x->heap[pos] = e;
	e->pos = pos;
}

static void sift(struct dray_expiry *x, struct dray_expiry_entry *e)
{
	uint32_t pos = e->pos;

	while (pos > 1 && x->heap[pos / 2]->at_ns > e->at_ns) {
		put(x, pos, x->heap[pos / 2]);
		pos /= 2;
	}
	for (uint32_t child; (child = pos * 2) <= x->n; pos = child) {
		if (child < x->n && x->heap[child + 1]->at_ns < x->heap[child]->at_ns)
			child++;
		if (x->heap[child]->at_ns >= e->at_ns)
			break;
		put(x, pos, x->heap[child]);
	}
	put(x, pos, e);
}

int dray_expiry_add(struct dray_expiry *x, struct dray_expiry_entry *e)
{
	if (e->at_ns == DRAY_EXPIRY_NEVER)
		return 0;
	if (x->n + 1 >= x->cap) {
		uint32_t cap = x->cap ? x->cap * 2 : 64;
		struct dray_expiry_entry **heap =
			realloc(x->heap, cap * sizeof(struct dray_expiry_entry *));

		if (!heap)
			return -ENOMEM;
		x->heap = heap;
		x->cap = cap;
	}
	put(x, ++x->n, e);
	sift(x, e);
	return 0;
}

void dray_expiry_del(struct dray_expiry *x, struct dray_expiry_entry *e)
{
	struct dray_expiry_entry *last;

	if (!e->pos)
		return;
	last = x->heap[x->n--];
	if (last != e) {
		put(x, e->pos, last);
		sift(x, last);
	}
	e->pos = 0;
}

struct dray_expiry_entry *dray_expiry_pop(struct dray_expiry *x, int64_t now_ns)
{
	struct dray_expiry_entry *e = x->n ? x->heap[1] : NULL;

	if (!e || e->at_ns > now_ns)
		return NULL;
	dray_expiry_del(x, e);
	return e;
}

void dray_expiry_deinit(struct dray_expiry *x)
{
	free(x->heap);
	*x = (struct dray_expiry){ .heap = NULL };
}
