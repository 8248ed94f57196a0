/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows. The content of the file is not trusted: types, ranges and lengths are checked. */
#include <sqlite3.h>
#include <string.h>

#include "agent/state/database.h"

/* More rows than any limit allows: the file is corrupt. */
#define ROWS_MAX (4u << 20)

struct reader {
	sqlite3_stmt *q;
	int column; /* the next */
	bool bad;
};

static const char *read_text(struct reader *r)
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

/* Times, counts and bytes: no number in the file is negative. */
static int64_t read_number(struct reader *r, int64_t max)
{
	int column = r->column++;
	int64_t v = sqlite3_column_int64(r->q, column);

	r->bad |= sqlite3_column_type(r->q, column) != SQLITE_INTEGER || v < 0 || v > max;
	return v;
}

static void read_field(struct reader *r, union state_row *row, const struct state_field *f)
{
	void *value = row_member(row, f);

	switch (f->type) {
	case STATE_FIELD_NAME:
	case STATE_FIELD_TEXT:
		*(const char **)value = read_text(r);
		break;
	case STATE_FIELD_U32:
		*(uint32_t *)value = (uint32_t)read_number(r, UINT32_MAX);
		break;
	case STATE_FIELD_I64:
	case STATE_FIELD_U64:
		*(int64_t *)value = read_number(r, INT64_MAX);
		break;
	}
}

static int load_table(struct database *s, enum state_kind kind, state_row_fn fn, void *arg,
		      uint64_t *n, uint64_t *refused, struct dray_err *reterr)
{
	const struct state_format *format = &dray_state_formats[kind];
	sqlite3_stmt *q = s->statements[format->all];
	int code = SQLITE_ROW;

	for (uint32_t i = 0; i < ROWS_MAX && (code = sqlite3_step(q)) == SQLITE_ROW; i++) {
		struct reader r = { .q = q };
		union state_row row;

		for (unsigned f = 0; f < format->n; f++)
			read_field(&r, &row, &format->fields[f]);
		if (!r.bad)
			fn(arg, kind, &row);
		*(r.bad ? refused : n) += 1;
	}
	if (code == SQLITE_ROW)
		code = SQLITE_CORRUPT;
	code = code == SQLITE_DONE ? 0 : database_failed(s, code, "reading", reterr);
	sqlite3_reset(q);
	return code;
}

int database_load(struct database *s, unsigned kinds, state_row_fn fn, void *arg, uint64_t *ret_n,
		  uint64_t *ret_refused, struct dray_err *reterr)
{
	int r = 0;

	*ret_n = *ret_refused = 0;
	for (enum state_kind kind = 0; !r && kind < STATE_KIND_N; kind++)
		if (kinds & 1u << kind)
			r = load_table(s, kind, fn, arg, ret_n, ret_refused, reterr);
	return r;
}
