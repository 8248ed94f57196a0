/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/inject/edit.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"

#define STEP 2 /* columns of indentation */

void inject_edits_deinit(struct inject_edits *e)
{
	for (size_t i = 0; i < e->n; i++)
		free(e->items[i].text);
	free(e->items);
}

/* --- writing a value ---------------------------------------------------------------------------- */

/* Text that needs no quotes: no reader takes it for a number, a truth value or null. */
static bool is_plain(const char *s)
{
	static const char *const words[] = { "true", "false", "null", "yes", "no",
					     "on",   "off",   "y",    "n" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(words); i++)
		if (!strcasecmp(s, words[i]))
			return false;
	if (!isalpha((unsigned char)*s) && *s != '/')
		return false;
	return !s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")];
}

static void flow_print(FILE *f, const json_t *value)
{
	json_dumpf(value, f, JSON_ENCODE_ANY);
}

static void scalar_print(FILE *f, const char *text)
{
	json_t *quoted;

	if (is_plain(text)) {
		fputs(text, f);
		return;
	}
	quoted = json_string(text);
	flow_print(f, quoted);
	json_decref(quoted);
}

static void block_print(FILE *f, json_t *value, size_t column);

/* What follows a key or a dash: on the same line a scalar, on the next ones a list or an object. */
static void value_print(FILE *f, json_t *value, size_t column)
{
	bool nested = (json_is_object(value) && json_object_size(value)) ||
		      (json_is_array(value) && json_array_size(value));

	fputc(nested ? '\n' : ' ', f);
	if (nested)
		block_print(f, value, column);
	else if (json_is_string(value))
		scalar_print(f, json_string_value(value));
	else
		flow_print(f, value);
	if (!nested)
		fputc('\n', f);
}

static void key_print(FILE *f, const char *key, json_t *value, size_t column)
{
	scalar_print(f, key);
	fputc(':', f);
	value_print(f, value, column + STEP);
}

/* After the dash, the first key is on the same line. */
static void item_print(FILE *f, json_t *item, size_t column)
{
	const char *key;
	json_t *value;
	bool first = true;

	fprintf(f, "%*s-", (int)column, "");
	if (!json_is_object(item) || !json_object_size(item)) {
		value_print(f, item, column + STEP);
		return;
	}
	json_object_foreach(item, key, value)
	{
		fprintf(f, "%*s", first ? 1 : (int)column + STEP, "");
		key_print(f, key, value, column + STEP);
		first = false;
	}
}

static void block_print(FILE *f, json_t *value, size_t column)
{
	const char *key;
	json_t *item;
	size_t i;

	json_array_foreach(value, i, item) item_print(f, item, column);
	json_object_foreach(value, key, item)
	{
		fprintf(f, "%*s", (int)column, "");
		key_print(f, key, item, column);
	}
}

/* --- places ------------------------------------------------------------------------------------- */

/* The end of the last line of a block. A comment on that line belongs to it, and comments on later lines do not. */
static size_t block_end(const struct ctl_yaml *y, const yaml_node_t *block)
{
	const struct ctl_yaml_token *last = ctl_yaml_token_before(y, block->end_mark.index);
	size_t begin = ctl_yaml_offset(y, last->begin), end = ctl_yaml_offset(y, last->end);
	const char *text = y->text + begin;

	/* The newlines behind a text with | or > are part of its token, but of the text only if a + says so. */
	if (last->type == YAML_SCALAR_TOKEN && strchr("|>", *text) &&
	    memchr(text, '+', 1 + strspn(text + 1, "+123456789")))
		return end - (y->text[end - 1] == '\n');
	while (end > begin && isspace((unsigned char)y->text[end - 1]))
		end--;
	return end + strcspn(y->text + end, "\n");
}

static size_t column_of(const struct inject_edits *e, const yaml_node_t *node)
{
	return ctl_yaml_first_token(e->yaml, node)->column;
}

static size_t line_begin(const struct ctl_yaml *y, size_t at)
{
	while (at && y->text[at - 1] != '\n')
		at--;
	return at;
}

/* --- edits -------------------------------------------------------------------------------------- */

/* Takes over the text. */
static void edit_add(struct inject_edits *e, size_t at, size_t n_removed, unsigned depth,
		     char *text)
{
	struct inject_edit *more = text ? reallocarray(e->items, e->n + 1, sizeof(*more)) : NULL;

	if (!more) {
		free(text);
		e->no_memory = true;
		return;
	}
	e->items = more;
	e->items[e->n++] = (struct inject_edit){
		.at = at, .n_removed = n_removed, .depth = depth, .text = text
	};
}

