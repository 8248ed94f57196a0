/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/ring_client.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/doorbell.h"

#define ARENA 4096

static uint8_t *memory(uint64_t bytes)
{
	uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	dray_assert(p != MAP_FAILED);
	return p;
}

void ring_client_open(struct ring_client *c, struct worker *w, uint32_t n, uint32_t entries)
{
	dray_handle session = 1ull << 32 | n;
	struct ring_memory *m = &c->ring;
	int pair[2];

	memset(c, 0, sizeof(*c));
	c->worker = w;
	c->group.transfers_max = c->agent.transfers_max = 100000;
	c->shared = (struct session_shared){ .session = session,
					     .group = RING_CLIENT_GROUP,
					     .own = { .transfers_max = 4096 },
					     .group_quota = &c->group,
					     .agent_quota = &c->agent,
					     .ops_max = 1 << 20,
					     .requests_max = 4 };
	m->sq_entries = entries;
	m->cq_entries = 2 * entries;
	m->sq_offset = DMSG_RING_SIZE;
	m->cq_offset = m->sq_offset + entries * DMSG_SQE_SIZE;
	m->ring_bytes = m->cq_offset + (uint64_t)m->cq_entries * DMSG_CQE_SIZE;
	m->ring = memory(m->ring_bytes);
	m->arena_bytes = ARENA;
	m->arena = memory(ARENA);
	m->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	dray_assert(m->doorbell_fd >= 0);
	dray_assert(dray_doorbell_new(&m->completion_fd, &c->completion) == 0);
	dray_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ==
		    0);
	c->data = pair[1];
	worker_post(w, &(struct command){
			       .type = COMMAND_SESSION_ADD, .fd = pair[0], .shared = &c->shared });
	worker_post(w,
		    &(struct command){ .type = COMMAND_RING_OPEN, .session = session, .ring = m });
}

void ring_client_release(struct ring_client *c)
{
	munmap(c->ring.ring, c->ring.ring_bytes);
	munmap(c->ring.arena, c->ring.arena_bytes);
	close(c->ring.doorbell_fd);
	close(c->ring.completion_fd);
	close(c->completion);
	close(c->data);
}

_Atomic uint32_t *ring_client_word(struct ring_client *c, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(c->ring.ring + offset);
}

void ring_client_submit(struct ring_client *c, const struct dmsg_sqe *e, unsigned n)
{
	for (unsigned i = 0; i < n; i++, c->sq_tail++, c->submitted++) {
		struct dmsg_sqe one = *e;

		one.user_data = c->submitted;
		dmsg_sqe_put(c->ring.ring + c->ring.sq_offset +
				     (c->sq_tail & (c->ring.sq_entries - 1)) * DMSG_SQE_SIZE,
			     &one);
	}
	atomic_store(ring_client_word(c, DMSG_RING_SQ_TAIL), c->sq_tail);
}

bool ring_client_bell(struct ring_client *c)
{
	uint64_t one = 1;

	if (!atomic_load(ring_client_word(c, DMSG_RING_AGENT_SLEEPING)))
		return false;
	dray_assert(write(c->ring.doorbell_fd, &one, sizeof(one)) == sizeof(one));
	c->bells++;
	return true;
}

unsigned ring_client_reap(struct ring_client *c)
{
	uint32_t tail = atomic_load(ring_client_word(c, DMSG_RING_CQ_TAIL));
	unsigned n = 0;

	for (; c->cq_head != tail; c->cq_head++, n++) {
		struct dmsg_cqe e;

		dmsg_cqe_get(c->ring.ring + c->ring.cq_offset +
				     (c->cq_head & (c->ring.cq_entries - 1)) * DMSG_CQE_SIZE,
			     &e);
		c->last_status = e.status;
	}
	atomic_store_explicit(ring_client_word(c, DMSG_RING_CQ_HEAD), c->cq_head,
			      memory_order_release);
	c->completed += n;
	return n;
}
