/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define KEPT 3
/* Attempts to find a name that is free. */
#define TRIES 64

/*
 * These move before their file, because a new database must never find the log of another one. The index of the log
 * stays: it is useless without the process that made it.
 */
static const char *const companions[] = { "-wal", "-journal" };

/* For file systems without RENAME_NOREPLACE, such as NFS. The directory is the agent's own. */
static int rename_to_free(int dir_fd, const char *old, const char *new)
{
	struct stat st;

	if (fstatat(dir_fd, new, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	if (errno != ENOENT)
		return -errno;
	return renameat(dir_fd, old, dir_fd, new) < 0 ? -errno : 0;
}

static int move(int dir_fd, const char *from, const char *to, const char *suffix)
{
	char old[QUARANTINE_NAME_BYTES + 16], new[QUARANTINE_NAME_BYTES + 16];

	snprintf(old, sizeof(old), "%s%s", from, suffix);
	snprintf(new, sizeof(new), "%s%s", to, suffix);
	if (renameat2(dir_fd, old, dir_fd, new, RENAME_NOREPLACE) == 0)
		return 0;
	return errno == EINVAL ? rename_to_free(dir_fd, old, new) : -errno;
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

/* The time in a name such as state.db.newer-12-20260102T030405.678901Z, which sorts as text; NULL: it has another form. */
static const char *time_of(const char *name, const char *prefix)
{
	const char *t;

	if (strncmp(name, prefix, strlen(prefix)) != 0)
		return NULL;
	t = strrchr(name, '-');
	/* companions are removed together with their file */
	return t && t[1] >= '0' && t[1] <= '9' ? t + 1 : NULL;
}

static void remove_one(int dir_fd, const char *name)
{
	char path[NAME_MAX + 16];

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(companions); i++) {
		snprintf(path, sizeof(path), "%s%s", name, companions[i]);
		unlinkat(dir_fd, path, 0);
	}
	unlinkat(dir_fd, name, 0);
}

/* A directory that stood in the way may hold anything, so it stays. */
static bool is_directory(int dir_fd, const char *name)
{
	struct stat st;

	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int newest_first(const struct dirent **a, const struct dirent **b)
{
	const char *x = strrchr((*a)->d_name, '-'), *y = strrchr((*b)->d_name, '-');

	return strcmp(y ? y : "", x ? x : "");
}

/* `young` is kept whatever its time: a clock that was set back makes it look old. */
static void prune(int dir_fd, const char *name, const char *sort, const char *young)
{
	char prefix[QUARANTINE_NAME_BYTES];
	struct dirent **v = NULL;
	unsigned kept = 1;
	int n = scandirat(dir_fd, ".", &v, NULL, newest_first);

	snprintf(prefix, sizeof(prefix), "%s.%.*s-", name, (int)strcspn(sort, "-"), sort);
	for (int i = 0; i < n; i++) {
		const char *old = v[i]->d_name;

		if (time_of(old, prefix) && strcmp(old, young) != 0 && !is_directory(dir_fd, old) &&
		    kept++ >= KEPT)
			remove_one(dir_fd, old);
		free(v[i]);
	}
	free(v);
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
		return dray_err_set(reterr, r, DRAY_E_IO, "renaming %.100s/%s: %s", dir, name,
				    dray_errno_text(r));
	prune(dir_fd, name, sort, ret_name);
	return 0;
}
