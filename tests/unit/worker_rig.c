/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/worker_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/wake.h"
#include "lib/time.h"
#include "tests/unit/worker_parts.h"

#define GROUP 7

static struct region_view *region(struct wrig *r, dray_handle handle, uint8_t **ret_memory,
				  int *ret_fd)
{
	struct region_view *v;

	*ret_fd = memfd_create("wrig", MFD_CLOEXEC);
	dray_assert(*ret_fd >= 0 && ftruncate(*ret_fd, (off_t)r->bytes) == 0);
	*ret_memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	dray_assert(*ret_memory != MAP_FAILED);
	v = worker_part_region(handle, WRIG_SESSION, GROUP, *ret_memory, r->bytes);
	pool_publish(&r->pool, &v->o);
	return v;
}

static void ring(struct wrig *r, uint32_t entries)
{
	struct ring_memory *m = &r->ring;

	m->sq_entries = entries;
	m->cq_entries = 2 * entries;
	m->sq_offset = DMSG_RING_SIZE;
	m->cq_offset = m->sq_offset + entries * DMSG_SQE_SIZE;
	m->ring_bytes = m->cq_offset + (uint64_t)m->cq_entries * DMSG_CQE_SIZE;
	m->arena_bytes = 1 << 20;
	m->ring = mmap(NULL, m->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);
	m->arena = mmap(NULL, m->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	dray_assert(m->ring != MAP_FAILED && m->arena != MAP_FAILED);
	r->doorbell = m->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	dray_assert(m->doorbell_fd >= 0);
	dray_assert(dray_doorbell_new(&m->completion_fd, &r->completion) == 0);
	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_RING_OPEN,
							   .session = WRIG_SESSION,
							   .ring = m });
}

void wrig_init(struct wrig *r, uint32_t sq_entries, uint64_t bytes)
{
	wrig_init_workers(r, 1, sq_entries, bytes);
}

void wrig_init_workers(struct wrig *r, unsigned workers, uint32_t sq_entries, uint64_t bytes)
{
	struct data_config cfg = worker_part_config(20000);
	int pair[2];

	memset(r, 0, sizeof(*r));
	r->bytes = bytes;
	r->completion = r->doorbell = -1;
	r->shared = worker_part_shared(WRIG_SESSION, GROUP, &r->group);
	dray_assert(pool_new(&r->pool, workers, &cfg, 100000, NULL) == 0);
	dray_assert(pool_start(&r->pool, NULL) == 0);
	dray_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ==
		    0);
	r->client = pair[1];
	r->region_a = region(r, WRIG_REGION_A, &r->a, &r->fd_a);
	r->region_b = region(r, WRIG_REGION_B, &r->b, &r->fd_b);
	r->remote_b = worker_part_remote(WRIG_REMOTE_B, WRIG_SESSION, GROUP, WRIG_REGION_B, bytes);
	pool_publish(&r->pool, &r->remote_b.o);
	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_SESSION_ADD,
							   .fd = pair[0],
							   .shared = &r->shared });
	if (sq_entries)
		ring(r, sq_entries);
}

struct event wrig_event(struct wrig *r)
{
	struct pollfd p = { .fd = worker_event_fd(r->pool.workers[0]), .events = POLLIN };
	struct event ev;

	while (!worker_next_event(r->pool.workers[0], &ev))
		dray_assert(poll(&p, 1, 20000) == 1);
	return ev;
}

void wrig_deinit(struct wrig *r)
{
	struct event ev;

	worker_post(r->pool.workers[0], &(struct command){ .type = COMMAND_SESSION_CLOSE,
							   .session = WRIG_SESSION,
							   .code = 36 });
	do {
		ev = wrig_event(r);
		if (ev.type == EVENT_SESSION_EOF)
			packet_free(ev.packet);
	} while (ev.type != EVENT_SESSION_GONE);
	dray_close(ev.fd);
	dray_assert(pool_stop(&r->pool));
	if (r->ring.ring) {
		munmap(r->ring.ring, r->ring.ring_bytes);
		munmap(r->ring.arena, r->ring.arena_bytes);
		close(r->doorbell);
		close(r->ring.completion_fd);
		close(r->completion);
	}
	if (r->client >= 0)
		close(r->client);
	munmap(r->a, r->bytes);
	munmap(r->b, r->bytes);
	close(r->fd_a);
	close(r->fd_b);
	free(r->region_a);
	free(r->region_b);
}
