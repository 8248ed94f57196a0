/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash table of nodes embedded in their owners, by a key of bytes that belongs to the owner. Keys may come from
 * untrusted peers, so each table has a random seed. Not thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"

/* A zeroed node is in no map. */
struct dray_map_node {
	struct dray_map_node *next;
	uint64_t hash;
	const void *key; /* NULL: in no map */
	size_t n;
};

struct dray_map {
	struct dray_map_node **buckets; /* NULL: all nodes are in `single` */
	struct dray_map_node *single;
	size_t n_buckets, n; /* n: nodes */
	uint64_t seed;
};

static inline bool dray_map_has(const struct dray_map_node *node)
{
	return node->key;
}

void dray_map_init(struct dray_map *m);

/* Leaves the nodes untouched. The map is empty afterwards and can be used again. */
void dray_map_deinit(struct dray_map *m);

/* NULL if there is none. */
struct dray_map_node *dray_map_find(const struct dray_map *m, const void *key, size_t n);

/* Another node with the key of this one; NULL after the last. */
struct dray_map_node *dray_map_find_next(const struct dray_map_node *node);

/*
 * The key (not NULL) must stay unchanged while the node is in the map. Nodes with the same key are found in
 * the order in which they were added. Never fails: a map without memory to grow becomes slow.
 */
void dray_map_add(struct dray_map *m, struct dray_map_node *node, const void *key, size_t n);

/* Does nothing for a node that is in no map. */
void dray_map_del(struct dray_map *m, struct dray_map_node *node);

/* The first node for NULL, then the one after `node`; NULL after the last. */
struct dray_map_node *dray_map_next(const struct dray_map *m, const struct dray_map_node *node);

#define dray_map_entry(node, type, member)                                     \
	({                                                                     \
		struct dray_map_node *node_ = (node);                          \
		node_ ? (type *)dray_container_of(node_, type, member) : NULL; \
	})

/* The owners of all nodes, in no order. The body may delete or free the current one, no other, and may not add. */
#define dray_map_for_each(m, it, type, member)                                                    \
	for (type *it = dray_map_entry(dray_map_next(m, NULL), type, member), *it##_next_ = NULL; \
	     it && (it##_next_ = dray_map_entry(dray_map_next(m, &it->member), type, member), 1); \
	     it = it##_next_)

/* The owners of the nodes with this key. The body may delete or free the current one, no other, and may not add. */
#define dray_map_for_each_of(m, by, n_by, it, type, member)                                   \
	for (type *it = dray_map_entry(dray_map_find(m, by, n_by), type, member),             \
		  *it##_next_ = NULL;                                                         \
	     it &&                                                                            \
	     (it##_next_ = dray_map_entry(dray_map_find_next(&it->member), type, member), 1); \
	     it = it##_next_)
