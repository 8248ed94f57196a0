/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WAL with synchronous=NORMAL: a commit does not wait for the disk. A power cut may lose the last commits, kill -9
 * loses none, and the file stays consistent either way. With locking_mode=EXCLUSIVE the index of the WAL is in private
 * memory instead of a mapped file that another process could shorten. A file with tables that no migration made, or for
 * which the statements do not compile, is not ours.
 */
#include "agent/state/database.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "schema/gen/errors.h"

/* Longest value or row: several texts of STATE_TEXT_MAX. */
#define VALUE_BYTES_MAX (64 << 10)

/* Sizes of the smallest page and of the header of a log. */
#define HEAD_BYTES 512
#define WAL_HEAD_BYTES 32

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

const struct database_schema database_state_schema = {
	.migrations = dray_state_migrations,
	.version = DRAY_STATE_VERSION,
	.what = "state",
	.setting = "agent.state_dir",
	.statements = dray_state_statements,
	.n_statements = DRAY_STATE_STATEMENT_N,
	.application_id = DRAY_STATE_APPLICATION_ID,
};

static int no_space(struct database *s, struct dray_err *reterr, const char *doing)
{
	return dray_err_set(reterr, -ENOSPC, DRAY_E_NO_SPACE,
			    "%s %s: no space left; free some, or set %s", doing, s->schema.what,
			    s->schema.setting);
}

static int refused_by_system(struct database *s, struct dray_err *reterr, const char *doing,
			     int err, const char *text)
{
	if (err == ENOSPC || err == EDQUOT)
		return no_space(s, reterr, doing);
	if (err == EACCES || err == EPERM || err == EROFS)
		return dray_err_set(reterr, -err, DRAY_E_IO,
				    "%s %s: %s; let the agent write there, or set %s", doing,
				    s->schema.what, dray_errno_text(err), s->schema.setting);
	return dray_err_set(reterr, err ? -err : -EIO, DRAY_E_IO, "%s %s: %s", doing,
			    s->schema.what, err ? dray_errno_text(err) : text);
}

int database_failed(struct database *s, int code, const char *doing, struct dray_err *reterr)
{
	const char *text = s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code);
	int err = s->db ? sqlite3_system_errno(s->db) : 0;

	switch (code & 0xff) {
	case SQLITE_NOMEM:
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "%s %s: no memory", doing,
				    s->schema.what);
	case SQLITE_FULL:
		return no_space(s, reterr, doing);
	case SQLITE_READONLY:
		return dray_err_set(reterr, -EROFS, DRAY_E_DENIED,
				    "%s %s: it is read-only; let the agent write it, or set %s",
				    doing, s->schema.what, s->schema.setting);
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
	case SQLITE_PROTOCOL:
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "%s %s: another process has it open; stop that process", doing,
				    s->schema.what);
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_FORMAT:
	case SQLITE_ERROR: /* a statement does not fit the tables */
	case SQLITE_SCHEMA:
	case SQLITE_CONSTRAINT:
	case SQLITE_MISMATCH:
	case SQLITE_TOOBIG:
		return dray_err_set(reterr, DATABASE_E_CORRUPT, DRAY_E_INVALID, "%s", text);
	default:
		return refused_by_system(s, reterr, doing, err, text);
	}
}

int database_run(struct database *s, const char *sql, const char *doing, struct dray_err *reterr)
{
	int code = sqlite3_exec(s->db, sql, NULL, NULL, NULL);

	return code == SQLITE_OK ? 0 : database_failed(s, code, doing, reterr);
}

/* The first column of the first row. */
static int read_number(struct database *s, const char *sql, int64_t *ret, struct dray_err *reterr)
{
	sqlite3_stmt *q = NULL;
	int code = sqlite3_prepare_v2(s->db, sql, -1, &q, NULL);

	if (code == SQLITE_OK)
		code = sqlite3_step(q);
	if (code == SQLITE_ROW)
		*ret = sqlite3_column_int64(q, 0);
	sqlite3_finalize(q);
	return code == SQLITE_ROW ? 0 : database_failed(s, code, "reading", reterr);
}

/* Does the log hold changes that the file may lack? */
static bool has_recovery(const char *path)
{
	dray_auto_free char *wal = NULL;
	struct stat st;

	if (asprintf(&wal, "%s-wal", path) < 0) {
		wal = NULL;
		return true;
	}
	return stat(wal, &st) == 0 && st.st_size > WAL_HEAD_BYTES;
}

