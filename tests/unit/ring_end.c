/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/ring_end.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ring.h"
#include "lib/assert.h"
#include "lib/wake.h"
#include "schema/gen/data.h"

struct ring_end {
	struct ring ring;
	struct ring_memory m;
	uint64_t ids;
};

static int memory(uint64_t bytes)
{
	int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	dray_assert(fd >= 0);
	dray_assert(ftruncate(fd, (off_t)bytes) == 0);
	dray_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	return fd;
}

struct ring_end *ring_end_new(uint32_t entries, struct ring_memory *ret_memory)
{
	struct ring_end *e = calloc(1, sizeof(*e));
	struct ring_memory *m = &e->m;
	struct dray_err err = DRAY_ERR_NULL;
	int fd, watch;

	dray_assert(e);
	m->sq_entries = entries;
	m->cq_entries = 2 * entries;
	m->sq_offset = DMSG_RING_SIZE;
	m->cq_offset = m->sq_offset + entries * DMSG_SQE_SIZE;
	m->ring_bytes = m->cq_offset + (uint64_t)m->cq_entries * DMSG_CQE_SIZE;
	fd = memory(m->ring_bytes);
	m->ring = mmap(NULL, m->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	dray_assert(m->ring != MAP_FAILED);
	dray_le_put32(m->ring + DMSG_RING_MAGIC, DMSG_MAGIC_RING);
	dray_le_put32(m->ring + DMSG_RING_SQ_ENTRIES, m->sq_entries);
	dray_le_put32(m->ring + DMSG_RING_CQ_ENTRIES, m->cq_entries);
	dray_le_put32(m->ring + DMSG_RING_SQ_OFFSET, m->sq_offset);
	dray_le_put32(m->ring + DMSG_RING_CQ_OFFSET, m->cq_offset);
	m->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	dray_assert(m->doorbell_fd >= 0);
	dray_assert(dray_doorbell_new(&m->completion_fd, &watch) == 0);
	dray_assert(dc_ring_open(&e->ring,
				 &(struct dmsg_ring_open_reply){ .sq_entries = m->sq_entries,
								 .cq_entries = m->cq_entries,
								 .ring_bytes = m->ring_bytes },
				 entries, fd, dup(m->doorbell_fd), watch, &err) == 0);
	*ret_memory = *m;
	return e;
}

void ring_end_free(struct ring_end *e)
{
	dc_ring_close(&e->ring);
	munmap(e->m.ring, e->m.ring_bytes);
	close(e->m.doorbell_fd);
	close(e->m.completion_fd);
	free(e);
}

bool ring_end_room(struct ring_end *e)
{
	struct dray_err err = DRAY_ERR_NULL;
	int room = dc_ring_room(&e->ring, &err);

	dray_assert(room >= 0);
	return room;
}

void ring_end_put(struct ring_end *e, const struct dmsg_sqe *sqe)
{
	struct dmsg_sqe one = *sqe;

	one.user_data = e->ids++;
	dc_ring_put(&e->ring, &one);
}

void ring_end_submit(struct ring_end *e)
{
	dc_ring_submit(&e->ring);
}

unsigned ring_end_reap(struct ring_end *e)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_cqe cqe;
	unsigned n = 0;
	int ret;

	while ((ret = dc_ring_take(&e->ring, &cqe, &err)) > 0) {
		dray_assert(cqe.status == 0 && cqe.bytes == 64 && cqe.user_data < e->ids);
		n++;
	}
	dray_assert(ret == 0);
	return n;
}

uint32_t ring_end_status(struct ring_end *e)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_cqe cqe;

	dray_assert(dc_ring_take(&e->ring, &cqe, &err) == 1);
	return cqe.status;
}

bool ring_end_pending(const struct ring_end *e)
{
	return dc_ring_pending(&e->ring);
}

bool ring_end_set_sleeping(struct ring_end *e, bool sleeping)
{
	return dc_ring_set_sleeping(&e->ring, sleeping);
}

uint32_t ring_end_in_flight(const struct ring_end *e)
{
	return e->ring.in_flight;
}

int ring_end_completion_fd(const struct ring_end *e)
{
	return e->ring.completion_fd;
}
