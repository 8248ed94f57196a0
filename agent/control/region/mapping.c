/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/process/privilege.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"

/* Enough for system calls. */
#define CLOSER_STACK_BYTES (128 << 10)

struct closing {
	struct dray_job job;
	void *p; /* NULL: nothing to unmap */
	uint64_t bytes;
	int fd;
};

static void close_now(const struct closing *c)
{
	if (c->p)
		munmap(c->p, c->bytes);
	dray_close(c->fd);
}

static void close_run(struct dray_job *j)
{
	struct closing *c = dray_container_of(j, struct closing, job);

	close_now(c);
	free(c);
}

static void closer_begin(void)
{
	privilege_drop();
}

int closer_new(struct dray_jobs **ret)
{
	return dray_jobs_new(ret, "dray-closer", CLOSER_STACK_BYTES, closer_begin);
}

static void unmap(struct dray_jobs *closer, void *p, uint64_t bytes, int fd)
{
	const struct closing closing = { .p = p, .bytes = bytes, .fd = fd };
	struct closing *c = malloc(sizeof(*c));

	if (!c) {
		close_now(&closing);
		return;
	}
	*c = closing;
	dray_jobs_add(closer, &c->job, close_run, NULL);
}

void closer_close(struct dray_jobs *closer, int fd)
{
	if (fd >= 0)
		unmap(closer, NULL, 0, fd);
}

void mappings_init(struct mappings *ms, struct dray_jobs *closer)
{
	*ms = (struct mappings){ .closer = closer };
	dray_list_init(&ms->list);
}

static bool key_equal(const struct mapping_key *a, const struct mapping_key *b)
{
	return a->file.dev == b->file.dev && a->file.ino == b->file.ino &&
	       a->writable == b->writable && a->owner == b->owner;
}

static struct mapping *find(struct mappings *ms, const struct mapping_key *key, uint64_t bytes)
{
	dray_list_for_each(&ms->list, m, struct mapping, link)
		if (key_equal(&m->key, key) && m->bytes >= bytes)
			return m;
	return NULL;
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
	dray_close(m->fd);
	free(m);
}

DRAY_DEFINE_CLEANUP(struct mapping *, mapping_free);

static int mapping_new(struct mappings *ms, int fd, uint64_t bytes, struct mapping **ret,
		       struct dray_err *reterr)
{
	struct mapping *m = *ret = calloc(1, sizeof(*m));

	if (!m)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a mapping");
	*m = (struct mapping){
		.mappings = ms, .refs = 1, .bytes = bytes, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
	};
	dray_list_init(&m->link);
	if (m->fd < 0)
		return dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
				    "the descriptor of a region cannot be duplicated: %s",
				    dray_errno_text(errno));
	return 0;
}

int mapping_get(struct mappings *ms, const struct mapping_key *key, int fd, uint64_t bytes,
		struct mapping **ret, struct dray_err *reterr)
{
	dray_auto(mapping_free) struct mapping *m = NULL;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct mapping *known;
	int r;

	bytes = (bytes + page - 1) / page * page;
	known = find(ms, key, bytes);
	if (known) {
		known->refs++;
		*ret = known;
		return 0;
	}
	r = mapping_new(ms, fd, bytes, &m, reterr);
	if (r < 0)
		return r;
	m->key = *key;
	if (!map_guarded(m))
		return map_error(reterr, errno, bytes);
	madvise(m->base, bytes, MADV_DONTDUMP);
	dray_list_add(&ms->list, &m->link);
	*ret = dray_take(m);
	return 0;
}

int mapping_reserve(struct mappings *ms, int fd, uint64_t bytes, struct mapping **ret,
		    struct dray_err *reterr)
{
	dray_auto(mapping_free) struct mapping *m = NULL;
	int r = mapping_new(ms, fd, bytes, &m, reterr);

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

void mapping_unref(struct mapping *m)
{
	if (--m->refs)
		return;
	dray_list_del(&m->link);
	unmap(m->mappings->closer, m->base, m->bytes, m->fd);
	free(m);
}
