/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that can be registered. A page of a memfd is charged to the process that touches it first,
 * so the library touches every page, through a mapping of its own, before the agent sees the
 * descriptor. Descriptors whose mapping could raise SIGBUS (too short, or not sealed against
 * shrinking) are refused first.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "client/internal.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"

/* Size of a huge page, or -errno. An empty memfd tells it. */
static int64_t huge_page(void)
{
	int fd dray_auto_close = dray_memfd_new("dray", 0, true);
	struct stat st;

	if (fd < 0)
		return fd;
	return fstat(fd, &st) < 0 ? -errno : (int64_t)st.st_blksize;
}

int dray_memory_alloc(uint64_t bytes, unsigned int flags, struct dray_memory *ret)
{
	bool huge = flags & DRAY_MEMORY_HUGE;
	int64_t page = huge ? huge_page() : sysconf(_SC_PAGESIZE);
	int fd dray_auto_close = -1;
	uint64_t length;
	void *p;
	int error;

	if (!bytes || (flags & ~(unsigned int)DRAY_MEMORY_HUGE) || bytes > INT64_MAX / 2)
		return -DRAY_E_INVALID;
	if (page < 0)
		return -dc_code_of_errno((int)page);
	length = (bytes + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
	fd = dray_memfd_new("dray", length, huge);
	if (fd < 0)
		return -dc_code_of_errno(fd);
	p = dray_map_shared(fd, 0, length, PROT_READ | PROT_WRITE);
	if (p == MAP_FAILED)
		return -dc_code_of_errno(errno);
	error = dray_populate(p, length, true);
	if (error) {
		munmap(p, length);
		return error == -EFAULT ? -DRAY_E_NO_MEMORY : -dc_code_of_errno(error);
	}
	*ret = (struct dray_memory){ p, length, dray_take_fd(fd) };
	return 0;
}

void dray_memory_free(struct dray_memory *m)
{
	if (!m || !m->address)
		return;
	munmap(m->address, m->length);
	dray_close(m->fd);
	*m = (struct dray_memory){ .fd = -1 };
}

int dray_memory_populate(int fd, uint64_t offset, uint64_t length, char *why, size_t why_size)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (dc_memory_populate(fd, offset, length, &err) == 0)
		return 0;
	if (why && why_size)
		snprintf(why, why_size, "%s", err.msg);
	return -err.code;
}

/* The unit of offsets in mmap() of this file; 0 on failure. */
static uint64_t mapping_unit(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return 0;
	if ((unsigned long)fs.f_type == HUGETLBFS_MAGIC)
		return (uint64_t)fs.f_bsize;
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static int populate_range(int fd, uint64_t start, uint64_t bytes)
{
	void *p = dray_map_shared(fd, start, bytes, PROT_READ | PROT_WRITE);
	bool writable = p != MAP_FAILED;
	int error;

	/* a read-only descriptor, or a file sealed against writing */
	if (!writable && (errno == EACCES || errno == EPERM))
		p = dray_map_shared(fd, start, bytes, PROT_READ);
	if (p == MAP_FAILED)
		return -errno;
	error = dray_populate(p, bytes, writable);
	munmap(p, bytes);
	return error;
}

int dc_memory_populate(int fd, uint64_t offset, uint64_t length, struct dray_err *reterr)
{
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t unit = mapping_unit(fd);
	uint64_t start, end;
	struct stat st;
	int error;

	if (seals < 0 || !unit || fstat(fd, &st) < 0)
		return dray_err_set(reterr, -1, DRAY_E_REGION_KIND, "descriptor %d is not a memfd",
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
	/* EFAULT: there is no page, such as when huge pages have run out */
	if (error == -EFAULT)
		error = -ENOMEM;
	return dray_err_set(reterr, error, dc_code_of_errno(error), "populating descriptor %d: %s",
			    fd, dray_errno_text(error));
}
