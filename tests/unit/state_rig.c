/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/state_rig.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/time.h"
#include "schema/gen/data.h"
#include "tests/unit/cm.h"

#define PATIENCE_NS (10 * DRAY_NS_PER_SEC)

static char *next_line(struct rig_rows *rows)
{
	return rows->line[rows->n++ % RIG_ROWS];
}

static void on_hint(struct rig *r, const struct state_hint *h)
{
	snprintf(next_line(&r->rows), sizeof(r->rows.line[0]),
		 "hint %s %u %u %s %u %" PRId64 " %" PRId64, h->scope, h->source, h->uid,
		 h->segment, h->score, h->put_ms, h->expires_ms);
}

static void on_segment(struct rig *r, const struct state_segment *s)
{
	snprintf(next_line(&r->rows), sizeof(r->rows.line[0]),
		 "segment %s %s %s %s %u %" PRId64 " %" PRId64 " %s %" PRIu64 " %" PRIu64
		 " %" PRId64,
		 s->name, s->probe, s->target, s->sources, s->state, s->since_ms, s->ready_ms,
		 s->reason, s->capacity, s->allocated, s->seen_ms);
}

static void on_event(struct rig *r, const struct state_event *e)
{
	snprintf(next_line(&r->rows), sizeof(r->rows.line[0]), "event %s %" PRId64 " %u %u %s",
		 e->segment, e->at_ms, e->old, e->new, e->reason);
}

static void on_preferred(struct rig *r, const struct state_preferred *p)
{
	snprintf(next_line(&r->rows), sizeof(r->rows.line[0]), "preferred %s %u %" PRId64, p->name,
		 p->preference, p->at_ms);
}

static void on_gpu_rate(struct rig *r, const struct state_gpu_rate *g)
{
	snprintf(next_line(&r->rows), sizeof(r->rows.line[0]), "gpu_rate %s %s %s %u %u",
		 g->versions, g->gpu, g->bus, g->piece, g->rate);
}

static void on_row(void *arg, enum state_kind kind, const union state_row *row)
{
	if (kind == STATE_HINT)
		on_hint(arg, &row->hint);
	else if (kind == STATE_SEGMENT)
		on_segment(arg, &row->segment);
	else if (kind == STATE_EVENT)
		on_event(arg, &row->event);
	else if (kind == STATE_GPU_RATE)
		on_gpu_rate(arg, &row->gpu_rate);
	else
		on_preferred(arg, &row->preferred);
}

static void on_refill(void *arg)
{
	struct rig *r = arg;

	r->refills++;
	if (r->refill)
		r->refill(r);
}

void rig_open(struct rig *r, const char *dir)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (!r->event)
		assert_true(sd_event_new(&r->event) >= 0);
	r->deps = (struct state_deps){ .event = r->event,
				       .dir = dir,
				       .refill = on_refill,
				       .arg = r,
				       .gather_ns = r->deps.gather_ns ? r->deps.gather_ns : 1,
				       .retry_min_ns = DRAY_NS_PER_MS,
				       .retry_max_ns = 10 * DRAY_NS_PER_MS,
				       .queue_bytes = r->deps.queue_bytes };
	if (state_open(&r->s, &r->deps, &err) < 0)
		fail_msg("%s", err.msg);
	r->rows.n = 0;
	r->loaded = state_load(r->s, (1u << STATE_KIND_N) - 1, on_row, r);
}

void rig_start(struct rig *r)
{
	assert_int_equal(state_start(r->s), 0);
}

void rig_close(struct rig *r)
{
	r->s = state_free(r->s);
	r->event = sd_event_unref(r->event);
}

void rig_reopen(struct rig *r)
{
	r->s = state_free(r->s);
	rig_open(r, r->deps.dir);
	rig_start(r);
}

void rig_wait(struct rig *r, bool (*holds)(struct rig *r), const char *what)
{
	int64_t until = dray_now().ns + PATIENCE_NS;

	while (!holds(r)) {
		if (dray_now().ns > until)
			fail_msg("%s: not within ten seconds", what);
		assert_true(sd_event_run(r->event, 20000) >= 0);
	}
}

int rig_flush(struct rig *r)
{
	int64_t until = dray_now().ns + PATIENCE_NS;
	struct state_info before, info;

	for (state_info(r->s, &before);;) {
		state_info(r->s, &info);
		if (!info.queued)
			return 0;
		if (info.in_memory && info.errors > before.errors)
			return -EIO;
		if (dray_now().ns > until)
			fail_msg("flush: not within ten seconds");
		assert_true(sd_event_run(r->event, 1000) >= 0);
	}
}

bool rig_in_memory(struct rig *r)
{
	struct state_info info;

	state_info(r->s, &info);
	assert_int_equal(info.in_memory, *info.why != '\0');
	return info.in_memory;
}

bool rig_on_disk(struct rig *r)
{
	return !rig_in_memory(r);
}

bool rig_refilled(struct rig *r)
{
	return r->refills > 0;
}

bool rig_has(const struct rig *r, const char *line)
{
	for (unsigned i = 0; i < r->rows.n && i < RIG_ROWS; i++)
		if (!strcmp(r->rows.line[i], line))
			return true;
	return false;
}

void rig_put_hint(struct rig *r, unsigned i, uint32_t score)
{
	char scope[32];

	snprintf(scope, sizeof(scope), "scope-%u", i);
	state_save_hint(r->s, &(struct state_hint){ .scope = scope,
						    .segment = "10.0.0.1:50053",
						    .source = DMSG_HINT_SOURCE_CLIENT,
						    .uid = 1000 + i % 7,
						    .score = score,
						    .put_ms = 1000,
						    .expires_ms = 2000,
						    .tenant = "t" });
}
