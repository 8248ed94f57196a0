/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/time.h"

enum text { SUBJECT, BEFORE, AFTER, REASON, TEXTS };

struct event {
	uint64_t number;
	uint64_t time_ns; /* since 1970 */
	const char *kind;
	char *texts; /* each with its NUL, in order; NULL: there was no memory */
};

/* The last ones of some kinds. */
struct ring {
	uint64_t n; /* so far */
	struct event v[HISTORY_MAX];
};

struct history {
	uint64_t n; /* events so far */
	struct ring sessions, others;
};

struct history *history_new(void)
{
	return calloc(1, sizeof(struct history));
}

struct history *history_free(struct history *h)
{
	for (unsigned i = 0; h && i < HISTORY_MAX; i++) {
		free(h->sessions.v[i].texts);
		free(h->others.v[i].texts);
	}
	free(h);
	return NULL;
}

static uint64_t wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * DRAY_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static char *texts_new(const char *const from[TEXTS])
{
	char *texts, *at;
	size_t n = 0;

	for (unsigned i = 0; i < TEXTS; i++)
		n += strnlen(from[i], HISTORY_TEXT_BYTES - 1) + 1;
	texts = at = malloc(n);
	for (unsigned i = 0; texts && i < TEXTS; i++)
		at += snprintf(at, HISTORY_TEXT_BYTES, "%.*s", HISTORY_TEXT_BYTES - 1, from[i]) + 1;
	return texts;
}

uint64_t history_add(struct history *h, const char *kind, const char *subject, const char *before,
		     const char *after, const char *reason)
{
	struct ring *r = strcmp(kind, "session") ? &h->others : &h->sessions;
	struct event *e = &r->v[r->n++ % HISTORY_MAX];

	free(e->texts);
	*e = (struct event){ .number = ++h->n,
			     .time_ns = wall_clock(),
			     .kind = kind,
			     .texts = texts_new((const char *const[TEXTS]){ subject, before, after,
									    reason }) };
	return h->n;
}

static void show(const struct event *e, void (*fn)(void *arg, const struct dray_dbus_event *e),
		 void *arg)
{
	const char *texts[TEXTS], *at = e->texts;

	for (unsigned i = 0; i < TEXTS; i++) {
		texts[i] = at ? at : "";
		at = at ? at + strlen(at) + 1 : NULL;
	}
	fn(arg, &(struct dray_dbus_event){ .number = e->number,
					   .time_ns = e->time_ns,
					   .kind = e->kind,
					   .subject = texts[SUBJECT],
					   .old = texts[BEFORE],
					   .new = texts[AFTER],
					   .reason = texts[REASON] });
}

/* The first kept event from *at on with a higher number; NULL: none. */
static const struct event *next(const struct ring *r, uint64_t *at, uint64_t number)
{
	if (r->n > HISTORY_MAX)
		*at = dray_max(*at, r->n - HISTORY_MAX);
	while (*at < r->n && r->v[*at % HISTORY_MAX].number <= number)
		++*at;
	return *at < r->n ? &r->v[*at % HISTORY_MAX] : NULL;
}

void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct dray_dbus_event *e), void *arg)
{
	uint64_t session_at = 0, other_at = 0;

	for (;;) {
		const struct event *session = next(&h->sessions, &session_at, number);
		const struct event *other = next(&h->others, &other_at, number);
		const struct event *e =
			!other || (session && session->number < other->number) ? session : other;

		if (!e)
			return;
		show(e, fn, arg);
		number = e->number;
	}
}
