/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A database file: that of the state, or with another schema. Only the owners of schemas use sqlite3. Every call may block.
 * One thread at a time, not always the same. Does not log.
 */
#pragma once

#include "agent/state/queue.h"
#include "lib/cleanup.h"
#include "lib/err.h"

/* The caller must handle these. Errors below 0 may be temporary: it closes the file and opens it again later. */
enum database_error {
	DATABASE_E_CORRUPT = 1, /* the file is corrupt, or no database of ours */
	DATABASE_E_NEWER,       /* the file has a later version */
	DATABASE_E_MOVED,       /* the file was moved or removed */
};

struct database_schema {
	const struct dray_state_migration *migrations;
	unsigned version;           /* how many there are */
	const char *what, *setting; /* for messages: "state", "agent.state_dir" */
	const char *const *statements;
	unsigned n_statements;
	int32_t application_id;
	bool durable; /* a commit waits for the disk */
};

/* Of the state, in this release. */
extern const struct database_schema database_state_schema;

struct database_info {
	unsigned version; /* of the file before migration, also of a newer one */
	bool created;     /* there was no file, or an empty one */
	bool read_only;
};

struct database;

/*
 * Opens or makes the file and migrates it. ret_info is always written. A file without write permission
 * is opened for reading if it needs no recovery. 0, DATABASE_E_*, or -errno; with reterr.
 */
int database_open(struct database **ret, const char *path, const struct database_schema *schema,
		  struct database_info *ret_info, struct dray_err *reterr);

/* Returns NULL. as_it_is: does not merge the log into the file, so that both can be examined. */
struct database *database_close(struct database *s, bool as_it_is);

/* Verifies every page. 0, DATABASE_E_CORRUPT, or -errno; with reterr. */
int database_check(struct database *s, struct dray_err *reterr);

/* Reads all rows; counts those handed over, and those that are invalid. 0 or as above. */
int database_load(struct database *s, unsigned kinds, state_row_fn fn, void *arg, uint64_t *ret_n,
		  uint64_t *ret_refused, struct dray_err *reterr);

/* Commits the queue as one transaction. Rows that the database rejects are counted and left out. 0 or as above. */
int database_apply(struct database *s, const struct queue *q, uint64_t *ret_refused,
		   struct dray_err *reterr);

/* Tests whether the file can be written, by a write that changes nothing. 0 or as above. */
int database_touch(struct database *s, struct dray_err *reterr);

struct sqlite3;
struct sqlite3_stmt;

struct database {
	struct sqlite3 *db;
	struct database_schema schema;
	bool read_only;
	struct sqlite3_stmt *statements[];
};

/* Turns a result of sqlite3 into an error. `doing`: "opening", "writing". */
int database_failed(struct database *s, int code, const char *doing, struct dray_err *reterr);

/* Runs statements that have no parameters and whose rows are ignored. 0 or as above. */
int database_run(struct database *s, const char *sql, const char *doing, struct dray_err *reterr);
