/* SPDX-License-Identifier: Apache-2.0 */
#include "client/internal.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/memfd.h"

/* Whole pages, which may be huge: the file system's block tells before anything is allocated. */
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
	error = dray_populate(p, length);
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
