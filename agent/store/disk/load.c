/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is on disk at the start: rows without bytes, and files without rows, are removed. Reading it blocks, so that it happens
 * before the agent runs; if the folder cannot be used then, the committing thread reads it later, and the control thread takes
 * the rows a part at a time.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"
#include "lib/array.h"
#include "schema/gen/errors.h"

/* Rows that a turn of the control thread takes. */
#define ROWS_AT_ONCE 1024
/* A file has gaps if it has so much of a segment's bytes beyond those of its objects. The file system counts blocks of its own, too. */
#define GAPS_PART 64

struct load_row {
	struct load_row *next;
	struct index_row row;
	uint8_t key[];
};

struct load_file {
	uint32_t id;
	uint64_t bytes;
	uint64_t end;                 /* of the last object in it */
	uint64_t allocated;           /* what the file system has for it, in bytes */
	uint64_t objects;             /* what its objects take of that */
	bool used;                    /* a row refers to it */
	struct disk_segment *segment; /* of the control thread */
};

struct load {
	struct load_file *files; /* in the order of their ids */
	size_t n_files;
	struct load_row *rows;
	struct disk_rates rates;
	bool no_memory;
};

static struct load *cleanup_load(struct load *l)
{
	while (l && l->rows) {
		struct load_row *next = l->rows->next;

		free(l->rows);
		l->rows = next;
	}
	if (l)
		free(l->files);
	free(l);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct load *, cleanup_load);

/* --- reading the folder: at the start, or on the committing thread ------------------------------------------- */

static int by_id(const void *a, const void *b)
{
	const struct load_file *x = a, *y = b;

	return dray_compare(x->id, y->id);
}

static struct load_file *find(const struct load *l, uint64_t id)
{
	struct load_file key = { .id = (uint32_t)id };

	return l->n_files && id <= UINT32_MAX ?
		       bsearch(&key, l->files, l->n_files, sizeof(*l->files), by_id) :
		       NULL;
}

/* The id in a name such as segment-0000001f; 0: it has another form. */
static uint32_t id_of(const char *name)
{
	char same[32];
	unsigned id;

	if (sscanf(name, "segment-%8x", &id) != 1)
		return 0;
	segment_name(id, same);
	return strcmp(name, same) ? 0 : id;
}

