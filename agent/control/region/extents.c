/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents that are mapped or, for DMA-BUFs, have reserved addresses. This happens on a thread of the client's owner, because
 * the client can hold the locks of a file's inode. The checks of a client's descriptors come in an order in which none waits
 * for a file system: F_GET_SEALS succeeds only for memory files, and the kernel itself answers for DMA-BUFs.
 *
 * A page counts as resident when the file holds it, in memory or in swap: its owner has paid for it. The proof is a walk
 * over all pages, which for tens of GiB takes long. So a file with a block for each of its pages
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
#include "lib/fds.h"
#include "lib/file.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"

#define HUGETLBFS_TYPE 0x958458f6
#define BLOCK_BYTES 512
/* Extents with a known NUMA node: each one costs a system call. */
#define NODES_MAX 1024

/* What one descriptor refers to. */
struct file {
	struct file_id id;
	bool huge;
	uint64_t size, allocated; /* bytes */
	struct mapping *map;      /* borrowed from struct extents */
};

static int compare_places(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->part != y->part ? dray_compare(x->part, y->part) :
				    dray_compare(x->offset, y->offset);
}

static int check_overlap(const struct piece *v, uint32_t n, struct dray_err *reterr)
{
	for (uint32_t i = 1; i < n; i++)
		if (v[i].part == v[i - 1].part && v[i].offset < v[i - 1].offset + v[i - 1].length)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "extents %" PRIu32 " and %" PRIu32
					    " overlap, which only a read-only region may have",
					    v[i - 1].index, v[i].index);
	return 0;
}

int extents_init(struct extents *e, struct piece *v, const struct dmsg_region_add *m,
		 struct dray_err *reterr)
{
	uint32_t n = m->extents.n, k = 0;
	uint64_t start = 0, end = 0;

	e->view = calloc(1, sizeof(*e->view) + n * sizeof(e->view->extents[0]));
	e->dmabufs = calloc(n, sizeof(*e->dmabufs));
	if (!e->view || !e->dmabufs)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (uint32_t i = 0; i < n; i++) {
		if (k && e->view->extents[k - 1].part == v[i].part && v[i].offset == end) {
			e->view->extents[k - 1].length += v[i].length;
		} else {
			e->view->extents[k] = (struct extent_view){
				.start = start, .length = v[i].length, .node = -1, .part = v[i].part
			};
			e->dmabufs[k++] = (struct region_dmabuf){ -1, v[i].offset };
		}
		start += v[i].length;
		end = v[i].offset + v[i].length;
	}
	e->view->n_extents = k;
	e->view->o.length = start;
	e->view->o.access = m->access;
	qsort(v, n, sizeof(*v), compare_places);
	return m->access & DMSG_ACCESS_WRITE ? check_overlap(v, n, reterr) : 0;
}

void extents_release(struct extents *e)
{
	fill_cancel(e->fill);
	for (uint32_t i = 0; i < e->n_maps; i++)
		mapping_unref(e->maps[i]);
	e->n_maps = 0;
}

void extents_deinit(struct extents *e)
{
	extents_release(e);
	free(e->maps);
	free(e->view);
	free(e->dmabufs);
	free(e->open);
	*e = (struct extents){ .view = NULL };
}

static int refuse_file(struct dray_err *reterr, int code, unsigned index, const char *why)
{
	return dray_err_set(reterr, -EINVAL, code, "descriptor %u %s", index, why);
}

