/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's descriptors are looked at in an order that never waits for anybody: F_GET_SEALS
 * answers for memory files alone, so that nothing that would ask a file system in user space
 * comes before it.
 *
 * A page counts as resident when the file holds it, in memory or in swap: its owner has paid for
 * it. That costs a walk over all of its pages, which for tens of GiB would hold the control
 * thread up, so a file that has a block for each of its pages passes without it, provided the
 * mapping is guarded: blocks may lie past the end, and what is missing then faults.
 */
#include "agent/control/region/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "agent/control/region/nodes.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"

#define HUGETLBFS_TYPE 0x958458f6
#define BLOCK_BYTES 512

/* A descriptor, looked at. */
struct file {
	int fd;
	bool used;
	bool huge;
	uint64_t size, allocated; /* bytes */
	dev_t dev;
	ino_t ino;
	struct mapping *map; /* borrowed from struct extents */
};

struct piece {
	struct dmsg_extent e;
	const struct file *file;
	uint32_t index;
};

static int refuse(struct dray_err *reterr, int code, uint32_t index, const char *why)
{
	return dray_err_set(reterr, -EINVAL, code, "extent %" PRIu32 ": %s", index, why);
}

int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr)
{
	uint64_t sum = 0;

	if (!m->extents.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "a region has at least one extent");
	for (uint32_t i = 0; i < m->extents.n; i++) {
		struct dmsg_extent e;

		dmsg_extent_get(m->extents.p + (size_t)i * DMSG_EXTENT_SIZE, &e);
		if (!e.length)
			return refuse(reterr, DRAY_E_INVALID, i, "its length is 0");
		if (e.offset > INT64_MAX || e.length > INT64_MAX - e.offset)
			return refuse(reterr, DRAY_E_RANGE, i, "offset and length overflow");
		if (__builtin_add_overflow(sum, e.length, &sum) || sum > INT64_MAX)
			return refuse(reterr, DRAY_E_RANGE, i, "the sum of the lengths overflows");
	}
	*ret_length = sum;
	return 0;
}

static int file_probe(struct file *f, int fd, uint32_t index, bool write, struct dray_err *reterr)
{
	int seals = fcntl(fd, F_GET_SEALS);
	int flags = fcntl(fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || flags < 0)
		return refuse(reterr, DRAY_E_REGION_KIND, index, "its descriptor is not a memfd");
	if (!(seals & F_SEAL_SHRINK))
		return refuse(reterr, DRAY_E_REGION_UNSEALED, index,
			      "its memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING and "
			      "add the seal");
	if ((flags & O_ACCMODE) == O_WRONLY)
		return refuse(reterr, DRAY_E_REGION_KIND, index,
			      "its descriptor is open for writing only");
	if (write &&
	    ((flags & O_ACCMODE) != O_RDWR || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
		return refuse(
			reterr, DRAY_E_REGION_READ_ONLY, index,
			"write access was asked for, but its descriptor is read-only or sealed "
			"against writing");
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || !S_ISREG(st.st_mode))
		return refuse(reterr, DRAY_E_REGION_KIND, index, "its descriptor is not a memfd");
	*f = (struct file){
		.fd = fd,
		.used = true,
		.huge = fs.f_type == HUGETLBFS_TYPE,
		.size = (uint64_t)st.st_size,
		.allocated = (uint64_t)st.st_blocks * BLOCK_BYTES,
		.dev = st.st_dev,
		.ino = st.st_ino,
	};
	return 0;
}

/* Reads and checks every extent by itself; each descriptor must belong to one. */
static int read_pieces(const struct dmsg_region_add *m, const int *fds, unsigned n_fds, bool write,
		       struct file *files, struct piece *pieces, struct dray_err *reterr)
{
	for (uint32_t i = 0; i < m->extents.n; i++) {
		struct piece *p = &pieces[i];
		struct file *f;
		int r;

		p->index = i;
		dmsg_extent_get(m->extents.p + (size_t)i * DMSG_EXTENT_SIZE, &p->e);
		if (p->e.fd_index >= n_fds)
			return refuse(
				reterr, DRAY_E_FD_COUNT, i,
				"fd_index is not that of a descriptor that came with the message");
		f = &files[p->e.fd_index];
		if (!f->used) {
			r = file_probe(f, fds[p->e.fd_index], i, write, reterr);
			if (r < 0)
				return r;
		}
		if (p->e.offset + p->e.length > f->size)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extent %" PRIu32 " ends at %" PRIu64
					    ", its file has %" PRIu64 " bytes",
					    i, p->e.offset + p->e.length, f->size);
		p->file = f;
	}
	for (unsigned i = 0; i < n_fds; i++)
		if (!files[i].used)
			return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT,
					    "descriptor %u of %u belongs to no extent", i, n_fds);
	return 0;
}

