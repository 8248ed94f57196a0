/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"

enum text { SUBJECT, BEFORE, AFTER, REASON, TEXTS };

/* Changes that push only each other out: those of an owner's sessions, or all others. */
struct source {
	struct dray_map_node node; /* in history->owners */
	struct dray_list events;   /* oldest first */
	uint32_t n;
	char owner[];
};

struct event {
	struct dray_list link; /* on history->events */
	struct dray_list source_link;
	struct source *source;
	uint64_t number;
	uint64_t time_ns; /* since 1970 */
	const char *kind;
	char texts[]; /* each with its NUL, in order */
};

struct history {
	uint64_t n;              /* events so far */
	struct dray_list events; /* oldest first */
	struct dray_map owners;  /* sources with events */
	uint32_t owned;          /* events of owners */
	struct source *others;
};

static struct source *source_new(const char *owner)
{
	size_t n = strlen(owner) + 1;
	struct source *s = malloc(sizeof(*s) + n);

	if (!s)
		return NULL;
	*s = (struct source){ .n = 0 };
	dray_list_init(&s->events);
	memcpy(s->owner, owner, n);
	return s;
}

struct history *history_new(void)
{
	dray_auto_free struct history *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->others = source_new("");
	if (!h->others)
		return NULL;
	dray_list_init(&h->events);
	dray_map_init(&h->owners);
	return dray_take(h);
}

/* There is one. */
static void drop_oldest(struct history *h, struct source *s)
{
	struct event *e = dray_list_entry(s->events.next, struct event, source_link);

	dray_list_del(&e->link);
	dray_list_del(&e->source_link);
	free(e);
	s->n--;
	if (s == h->others)
		return;
	h->owned--;
	if (s->n)
		return;
	dray_map_del(&h->owners, &s->node);
	free(s);
}

struct history *history_free(struct history *h)
{
	if (!h)
		return NULL;
	dray_list_for_each(&h->events, e, struct event, link)
		drop_oldest(h, e->source);
	dray_map_deinit(&h->owners);
	free(h->others);
	free(h);
	return NULL;
}

static uint64_t wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * DRAY_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static struct event *event_new(const char *kind, const char *const from[TEXTS])
{
	struct event *e;
	size_t n = 0;
	char *at;

	for (unsigned i = 0; i < TEXTS; i++)
		n += strnlen(from[i], HISTORY_TEXT_BYTES - 1) + 1;
	e = malloc(sizeof(*e) + n);
	if (!e)
		return NULL;
	*e = (struct event){ .time_ns = wall_clock(), .kind = kind };
	at = e->texts;
	for (unsigned i = 0; i < TEXTS; i++)
		at += snprintf(at, HISTORY_TEXT_BYTES, "%.*s", HISTORY_TEXT_BYTES - 1, from[i]) + 1;
	return e;
}

/* NULL: no memory. */
static struct source *source_of(struct history *h, const char *owner)
{
	struct source *s;

	if (!owner)
		return h->others;
	s = dray_map_entry(dray_map_find(&h->owners, owner, strlen(owner)), struct source, node);
	if (s)
		return s;
	s = source_new(owner);
	if (s)
		dray_map_add(&h->owners, &s->node, s->owner, strlen(owner));
	return s;
}

/* The owner with the most events loses its oldest. */
static void make_room_for_owners(struct history *h)
{
	struct source *most = NULL;

	dray_map_for_each(&h->owners, s, struct source, node)
		if (!most || s->n > most->n)
			most = s;
	if (most)
		drop_oldest(h, most);
}

uint64_t history_add(struct history *h, const char *kind, const char *owner, const char *subject,
		     const char *before, const char *after, const char *reason)
{
	struct event *e =
		event_new(kind, (const char *const[TEXTS]){ subject, before, after, reason });
	struct source *s = e ? source_of(h, owner) : NULL;

	h->n++;
	if (!s) {
		free(e);
		return h->n;
	}
	e->number = h->n;
	e->source = s;
	dray_list_add(&h->events, &e->link);
	dray_list_add(&s->events, &e->source_link);
	s->n++;
	h->owned += s != h->others;
	if (h->owned > HISTORY_MAX)
		make_room_for_owners(h);
	if (h->others->n > HISTORY_MAX)
		drop_oldest(h, h->others);
	return h->n;
}

void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct dray_dbus_event *e), void *arg)
{
	dray_list_for_each(&h->events, e, struct event, link) {
		const char *texts[TEXTS], *at = e->texts;

		if (e->number <= number)
			continue;
		for (unsigned i = 0; i < TEXTS; i++) {
			texts[i] = at;
			at += strlen(at) + 1;
		}
		fn(arg, &(struct dray_dbus_event){ .number = e->number,
						   .time_ns = e->time_ns,
						   .kind = e->kind,
						   .subject = texts[SUBJECT],
						   .old = texts[BEFORE],
						   .new = texts[AFTER],
						   .reason = texts[REASON] });
	}
}