static int check_memfd(struct file *f, int fd, unsigned index, bool write, struct dray_err *reterr)
{
	int seals = fcntl(fd, F_GET_SEALS);
	int flags = fcntl(fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || flags < 0)
		return refuse_file(reterr, DRAY_E_REGION_KIND, index, "is not a memfd");
	if (!(seals & F_SEAL_SHRINK))
		return refuse_file(reterr, DRAY_E_REGION_UNSEALED, index,
				   "is a memfd without F_SEAL_SHRINK; create it with "
				   "MFD_ALLOW_SEALING and add the seal");
	if ((flags & O_ACCMODE) == O_WRONLY)
		return refuse_file(reterr, DRAY_E_REGION_KIND, index,
				   "is open for writing only; open it for reading, too");
	if (write &&
	    ((flags & O_ACCMODE) != O_RDWR || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
		return refuse_file(reterr, DRAY_E_REGION_READ_ONLY, index,
				   "is read-only or sealed against writing; add the region "
				   "without write access");
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || !S_ISREG(st.st_mode))
		return refuse_file(reterr, DRAY_E_REGION_KIND, index, "is not a memfd");
	*f = (struct file){
		.id = { st.st_dev, st.st_ino },
		.huge = fs.f_type == HUGETLBFS_TYPE,
		.size = (uint64_t)st.st_size,
		.allocated = (uint64_t)st.st_blocks * BLOCK_BYTES,
	};
	return 0;
}

/* Only DMA-BUFs name their exporter. */
static bool is_dmabuf(int fd)
{
	char path[40], text[1024];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	return dray_file_read(AT_FDCWD, path, 0, text, sizeof(text)) >= 0 &&
	       strstr(text, "\nexp_name:");
}

static int check_dmabuf(struct file *f, int fd, unsigned index, bool write, struct dray_err *reterr)
{
	struct stat st;
	off_t bytes;

	if (!is_dmabuf(fd))
		return refuse_file(reterr, DRAY_E_REGION_KIND, index, "is not a DMA-BUF");
	if (write && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
		return refuse_file(reterr, DRAY_E_REGION_READ_ONLY, index,
				   "is a read-only DMA-BUF; add the region without write access");
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes <= 0 || fstat(fd, &st) < 0)
		return refuse_file(reterr, DRAY_E_REGION_KIND, index,
				   "is a DMA-BUF of unknown size");
	*f = (struct file){ .id = { st.st_dev, st.st_ino }, .size = (uint64_t)bytes };
	return 0;
}

/* A file that came by several descriptors counts as the first of these parts. */
static void join_files(const struct file *files, struct piece *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct file_id *id = &files[v[i].part].id;
		uint32_t k = 0;

		while (files[k].id.dev != id->dev || files[k].id.ino != id->ino)
			k++;
		v[i].part = k;
	}
}

static int check_files(const struct region_spec *spec, enum region_memory memory,
		       struct file *files, struct piece *v, struct dray_err *reterr)
{
	bool write = spec->m->access & DMSG_ACCESS_WRITE;
	int r = 0;

	for (unsigned i = 0; i < spec->n_fds && r >= 0; i++)
		r = memory == REGION_RDMA ?
			    check_dmabuf(&files[i], spec->fds[i], i, write, reterr) :
			    check_memfd(&files[i], spec->fds[i], i, write, reterr);
	for (uint32_t i = 0; i < spec->m->extents.n && r >= 0; i++) {
		uint64_t end = v[i].offset + v[i].length, size = files[v[i].part].size;

		if (end > size)
			r = dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
					 "extent %" PRIu32 " ends at %" PRIu64
					 ", its descriptor has %" PRIu64 " bytes",
					 i, end, size);
	}
	if (r >= 0)
		join_files(files, v, spec->m->extents.n);
	return r;
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

/* The pieces are sorted by place, so SEEK_HOLE walks each page once however many extents lie on it. */
static int check_resident(const struct region_spec *spec, const struct file *files,
			  const struct piece *v, struct dray_err *reterr)
{
	for (uint32_t i = 0, n = spec->m->extents.n; i < n;) {
		const struct piece *first = &v[i];
		const struct file *f = &files[first->part];
		uint64_t end = first->offset + first->length;
		bool ok = f->huge || (file_full(f) && f->map->guarded);

		for (i++; i < n && v[i].part == first->part && v[i].offset <= end; i++)
			end = dray_max(end, v[i].offset + v[i].length);
		if (!ok && !run_resident(spec->fds[first->part], first->offset, end))
			return pieces_refuse(
				reterr, DRAY_E_REGION_NOT_RESIDENT, first->index,
				"its memory has holes; populate it (MADV_POPULATE_WRITE) before "
				"REGION_ADD");
	}
	return 0;
}

static int map_file(struct mappings *ms, const struct region_spec *spec, uint64_t limit,
		    unsigned index, struct file *f, struct dray_err *reterr)
{
	struct mapping_key key = { f->id, spec->m->access & DMSG_ACCESS_WRITE,
				   f->huge ? spec->owner->session : 0 };

	if (f->size > limit)
		return dray_err_set(reterr, -EFBIG, DRAY_E_QUOTA,
				    "a file of %" PRIu64 " bytes is mapped whole and is over "
				    "limits.bytes_per_session (%" PRIu64 ")",
				    f->size, limit);
	/*
	 * Huge-page files do not support SEEK_HOLE, so they must be populated in full. This check is before the mapping, which
	 * would reserve huge pages for the missing part.
	 */
	if (f->huge && !file_full(f))
		return refuse_file(reterr, DRAY_E_REGION_NOT_RESIDENT, index,
				   "is a huge-page file that is not populated in full");
	return mapping_get(ms, spec->owner->uid_owner, &key, spec->fds[index], f->size, &f->map,
			   reterr);
}

/* More than one NUMA node is online: the list reads 0-1 or 0,2. */
static bool several_nodes(void)
{
	char text[64];

	return dray_file_read(AT_FDCWD, "/sys/devices/system/node/online", 0, text, sizeof(text)) >=
		       0 &&
	       strpbrk(text, "-,");
}

