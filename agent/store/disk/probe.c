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
#include "lib/time.h"
#include "schema/gen/errors.h"

#define TEST_FILE "test"
#define RESERVE_FILE "reserve"
/*
 * Removals of one transaction. Each may change a page of the index of its own, so that the log needs half of the reserve; the
 * other half is for pages that are merged.
 */
#define SLICE 32
/* No further slice is begun after this time: an agent that ends waits for the test. */
#define SLICES_NS (200 * DRAY_NS_PER_MS)

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

/*
 * Else the next such write fails again. More than half of what the tier could have is not asked for: most of the tier would be
 * evicted for one object.
 */
static int check_room(const struct disk *d)
{
	struct statvfs fs;
	uint64_t room;

	if (fstatvfs(d->dir_fd, &fs) < 0)
		return -errno;
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	return room < dray_min(d->probe_room, (room + d->probe_bytes) / 2) ? -ENOSPC : 0;
}

static int test_failed(struct disk *d, int error)
{
	return dray_err_set(&d->probe_why, error, DRAY_E_IO, "writing a test file to %.100s: %s",
			    d->dir, dray_errno_text(error));
}

static int commit_slice(struct disk *d)
{
	struct dray_list slice = DRAY_LIST_INIT(slice);
	struct disk_request *it;
	unsigned n = 0;
	int r;

	while (n++ < SLICE && (it = dray_list_pop(&d->probe_removals, struct disk_request, link)))
		dray_list_add(&slice, &it->link);
	r = index_commit(d, &slice, NULL, &d->probe_why);
	if (!r)
		commit_punch(&slice);
	dray_list_splice(r ? &d->probe_removals : &d->probe_committed, &slice);
	return r;
}

/* Without the reserve the index has room for the removals, whose blocks then make room for it, and for the test file. */
static int probe(struct disk *d)
{
	int fd dray_auto_close = open_file(d, RESERVE_FILE);
	int64_t end = dray_now().ns + SLICES_NS;
	int r;

	if (fd < 0)
		return test_failed(d, fd);
	do {
		r = commit_slice(d);
	} while (!r && !dray_list_empty(&d->probe_removals) && dray_now().ns < end);
	if (r)
		return r;
	r = write_file(d, fd);
	if (!r)
		r = check_room(d);
	if (!r)
		r = write_test_file(d);
	return r < 0 ? test_failed(d, r) : 0;
}

void probe_run(struct disk *d)
{
	d->probe_why = DRAY_ERR_NULL;
	d->probe_result = probe(d);
	d->probe_crowded = d->probe_result && is_crowded(d);
}
