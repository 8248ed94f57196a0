/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"

/*
 * A file system extends a file for one thread at a time, so writes beyond its end wait for one another, and a call that extends it
 * waits for all writes to it that are in flight. Blocks that the file has already are written by all threads at once. So a file gets
 * the blocks of a whole segment at once, and does so before it is needed, when the one before it is half full.
 *
 * A step takes at most this part of what the file system has free, so that hardly anything is refused for want of these blocks.
 */
#define STEP_PART 16

void segment_name(uint32_t id, char ret[32])
{
	snprintf(ret, 32, "segment-%08x", id);
}

struct disk_segment *segment_new(struct disk *d, uint32_t id)
{
	struct disk_segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->disk = d;
	s->id = id;
	s->fd = -1;
	dray_list_init(&s->idle);
	pthread_mutex_init(&s->lock, NULL);
	dray_list_add(&d->segments, &s->link);
	d->info.segments++;
	d->next_id = dray_max(d->next_id, id + 1);
	return s;
}

void segment_free(struct disk_segment *s)
{
	s->disk->info.segments--;
	dray_list_del(&s->link);
	files_forget(s);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void segment_unlink(const struct disk *d, uint32_t id)
{
	char name[32];

	segment_name(id, name);
	unlinkat(d->dir_fd, name, 0);
}

int segment_punch(int fd, uint64_t offset, uint64_t bytes)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
			 (off_t)bytes) < 0 ?
		       -errno :
		       0;
}

static void run_removal(struct dray_job *j)
{
	struct disk_segment *s = dray_container_of(j, struct disk_segment, removal);

	segment_unlink(s->disk, s->id);
	/* The blocks of a large file are given back here. */
	files_forget(s);
}

static void removal_done(struct dray_job *j)
{
	segment_free(dray_container_of(j, struct disk_segment, removal));
}

void segment_drop_if_empty(struct disk_segment *s)
{
	if (!s->objects && !s->reads && s != s->disk->tail)
		dray_jobs_add(s->disk->committer, &s->removal, run_removal, removal_done);
}

/* The bytes to extend the file by, for a write that ends at `end`. 0: the file system has little room. */
static uint64_t step(const struct disk_segment *s, uint64_t end)
{
	uint64_t whole = dray_max(s->disk->cfg.segment_bytes, end) - s->allocated, most;
	struct statvfs fs;

	if (fstatvfs(s->fd, &fs) < 0)
		return 0;
	most = (uint64_t)fs.f_bavail * fs.f_frsize / STEP_PART / DISK_BLOCK * DISK_BLOCK;
	return end - s->allocated <= most ? dray_min(whole, most) : 0;
}

static void extend_locked(struct disk_segment *s, uint64_t end)
{
	uint64_t bytes = step(s, end);
	int r = disk_fault(s->disk, DISK_CALL_EXTEND);

	if (!bytes)
		return;
	s->extended = true;
	if (!r && fallocate(s->fd, 0, (off_t)s->allocated, (off_t)bytes) == 0) {
		s->allocated += bytes;
		return;
	}
	s->sealed = true;
	/* A call that fails may have taken all that a quota leaves, which the index needs. The next start gives it back if this fails, too. */
	if (ftruncate(s->fd, (off_t)dray_max(s->allocated, s->begun)) == 0)
		s->extended = s->allocated > s->begun;
}

void segment_extend(struct disk_segment *s, uint64_t end)
{
	pthread_mutex_lock(&s->lock);
	s->begun = dray_max(s->begun, end);
	if (!s->sealed && end > s->allocated)
		extend_locked(s, end);
	pthread_mutex_unlock(&s->lock);
}

/* Blocks beyond `end` are given back; the next start does so if this fails. */
static void cut_locked(struct disk_segment *s, uint64_t end)
{
	if (files_open_locked(s, true) < 0)
		return;
	if (ftruncate(s->fd, (off_t)end) == 0) {
		s->allocated = dray_min(s->allocated, end);
		s->extended = false;
	}
	segment_close(s);
}

void segment_trim(struct disk_segment *s)
{
	pthread_mutex_lock(&s->lock);
	s->sealed = true;
	if (s->extended)
		cut_locked(s, s->end);
	if (dray_take(s->stays_open))
		segment_close(s);
	pthread_mutex_unlock(&s->lock);
}

