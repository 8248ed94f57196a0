/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of changes as one transaction. */
#include <sqlite3.h>
#include <stdio.h>

#include "agent/state/database.h"
#include "schema/gen/errors.h"

struct writer {
	struct database *s;
	sqlite3_stmt *q;
	int parameter; /* the last one bound */
	int code;      /* the first error */
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

/* The text must stay valid until the statement has run. */
static void bind_text(struct writer *w, const char *s)
{
	bound(w, sqlite3_bind_text(w->q, ++w->parameter, s, -1, SQLITE_STATIC));
}

static void bind_number(struct writer *w, int64_t v)
{
	bound(w, sqlite3_bind_int64(w->q, ++w->parameter, v));
}

/* A row that the database rejects is left out, and the rest of the batch is written. */
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

static void bind_field(struct writer *w, const union state_row *row, const struct state_field *f)
{
	const void *value = row_member(row, f);

	switch (f->type) {
	case STATE_FIELD_NAME:
	case STATE_FIELD_TEXT:
		bind_text(w, *(const char *const *)value);
		break;
	case STATE_FIELD_U32:
		bind_number(w, *(const uint32_t *)value);
		break;
	case STATE_FIELD_I64:
		bind_number(w, *(const int64_t *)value);
		break;
	case STATE_FIELD_U64:
		bind_number(w, (int64_t)dray_min(*(const uint64_t *)value, (uint64_t)INT64_MAX));
		break;
	}
}

static int write_change(struct writer *w, const struct change *c, struct dray_err *reterr)
{
	const struct state_format *format = &dray_state_formats[c->kind];

	begin(w, c->drop ? format->drop : format->save);
	for (unsigned i = 0; i < (c->drop ? format->n_key : format->n); i++)
		bind_field(w, &c->row, &format->fields[i]);
	return run(w, reterr);
}

static int clear_all(struct writer *w, struct dray_err *reterr)
{
	int r = 0;

	for (unsigned kind = 0; !r && kind < STATE_EVENT; kind++) {
		begin(w, dray_state_formats[kind].clear);
		r = run(w, reterr);
	}
	return r;
}

static int trim(struct writer *w, const char *segment, struct dray_err *reterr)
{
	begin(w, DRAY_STATE_EVENT_TRIM);
	bind_text(w, segment);
	bind_number(w, DRAY_STATE_MAX_SEGMENT_EVENTS);
	return run(w, reterr);
}

static int write_events(struct writer *w, const struct queue *q, struct dray_err *reterr)
{
	int r = 0;

	dray_list_for_each(&q->events, c, struct change, link) {
		r = write_change(w, c, reterr);
		if (!r)
			r = trim(w, c->row.event.segment, reterr);
		if (r)
			return r;
	}
	begin(w, DRAY_STATE_EVENT_TRIM_ALL);
	bind_number(w, DRAY_STATE_MAX_EVENTS);
	return run(w, reterr);
}

static int write_all(struct writer *w, const struct queue *q, struct dray_err *reterr)
{
	int r = q->wipe ? clear_all(w, reterr) : 0;

	dray_list_for_each(&q->changes, c, struct change, link) {
		if (r)
			return r;
		r = write_change(w, c, reterr);
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

/* On errors the caller closes the file, which ends an open transaction. */
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
