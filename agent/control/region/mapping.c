/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"

void mappings_init(struct mappings *ms)
{
	pthread_mutex_init(&ms->lock, NULL);
	dray_map_init(&ms->by_file);
}

void mappings_deinit(struct mappings *ms)
{
	dray_map_deinit(&ms->by_file);
	pthread_mutex_destroy(&ms->lock);
}

static bool key_equal(const struct mapping_key *a, const struct mapping_key *b)
{
	return a->file.dev == b->file.dev && a->file.ino == b->file.ino &&
	       a->writable == b->writable && a->session == b->session;
}

/* With a reference, or NULL. */
static struct mapping *find(struct mappings *ms, const struct owner *o,
			    const struct mapping_key *key, uint64_t bytes)
{
	struct mapping *found = NULL;

	pthread_mutex_lock(&ms->lock);
	dray_map_for_each_of(&ms->by_file, &key->file, sizeof(key->file), m, struct mapping,
			     by_file)
		if (m->owner == o && key_equal(&m->key, key) && m->bytes >= bytes) {
			found = m;
			break;
		}
	if (found)
		found->refs++;
	pthread_mutex_unlock(&ms->lock);
	return found;
}

/*
 * A mapping by a read-only descriptor cannot be guarded: the kernel requires a writable file. A client with a writable
 * descriptor could then punch holes, and the agent would pay for the pages that its reads bring back. So the file is opened
 * for writing if its mode allows that, and still mapped for reading.
 */
static int reopen_writable(int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
}

static bool map(struct mapping *m, int fd)
{
	int prot = PROT_READ | (m->key.writable ? PROT_WRITE : 0);
	void *p = dray_map_shared(fd, 0, m->bytes, prot);

	if (p == MAP_FAILED)
		return false;
	m->base = p;
	m->guarded = fault_guard_memory(p, m->bytes);
	return true;
}

static bool map_guarded(struct mapping *m)
{
	int fd dray_auto_close = -1;
	uint8_t *first;

	if (!map(m, m->fd))
		return false;
	if (m->guarded || m->key.writable)
		return true;
	fd = reopen_writable(m->fd);
	first = m->base;
	if (fd < 0 || !map(m, fd))
		return true;
	munmap(first, m->bytes);
	return true;
}

static int map_error(struct dray_err *reterr, int err, uint64_t bytes)
{
	int code = DRAY_E_IO;

	if (err == ENOMEM || err == EAGAIN)
		code = DRAY_E_NO_MEMORY;
	else if (err == EPERM || err == EACCES)
		code = DRAY_E_REGION_READ_ONLY;
	return dray_err_set(reterr, -err, code, "a file of %llu bytes cannot be mapped: %s",
			    (unsigned long long)bytes, dray_errno_text(err));
}

static void mapping_free(struct mapping *m)
{
	owner_put(m->owner, RESOURCE_MAPPED_BYTES, m->bytes);
	owner_put(m->owner, RESOURCE_MAPPINGS, 1);
	owner_unref(m->owner);
	dray_close(m->fd);
	free(m);
}

DRAY_DEFINE_CLEANUP(struct mapping *, mapping_free);

/* Before the address space is used. */
static int take_budget(struct owner *o, uint64_t bytes, struct dray_err *reterr)
{
	int r = owner_take(o, RESOURCE_MAPPINGS, 1, reterr);

	if (r < 0)
		return r;
	r = owner_take(o, RESOURCE_MAPPED_BYTES, bytes, reterr);
	if (r < 0)
		owner_put(o, RESOURCE_MAPPINGS, 1);
	return r;
}

static int mapping_new(struct mappings *ms, struct owner *o, int fd, uint64_t bytes,
		       struct mapping **ret, struct dray_err *reterr)
{
	int r = take_budget(o, bytes, reterr);
	struct mapping *m;

	if (r < 0)
		return r;
	m = *ret = calloc(1, sizeof(*m));
	if (!m) {
		owner_put(o, RESOURCE_MAPPED_BYTES, bytes);
		owner_put(o, RESOURCE_MAPPINGS, 1);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a mapping");
	}
	*m = (struct mapping){ .mappings = ms,
			       .owner = owner_ref(o),
			       .refs = 1,
			       .bytes = bytes,
			       .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3) };
	if (m->fd < 0)
		return dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
				    "the descriptor of a region cannot be duplicated: %s",
				    dray_errno_text(errno));
	return 0;
}

int mapping_get(struct mappings *ms, struct owner *o, const struct mapping_key *key, int fd,
		uint64_t bytes, struct mapping **ret, struct dray_err *reterr)
{
	dray_auto(mapping_free) struct mapping *m = NULL;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct mapping *known;
	int r;

	bytes = (bytes + page - 1) / page * page;
	known = find(ms, o, key, bytes);
	if (known) {
		*ret = known;
		return 0;
	}
	r = mapping_new(ms, o, fd, bytes, &m, reterr);
	if (r < 0)
		return r;
	m->key = *key;
	if (!map_guarded(m))
		return map_error(reterr, errno, bytes);
	madvise(m->base, bytes, MADV_DONTDUMP);
	/* two owners that map one file at once get two mappings */
	pthread_mutex_lock(&ms->lock);
	dray_map_add(&ms->by_file, &m->by_file, &m->key.file, sizeof(m->key.file));
	pthread_mutex_unlock(&ms->lock);
	*ret = dray_take(m);
	return 0;
}

int mapping_reserve(struct mappings *ms, struct owner *o, int fd, uint64_t bytes,
		    struct mapping **ret, struct dray_err *reterr)
{
	dray_auto(mapping_free) struct mapping *m = NULL;
	int r = mapping_new(ms, o, fd, bytes, &m, reterr);

	if (r < 0)
		return r;
	m->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->base == MAP_FAILED)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no address space for a DMA-BUF of %llu bytes",
				    (unsigned long long)bytes);
	*ret = dray_take(m);
	return 0;
}

static void unmap_run(struct owner_job *j)
{
	struct mapping *m = dray_container_of(j, struct mapping, unmap);

	munmap(m->base, m->bytes);
	m->fd = dray_close(m->fd);
}

static void unmap_done(struct owner_job *j)
{
	mapping_free(dray_container_of(j, struct mapping, unmap));
}

void mapping_unref(struct mapping *m)
{
	struct mappings *ms = m->mappings;
	bool last;

	pthread_mutex_lock(&ms->lock);
	last = !--m->refs;
	if (last)
		dray_map_del(&ms->by_file, &m->by_file);
	pthread_mutex_unlock(&ms->lock);
	if (!last)
		return;
	m->unused = true;
	if (!m->fills)
		owner_close_job(m->owner, &m->unmap, unmap_run, unmap_done);
}

void mapping_filled(struct mapping *m)
{
	if (!--m->fills && m->unused)
		owner_close_job(m->owner, &m->unmap, unmap_run, unmap_done);
}
