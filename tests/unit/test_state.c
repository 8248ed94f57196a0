/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are written can be read again; and files that are damaged. */
#include "agent/state/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/state/internal.h"
#include "agent/state/database.h"
#include "schema/gen/data.h"
#include "tests/unit/cm.h"
#include "tests/unit/state_rig.h"

static char dir[CM_DIR_BYTES];
static int fds_before;

static int setup(void **state)
{
	fds_before = cm_fds_count();
	cm_dir_make(dir);
	return 0;
}

static int teardown(void **state)
{
	cm_dir_remove(dir);
	assert_int_equal(cm_fds_count(), fds_before);
	return 0;
}

static const char *path_of(const char *name)
{
	static char path[1024];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

/* Counts entries of the directory with this prefix. */
static unsigned count_files(const char *prefix)
{
	const struct dirent *e;
	unsigned n = 0;
	DIR *d = opendir(dir);

	assert_non_null(d);
	while ((e = readdir(d)))
		n += !strncmp(e->d_name, prefix, strlen(prefix)) && !strstr(e->d_name, "-wal");
	closedir(d);
	return n;
}

/* Runs one statement as another program would; returns its first value. */
static int64_t sql(const char *name, const char *text)
{
	sqlite3 *db = NULL;
	sqlite3_stmt *q = NULL;
	int64_t v = -1;

	assert_int_equal(sqlite3_open(path_of(name), &db), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(db, text, -1, &q, NULL), SQLITE_OK);
	if (sqlite3_step(q) == SQLITE_ROW)
		v = sqlite3_column_int64(q, 0);
	assert_int_equal(sqlite3_finalize(q), SQLITE_OK);
	sqlite3_close(db);
	return v;
}

static void put_one_of_each(struct rig *r)
{
	state_save_hint(r->s, &(struct state_hint){ "m/\xc3\xa4", 4, 4000000000u, "[::1]:5", "t",
						    4000000000u, 1, 2 });
	state_save_segment(r->s, &(struct state_segment){ "h:1", "http", "http://h:2/x",
							  "config,listener", 2, 3, 4, "it's \"ok\"",
							  UINT64_MAX, 5, 6 });
	state_add_event(r->s, &(struct state_event){ "h:1", 7, 1, 2, "first" });
	state_add_event(r->s, &(struct state_event){ "h:1", 8, 2, 3, "second" });
	state_save_preferred(r->s, &(struct state_preferred){ "h:1", 4, 9 });
}

static void assert_one_of_each(const struct rig *r)
{
	assert_int_equal(r->rows.n, 5);
	assert_int_equal(r->loaded, 5);
	assert_string_equal(r->rows.line[0], "preferred h:1 4 9");
	assert_true(rig_has(r, "hint m/\xc3\xa4 4 4000000000 [::1]:5 4000000000 1 2"));
	assert_true(rig_has(r, "segment h:1 http http://h:2/x config,listener 2 3 4 it's \"ok\" "
			       "9223372036854775807 5 6"));
	assert_string_equal(r->rows.line[3], "event h:1 7 1 2 first");
	assert_string_equal(r->rows.line[4], "event h:1 8 2 3 second");
}

static void rows_are_written_and_read(void **state)
{
	struct rig r = { 0 };
	struct state_info info;
	struct stat st;

	rig_open(&r, dir);
	assert_int_equal(r.rows.n, 0);
	put_one_of_each(&r); /* before the thread runs */
	rig_start(&r);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_flush(&r), 0); /* without changes */
	state_info(r.s, &info);
	assert_false(info.in_memory);
	assert_true(info.writes >= 1);
	assert_int_equal(info.errors, 0);
	assert_int_equal(info.queued, 0);
	assert_int_equal(stat(path_of("state.db"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	rig_reopen(&r);
	assert_one_of_each(&r);
	assert_int_equal(r.refills, 0);
	state_save_preferred(r.s, &(struct state_preferred){ "", 0, 10 });
	state_drop_hint(r.s, &(struct state_hint){ .scope = "m/\xc3\xa4",
						   .segment = "[::1]:5",
						   .tenant = "t",
						   .source = 4,
						   .uid = 4000000000u });
	state_drop_segment(r.s, "h:1");
	rig_reopen(&r); /* closing a state commits its changes */
	assert_int_equal(r.rows.n, 3);
	assert_string_equal(r.rows.line[0], "preferred  0 10");
	assert_string_equal(r.rows.line[1], "event h:1 7 1 2 first");
	rig_close(&r);
	assert_int_equal(sql("state.db", "PRAGMA user_version"), DRAY_STATE_VERSION);
	assert_int_equal(count_files("state.db."), 0);
}

static void the_last_change_of_a_key_counts(void **state)
{
	struct rig r = { .deps = { .gather_ns = 1000000000 } };
	struct state_info info;

	rig_open(&r, dir);
	rig_start(&r);
	for (unsigned i = 0; i < 1000; i++)
		rig_put_hint(&r, i % 10, i);
	state_save_segment(r.s, &(struct state_segment){ "h:1", "", "", "", 1, .reason = "" });
	state_drop_segment(r.s, "h:1");
	state_info(r.s, &info);
	assert_int_equal(info.queued, 11);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(r.rows.n, 10);
	assert_true(rig_has(&r, "hint scope-0 4 1000 10.0.0.1:50053 990 1000 2000"));
	rig_close(&r);
}

static void history_has_a_limit(void **state)
{
	struct rig r = { 0 };
	char reason[32];

	rig_open(&r, dir);
	rig_start(&r);
	for (unsigned i = 0; i < 3 * DRAY_STATE_MAX_SEGMENT_EVENTS; i++) {
		snprintf(reason, sizeof(reason), "%u", i);
		state_add_event(r.s, &(struct state_event){ "h:1", i, 1, 2, reason });
	}
	state_add_event(r.s, &(struct state_event){ "h:2", 1, 1, 2, "other" });
	rig_reopen(&r);
	assert_int_equal(r.rows.n, DRAY_STATE_MAX_SEGMENT_EVENTS + 1);
	assert_string_equal(r.rows.line[0], "event h:1 64 1 2 64");
	assert_string_equal(r.rows.line[DRAY_STATE_MAX_SEGMENT_EVENTS], "event h:2 1 1 2 other");
	for (unsigned i = 0; i < DRAY_STATE_MAX_EVENTS + 100; i++) {
		snprintf(reason, sizeof(reason), "s:%u", i + 1);
		state_add_event(r.s, &(struct state_event){ reason, i, 1, 2, "" });
	}
	/* state_free() waits only so long for a slow disk */
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(r.rows.n, DRAY_STATE_MAX_EVENTS);
	rig_close(&r);
}

static void long_texts_are_truncated_and_long_names_refused(void **state)
{
	struct rig r = { 0 };
	struct state_info info;
	char text[2 * STATE_TEXT_MAX];

	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	/* a character lies across the limit */
	memcpy(text + STATE_TEXT_MAX - 1, "\xc3\xa4", 2);
	rig_open(&r, dir);
	rig_start(&r);
	state_add_event(r.s, &(struct state_event){ "h:1", 1, 1, 2, text });
	state_save_hint(r.s, &(struct state_hint){ text, 4, 0, "h:1", "t", 0, 1, 2 });
	state_drop_segment(r.s, text);
	state_save_preferred(r.s, &(struct state_preferred){ text, 0, 0 });
	assert_int_equal(rig_flush(&r), 0);
	state_info(r.s, &info);
	assert_int_equal(info.errors, 3);
	rig_close(&r);
	assert_int_equal(sql("state.db", "SELECT length(reason) FROM segment_event"),
			 STATE_TEXT_MAX - 1);
	assert_int_equal(sql("state.db", "SELECT count(*) FROM hint"), 0);
}

static void a_state_without_a_file_keeps_nothing(void **state)
{
	struct rig r = { .s = NULL };
	struct state_info info;

	put_one_of_each(&r);
	rig_put_hint(&r, 1, 1);
	state_info(NULL, &info);
	assert_true(info.in_memory);
	assert_null(state_free(NULL));
}

/* --- refill -------------------------------------------------------------------------------------- */

static void refill_some(struct rig *r)
{
	for (unsigned i = 0; i < 20; i++)
		rig_put_hint(r, i, 77);
	state_save_segment(r->s, &(struct state_segment){ "h:9", "", "", "", 1, .reason = "" });
}

static void too_many_changes_cause_a_refill(void **state)
{
	struct rig r = { .deps = { .queue_bytes = 4096 }, .refill = refill_some };

	rig_open(&r, dir);
	state_add_event(r.s, &(struct state_event){ "h:1", 1, 1, 2, "before" });
	rig_start(&r);
	assert_int_equal(rig_flush(&r), 0);
	for (unsigned i = 0; i < 100000 && !r.refills; i++) {
		rig_put_hint(&r, i + 100, 1);
		if (i % 500 == 499)
			assert_true(sd_event_run(r.event, 0) >= 0);
	}
	rig_wait(&r, rig_refilled, "refill");
	assert_int_equal(rig_flush(&r), 0);
	r.deps.queue_bytes = 0;
	rig_reopen(&r);
	/* it replaces the other rows, but not events */
	assert_true(rig_has(&r, "event h:1 1 1 2 before"));
	assert_true(rig_has(&r, "hint scope-19 4 1005 10.0.0.1:50053 77 1000 2000"));
	rig_close(&r);
	assert_int_equal(sql("state.db", "SELECT count(*) FROM hint WHERE score = 77"), 20);
}

static void a_file_that_was_removed_is_made_again(void **state)
{
	struct rig r = { .refill = refill_some };

	rig_open(&r, dir);
	rig_start(&r);
	rig_put_hint(&r, 500, 1);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(unlink(path_of("state.db")), 0);
	rig_put_hint(&r, 501, 1);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(r.refills, 1);
	rig_close(&r);
	assert_int_equal(sql("state.db", "SELECT count(*) FROM hint"), 20);
}

/* --- damaged files --------------------------------------------------------------------------------- */

static void make_good(struct rig *r)
{
	rig_open(r, dir);
	put_one_of_each(r);
	for (unsigned i = 0; i < 2000; i++)
		rig_put_hint(r, i, i);
	rig_start(r);
	assert_int_equal(rig_flush(r), 0);
	r->s = state_free(r->s);
}

static char *file_read(const char *name, size_t *ret_n)
{
	FILE *f = fopen(path_of(name), "re");
	struct stat st;
	char *data;

	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	data = malloc((size_t)st.st_size + 1);
	*ret_n = fread(data, 1, (size_t)st.st_size, f);
	fclose(f);
	return data;
}

static void file_write(const char *name, const char *data, size_t n)
{
	FILE *f = fopen(path_of(name), "we");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

/* Whatever the file is, the state opens and writes, and the rows are there at the next start. */
static void assert_works(struct rig *r)
{
	rig_open(r, dir);
	rig_start(r);
	r->refill = refill_some;
	rig_put_hint(r, 7, 12345);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_on_disk(r));
	r->s = state_free(r->s);
	assert_int_equal(sql("state.db", "SELECT count(*) > 0 FROM hint WHERE scope = 'scope-7'"),
			 1);
	assert_int_equal(sql("state.db", "SELECT integrity_check = 'ok' FROM "
					 "pragma_integrity_check"),
			 1);
}

static void garbage_is_moved_away(void **state)
{
	static const char *const garbage[] = { "x", "SQLite format 3",
					       "not a database, but longer "
					       "than a hundred bytes ....."
					       "........................."
					       "........................."
					       "........................" };
	struct rig r = { 0 };

	for (unsigned i = 0; i < 3; i++) {
		file_write("state.db", garbage[i], strlen(garbage[i]));
		file_write("state.db-wal", "y", 1);
		assert_works(&r);
		assert_int_equal(count_files("state.db.corrupt-"), i + 1);
	}
	rig_close(&r);
}

static void an_empty_file_becomes_a_new_database(void **state)
{
	struct rig r = { 0 };

	file_write("state.db", "", 0);
	file_write("state.db-wal", "left over", 9);
	assert_works(&r);
	assert_int_equal(count_files("state.db."), 0);
	rig_close(&r);
}

static void a_directory_is_moved_away(void **state)
{
	struct rig r = { 0 };

	cm_file_write(dir, "state.db/inside", "kept");
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 1);
	rig_close(&r);
}

static void links_without_a_file_are_moved_away(void **state)
{
	static const char *const targets[] = { "nothing", "state.db" };
	struct rig r = { 0 };

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(symlink(targets[i], path_of("state.db")), 0);
		assert_works(&r);
		assert_int_equal(count_files("state.db.corrupt-"), i + 1);
		rig_close(&r);
		assert_int_equal(unlink(path_of("state.db")), 0);
	}
}

static void another_programs_database_is_moved_away(void **state)
{
	struct rig r = { 0 };

	sql("state.db", "CREATE TABLE hint (a)");
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 1);
	sql("state.db", "PRAGMA application_id = 5");
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 2);
	sql("state.db", "DROP TABLE preferred");
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 3);
	rig_close(&r);
}

