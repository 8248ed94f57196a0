/* SPDX-License-Identifier: Apache-2.0 */
/* Real directories. A full disk is a small tmpfs in the mount namespace of a child. */
#include "agent/state/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

static char dir[CM_DIR_BYTES], state_dir[CM_DIR_BYTES + 16];
static int fds_before;

static int setup(void **state)
{
	fds_before = cm_fds_count();
	cm_dir_make(dir);
	snprintf(state_dir, sizeof(state_dir), "%s/a/b", dir);
	return 0;
}

static int teardown(void **state)
{
	cm_dir_remove(dir);
	assert_int_equal(cm_fds_count(), fds_before);
	return 0;
}

static void start(struct identity *id)
{
	struct dray_err e = DRAY_ERR_NULL;

	if (identity_open(id, state_dir, &e) < 0)
		fail_msg("%s", e.msg);
}

static void refused(int r, int code, const char *part)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct identity id;

	assert_int_equal(identity_open(&id, state_dir, &e), r);
	assert_int_equal(e.code, code);
	if (!strstr(e.msg, part))
		fail_msg("%s", e.msg);
	assert_int_equal(id.lock_fd, -1);
	assert_int_equal(id.dir_fd, -1);
	assert_int_equal(cm_fds_count(), fds_before);
}