/* A key's value as lines or as JSON; without a key an element. */
static char *shown(const char *key, json_t *value, bool flow, size_t column)
{
	char *text = NULL;
	size_t n;
	FILE *f = value ? open_memstream(&text, &n) : NULL;

	if (!f)
		return NULL;
	if (flow && key)
		fprintf(f, "\"%s\": ", key);
	if (flow)
		flow_print(f, value);
	else if (!key)
		item_print(f, value, column);
	else {
		fprintf(f, "%*s", (int)column, "");
		key_print(f, key, value, column);
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

/* Adds lines after a block. The text before them may have no newline at its end. */
static void lines_add(struct inject_edits *e, size_t end, unsigned depth, char *text)
{
	char *moved = NULL;

	if (text && e->yaml->text[end] == '\n') {
		edit_add(e, end + 1, 0, depth, text);
		return;
	}
	/* Its own newline moves to the front. */
	if (text && asprintf(&moved, "\n%.*s", (int)strlen(text) - 1, text) < 0)
		moved = NULL;
	free(text);
	edit_add(e, end, 0, depth, moved);
}

/*
 * Adds text behind the last token in the brackets, and not behind a comment there. It needs a comma if an element, or an earlier
 * addition, precedes it. libyaml places an empty value before the closing bracket.
 */
static void flow_add_last(struct inject_edits *e, const yaml_node_t *node, char *text)
{
	size_t closing = node->end_mark.index - 1;
	const struct ctl_yaml_token *last = ctl_yaml_token_before(e->yaml, closing);
	bool empty_value = last->type == YAML_VALUE_TOKEN;
	size_t at = ctl_yaml_offset(e->yaml, empty_value ? closing : last->end);
	bool added = false;
	char *joined = NULL;

	for (size_t i = 0; i < e->n; i++)
		added |= e->items[i].at == at && !e->items[i].n_removed;
	if (text && asprintf(&joined, "%s%s",
			     !added && last == ctl_yaml_first_token(e->yaml, node) ? "" :
			     !added && last->type == YAML_FLOW_ENTRY_TOKEN         ? " " :
										     ", ",
			     text) < 0)
		joined = NULL;
	free(text);
	edit_add(e, at, 0, 0, joined);
}

void inject_add_key(struct inject_edits *e, yaml_node_t *mapping, const char *key, json_t *value)
{
	size_t column = column_of(e, mapping);
	bool flow = ctl_yaml_is_flow(mapping);
	char *text = shown(key, value, flow, column);

	json_decref(value);
	if (flow)
		flow_add_last(e, mapping, text);
	else
		lines_add(e, block_end(e->yaml, mapping), 2 * (unsigned)column, text);
}

void inject_add_last(struct inject_edits *e, yaml_node_t *sequence, json_t *value)
{
	size_t column = column_of(e, sequence);
	bool flow = ctl_yaml_is_flow(sequence);
	char *text = shown(NULL, value, flow, column);

	json_decref(value);
	if (flow)
		flow_add_last(e, sequence, text);
	else /* An element comes before a key with the same indentation, which follows the list. */
		lines_add(e, block_end(e->yaml, sequence), 2 * (unsigned)column + 1, text);
}

void inject_add_first(struct inject_edits *e, yaml_node_t *sequence, json_t *value)
{
	const struct ctl_yaml_token *first = ctl_yaml_first_token(e->yaml, sequence);
	size_t column = first->column, at = ctl_yaml_offset(e->yaml, first->begin);
	bool flow = ctl_yaml_is_flow(sequence);
	bool empty = sequence->data.sequence.items.top == sequence->data.sequence.items.start;
	char *text = shown(NULL, value, flow, column), *joined = NULL;

	json_decref(value);
	if (!flow) {
		edit_add(e, line_begin(e->yaml, at), 0, 2 * (unsigned)column + 1, text);
		return;
	}
	if (text && asprintf(&joined, "%s%s", text, empty ? "" : ", ") < 0)
		joined = NULL;
	free(text);
	edit_add(e, at + 1, 0, 0, joined);
}

void inject_replace(struct inject_edits *e, const yaml_node_t *scalar, json_t *value)
{
	size_t at = ctl_yaml_offset(e->yaml, scalar->start_mark.index);
	size_t end = ctl_yaml_offset(e->yaml, scalar->end_mark.index);
	char *text = shown(NULL, value, true, 0), *joined = NULL;

	json_decref(value);
	/* An empty value begins right behind its colon. */
	if (text && asprintf(&joined, "%s%s",
			     at == end && at && e->yaml->text[at - 1] == ':' ? " " : "", text) < 0)
		joined = NULL;
	free(text);
	edit_add(e, at, end - at, 0, joined);
}

static int edit_compare(const void *a, const void *b)
{
	const struct inject_edit *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->depth == y->depth ? 0 : x->depth > y->depth ? -1 : 1;
}

void inject_write(struct inject_edits *e, FILE *f)
{
	const struct ctl_yaml *y = e->yaml;
	size_t at = 0;

	/* qsort of glibc keeps the order of equal elements, unless it has no memory; insertion sort always does. */
	for (size_t i = 1; i < e->n; i++)
		for (size_t j = i; j && edit_compare(&e->items[j - 1], &e->items[j]) > 0; j--) {
			struct inject_edit swap = e->items[j];

			e->items[j] = e->items[j - 1];
			e->items[j - 1] = swap;
		}
	for (size_t i = 0; i < e->n; i++) {
		fwrite(y->text + at, 1, e->items[i].at - at, f);
		fputs(e->items[i].text, f);
		at = e->items[i].at + e->items[i].n_removed;
	}
	fwrite(y->text + at, 1, y->n_bytes - at, f);
}
