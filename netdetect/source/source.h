/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads files of the kernel, or of a recorded machine. A recorded machine is a directory with
 *   sys/, proc/, dev/        as on the machine; symbolic links are relative
 *   netlink/NAME             the messages of one dump, in the order in which the kernel sent them
 * netlink.c has the names. A missing file means an empty dump.
 */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"

#define ND_PATH_MAX 1024
#define ND_RELEASE_MAX 128

struct nd_source {
	char root[ND_PATH_MAX / 2]; /* "": the kernel */
	int *shortage; /* takes the first nd_is_shortage() that a function below meets; NULL: not wanted */
};

#define ND_SOURCE_LIVE ((struct nd_source){ .root = "" })

static inline bool nd_is_live(const struct nd_source *s)
{
	return !s->root[0];
}

/*
 * True for an -errno that says nothing about the file: this process or the host is out of descriptors. Readers of optional
 * files take any failure for absence; nd_source.shortage tells their caller about these. Pure.
 */
bool nd_is_shortage(int r);

/*
 * 0, or the nd_is_shortage() of this moment: a few descriptors are free. For libraries that take the lack of descriptors for
 * an empty list of devices.
 */
int nd_descriptors_check(void);

/* The enum dray_error for a read that failed with this -errno. Pure. */
int nd_error_code(int r);

/* dir: a recorded machine. 0, -ENOTDIR, -ENOENT if it has no sys/, -ENAMETOOLONG. */
int nd_source_open(struct nd_source *s, const char *dir);

/* The path below the root; fmt begins with a slash. Returns ret. */
const char *nd_path(const struct nd_source *s, char ret[ND_PATH_MAX], const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Reads the first n - 1 bytes of a file, without trailing blanks and newlines, and adds a NUL. Returns the
 * number of bytes, or -errno with buf set to "". Blocks on sysfs only.
 */
int nd_read_text(const struct nd_source *s, char *buf, size_t n, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* A number, decimal or with 0x. 0 or -errno; -EINVAL if the file holds no int. *ret is unchanged on error. */
int nd_read_int(const struct nd_source *s, int *ret, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Reads a symbolic link into target. Returns the last component in target, NULL if there is no link. */
const char *nd_read_link(const struct nd_source *s, char target[ND_PATH_MAX], const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

DRAY_DEFINE_CLEANUP(DIR *, closedir);

/* NULL if it cannot be opened. */
DIR *nd_open_dir(const struct nd_source *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* The next name that does not begin with a dot; NULL at the end, and if dir is NULL. */
const char *nd_next_entry(DIR *dir);

/* Reads a PCI address, "0000:3b:00.0", in its usual form into ret; "" if the text is not one. */
void nd_bdf_parse(const char *text, char ret[16]);

/* Defines a function for qsort(3) that orders elements of a type by a number in them. */
#define ND_ORDER(function, type, member)                                                   \
	static int function(const void *a, const void *b)                                  \
	{                                                                                  \
		return dray_compare(((const type *)a)->member, ((const type *)b)->member); \
	}                                                                                  \
	struct dray_swallow_semicolon

/* "6.8.0-45-generic", "" if unknown. Returns buf. */
const char *nd_kernel_release(const struct nd_source *s, char buf[ND_RELEASE_MAX]);

/* True also for a release that cannot be parsed: an unknown kernel gets no warning. Pure. */
bool nd_kernel_at_least(const char *release, unsigned major, unsigned minor);
