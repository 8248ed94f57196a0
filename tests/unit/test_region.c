/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: which memory is accepted and the reasons of refusals, mappings, and the ways in which a
 * region ends.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/control/region/extents.h"
#include "lib/fault.h"
#include "tests/unit/region_fixture.h"

#define RW DMSG_ACCESS_ALL
#define R DMSG_ACCESS_READ
#define W DMSG_ACCESS_WRITE

static void end(struct fixture *f, dray_handle h)
{
	unsigned done = 0;

	assert_int_equal(region_remove(f->regions, h, SESSION, false, count_done, &done), 0);
	assert_int_equal(done, 0);
	fake_answer_all();
	assert_int_equal(done, 1);
}

static void see_plain(void *arg, const struct dray_dbus_region *r)
{
	assert_int_equal(r->length, 3 * PAGE);
	assert_string_equal(r->access, "rw");
	assert_string_equal(r->state, "live");
	assert_string_equal(r->device, "");
	++*(unsigned *)arg;
}

static void test_plain(void **state)
{
	struct fixture *f = *state;
	unsigned listed = 0;
	dray_handle h = add_plain(f, 3), session;
	const struct region_view *v = last_region();
	uint64_t regions, bytes, tokens;

	assert_int_equal(v->o.kind, OBJECT_REGION);
	assert_int_equal(v->o.handle, h);
	assert_int_equal(v->o.session, SESSION);
	assert_int_equal(v->o.group, GROUP);
	assert_int_equal(v->o.access, RW);
	assert_int_equal(v->o.length, 3 * PAGE);
	assert_int_equal(v->n_extents, 1);
	assert_int_equal(v->extents[0].base[3 * PAGE - 1], 0x5a);
	assert_int_equal(region_group(f->regions, h, &session), GROUP);
	assert_int_equal(session, SESSION);
	regions_totals(f->regions, &regions, &bytes, &tokens);
	assert_int_equal(regions, 1);
	assert_int_equal(bytes, 3 * PAGE);
	regions_each(f->regions, see_plain, &listed);
	assert_int_equal(listed, 1);
	end(f, h);
	assert_int_equal(region_group(f->regions, h, NULL), 0);
	regions_totals(f->regions, &regions, &bytes, &tokens);
	assert_int_equal(regions, 0);
	assert_int_equal(bytes, 0);
}

/* Extents in any order and of any alignment, contiguous in memory or not. */
static void test_extents(void **state)
{
	struct fixture *f = *state;
	int fds[2] = { make_memfd(4 * PAGE, WHOLE), make_memfd(100, WHOLE) };
	const struct region_view *v;
	dray_handle h;

	assert_int_equal(add(f,
			     &(struct adding){ .e = { { DMSG_KIND_MEMFD, 0, 0, 3 * PAGE + 7, 50 },
						      { DMSG_KIND_MEMFD, 0, 0, 11, 89 },
						      { DMSG_KIND_MEMFD, 0, 0, 100, 1000 },
						      { DMSG_KIND_MEMFD, 1, 0, 1, 99 } },
					       .n = 4,
					       .access = RW,
					       .fds = fds,
					       .n_fds = 2 },
			     &h),
			 0);
	v = last_region();
	assert_int_equal(v->o.length, 50 + 89 + 1000 + 99);
	assert_int_equal(v->n_extents, 3);
	assert_int_equal(v->extents[1].start, 50);
	assert_int_equal(v->extents[1].length, 1089);
	assert_int_equal(v->extents[2].start, 1139);
	assert_ptr_equal(v->extents[0].base - (3 * PAGE + 7), v->extents[1].base - 11);
	assert_int_equal(region_view_find(v, 49), 0);
	assert_int_equal(region_view_find(v, 50), 1);
	assert_int_equal(region_view_find(v, 1237), 2);
	end(f, h);
	close(fds[0]);
	close(fds[1]);
}

