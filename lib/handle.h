/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generation handles. A handle is {kind, generation:24, index:24}; 0 is never valid. A table maps handles to pointers it does
 * not own. A stale handle is not found, because a slot's generation changes when it is freed; nor is the handle of another
 * kind. Handles of kinds above 0 are below 2^53, so that a JSON reader that has only doubles can read them. Tables of kind 0
 * are for handles that leave the process only to come back; their generation has 32 bits. Not thread-safe: one table, one thread.
 */
#pragma once

#include <stdint.h>
#include <stddef.h>

typedef uint64_t dray_handle;

/* Largest kind, and most live handles of one table. */
#define DRAY_HANDLE_KIND_MAX 31
#define DRAY_HANDLES_MAX 0xffffffu

static inline uint32_t dray_handle_index(dray_handle h)
{
	return (uint32_t)h & DRAY_HANDLES_MAX;
}

/* The kind of a handle, unless it is of a table of kind 0; above DRAY_HANDLE_KIND_MAX: not a handle. */
static inline unsigned dray_handle_kind(dray_handle h)
{
	return (unsigned)(h >> 48);
}

struct dray_handle_slot {
	void *p;
	uint32_t tag; /* kind and generation, the upper bits of the handle */
	uint32_t next_free;
};

struct dray_handles {
	struct dray_handle_slot *slots;
	uint32_t cap, used, count, free_head, max;
	uint32_t first_tag, generation_max; /* of a slot */
};

/* max: most live handles; more than DRAY_HANDLES_MAX has no effect. kind: up to DRAY_HANDLE_KIND_MAX. */
void dray_handles_init(struct dray_handles *t, uint32_t max, unsigned kind);
/* The same of kind 0, with handles that other tables do not have, such as that of the same client's former session. */
void dray_handles_init_apart(struct dray_handles *t, uint32_t max);
void dray_handles_deinit(struct dray_handles *t);

/* New handle for p (not NULL). 0, -ENOSPC at max, -ENOMEM. */
int dray_handles_add(struct dray_handles *t, void *p, dray_handle *ret_handle);

/* NULL if unknown, stale or of another kind. */
static inline void *dray_handles_get(const struct dray_handles *t, dray_handle h)
{
	uint32_t i = dray_handle_index(h);

	if (i >= t->used || t->slots[i].tag != h >> 24)
		return NULL;
	return t->slots[i].p;
}

/* Removes the handle and returns its pointer; NULL if unknown. */
void *dray_handles_del(struct dray_handles *t, dray_handle h);

/*
 * The same in two steps, for an index that other threads still use: the handle is stale at once and no longer counts, its
 * index is reused only after dray_handles_reuse(), which follows once.
 */
void *dray_handles_retire(struct dray_handles *t, dray_handle h);
void dray_handles_reuse(struct dray_handles *t, dray_handle h);

/*
 * Iterates: start with *cursor = 0; returns the next live pointer, or NULL at the end. The entry just
 * returned may be deleted in between.
 */
void *dray_handles_next(const struct dray_handles *t, uint32_t *cursor, dray_handle *ret_handle);

/* Pointers by the index of handles that another thread's table has given out. Starts as zeros. */
struct dray_slots {
	void **v;
	uint32_t n;
};

/* With memory of the reserve (lib/ballast.h). */
void dray_slots_set(struct dray_slots *s, dray_handle h, void *p);
void dray_slots_deinit(struct dray_slots *s);

/* What was set for a handle with this index; NULL: nothing. The generation is not compared. */
static inline void *dray_slots_get(const struct dray_slots *s, dray_handle h)
{
	return dray_handle_index(h) < s->n ? s->v[dray_handle_index(h)] : NULL;
}
