/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/handle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/ballast.h"
#include "lib/random.h"

#define NO_SLOT UINT32_MAX
#define GENERATION_MAX 0xffffffu

void dray_handles_init(struct dray_handles *t, uint32_t max, unsigned kind)
{
	*t = (struct dray_handles){ .free_head = NO_SLOT,
				    .max = dray_min(max, DRAY_HANDLES_MAX),
				    .first_tag = kind << 24 | 1,
				    .generation_max = kind ? GENERATION_MAX : UINT32_MAX };
}

void dray_handles_init_apart(struct dray_handles *t, uint32_t max)
{
	dray_handles_init(t, max, 0);
	t->first_tag = (uint32_t)dray_random() | 1;
}

static dray_handle handle_of(const struct dray_handles *t, uint32_t i)
{
	return (uint64_t)t->slots[i].tag << 24 | i;
}

void dray_handles_deinit(struct dray_handles *t)
{
	free(t->slots);
	*t = (struct dray_handles){ .free_head = NO_SLOT,
				    .max = t->max,
				    .first_tag = t->first_tag,
				    .generation_max = t->generation_max };
}

int dray_handles_add(struct dray_handles *t, void *p, dray_handle *ret_handle)
{
	uint32_t i;

	if (t->count >= t->max)
		return -ENOSPC;
	if (t->free_head != NO_SLOT) {
		i = t->free_head;
		t->free_head = t->slots[i].next_free;
	} else {
		if (t->used == t->cap) {
			uint32_t cap = t->cap ? t->cap * 2 : 16;
			void *slots = realloc(t->slots, cap * sizeof(*t->slots));

			if (!slots)
				return -ENOMEM;
			t->slots = slots;
			t->cap = cap;
		}
		i = t->used++;
		t->slots[i].tag = t->first_tag;
	}
	t->slots[i].p = p;
	t->count++;
	*ret_handle = handle_of(t, i);
	return 0;
}

void *dray_handles_retire(struct dray_handles *t, dray_handle h)
{
	void *p = dray_handles_get(t, h);
	struct dray_handle_slot *s;

	if (!p)
		return NULL;
	s = &t->slots[dray_handle_index(h)];
	s->p = NULL;
	/* the generation wraps to 1 */
	if (!(++s->tag & t->generation_max))
		s->tag = t->first_tag;
	t->count--;
	return p;
}

void dray_handles_reuse(struct dray_handles *t, dray_handle h)
{
	t->slots[dray_handle_index(h)].next_free = t->free_head;
	t->free_head = dray_handle_index(h);
}

void *dray_handles_del(struct dray_handles *t, dray_handle h)
{
	void *p = dray_handles_retire(t, h);

	if (p)
		dray_handles_reuse(t, h);
	return p;
}

void *dray_handles_next(const struct dray_handles *t, uint32_t *cursor, dray_handle *ret_handle)
{
	while (*cursor < t->used) {
		uint32_t i = (*cursor)++;

		if (!t->slots[i].p)
			continue;
		if (ret_handle)
			*ret_handle = handle_of(t, i);
		return t->slots[i].p;
	}
	return NULL;
}

void dray_slots_set(struct dray_slots *s, dray_handle h, void *p)
{
	uint32_t i = dray_handle_index(h);

	if (i >= s->n) {
		uint32_t n = s->n ? s->n : 16;

		while (n <= i)
			n *= 2;
		s->v = dray_array_grow_sure(s->v, s->n, n, sizeof(*s->v));
		s->n = n;
	}
	s->v[i] = p;
}

void dray_slots_deinit(struct dray_slots *s)
{
	free(s->v);
	*s = (struct dray_slots){ 0 };
}
