/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/wake.h"
#include "schema/gen/errors.h"

#define defect(reterr, text) dray_err_set((reterr), -EPROTO, DRAY_E_PROTOCOL, (text))

bool dc_shared_memory_ok(int fd, uint64_t bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && bytes &&
	       bytes <= (uint64_t)st.st_size;
}

static uint32_t *word(const struct ring *r, unsigned offset)
{
	return (uint32_t *)(void *)(r->base + offset);
}

/* The entries lie behind the words, inside the file, and on a cache line. */
static bool entries_fit(uint32_t offset, uint32_t entries, uint32_t size, uint64_t bytes)
{
	return offset >= DMSG_RING_CLIENT_SLEEPING + 64 && offset % 64 == 0 && offset <= bytes &&
	       (uint64_t)entries * size <= bytes - offset;
}

/* Reads each word once, because the agent could change it meanwhile. */
static bool layout_fits(struct ring *r)
{
	uint32_t sq = dray_le_get32(r->base + DMSG_RING_SQ_OFFSET);
	uint32_t cq = dray_le_get32(r->base + DMSG_RING_CQ_OFFSET);
	uint64_t sq_bytes = (uint64_t)r->sq_entries * DMSG_SQE_SIZE;
	uint64_t cq_bytes = (uint64_t)r->cq_entries * DMSG_CQE_SIZE;

	if (dray_le_get32(r->base + DMSG_RING_MAGIC) != DMSG_MAGIC_RING ||
	    dray_le_get32(r->base + DMSG_RING_SQ_ENTRIES) != r->sq_entries ||
	    dray_le_get32(r->base + DMSG_RING_CQ_ENTRIES) != r->cq_entries ||
	    !entries_fit(sq, r->sq_entries, DMSG_SQE_SIZE, r->bytes) ||
	    !entries_fit(cq, r->cq_entries, DMSG_CQE_SIZE, r->bytes))
		return false;
	if (sq < cq + cq_bytes && cq < sq + sq_bytes)
		return false;
	r->sqes = r->base + sq;
	r->cqes = r->base + cq;
	return true;
}

/* Writing to a pipe or socket could raise SIGPIPE. An eventfd has no file type. */
static bool is_eventfd(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && !S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode);
}

static bool is_epoll(int fd)
{
	struct epoll_event ev;

	/* EINVAL for other descriptors */
	return epoll_wait(fd, &ev, 1, 0) >= 0;
}

int dc_ring_open(struct ring *r, const struct dmsg_ring_open_reply *m, uint32_t sq_entries,
		 int memory_fd, int doorbell_fd, int completion_fd, struct dray_err *reterr)
{
	int fd dray_auto_close = memory_fd;
	void *base;
	int flags;

	*r = RING_NULL;
	r->doorbell_fd = doorbell_fd;
	r->completion_fd = completion_fd;
	r->sq_entries = m->sq_entries;
	r->cq_entries = m->cq_entries;
	r->bytes = m->ring_bytes;
	if (m->sq_entries != sq_entries || m->cq_entries != 2 * sq_entries ||
	    m->ring_bytes < DMSG_RING_SIZE || m->ring_bytes > (64U << 20) ||
	    !dc_shared_memory_ok(fd, m->ring_bytes) || !is_eventfd(doorbell_fd) ||
	    !is_epoll(completion_fd)) {
		dc_ring_close(r);
		return defect(reterr, "the agent's ring differs from the one requested");
	}
	flags = fcntl(doorbell_fd, F_GETFL);
	base = mmap(NULL, m->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED || flags < 0 ||
	    fcntl(doorbell_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
		int error = errno;

		if (base != MAP_FAILED)
			munmap(base, m->ring_bytes);
		dc_ring_close(r);
		return dray_err_set(reterr, -error, DRAY_E_IO, "mapping the ring: %s",
				    dray_errno_text(error));
	}
	r->base = base;
	if (!layout_fits(r)) {
		dc_ring_close(r);
		return defect(reterr, "the layout of the agent's ring is invalid");
	}
	/* indices need not begin at 0 */
	r->sq_tail = r->sq_published = r->sq_head =
		DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_SQ_TAIL), __ATOMIC_RELAXED));
	r->cq_head = DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_CQ_HEAD), __ATOMIC_RELAXED));
	return 0;
}