static void refused(struct fixture *f, int fd, uint64_t offset, uint64_t length, uint16_t access,
		    int code)
{
	dray_handle h;

	assert_int_equal(add_one(f, fd, offset, length, access, &h), code);
	close(fd);
}

static int reopened(int fd, int flags)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC);
	assert_true(again >= 0);
	close(fd);
	return again;
}

static void test_descriptors(void **state)
{
	struct fixture *f = *state;
	int pair[2], disk;
	char path[] = "/var/tmp/dray-test-XXXXXX";

	refused(f, make_memfd(PAGE, UNSEALED), 0, PAGE, R, DRAY_E_REGION_UNSEALED);
	refused(f, open("/dev/null", O_RDWR | O_CLOEXEC), 0, PAGE, R, DRAY_E_REGION_KIND);
	refused(f, reopened(make_memfd(PAGE, WHOLE), O_PATH), 0, PAGE, R, DRAY_E_REGION_KIND);
	refused(f, reopened(make_memfd(PAGE, WHOLE), O_WRONLY), 0, PAGE, R, DRAY_E_REGION_KIND);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	close(pair[1]);
	refused(f, pair[0], 0, PAGE, R, DRAY_E_REGION_KIND);
	disk = mkstemp(path);
	assert_true(disk >= 0);
	unlink(path);
	/* a file on tmpfs is a memfd without the seal */
	assert_int_equal(ftruncate(disk, PAGE), 0);
	{
		dray_handle h;
		int code = add_one(f, disk, 0, PAGE, R, &h);

		assert_true(code == DRAY_E_REGION_KIND || code == DRAY_E_REGION_UNSEALED);
	}
	close(disk);
}

static void test_sizes(void **state)
{
	struct fixture *f = *state;

	refused(f, make_memfd(PAGE, WHOLE), 0, PAGE + 1, R, DRAY_E_REGION_TOO_SMALL);
	refused(f, make_memfd(PAGE, WHOLE), PAGE, 1, R, DRAY_E_REGION_TOO_SMALL);
	refused(f, make_memfd(0, WHOLE), 0, 1, R, DRAY_E_REGION_TOO_SMALL);
	refused(f, make_memfd(PAGE, WHOLE), UINT64_MAX, 2, R, DRAY_E_RANGE);
	refused(f, make_memfd(PAGE, WHOLE), 1, UINT64_MAX, R, DRAY_E_RANGE);
	refused(f, make_memfd(PAGE, WHOLE), 0, 0, R, DRAY_E_INVALID);
	refused(f, make_memfd(PAGE, WHOLE), 0, PAGE, 0, DRAY_E_INVALID);
	f->cfg.limits.bytes_per_session = PAGE;
	refused(f, make_memfd(2 * PAGE, WHOLE), 0, 1, R, DRAY_E_QUOTA);
}

static void test_read_only(void **state)
{
	struct fixture *f = *state;
	const struct region_view *v;
	dray_handle h;
	int fd;

	refused(f, make_memfd(PAGE, NO_WRITE), 0, PAGE, RW, DRAY_E_REGION_READ_ONLY);
	refused(f, make_memfd(PAGE, FUTURE_NO_WRITE), 0, PAGE, W, DRAY_E_REGION_READ_ONLY);
	refused(f, reopened(make_memfd(PAGE, WHOLE), O_RDONLY), 0, PAGE, RW,
		DRAY_E_REGION_READ_ONLY);

	fd = make_memfd(PAGE, NO_WRITE);
	assert_int_equal(add_one(f, fd, 0, PAGE, R, &h), 0);
	close(fd);
	end(f, h);

	/* guarded if a writable mapping would be: by the mode of the file */
	h = add_plain(f, 1);
	v = last_region();
	if (v->fault_guarded) {
		dray_handle r;

		fd = reopened(make_memfd(PAGE, WHOLE), O_RDONLY);
		assert_int_equal(add_one(f, fd, 0, PAGE, R, &r), 0);
		assert_true(last_region()->fault_guarded);
		close(fd);
		end(f, r);
	}
	end(f, h);
}

