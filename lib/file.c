/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

ssize_t dray_fd_read(int fd, char *buf, size_t size)
{
	ssize_t got = 1;
	size_t n = 0;

	while (got > 0 && n < size - 1) {
		do
			got = read(fd, buf + n, size - 1 - n);
		while (got < 0 && errno == EINTR);
		n += got > 0 ? (size_t)got : 0;
	}
	buf[n] = '\0';
	return got < 0 ? -errno : (ssize_t)n;
}

ssize_t dray_file_read(int dir_fd, const char *path, int flags, char *buf, size_t size)
{
	int fd dray_auto_close = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | flags);

	return fd < 0 ? -errno : dray_fd_read(fd, buf, size);
}

static int write_all(int fd, const char *s, size_t n)
{
	while (n) {
		ssize_t r = write(fd, s, n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		s += r;
		n -= (size_t)r;
	}
	return 0;
}

static int file_fill(int dir_fd, const char *path, const char *text, mode_t mode, bool sync,
		     struct stat *ret_st)
{
	int fd dray_auto_close =
		openat(dir_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	int r = fd < 0 ? -errno : write_all(fd, text, strlen(text));

	if (r < 0)
		return r;
	if (fchmod(fd, mode) < 0 || (ret_st && fstat(fd, ret_st) < 0) || (sync && fsync(fd) < 0))
		return -errno;
	return 0;
}

int dray_file_replace(int dir_fd, const char *path, const char *text, mode_t mode, bool sync,
		      struct stat *ret_st)
{
	dray_auto_free char *new = NULL;
	int r;

	if (asprintf(&new, "%s.new", path) < 0) {
		new = NULL;
		return -ENOMEM;
	}
	/* an earlier process may have been killed while it wrote */
	if (unlinkat(dir_fd, new, 0) < 0 && errno != ENOENT)
		return -errno;
	r = file_fill(dir_fd, new, text, mode, sync, ret_st);
	if (!r && renameat(dir_fd, new, dir_fd, path) < 0)
		r = -errno;
	if (r < 0)
		unlinkat(dir_fd, new, 0);
	/* EINVAL: the file system cannot do this for directories */
	else if (sync && fsync(dir_fd) < 0 && errno != EINVAL)
		r = -errno;
	return r;
}
