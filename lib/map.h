/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash table of nodes embedded in their owners, by a key of bytes that stays the owner's. Keys may come from
 * foreign hands: each table has a random seed. Not thread-safe: one table, one thread at a time.
 */
#ifndef DRAY_LIB_MAP_H
#define DRAY_LIB_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"

struct dray_map_node {
	struct dray_map_node *next;
	uint64_t hash;
	const void *key;
	size_t n;
};

struct dray_map {
	struct dray_map_node **buckets;
	size_t n_buckets, n; /* n: nodes */
	uint64_t seed;
};

/* 0 or -ENOMEM. */
int dray_map_init(struct dray_map *m);

/* The nodes are left alone. */
void dray_map_deinit(struct dray_map *m);

/* NULL if there is none. */
struct dray_map_node *dray_map_find(const struct dray_map *m, const void *key, size_t n);

/* The key must not be there yet. Never fails: a table that cannot grow is a slow one. */
void dray_map_add(struct dray_map *m, struct dray_map_node *node, const void *key, size_t n);

/* The node must be there. */
void dray_map_del(struct dray_map *m, struct dray_map_node *node);

/* Each node in turn, from NULL; the one just returned must not be deleted before the next is asked for. */
struct dray_map_node *dray_map_next(const struct dray_map *m, const struct dray_map_node *node);

#define dray_map_entry(node, type, member)                                     \
	({                                                                     \
		struct dray_map_node *node_ = (node);                          \
		node_ ? (type *)dray_container_of(node_, type, member) : NULL; \
	})

#endif
