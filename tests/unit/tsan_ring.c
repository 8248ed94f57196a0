/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients, by libdray's own end of the ring, and a real worker that serves them all. Clients submit
 * in bursts, and both sides use each way of waiting in turn, so that every way of waking occurs
 * many times. The first client never pauses before the others have ended. The others pause, each
 * more often than the previous one, so that their rings rest while the worker works for others, and
 * wake up again. A lost wake-up shows as a timeout.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cpu.h"
#include "lib/time.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 64
#define CLIENTS 4
#define TRANSFERS 12000 /* of each client; the first one has more */
#define WAIT_MS 20000
#define SPIN_NS 200000 /* under the sanitizer everything takes ten times as long */

static struct ring_rig rig;
static _Atomic unsigned seldom = CLIENTS - 1; /* number of pausing clients that have not ended */

struct client {
	struct ring_end *end;
	struct dray_linger linger;
	unsigned number, seed;
	pthread_t thread;
	uint64_t completed, spun, slept, polled, paused;
	bool armed;
};

static void submit(struct client *c, unsigned n)
{
	for (; n && ring_end_room(c->end); n--)
		ring_end_put(c->end, &ring_rig_write64);
	ring_end_submit(c->end);
}

static unsigned reap(struct client *c)
{
	unsigned n = ring_end_reap(c->end);

	c->completed += n;
	return n;
}

static void lost(const struct client *c, const char *what)
{
	printf("not ok - no wake-up is lost # client %u, after %llu transfers: %s\n", c->number,
	       (unsigned long long)c->completed, what);
	fflush(stdout);
	_exit(1);
}

static void sleep_once(struct client *c)
{
	struct epoll_event ev;

	if (epoll_wait(ring_end_completion_fd(c->end), &ev, 1, WAIT_MS) != 1)
		lost(c, "no completion");
}

/*
 * Waits for some time, or until the worker needs a doorbell: because the ring rests, or the worker
 * is about to sleep.
 */
static void pause_once(struct client *c)
{
	int64_t ends = dray_now().ns + WAIT_MS * DRAY_NS_PER_MS;

	if (rand_r(&c->seed) % 2) {
		usleep((useconds_t)(rand_r(&c->seed) % 100));
		return;
	}
	c->paused++;
	while (!ring_rig_announced(&rig, c->number)) {
		if (dray_now().ns > ends)
			lost(c, "the ring never rests");
		sched_yield();
	}
}

/*
 * Like dc_engine_wait(): spins while that is useful, then sleeps; the descriptor is armed
 * afterwards.
 */
static void wait_in_library(struct client *c)
{
	ring_end_set_sleeping(c->end, false);
	/* sometimes a full budget, although spinning rarely succeeds on a busy machine */
	if (rand_r(&c->seed) % 4 == 0)
		c->linger.budget_ns = c->linger.max_ns;
	dray_linger_begin(&c->linger);
	while (!ring_end_pending(c->end) && dray_linger_idle(&c->linger, dray_now().ns))
		dray_cpu_relax();
	if (ring_end_pending(c->end)) {
		c->spun++;
	} else {
		c->slept++;
		while (!ring_end_set_sleeping(c->end, true) && !ring_end_pending(c->end))
			sleep_once(c);
		ring_end_set_sleeping(c->end, false);
	}
	dray_linger_worked(&c->linger, dray_now().ns);
	reap(c);
	c->armed = true;
	ring_end_set_sleeping(c->end, true);
}

/* Like a program that polls dray_fd(), which stays armed. */
static void poll_armed(struct client *c)
{
	if (!c->armed) {
		c->armed = true;
		ring_end_set_sleeping(c->end, true);
	}
	c->polled++;
	while (!reap(c))
		sleep_once(c);
}

/* Like dray_poll(). */
static void poll_awake(struct client *c)
{
	c->armed = false;
	ring_end_set_sleeping(c->end, false);
	reap(c);
}

static void *client(void *arg)
{
	struct client *c = arg;

	while (c->completed < TRANSFERS || (!c->number && atomic_load(&seldom))) {
		unsigned way = (unsigned)rand_r(&c->seed) % 8;

		if ((unsigned)rand_r(&c->seed) % 8 < c->number)
			pause_once(c);
		submit(c, 1 + (unsigned)rand_r(&c->seed) % (way < 6 ? 4 : ENTRIES));
		if (way < 4)
			wait_in_library(c);
		else if (way < 6)
			poll_armed(c);
		else
			poll_awake(c);
		while (ring_end_in_flight(c->end) >= ENTRIES)
			wait_in_library(c);
	}
	while (ring_end_in_flight(c->end))
		wait_in_library(c);
	if (c->number)
		atomic_fetch_sub(&seldom, 1);
	return NULL;
}

int main(void)
{
	static struct client clients[CLIENTS];
	uint64_t transfers = 0, spun = 0, slept = 0, polled = 0, paused = 0, received, sent;

	ring_rig_init(&rig, CLIENTS, ENTRIES, SPIN_NS, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i].end = rig.ends[i];
		clients[i].number = i;
		clients[i].seed = i + 5;
		dray_linger_limit(&clients[i].linger, SPIN_NS, SPIN_NS);
		dray_assert(pthread_create(&clients[i].thread, NULL, client, &clients[i]) == 0);
	}
	for (unsigned i = 0; i < CLIENTS; i++) {
		dray_assert(pthread_join(clients[i].thread, NULL) == 0);
		transfers += clients[i].completed;
		spun += clients[i].spun;
		slept += clients[i].slept;
		polled += clients[i].polled;
		paused += clients[i].paused;
	}
	received = worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL];
	sent = worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_SENT_TOTAL];
	ring_rig_deinit(&rig);
	printf("ok - no wake-up is lost # %llu transfers of %d clients: %llu waits spun, %llu slept, "
	       "%llu polled; %llu rests seen; doorbells: %llu to the worker, %llu to clients\n",
	       (unsigned long long)transfers, CLIENTS, (unsigned long long)spun,
	       (unsigned long long)slept, (unsigned long long)polled, (unsigned long long)paused,
	       (unsigned long long)received, (unsigned long long)sent);
	return 0;
}