static int piece_compare(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->file->dev != y->file->dev)
		return x->file->dev < y->file->dev ? -1 : 1;
	if (x->file->ino != y->file->ino)
		return x->file->ino < y->file->ino ? -1 : 1;
	if (x->e.offset != y->e.offset)
		return x->e.offset < y->e.offset ? -1 : 1;
	return 0;
}

static int by_index(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->index < y->index ? -1 : x->index > y->index;
}

static bool same_file(const struct piece *a, const struct piece *b)
{
	return a->file->dev == b->file->dev && a->file->ino == b->file->ino;
}

/*
 * Two extents in the same bytes would make one transfer's destinations overlap where its offsets
 * do not.
 */
static int check_overlap(const struct piece *sorted, uint32_t n, struct dray_err *reterr)
{
	for (uint32_t i = 1; i < n; i++) {
		const struct piece *a = &sorted[i - 1], *b = &sorted[i];

		if (same_file(a, b) && b->e.offset < a->e.offset + a->e.length)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "extents %" PRIu32 " and %" PRIu32
					    " overlap, which is allowed for reading only",
					    a->index, b->index);
	}
	return 0;
}

/* [from, to) has no hole. The descriptor's file offset belongs to the client: it is put back. */
static bool run_resident(int fd, uint64_t from, uint64_t to)
{
	off_t former = lseek(fd, 0, SEEK_CUR);
	off_t hole = lseek(fd, (off_t)from, SEEK_HOLE);

	if (former >= 0)
		lseek(fd, former, SEEK_SET);
	return hole >= 0 && (uint64_t)hole >= to;
}

static bool file_full(const struct file *f)
{
	return f->allocated >= f->size;
}

/* SEEK_HOLE walks pages, so each page is walked once however many extents lie on it. */
static int check_resident(const struct piece *sorted, uint32_t n, struct dray_err *reterr)
{
	for (uint32_t i = 0; i < n;) {
		const struct piece *first = &sorted[i];
		const struct file *f = first->file;
		uint64_t end = first->e.offset + first->e.length;
		bool ok = file_full(f) && (f->huge || f->map->guarded);

		for (i++; i < n && same_file(first, &sorted[i]) && sorted[i].e.offset <= end; i++)
			end = dray_max(end, sorted[i].e.offset + sorted[i].e.length);
		/* huge-page files know no SEEK_HOLE: all of the file or nothing */
		if (!ok && !f->huge)
			ok = run_resident(f->fd, first->e.offset, end);
		if (!ok)
			return refuse(
				reterr, DRAY_E_REGION_NOT_RESIDENT, first->index,
				f->huge ? "its huge-page file is not populated in full" :
					  "its memory has holes; populate it (MADV_POPULATE_WRITE) "
					  "before REGION_ADD");
	}
	return 0;
}

static int map_files(struct mappings *ms, dray_handle session, struct file *files, unsigned n,
		     bool write, uint64_t limit, struct extents *e, struct dray_err *reterr)
{
	for (unsigned i = 0; i < n; i++) {
		struct file *f = &files[i];
		struct mapping_key key = { f->dev, f->ino, write, f->huge ? session : 0 };
		int r;

		if (f->size > limit)
			return dray_err_set(reterr, -EFBIG, DRAY_E_QUOTA,
					    "a file of %" PRIu64
					    " bytes is mapped whole and is over "
					    "limits.bytes_per_session (%" PRIu64 ")",
					    f->size, limit);
		/* before mapping: that would reserve huge pages for what is missing */
		if (f->huge && !file_full(f))
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_NOT_RESIDENT,
					    "a huge-page file is not populated in full");
		r = mapping_get(ms, &key, f->fd, f->size, &f->map, reterr);
		if (r < 0)
			return r;
		e->maps[e->n_maps++] = f->map;
	}
	return 0;
}

/* Extents that go on where the one before ends, in memory too, become one. */
static void build_view(struct region_view *v, const struct piece *pieces, uint32_t n)
{
	uint64_t start = 0;

	v->fault_guarded = true;
	for (uint32_t i = 0; i < n; i++) {
		const struct piece *p = &pieces[i];
		struct extent_view *last = v->n_extents ? &v->extents[v->n_extents - 1] : NULL;
		uint8_t *base = p->file->map->base + p->e.offset;

		if (!p->file->map->guarded)
			v->fault_guarded = false;
		if (last && last->base + last->length == base && p->file == pieces[i - 1].file)
			last->length += p->e.length;
		else
			v->extents[v->n_extents++] = (struct extent_view){ .start = start,
									   .length = p->e.length,
									   .base = base };
		start += p->e.length;
	}
	v->o.length = start;
	nodes_find(v);
}

static int extents_alloc(struct extents *e, uint32_t n_extents, unsigned n_maps, uint16_t access,
			 struct dray_err *reterr)
{
	*e = (struct extents){
		.view = calloc(1, sizeof(*e->view) + n_extents * sizeof(e->view->extents[0])),
		.maps = calloc(n_maps, sizeof(struct mapping *)),
	};
	if (!e->view || !e->maps) {
		extents_deinit(e);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	}
	e->view->o.access = access;
	return 0;
}

