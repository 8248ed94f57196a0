/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that is full, fails, is read-only, or does not answer: the agent continues, and writes
 * when it can.
 */
#include "agent/state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/time.h"
#include "schema/gen/data.h"
#include "tests/unit/cm.h"
#include "tests/unit/state_rig.h"
#include "tests/unit/vfs_shim.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"

static char dir[CM_DIR_BYTES];
static int fds_before;

static int setup(void **state)
{
	fds_before = cm_fds_count();
	cm_dir_make(dir);
	shim_install();
	return 0;
}

static int teardown(void **state)
{
	shim_heal();
	shim_release();
	shim_remove();
	cm_dir_remove(dir);
	assert_int_equal(cm_fds_count(), fds_before);
	return 0;
}

static const char *path_of(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void refill_all(struct rig *r)
{
	for (unsigned i = 0; i < 40; i++)
		rig_put_hint(r, i, 1);
}

/* Changes that are queued during a fault are written after it, whichever call failed and when. */
static bool fails_and_heals(unsigned ops, int code, uint32_t n, bool once)
{
	struct rig r = { .refill = refill_all };
	bool failed;

	cm_dir_remove(dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	shim_fail(ops, code, n, once);
	rig_open(&r, dir);
	rig_start(&r);
	for (unsigned i = 0; i < 20; i++)
		rig_put_hint(&r, i, 1);
	rig_flush(&r);
	for (unsigned i = 20; i < 40; i++)
		rig_put_hint(&r, i, 1);
	if (rig_flush(&r) != 0) {
		assert_true(rig_in_memory(&r));
		/* and the fault stays, or not */
		assert_int_equal(rig_flush(&r), once ? 0 : -EIO);
	}
	failed = shim_heal();
	rig_wait(&r, rig_on_disk, "writing again");
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	if (r.loaded != 40)
		fail_msg("%u rows after ops %#x failed with %d from call %u", (unsigned)r.loaded,
			 ops, code, n);
	rig_close(&r);
	return failed;
}

static void fail_everywhere(unsigned ops, int code)
{
	uint32_t n = 0;

	while (fails_and_heals(ops, code, n, false))
		n++;
	assert_true(n > 0);
	for (n = 0; fails_and_heals(ops, code, n, true);)
		n++;
	assert_true(n > 0);
}

static void a_full_disk(void **state)
{
	fail_everywhere(1u << SHIM_WRITE, SQLITE_FULL);
}

static void writes_that_fail(void **state)
{
	fail_everywhere(1u << SHIM_WRITE, SQLITE_IOERR_WRITE);
}

static void reads_that_fail(void **state)
{
	fail_everywhere(1u << SHIM_READ, SQLITE_IOERR_READ);
}

static void files_that_do_not_open(void **state)
{
	fail_everywhere(1u << SHIM_OPEN, SQLITE_CANTOPEN);
}

/* There are few such calls: when the log is started, and when it is copied into the file. */
static void syncs_and_truncations_that_fail(void **state)
{
	unsigned ops = 1u << SHIM_SYNC | 1u << SHIM_TRUNCATE;
	uint32_t n = 0;

	while (fails_and_heals(ops, SQLITE_IOERR_FSYNC, n, false))
		n++;
	/*
	 * the log is copied into the file at the end, if not before, and that failure is not
	 * reported
	 */
	fail_everywhere(1u << SHIM_WRITE | ops, SQLITE_IOERR);
}

/* A failing state logs one line for the fault and one for its end. */
static void counts_and_reason(void **state)
{
	struct rig r = { .refill = refill_all };
	struct state_info info;

	rig_open(&r, dir);
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	assert_int_equal(rig_flush(&r), 0);
	shim_fail(1u << SHIM_WRITE, SQLITE_FULL, 0, false);
	rig_put_hint(&r, 2, 1);
	assert_int_equal(rig_flush(&r), -EIO);
	state_info(r.s, &info);
	assert_true(info.in_memory);
	assert_true(info.errors >= 1);
	assert_int_equal(info.queued, 1);
	assert_non_null(strstr(info.why, "no space left; free some, or set agent.state_dir"));
	/* closing does not wait for a full disk */
	rig_close(&r);
}

/* Old rows are loaded although nothing can be written. */
static void a_full_disk_is_read(void **state)
{
	struct rig r = { .refill = refill_all };

	rig_open(&r, dir);
	rig_start(&r);
	refill_all(&r);
	rig_close(&r);
	shim_fail(1u << SHIM_WRITE, SQLITE_FULL, 0, false);
	rig_open(&r, dir);
	assert_int_equal(r.loaded, 40);
	rig_close(&r);
}

/*
 * Changes that wait for a disk have a limit: above it a refill follows once the disk can be
 * written.
 */
static void more_changes_than_the_queue_holds(void **state)
{
	struct rig r = { .deps = { .queue_bytes = 8192 }, .refill = refill_all };

	rig_open(&r, dir);
	rig_start(&r);
	shim_fail(1u << SHIM_WRITE, SQLITE_FULL, 0, false);
	for (unsigned i = 0; i < 1000; i++) {
		rig_put_hint(&r, 1000 + i, 1);
		if (i == 100)
			assert_int_equal(rig_flush(&r), -EIO);
	}
	assert_int_equal(rig_flush(&r), -EIO);
	assert_int_equal(r.refills, 0);
	shim_heal();
	rig_wait(&r, rig_refilled, "refill");
	assert_int_equal(rig_flush(&r), 0);
	assert_true(rig_on_disk(&r));
	rig_reopen(&r);
	assert_int_equal(r.loaded, 40);
	assert_int_equal(r.refills, 1);
	rig_close(&r);
}

/* A thread that hangs in the disk is abandoned, and frees everything itself if the disk answers. */
static void a_disk_that_does_not_answer(void **state)
{
	int threads = cm_threads_count();
	struct rig r = { 0 };
	int64_t until;

	rig_open(&r, dir);
	rig_start(&r);
	shim_hang();
	rig_put_hint(&r, 1, 1);
	shim_wait_hanging();
	rig_put_hint(&r, 2, 1); /* queueing does not wait */
	rig_close(&r);
	shim_release();
	/* wait for its end, because a child of a later test would inherit its locks */
	until = dray_now().ns + 10 * DRAY_NS_PER_SEC;
	while (cm_threads_count() > threads && dray_now().ns < until)
		poll(NULL, 0, 1);
	assert_int_equal(cm_threads_count(), threads);
}

/* --- real file systems --------------------------------------------------------------------------- */

#define SKIPPED 77

/*
 * In a child with its own mount namespace, and as root of a user namespace if the test is not run
 * by root.
 */
static bool mount_tmpfs(const char *options)
{
	int flags = CLONE_NEWNS | (geteuid() ? CLONE_NEWUSER : 0);

	return unshare(flags) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", dir, "tmpfs", 0, options) == 0;
}

static void run_child(void (*fn)(void *arg))
{
	int status = child_run(fn, NULL);

	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

static void do_read_only(void *arg)
{
	struct rig r = { .refill = refill_all };

	if (!mount_tmpfs("size=8m"))
		_exit(SKIPPED);
	rig_open(&r, dir);
	rig_start(&r);
	refill_all(&r);
	rig_close(&r);
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	rig_open(&r, dir);
	CHILD_CHECK(r.loaded == 40);
	CHILD_CHECK(rig_in_memory(&r));
	rig_start(&r);
	rig_put_hint(&r, 50, 1);
	CHILD_CHECK(rig_flush(&r) == -EIO);
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT, NULL) == 0);
	rig_wait(&r, rig_on_disk, "writing again");
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_reopen(&r);
	CHILD_CHECK(r.loaded == 41);
	CHILD_CHECK(r.refills == 0);
	rig_close(&r);
	_exit(0);
}

static void a_read_only_file_system(void **state)
{
	run_child(do_read_only);
}

/* The directory is empty, and no file can be created. */
static void do_read_only_and_empty(void *arg)
{
	struct rig r = { .refill = refill_all };

	if (!mount_tmpfs("size=8m"))
		_exit(SKIPPED);
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	rig_open(&r, dir);
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	CHILD_CHECK(rig_flush(&r) == -EIO);
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT, NULL) == 0);
	rig_wait(&r, rig_on_disk, "writing");
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_reopen(&r);
	CHILD_CHECK(r.loaded == 1 && r.refills == 0);
	rig_close(&r);
	_exit(0);
}

