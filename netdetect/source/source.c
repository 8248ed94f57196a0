/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"

int nd_source_open(struct nd_source *s, const char *dir)
{
	char path[ND_PATH_MAX];
	struct stat st;

	if (strlen(dir) >= sizeof(s->root))
		return -ENAMETOOLONG;
	if (stat(dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	*s = ND_SOURCE_LIVE;
	/* "" means the kernel, and "/" would too once paths are added to it */
	snprintf(s->root, sizeof(s->root), "%s", *dir ? dir : ".");
	nd_path(s, path, "/sys");
	return stat(path, &st) < 0 ? -errno : 0;
}

__attribute__((format(printf, 3, 0))) static void
path_of(const struct nd_source *s, char ret[ND_PATH_MAX], const char *fmt, va_list args)
{
	int n = snprintf(ret, ND_PATH_MAX, "%s", s->root);

	vsnprintf(ret + n, ND_PATH_MAX - (size_t)n, fmt, args);
}

const char *nd_path(const struct nd_source *s, char ret[ND_PATH_MAX], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	path_of(s, ret, fmt, args);
	va_end(args);
	return ret;
}

static int read_text(const char *path, char *buf, size_t n)
{
	int fd dray_auto_close = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	size_t got = 0;
	ssize_t r = 1;

	buf[0] = '\0';
	if (fd < 0)
		return -errno;
	while (got < n - 1 && r > 0) {
		r = read(fd, buf + got, n - 1 - got);
		if (r > 0)
			got += (size_t)r;
		else if (r < 0 && errno == EINTR)
			r = 1;
	}
	if (r < 0) {
		int error = errno;

		buf[0] = '\0';
		return -error;
	}
	while (got && strchr(" \t\n", buf[got - 1]))
		got--;
	buf[got] = '\0';
	return (int)got;
}

int nd_read_text(const struct nd_source *s, char *buf, size_t n, const char *fmt, ...)
{
	char path[ND_PATH_MAX];
	va_list args;

	va_start(args, fmt);
	path_of(s, path, fmt, args);
	va_end(args);
	return read_text(path, buf, n);
}

/* The text of a number; errno is ready for what turns it into one. */
__attribute__((format(printf, 4, 0))) static int
read_number(const struct nd_source *s, char *text, size_t n, const char *fmt, va_list args)
{
	char path[ND_PATH_MAX];
	int r;

	path_of(s, path, fmt, args);
	r = read_text(path, text, n);
	errno = 0;
	return r;
}

int nd_read_u64(const struct nd_source *s, uint64_t *ret, const char *fmt, ...)
{
	char text[64], *end;
	va_list args;
	uint64_t v;
	int r;

	va_start(args, fmt);
	r = read_number(s, text, sizeof(text), fmt, args);
	va_end(args);
	if (r < 0)
		return r;
	v = strtoull(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
	if (end == text || *end || errno || text[0] == '-')
		return -EINVAL;
	*ret = v;
	return 0;
}

int nd_read_int(const struct nd_source *s, int *ret, const char *fmt, ...)
{
	char text[64], *end;
	va_list args;
	long v;
	int r;

	va_start(args, fmt);
	r = read_number(s, text, sizeof(text), fmt, args);
	va_end(args);
	if (r < 0)
		return r;
	v = strtol(text, &end, 10);
	if (end == text || *end || errno || v < INT_MIN || v > INT_MAX)
		return -EINVAL;
	*ret = (int)v;
	return 0;
}
