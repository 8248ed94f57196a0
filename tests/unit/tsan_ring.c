/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client and a real worker over a ring: submissions in bursts, waiting asleep or awake, so that both ways of
 * waking are met many times. A lost wake-up shows as a time-out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/assert.h"
#include "tests/unit/worker_rig.h"

#define ENTRIES 64
#define TRANSFERS 60000
#define WAIT_MS 20000

struct client {
	struct wrig *r;
	uint32_t sq_tail, cq_head;
	uint64_t submitted, completed, slept;
};

static _Atomic uint32_t *word(struct wrig *r, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(r->ring.ring + offset);
}

static void submit(struct client *c, unsigned n)
{
	struct wrig *r = c->r;
	uint64_t one = 1;

	for (unsigned i = 0; i < n; i++, c->sq_tail++, c->submitted++)
		dmsg_sqe_put(r->ring.ring + r->ring.sq_offset +
				     (c->sq_tail & (ENTRIES - 1)) * DMSG_SQE_SIZE,
			     &(struct dmsg_sqe){ .user_data = c->submitted,
						 .direction = DMSG_DIRECTION_WRITE,
						 .op_count = 1,
						 .local = WRIG_REGION_A,
						 .remote = WRIG_REMOTE_B,
						 .op_local = c->submitted % 64 * 64,
						 .op_remote = c->submitted % 64 * 64,
						 .op_length = 64 });
	atomic_store(word(r, DMSG_RING_SQ_TAIL), c->sq_tail);
	if (atomic_load(word(r, DMSG_RING_AGENT_SLEEPING)))
		dray_assert(write(r->doorbell, &one, sizeof(one)) == sizeof(one));
}

static unsigned reap(struct client *c)
{
	struct wrig *r = c->r;
	uint32_t tail = atomic_load_explicit(word(r, DMSG_RING_CQ_TAIL), memory_order_seq_cst);
	unsigned n = 0;

	for (; c->cq_head != tail; c->cq_head++, n++) {
		struct dmsg_cqe e;

		dmsg_cqe_get(r->ring.ring + r->ring.cq_offset +
				     (c->cq_head & (2 * ENTRIES - 1)) * DMSG_CQE_SIZE,
			     &e);
		dray_assert(e.status == 0 && e.bytes == 64);
	}
	atomic_store_explicit(word(r, DMSG_RING_CQ_HEAD), c->cq_head, memory_order_release);
	c->completed += n;
	return n;
}

static void wait_asleep(struct client *c)
{
	struct epoll_event ev;

	atomic_store(word(c->r, DMSG_RING_CLIENT_SLEEPING), 1);
	if (!reap(c)) {
		c->slept++;
		if (epoll_wait(c->r->completion, &ev, 1, WAIT_MS) != 1) {
			printf("not ok - no wake-up is lost # after %llu transfers\n",
			       (unsigned long long)c->completed);
			exit(1);
		}
	}
	atomic_store_explicit(word(c->r, DMSG_RING_CLIENT_SLEEPING), 0, memory_order_relaxed);
}

int main(void)
{
	struct wrig rig;
	struct client c = { .r = &rig };
	unsigned seed = 5;

	wrig_init(&rig, ENTRIES, 1 << 16);
	while (c.completed < TRANSFERS) {
		unsigned room = ENTRIES - (unsigned)(c.submitted - c.completed);
		unsigned n = 1 + (unsigned)rand_r(&seed) % ENTRIES;

		if (n > room)
			n = room;
		if (n)
			submit(&c, n);
		if (rand_r(&seed) % 4 == 0)
			usleep((useconds_t)(rand_r(&seed) % 100));
		if (rand_r(&seed) % 2)
			wait_asleep(&c);
		else
			reap(&c);
		while (c.submitted - c.completed >= ENTRIES)
			wait_asleep(&c);
	}
	wrig_deinit(&rig);
	printf("ok - no wake-up is lost # %llu transfers, %llu sleeps\n",
	       (unsigned long long)c.completed, (unsigned long long)c.slept);
	return c.completed == c.submitted || c.completed >= TRANSFERS ? 0 : 1;
}
