/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/environment/env_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/log.h"

#define AREA "env"
#define MODE 0644 /* engines run as other users, and nothing in it is secret */
#define NAME "env"

int env_file_init(struct env_file *f, const char *configured, const char *data_socket)
{
	const char *slash = strrchr(data_socket, '/');
	int n;

	*f = ENV_FILE_NULL;
	if (!strcmp(configured, "none"))
		return 0;
	if (*configured)
		n = asprintf(&f->path, "%s", configured);
	else
		n = asprintf(&f->path, "%.*s" NAME, slash ? (int)(slash + 1 - data_socket) : 0,
			     data_socket);
	if (n < 0)
		f->path = NULL;
	return n < 0 ? -ENOMEM : 0;
}

static int bytes_write(int fd, const char *text)
{
	for (size_t left = strlen(text); left;) {
		ssize_t n = write(fd, text, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		left -= (size_t)n;
	}
	return 0;
}

/* The new file, whole, under another name; one that an earlier agent left half written goes. */
static int temporary_write(struct env_file *f, const char *path, const char *text)
{
	int fd dray_auto_close = -1;
	struct stat st;
	int ret;

	if (unlink(path) < 0 && errno != ENOENT)
		return -errno;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, MODE);
	if (fd < 0)
		return -errno;
	ret = bytes_write(fd, text);
	/* past the umask */
	if (!ret && (fchmod(fd, MODE) < 0 || fstat(fd, &st) < 0))
		ret = -errno;
	if (!ret) {
		f->dev = st.st_dev;
		f->ino = st.st_ino;
	}
	return ret;
}

/* -EEXIST: what is there is none of ours, be it a file or anything else. */
static int target_check(const char *path)
{
	char mark[sizeof(ENV_FILE_MARK) - 1];
	int fd dray_auto_close =
		open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return errno == ENOENT ? 0 : errno == ELOOP || errno == ENXIO ? -EEXIST : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EEXIST;
	n = read(fd, mark, sizeof(mark));
	if (n < 0)
		return -errno;
	return !n || (n == sizeof(mark) && !memcmp(mark, ENV_FILE_MARK, sizeof(mark))) ? 0 :
											 -EEXIST;
}

static int file_replace(struct env_file *f, const char *text)
{
	dray_auto_free char *path = NULL;
	struct env_file before = *f;
	int ret = target_check(f->path);

	if (ret < 0)
		return ret;
	if (asprintf(&path, "%s.new", f->path) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	ret = temporary_write(f, path, text);
	if (!ret && rename(path, f->path) < 0)
		ret = -errno;
	if (ret < 0) {
		(void)unlink(path);
		f->dev = before.dev;
		f->ino = before.ino;
	}
	return ret;
}

void env_file_write(struct env_file *f, const char *text)
{
	char *copy;
	int ret;

	if (!f->path || (f->text && !strcmp(f->text, text)))
		return;
	copy = strdup(text);
	ret = copy ? file_replace(f, text) : -ENOMEM;
	if (ret < 0) {
		free(copy);
		if (!f->failed)
			log_warning(
				AREA,
				"%s is not written: %s; launchers can ask drayctl env instead, or "
				"env.file can name another place",
				f->path,
				ret == -EEXIST ? "what is there is not drayd's" :
						 dray_errno_text(ret));
		f->failed = true;
		return;
	}
	free(f->text);
	f->text = copy;
	if (f->failed)
		log_info(AREA, "%s is written again", f->path);
	f->failed = false;
}

void env_file_deinit(struct env_file *f)
{
	struct stat st;

	/* not one that somebody else has put there since */
	if (f->text && lstat(f->path, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino)
		(void)unlink(f->path);
	free(f->path);
	free(f->text);
	*f = ENV_FILE_NULL;
}
