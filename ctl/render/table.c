/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "lib/array.h"
#include "lib/cleanup.h"

/* Longest cell of those that may come from outside. */
#define CELL_BYTES 1200

void ctl_table_add(struct ctl_table *t, const char *text, enum ctl_mood mood)
{
	struct ctl_cell cell = { strdup(*text ? text : "-"), mood };

	if (cell.text && DRAY_APPEND(t->cells, t->n, cell) == 0)
		return;
	free(cell.text);
	t->failed = true;
}

void ctl_table_column(struct ctl_table *t, const char *title, bool right)
{
	t->right[t->columns++] = right;
	ctl_table_add(t, title, CTL_MOOD_HEAD);
}

void ctl_table_add_all(struct ctl_table *t, const char *const *texts, bool head)
{
	char shown[CELL_BYTES];

	for (; *texts; texts++)
		if (head)
			ctl_table_column(t, *texts, false);
		else
			ctl_table_add(t, ctl_show_text(*texts, shown, sizeof(shown)),
				      CTL_MOOD_NONE);
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

static void cells_print(const struct ctl_table *t, FILE *f, bool color)
{
	size_t width[CTL_COLUMNS_MAX] = { 0 };

	for (size_t i = 0; i < t->n; i++)
		width[i % t->columns] =
			dray_max(width[i % t->columns], ctl_text_width(t->cells[i].text));
	for (size_t i = 0; i < t->n; i++) {
		size_t column = i % t->columns;
		int room = (int)(width[column] - ctl_text_width(t->cells[i].text));
		bool last = column + 1 == t->columns;

		if (t->right[column])
			fprintf(f, "%*s", room, "");
		ctl_mood_print(f, t->cells[i].text, t->cells[i].mood, color);
		/* A line ends without spaces. */
		if (!t->right[column] && !last)
			fprintf(f, "%*s", room, "");
		fputs(last ? "\n" : "  ", f);
	}
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
	int ret = t->failed ? -ENOMEM : 0;

	if (!ret)
		cells_print(t, f, color);
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i].text);
	free(t->cells);
	*t = CTL_TABLE_NULL;
	return ret;
}
