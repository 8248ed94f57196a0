/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/heap.h"

#include <errno.h>
#include <stdlib.h>

#define NODES_MIN 64

static void place(struct dray_heap *h, uint32_t pos, struct dray_heap_node *node)
{
	h->nodes[pos] = node;
	node->pos = pos;
}

/* Moves the node from pos to where its key belongs. */
static void sift(struct dray_heap *h, uint32_t pos, struct dray_heap_node *node)
{
	for (; pos > 1 && h->nodes[pos / 2]->key > node->key; pos /= 2)
		place(h, pos, h->nodes[pos / 2]);
	for (uint32_t child; (child = pos * 2) <= h->n; pos = child) {
		if (child < h->n && h->nodes[child + 1]->key < h->nodes[child]->key)
			child++;
		if (h->nodes[child]->key >= node->key)
			break;
		place(h, pos, h->nodes[child]);
	}
	place(h, pos, node);
}

int dray_heap_reserve(struct dray_heap *h, uint32_t n)
{
	uint32_t cap = h->cap ? h->cap : NODES_MIN;
	struct dray_heap_node **nodes;

	if (n < h->cap)
		return 0;
	while (cap <= n)
		cap *= 2;
	nodes = realloc(h->nodes, cap * sizeof(struct dray_heap_node *));
	if (!nodes)
		return -ENOMEM;
	h->nodes = nodes;
	h->cap = cap;
	return 0;
}

int dray_heap_set(struct dray_heap *h, struct dray_heap_node *node, int64_t key)
{
	int r;

	if (!node->pos) {
		r = dray_heap_reserve(h, h->n + 1);
		if (r < 0)
			return r;
		node->pos = ++h->n;
	}
	node->key = key;
	sift(h, node->pos, node);
	return 0;
}

void dray_heap_del(struct dray_heap *h, struct dray_heap_node *node)
{
	struct dray_heap_node *last;

	if (!node->pos)
		return;
	last = h->nodes[h->n--];
	if (last != node)
		sift(h, node->pos, last);
	node->pos = 0;
}

void dray_heap_deinit(struct dray_heap *h)
{
	free(h->nodes);
	*h = (struct dray_heap){ .nodes = NULL };
}
