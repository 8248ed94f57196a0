/* SPDX-License-Identifier: Apache-2.0 */
/* The file with the launcher's environment. */
#include "agent/placement/environment/env_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/log.h"
#include "tests/unit/cm.h"

static char dir[CM_DIR_BYTES], data_socket[CM_DIR_BYTES + 16], path[CM_DIR_BYTES + 16];

static int set_up(void **state)
{
	cm_dir_make(dir);
	snprintf(data_socket, sizeof(data_socket), "%s/dray.sock", dir);
	snprintf(path, sizeof(path), "%s/env", dir);
	dray_log_setup(DRAY_LOG_ERROR, DRAY_LOG_FORMAT_TEXT);
	return 0;
}

#define W(text) ENV_FILE_MARK " for a test\n" text

static int tear_down(void **state)
{
	(void)chmod(dir, 0755);
	cm_dir_remove(dir);
	return 0;
}

static void says(const char *name, const char *text)
{
	dray_auto_free char *got = cm_file_read(dir, name);

	assert_string_equal(got, text);
}

static ino_t inode(void)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

static void beside_the_data_socket(void **state)
{
	struct env_file f;
	struct stat st;
	int fds = cm_fds_count();

	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	assert_string_equal(f.path, path);
	assert_int_not_equal(access(path, F_OK), 0);
	umask(077);
	env_file_write(&f, W("A=1\n"));
	umask(022);
	says("env", W("A=1\n"));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	env_file_write(&f, W("A=1\nB=2\n"));
	says("env", W("A=1\nB=2\n"));
	assert_int_equal(cm_fds_count(), fds);
	env_file_deinit(&f);
	assert_int_not_equal(access(path, F_OK), 0);
	env_file_deinit(&f);
}

static void only_changes_are_written(void **state)
{
	struct env_file f;
	ino_t first;
	FILE *reader;
	char line[32];

	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	first = inode();
	env_file_write(&f, W("A=1\n"));
	assert_int_equal(inode(), first);
	/* a reader that has the file open still sees the old one */
	reader = fopen(path, "re");
	assert_non_null(reader);
	env_file_write(&f, W("A=2\n"));
	assert_int_not_equal(inode(), first);
	assert_non_null(fgets(line, sizeof(line), reader));
	assert_non_null(fgets(line, sizeof(line), reader));
	assert_string_equal(line, "A=1\n");
	fclose(reader);
	env_file_deinit(&f);
}

static void leftovers_of_a_crash_are_replaced(void **state)
{
	struct env_file f;

	cm_file_write(dir, "env", W("OLD=1\n"));
	cm_file_write(dir, "env.new", "HALF");
	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	says("env", W("A=1\n"));
	env_file_deinit(&f);
	assert_int_not_equal(access(path, F_OK), 0);
}

static void links_are_not_followed(void **state)
{
	char target[CM_DIR_BYTES + 16], temporary[CM_DIR_BYTES + 16];
	struct env_file f;

	snprintf(target, sizeof(target), "%s/precious", dir);
	snprintf(temporary, sizeof(temporary), "%s/env.new", dir);
	cm_file_write(dir, "precious", "keep\n");
	assert_int_equal(symlink(target, temporary), 0);
	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	says("env", W("A=1\n"));
	says("precious", "keep\n");
	env_file_deinit(&f);
	/* nor replaced */
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	assert_true(f.failed);
	says("env", "keep\n");
	env_file_deinit(&f);
	says("precious", "keep\n");
}

static void files_of_other_programs_are_not_changed(void **state)
{
	struct env_file f;
	struct stat st;

	assert_int_equal(env_file_init(&f, "", data_socket), 0);
	cm_file_write(dir, "env", "PATH=/bin\n");
	env_file_write(&f, W("A=1\n"));
	assert_true(f.failed);
	says("env", "PATH=/bin\n");
	/* the agent takes the file over once it is empty */
	cm_file_write(dir, "env", "");
	env_file_write(&f, W("A=1\n"));
	assert_false(f.failed);
	says("env", W("A=1\n"));
	/* a file that another program has written since is not changed */
	cm_file_write(dir, "env", "PATH=/bin\n");
	env_file_write(&f, W("A=2\n"));
	assert_true(f.failed);
	says("env", "PATH=/bin\n");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	env_file_write(&f, W("A=3\n"));
	assert_true(f.failed);
	env_file_deinit(&f);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
}

static void a_file_of_another_program_stays(void **state)
{
	struct env_file f, other;

	assert_int_equal(env_file_init(&f, path, data_socket), 0);
	assert_int_equal(env_file_init(&other, path, data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	env_file_write(&other, W("A=2\n"));
	env_file_deinit(&f);
	says("env", W("A=2\n"));
	env_file_deinit(&other);
	assert_int_not_equal(access(path, F_OK), 0);
	/* a file that the agent never wrote is not removed */
	cm_file_write(dir, "env", "A=3\n");
	assert_int_equal(env_file_init(&f, path, data_socket), 0);
	env_file_deinit(&f);
	says("env", "A=3\n");
}

static void no_file_is_wanted(void **state)
{
	struct env_file f;

	assert_int_equal(env_file_init(&f, "none", data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	assert_int_not_equal(access(path, F_OK), 0);
	assert_false(f.failed);
	env_file_deinit(&f);
	/* a socket in the working directory */
	assert_int_equal(env_file_init(&f, "", "dray.sock"), 0);
	assert_string_equal(f.path, "env");
	env_file_deinit(&f);
}

static void a_place_that_cannot_be_written(void **state)
{
	char nowhere[CM_DIR_BYTES + 32], temporary[CM_DIR_BYTES + 8];
	struct env_file f;

	snprintf(nowhere, sizeof(nowhere), "%s/not/there/env", dir);
	assert_int_equal(env_file_init(&f, nowhere, data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	assert_true(f.failed);
	assert_null(f.text);
	env_file_write(&f, W("A=1\n"));
	/* the directory appears later */
	cm_file_write(dir, "not/there/x", "");
	env_file_write(&f, W("A=1\n"));
	assert_false(f.failed);
	says("not/there/env", W("A=1\n"));
	env_file_deinit(&f);
	assert_int_not_equal(access(nowhere, F_OK), 0);
	/* the path is a directory */
	assert_int_equal(env_file_init(&f, dir, data_socket), 0);
	env_file_write(&f, W("A=1\n"));
	assert_true(f.failed);
	env_file_deinit(&f);
	snprintf(temporary, sizeof(temporary), "%s.new", dir);
	assert_int_not_equal(access(temporary, F_OK), 0);
	assert_int_equal(access(dir, F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(beside_the_data_socket, set_up, tear_down),
		cmocka_unit_test_setup_teardown(only_changes_are_written, set_up, tear_down),
		cmocka_unit_test_setup_teardown(leftovers_of_a_crash_are_replaced, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(links_are_not_followed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(files_of_other_programs_are_not_changed, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_file_of_another_program_stays, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_file_is_wanted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_place_that_cannot_be_written, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
