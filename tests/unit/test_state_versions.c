/* SPDX-License-Identifier: Apache-2.0 */
/* Databases of every earlier version, and their migration. */
#include "agent/state/database.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/state_rig.h"
#include "tests/unit/vfs_shim.h"

static char dir[CM_DIR_BYTES], path[CM_DIR_BYTES + 16];
static int fds_before;

/* Migrations that later releases could have. */
static const struct dray_state_migration later[] = {
	{ "first", NULL },
	{ "second", NULL },
	{ "third", NULL },
	{ "a column and a table",
	  "ALTER TABLE segment ADD COLUMN zone TEXT NOT NULL DEFAULT 'here';"
	  "CREATE TABLE zone (name TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;"
	  "INSERT INTO zone SELECT DISTINCT zone FROM segment;" },
	{ "rows are rewritten", "UPDATE hint SET score = score + 1;" },
};

static struct dray_state_migration migrations[DRAY_STATE_VERSION + 2];
static struct database_schema schema;

static int setup(void **state)
{
	fds_before = cm_fds_count();
	schema = database_state_schema;
	schema.migrations = migrations;
	schema.version = DRAY_STATE_VERSION + 2;
	memcpy(migrations, later, sizeof(later));
	for (unsigned i = 0; i < DRAY_STATE_VERSION; i++)
		migrations[i] = dray_state_migrations[i];
	cm_dir_make(dir);
	snprintf(path, sizeof(path), "%s/state.db", dir);
	return 0;
}

static int teardown(void **state)
{
	cm_dir_remove(dir);
	assert_int_equal(cm_fds_count(), fds_before);
	return 0;
}

/*
 * Copies tests/data/state/vN.db to the state's place. Returns false if there is none of that
 * version.
 */
static bool copy_golden(unsigned version)
{
	char name[64], buf[4096];
	FILE *from, *to;
	size_t n;

	snprintf(name, sizeof(name), "tests/data/state/v%u.db", version);
	from = fopen(name, "re");
	if (!from)
		return false;
	to = fopen(path, "we");
	assert_non_null(to);
	while ((n = fread(buf, 1, sizeof(buf), from)))
		assert_int_equal(fwrite(buf, 1, n, to), n);
	fclose(from);
	assert_int_equal(fclose(to), 0);
	return true;
}

static int64_t sql(const char *text)
{
	sqlite3 *db = NULL;
	sqlite3_stmt *q = NULL;
	int64_t v = -1;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	if (sqlite3_prepare_v2(db, text, -1, &q, NULL) != SQLITE_OK)
		fail_msg("%s: %s", text, sqlite3_errmsg(db));
	if (sqlite3_step(q) == SQLITE_ROW)
		v = sqlite3_column_int64(q, 0);
	assert_int_equal(sqlite3_finalize(q), SQLITE_OK);
	sqlite3_close(db);
	return v;
}

static int open_with(const struct database_schema *with, struct database_info *info, char msg[240])
{
	struct dray_err err = DRAY_ERR_NULL;
	struct database *s = NULL;
	int r = database_open(&s, path, with, info, &err);

	memcpy(msg, err.msg, sizeof(err.msg));
	assert_int_equal(r == 0, s != NULL);
	database_close(s, false);
	return r;
}

static void every_version_is_read(void **state)
{
	struct rig r = { 0 };

	for (unsigned v = 1; v <= DRAY_STATE_VERSION; v++) {
		assert_true(copy_golden(v));
		rig_open(&r, dir);
		assert_int_equal(r.loaded, v < 3 ? 5 : 6);
		assert_int_equal(rig_has(&r, "gpu_rate plug-in 1 NVIDIA H200 nvlink 4096 7400"),
				 v >= 3);
		assert_true(rig_has(&r, "hint model-a 4 1000 10.0.0.1:50053 7 1700000000000 "
					"1700086400000"));
		assert_true(rig_has(&r, "hint  1 0 [fd00::1]:50053 0 1700000000001 1700086400001"));
		assert_true(rig_has(&r, "segment 10.0.0.1:50053 mooncake 10.0.0.1:12345 "
					"config,listener 2 1700000000002 1700000000003 it answers "
					"1099511627776 1073741824 1700000000004"));
		assert_true(rig_has(&r, "event 10.0.0.1:50053 1700000000002 1 2 it answers"));
		assert_true(rig_has(&r, "preferred 10.0.0.1:50053 4 1700000000005"));
		rig_start(&r);
		rig_put_hint(&r, 1, 1);
		assert_int_equal(rig_flush(&r), 0);
		assert_true(rig_on_disk(&r));
		rig_close(&r);
		assert_int_equal(sql("PRAGMA user_version"), DRAY_STATE_VERSION);
		assert_int_equal(sql("SELECT count(*) FROM hint"), 3);
	}
	assert_false(copy_golden(DRAY_STATE_VERSION + 1));
}

