/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/random.h"

#define BUCKETS_MIN 64

/* Both halves of the product: each bit of the input moves every bit of what comes out. */
static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 p = (unsigned __int128)a * b;

	return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t hash(const struct dray_map *m, const void *key, size_t n)
{
	const uint8_t *p = key;
	uint64_t h = mix(m->seed ^ n, 0x9e3779b97f4a7c15u), word;

	for (; n > sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = mix(h ^ word, m->seed | 1);
	}
	word = 0;
	if (n)
		memcpy(&word, p, n);
	return mix(h ^ word, 0xd1b54a32d192ed03u);
}

static struct dray_map_node **bucket(const struct dray_map *m, uint64_t h)
{
	return &m->buckets[h & (m->n_buckets - 1)];
}

int dray_map_init(struct dray_map *m)
{
	*m = (struct dray_map){ .n_buckets = BUCKETS_MIN };
	m->buckets = calloc(m->n_buckets, sizeof(struct dray_map_node *));
	if (!m->buckets) {
		m->n_buckets = 0;
		return -ENOMEM;
	}
	m->seed = dray_random();
	return 0;
}

void dray_map_deinit(struct dray_map *m)
{
	free(m->buckets);
	*m = (struct dray_map){ .buckets = NULL };
}

static void grow(struct dray_map *m)
{
	struct dray_map larger = *m;

	larger.n_buckets *= 2;
	larger.buckets = calloc(larger.n_buckets, sizeof(struct dray_map_node *));
	if (!larger.buckets)
		return;
	for (size_t i = 0; i < m->n_buckets; i++) {
		struct dray_map_node *node = m->buckets[i], *next;

		for (; node; node = next) {
			struct dray_map_node **b = bucket(&larger, node->hash);

			next = node->next;
			node->next = *b;
			*b = node;
		}
	}
	free(m->buckets);
	*m = larger;
}

static bool has_key(const struct dray_map_node *node, uint64_t h, const void *key, size_t n)
{
	return node->hash == h && node->n == n && (!n || !memcmp(node->key, key, n));
}

struct dray_map_node *dray_map_find(const struct dray_map *m, const void *key, size_t n)
{
	uint64_t h = hash(m, key, n);
	struct dray_map_node *node = *bucket(m, h);

	while (node && !has_key(node, h, key, n))
		node = node->next;
	return node;
}

void dray_map_add(struct dray_map *m, struct dray_map_node *node, const void *key, size_t n)
{
	struct dray_map_node **b;

	if (m->n >= m->n_buckets)
		grow(m);
	*node = (struct dray_map_node){ .hash = hash(m, key, n), .key = key, .n = n };
	b = bucket(m, node->hash);
	node->next = *b;
	*b = node;
	m->n++;
}

void dray_map_del(struct dray_map *m, struct dray_map_node *node)
{
	struct dray_map_node **at = bucket(m, node->hash);

	while (*at != node)
		at = &(*at)->next;
	*at = node->next;
	m->n--;
}

struct dray_map_node *dray_map_next(const struct dray_map *m, const struct dray_map_node *node)
{
	size_t i = 0;

	if (node && node->next)
		return node->next;
	if (node)
		i = (node->hash & (m->n_buckets - 1)) + 1;
	for (; i < m->n_buckets; i++)
		if (m->buckets[i])
			return m->buckets[i];
	return NULL;
}