void dc_ring_close(struct ring *r)
{
	if (r->base)
		munmap(r->base, r->bytes);
	dray_close(r->doorbell_fd);
	dray_close(r->completion_fd);
	*r = RING_NULL;
}

int dc_ring_room(struct ring *r, struct dray_err *reterr)
{
	/* the agent owns that cache line: it is read only if the last value does not suffice */
	if (r->sq_tail - r->sq_head >= r->sq_entries) {
		/* acquire: the agent has copied an entry before it frees it */
		uint32_t head =
			DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_SQ_HEAD), __ATOMIC_ACQUIRE));

		if (r->sq_tail - head > r->sq_entries)
			return defect(reterr, "the ring's submission head is invalid");
		r->sq_head = head;
	}
	return r->sq_tail - r->sq_head < r->sq_entries && r->in_flight < r->cq_entries;
}

uint32_t dc_ring_taken(const struct ring *r)
{
	/* relaxed: the agent has ended */
	return DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_SQ_HEAD), __ATOMIC_RELAXED));
}

/* The next entry to fill. */
static uint8_t *next_entry(struct ring *r)
{
	r->in_flight++;
	return r->sqes + (uint64_t)(r->sq_tail++ & (r->sq_entries - 1)) * DMSG_SQE_SIZE;
}

void dc_ring_put(struct ring *r, const struct dmsg_sqe *e)
{
	dmsg_sqe_put(next_entry(r), e);
}

void dc_ring_put_message(struct ring *r, const struct dmsg_sqe_message *e)
{
	dmsg_sqe_message_put(next_entry(r), e);
}

void dc_ring_submit(struct ring *r)
{
	if (r->sq_published == r->sq_tail)
		return;
	r->sq_published = r->sq_tail;
	__atomic_store_n(word(r, DMSG_RING_SQ_TAIL), DRAY_LE32(r->sq_tail), __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(word(r, DMSG_RING_AGENT_SLEEPING), __ATOMIC_SEQ_CST))
		return;
	/*
	 * submissions that follow while the agent wakes up need no second doorbell. After the
	 * doorbell this store could overwrite the agent's next request for one.
	 */
	__atomic_store_n(word(r, DMSG_RING_AGENT_SLEEPING), 0, __ATOMIC_RELAXED);
	dray_wake(r->doorbell_fd);
}

int dc_ring_take(struct ring *r, struct dmsg_cqe *ret, struct dray_err *reterr)
{
	/* acquire: the entry was written before the tail */
	uint32_t tail = DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_CQ_TAIL), __ATOMIC_ACQUIRE));
	uint32_t n = tail - r->cq_head;

	if (!n)
		return 0;
	if (n > r->cq_entries || n > r->in_flight)
		return defect(reterr, "the ring's completion tail is invalid");
	dmsg_cqe_get(r->cqes + (uint64_t)(r->cq_head & (r->cq_entries - 1)) * DMSG_CQE_SIZE, ret);
	r->cq_head++;
	r->in_flight--;
	/* release: the copy is made before the agent may overwrite the entry */
	__atomic_store_n(word(r, DMSG_RING_CQ_HEAD), DRAY_LE32(r->cq_head), __ATOMIC_RELEASE);
	return 1;
}

bool dc_ring_set_sleeping(struct ring *r, bool sleeping)
{
	if (!r->base)
		return false;
	if (!sleeping) {
		/* if the agent sees this late, it rings once in vain */
		__atomic_store_n(word(r, DMSG_RING_CLIENT_SLEEPING), 0, __ATOMIC_RELAXED);
		return dc_ring_pending(r);
	}
	__atomic_store_n(word(r, DMSG_RING_CLIENT_SLEEPING), DRAY_LE32(1), __ATOMIC_SEQ_CST);
	return DRAY_LE32(__atomic_load_n(word(r, DMSG_RING_CQ_TAIL), __ATOMIC_SEQ_CST)) !=
	       r->cq_head;
}
