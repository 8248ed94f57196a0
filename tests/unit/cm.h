/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers that it needs, and a temporary directory for each test. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Makes a new, empty directory and writes its name to buf. */
#define CM_DIR_BYTES 64
const char *cm_dir_make(char buf[CM_DIR_BYTES]);

/* Removes the directory and everything in it. */
void cm_dir_remove(const char *dir);

/* A test with a directory of its own as its state. */
#define cm_test_in_dir(f) cmocka_unit_test_setup_teardown(f, cm_dir_set_up, cm_dir_tear_down)
extern char cm_dir[CM_DIR_BYTES];
int cm_dir_set_up(void **state);
int cm_dir_tear_down(void **state);

/* Writes a file with this text, and makes missing directories. */
void cm_file_write(const char *dir, const char *name, const char *text);

/* Returns the text of a file; the caller frees it. */
char *cm_file_read(const char *dir, const char *name);

/* Counts open descriptors of this process, to find leaks. */
int cm_fds_count(void);
/* Counts threads of this process. */
int cm_threads_count(void);
