/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/deadlines.h"

#include <errno.h>
#include <stdlib.h>

static void put(struct deadlines *d, uint32_t pos, struct xfer *x)
{
	d->heap[pos] = x;
	x->deadline_pos = pos;
}

static void sift_up(struct deadlines *d, uint32_t pos, struct xfer *x)
{
	while (pos) {
		uint32_t parent = (pos - 1) / 2;

		if (d->heap[parent]->deadline_ns <= x->deadline_ns)
			break;
		put(d, pos, d->heap[parent]);
		pos = parent;
	}
	put(d, pos, x);
}

static void sift_down(struct deadlines *d, uint32_t pos, struct xfer *x)
{
	for (;;) {
		uint32_t child = 2 * pos + 1;

		if (child >= d->n)
			break;
		if (child + 1 < d->n &&
		    d->heap[child + 1]->deadline_ns < d->heap[child]->deadline_ns)
			child++;
		if (x->deadline_ns <= d->heap[child]->deadline_ns)
			break;
		put(d, pos, d->heap[child]);
		pos = child;
	}
	put(d, pos, x);
}

int deadlines_add(struct deadlines *d, struct xfer *x)
{
	if (d->n == d->cap) {
		uint32_t cap = d->cap ? d->cap * 2 : 64;
		struct xfer **heap = realloc(d->heap, cap * sizeof(struct xfer *));

		if (!heap)
			return -ENOMEM;
		d->heap = heap;
		d->cap = cap;
	}
	sift_up(d, d->n++, x);
	return 0;
}

void deadlines_del(struct deadlines *d, struct xfer *x)
{
	uint32_t pos = x->deadline_pos;
	struct xfer *last;

	if (pos == DEADLINE_NONE)
		return;
	x->deadline_pos = DEADLINE_NONE;
	last = d->heap[--d->n];
	if (last == x)
		return;
	if (pos && d->heap[(pos - 1) / 2]->deadline_ns > last->deadline_ns)
		sift_up(d, pos, last);
	else
		sift_down(d, pos, last);
}

void deadlines_deinit(struct deadlines *d)
{
	free(d->heap);
	*d = (struct deadlines){ 0 };
}
