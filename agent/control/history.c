/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/time.h"

struct event {
	uint64_t time_ns; /* since 1970 */
	const char *kind;
	char subject[HISTORY_SUBJECT_BYTES], before[24], after[24], reason[208];
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
	free(h);
	return NULL;
}

static uint64_t wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * DRAY_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

uint64_t history_add(struct history *h, const char *kind, const char *subject, const char *before,
		     const char *after, const char *reason)
{
	struct event *e = &h->v[h->n++ % HISTORY_MAX];

	e->time_ns = wall_clock();
	e->kind = kind;
	snprintf(e->subject, sizeof(e->subject), "%s", subject);
	snprintf(e->before, sizeof(e->before), "%s", before);
	snprintf(e->after, sizeof(e->after), "%s", after);
	snprintf(e->reason, sizeof(e->reason), "%s", reason);
	return h->n;
}

void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct dray_dbus_event *e), void *arg)
{
	uint64_t kept = dray_min(h->n, (uint64_t)HISTORY_MAX);

	for (uint64_t i = dray_max(number, h->n - kept); i < h->n; i++) {
		const struct event *e = &h->v[i % HISTORY_MAX];

		fn(arg, &(struct dray_dbus_event){ .number = i + 1,
						   .time_ns = e->time_ns,
						   .kind = e->kind,
						   .subject = e->subject,
						   .old = e->before,
						   .new = e->after,
						   .reason = e->reason });
	}
}
