/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several clients, each a thread, with rings on one real worker: some busy, some seldom, so that rings come to rest and
 * are brought back while the worker works for others, and all of them are announced when it sleeps. A lost wake-up
 * shows as a time-out.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/assert.h"
#include "tests/unit/ring_client.h"
#include "tests/unit/worker_rig.h"

#define CLIENTS 4
#define ENTRIES 16
#define WAIT_MS 20000

struct client {
	struct ring_client ring;
	pthread_t thread;
	unsigned seed;
	uint64_t wanted, slept;
};

static const struct dmsg_sqe write64 = { .direction = DMSG_DIRECTION_WRITE,
					 .op_count = 1,
					 .local = WRIG_REGION_A,
					 .remote = WRIG_REMOTE_B,
					 .op_length = 64 };

static void wait_asleep(struct client *c)
{
	_Atomic uint32_t *sleeping = ring_client_word(&c->ring, DMSG_RING_CLIENT_SLEEPING);
	struct epoll_event ev;

	atomic_store(sleeping, 1);
	if (!ring_client_reap(&c->ring)) {
		c->slept++;
		if (epoll_wait(c->ring.completion, &ev, 1, WAIT_MS) != 1) {
			printf("not ok - no ring is forgotten # after %llu transfers\n",
			       (unsigned long long)c->ring.completed);
			exit(1);
		}
	}
	atomic_store_explicit(sleeping, 0, memory_order_relaxed);
}

/* The first never pauses; the others do, each longer than the one before. */
static void *run(void *arg)
{
	struct client *c = arg;
	unsigned pause = c->seed - 1;

	while (c->ring.submitted < c->wanted) {
		unsigned n = 1 + (unsigned)rand_r(&c->seed) % ENTRIES;

		ring_client_submit(&c->ring, &write64, n);
		ring_client_bell(&c->ring);
		while (c->ring.completed < c->ring.submitted) {
			if (rand_r(&c->seed) % 2)
				wait_asleep(c);
			else
				ring_client_reap(&c->ring);
		}
		dray_assert(c->ring.last_status == 0);
		if (pause)
			usleep((useconds_t)rand_r(&c->seed) % (300 * pause));
	}
	return NULL;
}

int main(void)
{
	static const uint64_t wanted[CLIENTS] = { 40000, 8000, 6000, 4000 };
	static struct client clients[CLIENTS];
	uint64_t transfers = 0, slept = 0, bells = 0;
	struct wrig rig;

	wrig_init(&rig, 0, 1 << 16);
	for (unsigned i = 0; i < CLIENTS; i++) {
		struct client *c = &clients[i];

		c->seed = i + 1;
		c->wanted = wanted[i];
		ring_client_open(&c->ring, rig.pool.workers[0], i + 2, ENTRIES);
	}
	for (unsigned i = 0; i < CLIENTS; i++)
		dray_assert(pthread_create(&clients[i].thread, NULL, run, &clients[i]) == 0);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		worker_post(rig.pool.workers[0],
			    &(struct command){ .type = COMMAND_SESSION_CLOSE,
					       .session = clients[i].ring.shared.session,
					       .code = 36 });
		while (wrig_event(&rig).type != EVENT_SESSION_GONE)
			;
		transfers += clients[i].ring.completed;
		slept += clients[i].slept;
		bells += clients[i].ring.bells;
	}
	wrig_deinit(&rig);
	for (unsigned i = 0; i < CLIENTS; i++)
		ring_client_release(&clients[i].ring);
	printf("ok - no ring is forgotten # %llu transfers, %llu sleeps, %llu doorbells\n",
	       (unsigned long long)transfers, (unsigned long long)slept, (unsigned long long)bells);
	return 0;
}