static void a_newer_file_is_moved_away(void **state)
{
	struct rig r = { 0 };

	make_good(&r);
	for (unsigned i = 0; i < 5; i++) {
		sql("state.db", "PRAGMA user_version = 12");
		assert_works(&r);
		assert_int_equal(count_files("state.db.newer-12-"), i < 3 ? i + 1 : 3);
	}
	sql("state.db", "PRAGMA user_version = -1");
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 1);
	rig_close(&r);
}

/* File systems such as NFS have no RENAME_NOREPLACE; by --wrap. */
static bool renames_only_plainly;

int __real_renameat2(int old_dir, const char *old, int new_dir, const char *new,
		     unsigned int flags);
int __wrap_renameat2(int old_dir, const char *old, int new_dir, const char *new,
		     unsigned int flags);

int __wrap_renameat2(int old_dir, const char *old, int new_dir, const char *new, unsigned int flags)
{
	if (!renames_only_plainly || !flags)
		return __real_renameat2(old_dir, old, new_dir, new, flags);
	errno = EINVAL;
	return -1;
}

/* The oldest is removed, with its journal files. */
static void three_are_kept(void **state)
{
	char names[5][QUARANTINE_NAME_BYTES];
	struct dray_err err = DRAY_ERR_NULL;

	for (unsigned i = 0; i < 5; i++) {
		file_write("state.db", "x", 1);
		file_write("state.db-wal", "y", 1);
		assert_int_equal(quarantine_file(dir, "state.db", "corrupt", names[i], &err), 0);
	}
	for (unsigned i = 0; i < 5; i++) {
		char wal[512];

		snprintf(wal, sizeof(wal), "%s-wal", names[i]);
		assert_int_equal(access(path_of(names[i]), F_OK), i < 2 ? -1 : 0);
		assert_int_equal(access(path_of(wal), F_OK), i < 2 ? -1 : 0);
	}
	assert_int_equal(quarantine_file(dir, "state.db", "corrupt", names[0], &err), -ENOENT);
	assert_non_null(strstr(err.msg, "renaming"));
}

