/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/probe/due.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"

static void put(struct due *d, uint32_t pos, struct due_node *node)
{
	d->heap[pos] = node;
	node->pos = pos;
}

static void sift_up(struct due *d, uint32_t pos, struct due_node *node)
{
	while (pos) {
		uint32_t parent = (pos - 1) / 2;

		if (d->heap[parent]->at_ns <= node->at_ns)
			break;
		put(d, pos, d->heap[parent]);
		pos = parent;
	}
	put(d, pos, node);
}

static void sift_down(struct due *d, uint32_t pos, struct due_node *node)
{
	for (;;) {
		uint32_t child = 2 * pos + 1;

		if (child >= d->n)
			break;
		if (child + 1 < d->n && d->heap[child + 1]->at_ns < d->heap[child]->at_ns)
			child++;
		if (node->at_ns <= d->heap[child]->at_ns)
			break;
		put(d, pos, d->heap[child]);
		pos = child;
	}
	put(d, pos, node);
}

static void settle(struct due *d, uint32_t pos, struct due_node *node)
{
	if (pos && d->heap[(pos - 1) / 2]->at_ns > node->at_ns)
		sift_up(d, pos, node);
	else
		sift_down(d, pos, node);
}

int due_reserve(struct due *d, uint32_t n)
{
	uint32_t cap = d->cap ? d->cap : 16;
	struct due_node **heap;

	if (n <= d->cap)
		return 0;
	while (cap < n)
		cap *= 2;
	heap = realloc(d->heap, cap * sizeof(struct due_node *));
	if (!heap)
		return -ENOMEM;
	d->heap = heap;
	d->cap = cap;
	return 0;
}

void due_set(struct due *d, struct due_node *node, int64_t at_ns)
{
	node->at_ns = at_ns;
	if (node->pos == DUE_NONE) {
		dray_assert(d->n < d->cap);
		sift_up(d, d->n++, node);
	} else {
		settle(d, node->pos, node);
	}
}

void due_del(struct due *d, struct due_node *node)
{
	uint32_t pos = node->pos;
	struct due_node *last;

	if (pos == DUE_NONE)
		return;
	node->pos = DUE_NONE;
	last = d->heap[--d->n];
	if (last != node)
		settle(d, pos, last);
}

void due_deinit(struct due *d)
{
	free(d->heap);
	*d = (struct due){ 0 };
}
