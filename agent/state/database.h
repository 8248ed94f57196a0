/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The database file, by sqlite3, which nothing else of the agent sees. Every call may block. One thread at a time; it
 * may be another one than that which opened. Does not log.
 */
#ifndef DRAY_AGENT_STATE_DATABASE_H
#define DRAY_AGENT_STATE_DATABASE_H

#include "agent/state/queue.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "schema/gen/state.h"

/* What the caller sees to; anything below 0 may pass: the file is to be closed and opened again later. */
enum database_error {
	DATABASE_E_CORRUPT = 1, /* is no database of ours, or not any more */
	DATABASE_E_NEWER,       /* of a later version */
	DATABASE_E_MOVED,       /* the file is not where it was any more */
};

struct database_schema {
	const struct dray_state_migration *migrations;
	unsigned version; /* how many there are */
};

struct database_info {
	unsigned version; /* of the file, as it was; of a newer one too */
	bool created;     /* there was none, or an empty one */
	bool read_only;
};

struct database;

/*
 * Opens or makes the file and migrates it. schema NULL: that of this release. ret_info is written in any case. A file
 * that can only be read is opened for that if it needs no recovery. 0, DATABASE_E_*, or -errno; with reterr.
 */
int database_open(struct database **ret, const char *path, const struct database_schema *schema,
		  struct database_info *ret_info, struct dray_err *reterr);

/* Returns NULL. as_it_is: leaves the files alone, for somebody to look at. */
struct database *database_close(struct database *s, bool as_it_is);

static inline struct database *database_free(struct database *s)
{
	return database_close(s, false);
}
DRAY_DEFINE_CLEANUP(struct database *, database_free);

/* Looks at every page. 0, DATABASE_E_CORRUPT, or -errno; with reterr. */
int database_check(struct database *s, struct dray_err *reterr);

/* All rows; how many are handed over, and how many are not in order. 0 or as above. */
int database_load(struct database *s, const struct state_rows *rows, uint64_t *ret_n,
		  uint64_t *ret_refused, struct dray_err *reterr);

/* One transaction: all of it or nothing. Rows that the database does not take are counted and left out. 0 or as above. */
int database_apply(struct database *s, const struct queue *q, uint64_t *ret_refused,
		   struct dray_err *reterr);

/* Writes without changing anything: can it be written? 0 or as above. */
int database_touch(struct database *s, struct dray_err *reterr);

/* --- for the files of the store alone -------------------------------------------------------- */

struct sqlite3;
struct sqlite3_stmt;

struct database {
	struct sqlite3 *db;
	struct sqlite3_stmt *statements[DRAY_STATE_STATEMENT_N];
	bool read_only;
};

/* What became of a call of sqlite3, in words. `doing`: "opening", "writing". */
int database_failed(struct database *s, int code, const char *doing, struct dray_err *reterr);

/* Statements without parameters and rows that count. 0 or as above. */
int database_run(struct database *s, const char *sql, const char *doing, struct dray_err *reterr);

#endif