/*
 * Sets the NUMA nodes of the view's extents from one page of each, which fills in that page's table entry. Sandboxes without
 * get_mempolicy(2) leave them unknown.
 */
static void find_nodes(struct region_view *v)
{
	static _Atomic int several = -1;

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

/* Maps the files, or reserves addresses for them, and sets the addresses of the view's extents. */
static int map_files(struct mappings *ms, const struct region_spec *spec, enum region_memory memory,
		     uint64_t limit, struct file *files, struct extents *e, struct dray_err *reterr)
{
	int r = 0;

	e->maps = calloc(spec->n_fds, sizeof(struct mapping *));
	if (!e->maps)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	for (unsigned i = 0; i < spec->n_fds; i++) {
		struct file *f = &files[i];

		r = memory == REGION_RDMA ?
			    mapping_reserve(ms, spec->owner->uid_owner, spec->fds[i], f->size,
					    &f->map, reterr) :
			    map_file(ms, spec, limit, i, f, reterr);
		if (r < 0)
			return r;
		e->maps[e->n_maps++] = f->map;
	}
	e->view->memory = memory;
	e->view->fault_guarded = true;
	for (uint32_t i = 0; i < e->view->n_extents; i++) {
		const struct mapping *map = e->maps[e->view->extents[i].part];

		e->view->extents[i].base = map->base + e->dmabufs[i].offset;
		e->view->fault_guarded &= map->guarded;
		e->dmabufs[i].fd = map->fd;
	}
	if (memory == REGION_RDMA)
		return 0;
	free(e->dmabufs);
	e->dmabufs = NULL;
	return 0;
}

int extents_map(struct mappings *ms, const struct region_spec *spec, enum region_memory memory,
		uint64_t limit, struct extents *e, struct dray_err *reterr)
{
	struct file *files dray_auto_free = calloc(spec->n_fds + 1, sizeof(*files));
	struct piece *pieces dray_auto_free = NULL;
	int r;

	if (!files)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	r = pieces_read(spec->m, spec->n_fds, 0, &pieces, reterr);
	if (r >= 0)
		r = check_files(spec, memory, files, pieces, reterr);
	if (r >= 0)
		r = extents_init(e, pieces, spec->m, reterr);
	if (r >= 0)
		r = map_files(ms, spec, memory, limit, files, e, reterr);
	if (r < 0 || memory == REGION_RDMA)
		return r;
	r = check_resident(spec, files, pieces, reterr);
	if (r >= 0)
		find_nodes(e->view);
	return r;
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

int extents_map_pool(struct mappings *ms, const struct region_spec *spec, struct extents *e,
		     uint64_t *ret_bytes, struct dray_err *reterr)
{
	bool huge = spec->m->flags & DMSG_REGION_FLAG_HUGE;
	int64_t page = huge ? huge_page_bytes() : (int64_t)sysconf(_SC_PAGESIZE);
	int fd dray_auto_close = -1;
	struct region_spec own = *spec;
	struct dmsg_extent x;
	struct file file;
	struct stat st;
	uint64_t bytes;
	int r;

	dmsg_extent_get(spec->m->extents.p, &x);
	if (spec->n_fds)
		return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT,
				    "descriptors came with a pool; send none");
	if (x.fd_index != UINT16_MAX || x.offset)
		return pieces_refuse(reterr, DRAY_E_INVALID, 0,
				     "a pool has fd_index 65535 and offset 0");
	if (page <= 0)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this kernel has no huge pages: %s; leave out flag huge",
				    dray_errno_text((int)page));
	bytes = (x.length + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
	r = owner_take(spec->owner->uid_owner, RESOURCE_POOL_BYTES, bytes, reterr);
	if (r < 0)
		return r;
	*ret_bytes = bytes;
	fd = dray_memfd_new("dray-pool", bytes, huge);
	if (fd < 0 || fstat(fd, &st) < 0)
		return dray_err_set(reterr, fd < 0 ? fd : -errno,
				    dray_lacks_fds(fd) ? DRAY_E_NO_FDS : DRAY_E_NO_MEMORY,
				    "a pool of %" PRIu64 " bytes cannot be made: %s", bytes,
				    dray_errno_text(fd < 0 ? fd : errno));
	/* no page of a pool is touched yet, so its NUMA node is not known, and nothing is resident */
	file = (struct file){ { st.st_dev, st.st_ino }, huge, bytes, .allocated = bytes };
	own.fds = &fd;
	own.n_fds = 1;
	r = extents_init(e, &(struct piece){ .length = x.length }, spec->m, reterr);
	return r < 0 ? r : map_files(ms, &own, REGION_HOST, bytes, &file, e, reterr);
}
