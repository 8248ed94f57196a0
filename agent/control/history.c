/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/time.h"

struct history {
	uint64_t n; /* events so far */
	struct history_event v[HISTORY_MAX];
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

static int64_t wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * DRAY_NS_PER_SEC + ts.tv_nsec;
}

uint64_t history_add(struct history *h, enum history_kind kind, const char *subject,
		     const char *before, const char *after, const char *reason)
{
	struct history_event *e = &h->v[h->n % HISTORY_MAX];

	e->number = ++h->n;
	e->time_ns = wall_clock();
	e->kind = kind;
	snprintf(e->subject, sizeof(e->subject), "%s", subject);
	snprintf(e->before, sizeof(e->before), "%s", before);
	snprintf(e->after, sizeof(e->after), "%s", after);
	snprintf(e->reason, sizeof(e->reason), "%s", reason);
	return e->number;
}

void history_each(const struct history *h, uint64_t number,
		  void (*fn)(void *arg, const struct history_event *e), void *arg)
{
	uint64_t kept = dray_min(h->n, (uint64_t)HISTORY_MAX);

	for (uint64_t i = dray_max(number, h->n - kept); i < h->n; i++)
		fn(arg, &h->v[i % HISTORY_MAX]);
}

const char *history_kind_name(enum history_kind kind)
{
	static const char *const names[HISTORY_KIND_N] = {
		[HISTORY_STATE] = "state",     [HISTORY_RAIL] = "rail",
		[HISTORY_PEER] = "peer",       [HISTORY_SESSION] = "session",
		[HISTORY_CONFIG] = "config",   [HISTORY_LOG_LEVEL] = "log-level",
		[HISTORY_SEGMENT] = "segment", [HISTORY_PREFERRED] = "preferred",
	};

	return kind < HISTORY_KIND_N ? names[kind] : "";
}
