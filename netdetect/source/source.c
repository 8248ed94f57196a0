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

#include "lib/file.h"
#include "schema/gen/errors.h"

/* libibverbs holds fewer at once while it lists devices. */
#define SPARE_FDS 8

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
	/* an empty root would select the kernel */
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

/* Sets `path` from the arguments behind fmt. */
#define PATH_FROM_ARGS(s, path, fmt)                \
	do {                                        \
		va_list args_;                      \
		va_start(args_, fmt);               \
		path_of((s), (path), (fmt), args_); \
		va_end(args_);                      \
	} while (0)

const char *nd_path(const struct nd_source *s, char ret[ND_PATH_MAX], const char *fmt, ...)
{
	PATH_FROM_ARGS(s, ret, fmt);
	return ret;
}

bool nd_is_shortage(int r)
{
	return r == -EMFILE || r == -ENFILE;
}

int nd_descriptors_check(void)
{
	int fds[SPARE_FDS], n = 0, r = 0;

	while (n < SPARE_FDS && !r) {
		fds[n] = open("/", O_PATH | O_CLOEXEC);
		if (fds[n] >= 0)
			n++;
		else
			r = nd_is_shortage(-errno) ? -errno : 1;
	}
	while (n)
		dray_close(fds[--n]);
	return dray_min(r, 0);
}

int nd_error_code(int r)
{
	return r == -ENOMEM ? DRAY_E_NO_MEMORY : nd_is_shortage(r) ? DRAY_E_NO_FDS : DRAY_E_IO;
}

static void note_failure(const struct nd_source *s, int r)
{
	if (s->shortage && !*s->shortage && nd_is_shortage(r))
		*s->shortage = r;
}

static int read_text(const struct nd_source *s, const char *path, char *buf, size_t n)
{
	ssize_t got = dray_file_read(AT_FDCWD, path, O_NONBLOCK, buf, n);

	if (got < 0) {
		note_failure(s, (int)got);
		buf[0] = '\0';
		return (int)got;
	}
	while (got && strchr(" \t\n", buf[got - 1]))
		got--;
	buf[got] = '\0';
	return (int)got;
}

int nd_read_text(const struct nd_source *s, char *buf, size_t n, const char *fmt, ...)
{
	char path[ND_PATH_MAX];

	PATH_FROM_ARGS(s, path, fmt);
	return read_text(s, path, buf, n);
}

int nd_read_int(const struct nd_source *s, int *ret, const char *fmt, ...)
{
	char path[ND_PATH_MAX], text[64], *end;
	long v;
	int r;

	PATH_FROM_ARGS(s, path, fmt);
	r = read_text(s, path, text, sizeof(text));
	if (r < 0)
		return r;
	errno = 0;
	v = strtol(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
	if (end == text || *end || errno || v < INT_MIN || v > INT_MAX)
		return -EINVAL;
	*ret = (int)v;
	return 0;
}

const char *nd_read_link(const struct nd_source *s, char target[ND_PATH_MAX], const char *fmt, ...)
{
	char path[ND_PATH_MAX];
	const char *slash;
	ssize_t n;

	PATH_FROM_ARGS(s, path, fmt);
	n = readlink(path, target, ND_PATH_MAX - 1);
	target[n > 0 ? n : 0] = '\0';
	slash = strrchr(target, '/');
	return n <= 0 ? NULL : slash ? slash + 1 : target;
}

DIR *nd_open_dir(const struct nd_source *s, const char *fmt, ...)
{
	char path[ND_PATH_MAX];
	DIR *dir;

	PATH_FROM_ARGS(s, path, fmt);
	dir = opendir(path);
	if (!dir)
		note_failure(s, -errno);
	return dir;
}

const char *nd_next_entry(DIR *dir)
{
	struct dirent *e = NULL;

	while (dir && (e = readdir(dir)) && e->d_name[0] == '.')
		;
	return e ? e->d_name : NULL;
}

void nd_bdf_parse(const char *text, char ret[16])
{
	unsigned domain, bus, device, function;
	int end = 0;

	ret[0] = '\0';
	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 &&
	    !text[end])
		snprintf(ret, 16, "%04x:%02x:%02x.%x", domain & 0xffffff, bus & 0xff, device & 0x1f,
			 function & 7);
}

const char *nd_kernel_release(const struct nd_source *s, char buf[ND_RELEASE_MAX])
{
	nd_read_text(s, buf, ND_RELEASE_MAX, "/proc/sys/kernel/osrelease");
	return buf;
}

bool nd_kernel_at_least(const char *release, unsigned major, unsigned minor)
{
	unsigned a = 0, b = 0;

	if (sscanf(release, "%u.%u", &a, &b) != 2)
		return true;
	return a > major || (a == major && b >= minor);
}