static void test_resident(void **state)
{
	struct fixture *f = *state;
	dray_handle h;
	int fd;

	refused(f, make_memfd(4 * PAGE, EMPTY), 0, PAGE, R, DRAY_E_REGION_NOT_RESIDENT);
	fd = make_memfd(4 * PAGE, WHOLE);
	punch(fd, 2 * PAGE, PAGE);
	assert_int_equal(lseek(fd, 123, SEEK_SET), 123);
	assert_int_equal(add_one(f, fd, 0, 3 * PAGE, R, &h), DRAY_E_REGION_NOT_RESIDENT);
	assert_int_equal(add_one(f, fd, 2 * PAGE + 5, 1, R, &h), DRAY_E_REGION_NOT_RESIDENT);
	/* the pages around the hole can be used */
	assert_int_equal(add_one(f, fd, 0, 2 * PAGE, RW, &h), 0);
	end(f, h);
	assert_int_equal(add_one(f, fd, 3 * PAGE, PAGE, RW, &h), 0);
	end(f, h);
	/* the file's offset belongs to the client and is not changed */
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 123);
	close(fd);

	/* blocks past the end do not hide a hole: the walk or, later, the guard finds it */
	fd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 2 * PAGE), 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 2 * PAGE, 4 * PAGE), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	if (add_one(f, fd, 0, 2 * PAGE, R, &h) == 0) {
		assert_true(last_region()->fault_guarded);
		end(f, h);
	}
	close(fd);
}

static void test_overlap(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(4 * PAGE, WHOLE), twice = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int fds[2] = { fd, twice };
	struct adding a = { .e = { { DMSG_KIND_MEMFD, 0, 0, 0, 2 * PAGE },
				   { DMSG_KIND_MEMFD, 1, 0, 2 * PAGE - 1, 9 } },
			    .n = 2,
			    .access = R,
			    .fds = fds,
			    .n_fds = 2 };
	dray_handle h;

	assert_int_equal(add(f, &a, &h), 0);
	end(f, h);
	a.access = RW;
	assert_int_equal(add(f, &a, &h), DRAY_E_INVALID);
	a.e[1].offset++;
	assert_int_equal(add(f, &a, &h), 0);
	end(f, h);
	close(fd);
	close(twice);
}

static void test_requests(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(PAGE, WHOLE);
	struct adding a = { .e = { { DMSG_KIND_MEMFD, 0, 0, 0, PAGE },
				   { DMSG_KIND_MEMFD, 0, 0, 0, PAGE } },
			    .n = 1,
			    .access = R,
			    .fds = &fd,
			    .n_fds = 1 };
	int two[2] = { fd, fd };
	dray_handle h;

	a.n = 0;
	assert_int_equal(add(f, &a, &h), DRAY_E_INVALID);
	a.n = 1;
	a.e[0].fd_index = 1;
	assert_int_equal(add(f, &a, &h), DRAY_E_FD_COUNT);
	a.e[0].fd_index = 0;
	a.fds = two;
	a.n_fds = 2;
	assert_int_equal(add(f, &a, &h), DRAY_E_FD_COUNT);
	a.n_fds = 0;
	assert_int_equal(add(f, &a, &h), DRAY_E_FD_COUNT);
	a.n_fds = 1;
	a.flags = DMSG_REGION_FLAG_HUGE;
	assert_int_equal(add(f, &a, &h), DRAY_E_INVALID);
	a.flags = 0;
	for (uint16_t kind = DMSG_KIND_DMABUF; kind <= DMSG_KIND_CUDA_VMM; kind++) {
		a.e[0].kind = kind;
		assert_int_equal(add(f, &a, &h), DRAY_E_UNSUPPORTED);
		assert_non_null(strstr(last_err.msg, dmsg_kind_name(kind)));
	}
	a.e[0].kind = DMSG_KIND_MEMFD;
	a.n = 2;
	a.e[0].length = a.e[1].length = INT64_MAX;
	assert_int_equal(add(f, &a, &h), DRAY_E_RANGE);
	a.n = 1;
	a.e[0].length = PAGE;
	regions_drain(f->regions, true);
	assert_int_equal(add(f, &a, &h), DRAY_E_DRAINING);
	regions_drain(f->regions, false);
	assert_int_equal(add(f, &a, &h), 0);
	end(f, h);
	f->cfg.limits.regions = 0;
	close(fd);
}

