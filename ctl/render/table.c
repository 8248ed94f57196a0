/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "lib/cleanup.h"

void ctl_table_add(struct ctl_table *t, const char *text, enum ctl_mood mood)
{
	struct ctl_cell *cell;

	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;
		struct ctl_cell *cells = reallocarray(t->cells, cap, sizeof(*cells));

		if (!cells) {
			t->failed = true;
			return;
		}
		t->cells = cells;
		t->cap = cap;
	}
	cell = &t->cells[t->n];
	cell->text = strdup(text);
	cell->mood = mood;
	if (cell->text)
		t->n++;
	else
		t->failed = true;
}

void ctl_table_head(struct ctl_table *t, const char *const *titles)
{
	for (; *titles; titles++) {
		t->columns++;
		ctl_table_add(t, *titles, CTL_MOOD_HEAD);
	}
}

void ctl_table_cell(struct ctl_table *t, const char *text)
{
	ctl_table_add(t, *text ? text : "-", CTL_MOOD_NONE);
}

void ctl_mood_print(FILE *f, const char *text, enum ctl_mood mood, bool color)
{
	static const char *const codes[] = {
		[CTL_MOOD_GOOD] = "32",
		[CTL_MOOD_BUSY] = "33",
		[CTL_MOOD_BAD] = "31",
		[CTL_MOOD_HEAD] = "1",
	};

	if (color && mood != CTL_MOOD_NONE)
		fprintf(f, "\033[%sm%s\033[0m", codes[mood], text);
	else
		fputs(text, f);
}

static void pad(FILE *f, size_t n)
{
	while (n--)
		fputc(' ', f);
}

int ctl_table_print(const struct ctl_table *t, FILE *f, bool color)
{
	size_t width[CTL_TABLE_COLUMNS_MAX] = { 0 };

	if (t->failed)
		return -ENOMEM;
	for (size_t i = 0; i < t->n; i++)
		width[i % t->columns] =
			dray_max(width[i % t->columns], ctl_text_width(t->cells[i].text));
	for (size_t i = 0; i < t->n; i++) {
		size_t column = i % t->columns;
		size_t room = width[column] - ctl_text_width(t->cells[i].text);
		bool last = column + 1 == t->columns;

		if (t->right[column])
			pad(f, room);
		ctl_mood_print(f, t->cells[i].text, t->cells[i].mood, color);
		/* no spaces at the end of a line */
		if (!t->right[column] && !last)
			pad(f, room);
		fputs(last ? "\n" : "  ", f);
	}
	return 0;
}

void ctl_table_deinit(struct ctl_table *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i].text);
	free(t->cells);
	*t = CTL_TABLE_NULL;
}

enum ctl_mood ctl_mood_of(const char *state)
{
	static const struct {
		const char *state;
		enum ctl_mood mood;
	} moods[] = {
		{ "running", CTL_MOOD_GOOD },     { "ready", CTL_MOOD_GOOD },
		{ "live", CTL_MOOD_GOOD },        { "draining", CTL_MOOD_BUSY },
		{ "drained", CTL_MOOD_BUSY },     { "connecting", CTL_MOOD_BUSY },
		{ "handshaking", CTL_MOOD_BUSY }, { "hello", CTL_MOOD_BUSY },
		{ "claim", CTL_MOOD_BUSY },       { "removing", CTL_MOOD_BUSY },
		{ "waiting", CTL_MOOD_BUSY },     { "stopping", CTL_MOOD_BUSY },
		{ "notifying", CTL_MOOD_BUSY },   { "backoff", CTL_MOOD_BAD },
		{ "closed", CTL_MOOD_BAD },       { "probing", CTL_MOOD_BUSY },
		{ "lost", CTL_MOOD_BAD },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(moods); i++)
		if (!strcmp(moods[i].state, state))
			return moods[i].mood;
	return CTL_MOOD_NONE;
}

int ctl_table_finish(struct ctl_table *t, FILE *f, bool color)
{
	int r = ctl_table_print(t, f, color);

	ctl_table_deinit(t);
	return r;
}
