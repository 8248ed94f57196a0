/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with what it needs before it, and a directory of the test's own. */
#ifndef DRAY_TESTS_UNIT_CM_H
#define DRAY_TESTS_UNIT_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A new, empty directory, whose name goes to buf. */
#define CM_DIR_BYTES 64
const char *cm_dir_make(char buf[CM_DIR_BYTES]);

/* Removes it with all in it. */
void cm_dir_remove(const char *dir);

/* A test of a group, with such a directory of its own. */
#define cm_test_in_dir(f) cmocka_unit_test_setup_teardown(f, cm_dir_set_up, cm_dir_tear_down)
extern char cm_dir[CM_DIR_BYTES];
int cm_dir_set_up(void **state);
int cm_dir_tear_down(void **state);

/* Makes dir/name with that text, and the directories on the way. */
void cm_file_write(const char *dir, const char *name, const char *text);

/* Its text; the caller's to free. */
char *cm_file_read(const char *dir, const char *name);

/* Open descriptors of this process, to see that none is left behind. */
int cm_fds_count(void);
/* The same of the threads there are. */
int cm_threads_count(void);

#endif