static void test_shared_mappings(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(2 * PAGE, WHOLE);
	const uint8_t *write, *read;
	dray_handle h[4];
	uint8_t *p;

	assert_int_equal(add_one(f, fd, 0, PAGE, RW, &h[0]), 0);
	write = last_region()->extents[0].base;
	f->owner.session++;
	assert_int_equal(add_one(f, fd, PAGE, PAGE, RW, &h[1]), 0);
	f->owner.session--;
	assert_ptr_equal(last_region()->extents[0].base, write + PAGE);
	/* another access gets another mapping */
	assert_int_equal(add_one(f, fd, 0, PAGE, R, &h[2]), 0);
	read = last_region()->extents[0].base;
	assert_ptr_not_equal(read, write);
	/* so does a file that has grown */
	assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
	p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	memset(p, 1, 4 * PAGE);
	munmap(p, 4 * PAGE);
	assert_int_equal(add_one(f, fd, 3 * PAGE, PAGE, RW, &h[3]), 0);
	assert_ptr_not_equal(last_region()->extents[0].base - 3 * PAGE, write);
	close(fd);

	end(f, h[0]);
	end(f, h[2]);
	end(f, h[3]);
	/* the second user of the first mapping still has it */
	assert_int_equal(write[PAGE], 1);
	{
		unsigned done = 0;

		assert_int_equal(
			region_remove(f->regions, h[1], SESSION + 1, true, count_done, &done), 0);
		fake_answer_all();
		assert_int_equal(done, 1);
	}
}

/* Pages from p on that the page tables of this process have. */
static uint64_t pages_mapped(const uint8_t *p, uint64_t pages)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t n = 0, entry;

	assert_true(fd >= 0);
	for (; n < pages; n++) {
		off_t at = (off_t)(((uintptr_t)p / PAGE + n) * sizeof(entry));

		assert_int_equal(pread(fd, &entry, sizeof(entry), at), sizeof(entry));
		if (!(entry >> 63))
			break;
	}
	close(fd);
	return n;
}

static uint64_t blocks(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks;
}

/* Until the page tables have the first n pages from p on. */
static void await_mapped(struct fixture *f, const uint8_t *p, uint64_t n)
{
	while (pages_mapped(p, n) < n)
		assert_true(sd_event_run(f->event, 1000000) >= 0);
}

/* Skips the test where the kernel does not guard memory. */
static const uint8_t *base_guarded(struct fixture *f, int fd, dray_handle h)
{
	if (last_region()->fault_guarded)
		return last_region()->extents[0].base;
	end(f, h);
	close(fd);
	skip();
	return NULL;
}

