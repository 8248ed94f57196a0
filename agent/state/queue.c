/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the text that are kept: a long one is cut between characters. -EMSGSIZE for a name that is too long. */
static ssize_t text_length(const struct state_field *f, const char *s)
{
	size_t n = strnlen(s, STATE_TEXT_MAX + 1);

	if (n <= STATE_TEXT_MAX)
		return (ssize_t)n;
	if (f->type == STATE_FIELD_NAME)
		return -EMSGSIZE;
	for (n = STATE_TEXT_MAX; n && ((unsigned char)s[n] & 0xc0) == 0x80; n--)
		;
	return (ssize_t)n;
}

static const char *text_of(const union state_row *row, const struct state_field *f)
{
	return f->type > STATE_FIELD_TEXT ? NULL : *(const char *const *)row_member(row, f);
}

/* Appends the field's bytes at `at` and returns their end. Numbers are appended only as a part of the key. */
static char *field_copy(struct change *c, const struct state_field *f, bool key, char *at)
{
	size_t number = f->type == STATE_FIELD_U32 ? sizeof(uint32_t) : sizeof(uint64_t);
	const char *text = text_of(&c->row, f);
	size_t n;

	if (!text) {
		if (key)
			memcpy(at, row_member(&c->row, f), number);
		return key ? at + number : at;
	}
	n = (size_t)text_length(f, text);
	memcpy(at, text, n);
	at[n] = '\0';
	*(const char **)row_member(&c->row, f) = at;
	return at + n + 1;
}

struct change *change_new(enum state_kind kind, bool drop, const union state_row *row)
{
	const struct state_format *format = &dray_state_formats[kind];
	unsigned n = drop ? format->n_key : format->n;
	size_t bytes = 1 + n * sizeof(uint64_t);
	struct change *c;
	char *at;

	for (unsigned i = 0; i < n; i++) {
		const char *text = text_of(row, &format->fields[i]);
		ssize_t length = text ? text_length(&format->fields[i], text) : 0;

		if (length < 0) {
			errno = EMSGSIZE;
			return NULL;
		}
		bytes += (size_t)length;
	}
	c = malloc(sizeof(*c) + bytes);
	if (!c)
		return NULL;
	*c = (struct change){ .kind = kind, .drop = drop, .row = *row };
	dray_list_init(&c->link);
	/* all tables share one space of keys */
	c->text[0] = (char)kind;
	c->node.n = 1;
	at = c->text + 1;
	for (unsigned i = 0; i < n; i++) {
		at = field_copy(c, &format->fields[i], i < format->n_key, at);
		if (i < format->n_key)
			c->node.n = (size_t)(at - c->text);
	}
	c->n_bytes = (uint32_t)(sizeof(*c) + (size_t)(at - c->text));
	return c;
}

void changes_free(struct dray_list *l)
{
	dray_list_for_each(l, c, struct change, link) {
		dray_list_del(&c->link);
		free(c);
	}
}

void queue_init(struct queue *q)
{
	*q = (struct queue){ .n = 0 };
	dray_list_init(&q->changes);
	dray_list_init(&q->events);
	dray_map_init(&q->keys);
}

static void change_free(struct queue *q, struct change *c)
{
	q->bytes -= c->n_bytes;
	dray_list_del(&c->link);
	free(c);
}

static void add_event(struct queue *q, struct change *c)
{
	struct change *oldest = dray_list_first(&q->events, struct change, link);

	dray_list_add(&q->events, &c->link);
	if (oldest && q->n_events == DRAY_STATE_MAX_EVENTS)
		change_free(q, oldest);
	else
		q->n_events++;
}

static void add_keyed(struct queue *q, struct change *c)
{
	struct change *old =
		dray_map_entry(dray_map_find(&q->keys, c->text, c->node.n), struct change, node);

	if (old) {
		dray_map_del(&q->keys, &old->node);
		change_free(q, old);
		q->n--;
	}
	dray_map_add(&q->keys, &c->node, c->text, c->node.n);
	dray_list_add(&q->changes, &c->link);
	q->n++;
}

void queue_add(struct queue *q, struct change *c)
{
	q->bytes += c->n_bytes;
	if (c->kind == STATE_EVENT)
		add_event(q, c);
	else
		add_keyed(q, c);
}

bool queue_has(const struct queue *q, const struct change *c)
{
	return c->kind != STATE_EVENT && dray_map_find(&q->keys, c->text, c->node.n);
}

static void list_clear(struct queue *q, struct dray_list *l)
{
	dray_list_for_each(l, c, struct change, link)
		change_free(q, c);
}

void queue_clear(struct queue *q)
{
	list_clear(q, &q->changes);
	list_clear(q, &q->events);
	q->n = q->n_events = 0;
	q->wipe = false;
	dray_map_deinit(&q->keys);
}

void queue_move(struct queue *to, struct queue *from)
{
	/* nodes point to the list heads, which cannot be copied */
	dray_list_splice(&to->changes, &from->changes);
	dray_list_splice(&to->events, &from->events);
	to->bytes = from->bytes;
	to->n = from->n;
	to->n_events = from->n_events;
	to->wipe = from->wipe;
	dray_map_deinit(&to->keys);
	to->keys = from->keys;
	queue_init(from);
}