static void three_are_kept_on_nfs(void **state)
{
	renames_only_plainly = true;
	three_are_kept(state);
	renames_only_plainly = false;
}

static void truncated_files_open(void **state)
{
	struct rig r = { 0 };
	char *data;
	size_t n;

	make_good(&r);
	data = file_read("state.db", &n);
	for (size_t at = 1; at < n; at = at * 3 + 5) {
		file_write("state.db", data, at);
		assert_works(&r);
	}
	file_write("state.db", data, n - DRAY_STATE_PAGE_SIZE);
	assert_works(&r);
	assert_int_equal(count_files("state.db.corrupt-"), 3);
	free(data);
	rig_close(&r);
}

/* Random bytes in a page's head, its cells, and the file's head. */
static void flipped_bytes_open(void **state)
{
	struct rig r = { 0 };
	unsigned seed = 1;
	char *data, *bad;
	size_t n;

	make_good(&r);
	data = file_read("state.db", &n);
	bad = malloc(n);
	for (unsigned i = 0; i < 120; i++) {
		size_t at = i < 40 ? i * 3 :
			    i < 90 ? i * 7919 % (n / DRAY_STATE_PAGE_SIZE) * DRAY_STATE_PAGE_SIZE +
					     i % 12 :
				     (size_t)rand_r(&seed) % n;

		memcpy(bad, data, n);
		for (unsigned k = 0; k < 8 && at + k < n; k++)
			bad[at + k] = (char)rand_r(&seed);
		file_write("state.db", bad, n);
		assert_works(&r);
	}
	assert_int_equal(count_files("state.db.corrupt-"), 3);
	free(data);
	free(bad);
	rig_close(&r);
}