static void an_empty_read_only_file_system(void **state)
{
	run_child(do_read_only_and_empty);
}

/* A corrupt file that cannot be moved. */
static void do_read_only_and_corrupt(void *arg)
{
	struct rig r = { .refill = refill_all };

	if (!mount_tmpfs("size=8m"))
		_exit(SKIPPED);
	cm_file_write(dir, "state.db", "this is not it");
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	rig_open(&r, dir);
	CHILD_CHECK(r.loaded == 0 && rig_in_memory(&r));
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	CHILD_CHECK(rig_flush(&r) == -EIO);
	CHILD_CHECK(mount(NULL, dir, NULL, MS_REMOUNT, NULL) == 0);
	rig_wait(&r, rig_on_disk, "writing");
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_reopen(&r);
	CHILD_CHECK(r.loaded == 1);
	rig_close(&r);
	_exit(0);
}

static void a_corrupt_file_that_cannot_be_moved(void **state)
{
	run_child(do_read_only_and_corrupt);
}

static void fill(const char *name)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	char filler[4096] = "";

	CHILD_CHECK(fd >= 0);
	while (write(fd, filler, sizeof(filler)) > 0)
		;
	CHILD_CHECK(errno == ENOSPC);
	close(fd);
}

static void do_full(void *arg)
{
	struct rig r = { .refill = refill_all };

	if (!mount_tmpfs("size=4m"))
		_exit(SKIPPED);
	rig_open(&r, dir);
	rig_start(&r);
	refill_all(&r);
	CHILD_CHECK(rig_flush(&r) == 0);
	fill("filler");
	for (unsigned i = 100; i < 5000; i++)
		rig_put_hint(&r, i, 1);
	CHILD_CHECK(rig_flush(&r) == -EIO);
	CHILD_CHECK(rig_in_memory(&r));
	CHILD_CHECK(unlink(path_of("filler")) == 0);
	rig_wait(&r, rig_on_disk, "writing again");
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_reopen(&r);
	CHILD_CHECK(r.loaded == 40 + 4900);
	CHILD_CHECK(r.refills == 0);
	rig_close(&r);
	_exit(0);
}