/* sqlite3 would not restrict the mode to the agent. */
static int make_file(struct database *s, const char *path, struct database_info *info,
		     struct dray_err *reterr)
{
	struct stat st;
	int fd;

	if (stat(path, &st) == 0) {
		if (!S_ISREG(st.st_mode))
			return dray_err_set(reterr, DATABASE_E_CORRUPT, DRAY_E_INVALID,
					    "it is not a file");
		info->created = st.st_size == 0;
		/* sqlite3 would treat it as a new file and overwrite it */
		if (st.st_size && st.st_size < HEAD_BYTES && !has_recovery(path))
			return dray_err_set(reterr, DATABASE_E_CORRUPT, DRAY_E_INVALID,
					    "it is too short for a database");
		return 0;
	}
	if (errno != ENOENT)
		return refused_by_system(s, reterr, "opening", errno, "");
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return refused_by_system(s, reterr, "making", errno, "");
	dray_close(fd);
	info->created = true;
	return 0;
}

static int open_db(struct database *s, const char *name, int flags, struct dray_err *reterr)
{
	int code = sqlite3_open_v2(name, &s->db,
				   flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE |
					   SQLITE_OPEN_EXRESCODE,
				   NULL);

	if (code != SQLITE_OK)
		return database_failed(s, code, "opening", reterr);
	sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
	sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
	sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
	sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX);
	sqlite3_limit(s->db, SQLITE_LIMIT_ATTACHED, 0);
	/* these do not read the file */
	return database_run(s,
			    "PRAGMA busy_timeout = 0;"
			    "PRAGMA mmap_size = 0;"
			    "PRAGMA cell_size_check = ON;"
			    "PRAGMA foreign_keys = ON;"
			    "PRAGMA temp_store = MEMORY;"
			    "PRAGMA locking_mode = EXCLUSIVE;"
			    "PRAGMA page_size = " TEXT_OF(DRAY_STATE_PAGE_SIZE),
			    "opening", reterr);
}

/* Opens the file as immutable, without locks: a read-only descriptor cannot take them. */
static int open_to_read(struct database *s, const char *path, struct dray_err *reterr)
{
	dray_auto_free char *uri = NULL;
	char *at;

	sqlite3_close(dray_take(s->db));
	if (has_recovery(path))
		return database_failed(s, SQLITE_READONLY, "recovering", reterr);
	uri = malloc(sizeof("file:?immutable=1") + strlen(path) * 3);
	if (!uri)
		return database_failed(s, SQLITE_NOMEM, "opening", reterr);
	at = stpncpy(uri, "file:", 6);
	for (const char *p = path; *p; p++) {
		if (strchr("%?#", *p))
			at += snprintf(at, 4, "%%%02x", (unsigned char)*p);
		else
			*at++ = *p;
	}
	memcpy(at, "?immutable=1", sizeof("?immutable=1"));
	return open_db(s, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, reterr);
}

static int open_file(struct database *s, const char *path, struct database_info *info,
		     struct dray_err *reterr)
{
	int r = make_file(s, path, info, reterr);

	if (r)
		return r;
	r = open_db(s, path, SQLITE_OPEN_READWRITE, reterr);
	if (r || !sqlite3_db_readonly(s->db, "main"))
		return r;
	if (info->created)
		return database_failed(s, SQLITE_READONLY, "opening", reterr);
	info->read_only = s->read_only = true;
	return open_to_read(s, path, reterr);
}

static int not_ours(struct dray_err *reterr)
{
	return dray_err_set(reterr, DATABASE_E_CORRUPT, DRAY_E_INVALID,
			    "it is a database of another program");
}

static int read_version(struct database *s, struct database_info *info, struct dray_err *reterr)
{
	int64_t version = 0, application = 0, objects = 0;
	int r = read_number(s, "PRAGMA user_version", &version, reterr);

	if (!r)
		r = read_number(s, "PRAGMA application_id", &application, reterr);
	if (!r)
		r = read_number(s, "SELECT count(*) FROM sqlite_schema", &objects, reterr);
	if (r)
		return r;
	info->version = (unsigned)version;
	info->created |= !version && !objects;
	if (version < 0 || (!version && objects) ||
	    (version && application != s->schema.application_id))
		return not_ours(reterr);
	if (version > s->schema.version)
		return dray_err_set(reterr, DATABASE_E_NEWER, DRAY_E_VERSION,
				    "it is of version %" PRId64 ", this release knows %u", version,
				    s->schema.version);
	return 0;
}