/* STRICT determines the type of a column, but not its length. */
static void invalid_rows_are_ignored(void **state)
{
	struct rig r = { 0 };

	make_good(&r);
	sql("state.db", "INSERT INTO hint VALUES ('neg', 4, -1, 'h:1', 't', 0, 1, 2)");
	sql("state.db", "INSERT INTO hint VALUES ('big', 4, 1, 'h:1', 't', 5000000000, 1, 2)");
	sql("state.db",
	    "INSERT INTO hint VALUES ('a' || char(0) || 'b', 4, 1, 'h:1', 't', 0, 1, 2)");
	sql("state.db", "INSERT INTO hint VALUES (hex(zeroblob(600)), 4, 1, 'h:1', 't', 0, 1, 2)");
	sql("state.db", "INSERT INTO hint VALUES ('ok', 4, 1, 'h:1', 't', 0, 1, 2)");
	rig_open(&r, dir);
	assert_int_equal(r.loaded, 5 + 2000 + 1);
	assert_int_equal(r.rows.n, 5 + 2000 + 1);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(rows_are_written_and_read, setup, teardown),
		cmocka_unit_test_setup_teardown(the_last_change_of_a_key_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(history_has_a_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(long_texts_are_truncated_and_long_names_refused,
						setup, teardown),
		cmocka_unit_test(a_state_without_a_file_keeps_nothing),
		cmocka_unit_test_setup_teardown(too_many_changes_cause_a_refill, setup, teardown),
		cmocka_unit_test_setup_teardown(a_file_that_was_removed_is_made_again, setup,
						teardown),
		cmocka_unit_test_setup_teardown(garbage_is_moved_away, setup, teardown),
		cmocka_unit_test_setup_teardown(an_empty_file_becomes_a_new_database, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_directory_is_moved_away, setup, teardown),
		cmocka_unit_test_setup_teardown(links_without_a_file_are_moved_away, setup,
						teardown),
		cmocka_unit_test_setup_teardown(another_programs_database_is_moved_away, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_newer_file_is_moved_away, setup, teardown),
		cmocka_unit_test_setup_teardown(three_are_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(three_are_kept_on_nfs, setup, teardown),
		cmocka_unit_test_setup_teardown(truncated_files_open, setup, teardown),
		cmocka_unit_test_setup_teardown(flipped_bytes_open, setup, teardown),
		cmocka_unit_test_setup_teardown(invalid_rows_are_ignored, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
