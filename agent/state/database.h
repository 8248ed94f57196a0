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
enum store_error {
	STORE_E_CORRUPT = 1, /* is no database of ours, or not any more */
	STORE_E_NEWER,       /* of a later version */
	STORE_E_MOVED,       /* the file is not where it was any more */
};

struct store_schema {
	const struct dray_state_migration *migrations;
	unsigned version; /* how many there are */
};

struct store_info {
	unsigned version; /* of the file, as it was; of a newer one too */
	bool created;     /* there was none, or an empty one */
	bool read_only;
};

struct store;

/*
 * Opens or makes the file and migrates it. schema NULL: that of this release. ret_info is written in any case. A file
 * that can only be read is opened for that if it needs no recovery. 0, STORE_E_*, or -errno; with reterr.
 */
int store_open(struct store **ret, const char *path, const struct store_schema *schema,
	       struct store_info *ret_info, struct dray_err *reterr);

/* Returns NULL. as_it_is: leaves the files alone, for somebody to look at. */
struct store *store_close(struct store *s, bool as_it_is);

static inline struct store *store_free(struct store *s)
{
	return store_close(s, false);
}
DRAY_DEFINE_CLEANUP(struct store *, store_free);

/* Looks at every page. 0, STORE_E_CORRUPT, or -errno; with reterr. */
int store_check(struct store *s, struct dray_err *reterr);

/* All rows; how many are handed over, and how many are not in order. 0 or as above. */
int store_load(struct store *s, const struct state_rows *rows, uint64_t *ret_n,
	       uint64_t *ret_refused, struct dray_err *reterr);

/* One transaction: all of it or nothing. Rows that the database does not take are counted and left out. 0 or as above. */
int store_apply(struct store *s, const struct queue *q, uint64_t *ret_refused,
		struct dray_err *reterr);

/* Writes without changing anything: can it be written? 0 or as above. */
int store_touch(struct store *s, struct dray_err *reterr);

/* --- for the files of the store alone -------------------------------------------------------- */

struct sqlite3;
struct sqlite3_stmt;

struct store {
	struct sqlite3 *db;
	struct sqlite3_stmt *statements[DRAY_STATE_STATEMENT_N];
	bool read_only;
};

/* What became of a call of sqlite3, in words. `doing`: "opening", "writing". */
int store_failed(struct store *s, int code, const char *doing, struct dray_err *reterr);

/* Statements without parameters and rows that count. 0 or as above. */
int store_run(struct store *s, const char *sql, const char *doing, struct dray_err *reterr);

#endif
