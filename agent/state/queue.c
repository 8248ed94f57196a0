/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "schema/gen/state.h"

/* What a key begins with: one space of keys for all tables. */
enum { KEY_HINT = 'h', KEY_SEGMENT = 's', KEY_PREFERRED = 'p' };

static struct change *change_new(enum change_kind kind, size_t n_text)
{
	struct change *c = malloc(sizeof(*c) + n_text);

	if (!c)
		return NULL;
	c->kind = kind;
	c->n_bytes = (uint32_t)(sizeof(*c) + n_text);
	c->node = (struct dray_map_node){ .n = 0 };
	dray_list_init(&c->link);
	return c;
}

/* Copies n bytes and a terminator; *at moves behind them. */
static const char *copy_text(char **at, const char *s, size_t n)
{
	char *p = *at;

	memcpy(p, s, n);
	p[n] = '\0';
	*at = p + n + 1;
	return p;
}

/* Cut between characters. */
static size_t words_length(const char *s)
{
	size_t n = strnlen(s, STATE_TEXT_MAX + 1);

	if (n <= STATE_TEXT_MAX)
		return n;
	for (n = STATE_TEXT_MAX; n && ((unsigned char)s[n] & 0xc0) == 0x80; n--)
		;
	return n;
}

/* A key that was cut would be another one. */
static bool is_key(size_t n)
{
	if (n > STATE_TEXT_MAX)
		errno = EMSGSIZE;
	return n <= STATE_TEXT_MAX;
}

struct change *change_hint(enum change_kind kind, const struct state_hint *row)
{
	size_t scope = strnlen(row->scope, STATE_TEXT_MAX + 1);
	size_t segment = strnlen(row->segment, STATE_TEXT_MAX + 1);
	size_t fixed = 1 + sizeof(row->source) + sizeof(row->uid);
	struct change *c;
	char *at;

	if (!is_key(scope) || !is_key(segment))
		return NULL;
	c = change_new(kind, fixed + scope + segment + 2);
	if (!c)
		return NULL;
	c->hint = *row;
	c->text[0] = KEY_HINT;
	memcpy(c->text + 1, &row->source, sizeof(row->source));
	memcpy(c->text + 1 + sizeof(row->source), &row->uid, sizeof(row->uid));
	at = c->text + fixed;
	c->hint.scope = copy_text(&at, row->scope, scope);
	c->hint.segment = copy_text(&at, row->segment, segment);
	c->node.n = (size_t)(at - c->text);
	return c;
}

struct change *change_segment(const struct state_segment *row)
{
	size_t name = strnlen(row->name, STATE_TEXT_MAX + 1);
	size_t probe = words_length(row->probe), target = words_length(row->target);
	size_t sources = words_length(row->sources), reason = words_length(row->reason);
	struct change *c;
	char *at;

	if (!is_key(name))
		return NULL;
	c = change_new(CHANGE_SEGMENT_PUT, 1 + name + probe + target + sources + reason + 5);
	if (!c)
		return NULL;
	c->segment = *row;
	c->text[0] = KEY_SEGMENT;
	at = c->text + 1;
	c->segment.name = copy_text(&at, row->name, name);
	c->node.n = (size_t)(at - c->text);
	c->segment.probe = copy_text(&at, row->probe, probe);
	c->segment.target = copy_text(&at, row->target, target);
	c->segment.sources = copy_text(&at, row->sources, sources);
	c->segment.reason = copy_text(&at, row->reason, reason);
	return c;
}

struct change *change_segment_drop(const char *name)
{
	struct change *c =
		change_segment(&(struct state_segment){ name, "", "", "", .reason = "" });

	if (c)
		c->kind = CHANGE_SEGMENT_DROP;
	return c;
}

struct change *change_event(const struct state_event *row)
{
	size_t segment = strnlen(row->segment, STATE_TEXT_MAX + 1);
	size_t reason = words_length(row->reason);
	struct change *c;
	char *at;

	if (!is_key(segment))
		return NULL;
	c = change_new(CHANGE_EVENT_ADD, segment + reason + 2);
	if (!c)
		return NULL;
	c->event = *row;
	at = c->text;
	c->event.segment = copy_text(&at, row->segment, segment);
	c->event.reason = copy_text(&at, row->reason, reason);
	return c;
}

struct change *change_preferred(const struct state_preferred *row)
{
	size_t name = strnlen(row->name, STATE_TEXT_MAX + 1);
	struct change *c;
	char *at;

	if (!is_key(name))
		return NULL;
	c = change_new(CHANGE_PREFERRED_PUT, 1 + name + 1);
	if (!c)
		return NULL;
	c->preferred = *row;
	c->text[0] = KEY_PREFERRED;
	c->node.n = 1;
	at = c->text + 1;
	c->preferred.name = copy_text(&at, row->name, name);
	return c;
}

/* --- the queue ------------------------------------------------------------------------------- */

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
	if (c->kind == CHANGE_EVENT_ADD)
		add_event(q, c);
	else
		add_keyed(q, c);
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

static void list_swap(struct dray_list *a, struct dray_list *b)
{
	struct dray_list was = DRAY_LIST_INIT(was);

	dray_list_splice(&was, a);
	dray_list_splice(a, b);
	dray_list_splice(b, &was);
}

void queue_swap(struct queue *a, struct queue *b)
{
	struct queue was = *a;

	/* nodes point to the heads, which stay where they are */
	list_swap(&a->changes, &b->changes);
	list_swap(&a->events, &b->events);
	a->keys = b->keys;
	a->bytes = b->bytes;
	a->n = b->n;
	a->n_events = b->n_events;
	a->wipe = b->wipe;
	b->keys = was.keys;
	b->bytes = was.bytes;
	b->n = was.n;
	b->n_events = was.n_events;
	b->wipe = was.wipe;
}
