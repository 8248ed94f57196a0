/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of a memfd is charged to whoever touches it first. So the library does, by a mapping of
 * its own that it drops again, before the agent sees the descriptor. What would raise SIGBUS in the
 * host (a file too short, or one that may shrink) is refused first.
 */
#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "lib/cleanup.h"
#include "lib/memfd.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* What mmap() wants offsets to be multiples of; 0 on failure. */
static uint64_t mapping_unit(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return 0;
	if ((unsigned long)fs.f_type == HUGETLBFS_MAGIC)
		return (uint64_t)fs.f_bsize;
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A read fault fills a hole of a memfd as a write fault does. */
static int populate_reading(const uint8_t *p, uint64_t bytes)
{
	void *start;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	memcpy(&start, &p, sizeof(start));
	while (madvise(start, bytes, MADV_POPULATE_READ) < 0) {
		if (errno == EINTR || errno == EAGAIN)
			continue;
		if (errno != EINVAL)
			return -errno;
		/* before Linux 5.14 */
		for (uint64_t at = 0; at < bytes; at += page)
			(void)*(const volatile uint8_t *)(p + at);
		return 0;
	}
	return 0;
}

static int populate_range(int fd, uint64_t start, uint64_t bytes)
{
	void *p = dray_map_shared(fd, start, bytes, PROT_READ | PROT_WRITE);
	bool writable = p != MAP_FAILED;
	int error;

	/* a descriptor for reading, or a file sealed against writing */
	if (!writable && (errno == EACCES || errno == EPERM))
		p = dray_map_shared(fd, start, bytes, PROT_READ);
	if (p == MAP_FAILED)
		return -errno;
	error = writable ? dray_populate(p, bytes) : populate_reading(p, bytes);
	munmap(p, bytes);
	return error;
}

int dc_populate_extent(int fd, uint64_t offset, uint64_t length, struct dray_err *reterr)
{
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t unit = mapping_unit(fd);
	uint64_t start, end;
	struct stat st;
	int error;

	if (seals < 0 || !unit || fstat(fd, &st) < 0)
		return dray_err_set(reterr, -1, DRAY_E_REGION_KIND, "descriptor %d is no memfd",
				    fd);
	if (!(seals & F_SEAL_SHRINK))
		return dray_err_set(reterr, -1, DRAY_E_REGION_UNSEALED,
				    "descriptor %d lacks F_SEAL_SHRINK", fd);
	if (__builtin_add_overflow(offset, length, &end) || end > (uint64_t)st.st_size)
		return dray_err_set(reterr, -1, DRAY_E_REGION_TOO_SMALL,
				    "descriptor %d has %" PRIu64
				    " bytes, the extent ends at %" PRIu64 "+%" PRIu64,
				    fd, (uint64_t)st.st_size, offset, length);
	start = offset / unit * unit;
	end = (end + unit - 1) / unit * unit;
	error = populate_range(fd, start, end - start);
	if (!error)
		return 0;
	/* EFAULT: the page cannot be had, such as when huge pages have run out */
	if (error == -EFAULT)
		error = -ENOMEM;
	return dray_err_set(reterr, error, dc_code_of_errno(error), "populating descriptor %d: %s",
			    fd, dray_errno_text(error));
}
