/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/quarantine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define KEPT 3
/* Names that are taken, and files to remove. */
#define TRIES 64

DRAY_DEFINE_CLEANUP(DIR *, closedir);

/*
 * First what belongs to the file: a new database must never find another one's log. The index of the log is worth
 * nothing without the process that made it.
 */
static const char *const companions[] = { "-wal", "-journal" };

static int move(int dir_fd, const char *from, const char *to, const char *suffix)
{
	char old[QUARANTINE_NAME_BYTES + 16], new[QUARANTINE_NAME_BYTES + 16];

	snprintf(old, sizeof(old), "%s%s", from, suffix);
	snprintf(new, sizeof(new), "%s%s", to, suffix);
	return renameat2(dir_fd, old, dir_fd, new, RENAME_NOREPLACE) < 0 ? -errno : 0;
}

static int move_all(int dir_fd, const char *from, const char *to)
{
	bool moved[DRAY_ARRAY_SIZE(companions)] = { false };
	int r = 0;

	for (unsigned i = 0; !r && i < DRAY_ARRAY_SIZE(companions); i++) {
		r = move(dir_fd, from, to, companions[i]);
		moved[i] = !r;
		if (r == -ENOENT)
			r = 0;
	}
	if (!r)
		r = move(dir_fd, from, to, "");
	for (unsigned i = 0; r && i < DRAY_ARRAY_SIZE(companions); i++)
		if (moved[i])
			move(dir_fd, to, from, companions[i]);
	return r;
}

/* Names of one sort rise with time: state.db.newer-12-20260102T030405.678901Z. */
static const char *time_of(const char *name, const char *prefix)
{
	const char *t;

	if (strncmp(name, prefix, strlen(prefix)) != 0)
		return NULL;
	t = strrchr(name, '-');
	/* companions go with their file */
	return t && t[1] >= '0' && t[1] <= '9' ? t + 1 : NULL;
}

static void remove_one(int dir_fd, const char *name)
{
	char path[QUARANTINE_NAME_BYTES + 16];

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(companions); i++) {
		snprintf(path, sizeof(path), "%s%s", name, companions[i]);
		unlinkat(dir_fd, path, 0);
	}
	unlinkat(dir_fd, name, 0);
}

/* A directory that stood in the way may hold anything: it is left where it is. */
static bool is_directory(int dir_fd, const char *name)
{
	struct stat st;

	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* The oldest of more than are kept, other than `young`. False: there are no more. */
static bool oldest(int dir_fd, const char *prefix, const char *young,
		   char ret_name[QUARANTINE_NAME_BYTES])
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dray_auto(closedir) DIR *d = fd < 0 ? NULL : fdopendir(fd);
	char found[QUARANTINE_NAME_BYTES] = "";
	const struct dirent *e;
	unsigned n = 0;

	if (!d) {
		dray_close(fd);
		return false;
	}
	while ((e = readdir(d))) {
		const char *t = time_of(e->d_name, prefix);

		if (!t || strlen(e->d_name) >= sizeof(found) || is_directory(dir_fd, e->d_name))
			continue;
		n++;
		/* a clock that was set back makes it look old */
		if (!strcmp(e->d_name, young))
			continue;
		if (!*found || strcmp(t, time_of(found, prefix)) < 0)
			memcpy(found, e->d_name, strlen(e->d_name) + 1);
	}
	memcpy(ret_name, found, sizeof(found));
	return n > KEPT;
}

static void prune(int dir_fd, const char *name, const char *sort, const char *young)
{
	char prefix[QUARANTINE_NAME_BYTES], old[QUARANTINE_NAME_BYTES];

	snprintf(prefix, sizeof(prefix), "%s.%.*s-", name, (int)strcspn(sort, "-"), sort);
	/* not for ever, where they cannot be removed */
	for (unsigned i = 0; i < TRIES && oldest(dir_fd, prefix, young, old); i++)
		remove_one(dir_fd, old);
}

static void name_of_now(const char *name, const char *sort, char ret_name[QUARANTINE_NAME_BYTES])
{
	struct timespec now;
	struct tm tm;
	char utc[32];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(utc, sizeof(utc), "%Y%m%dT%H%M%S", &tm);
	snprintf(ret_name, QUARANTINE_NAME_BYTES, "%s.%s-%s.%06ldZ", name, sort, utc,
		 now.tv_nsec / 1000);
}

int quarantine_file(const char *dir, const char *name, const char *sort,
		    char ret_name[QUARANTINE_NAME_BYTES], struct dray_err *reterr)
{
	int dir_fd dray_auto_close = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = dir_fd < 0 ? -errno : -EEXIST;

	for (unsigned i = 0; r == -EEXIST && i < TRIES; i++) {
		name_of_now(name, sort, ret_name);
		r = move_all(dir_fd, name, ret_name);
	}
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "setting %.100s/%s aside: %s", dir, name,
				    dray_errno_text(r));
	prune(dir_fd, name, sort, ret_name);
	return 0;
}
