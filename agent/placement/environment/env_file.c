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
#include "lib/file.h"
#include "lib/log.h"

#define AREA "env"
#define MODE 0644 /* engines run as other users, and the text holds no secret */
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

/* 0: there is no file, an empty one, or one that drayd wrote. -EEXIST: there is something else. */
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
	int ret = target_check(f->path);
	struct stat st;

	if (!ret)
		ret = dray_file_replace(AT_FDCWD, f->path, text, MODE, false, &st);
	if (ret < 0)
		return ret;
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	return 0;
}

/* The number of a file that was removed may be given to another one, so its content counts as well. */
static bool is_ours(const struct env_file *f)
{
	struct stat st;

	return f->text && lstat(f->path, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino &&
	       target_check(f->path) == 0;
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
			log_warning(AREA,
				    "%s cannot be written: %s; launchers can use drayctl env, or "
				    "set env.file to another path",
				    f->path,
				    ret == -EEXIST ? "the file there was not written by drayd" :
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
	if (is_ours(f))
		(void)unlink(f->path);
	free(f->path);
	free(f->text);
	*f = ENV_FILE_NULL;
}
