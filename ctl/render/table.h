/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned columns with a head, for people. */
#ifndef DRAY_CTL_RENDER_TABLE_H
#define DRAY_CTL_RENDER_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#define CTL_TABLE_COLUMNS_MAX 16

/* What is good, under way, or bad; in colour only. */
enum ctl_mood { CTL_MOOD_NONE, CTL_MOOD_GOOD, CTL_MOOD_BUSY, CTL_MOOD_BAD, CTL_MOOD_HEAD };

struct ctl_cell {
	char *text;
	enum ctl_mood mood;
};

struct ctl_table {
	unsigned columns;
	bool right[CTL_TABLE_COLUMNS_MAX]; /* numbers stand at the right */
	struct ctl_cell *cells;
	size_t n, cap;
	bool failed; /* no memory */
};

#define CTL_TABLE_NULL ((struct ctl_table){ .columns = 0 })

/* Cells come row by row, the head first. The text is copied. */
void ctl_table_add(struct ctl_table *t, const char *text, enum ctl_mood mood);

/* Column titles, up to NULL. */
void ctl_table_head(struct ctl_table *t, const char *const *titles);
/* A text without a mood, "-" for an empty one. */
void ctl_table_cell(struct ctl_table *t, const char *text);

/* 0 or -ENOMEM, if an earlier call failed. */
int ctl_table_print(const struct ctl_table *t, FILE *f, bool color);
void ctl_table_deinit(struct ctl_table *t);
/* Both. */
int ctl_table_finish(struct ctl_table *t, FILE *f, bool color);

/* Of a word for a state. */
enum ctl_mood ctl_mood_of(const char *state);

/* The text in its colour. */
void ctl_mood_print(FILE *f, const char *text, enum ctl_mood mood, bool color);

#endif
