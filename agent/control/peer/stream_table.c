/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/stream_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/cleanup.h"

#define WORDS (STREAM_WINDOW / 64)

void stream_table_deinit(struct stream_table *t)
{
	free(t->entries);
	free(t->windows);
	*t = STREAM_TABLE_NULL;
}

/* Bit i becomes bit i + by. */
static void shift(uint64_t used[WORDS], uint32_t by)
{
	uint32_t words = by / 64, bits = by % 64;

	for (uint32_t i = WORDS; i-- > 0;) {
		uint64_t v = 0;

		if (i >= words) {
			v = used[i - words] << bits;
			if (bits && i > words)
				v |= used[i - words - 1] >> (64 - bits);
		}
		used[i] = v;
	}
}

static int window_get(struct stream_table *t, uint32_t worker, struct stream_window **ret)
{
	struct stream_window *w;

	for (uint32_t i = 0; i < t->n_windows; i++) {
		if (t->windows[i].worker == worker) {
			*ret = &t->windows[i];
			return 0;
		}
	}
	if (t->n_windows == STREAM_WINDOWS_MAX)
		return -ENOSPC;
	w = realloc(t->windows, (t->n_windows + 1) * sizeof(*w));
	if (!w)
		return -ENOMEM;
	t->windows = w;
	w += t->n_windows++;
	*w = (struct stream_window){ .worker = worker };
	*ret = w;
	return 0;
}

int stream_table_use(struct stream_table *t, uint64_t id)
{
	uint32_t counter = (uint32_t)id, back;
	struct stream_window *w;
	uint64_t bit;
	int r;

	r = window_get(t, (uint32_t)(id >> 32), &w);
	if (r < 0)
		return r;
	if (counter > w->high) {
		if (counter - w->high >= STREAM_WINDOW)
			memset(w->used, 0, sizeof(w->used));
		else
			shift(w->used, counter - w->high);
		w->high = counter;
	}
	back = w->high - counter;
	if (back >= STREAM_WINDOW)
		return -EEXIST;
	bit = (uint64_t)1 << back % 64;
	if (w->used[back / 64] & bit)
		return -EEXIST;
	w->used[back / 64] |= bit;
	return 0;
}

int stream_table_add(struct stream_table *t, uint64_t id, unsigned worker)
{
	struct stream_entry *e;
	uint32_t cap;

	if (t->n == STREAM_TABLE_MAX)
		return -ENOSPC;
	if (t->n == t->cap) {
		cap = t->cap ? t->cap * 2 : 8;
		e = realloc(t->entries, cap * sizeof(*e));
		if (!e)
			return -ENOMEM;
		t->entries = e;
		t->cap = cap;
	}
	t->entries[t->n++] = (struct stream_entry){ .id = id, .worker = worker };
	return 0;
}

struct stream_entry *stream_table_find(struct stream_table *t, uint64_t id)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->entries[i].id == id)
			return &t->entries[i];
	return NULL;
}

void stream_table_del(struct stream_table *t, struct stream_entry *e)
{
	dray_assert(e >= t->entries && e < t->entries + t->n);
	*e = t->entries[--t->n];
}