void extents_release(struct extents *e)
{
	for (uint32_t i = 0; i < e->n_maps; i++)
		mapping_unref(e->maps[i]);
	e->n_maps = 0;
	for (uint32_t i = 0; i < e->n_buffers; i++)
		closer_unmap(e->closer, e->buffers[i].base, e->buffers[i].bytes, e->buffers[i].fd);
	e->n_buffers = 0;
}

void extents_deinit(struct extents *e)
{
	extents_release(e);
	free(e->maps);
	free(e->view);
	free(e->parts);
	free(e->dmabufs);
	free(e->buffers);
	*e = (struct extents){ .view = NULL };
}

int extents_map(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		const int *fds, unsigned n_fds, uint64_t limit, struct extents *ret,
		struct dray_err *reterr)
{
	struct piece *pieces dray_auto_free = calloc(m->extents.n, sizeof(*pieces));
	struct file *files dray_auto_free = calloc(n_fds ? n_fds : 1, sizeof(*files));
	bool write = m->access & DMSG_ACCESS_WRITE;
	struct extents e;
	int r;

	if (!pieces || !files)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	r = read_pieces(m, fds, n_fds, write, files, pieces, reterr);
	if (r < 0)
		return r;
	r = extents_alloc(&e, m->extents.n, n_fds, m->access, reterr);
	if (r < 0)
		return r;
	r = map_files(ms, session, files, n_fds, write, limit, &e, reterr);
	if (!r) {
		qsort(pieces, m->extents.n, sizeof(*pieces), piece_compare);
		if (write)
			r = check_overlap(pieces, m->extents.n, reterr);
	}
	if (!r)
		r = check_resident(pieces, m->extents.n, reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	qsort(pieces, m->extents.n, sizeof(*pieces), by_index);
	build_view(e.view, pieces, m->extents.n);
	*ret = e;
	return 0;
}

/* Bytes of a page of the default huge page size, or -errno. */
static int64_t huge_page_bytes(void)
{
	int fd dray_auto_close = dray_memfd_new("dray-probe", 0, true);
	struct stat st;

	if (fd < 0)
		return fd;
	return fstat(fd, &st) < 0 ? -errno : (int64_t)st.st_blksize;
}

static int check_pool(const struct dmsg_region_add *m, struct dmsg_extent *ret,
		      struct dray_err *reterr)
{
	dmsg_extent_get(m->extents.p, ret);
	if (m->extents.n != 1)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "a pool is the only extent of its region");
	if (ret->fd_index != UINT16_MAX || ret->offset)
		return refuse(reterr, DRAY_E_INVALID, 0, "a pool has fd_index 65535 and offset 0");
	return 0;
}

int extents_map_pool(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		     uint64_t room, struct extents *ret, uint64_t *ret_bytes,
		     struct dray_err *reterr)
{
	bool huge = m->flags & DMSG_REGION_FLAG_HUGE;
	int64_t page = huge ? huge_page_bytes() : (int64_t)sysconf(_SC_PAGESIZE);
	int fd dray_auto_close = -1;
	struct mapping_key key;
	struct dmsg_extent x;
	struct extents e;
	struct stat st;
	uint64_t bytes;
	int r;

	r = check_pool(m, &x, reterr);
	if (r < 0)
		return r;
	if (page <= 0)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this kernel has no huge pages: %s",
				    dray_errno_text((int)page));
	bytes = (x.length + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
	if (bytes > room)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "a pool of %" PRIu64
				    " bytes is over what limits.pool_bytes leaves (%" PRIu64 ")",
				    bytes, room);
	fd = dray_memfd_new("dray-pool", bytes, huge);
	if (fd < 0 || fstat(fd, &st) < 0)
		return dray_err_set(reterr, fd < 0 ? fd : -errno,
				    fd == -EMFILE || fd == -ENFILE ? DRAY_E_NO_FDS :
								     DRAY_E_NO_MEMORY,
				    "a pool of %" PRIu64 " bytes cannot be made: %s", bytes,
				    dray_errno_text(fd < 0 ? fd : errno));
	r = extents_alloc(&e, 1, 1, m->access, reterr);
	if (r < 0)
		return r;
	key = (struct mapping_key){ st.st_dev, st.st_ino, m->access & DMSG_ACCESS_WRITE,
				    huge ? session : 0 };
	r = mapping_get(ms, &key, fd, bytes, &e.maps[0], reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	e.n_maps = 1;
	e.view->n_extents = 1;
	e.view->extents[0] = (struct extent_view){ .length = x.length, .base = e.maps[0]->base };
	e.view->fault_guarded = e.maps[0]->guarded;
	e.view->o.length = x.length;
	/* nobody has touched a pool's pages yet, so where they will lie is not known */
	e.view->extents[0].node = -1;
	*ret = e;
	*ret_bytes = bytes;
	return 0;
}
