/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients, by libdray's own end of the ring, and a real worker that serves them all: submissions in bursts, and
 * each way of waiting on both ends by turns, so that every way of waking is met many times. A lost wake-up shows
 * as a time-out.
 */
#include <pthread.h>
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
#define TRANSFERS 15000 /* of each client */
#define WAIT_MS 20000
#define SPIN_NS 200000 /* under the sanitizer everything takes ten times as long */

struct client {
	struct ring_end *end;
	struct dray_linger linger;
	unsigned seed;
	pthread_t thread;
	uint64_t submitted, completed, spun, slept, polled;
	bool armed;
};

static void submit(struct client *c, unsigned n)
{
	for (; n && ring_end_room(c->end); n--, c->submitted++)
		ring_end_put(c->end, c->submitted, RING_RIG_FROM, RING_RIG_TO,
			     c->submitted % 64 * 64);
	ring_end_submit(c->end);
}

static unsigned reap(struct client *c)
{
	unsigned n = 0;
	uint64_t id;

	while (ring_end_take(c->end, &id)) {
		dray_assert(id < c->submitted);
		n++;
	}
	c->completed += n;
	return n;
}

static void sleep_once(struct client *c)
{
	struct epoll_event ev;

	if (epoll_wait(ring_end_completion_fd(c->end), &ev, 1, WAIT_MS) == 1)
		return;
	printf("not ok - no wake-up is lost # after %llu transfers\n",
	       (unsigned long long)c->completed);
	fflush(stdout);
	_exit(1);
}

/* As dc_engine_wait(): spins for as long as that pays, then sleeps; armed in the end. */
static void wait_in_library(struct client *c)
{
	ring_end_set_sleeping(c->end, false);
	/* a full budget at times, however hopeless it looks on a busy machine */
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

/* As a program that polls dray_fd(), which stays armed all the time. */
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

/* As dray_poll(). */
static void poll_awake(struct client *c)
{
	c->armed = false;
	ring_end_set_sleeping(c->end, false);
	reap(c);
}

static void *client(void *arg)
{
	struct client *c = arg;

	while (c->completed < TRANSFERS) {
		unsigned way = (unsigned)rand_r(&c->seed) % 8;

		submit(c, 1 + (unsigned)rand_r(&c->seed) % (way < 6 ? 4 : ENTRIES));
		/* long enough for the worker to fall asleep now and then */
		if (rand_r(&c->seed) % 8 == 0)
			usleep((useconds_t)(rand_r(&c->seed) % 100));
		if (way < 4)
			wait_in_library(c);
		else if (way < 6)
			poll_armed(c);
		else
			poll_awake(c);
		while (ring_end_in_flight(c->end) >= ENTRIES)
			wait_in_library(c);
	}
	while (c->completed < c->submitted)
		wait_in_library(c);
	return NULL;
}

int main(void)
{
	static struct client clients[CLIENTS];
	static struct ring_rig rig;
	uint64_t spun = 0, slept = 0, polled = 0, received, sent;

	ring_rig_init(&rig, CLIENTS, ENTRIES, SPIN_NS, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i].end = rig.ends[i];
		clients[i].seed = i + 5;
		dray_linger_limit(&clients[i].linger, SPIN_NS);
		dray_assert(pthread_create(&clients[i].thread, NULL, client, &clients[i]) == 0);
	}
	for (unsigned i = 0; i < CLIENTS; i++) {
		dray_assert(pthread_join(clients[i].thread, NULL) == 0);
		spun += clients[i].spun;
		slept += clients[i].slept;
		polled += clients[i].polled;
	}
	received = worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL];
	sent = worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_SENT_TOTAL];
	ring_rig_deinit(&rig);
	printf("ok - no wake-up is lost # %d transfers of %d clients: %llu waits spun, %llu slept, "
	       "%llu polled; doorbells: %llu to the worker, %llu to clients\n",
	       TRANSFERS, CLIENTS, (unsigned long long)spun, (unsigned long long)slept,
	       (unsigned long long)polled, (unsigned long long)received, (unsigned long long)sent);
	return 0;
}
