/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/map.h"

#include <stdlib.h>
#include <string.h>

#include "lib/hash.h"
#include "lib/random.h"

#define BUCKETS_MIN 64

static uint64_t hash(const struct dray_map *m, const void *key, size_t n)
{
	return dray_hash(m->seed, key, n);
}

static struct dray_map_node **bucket(struct dray_map *m, uint64_t h)
{
	return m->buckets ? &m->buckets[h & (m->n_buckets - 1)] : &m->single;
}

/* At the end of its bucket, so that nodes with the same key keep their order. */
static void append(struct dray_map *m, struct dray_map_node *node)
{
	struct dray_map_node **at = bucket(m, node->hash);

	while (*at)
		at = &(*at)->next;
	node->next = NULL;
	*at = node;
}

void dray_map_init(struct dray_map *m)
{
	*m = (struct dray_map){ .seed = dray_random() };
}

void dray_map_deinit(struct dray_map *m)
{
	free(m->buckets);
	*m = (struct dray_map){ .seed = m->seed };
}

static void append_all(struct dray_map *m, struct dray_map_node *first)
{
	for (struct dray_map_node *node = first, *next; node; node = next) {
		next = node->next;
		append(m, node);
	}
}

static void grow(struct dray_map *m)
{
	struct dray_map larger = { .n_buckets = dray_max(m->n_buckets * 2, (size_t)BUCKETS_MIN),
				   .n = m->n,
				   .seed = m->seed };

	larger.buckets = calloc(larger.n_buckets, sizeof(struct dray_map_node *));
	if (!larger.buckets)
		return;
	append_all(&larger, m->single);
	for (size_t i = 0; i < m->n_buckets; i++)
		append_all(&larger, m->buckets[i]);
	free(m->buckets);
	*m = larger;
}

/* The first node with this key from `node` on. */
static struct dray_map_node *find_from(struct dray_map_node *node, uint64_t h, const void *key,
				       size_t n)
{
	while (node && !(node->hash == h && node->n == n && (!n || !memcmp(node->key, key, n))))
		node = node->next;
	return node;
}

struct dray_map_node *dray_map_find(const struct dray_map *m, const void *key, size_t n)
{
	uint64_t h = hash(m, key, n);

	return find_from(m->buckets ? m->buckets[h & (m->n_buckets - 1)] : m->single, h, key, n);
}

struct dray_map_node *dray_map_find_next(const struct dray_map_node *node)
{
	return find_from(node->next, node->hash, node->key, node->n);
}

void dray_map_add(struct dray_map *m, struct dray_map_node *node, const void *key, size_t n)
{
	if (m->n >= dray_max(m->n_buckets, (size_t)1))
		grow(m);
	*node = (struct dray_map_node){ .hash = hash(m, key, n), .key = key, .n = n };
	append(m, node);
	m->n++;
}

void dray_map_del(struct dray_map *m, struct dray_map_node *node)
{
	struct dray_map_node **at = bucket(m, node->hash);

	if (!node->key)
		return;
	while (*at != node)
		at = &(*at)->next;
	*at = node->next;
	node->key = NULL;
	m->n--;
}

struct dray_map_node *dray_map_next(const struct dray_map *m, const struct dray_map_node *node)
{
	size_t i = 0;

	if (node && node->next)
		return node->next;
	if (!m->buckets)
		return node ? NULL : m->single;
	if (node)
		i = (node->hash & (m->n_buckets - 1)) + 1;
	for (; i < m->n_buckets; i++)
		if (m->buckets[i])
			return m->buckets[i];
	return NULL;
}
