/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/stream_table.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/array.h"
#include "lib/assert.h"
#include "lib/cleanup.h"

void stream_table_deinit(struct stream_table *t)
{
	free(t->entries);
	free(t->windows);
	*t = STREAM_TABLE_NULL;
}

/* NULL: too many workers, or no memory. */
static struct stream_window *window_get(struct stream_table *t, uint32_t worker)
{
	const struct stream_window w = { .worker = worker };

	for (size_t i = 0; i < t->n_windows; i++)
		if (t->windows[i].worker == worker)
			return &t->windows[i];
	if (t->n_windows == STREAM_WINDOWS_MAX || DRAY_APPEND(t->windows, t->n_windows, w) < 0)
		return NULL;
	return &t->windows[t->n_windows - 1];
}

static uint64_t *word_of(struct stream_window *w, uint32_t counter, uint64_t *ret_bit)
{
	*ret_bit = (uint64_t)1 << counter % 64;
	return &w->used[counter % STREAM_WINDOW / 64];
}

int stream_table_use(struct stream_table *t, uint64_t id)
{
	struct stream_window *w = window_get(t, (uint32_t)(id >> 32));
	uint32_t counter = (uint32_t)id;
	uint64_t *word, bit;

	if (!w)
		return -ENOSPC;
	if (counter > w->high) {
		uint32_t added = dray_min(counter - w->high, (uint32_t)STREAM_WINDOW);

		for (uint32_t i = 0; i < added; i++) {
			word = word_of(w, counter - i, &bit);
			*word &= ~bit;
		}
		w->high = counter;
	}
	word = word_of(w, counter, &bit);
	if (w->high - counter >= STREAM_WINDOW || *word & bit)
		return -EEXIST;
	*word |= bit;
	return 0;
}

int stream_table_add(struct stream_table *t, uint64_t id, unsigned worker)
{
	const struct stream_entry e = { .id = id, .worker = worker };

	return t->n == STREAM_TABLE_MAX ? -ENOSPC : DRAY_APPEND(t->entries, t->n, e);
}

struct stream_entry *stream_table_find(struct stream_table *t, uint64_t id)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->entries[i].id == id)
			return &t->entries[i];
	return NULL;
}

void stream_table_del(struct stream_table *t, struct stream_entry *e)
{
	dray_assert(e >= t->entries && e < t->entries + t->n);
	*e = t->entries[--t->n];
}
