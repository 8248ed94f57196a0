/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "agent/store/disk/internal.h"
#include "schema/gen/errors.h"

enum { SAVE, DROP, ALL, RATES, KEEP_RATES, STATEMENTS };

static const struct dray_state_migration migrations[] = {
	{ "Objects.",
	  "CREATE TABLE object (key BLOB PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL,"
	  " bytes INTEGER NOT NULL, crc INTEGER NOT NULL, cost REAL NOT NULL) STRICT, WITHOUT ROWID;" },
	{ "Rates of the disk, in one row.",
	  "CREATE TABLE rate (id INTEGER PRIMARY KEY CHECK (id = 1), device TEXT NOT NULL,"
	  " read INTEGER NOT NULL, write INTEGER NOT NULL) STRICT;" },
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
	[RATES] = "SELECT device, read, write FROM rate",
	[KEEP_RATES] = "INSERT OR REPLACE INTO rate (id, device, read, write) VALUES (1, ?, ?, ?)",
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

/* A killed process may have written the last rows of the log without waiting for the disk. */
int index_sync(struct disk *d)
{
	sqlite3_file *log = NULL;

	sqlite3_file_control(d->index->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
	if (!log || !log->pMethods)
		return 0;
	return log->pMethods->xSync(log, SQLITE_SYNC_NORMAL) == SQLITE_OK ? 0 : -EIO;
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

/* Identifies the file system: where the folder is moved to another disk, other rates hold. */
static void device_text(const struct disk *d, char ret[DEVICE_TEXT])
{
	struct statvfs fs;

	*ret = '\0';
	if (fstatvfs(d->dir_fd, &fs) == 0)
		snprintf(ret, DEVICE_TEXT, "%lx-%" PRIu64, fs.f_fsid,
			 (uint64_t)fs.f_blocks * fs.f_frsize);
}

int index_rates(struct disk *d, struct disk_rates *ret, struct dray_err *reterr)
{
	sqlite3_stmt *q = d->index->statements[RATES];
	int code = sqlite3_step(q);
	/* NULL: no row, or no memory */
	const char *device = code == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;

	*ret = (struct disk_rates){ .read = 0 };
	device_text(d, ret->device);
	if (device && *ret->device && !strcmp(device, ret->device)) {
		ret->read = (uint64_t)dray_max(sqlite3_column_int64(q, 1), (sqlite3_int64)0);
		ret->write = (uint64_t)dray_max(sqlite3_column_int64(q, 2), (sqlite3_int64)0);
	}
	sqlite3_reset(q);
	return code == SQLITE_ROW || code == SQLITE_DONE ?
		       0 :
		       database_failed(d->index, code, "reading", reterr);
}

static int keep_rates(struct disk *d, const struct disk_rates *rates, struct dray_err *reterr)
{
	sqlite3_stmt *q = d->index->statements[KEEP_RATES];

	sqlite3_bind_text(q, 1, rates->device, -1, SQLITE_STATIC);
	sqlite3_bind_int64(q, 2, (int64_t)rates->read);
	sqlite3_bind_int64(q, 3, (int64_t)rates->write);
	return run(d->index, q, reterr);
}

void index_keep_rates(struct disk *d, const struct disk_rates *rates)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (d->index)
		keep_rates(d, rates, &err);
}

int index_commit(struct disk *d, const struct dray_list *requests, const struct disk_rates *rates,
		 struct dray_err *reterr)
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
	if (!r && rates)
		r = keep_rates(d, rates, reterr);
	if (!r)
		r = database_run(d->index, "COMMIT", "writing", reterr);
	/* Closing ends a transaction that is open. The next batch opens the file again. */
	if (r)
		index_close(d);
	return r;
}
