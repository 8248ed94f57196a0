/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static void new_memfd_is_sealed_and_empty(void **state)
{
	int fd = dray_memfd_new("test", 1 << 20, false);
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	struct stat st;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 1 << 20);
	assert_int_equal(st.st_blocks, 0);
	assert_int_equal(fcntl(fd, F_GET_SEALS) & seals, seals);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 2 << 20), -1);
	dray_close(fd);
}

static void impossible_sizes_are_refused(void **state)
{
	int before = cm_fds_count();

	assert_int_equal(dray_memfd_new("test", UINT64_MAX, false), -EFBIG);
	assert_int_equal(cm_fds_count(), before);
}

static void populate_fills_pages_and_keeps_bytes(void **state)
{
	const uint64_t bytes = (1 << 20) + 100;
	int fd = dray_memfd_new("test", bytes, false);
	struct stat st;
	uint8_t *p;

	assert_true(fd >= 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	p[5000] = 7;
	assert_int_equal(dray_populate(p, bytes, true), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 >= bytes);
	assert_int_equal(p[5000], 7);
	assert_int_equal(dray_populate(p, 0, true), 0);
	munmap(p, bytes);
	dray_close(fd);
}

/* A mapping begins where the file's huge pages fit. */
static void shared_mappings_are_aligned(void **state)
{
	const uint64_t huge = 2 << 20, bytes = 3 * huge + 5000;
	int fd = dray_memfd_new("test", 2 * bytes, false);
	static const uint64_t offsets[] = { 0, 4096, 2 << 20, (2 << 20) + 8192 };

	assert_true(fd >= 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(offsets); i++) {
		uint8_t *p = dray_map_shared(fd, offsets[i], bytes, PROT_READ | PROT_WRITE);
		uint8_t byte = 0;

		assert_true(p != MAP_FAILED);
		assert_int_equal((uintptr_t)p % huge, offsets[i] % huge);
		p[bytes - 1] = (uint8_t)(i + 1);
		assert_int_equal(pread(fd, &byte, 1, (off_t)(offsets[i] + bytes - 1)), 1);
		assert_int_equal(byte, i + 1);
		assert_int_equal(munmap(p, bytes), 0);
	}
	/* small mappings, and files that cannot be mapped at all */
	assert_true(dray_map_shared(fd, 0, 100, PROT_READ) != MAP_FAILED);
	assert_true(dray_map_shared(-1, 0, bytes, PROT_READ) == MAP_FAILED);
	assert_int_equal(errno, EBADF);
	dray_close(fd);
}

/* Bytes of a mapping that huge pages are mapped for. */
static uint64_t huge_bytes(const uint8_t *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long begin, end, kib, sum = 0;
	char line[512];
	bool here = false;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			here = (uintptr_t)p >= begin && (uintptr_t)p < end;
		else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
			sum += kib;
	}
	fclose(f);
	return (uint64_t)sum << 10;
}

/* Bytes that are there stay, and what is no whole huge page is left. */
static void huge_pages_keep_bytes(void **state)
{
	const uint64_t huge = 2 << 20, bytes = 3 * huge + 8192;
	int fd = dray_memfd_new("test", bytes, false);
	uint8_t *p = dray_map_shared(fd, 0, bytes, PROT_READ | PROT_WRITE);
	struct stat st;

	assert_true(p != MAP_FAILED);
	p[5000] = 7;
	p[2 * huge + 100] = 8;
	/* from the second page, as a mapping that is not aligned */
	if (dray_populate_huge(p + 4096, bytes - 4096)) {
		assert_int_equal(huge_bytes(p), 2 * huge);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal((uint64_t)st.st_blocks * 512, 2 * huge + 4096);
	}
	assert_true(dray_populate_huge(p, 0));
	assert_true(dray_populate_huge(p + 4096, huge));
	if (dray_populate_huge(p, bytes))
		assert_int_equal(huge_bytes(p), 3 * huge);
	assert_int_equal(dray_populate(p, bytes, true), 0);
	assert_int_equal(p[5000], 7);
	assert_int_equal(p[2 * huge + 100], 8);
	assert_int_equal(p[bytes - 1], 0);
	munmap(p, bytes);
	/* the mapping is gone */
	assert_false(dray_populate_huge(p, bytes));
	dray_close(fd);
}

static void populate_reports_errors(void **state)
{
	long page = sysconf(_SC_PAGESIZE);
	uint8_t *p = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	assert_true(p != MAP_FAILED);
	munmap(p, (size_t)page);
	assert_int_equal(dray_populate(p, (uint64_t)page, true), -ENOMEM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_memfd_is_sealed_and_empty),
		cmocka_unit_test(impossible_sizes_are_refused),
		cmocka_unit_test(populate_fills_pages_and_keeps_bytes),
		cmocka_unit_test(shared_mappings_are_aligned),
		cmocka_unit_test(huge_pages_keep_bytes),
		cmocka_unit_test(populate_reports_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
