/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/slab.h"

#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#define SLAB_BYTES (32u << 10)
/* Addresses: for more objects than there is memory for. */
#define RESERVED (64ull << 30)
#define PAGE 4096u

/* Its blocks follow. */
struct slab {
	struct dray_list link; /* alone: it is full */
	void *free; /* the block that was freed last, which begins with a pointer to the one before */
	uint32_t fresh; /* from here on no block has been used; from the start of the slab */
	uint32_t used;
	uint32_t block; /* bytes of each */
};

int slabs_init(struct slabs *s)
{
	uint8_t *p = mmap(NULL, RESERVED + SLAB_BYTES, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*s = (struct slabs){ .base = NULL };
	if (p == MAP_FAILED)
		return -errno;
	s->base = (uint8_t *)(((uintptr_t)p + SLAB_BYTES - 1) & ~(uintptr_t)(SLAB_BYTES - 1));
	/* the rest, in front and behind, is given up */
	if (s->base != p)
		munmap(p, (size_t)(s->base - p));
	munmap(s->base + RESERVED, (size_t)(p + SLAB_BYTES - s->base));
	dray_list_init(&s->empty);
	for (size_t i = 0; i < sizeof(s->partial) / sizeof(s->partial[0]); i++)
		dray_list_init(&s->partial[i]);
	return 0;
}

void slabs_deinit(struct slabs *s)
{
	if (!s->base)
		return;
	ASAN_UNPOISON_MEMORY_REGION(s->base, (size_t)s->n * SLAB_BYTES);
	munmap(s->base, RESERVED);
}

/* One whose pages were given back, or the next one of the range. */
static struct slab *slab_find(struct slabs *s)
{
	struct slab *b = dray_list_pop(&s->empty, struct slab, link);

	if (b || s->n == RESERVED / SLAB_BYTES)
		return b;
	b = (void *)(s->base + (size_t)s->n * SLAB_BYTES);
	if (mprotect(b, SLAB_BYTES, PROT_READ | PROT_WRITE) < 0)
		return NULL;
	s->n++;
	return b;
}

static struct slab *slab_new(struct slabs *s, uint32_t block)
{
	struct slab *b = slab_find(s);

	if (!b)
		return NULL;
	*b = (struct slab){ .fresh = sizeof(*b), .block = block };
	ASAN_POISON_MEMORY_REGION(b + 1, SLAB_BYTES - sizeof(*b));
	dray_list_init(&b->link);
	dray_list_add(&s->partial[block / SLAB_STEP], &b->link);
	return b;
}

static bool is_full(const struct slab *b)
{
	return !b->free && b->fresh + b->block > SLAB_BYTES;
}

static void *take(struct slab *b)
{
	uint8_t *p = b->free;

	if (!p) {
		p = (uint8_t *)b + b->fresh;
		b->fresh += b->block;
	}
	ASAN_UNPOISON_MEMORY_REGION(p, b->block);
	if (b->free)
		memcpy(&b->free, p, sizeof(b->free));
	b->used++;
	return p;
}

void *slabs_alloc(struct slabs *s, size_t bytes)
{
	uint32_t block = (uint32_t)((bytes + SLAB_STEP - 1) / SLAB_STEP * SLAB_STEP);
	struct slab *b = dray_list_first(&s->partial[block / SLAB_STEP], struct slab, link);
	void *p;

	if (!b)
		b = slab_new(s, block);
	if (!b)
		return NULL;
	p = take(b);
	if (is_full(b))
		dray_list_del(&b->link);
	return memset(p, 0, block);
}

static bool is_only(const struct dray_list *l, const struct dray_list *node)
{
	return l->next == node && l->prev == node;
}

void slabs_free(struct slabs *s, void *p)
{
	struct slab *b = (void *)((uintptr_t)p & ~(uintptr_t)(SLAB_BYTES - 1));
	struct dray_list *partial;

	if (!p)
		return;
	partial = &s->partial[b->block / SLAB_STEP];
	if (is_full(b))
		dray_list_add(partial, &b->link);
	memcpy(p, &b->free, sizeof(b->free));
	ASAN_POISON_MEMORY_REGION(p, b->block);
	b->free = p;
	b->used--;
	if (b->used || is_only(partial, &b->link))
		return;
	dray_list_move(&s->empty, &b->link);
	ASAN_UNPOISON_MEMORY_REGION(b + 1, SLAB_BYTES - sizeof(*b));
	(void)madvise((uint8_t *)b + PAGE, SLAB_BYTES - PAGE, MADV_DONTNEED);
}
