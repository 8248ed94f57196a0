/* SPDX-License-Identifier: Apache-2.0 */
/* What is on disk at the start: rows without bytes, and files without rows, are removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/store/disk/internal.h"
#include "lib/map.h"
#include "schema/gen/errors.h"

/* The removal of a row that nothing refers to. */
struct orphan {
	struct disk_request request;
	struct disk_object object;
	uint8_t key[];
};

struct load {
	struct disk_segment **segments; /* in the order of their ids */
	size_t n;
	disk_found_fn found;
	void *arg;
};

static void orphan_done(struct disk_request *r)
{
	free(dray_container_of(r, struct orphan, request));
}

/* Without memory the row stays until the next start. */
static void add_orphan(struct disk *d, const struct index_row *row, struct disk_segment *s)
{
	struct orphan *o = calloc(1, sizeof(*o) + row->key_bytes);

	if (!o)
		return;
	if (row->key_bytes)
		memcpy(o->key, row->key, row->key_bytes);
	o->request = (struct disk_request){
		.disk = d,
		.key = o->key,
		.key_bytes = row->key_bytes,
		.done = orphan_done,
		.removes = true,
		.segment = row->segment,
		.at = { .segment = s, .offset = row->offset, .bytes = row->bytes },
	};
	if (s) {
		s->objects++;
		d->info.bytes += disk_blocks(row->bytes);
	}
	dray_list_add(&d->to_commit, &o->request.link);
}

void load_free(struct disk *d)
{
	struct disk_request *r;

	/* A batch that was not delivered. */
	dray_list_splice(&d->to_commit, &d->batch.requests);
	while ((r = dray_list_pop(&d->to_commit, struct disk_request, link)))
		if (r->done == orphan_done)
			orphan_done(r);
}

static int by_id(const void *a, const void *b)
{
	const struct disk_segment *const *x = a, *const *y = b;

	return dray_compare((*x)->id, (*y)->id);
}

static struct disk_segment *find(const struct load *l, uint64_t id)
{
	struct disk_segment key = { .id = (uint32_t)id }, *at = &key, **found;

	found = l->n && id <= UINT32_MAX ?
			bsearch(&at, l->segments, l->n, sizeof(*l->segments), by_id) :
			NULL;
	return found ? *found : NULL;
}

static bool valid(const struct index_row *row, const struct disk_segment *s)
{
	return s && row->bytes && row->key_bytes <= DISK_KEY_MAX && row->offset % DISK_BLOCK == 0 &&
	       row->offset < s->end && row->bytes <= s->end - row->offset;
}

static void take_row(struct disk *d, const struct index_row *row, void *arg)
{
	struct load *l = arg;
	struct disk_segment *s = find(l, row->segment);
	struct disk_object *o = NULL;

	/* What is written from now on is newer than each row, also if the segment of a row is missing. */
	if (row->segment <= UINT32_MAX / 2)
		d->next_id = dray_max(d->next_id, (uint32_t)row->segment + 1);
	if (!valid(row, s)) {
		add_orphan(d, row, NULL);
		return;
	}
	o = l->found(l->arg, row->key, row->key_bytes, row->bytes, row->cost);
	if (!o) {
		add_orphan(d, row, s);
		return;
	}
	*o = (struct disk_object){ s, row->offset, row->bytes, row->crc };
	s->objects++;
	d->info.objects++;
	d->info.bytes += disk_blocks(row->bytes);
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

static int find_segment(struct disk *d, const char *name)
{
	uint32_t id = id_of(name);
	struct disk_segment *s;
	struct stat st;

	if (!id || fstatat(d->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return 0;
	s = segment_new(d, id);
	if (!s)
		return -ENOMEM;
	s->end = (uint64_t)st.st_size;
	s->synced = true;
	return 0;
}

static int find_segments(struct disk *d, struct load *l)
{
	struct dirent **names = NULL;
	int n = scandirat(d->dir_fd, ".", &names, NULL, NULL), r = n < 0 ? -errno : 0;

	for (int i = 0; i < n; i++) {
		if (!r)
			r = find_segment(d, names[i]->d_name);
		free(names[i]);
	}
	free(names);
	l->segments = calloc(d->info.segments + 1, sizeof(struct disk_segment *));
	if (!l->segments)
		return -ENOMEM;
	dray_list_for_each(&d->segments, s, struct disk_segment, link)
		l->segments[l->n++] = s;
	qsort(l->segments, l->n, sizeof(struct disk_segment *), by_id);
	return r;
}

int load(struct disk *d, disk_found_fn found, void *arg, struct dray_err *reterr)
{
	struct load l = { .found = found, .arg = arg };
	int r = find_segments(d, &l);

	if (r < 0)
		dray_err_set(reterr, r, DRAY_E_IO, "reading store.disk_dir %.100s: %s", d->dir,
			     dray_errno_text(r));
	else
		r = index_load(d, take_row, &l, reterr);
	free(l.segments);
	if (!r)
		dray_list_for_each(&d->segments, s, struct disk_segment, link)
			if (!s->objects)
				segment_remove_now(s);
	return r > 0 ? -EIO : r;
}
