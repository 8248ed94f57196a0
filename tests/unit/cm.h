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

/* Makes dir/name with that text, and the directories on the way. */
void cm_file_write(const char *dir, const char *name, const char *text);

/* Its text; the caller's to free. */
char *cm_file_read(const char *dir, const char *name);

/* Open descriptors of this process, to see that none is left behind. */
int cm_fds_count(void);

#endif