static void run_sealing(struct dray_job *j)
{
	segment_trim(dray_container_of(j, struct disk_segment, sealing));
}

/* Writes that have begun need their blocks; later ones extend the file again. */
static void run_rest(struct dray_job *j)
{
	struct disk_segment *s = dray_container_of(j, struct disk_segment, rest);

	pthread_mutex_lock(&s->lock);
	if (s->extended)
		cut_locked(s, s->begun);
	pthread_mutex_unlock(&s->lock);
}

static void rest_done(struct dray_job *j)
{
	struct disk_segment *s = dray_container_of(j, struct disk_segment, rest);

	bool again = dray_take(s->rest_again);

	s->resting = false;
	if (again && s == s->disk->tail && !s->objects)
		segment_rest(s);
}

void segment_rest(struct disk_segment *s)
{
	s->rest_again = s->resting;
	if (s->resting)
		return;
	s->resting = true;
	dray_jobs_add(s->disk->committer, &s->rest, run_rest, rest_done);
}

/* --- the next segment ------------------------------------------------------------------------------ */

int segment_sync_name(struct disk_segment *s, uint32_t end)
{
	struct disk *d = s->disk;
	int r;

	if (s->synced)
		return 0;
	if (s->id < d->nameless_end)
		return d->nameless;
	r = disk_fault(d, DISK_CALL_SYNC_FOLDER);
	if (r == 0 && fsync(d->dir_fd) < 0)
		r = -errno;
	s->synced = r == 0;
	if (r < 0) {
		d->nameless = r;
		d->nameless_end = end;
	}
	return r;
}

/* Its file and blocks, and that its name is on disk, for which the first batch with its objects would wait. */
static int make_file(struct disk_segment *s)
{
	int r = segment_open_to_append(s);

	if (r < 0)
		return r;
	pthread_mutex_lock(&s->lock);
	if (!s->sealed && !s->allocated)
		extend_locked(s, DISK_BLOCK);
	r = s->allocated ? 0 : -ENOSPC;
	pthread_mutex_unlock(&s->lock);
	segment_close(s);
	if (r < 0)
		return r;
	return segment_sync_name(s, s->id + 1);
}

static void run_preparation(struct dray_job *j)
{
	struct disk_segment *s = dray_container_of(j, struct disk_segment, preparation);

	s->prepared = make_file(s);
}

/* Without room it is made when objects need it; an error there is one of the disk, not one here. */
static void preparation_done(struct dray_job *j)
{
	struct disk_segment *s = dray_container_of(j, struct disk_segment, preparation);

	if (s->prepared < 0 && s == s->disk->next)
		segment_drop_next(s->disk);
}

void segment_prepare_next(struct disk *d)
{
	struct disk_segment *s = NULL;

	if (d->next || !d->tail || d->tail->has_next || d->tail->end < d->cfg.segment_bytes / 2)
		return;
	d->tail->has_next = true;
	s = segment_new(d, d->next_id);
	if (!s)
		return;
	d->next = s;
	dray_jobs_add(d->committer, &s->preparation, run_preparation, preparation_done);
}

struct disk_segment *segment_next(struct disk *d)
{
	struct disk_segment *s = dray_take(d->next);

	return s ? s : segment_new(d, d->next_id);
}

void segment_drop_next(struct disk *d)
{
	struct disk_segment *s = dray_take(d->next);

	/* after its preparation, which the same thread does */
	if (s)
		segment_drop_if_empty(s);
}

bool segment_lacks_room(const struct disk *d)
{
	struct statvfs fs;

	return fstatvfs(d->dir_fd, &fs) == 0 &&
	       (uint64_t)fs.f_bavail * fs.f_frsize < d->cfg.segment_bytes;
}

/* --- the last segment ------------------------------------------------------------------------------ */

void segment_seal(struct disk *d)
{
	struct disk_segment *s = dray_take(d->tail);

	if (!s)
		return;
	/* before its removal, which the same thread does */
	dray_jobs_add(d->committer, &s->sealing, run_sealing, NULL);
	segment_drop_if_empty(s);
}