/* A new file and one of version 1 get the same tables. */
static void migrations_continue_from_each_version(void **state)
{
	struct database_info info;
	char msg[240];

	assert_int_equal(open_with(&schema, &info, msg), 0);
	assert_true(info.created);
	assert_int_equal(sql("PRAGMA user_version"), DRAY_STATE_VERSION + 2);
	assert_int_equal(unlink(path), 0);
	assert_true(copy_golden(1));
	assert_int_equal(open_with(&schema, &info, msg), 0);
	assert_false(info.created);
	assert_int_equal(info.version, 1);
	assert_int_equal(sql("PRAGMA user_version"), DRAY_STATE_VERSION + 2);
	assert_int_equal(sql("SELECT count(*) FROM segment WHERE zone = 'here'"), 1);
	assert_int_equal(sql("SELECT count(*) FROM zone"), 1);
	assert_int_equal(sql("SELECT score FROM hint WHERE scope = 'model-a'"), 8);
	/* the migrations run once */
	assert_int_equal(open_with(&schema, &info, msg), 0);
	assert_int_equal(info.version, DRAY_STATE_VERSION + 2);
	assert_int_equal(sql("SELECT score FROM hint WHERE scope = 'model-a'"), 8);
}

static void a_newer_version_is_refused(void **state)
{
	struct database_info info;
	char msg[240];

	assert_true(copy_golden(1));
	assert_int_equal(open_with(&schema, &info, msg), 0);
	assert_int_equal(open_with(&database_state_schema, &info, msg), DATABASE_E_NEWER);
	assert_int_equal(info.version, DRAY_STATE_VERSION + 2);
	assert_non_null(strstr(msg, "of version 5, this release knows 3"));
	/* and the file was not changed */
	assert_int_equal(sql("PRAGMA user_version"), DRAY_STATE_VERSION + 2);
	assert_int_equal(open_with(&schema, &info, msg), 0);
}

/* All steps take effect, or none. */
static void a_migration_that_fails_changes_nothing(void **state)
{
	struct database_info info;
	char msg[240];

	migrations[DRAY_STATE_VERSION + 1].text =
		"UPDATE hint SET score = 99; UPDATE absent SET a = 1;";
	assert_true(copy_golden(1));
	assert_int_equal(open_with(&schema, &info, msg), DATABASE_E_CORRUPT);
	if (!strstr(msg, "no such table: absent"))
		fail_msg("%s", msg);
	assert_int_equal(sql("PRAGMA user_version"), 1);
	assert_int_equal(sql("SELECT score FROM hint WHERE scope = 'model-a'"), 7);
	assert_int_equal(open_with(&database_state_schema, &info, msg), 0);
}

static void a_migration_on_a_disk_that_fails_changes_nothing(void **state)
{
	unsigned ops = 1u << SHIM_WRITE | 1u << SHIM_SYNC | 1u << SHIM_TRUNCATE;
	struct database_info info;
	char msg[240];
	bool failed = true;
	uint32_t n;

	for (n = 0; failed; n++) {
		int r;

		unlink(path);
		assert_true(copy_golden(1));
		shim_install();
		shim_fail(ops, SQLITE_FULL, n, false);
		r = open_with(&schema, &info, msg);
		failed = shim_heal();
		shim_remove();
		if (r != 0 && r != -ENOSPC)
			fail_msg("%d: %s", r, msg);
		assert_int_equal(sql("SELECT integrity_check = 'ok' FROM pragma_integrity_check"),
				 1);
		assert_int_equal(sql("SELECT score FROM hint WHERE scope = 'model-a'"),
				 sql("PRAGMA user_version") == DRAY_STATE_VERSION + 2 ? 8 : 7);
		assert_int_equal(open_with(&schema, &info, msg), 0);
		assert_int_equal(sql("SELECT score FROM hint WHERE scope = 'model-a'"), 8);
	}
	assert_true(n > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_version_is_read, setup, teardown),
		cmocka_unit_test_setup_teardown(migrations_continue_from_each_version, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_newer_version_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(a_migration_that_fails_changes_nothing, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_migration_on_a_disk_that_fails_changes_nothing,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