static int migrate(struct database *s, unsigned from, struct dray_err *reterr)
{
	const struct database_schema *schema = &s->schema;
	char version[96];
	int r = database_run(s, "BEGIN IMMEDIATE", "migrating", reterr);

	for (unsigned i = from; !r && i < schema->version; i++)
		r = database_run(s, schema->migrations[i].text, "migrating", reterr);
	snprintf(version, sizeof(version),
		 "PRAGMA user_version = %u; PRAGMA application_id = %" PRId32, schema->version,
		 schema->application_id);
	if (!r)
		r = database_run(s, version, "migrating", reterr);
	return r ? r : database_run(s, "COMMIT", "migrating", reterr);
}

/* Bounds the size of the files: at about 1 MiB the WAL is merged into the database and truncated. */
static int set_up_writing(struct database *s, const struct database_info *info,
			  struct dray_err *reterr)
{
	int r = database_run(s,
			     "PRAGMA journal_mode = WAL;"
			     "PRAGMA synchronous = NORMAL;"
			     "PRAGMA wal_autocheckpoint = 64;"
			     "PRAGMA journal_size_limit = 1048576",
			     "opening", reterr);

	if (!r && s->schema.durable)
		r = database_run(s, "PRAGMA synchronous = FULL", "opening", reterr);
	if (r || info->version == s->schema.version)
		return r;
	return migrate(s, info->version, reterr);
}

static int prepare(struct database *s, struct dray_err *reterr)
{
	for (unsigned i = 0; i < s->schema.n_statements; i++) {
		int code = sqlite3_prepare_v3(s->db, s->schema.statements[i], -1,
					      SQLITE_PREPARE_PERSISTENT, &s->statements[i], NULL);

		if (code != SQLITE_OK)
			return database_failed(s, code, "opening", reterr);
	}
	return 0;
}

int database_open(struct database **ret, const char *path, const struct database_schema *schema,
		  struct database_info *ret_info, struct dray_err *reterr)
{
	struct database *s =
		calloc(1, sizeof(*s) + schema->n_statements * sizeof(s->statements[0]));
	int r;

	*ret_info = (struct database_info){ .version = 0 };
	if (!s)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the %s",
				    schema->what);
	s->schema = *schema;
	r = open_file(s, path, ret_info, reterr);
	if (!r)
		r = read_version(s, ret_info, reterr);
	if (!r && !s->read_only)
		r = set_up_writing(s, ret_info, reterr);
	if (!r && s->read_only && ret_info->version != s->schema.version)
		r = database_failed(s, SQLITE_READONLY, "migrating", reterr);
	if (!r)
		r = prepare(s, reterr);
	if (r) {
		database_close(s, true);
		return r;
	}
	*ret = s;
	return 0;
}

struct database *database_close(struct database *s, bool as_it_is)
{
	if (!s)
		return NULL;
	for (unsigned i = 0; i < s->schema.n_statements; i++)
		sqlite3_finalize(s->statements[i]);
	if (s->db && as_it_is)
		sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_close(s->db);
	free(s);
	return NULL;
}

/* sqlite3 ends each finding with a newline. */
static int found_corrupt(const char *text, struct dray_err *reterr)
{
	char line[200];

	snprintf(line, sizeof(line), "%s", text);
	for (char *p = line; *p; p++)
		if (*p == '\n')
			*p = ' ';
	return dray_err_set(reterr, DATABASE_E_CORRUPT, DRAY_E_INVALID, "%s", line);
}

int database_check(struct database *s, struct dray_err *reterr)
{
	sqlite3_stmt *q = NULL;
	int code = sqlite3_prepare_v2(s->db, "PRAGMA integrity_check(1)", -1, &q, NULL);
	const char *text;
	int r = 0;

	if (code == SQLITE_OK)
		code = sqlite3_step(q);
	if (code != SQLITE_ROW) {
		r = database_failed(s, code, "checking", reterr);
	} else {
		text = (const char *)sqlite3_column_text(q, 0);
		if (!text)
			r = database_failed(s, SQLITE_NOMEM, "checking", reterr);
		else if (strcmp(text, "ok"))
			r = found_corrupt(text, reterr);
	}
	sqlite3_finalize(q);
	return r;
}
