/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/cm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *cm_dir_make(char buf[CM_DIR_BYTES])
{
	const char *top = getenv("TMPDIR");

	snprintf(buf, CM_DIR_BYTES, "%s/dray-test-XXXXXX", top ? top : "/tmp");
	assert_non_null(mkdtemp(buf));
	return buf;
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void cm_dir_remove(const char *dir)
{
	nftw(dir, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
}

char cm_dir[CM_DIR_BYTES];

int cm_dir_set_up(void **state)
{
	cm_dir_make(cm_dir);
	return 0;
}

int cm_dir_tear_down(void **state)
{
	cm_dir_remove(cm_dir);
	return 0;
}

void cm_file_write(const char *dir, const char *name, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *p = path + strlen(dir) + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*p = '/';
	}
	f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

char *cm_file_read(const char *dir, const char *name)
{
	char path[512], *text;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "re");
	assert_non_null(f);
	text = calloc(1, 65536);
	assert_non_null(text);
	n = fread(text, 1, 65535, f);
	assert_true(n < 65535);
	fclose(f);
	return text;
}

static int entries(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

int cm_fds_count(void)
{
	return entries("/proc/self/fd");
}

int cm_threads_count(void)
{
	return entries("/proc/self/task");
}
