/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of segment files. A tier may have more segments than the process may have descriptors, so a file is opened when it is
 * used, and stays open until others need its descriptor: the file that was used longest ago is closed, of those that nobody uses. A read
 * uses its file while it runs. A write does so until it is committed, because the error of writing back what is not on disk yet may only
 * be reported to a descriptor that was open meanwhile. The segment that objects are appended to, and the next one, use their files until
 * they are sealed: a disk that can be written does not fail because the process has no descriptor left.
 *
 * Files are opened and closed on the threads of the module, because both may block; the control thread only ends uses.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"
#include "lib/assert.h"
#include "lib/fds.h"

/* Descriptors that stay open without use, unless it is more than a share of what the process may open. */
#define FILES_MAX 256u

void files_init(struct disk_files *f)
{
	pthread_mutex_init(&f->lock, NULL);
	dray_list_init(&f->idle);
	f->max = dray_fd_share(FILES_MAX);
}

void files_deinit(struct disk_files *f)
{
	pthread_mutex_destroy(&f->lock);
}

/* No longer counted; the caller closes it. -1: there is none. Under the lock. */
static int take(struct disk_files *f, struct disk_segment *s)
{
	int fd = s ? s->fd : -1;

	if (fd < 0)
		return fd;
	dray_list_del(&s->idle);
	s->fd = -1;
	f->n--;
	return fd;
}

/* False: all files are in use. */
static bool close_oldest(struct disk_files *f)
{
	int fd;

	pthread_mutex_lock(&f->lock);
	fd = take(f, dray_list_first(&f->idle, struct disk_segment, idle));
	pthread_mutex_unlock(&f->lock);
	dray_close(fd);
	return fd >= 0;
}

static unsigned count(struct disk_files *f)
{
	unsigned n;

	pthread_mutex_lock(&f->lock);
	n = f->n;
	pthread_mutex_unlock(&f->lock);
	return n;
}

/* Writes that waited for their batch may have left more than that. */
static void shrink(struct disk_files *f, unsigned most)
{
	while (count(f) > most && close_oldest(f))
		;
}

static int call_open(const struct disk_segment *s, int flags)
{
	char name[32];
	int fd;

	segment_name(s->id, name);
	fd = openat(s->disk->dir_fd, name, O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	return fd < 0 ? -errno : fd;
}

/* A file that somebody has removed is not made again: it would have none of the objects. */
static int open_file(struct disk_segment *s, bool writes, int flags)
{
	int r = disk_fault(s->disk, DISK_CALL_OPEN);
	bool read_only;

	if (!r)
		r = call_open(s, O_RDWR | (s->made ? 0 : O_CREAT) | flags);
	/* A tier on a disk that became read-only still reads. */
	read_only = r == -EROFS && !writes;
	if (read_only)
		r = call_open(s, O_RDONLY | flags);
	if (r >= 0)
		s->read_only = read_only;
	return r;
}

static int try_open(struct disk_segment *s, bool writes)
{
	int r = s->cached ? -EINVAL : open_file(s, writes, O_DIRECT);

	if (r == -EINVAL) {
		s->cached = true;
		r = open_file(s, writes, 0);
	}
	s->made |= r >= 0;
	return r;
}

/* Where the process has no descriptor left, those without use are given back. */
static int open_in_need(struct disk_segment *s, bool writes)
{
	int r;

	do {
		r = try_open(s, writes);
	} while (dray_lacks_fds(r) && close_oldest(&s->disk->files));
	return r;
}

static int open_new(struct disk_segment *s, bool writes)
{
	struct disk_files *f = &s->disk->files;
	int r = open_in_need(s, writes);

	if (r < 0)
		return r;
	pthread_mutex_lock(&f->lock);
	s->fd = r;
	s->users = 1;
	f->n++;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

/* One more user of a file that is open. False: it is not. */
static bool join(struct disk_segment *s)
{
	struct disk_files *f = &s->disk->files;
	bool open;

	pthread_mutex_lock(&f->lock);
	open = s->fd >= 0;
	s->users += open;
	dray_list_del(&s->idle);
	pthread_mutex_unlock(&f->lock);
	return open;
}

/* The disk was read-only when the file was opened. Others may read from the descriptor, so it keeps its number. */
static int make_writable(struct disk_segment *s)
{
	int fd dray_auto_close = open_in_need(s, true);

	if (fd < 0)
		return fd;
	if (dup3(fd, s->fd, O_CLOEXEC) >= 0)
		return 0;
	s->read_only = true;
	return -errno;
}

int files_open_locked(struct disk_segment *s, bool writes)
{
	struct disk_files *f = &s->disk->files;
	bool open = join(s);
	int r;

	shrink(f, open ? f->max : f->max - 1);
	if (!open)
		return open_new(s, writes);
	r = writes && s->read_only ? make_writable(s) : 0;
	if (r < 0)
		segment_close(s);
	return r;
}

int segment_open(struct disk_segment *s, bool writes)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = files_open_locked(s, writes);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int segment_open_to_append(struct disk_segment *s)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = files_open_locked(s, true);
	if (r == 0 && !s->sealed && !s->stays_open)
		s->stays_open = join(s);
	pthread_mutex_unlock(&s->lock);
	return r;
}

void segment_close(struct disk_segment *s)
{
	struct disk_files *f = &s->disk->files;

	pthread_mutex_lock(&f->lock);
	dray_assert(s->users);
	if (!--s->users)
		dray_list_add(&f->idle, &s->idle);
	pthread_mutex_unlock(&f->lock);
}

void files_forget(struct disk_segment *s)
{
	struct disk_files *f = &s->disk->files;
	int fd;

	pthread_mutex_lock(&f->lock);
	fd = take(f, s);
	pthread_mutex_unlock(&f->lock);
	dray_close(fd);
}