static void test_page_tables(void **state)
{
	/* more than one step, and then as much again */
	const uint64_t pages = (80 << 20) / PAGE, hole = 3 * pages / 4;
	struct fixture *f = *state;
	int fd = make_memfd(2 * pages * PAGE, WHOLE);
	const uint8_t *base;
	dray_handle h[3];
	uint64_t before;

	assert_int_equal(add_one(f, fd, 0, pages * PAGE, RW, &h[0]), 0);
	base = base_guarded(f, fd, h[0]);
	/* a second region of the mapping meanwhile */
	assert_int_equal(add_one(f, fd, PAGE, pages * PAGE, RW, &h[1]), 0);
	await_mapped(f, base, pages + 1);
	/* but for the neighbours of the last page, only the regions */
	assert_int_equal(pages_mapped(base + (pages + 16) * PAGE, 1), 0);
	end(f, h[0]);
	assert_int_equal(pages_mapped(base, pages), pages);
	end(f, h[1]);

	/* holes stay, and it goes on behind them */
	punch(fd, hole * PAGE, PAGE);
	before = blocks(fd);
	assert_int_equal(add(f,
			     &(struct adding){ .e = { { DMSG_KIND_MEMFD, 0, 0, 0, hole * PAGE },
						      { DMSG_KIND_MEMFD, 0, 0, (hole + 1) * PAGE,
							(pages - hole - 1) * PAGE } },
					       .n = 2,
					       .access = RW,
					       .fds = &fd,
					       .n_fds = 1 },
			     &h[0]),
			 0);
	base = last_region()->extents[0].base;
	punch(fd, (hole + 100) * PAGE, PAGE);
	await_mapped(f, base, hole);
	await_mapped(f, base + (hole + 1) * PAGE, 99);
	await_mapped(f, base + (hole + 101) * PAGE, pages - hole - 101);
	/* nothing waits for it: it begins, and its region ends at once */
	assert_int_equal(add_one(f, fd, 0, hole * PAGE, R, &h[1]), 0);
	end(f, h[1]);
	end(f, h[0]);
	/* after the jobs of the mappings before */
	assert_int_equal(add_one(f, fd, 0, PAGE, R, &h[2]), 0);
	assert_int_equal(blocks(fd), before - PAGE / 512);
	end(f, h[2]);
	close(fd);
}

/* Pages that the file has, but nobody has touched, are left: to map them the agent would have to clear them. */
static void test_untouched(void **state)
{
	const uint64_t pages = (8 << 20) / PAGE;
	struct fixture *f = *state;
	int fd = make_memfd(2 * pages * PAGE, EMPTY);
	const uint8_t *base;
	dray_handle h[2];

	assert_int_equal(fallocate(fd, 0, 0, (off_t)(2 * pages * PAGE)), 0);
	for (uint64_t i = pages; i < 2 * pages; i++)
		assert_int_equal(pwrite(fd, "x", 1, (off_t)(i * PAGE)), 1);
	assert_int_equal(add_one(f, fd, 0, 2 * pages * PAGE, RW, &h[0]), 0);
	base = base_guarded(f, fd, h[0]);
	await_mapped(f, base + pages * PAGE, pages);
	for (uint64_t i = 0; i < pages; i++)
		assert_int_equal(pages_mapped(base + i * PAGE, 1), 0);
	end(f, h[0]);
	close(fd);
}

static int add_pool(struct fixture *f, uint64_t bytes, uint16_t flags, int *ret_fd,
		    dray_handle *ret)
{
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_extent e = { .kind = DMSG_KIND_POOL, .fd_index = UINT16_MAX, .length = bytes };
	struct dmsg_region_add m = {
		.access = RW, .flags = flags, .name = { "", 0 }, .extents = { wire, 1 }
	};
	struct region_spec spec = { .owner = &f->owner, .m = &m };
	struct region_added added;

	dmsg_extent_put(wire, &e);
	last_err = DRAY_ERR_NULL;
	if (region_add(f->regions, &spec, &added, &last_err) == 0) {
		assert_int_equal(added.length, bytes);
		assert_false(added.pending);
		*ret_fd = added.pool_fd;
		*ret = added.region;
	}
	return last_err.code;
}

