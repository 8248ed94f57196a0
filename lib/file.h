/* SPDX-License-Identifier: Apache-2.0 */
/* Small files that are read and replaced as a whole. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Reads up to size - 1 bytes into buf and adds a NUL. Returns the number of bytes, or -errno with buf undefined. */
ssize_t dray_fd_read(int fd, char *buf, size_t size);

/*
 * Reads up to size - 1 bytes of a file into buf and adds a NUL. flags: for openat(2), besides O_RDONLY and O_CLOEXEC.
 * Returns the number of bytes, or -errno with buf undefined.
 */
ssize_t dray_file_read(int dir_fd, const char *path, int flags, char *buf, size_t size);

/*
 * Writes text to PATH.new, which is removed first, and renames it to path, so that a reader finds the old text or the
 * new one, never half of either. path is relative to dir_fd (AT_FDCWD: to the working directory). mode is exact,
 * whatever the umask. sync: the text and its name, in dir_fd, are on disk when this returns. Nothing is left behind
 * on errors. ret_st: the new file; may be NULL. 0 or -errno.
 */
int dray_file_replace(int dir_fd, const char *path, const char *text, mode_t mode, bool sync,
		      struct stat *ret_st);