static void a_real_full_disk(void **state)
{
	run_child(do_full);
}

/* A file of another owner in a directory of ours, read as a user without rights. */
static void do_denied(void *arg)
{
	char text[4096] = "";
	struct rig r = { .refill = refill_all };

	if (geteuid() != 0)
		_exit(SKIPPED);
	memset(text, 'x', sizeof(text) - 1);
	cm_file_write(dir, "state.db", text);
	CHILD_CHECK(chmod(path_of("state.db"), 0600) == 0);
	CHILD_CHECK(chown(dir, 65534, 65534) == 0);
	CHILD_CHECK(setgid(65534) == 0 && setuid(65534) == 0);
	rig_open(&r, dir);
	CHILD_CHECK(rig_on_disk(&r));
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_close(&r);
	_exit(0);
}

static void a_file_without_permission_is_moved_away(void **state)
{
	run_child(do_denied);
}

#define HINTS 600 /* more than are handed over in one turn of the loop */

static void put_many(struct rig *r)
{
	for (unsigned i = 0; i < HINTS; i++)
		rig_put_hint(r, i, 1);
}

static void drop_hint(struct rig *r, unsigned i)
{
	char scope[32];

	snprintf(scope, sizeof(scope), "scope-%u", i);
	state_drop_hint(r->s, &(struct state_hint){ .scope = scope,
						    .segment = "10.0.0.1:50053",
						    .source = DMSG_HINT_SOURCE_CLIENT,
						    .uid = 1000 + i % 7,
						    .tenant = "t" });
}

static bool all_but_two_are_restored(struct rig *r)
{
	return r->rows.n >= HINTS - 2;
}

