/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the database as structs. What stands in a file is foreign: types, ranges and lengths are looked at. */
#include <sqlite3.h>
#include <string.h>

#include "agent/state/database.h"

/* More than limits allow: a file that goes on for ever is not in order. */
#define ROWS_MAX (4u << 20)

struct reader {
	sqlite3_stmt *q;
	int column; /* the next */
	bool bad;
};

static const char *text(struct reader *r)
{
	int column = r->column++;
	const char *s = NULL;

	if (sqlite3_column_type(r->q, column) == SQLITE_TEXT)
		s = (const char *)sqlite3_column_text(r->q, column);
	if (!s || sqlite3_column_bytes(r->q, column) > STATE_TEXT_MAX ||
	    strlen(s) != (size_t)sqlite3_column_bytes(r->q, column)) {
		r->bad = true;
		return "";
	}
	return s;
}

static int64_t number(struct reader *r)
{
	int column = r->column++;

	if (sqlite3_column_type(r->q, column) != SQLITE_INTEGER)
		r->bad = true;
	return sqlite3_column_int64(r->q, column);
}

/* Times, counts: nothing here is negative. */
static int64_t natural(struct reader *r)
{
	int64_t v = number(r);

	r->bad |= v < 0;
	return v;
}

static uint32_t small(struct reader *r)
{
	int64_t v = natural(r);

	r->bad |= v > UINT32_MAX;
	return (uint32_t)v;
}

static void load_hint(struct reader *r, const struct state_rows *rows)
{
	struct state_hint row = { .scope = text(r) };

	row.source = small(r);
	row.uid = small(r);
	row.segment = text(r);
	row.score = small(r);
	row.put_ms = natural(r);
	row.expires_ms = natural(r);
	if (!r->bad)
		rows->hint(rows->arg, &row);
}

static void load_segment(struct reader *r, const struct state_rows *rows)
{
	struct state_segment row = { .name = text(r) };

	row.probe = text(r);
	row.target = text(r);
	row.sources = text(r);
	row.state = small(r);
	row.since_ms = natural(r);
	row.ready_ms = natural(r);
	row.reason = text(r);
	row.capacity = (uint64_t)natural(r);
	row.allocated = (uint64_t)natural(r);
	row.seen_ms = natural(r);
	if (!r->bad)
		rows->segment(rows->arg, &row);
}

static void load_event(struct reader *r, const struct state_rows *rows)
{
	struct state_event row = { .segment = text(r) };

	row.at_ms = natural(r);
	row.old = small(r);
	row.new = small(r);
	row.reason = text(r);
	if (!r->bad)
		rows->event(rows->arg, &row);
}

static void load_preferred(struct reader *r, const struct state_rows *rows)
{
	struct state_preferred row = { .name = text(r) };

	row.preference = small(r);
	row.at_ms = natural(r);
	if (!r->bad)
		rows->preferred(rows->arg, &row);
}

struct table {
	enum dray_state_statement_id all;
	void (*load)(struct reader *r, const struct state_rows *rows);
	bool wanted;
};

static int load_table(struct database *s, const struct table *t, const struct state_rows *rows,
		      uint64_t *n, uint64_t *refused, struct dray_err *reterr)
{
	sqlite3_stmt *q = s->statements[t->all];
	int code = SQLITE_ROW;

	for (uint32_t i = 0; i < ROWS_MAX && (code = sqlite3_step(q)) == SQLITE_ROW; i++) {
		struct reader r = { .q = q };

		t->load(&r, rows);
		*(r.bad ? refused : n) += 1;
	}
	if (code == SQLITE_ROW)
		code = SQLITE_CORRUPT;
	if (code != SQLITE_DONE)
		code = database_failed(s, code, "reading", reterr);
	else
		code = 0;
	sqlite3_reset(q);
	return code;
}

int database_load(struct database *s, const struct state_rows *rows, uint64_t *ret_n,
		  uint64_t *ret_refused, struct dray_err *reterr)
{
	const struct table tables[] = {
		{ DRAY_STATE_PREFERRED_ALL, load_preferred, rows->preferred != NULL },
		{ DRAY_STATE_SEGMENT_ALL, load_segment, rows->segment != NULL },
		{ DRAY_STATE_HINT_ALL, load_hint, rows->hint != NULL },
		{ DRAY_STATE_EVENT_ALL, load_event, rows->event != NULL },
	};
	int r = 0;

	*ret_n = *ret_refused = 0;
	for (unsigned i = 0; !r && i < DRAY_ARRAY_SIZE(tables); i++)
		if (tables[i].wanted)
			r = load_table(s, &tables[i], rows, ret_n, ret_refused, reterr);
	return r;
}
