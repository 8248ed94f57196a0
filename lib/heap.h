/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of nodes embedded in their owners, the smallest key first. A zeroed heap and a zeroed node are valid. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dray_heap_node {
	int64_t key;
	uint32_t pos; /* in the heap, from 1; 0: in no heap */
	uint32_t own; /* of the owner of the node: the heap leaves it alone */
};

struct dray_heap {
	struct dray_heap_node **nodes; /* from 1 */
	uint32_t n, cap;
};

static inline bool dray_heap_has(const struct dray_heap_node *node)
{
	return node->pos;
}

/* The node with the smallest key, which stays in the heap; NULL if the heap is empty. */
static inline struct dray_heap_node *dray_heap_first(const struct dray_heap *h)
{
	return h->n ? h->nodes[1] : NULL;
}

/* Makes room for n nodes, so that dray_heap_set() cannot fail up to that number. 0 or -ENOMEM. */
int dray_heap_reserve(struct dray_heap *h, uint32_t n);

/* Adds the node, or moves it to its new key. 0, or -ENOMEM for a new node without room. */
int dray_heap_set(struct dray_heap *h, struct dray_heap_node *node, int64_t key);

/* The node keeps its key. Does nothing for a node that is in no heap. */
void dray_heap_del(struct dray_heap *h, struct dray_heap_node *node);

/* Leaves the nodes untouched. */
void dray_heap_deinit(struct dray_heap *h);
