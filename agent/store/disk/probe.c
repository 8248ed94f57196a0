/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test whether a disk can be written that could not. A reserve, a file without use of its own, gives the index room for
 * removals on a file system that the tier itself has filled.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"
#include "schema/gen/errors.h"

#define TEST_FILE "test"
#define RESERVE_FILE "reserve"

/* As large as some objects: a disk that is nearly full has room for one block for a long time. */
static int write_file(const struct disk *d, int fd)
{
	static const uint8_t bytes[16 * DISK_BLOCK];
	int r = disk_fault(d, DISK_CALL_WRITE);

	errno = 0;
	for (unsigned i = 0; !r && i < 16; i++)
		if (write(fd, bytes, sizeof(bytes)) != (ssize_t)sizeof(bytes))
			r = errno ? -errno : -ENOSPC;
	if (!r)
		r = disk_fault(d, DISK_CALL_SYNC);
	return !r && fdatasync(fd) < 0 ? -errno : r;
}

/* Without what was in it. */
static int open_file(const struct disk *d, const char *name)
{
	int r = disk_fault(d, DISK_CALL_OPEN);

	if (r < 0)
		return r;
	r = openat(d->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	return r < 0 ? -errno : r;
}

static int write_test_file(const struct disk *d)
{
	int fd dray_auto_close = open_file(d, TEST_FILE);
	int r = fd < 0 ? fd : write_file(d, fd);

	unlinkat(d->dir_fd, TEST_FILE, 0);
	return r;
}

/* Most of what is used in the file system is of the tier. */
static bool is_crowded(const struct disk *d)
{
	struct statvfs fs;

	return fstatvfs(d->dir_fd, &fs) == 0 &&
	       d->probe_bytes >= (uint64_t)(fs.f_blocks - fs.f_bfree) * fs.f_frsize / 2;
}

static int test_failed(struct disk *d, int error)
{
	return dray_err_set(&d->probe_why, error, DRAY_E_IO, "writing a test file to %.100s: %s",
			    d->dir, dray_errno_text(error));
}

/* Without the reserve the index has room for the removals, whose blocks then make room for it, and for the test file. */
static int probe(struct disk *d)
{
	int fd dray_auto_close = open_file(d, RESERVE_FILE);
	int r;

	if (fd < 0)
		return test_failed(d, fd);
	r = index_commit(d, &d->probe_removals, &d->probe_why);
	if (r)
		return r;
	d->probe_committed = true;
	commit_punch(&d->probe_removals);
	r = write_file(d, fd);
	if (!r)
		r = write_test_file(d);
	return r < 0 ? test_failed(d, r) : 0;
}

void probe_run(struct disk *d)
{
	d->probe_why = DRAY_ERR_NULL;
	d->probe_committed = false;
	d->probe_result = probe(d);
	d->probe_crowded = d->probe_result && is_crowded(d);
}
