/* SPDX-License-Identifier: Apache-2.0 */
#include "client/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 64

/* Bytes that a block takes. */
static uint64_t round_up(uint64_t bytes)
{
	return (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
}

int dc_arena_init(struct arena *a, uint64_t bytes)
{
	*a = (struct arena){ .bytes = bytes / ARENA_UNIT * ARENA_UNIT };
	a->free = malloc(FIRST_CAP * sizeof(*a->free));
	if (!a->free)
		return -ENOMEM;
	a->cap = FIRST_CAP;
	if (a->bytes)
		a->free[a->n++] = (struct arena_extent){ 0, a->bytes };
	return 0;
}

void dc_arena_deinit(struct arena *a)
{
	free(a->free);
	*a = (struct arena){ 0 };
}

/* Makes room for so many free extents. */
static bool reserve(struct arena *a, uint32_t entries)
{
	struct arena_extent *p;
	uint32_t cap = a->cap;

	while (cap < entries)
		cap *= 2;
	if (cap == a->cap)
		return true;
	p = realloc(a->free, cap * sizeof(*p));
	if (!p)
		return false;
	a->free = p;
	a->cap = cap;
	return true;
}

bool dc_arena_alloc(struct arena *a, uint64_t bytes, uint64_t *ret_offset)
{
	struct arena_extent *e;

	bytes = round_up(bytes);
	if (!bytes || bytes > a->bytes - a->used)
		return false;
	/* the most there can be after blocks are freed, in any order */
	if (!reserve(a, a->blocks + 2))
		return false;
	for (uint32_t i = 0; i < a->n; i++) {
		uint32_t at = a->next + i < a->n ? a->next + i : a->next + i - a->n;

		e = &a->free[at];
		if (e->length < bytes)
			continue;
		*ret_offset = e->offset;
		e->offset += bytes;
		e->length -= bytes;
		if (!e->length) {
			a->n--;
			memmove(e, e + 1, (a->n - at) * sizeof(*e));
		}
		a->next = at < a->n ? at : 0;
		a->used += bytes;
		a->blocks++;
		return true;
	}
	return false;
}

/* Index of the first free extent after `offset`. */
static uint32_t position(const struct arena *a, uint64_t offset)
{
	uint32_t lo = 0, hi = a->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (a->free[mid].offset < offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

void dc_arena_free(struct arena *a, uint64_t offset, uint64_t bytes)
{
	uint32_t at = position(a, offset);
	struct arena_extent *e = &a->free[at];
	bool joins_left, joins_right;

	bytes = round_up(bytes);
	a->used -= bytes;
	a->blocks--;
	joins_left = at > 0 && e[-1].offset + e[-1].length == offset;
	joins_right = at < a->n && offset + bytes == e->offset;
	if (joins_left && joins_right) {
		e[-1].length += bytes + e->length;
		a->n--;
		memmove(e, e + 1, (a->n - at) * sizeof(*e));
	} else if (joins_left) {
		e[-1].length += bytes;
	} else if (joins_right) {
		e->offset = offset;
		e->length += bytes;
	} else {
		memmove(e + 1, e, (a->n - at) * sizeof(*e));
		*e = (struct arena_extent){ offset, bytes };
		a->n++;
	}
	if (a->next >= a->n)
		a->next = 0;
}
