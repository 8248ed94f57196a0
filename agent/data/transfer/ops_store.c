/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/ops_store.h"

#include <stdlib.h>
#include <string.h>

/* Bytes kept for reuse; further blocks are freed. */
#define KEPT_MAX (2u << 20)

static uint64_t class_bytes(uint32_t class)
{
	return ((uint64_t)4 << class) * sizeof(struct xfer_op);
}

static uint32_t class_of(uint32_t n)
{
	return n <= 4 ? 0 : 30 - (uint32_t)__builtin_clz(n - 1);
}

struct xfer_op *ops_store_get(struct ops_store *s, uint32_t n)
{
	uint32_t class = class_of(n);
	void *p = s->free[class];

	if (!p)
		return malloc(class_bytes(class));
	memcpy(&s->free[class], p, sizeof(p));
	s->kept -= class_bytes(class);
	return p;
}

#define SLAB_BYTES (OPS_PINNED_BYTES / OPS_SLABS)

_Static_assert((4u << (OPS_CLASSES - 1)) == DMSG_OPS_MAX, "the largest class is a slab");

static bool is_pinned(const struct ops_store *s, const void *p)
{
	return s->pinned && (uintptr_t)p - (uintptr_t)s->pinned < OPS_PINNED_BYTES;
}

static bool slab_has(const struct ops_slab *b, uint32_t class)
{
	return !b->used || (b->class == class && (b->free || b->fresh));
}

/* The block that was returned longest ago goes first, because no device has it in its caches any more. */
static void *slab_get(struct ops_slab *b, uint8_t *end)
{
	void *p = b->free;

	b->used++;
	if (!p)
		return end - b->fresh-- * class_bytes(b->class);
	memcpy(&b->free, p, sizeof(p));
	return p;
}

struct xfer_op *ops_store_get_pinned(struct ops_store *s, uint32_t n)
{
	uint32_t class = class_of(n), found = OPS_SLABS;
	struct ops_slab *b;

	if (!s->pinned || n < OPS_PINNED_MIN)
		return NULL;
	/* a slab that is in use, so that others stay free for other classes */
	for (uint32_t i = 0; i < OPS_SLABS; i++)
		if (slab_has(&s->slabs[i], class) && (found == OPS_SLABS || !s->slabs[found].used))
			found = i;
	if (found == OPS_SLABS)
		return NULL;
	b = &s->slabs[found];
	if (!b->used && (b->class != class || !(b->free || b->fresh)))
		*b = (struct ops_slab){ .class = class,
					.fresh = (uint32_t)(SLAB_BYTES / class_bytes(class)) };
	return slab_get(b, s->pinned + (found + 1) * SLAB_BYTES);
}

static void slab_put(struct ops_slab *b, void *p)
{
	void *none = NULL;

	memcpy(p, &none, sizeof(none));
	if (b->free)
		memcpy(b->last, &p, sizeof(p));
	else
		b->free = p;
	b->last = p;
	b->used--;
}

void ops_store_put(struct ops_store *s, struct xfer_op *ops, uint32_t n)
{
	uint32_t class = class_of(n);
	void *p = ops;

	if (is_pinned(s, p)) {
		slab_put(&s->slabs[((uintptr_t)p - (uintptr_t)s->pinned) / SLAB_BYTES], p);
		return;
	}
	if (s->kept + class_bytes(class) > KEPT_MAX) {
		free(p);
		return;
	}
	memcpy(p, &s->free[class], sizeof(p));
	s->free[class] = p;
	s->kept += class_bytes(class);
}

void ops_store_deinit(struct ops_store *s)
{
	for (unsigned i = 0; i < OPS_CLASSES; i++) {
		while (s->free[i]) {
			void *p = s->free[i];

			memcpy(&s->free[i], p, sizeof(p));
			free(p);
		}
	}
	s->kept = 0;
}
