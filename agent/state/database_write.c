/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of changes as one transaction. */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "agent/state/database.h"
#include "schema/gen/errors.h"

struct writer {
	struct database *s;
	sqlite3_stmt *q;
	int parameter; /* the last that was bound */
	int code;      /* first that was not ok */
	uint64_t refused;
};

static void begin(struct writer *w, enum dray_state_statement_id id)
{
	w->q = w->s->statements[id];
	w->parameter = 0;
	w->code = SQLITE_OK;
}

static void bound(struct writer *w, int code)
{
	if (w->code == SQLITE_OK)
		w->code = code;
}

/* The text stays where it is until the statement has run. */
static void text(struct writer *w, const char *s)
{
	bound(w, sqlite3_bind_text(w->q, ++w->parameter, s, -1, SQLITE_STATIC));
}

static void number(struct writer *w, int64_t v)
{
	bound(w, sqlite3_bind_int64(w->q, ++w->parameter, v));
}

/* What the database refuses in a row is that row's fault: the rest of the batch goes on without it. */
static int run(struct writer *w, struct dray_err *reterr)
{
	int code = w->code;

	if (code == SQLITE_OK)
		code = sqlite3_step(w->q);
	if (code == SQLITE_DONE)
		code = SQLITE_OK;
	if ((code & 0xff) == SQLITE_CONSTRAINT || (code & 0xff) == SQLITE_TOOBIG ||
	    (code & 0xff) == SQLITE_MISMATCH) {
		w->refused++;
		code = SQLITE_OK;
	}
	if (code != SQLITE_OK)
		code = database_failed(w->s, code, "writing", reterr);
	sqlite3_reset(w->q);
	sqlite3_clear_bindings(w->q);
	return code;
}

static int64_t capped(uint64_t v)
{
	return (int64_t)dray_min(v, (uint64_t)INT64_MAX);
}

static void bind_hint_put(struct writer *w, const struct state_hint *h)
{
	begin(w, DRAY_STATE_HINT_PUT);
	text(w, h->scope);
	number(w, h->source);
	number(w, h->uid);
	text(w, h->segment);
	number(w, h->score);
	number(w, h->put_ms);
	number(w, h->expires_ms);
}

static void bind_hint_drop(struct writer *w, const struct state_hint *h)
{
	begin(w, DRAY_STATE_HINT_DROP);
	text(w, h->scope);
	number(w, h->source);
	number(w, h->uid);
	text(w, h->segment);
}

static void bind_segment_put(struct writer *w, const struct state_segment *s)
{
	begin(w, DRAY_STATE_SEGMENT_PUT);
	text(w, s->name);
	text(w, s->probe);
	text(w, s->target);
	text(w, s->sources);
	number(w, s->state);
	number(w, s->since_ms);
	number(w, s->ready_ms);
	text(w, s->reason);
	number(w, capped(s->capacity));
	number(w, capped(s->allocated));
	number(w, s->seen_ms);
}

static void bind_event(struct writer *w, const struct state_event *e)
{
	begin(w, DRAY_STATE_EVENT_ADD);
	text(w, e->segment);
	number(w, e->at_ms);
	number(w, e->old);
	number(w, e->new);
	text(w, e->reason);
}

static void bind_preferred(struct writer *w, const struct state_preferred *p)
{
	begin(w, DRAY_STATE_PREFERRED_PUT);
	text(w, p->name);
	number(w, p->preference);
	number(w, p->at_ms);
}

static void bind_change(struct writer *w, const struct change *c)
{
	switch (c->kind) {
	case CHANGE_HINT_PUT:
		bind_hint_put(w, &c->hint);
		break;
	case CHANGE_HINT_DROP:
		bind_hint_drop(w, &c->hint);
		break;
	case CHANGE_SEGMENT_PUT:
		bind_segment_put(w, &c->segment);
		break;
	case CHANGE_SEGMENT_DROP:
		begin(w, DRAY_STATE_SEGMENT_DROP);
		text(w, c->segment.name);
		break;
	case CHANGE_EVENT_ADD:
		bind_event(w, &c->event);
		break;
	case CHANGE_PREFERRED_PUT:
		bind_preferred(w, &c->preferred);
		break;
	}
}

static int wipe(struct writer *w, struct dray_err *reterr)
{
	static const enum dray_state_statement_id ids[] = { DRAY_STATE_HINT_CLEAR,
							    DRAY_STATE_SEGMENT_CLEAR,
							    DRAY_STATE_PREFERRED_CLEAR };
	int r = 0;

	for (unsigned i = 0; !r && i < DRAY_ARRAY_SIZE(ids); i++) {
		begin(w, ids[i]);
		r = run(w, reterr);
	}
	return r;
}

static int trim(struct writer *w, const char *segment, struct dray_err *reterr)
{
	begin(w, DRAY_STATE_EVENT_TRIM);
	text(w, segment);
	number(w, DRAY_STATE_MAX_SEGMENT_EVENTS);
	return run(w, reterr);
}

static int write_events(struct writer *w, const struct queue *q, struct dray_err *reterr)
{
	int r = 0;

	dray_list_for_each(&q->events, c, struct change, link) {
		bind_change(w, c);
		r = r ? r : run(w, reterr);
		r = r ? r : trim(w, c->event.segment, reterr);
		if (r)
			return r;
	}
	begin(w, DRAY_STATE_EVENT_TRIM_ALL);
	number(w, DRAY_STATE_MAX_EVENTS);
	return run(w, reterr);
}

static int write_all(struct writer *w, const struct queue *q, struct dray_err *reterr)
{
	int r = q->wipe ? wipe(w, reterr) : 0;

	dray_list_for_each(&q->changes, c, struct change, link) {
		if (r)
			return r;
		bind_change(w, c);
		r = run(w, reterr);
	}
	return r || !q->n_events ? r : write_events(w, q, reterr);
}

static int still_there(struct database *s, struct dray_err *reterr)
{
	int moved = 0;

	if (sqlite3_file_control(s->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
	    moved)
		return dray_err_set(reterr, DATABASE_E_MOVED, DRAY_E_IO,
				    "it was moved or removed while in use");
	return 0;
}

/* The caller closes the file where this fails: an open transaction ends with it. */
int database_apply(struct database *s, const struct queue *q, uint64_t *ret_refused,
		   struct dray_err *reterr)
{
	struct writer w = { .s = s };
	int r;

	*ret_refused = 0;
	if (s->read_only)
		return database_failed(s, SQLITE_READONLY, "writing", reterr);
	r = still_there(s, reterr);
	if (!r)
		r = database_run(s, "BEGIN IMMEDIATE", "writing", reterr);
	if (!r)
		r = write_all(&w, q, reterr);
	if (!r)
		r = database_run(s, "COMMIT", "writing", reterr);
	if (!r)
		*ret_refused = w.refused;
	return r;
}

int database_touch(struct database *s, struct dray_err *reterr)
{
	char same[48];
	int r;

	if (s->read_only)
		return database_failed(s, SQLITE_READONLY, "writing", reterr);
	r = still_there(s, reterr);
	if (r)
		return r;
	snprintf(same, sizeof(same), "PRAGMA application_id = %d", DRAY_STATE_APPLICATION_ID);
	return database_run(s, same, "writing", reterr);
}