static int find_file(const struct disk *d, struct load *l, const char *name)
{
	struct load_file f = { .id = id_of(name) };
	struct stat st;

	if (!f.id || fstatat(d->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return 0;
	f.bytes = (uint64_t)st.st_size;
	f.allocated = (uint64_t)st.st_blocks * 512;
	return DRAY_APPEND(l->files, l->n_files, f);
}

static int find_files(const struct disk *d, struct load *l)
{
	struct dirent **names = NULL;
	int r = disk_fault(d, DISK_CALL_READ), n = 0;

	if (!r)
		n = scandirat(d->dir_fd, ".", &names, NULL, NULL);
	if (n < 0)
		r = -errno;
	for (int i = 0; i < n; i++) {
		if (!r)
			r = find_file(d, l, names[i]->d_name);
		free(names[i]);
	}
	free(names);
	if (l->n_files)
		qsort(l->files, l->n_files, sizeof(*l->files), by_id);
	return r;
}

/* False: the row is not valid. */
static bool is_inside(const struct load_file *f, const struct index_row *row)
{
	return row->offset <= f->bytes && row->bytes <= f->bytes - row->offset;
}

static uint64_t end_of(const struct load_file *f, const struct index_row *row)
{
	return dray_min(f->bytes, row->offset + disk_blocks(row->bytes));
}

static void use(struct load_file *f, const struct index_row *row)
{
	uint64_t end = end_of(f, row);

	f->used = true;
	if (!is_inside(f, row))
		return;
	f->end = dray_max(f->end, end);
	f->objects += end - row->offset;
}

static void keep_row(struct disk *d, const struct index_row *row, void *arg)
{
	struct load *l = arg;
	struct load_row *r = malloc(sizeof(*r) + row->key_bytes);
	struct load_file *f = find(l, row->segment);

	if (!r) {
		l->no_memory = true;
		return;
	}
	r->row = *row;
	if (row->key_bytes)
		memcpy(r->key, row->key, row->key_bytes);
	r->row.key = r->key;
	r->next = l->rows;
	l->rows = r;
	if (f)
		use(f, row);
}

static void remove_unused(const struct disk *d, const struct load *l)
{
	for (size_t i = 0; i < l->n_files; i++)
		if (!l->files[i].used)
			segment_unlink(d, l->files[i].id);
}

/* Blocks that a killed agent had ahead of its objects, and those of objects without rows. A disk that is read-only keeps them. */
static void trim(const struct disk *d, struct load_file *f)
{
	char name[32];
	int fd dray_auto_close = -1;

	segment_name(f->id, name);
	fd = openat(d->dir_fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && ftruncate(fd, (off_t)f->end) == 0)
		f->bytes = f->end;
}

static void trim_used(const struct disk *d, const struct load *l)
{
	for (size_t i = 0; i < l->n_files; i++)
		if (l->files[i].used && l->files[i].end < l->files[i].bytes)
			trim(d, &l->files[i]);
}

/* --- gaps between objects: a killed agent had not given back all of what it had removed ---------------------- */

struct place {
	uint32_t segment;
	uint64_t offset, end;
};

static int by_place(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->segment == y->segment ? dray_compare(x->offset, y->offset) :
					  dray_compare(x->segment, y->segment);
}

/* The objects of files with gaps. False: no memory, and the gaps stay until the next start. */
static bool find_places(const struct disk *d, const struct load *l, struct place **ret,
			size_t *ret_n)
{
	uint64_t most = d->cfg.segment_bytes / GAPS_PART;

	for (const struct load_row *r = l->rows; r; r = r->next) {
		const struct load_file *f = find(l, r->row.segment);
		struct place p;

		if (!f || f->allocated <= f->objects + most || !is_inside(f, &r->row))
			continue;
		p = (struct place){ f->id, r->row.offset, end_of(f, &r->row) };
		if (DRAY_APPEND(*ret, *ret_n, p) < 0)
			return false;
	}
	return true;
}

/*
 * The objects of one file, in their order. What is behind the last one is trimmed. Returns how many there are, or n if this file system
 * has no holes.
 */
static size_t punch_file(const struct disk *d, const struct place *p, size_t n)
{
	uint64_t at = 0;
	char name[32];
	int fd dray_auto_close = -1;
	size_t i;

	segment_name(p->segment, name);
	fd = openat(d->dir_fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	for (i = 0; i < n && p[i].segment == p->segment; i++) {
		if (fd >= 0 && p[i].offset > at &&
		    segment_punch(fd, at, p[i].offset - at) == -EOPNOTSUPP)
			return n;
		at = dray_max(at, p[i].end);
	}
	return i;
}

/* A row of an object in a gap must not come back with a power cut: the object would be corrupt. */
static void punch_gaps(struct disk *d, const struct load *l)
{
	struct place *places = NULL;
	size_t n = 0;

	if (find_places(d, l, &places, &n) && n && index_sync(d) == 0) {
		qsort(places, n, sizeof(*places), by_place);
		for (size_t i = 0; i < n;)
			i += punch_file(d, places + i, n - i);
	}
	free(places);
}

static int open_dir(struct disk *d, struct dray_err *reterr)
{
	int r = disk_fault(d, DISK_CALL_OPEN);

	dray_close(d->dir_fd);
	d->dir_fd = r < 0 ? r : open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->dir_fd >= 0)
		return 0;
	r = r < 0 ? r : -errno;
	d->dir_fd = -1;
	return dray_err_set(reterr, r, DRAY_E_IO,
			    "store.disk_dir %.100s: %s; make the folder, or set another one",
			    d->dir, dray_errno_text(r));
}

static int no_memory(struct dray_err *reterr)
{
	return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the disk tier");
}

static int read_folder(struct disk *d, struct load *l, struct dray_err *reterr)
{
	int r = open_dir(d, reterr);

	if (!r)
		r = index_open(d, reterr);
	if (r)
		return r;
	r = find_files(d, l);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "reading store.disk_dir %.100s: %s",
				    d->dir, dray_errno_text(r));
	r = index_load(d, keep_row, l, reterr);
	if (!r)
		r = index_rates(d, &l->rates, reterr);
	if (!r && l->no_memory)
		r = no_memory(reterr);
	return r > 0 ? -EIO : r;
}

/*
 * 0 with d->load, or -errno with reterr. Folder and index are opened together for each attempt: the index of a file system
 * that was there before would name none of the segments of the one that is there now, and they would be removed.
 */
static int scan(struct disk *d, struct dray_err *reterr)
{
	dray_auto(cleanup_load) struct load *l = calloc(1, sizeof(*l));
	int r;

	index_close(d);
	r = l ? read_folder(d, l, reterr) : no_memory(reterr);
	if (r) {
		index_close(d);
		return r;
	}
	remove_unused(d, l);
	punch_gaps(d, l);
	trim_used(d, l);
	d->load = dray_take(l);
	return 0;
}

/* --- taking what was read: control thread --------------------------------------------------------------------- */

/* Without memory the row stays until the next start. */
static void remove_row(struct disk *d, const struct index_row *row, struct disk_segment *s)
{
	struct disk_object at = { .segment = s, .offset = row->offset, .bytes = row->bytes };

	if (!orphan_add(d, row->key, row->key_bytes, row->segment, &at) || !s)
		return;
	s->objects++;
	d->info.bytes += disk_blocks(row->bytes);
}

void load_free(struct disk *d)
{
	d->load = cleanup_load(d->load);
}

static bool valid(const struct index_row *row, const struct disk_segment *s)
{
	return s && row->bytes && row->key_bytes <= DISK_KEY_MAX && row->offset % DISK_BLOCK == 0 &&
	       row->offset < s->end && row->bytes <= s->end - row->offset;
}

static void take_row(struct disk *d, const struct index_row *row)
{
	const struct load_file *f = find(d->load, row->segment);
	struct disk_segment *s = f ? f->segment : NULL;
	struct disk_object *o = NULL;
	int r;

	/* What is written from now on is newer than each row, also if the segment of a row is missing. */
	if (row->segment <= UINT32_MAX / 2)
		d->next_id = dray_max(d->next_id, (uint32_t)row->segment + 1);
	if (!valid(row, s)) {
		remove_row(d, row, NULL);
		return;
	}
	r = d->found(d->found_arg, row->key, row->key_bytes, row->bytes, row->cost, &o);
	if (!r && !o) {
		remove_row(d, row, s);
		return;
	}
	/* without memory, too, so that the segment stays for the next start */
	s->objects++;
	d->info.bytes += disk_blocks(row->bytes);
	if (r < 0)
		return;
	*o = (struct disk_object){ s, row->offset, row->bytes, row->crc };
	d->info.objects++;
}

/* The files become segments. 0 or -ENOMEM, and then none has. */
static int take_files(struct disk *d)
{
	struct load *l = d->load;

	for (size_t i = 0; i < l->n_files; i++) {
		struct disk_segment *s = l->files[i].used ? segment_new(d, l->files[i].id) : NULL;

		if (l->files[i].used && !s) {
			while (i--)
				if (l->files[i].segment)
					segment_free(l->files[i].segment);
			return -ENOMEM;
		}
		l->files[i].segment = s;
		if (!s)
			continue;
		s->end = l->files[i].bytes;
		s->made = s->synced = true;
	}
	rates_restore(d, &l->rates);
	return 0;
}

/* True: all rows have been taken. */
static bool take_rows(struct disk *d, size_t n)
{
	struct load *l = d->load;

	for (; n && l->rows; n--) {
		struct load_row *r = l->rows;

		take_row(d, &r->row);
		l->rows = r->next;
		free(r);
	}
	if (l->rows)
		return false;
	/* rows that are not valid leave files without objects */
	for (size_t i = 0; i < l->n_files; i++)
		if (l->files[i].segment)
			segment_drop_if_empty(l->files[i].segment);
	d->load = cleanup_load(l);
	d->loaded = true;
	return true;
}

int load_now(struct disk *d, struct dray_err *reterr)
{
	int r = scan(d, reterr);

	if (!r && take_files(d) < 0) {
		d->load = cleanup_load(d->load);
		r = no_memory(reterr);
	}
	if (r < 0)
		return r;
	take_rows(d, SIZE_MAX);
	return 0;
}

static void run_scan(struct dray_job *j)
{
	struct disk *d = dray_container_of(j, struct disk, loading);

	d->probe_why = DRAY_ERR_NULL;
	d->probe_result = scan(d, &d->probe_why);
}

static void take_more(struct dray_job *j)
{
	struct disk *d = dray_container_of(j, struct disk, loading);

	if (take_rows(d, ROWS_AT_ONCE))
		heal_probe(d);
	else
		dray_jobs_finish(d->committer, &d->loading, take_more);
}

static void scan_done(struct dray_job *j)
{
	struct disk *d = dray_container_of(j, struct disk, loading);

	if (!d->probe_result && take_files(d) < 0) {
		d->load = cleanup_load(d->load);
		d->probe_result = no_memory(&d->probe_why);
	}
	if (d->probe_result)
		heal_again(d);
	else
		take_more(j);
}

void load_later(struct disk *d)
{
	dray_jobs_add(d->committer, &d->loading, run_scan, scan_done);
}
