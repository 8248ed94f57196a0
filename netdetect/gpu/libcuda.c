/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ld.so(8) searches LD_LIBRARY_PATH, then the cache of ldconfig, then its standard folders. This file reads only the
 * string table of the cache, which holds whole paths, each with a NUL before and after it.
 */
#include "netdetect/gpu/libcuda.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "/libcuda.so.1"
#define ENVIRON_MAX (256u << 10)
#define CACHE_MAX (4u << 20)

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#else
#define MULTIARCH ""
#endif

static const char *const standard[] = {
	"/lib/" MULTIARCH, "/usr/lib/" MULTIARCH, "/lib64", "/usr/lib64", "/lib", "/usr/lib"
};
/* Device plug-ins mount the driver's files here and expect the image to set LD_LIBRARY_PATH. */
static const char *const mounted[] = { "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
				       "/usr/local/lib", "/opt/nvidia/lib64",
				       ("/run/nvidia/driver/usr/lib/" MULTIARCH) };

/* True for an ELF file of this program's word size. */
static bool is_usable(const struct nd_source *s, const char *file)
{
	unsigned char head[EI_NIDENT];
	char path[ND_PATH_MAX];
	int fd dray_auto_close =
		open(nd_path(s, path, "%s", file), O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return fd >= 0 && read(fd, head, sizeof(head)) > EI_CLASS &&
	       !memcmp(head, ELFMAG, SELFMAG) &&
	       head[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
}

static bool in_folder(const struct nd_source *s, const char *folder, size_t length, char *buf,
		      size_t n)
{
	int r = snprintf(buf, n, "%.*s" NAME, (int)length, folder);

	if (length && r > 0 && (size_t)r < n && is_usable(s, buf))
		return true;
	buf[0] = '\0';
	return false;
}

static bool in_folders(const struct nd_source *s, const char *const *v, size_t count, char *buf,
		       size_t n)
{
	for (size_t i = 0; i < count; i++)
		if (in_folder(s, v[i], strlen(v[i]), buf, n))
			return true;
	return false;
}

/* Reads at most max bytes. NULL if the file does not open, or without memory. */
static char *read_file(const struct nd_source *s, const char *where, size_t max, size_t *ret_n)
{
	char path[ND_PATH_MAX];
	int fd dray_auto_close = open(nd_path(s, path, "%s", where), O_RDONLY | O_CLOEXEC);
	char *text = fd >= 0 ? malloc(max + 1) : NULL;
	ssize_t r = 1;

	*ret_n = 0;
	while (text && *ret_n < max && (r = read(fd, text + *ret_n, max - *ret_n)) > 0)
		*ret_n += (size_t)r;
	if (text)
		text[*ret_n] = '\0';
	return text;
}

/* The loader ignores changes of the variable after the start of the process. */
static bool in_environment(const struct nd_source *s, char *buf, size_t n)
{
	static const char name[] = "LD_LIBRARY_PATH=";
	size_t length;
	dray_auto_free char *text = read_file(s, "/proc/self/environ", ENVIRON_MAX, &length);

	for (const char *at = text; at && at < text + length; at += strlen(at) + 1) {
		if (strncmp(at, name, sizeof(name) - 1) != 0)
			continue;
		at += sizeof(name) - 1;
		for (;;) {
			size_t folder = strcspn(at, ":;");

			if (in_folder(s, at, folder, buf, n))
				return true;
			at += folder;
			if (!*at)
				return false;
			at++;
		}
	}
	return false;
}

const char *nd_libcuda_cached(const char *cache, size_t n, size_t *at)
{
	while (*at < n) {
		const char *hit = memmem(cache + *at, n - *at, NAME, sizeof(NAME));
		const char *start = hit;

		if (!hit)
			break;
		*at = (size_t)(hit - cache) + sizeof(NAME);
		while (start > cache && start[-1])
			start--;
		if (*start == '/' && hit - start < PATH_MAX)
			return start;
	}
	return NULL;
}

static bool in_cache(const struct nd_source *s, char *buf, size_t n)
{
	size_t length, at = 0;
	dray_auto_free char *cache = read_file(s, "/etc/ld.so.cache", CACHE_MAX, &length);
	const char *path;

	while (cache && (path = nd_libcuda_cached(cache, length, &at)))
		if (in_folder(s, path, strlen(path) - strlen(NAME), buf, n))
			return true;
	return false;
}

bool nd_libcuda_find(const struct nd_source *s, char *buf, size_t n)
{
	buf[0] = '\0';
	if (in_environment(s, buf, n) || in_cache(s, buf, n) ||
	    in_folders(s, standard, DRAY_ARRAY_SIZE(standard), buf, n))
		return true;
	in_folders(s, mounted, DRAY_ARRAY_SIZE(mounted), buf, n);
	return false;
}
