/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents in host memory. The checks of a client's descriptors come in an order in which none can block: F_GET_SEALS
 * answers for memory files alone, so no request reaches a file system in user space.
 *
 * A page counts as resident when the file holds it, in memory or in swap: its owner has paid for it. The proof is a walk
 * over all pages, which for tens of GiB would hold up the control thread. So a file with a block for each of its pages
 * passes without the walk, provided that the mapping is guarded: blocks may lie past the end of the file, and an access to
 * a missing page then faults.
 */
#include "agent/control/region/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"

#define HUGETLBFS_TYPE 0x958458f6
#define BLOCK_BYTES 512
/* Extents with a known NUMA node: each one costs the control thread a system call. */
#define NODES_MAX 1024

/* A client's memfd. */
struct file {
	int fd;
	bool checked;
	bool huge;
	uint64_t size, allocated; /* bytes */
	struct mapping *map;      /* borrowed from struct extents */
};

int extents_init(struct extents *e, const struct piece *v, uint32_t n, uint16_t access,
		 struct dray_err *reterr)
{
	uint64_t start = 0, end = 0;
	uint32_t k = 0;

	e->view = calloc(1, sizeof(*e->view) + n * sizeof(e->view->extents[0]));
	e->parts = calloc(n, sizeof(*e->parts));
	e->dmabufs = calloc(n, sizeof(*e->dmabufs));
	if (!e->view || !e->parts || !e->dmabufs)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (uint32_t i = 0; i < n; i++) {
		if (k && e->parts[k - 1] == v[i].part && v[i].offset == end) {
			e->view->extents[k - 1].length += v[i].length;
		} else {
			e->view->extents[k] = (struct extent_view){ .start = start,
								    .length = v[i].length,
								    .node = -1 };
			e->parts[k] = v[i].part;
			e->dmabufs[k++] = (struct region_dmabuf){ -1, v[i].offset };
		}
		start += v[i].length;
		end = v[i].offset + v[i].length;
	}
	e->view->n_extents = k;
	e->view->o.length = start;
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

static int file_check(struct file *f, struct file_id *id, int fd, uint32_t index, bool write,
		      struct dray_err *reterr)
{
	int seals = fcntl(fd, F_GET_SEALS);
	int flags = fcntl(fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || flags < 0)
		return pieces_refuse(reterr, DRAY_E_REGION_KIND, index,
				     "its descriptor is not a memfd");
	if (!(seals & F_SEAL_SHRINK))
		return pieces_refuse(
			reterr, DRAY_E_REGION_UNSEALED, index,
			"its memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING and "
			"add the seal");
	if ((flags & O_ACCMODE) == O_WRONLY)
		return pieces_refuse(reterr, DRAY_E_REGION_KIND, index,
				     "its descriptor is open for writing only");
	if (write &&
	    ((flags & O_ACCMODE) != O_RDWR || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
		return pieces_refuse(
			reterr, DRAY_E_REGION_READ_ONLY, index,
			"write access was asked for, but its descriptor is read-only or sealed "
			"against writing");
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || !S_ISREG(st.st_mode))
		return pieces_refuse(reterr, DRAY_E_REGION_KIND, index,
				     "its descriptor is not a memfd");
	*id = (struct file_id){ st.st_dev, st.st_ino };
	*f = (struct file){
		.fd = fd,
		.checked = true,
		.huge = fs.f_type == HUGETLBFS_TYPE,
		.size = (uint64_t)st.st_size,
		.allocated = (uint64_t)st.st_blocks * BLOCK_BYTES,
	};
	return 0;
}

static int check_files(const struct piece *v, uint32_t n, const int *fds, bool write,
		       struct file *files, struct file_id *ids, struct dray_err *reterr)
{
	for (uint32_t i = 0; i < n; i++) {
		struct file *f = &files[v[i].part];
		uint64_t end = v[i].offset + v[i].length;
		int r = f->checked ?
				0 :
				file_check(f, &ids[v[i].part], fds[v[i].part], i, write, reterr);

		if (r < 0)
			return r;
		if (end > f->size)
			return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					    "extent %" PRIu32 " ends at %" PRIu64
					    ", its file has %" PRIu64 " bytes",
					    i, end, f->size);
	}
	return 0;
}

/* [from, to) has no hole. The descriptor's file offset belongs to the client: it is restored. */
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

/* The pieces are sorted by place: SEEK_HOLE walks pages, and so walks each page once however many extents lie on it. */
static int check_resident(const struct file *files, const struct piece *v, uint32_t n,
			  struct dray_err *reterr)
{
	for (uint32_t i = 0; i < n;) {
		const struct piece *first = &v[i];
		const struct file *f = &files[first->part];
		uint64_t end = first->offset + first->length;
		bool ok = file_full(f) && (f->huge || f->map->guarded);

		for (i++; i < n && v[i].part == first->part && v[i].offset <= end; i++)
			end = dray_max(end, v[i].offset + v[i].length);
		/* huge-page files do not support SEEK_HOLE: all of the file or nothing */
		if (!ok && !f->huge)
			ok = run_resident(f->fd, first->offset, end);
		if (!ok)
			return pieces_refuse(
				reterr, DRAY_E_REGION_NOT_RESIDENT, first->index,
				f->huge ? "its huge-page file is not populated in full" :
					  "its memory has holes; populate it (MADV_POPULATE_WRITE) "
					  "before REGION_ADD");
	}
	return 0;
}

static int map_files(struct mappings *ms, dray_handle session, struct file *files,
		     const struct file_id *ids, unsigned n, bool write, uint64_t limit,
		     struct extents *e, struct dray_err *reterr)
{
	e->maps = calloc(n, sizeof(struct mapping *));
	if (!e->maps)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (unsigned i = 0; i < n; i++) {
		struct file *f = &files[i];
		struct mapping_key key = { ids[i], write, f->huge ? session : 0 };
		int r;

		if (f->size > limit)
			return dray_err_set(reterr, -EFBIG, DRAY_E_QUOTA,
					    "a file of %" PRIu64
					    " bytes is mapped whole and is over "
					    "limits.bytes_per_session (%" PRIu64 ")",
					    f->size, limit);
		/* before the file is mapped, which would reserve huge pages for the missing part */
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

/* More than one NUMA node is online: the list reads 0-1 or 0,2. */
static bool several_nodes(void)
{
	FILE *f = fopen("/sys/devices/system/node/online", "re");
	char text[64] = "";
	bool several;

	if (!f)
		return false;
	several = fgets(text, sizeof(text), f) && strpbrk(text, "-,");
	fclose(f);
	return several;
}

/*
 * Sets the NUMA nodes of the view's extents from one page of each, which fills in that page's table entry. Sandboxes without
 * get_mempolicy(2) leave them unknown.
 */
static void find_nodes(struct region_view *v)
{
	static int several = -1;

	if (several < 0)
		several = several_nodes();
	for (uint32_t i = 0; several && i < dray_min(v->n_extents, (uint32_t)NODES_MAX); i++) {
		struct extent_view *e = &v->extents[i];
		int node;

		if (syscall(SYS_get_mempolicy, &node, NULL, 0, e->base + e->length / 2,
			    MPOL_F_NODE | MPOL_F_ADDR) < 0)
			continue;
		e->node = node;
		v->nodes_known = true;
	}
}

/* Sets the addresses of host memory. */
static void place(struct extents *e)
{
	e->view->fault_guarded = true;
	for (uint32_t i = 0; i < e->view->n_extents; i++) {
		const struct mapping *map = e->maps[e->parts[i]];

		e->view->extents[i].base = map->base + e->dmabufs[i].offset;
		e->view->fault_guarded &= map->guarded;
	}
	free(e->dmabufs);
	e->dmabufs = NULL;
}

int extents_map(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		const int *fds, unsigned n_fds, uint64_t limit, struct extents *ret,
		struct dray_err *reterr)
{
	struct file *files dray_auto_free = calloc(n_fds + 1, sizeof(*files));
	struct file_id *ids dray_auto_free = calloc(n_fds + 1, sizeof(*ids));
	struct piece *pieces dray_auto_free = NULL;
	bool write = m->access & DMSG_ACCESS_WRITE;
	uint32_t n = m->extents.n;
	struct extents e = { .view = NULL };
	int r;

	if (!files || !ids)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	r = pieces_read(m, n_fds, 0, &pieces, reterr);
	if (r >= 0)
		r = check_files(pieces, n, fds, write, files, ids, reterr);
	if (r < 0)
		return r;
	pieces_join(pieces, n, ids);
	r = extents_init(&e, pieces, n, m->access, reterr);
	if (r >= 0)
		r = map_files(ms, session, files, ids, n_fds, write, limit, &e, reterr);
	pieces_by_place(pieces, n);
	if (r >= 0 && write)
		r = pieces_check_overlap(pieces, n, reterr);
	if (r >= 0)
		r = check_resident(files, pieces, n, reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	place(&e);
	find_nodes(e.view);
	*ret = e;
	return 0;
}

/* Size of a default huge page in bytes, or -errno. */
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
		return pieces_refuse(reterr, DRAY_E_INVALID, 0,
				     "a pool has fd_index 65535 and offset 0");
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
	struct extents e = { .view = NULL };
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
	r = extents_init(&e, &(struct piece){ .length = x.length }, 1, m->access, reterr);
	key = (struct mapping_key){ { st.st_dev, st.st_ino },
				    m->access & DMSG_ACCESS_WRITE,
				    huge ? session : 0 };
	e.maps = calloc(1, sizeof(struct mapping *));
	if (r >= 0 && !e.maps)
		r = dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	if (r >= 0)
		r = mapping_get(ms, &key, fd, bytes, &e.maps[0], reterr);
	if (r < 0) {
		extents_deinit(&e);
		return r;
	}
	e.n_maps = 1;
	/* no page of a pool is touched yet, so its NUMA node is not known */
	place(&e);
	*ret = e;
	*ret_bytes = bytes;
	return 0;
}