/* Another process has the file open with a tool. */
static void a_file_that_another_process_has_open(void **state)
{
	struct rig r = { .refill = put_many };
	int ready[2], go[2], status;
	pid_t pid;

	rig_open(&r, dir);
	rig_start(&r);
	put_many(&r);
	rig_close(&r);
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		sqlite3 *db;

		CHILD_CHECK(sqlite3_open(path_of("state.db"), &db) == SQLITE_OK);
		CHILD_CHECK(sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE",
					 NULL, NULL, NULL) == SQLITE_OK);
		CHILD_CHECK(write(ready[1], "x", 1) == 1);
		CHILD_CHECK(read(go[0], &(char){ 0 }, 1) == 1);
		_exit(0);
	}
	assert_int_equal(read(ready[0], &(char){ 0 }, 1), 1);
	rig_open(&r, dir);
	assert_true(rig_in_memory(&r));
	assert_int_equal(r.rows.n, 0);
	rig_start(&r);
	rig_put_hint(&r, HINTS, 1);
	rig_put_hint(&r, 1, 2);
	drop_hint(&r, 2);
	assert_int_equal(rig_flush(&r), -EIO);
	assert_int_equal(write(go[1], "x", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	rig_wait(&r, rig_on_disk, "writing");
	/* of the rows, all that were not changed while they could not be read */
	rig_wait(&r, all_but_two_are_restored, "reading");
	drop_hint(&r, 3);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(r.rows.n, HINTS - 2);
	assert_int_equal(r.refills, 0);
	/* the rows of the file, and changes from the time when it could not be read */
	rig_reopen(&r);
	assert_int_equal(r.loaded, HINTS - 1);
	rig_close(&r);
	for (int i = 0; i < 2; i++) {
		close(ready[i]);
		close(go[i]);
	}
}

/* The agent ends before all rows that were read late are taken: changes are written, and no row is lost. */
static void an_end_while_rows_are_restored(void **state)
{
	struct rig r = { .refill = put_many };

	rig_open(&r, dir);
	rig_start(&r);
	put_many(&r);
	rig_close(&r);
	shim_fail(1u << SHIM_OPEN, SQLITE_CANTOPEN, 0, false);
	rig_open(&r, dir);
	assert_true(rig_in_memory(&r));
	shim_heal();
	rig_start(&r);
	rig_wait(&r, rig_on_disk, "writing");
	drop_hint(&r, 3);
	rig_reopen(&r);
	assert_int_equal(r.loaded, HINTS - 1);
	rig_close(&r);
}

#define FEW 20

static bool few_are_restored(struct rig *r)
{
	for (unsigned i = 0; i < FEW; i++) {
		char line[80];

		snprintf(line, sizeof(line), "hint scope-%u 4 %u 10.0.0.1:50053 1 1000 2000", i,
			 1000 + i % 7);
		if (!rig_has(r, line))
			return false;
	}
	return true;
}

/* Whichever read of the start fails, all rows are restored. */
static void rows_that_the_start_could_not_read(void **state)
{
	bool failed = true;

	for (uint32_t n = 0; failed; n++) {
		struct rig r = { 0 };

		cm_dir_remove(dir);
		assert_int_equal(mkdir(dir, 0700), 0);
		rig_open(&r, dir);
		rig_start(&r);
		for (unsigned i = 0; i < FEW; i++)
			rig_put_hint(&r, i, 1);
		rig_close(&r);
		shim_fail(1u << SHIM_READ, SQLITE_IOERR_READ, n, true);
		rig_open(&r, dir);
		failed = shim_heal();
		assert_true(n > 0 || failed);
		rig_start(&r);
		rig_wait(&r, few_are_restored, "reading");
		rig_close(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(writes_that_fail, setup, teardown),
		cmocka_unit_test_setup_teardown(reads_that_fail, setup, teardown),
		cmocka_unit_test_setup_teardown(files_that_do_not_open, setup, teardown),
		cmocka_unit_test_setup_teardown(syncs_and_truncations_that_fail, setup, teardown),
		cmocka_unit_test_setup_teardown(counts_and_reason, setup, teardown),
		cmocka_unit_test_setup_teardown(a_full_disk_is_read, setup, teardown),
		cmocka_unit_test_setup_teardown(more_changes_than_the_queue_holds, setup, teardown),
		cmocka_unit_test_setup_teardown(a_disk_that_does_not_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(a_read_only_file_system, setup, teardown),
		cmocka_unit_test_setup_teardown(an_empty_read_only_file_system, setup, teardown),
		cmocka_unit_test_setup_teardown(a_corrupt_file_that_cannot_be_moved, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_real_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(a_file_without_permission_is_moved_away, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_file_that_another_process_has_open, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_end_while_rows_are_restored, setup, teardown),
		cmocka_unit_test_setup_teardown(rows_that_the_start_could_not_read, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
