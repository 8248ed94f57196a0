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
	uint64_t time_ns; /* since 1970 */
	const char *kind;
	char *texts; /* each with its NUL, in order; NULL: there was no memory */
};

struct history {
	uint64_t n; /* events so far; the number of an event is its place, from 1 */
	struct event v[HISTORY_MAX];
};

struct history *history_new(void)
{
	return calloc(1, sizeof(struct history));
}

struct history *history_free(struct history *h)
{
	for (unsigned i = 0; h && i < HISTORY_MAX; i++)
		free(h->v[i].texts);
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
	struct event *e = &h->v[h->n++ % HISTORY_MAX];

	free(e->texts);
	*e = (struct event){ .time_ns = wall_clock(),
			     .kind = kind,
			     .texts = texts_new((const char *const[TEXTS]){ subject, before, after,
									    reason }) };
	return h->n;
}

void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct dray_dbus_event *e), void *arg)
{
	uint64_t kept = dray_min(h->n, (uint64_t)HISTORY_MAX);

	for (uint64_t i = dray_max(number, h->n - kept); i < h->n; i++) {
		const struct event *e = &h->v[i % HISTORY_MAX];
		const char *texts[TEXTS], *at = e->texts;

		for (unsigned k = 0; k < TEXTS; k++) {
			texts[k] = at ? at : "";
			at = at ? at + strlen(at) + 1 : NULL;
		}
		fn(arg, &(struct dray_dbus_event){ .number = i + 1,
						   .time_ns = e->time_ns,
						   .kind = e->kind,
						   .subject = texts[SUBJECT],
						   .old = texts[BEFORE],
						   .new = texts[AFTER],
						   .reason = texts[REASON] });
	}
}
