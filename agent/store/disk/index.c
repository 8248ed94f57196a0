/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/store/disk/internal.h"
#include "schema/gen/errors.h"

enum { SAVE, DROP, ALL, STATEMENTS };

static const struct dray_state_migration migrations[] = {
	{ "Objects.",
	  "CREATE TABLE object (key BLOB PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL,"
	  " bytes INTEGER NOT NULL, crc INTEGER NOT NULL, cost REAL NOT NULL) STRICT, WITHOUT ROWID;" },
};

/*
 * Objects with one key come and go, and their requests end in any order. Places are given in the order of the writes, so the
 * row is that of the object with the last place, and a removal spares the row of another object.
 */
static const char *const statements[STATEMENTS] = {
	[SAVE] =
		"INSERT INTO object (key, segment, offset, bytes, crc, cost) VALUES (?, ?, ?, ?, ?, ?)"
		" ON CONFLICT (key) DO UPDATE SET segment = excluded.segment, offset = excluded.offset,"
		" bytes = excluded.bytes, crc = excluded.crc, cost = excluded.cost"
		" WHERE (excluded.segment, excluded.offset) > (object.segment, object.offset)",
	[DROP] = "DELETE FROM object WHERE key = ? AND segment = ? AND offset = ?",
	[ALL] = "SELECT key, segment, offset, bytes, crc, cost FROM object",
};

static const struct database_schema schema = {
	.migrations = migrations,
	.version = DRAY_ARRAY_SIZE(migrations),
	.what = "the index of the disk tier",
	.setting = "store.disk_dir",
	.statements = statements,
	.n_statements = STATEMENTS,
	.application_id = 0x64736b31,
	.durable = true,
};

int index_open(struct disk *d, struct dray_err *reterr)
{
	dray_auto_free char *path = NULL;
	struct database_info info;
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	if (asprintf(&path, "%s/index.db", d->dir) < 0) {
		path = NULL;
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the disk tier");
	}
	r = database_open(&d->index, path, &schema, &info, &why);
	if (!r && info.read_only) {
		index_close(d);
		return dray_err_set(reterr, -EROFS, DRAY_E_DENIED,
				    "%s is read-only; let the agent write it", path);
	}
	if (r < 0) {
		*reterr = why;
		return r;
	}
	return r ? dray_err_set(
			   reterr, -EINVAL, r == DATABASE_E_NEWER ? DRAY_E_VERSION : DRAY_E_IO,
			   "%s: %.100s; set store.disk_dir to another folder, or remove the files of this one",
			   path, why.msg) :
		   0;
}

void index_close(struct disk *d)
{
	d->index = database_close(d->index, false);
}

int index_load(struct disk *d, index_row_fn fn, void *arg, struct dray_err *reterr)
{
	sqlite3_stmt *q = d->index->statements[ALL];
	int code;

	while ((code = sqlite3_step(q)) == SQLITE_ROW) {
		struct index_row row = {
			.key = sqlite3_column_blob(q, 0),
			.key_bytes = (uint32_t)sqlite3_column_bytes(q, 0),
			.segment = (uint64_t)sqlite3_column_int64(q, 1),
			.offset = (uint64_t)sqlite3_column_int64(q, 2),
			.bytes = (uint64_t)sqlite3_column_int64(q, 3),
			.crc = (uint32_t)sqlite3_column_int64(q, 4),
			.cost = (float)sqlite3_column_double(q, 5),
		};

		fn(d, &row, arg);
	}
	sqlite3_reset(q);
	return code == SQLITE_DONE ? 0 : database_failed(d->index, code, "reading", reterr);
}

static int run(struct database *s, sqlite3_stmt *q, struct dray_err *reterr)
{
	int code = sqlite3_step(q);

	sqlite3_reset(q);
	sqlite3_clear_bindings(q);
	return code == SQLITE_DONE ? 0 : database_failed(s, code, "writing", reterr);
}

static int apply(struct disk *d, const struct disk_request *r, struct dray_err *reterr)
{
	sqlite3_stmt *q = d->index->statements[r->removes ? DROP : SAVE];

	sqlite3_bind_blob(q, 1, r->key, (int)r->key_bytes, SQLITE_STATIC);
	sqlite3_bind_int64(q, 2, (int64_t)r->segment);
	sqlite3_bind_int64(q, 3, (int64_t)r->at.offset);
	if (!r->removes) {
		sqlite3_bind_int64(q, 4, (int64_t)r->at.bytes);
		sqlite3_bind_int64(q, 5, r->at.crc);
		sqlite3_bind_double(q, 6, (double)r->cost);
	}
	return run(d->index, q, reterr);
}

int index_commit(struct disk *d, const struct dray_list *requests, struct dray_err *reterr)
{
	int r = disk_fault(d, DISK_CALL_COMMIT);

	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "writing the index of the disk tier: %s",
				    dray_errno_text(r));
	r = d->index ? 0 : index_open(d, reterr);
	if (!r)
		r = database_run(d->index, "BEGIN IMMEDIATE", "writing", reterr);
	dray_list_for_each(requests, it, struct disk_request, link)
		if (!r)
			r = apply(d, it, reterr);
	if (!r)
		r = database_run(d->index, "COMMIT", "writing", reterr);
	/* Closing ends a transaction that is open. The next batch opens the file again. */
	if (r)
		index_close(d);
	return r;
}
