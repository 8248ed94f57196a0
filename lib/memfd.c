/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* older C libraries lack them */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* In pieces, so that signals are handled in between and a retry does not start over. */
#define POPULATE_STEP (256ULL << 20)

/* Pages of one look at what is in memory. */
#define RESIDENT_PAGES 1024u

/* On the supported architectures, with 4 KiB pages. */
#define HUGE_PAGE (2ULL << 20)

static int memfd_make(const char *name, uint64_t bytes, unsigned flags)
{
	int fd dray_auto_close = -1;

	if (bytes > INT64_MAX)
		return -EFBIG;
	flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
	/* hosts may demand the flag (vm.memfd_noexec); kernels before 6.3 do not know it */
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0)
		return -errno;
	return dray_take_fd(fd);
}

int dray_memfd_unsealed(const char *name, uint64_t bytes)
{
	return memfd_make(name, bytes, 0);
}

int dray_memfd_seal(int fd, bool read_only)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (fcntl(fd, F_ADD_SEALS, seals | (read_only ? F_SEAL_FUTURE_WRITE : 0)) < 0)
		return -errno;
	return 0;
}

int dray_memfd_new(const char *name, uint64_t bytes, bool huge)
{
	int fd dray_auto_close = memfd_make(name, bytes, huge ? MFD_HUGETLB : 0);
	int ret = fd < 0 ? fd : dray_memfd_seal(fd, false);

	return ret < 0 ? ret : dray_take_fd(fd);
}

/*
 * A free address range for `bytes` whose start has the same place in a huge page as `offset`. Only a hint: the range is not
 * reserved, and another mapping may take it.
 */
static void *huge_address(uint64_t offset, uint64_t bytes)
{
	uint8_t *p;

	if (bytes < HUGE_PAGE || bytes > INT64_MAX - HUGE_PAGE)
		return NULL;
	p = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	munmap(p, bytes + HUGE_PAGE);
	return p + ((offset - (uintptr_t)p) & (HUGE_PAGE - 1));
}

void *dray_map_shared(int fd, uint64_t offset, uint64_t bytes, int prot)
{
	void *p = mmap(huge_address(offset, bytes), bytes, prot, MAP_SHARED, fd, (off_t)offset);

	/* kernels without huge pages refuse this */
	if (p != MAP_FAILED)
		(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

/* Adding 0 dirties a page and keeps concurrent writes of other threads. */
static void touch(volatile uint8_t *p, uint64_t bytes, bool write)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	for (uint64_t at = 0; at < bytes; at += page)
		if (write)
			__atomic_fetch_add(p + at, 0, __ATOMIC_RELAXED);
		else
			(void)p[at];
}

int dray_populate(void *p, uint64_t bytes, bool write)
{
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	uint8_t *at = p;

	while (bytes) {
		uint64_t step = dray_min(bytes, (uint64_t)POPULATE_STEP);

		if (madvise(at, step, advice) < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			if (errno != EINVAL)
				return -errno;
			/* before Linux 5.14 */
			touch(at, step, write);
		}
		at += step;
		bytes -= step;
	}
	return 0;
}

bool dray_populate_huge(void *p, uint64_t bytes)
{
	uint8_t *end = (uint8_t *)p + bytes;
	uint8_t *at = (uint8_t *)p + (-(uintptr_t)p & (HUGE_PAGE - 1));

	for (; at < end && (uint64_t)(end - at) >= HUGE_PAGE; at += HUGE_PAGE)
		/* a range without any page is refused */
		if (madvise(at, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) < 0 ||
		    (madvise(at, HUGE_PAGE, MADV_COLLAPSE) < 0 && errno != EAGAIN))
			return false;
	return true;
}

/* Fills page tables for n pages from p on, all of which were in memory a moment ago. */
static int map_run(uint8_t *p, uint64_t bytes)
{
	/* by reading, although pages may be written later: a fault that reads fills the entries of its neighbours as well */
	if (!bytes || madvise(p, bytes, MADV_POPULATE_READ) >= 0 || errno != EINVAL)
		return 0;
	return -EINVAL;
}

int dray_map_resident(void *p, uint64_t bytes)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char resident[RESIDENT_PAGES];
	uint8_t *at = p, *end = at + bytes;
	int ret = 0;

	while (at < end && ret >= 0) {
		uint64_t n = dray_min((uint64_t)(end - at) / page, (uint64_t)RESIDENT_PAGES),
			 run = 0;

		if (mincore(at, n * page, resident) < 0)
			return -errno;
		for (uint64_t i = 0; i <= n && ret >= 0; i++) {
			if (i < n && resident[i] & 1) {
				run++;
				continue;
			}
			ret = map_run(at + (i - run) * page, run * page);
			run = 0;
		}
		at += n * page;
	}
	return ret;
}