static void test_pool(void **state)
{
	struct fixture *f = *state;
	dray_handle h, second;
	uint8_t *p;
	int fd;

	assert_int_equal(add_pool(f, 2 * PAGE + 1, 0, &fd, &h), 0);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(last_region()->o.length, 2 * PAGE + 1);
	p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	p[2 * PAGE] = 9;
	assert_int_equal(last_region()->extents[0].base[2 * PAGE], 9);
	munmap(p, 3 * PAGE);

	/* 1 MiB in total, in whole pages */
	assert_int_equal(add_pool(f, (1 << 20) - 2 * PAGE, 0, &fd, &second), DRAY_E_QUOTA);
	assert_int_equal(add_pool(f, (1 << 20) - 3 * PAGE, 0, &fd, &second), 0);
	end(f, h);
	end(f, second);
	assert_int_equal(add_pool(f, 1 << 20, 0, &fd, &h), 0);
	end(f, h);
	/* huge pages, or an error */
	f->cfg.limits.pool_bytes = f->cfg.limits.pool_bytes_per_owner = 1ll << 40;
	budgets_configure(&f->owners->budgets, &f->cfg);
	if (add_pool(f, 1, DMSG_REGION_FLAG_HUGE, &fd, &h) == 0)
		end(f, h);
	else
		assert_true(last_err.code == DRAY_E_NO_MEMORY ||
			    last_err.code == DRAY_E_UNSUPPORTED);
}

static void test_pool_alone(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(PAGE, WHOLE);
	struct adding a = { .e = { { DMSG_KIND_POOL, UINT16_MAX, 0, 0, PAGE },
				   { DMSG_KIND_MEMFD, 0, 0, 0, PAGE } },
			    .n = 2,
			    .access = RW };
	dray_handle h;

	assert_int_equal(add(f, &a, &h), DRAY_E_INVALID);
	a.n = 1;
	a.fds = &fd;
	a.n_fds = 1;
	assert_int_equal(add(f, &a, &h), DRAY_E_FD_COUNT);
	a.n_fds = 0;
	a.e[0].offset = 1;
	assert_int_equal(add(f, &a, &h), DRAY_E_INVALID);
	close(fd);
}