static void the_id_stays_and_the_incarnation_grows(void **state)
{
	char text[IDENTITY_TEXT_BYTES];
	struct identity first, id;
	uint64_t last;
	struct stat st;

	start(&first);
	last = first.incarnation;
	assert_true(last > 1000000000000000000); /* a clock in nanoseconds */
	assert_int_equal(stat(state_dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	identity_close(&first);
	for (int i = 0; i < 20; i++) {
		start(&id);
		assert_memory_equal(id.agent_id, first.agent_id, 16);
		assert_true(id.incarnation > last);
		last = id.incarnation;
		identity_close(&id);
	}
	assert_int_equal(strlen(identity_show(first.agent_id, text)), 32);
}

static void two_directories_are_two_agents(void **state)
{
	struct identity a, b;

	start(&a);
	snprintf(state_dir, sizeof(state_dir), "%s/c/", dir);
	start(&b);
	assert_memory_not_equal(a.agent_id, b.agent_id, 16);
	identity_close(&a);
	identity_close(&b);
}

/* The number also grows if the clock is set back, or was wrong. */
static void incarnation_grows_against_the_clock(void **state)
{
	struct identity id;

	cm_file_write(dir, "a/b/incarnation", "9000000000000000000\n");
	start(&id);
	assert_true(id.incarnation == 9000000000000000001);
	identity_close(&id);
	start(&id);
	assert_true(id.incarnation == 9000000000000000002);
	identity_close(&id);
	cm_file_write(dir, "a/b/incarnation", "7");
	start(&id);
	assert_true(id.incarnation > 1000000000000000000);
	identity_close(&id);
}

static void lock_names_its_holder(void **state)
{
	char pid[32];
	struct identity id;
	int lock;

	start(&id);
	/* flock belongs to the open file, so a second open acts like another process */
	snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
	fds_before += 2;
	refused(-EBUSY, DRAY_E_BUSY, pid);
	refused(-EBUSY, DRAY_E_BUSY, "another agent.state_dir");
	fds_before -= 2;
	lock = id.lock_fd;
	assert_true(fcntl(lock, F_GETFD) & FD_CLOEXEC);
	identity_close(&id);
	start(&id);
	identity_close(&id);
	identity_close(&id);
}

static void lock_ends_with_its_process(void **state)
{
	int ready[2], status;
	struct identity id;
	char c;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct dray_err e = DRAY_ERR_NULL;

		c = identity_open(&id, state_dir, &e) < 0 ? 'n' : 'y';
		if (write(ready[1], &c, 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_int_equal(c, 'y');
	dray_close(ready[0]);
	dray_close(ready[1]);
	refused(-EBUSY, DRAY_E_BUSY, "is in use by process");
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	start(&id);
	identity_close(&id);
}

static void corrupt_files_are_refused(void **state)
{
	static const char *const ids[] = {
		"",
		"\n",
		"0123456789abcdef0123456789abcde\n",
		"0123456789abcdef0123456789abcdef0\n",
		"0123456789ABCDEF0123456789abcdef\n",
		"0123456789abcdeg0123456789abcdef\n",
		"00000000000000000000000000000000\n",
		"0123456789abcdef0123456789abcdef\n\n",
		"0123456789abcdef0123456789abcdef 0123456789abcdef0123456789abcdef0123456789abcdef",
	};
	static const char *const numbers[] = {
		"",     "\n", "x", "-1", "1 2", "18446744073709551615", "18446744073709551616",
		"0x10", " 1"
	};
	dray_auto_free char *kept = NULL;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(ids); i++) {
		cm_file_write(dir, "a/b/agent_id", ids[i]);
		refused(-EBADMSG, DRAY_E_INVALID, "agent_id is corrupt; restore it, or remove it");
	}
	/* the file is not changed */
	kept = cm_file_read(state_dir, "agent_id");
	assert_string_equal(kept, ids[DRAY_ARRAY_SIZE(ids) - 1]);
	cm_file_write(dir, "a/b/agent_id", "0123456789abcdef0123456789abcdef");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(numbers); i++) {
		cm_file_write(dir, "a/b/incarnation", numbers[i]);
		refused(-EBADMSG, DRAY_E_INVALID, "incarnation is corrupt; remove it");
	}
}

static void leftovers_of_a_killed_start_do_no_harm(void **state)
{
	struct identity id;
	char path[128];

	cm_file_write(dir, "a/b/agent_id.new", "half");
	cm_file_write(dir, "a/b/incarnation.new", "ha");
	start(&id);
	identity_close(&id);
	snprintf(path, sizeof(path), "%s/agent_id.new", state_dir);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(path, sizeof(path), "%s/incarnation.new", state_dir);
	assert_int_equal(access(path, F_OK), -1);
}

static void links_are_not_followed(void **state)
{
	char path[128];

	cm_file_write(dir, "a/b/x", "");
	cm_file_write(dir, "elsewhere", "precious");
	snprintf(path, sizeof(path), "%s/lock", state_dir);
	assert_int_equal(symlink("../../elsewhere", path), 0);
	refused(-ELOOP, DRAY_E_IO, "/lock: ");
}

static void impossible_places_are_explained(void **state)
{
	cm_file_write(dir, "a", "a file");
	refused(-ENOTDIR, DRAY_E_DENIED, "Not a directory; set agent.state_dir");
	snprintf(state_dir, sizeof(state_dir), "%s/a", dir);
	refused(-ENOTDIR, DRAY_E_DENIED, "Not a directory; set agent.state_dir");
}

/*
 * In a child with its own mount namespace, and as root of a user namespace if the test is not run
 * by root.
 */
static bool tmpfs_mount(const char *options)
{
	int flags = CLONE_NEWNS | (geteuid() ? CLONE_NEWUSER : 0);

	return unshare(flags) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", dir, "tmpfs", 0, options) == 0;
}

#define CHILD_SKIPPED 77

static int full_disk_child(void)
{
	char path[128], filler[4096];
	struct identity id, again;
	struct dray_err e = DRAY_ERR_NULL;
	struct stat st;
	int fd;

	if (!tmpfs_mount("size=64k"))
		return CHILD_SKIPPED;
	/* an agent that has run here before, then a full disk */
	if (identity_open(&id, state_dir, &e) < 0)
		return 1;
	identity_close(&id);
	snprintf(path, sizeof(path), "%s/filler", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	memset(filler, 'x', sizeof(filler));
	while (write(fd, filler, sizeof(filler)) > 0)
		;
	if (identity_open(&again, state_dir, &e) != -ENOSPC || e.code != DRAY_E_NO_SPACE ||
	    !strstr(e.msg, "no space left"))
		return 2;
	snprintf(path, sizeof(path), "%s/incarnation.new", state_dir);
	if (stat(path, &st) == 0)
		return 3;
	/* nothing was lost: with free space the same agent continues */
	if (ftruncate(fd, 0) < 0)
		return 4;
	e = DRAY_ERR_NULL;
	if (identity_open(&again, state_dir, &e) < 0 || memcmp(again.agent_id, id.agent_id, 16) ||
	    again.incarnation <= id.incarnation)
		return 5;
	identity_close(&again);
	close(fd);
	return 0;
}

static int full_disk_at_first_start_child(void)
{
	char path[128];
	struct identity id;
	struct dray_err e = DRAY_ERR_NULL;
	struct stat st;

	/* inodes for the root, a, a/b and the lock */
	if (!tmpfs_mount("nr_inodes=4"))
		return CHILD_SKIPPED;
	if (identity_open(&id, state_dir, &e) != -ENOSPC || e.code != DRAY_E_NO_SPACE)
		return 1;
	snprintf(path, sizeof(path), "%s/agent_id", state_dir);
	return stat(path, &st) == 0 ? 2 : 0;
}

static void child_runs(int (*child)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		_exit(child());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == CHILD_SKIPPED)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_full_disk_leaves_no_partial_file(void **state)
{
	child_runs(full_disk_child);
}

static void a_full_disk_at_the_first_start(void **state)
{
	child_runs(full_disk_at_first_start_child);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_id_stays_and_the_incarnation_grows),
		TEST(two_directories_are_two_agents),
		TEST(incarnation_grows_against_the_clock),
		TEST(lock_names_its_holder),
		TEST(lock_ends_with_its_process),
		TEST(corrupt_files_are_refused),
		TEST(leftovers_of_a_killed_start_do_no_harm),
		TEST(links_are_not_followed),
		TEST(impossible_places_are_explained),
		TEST(a_full_disk_leaves_no_partial_file),
		TEST(a_full_disk_at_the_first_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
