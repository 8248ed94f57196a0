/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RING_OPEN: memory and doorbells that a client and its worker share.
 *
 * The ring is small, charged to the agent, and counted for the owner: its pages are populated at once, so that no page is missing when a
 * worker writes there. The arena may be large and is charged to the client: the agent populates no page of it and
 * reads it under the fault guard.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/control/session/internal.h"
#include "lib/fault.h"
#include "lib/fds.h"
#include "lib/memfd.h"
#include "lib/wake.h"
#include "schema/gen/errors.h"

enum { FD_ARENA, FD_RING, FD_DOORBELL, FD_COMPLETION, FD_N };

static uint64_t whole_pages(uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

static int check(struct session *s, const struct dmsg_ring_open *m, struct dray_err *reterr)
{
	uint64_t limit = (uint64_t)s->owner->deps.cfg->limits.arena_bytes;

	if (s->ring.arena)
		return dray_err_set(
			reterr, -EEXIST, DRAY_E_EXISTS,
			"this session has an arena already; open another session for a second one");
	if (!m->sq_entries && !m->arena_bytes)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"RING_OPEN requests neither a ring nor an arena; set sq_entries or arena_bytes");
	if (m->sq_entries > DMSG_RING_ENTRIES_MAX || m->sq_entries & (m->sq_entries - 1))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "sq_entries is %" PRIu32 "; use a power of two up to %d",
				    m->sq_entries, DMSG_RING_ENTRIES_MAX);
	if (m->arena_bytes > DMSG_ARENA_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "arena_bytes is %" PRIu64 ", the limit is %d", m->arena_bytes,
				    DMSG_ARENA_MAX);
	if (m->arena_bytes > limit)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "arena_bytes is %" PRIu64 ", limits.arena_bytes is %" PRIu64
				    "; ask for less or raise it",
				    m->arena_bytes, limit);
	return 0;
}

/* A mapped, sealed memfd; *fd is for the client. */
static int make_memory(const char *name, uint64_t bytes, int *fd, uint8_t **ret,
		       struct dray_err *reterr)
{
	void *p;

	*fd = dray_memfd_new(name, bytes, false);
	if (*fd < 0)
		return dray_err_set(reterr, *fd,
				    dray_lacks_fds(*fd) ? DRAY_E_NO_FDS : DRAY_E_NO_MEMORY,
				    "%s: %s", name, dray_errno_text(*fd));
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (p == MAP_FAILED)
		return dray_err_set(reterr, -errno, DRAY_E_NO_MEMORY, "%s: %s", name,
				    dray_errno_text(errno));
	madvise(p, bytes, MADV_DONTDUMP);
	*ret = p;
	return 0;
}

static int make_doorbells(struct ring_memory *ring, int *fds, struct dray_err *reterr)
{
	int r;

	ring->doorbell_fd = dray_wake_new();
	if (ring->doorbell_fd >= 0)
		fds[FD_DOORBELL] = fcntl(ring->doorbell_fd, F_DUPFD_CLOEXEC, 3);
	r = fds[FD_DOORBELL] < 0 ? -errno :
				   dray_doorbell_new(&ring->completion_fd, &fds[FD_COMPLETION]);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_FDS, "the doorbells cannot be made: %s",
				    dray_errno_text(r)) :
		       0;
}

static int make_ring(struct session *s, uint32_t entries, int *fds, struct dray_err *reterr)
{
	struct ring_memory *ring = &s->ring;
	uint64_t bytes;
	int r;

	ring->sq_entries = entries;
	ring->cq_entries = entries * 2;
	ring->sq_offset = DMSG_RING_SIZE;
	ring->cq_offset = ring->sq_offset + entries * DMSG_SQE_SIZE;
	bytes = whole_pages(ring->cq_offset + (uint64_t)ring->cq_entries * DMSG_CQE_SIZE);
	r = owner_take(s->uid_owner, RESOURCE_RING_BYTES, bytes, reterr);
	if (r < 0)
		return r;
	ring->ring_bytes = bytes;
	r = make_memory("dray-ring", bytes, &fds[FD_RING], &ring->ring, reterr);
	if (r >= 0)
		r = dray_populate(ring->ring, ring->ring_bytes, true);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "the ring cannot be populated: %s",
				    dray_errno_text(r));
	dray_le_put32(ring->ring + DMSG_RING_MAGIC, DMSG_MAGIC_RING);
	dray_le_put32(ring->ring + DMSG_RING_SQ_ENTRIES, ring->sq_entries);
	dray_le_put32(ring->ring + DMSG_RING_CQ_ENTRIES, ring->cq_entries);
	dray_le_put32(ring->ring + DMSG_RING_SQ_OFFSET, ring->sq_offset);
	dray_le_put32(ring->ring + DMSG_RING_CQ_OFFSET, ring->cq_offset);
	return make_doorbells(ring, fds, reterr);
}

void session_ring_close(struct session *s)
{
	struct ring_memory *ring = &s->ring;

	if (ring->ring)
		munmap(ring->ring, ring->ring_bytes);
	if (ring->arena)
		munmap(ring->arena, ring->arena_bytes);
	owner_put(s->uid_owner, RESOURCE_RING_BYTES, ring->ring_bytes);
	dray_close(ring->doorbell_fd);
	dray_close(ring->completion_fd);
	*ring = (struct ring_memory){ .doorbell_fd = -1, .completion_fd = -1 };
}

int request_ring_open(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_ring_open *m = &rq->m.ring_open;
	int fds[FD_N] = { -1, -1, -1, -1 };
	struct ring_memory *ring = &s->ring;
	int r = check(s, m, reterr);

	if (r < 0)
		return r;
	ring->arena_bytes = whole_pages(m->arena_bytes ? m->arena_bytes : 1);
	r = make_memory("dray-arena", ring->arena_bytes, &fds[FD_ARENA], &ring->arena, reterr);
	if (r >= 0)
		fault_guard_memory(ring->arena, ring->arena_bytes);
	if (r >= 0 && m->sq_entries)
		r = make_ring(s, m->sq_entries, fds, reterr);
	if (r < 0) {
		for (unsigned i = 0; i < FD_N; i++)
			dray_close(fds[i]);
		session_ring_close(s);
		return r;
	}
	worker_post(
		s->owner->deps.pool->workers[s->worker],
		&(struct command){ .type = COMMAND_RING_OPEN, .session = s->handle, .ring = ring });
	session_send_fds(s, rq->id, DMSG_RING_OPEN_REPLY,
			 &(union dmsg_body){ .ring_open_reply = {
						     .sq_entries = ring->sq_entries,
						     .cq_entries = ring->cq_entries,
						     .arena_bytes = ring->arena_bytes,
						     .ring_bytes = ring->ring_bytes,
					     } },
			 fds, m->sq_entries ? FD_N : 1);
	return 0;
}
