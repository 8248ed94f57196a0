/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned columns with a head, for people. Errors of memory show at the end. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "schema/gen/drayctl.h"

/* The colour of a text: good, in progress or bad. */
enum ctl_mood { CTL_MOOD_NONE, CTL_MOOD_GOOD, CTL_MOOD_BUSY, CTL_MOOD_BAD, CTL_MOOD_HEAD };

struct ctl_cell {
	char *text;
	enum ctl_mood mood;
};

struct ctl_table {
	unsigned columns;
	bool right[CTL_COLUMNS_MAX]; /* aligned to the right, as numbers are */
	struct ctl_cell *cells;
	size_t n;
	bool failed; /* out of memory */
};

#define CTL_TABLE_NULL ((struct ctl_table){ .columns = 0 })

/* Adds a column, before any row. */
void ctl_table_column(struct ctl_table *t, const char *title, bool right);

/* Adds a cell; cells come row by row. The text is copied, "-" takes the place of an empty one. */
void ctl_table_add(struct ctl_table *t, const char *text, enum ctl_mood mood);
/* Adds columns aligned to the left, as in ctl_table_head(t, "A", "B"); or cells without a mood, as ctl_show_text() shows them. */
#define ctl_table_head(t, ...) \
	ctl_table_add_all((t), (const char *const[]){ __VA_ARGS__, NULL }, true)
#define ctl_table_cells(t, ...) \
	ctl_table_add_all((t), (const char *const[]){ __VA_ARGS__, NULL }, false)
void ctl_table_add_all(struct ctl_table *t, const char *const *texts, bool head);

/* Prints the table and frees it. 0 or -ENOMEM, if any call failed. */
int ctl_table_finish(struct ctl_table *t, FILE *f, bool color);

/* The mood of a state's name. */
enum ctl_mood ctl_mood_of(const char *state);

void ctl_mood_print(FILE *f, const char *text, enum ctl_mood mood, bool color);
