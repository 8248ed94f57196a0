/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one handle. Each public function holds the handle's lock, which one thread can take
 * several times, because functions that block call functions that do not. A thread that sleeps gives
 * the lock back: one thread, the poller, sleeps in epoll; the others sleep as followers, each with
 * a condition variable, and are woken when what they wait for is there, or when the poller leaves.
 *
 * Results that a function returns by pointer belong to the thread, until its next call.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "client/dray.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/list.h"

typedef bool (*engine_ready_fn)(struct dray *d, const void *arg);

struct waiter {
	struct dray_list link;
	pthread_cond_t cond;
	engine_ready_fn ready;
	const void *arg;
};

struct threads {
	pthread_mutex_t mutex;
	const void *holder;  /* identity of the thread that holds the mutex; NULL: none */
	uint32_t depth;      /* how often it holds it */
	uint32_t contenders; /* threads that wait for the mutex */
	bool changed;        /* since the followers' conditions were checked */
	struct waiter *poller;
	struct dray_list followers;
};

int dc_threads_init(struct threads *t);
void dc_threads_deinit(struct threads *t);

/* True in a forked child, where the handle must not be used; the thread's error is set then. */
bool dc_is_inherited(const struct dray *d);

/*
 * First call of every public function: takes the lock. NULL if dc_is_inherited().
 */
struct dray *dc_enter(const struct dray *d);

/* The end of what dc_enter() began; d may be NULL. */
void dc_leave(struct dray *d);
DRAY_DEFINE_CLEANUP(struct dray *, dc_leave);

/* True while other threads wait for the lock. */
static inline bool dc_threads_contend(const struct threads *t)
{
	return __atomic_load_n(&t->contenders, __ATOMIC_RELAXED);
}

/* Gives the lock back altogether, and takes it again. */
uint32_t dc_threads_release(struct dray *d);
void dc_threads_acquire(struct dray *d, uint32_t depth);

/*
 * Sleeps in epoll_wait() as the poller, or, if there is one, as a follower until ready() holds, the
 * poller leaves or `until` is over. Returns the number of events in ev.
 */
int dc_threads_poll(struct dray *d, struct waiter *self, struct epoll_event *ev, int max,
		    int timeout_ms);
void dc_threads_follow(struct dray *d, struct waiter *self, int64_t until);

/* The poller leaves for good: a follower takes its place. */
void dc_threads_succeed(struct dray *d);

/* What the last calls of this thread returned. */
struct results {
	struct dray_err error;
	uint64_t serial, losses; /* of the handle, when the error was set */
	char *message;
	void *answer;
	void *event;
	char segment[257], version[65], no_ring[257];
};

struct results *dc_results(void);

/* Keeps p, which was allocated by malloc(), in *slot of the results, and frees what was there. */
void dc_results_keep(void *slot, void *p);