/* Huge pages do not show single pages: the whole file is resident, or the region is refused. */
static void test_huge(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	uint8_t *p = MAP_FAILED, byte;
	uint64_t page = 0;
	struct stat st;
	dray_handle h;

	if (fd >= 0 && fstat(fd, &st) == 0) {
		page = (uint64_t)st.st_blksize;
		assert_int_equal(ftruncate(fd, (off_t)(2 * page)), 0);
		p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	if (p == MAP_FAILED) {
		close(fd);
		skip();
	}
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	p[0] = 1;
	assert_int_equal(add_one(f, fd, 0, 100, RW, &h), DRAY_E_REGION_NOT_RESIDENT);
	p[page] = 2;
	assert_int_equal(add_one(f, fd, 5, 2 * page - 5, RW, &h), 0);
	assert_int_equal(last_region()->extents[0].base[page - 5], 2);
	if (last_region()->fault_guarded) {
		assert_int_equal(fault_init(), 0);
		punch(fd, page, page);
		assert_int_equal(fault_copy(&byte, last_region()->extents[0].base + page, 1),
				 -EFAULT);
	}
	end(f, h);
	munmap(p, 2 * page);
	close(fd);
}

static void test_remove(void **state)
{
	struct fixture *f = *state;
	dray_handle h = add_plain(f, 1);
	unsigned done = 0;

	assert_int_equal(region_remove(f->regions, h, SESSION + 1, false, count_done, &done),
			 -ENOENT);
	assert_int_equal(region_remove(f->regions, h + 1, SESSION, false, count_done, &done),
			 -ENOENT);
	assert_int_equal(region_remove(f->regions, h, SESSION, false, count_done, &done), 0);
	assert_int_equal(region_remove(f->regions, h, SESSION, false, count_done, &done), -ENOENT);
	assert_int_equal(region_group(f->regions, h, NULL), 0);
	/* the memory stays while workers may access it */
	assert_int_equal(last_region()->extents[0].base[0], 0x5a);
	assert_int_equal(done, 0);
	fake_answer(OBJECT_REGION, h);
	assert_int_equal(done, 1);
	assert_int_equal(region_remove(f->regions, h, SESSION, false, count_done, &done), -ENOENT);
}

static void test_hurry(void **state)
{
	struct fixture *f = *state;
	dray_handle h = add_plain(f, 1);
	unsigned done = 0;

	assert_int_equal(region_remove(f->regions, h, SESSION, false, count_done, &done), 0);
	assert_int_equal(fake_waiting(), 1);
	region_hurry(f->regions, h);
	region_hurry(f->regions, h);
	assert_int_equal(fake_waiting(), 2);
	assert_int_equal(done, 0);
	fake_answer_all();
	assert_int_equal(done, 1);
	region_hurry(f->regions, h);
	assert_int_equal(fake_waiting(), 0);
}

static void test_close_fds(void **state)
{
	struct fixture *f = *state;
	int fds[3] = { make_memfd(PAGE, WHOLE), -1, open("/dev/null", O_RDONLY | O_CLOEXEC) };

	owner_count_fds(f->uid_owner, 3);
	owner_close_fds(f->uid_owner, fds, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fds[i], -1);
	/* the teardown checks the number of descriptors */
}

/* The memory of kind dmabuf is that of a memfd here. */
int __real_extents_map(struct mappings *ms, const struct region_spec *spec,
		       enum region_memory memory, uint64_t limit, struct extents *e,
		       struct dray_err *reterr);
int __wrap_extents_map(struct mappings *ms, const struct region_spec *spec,
		       enum region_memory memory, uint64_t limit, struct extents *e,
		       struct dray_err *reterr);

int __wrap_extents_map(struct mappings *ms, const struct region_spec *spec,
		       enum region_memory memory, uint64_t limit, struct extents *e,
		       struct dray_err *reterr)
{
	int r = __real_extents_map(ms, spec, REGION_HOST, limit, e, reterr);

	if (r >= 0)
		e->view->memory = memory;
	return r;
}

/* No memory to register a DMA-BUF: its session gets one answer. If it has removed the region before, that is the answer. */
static void test_dmabuf_without_memory(void **state)
{
	struct fixture *f = *state;
	int fd = make_memfd(PAGE, 0);
	uint8_t wire[DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = RW, .name = { "test", 4 }, .extents = { wire, 1 } };
	unsigned removed = 0;

	f->cfg.rdma.enable = true;
	no_devices_error = -ENOMEM;
	dmsg_extent_put(wire, &(struct dmsg_extent){ .kind = DMSG_KIND_DMABUF, .length = PAGE });
	for (unsigned remove = 0; remove < 2; remove++) {
		int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		struct region_added added;
		struct region_spec spec = { .owner = &f->owner,
					    .m = &m,
					    .fds = &copy,
					    .n_fds = 1,
					    .added = add_ended,
					    .arg = f };

		owner_count_fds(f->uid_owner, 1);
		f->adding = true;
		last_err = DRAY_ERR_NULL;
		assert_int_equal(region_add(f->regions, &spec, &added, &last_err), 0);
		assert_true(added.pending);
		if (remove)
			assert_int_equal(region_remove(f->regions, added.region, SESSION, false,
						       count_done, &removed),
					 0);
		for (unsigned i = 0; i < 1000 && (remove ? !removed : f->adding); i++) {
			sd_event_run(f->event, 10000);
			fake_answer_all();
		}
		assert_int_equal(last_err.code, remove ? 0 : DRAY_E_NO_MEMORY);
		assert_int_equal(f->adding, remove);
		assert_int_equal(removed, remove);
	}
	no_devices_error = 0;
	close(fd);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		T(test_plain),       T(test_extents),    T(test_descriptors),
		T(test_sizes),       T(test_read_only),  T(test_resident),
		T(test_overlap),     T(test_requests),   T(test_shared_mappings),
		T(test_page_tables), T(test_untouched),  T(test_pool),
		T(test_huge),        T(test_pool_alone), T(test_remove),
		T(test_hurry),       T(test_close_fds),  T(test_dmabuf_without_memory),
	};

	return cmocka_run_group_tests_name("region", tests, NULL, NULL);
}
