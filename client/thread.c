/* SPDX-License-Identifier: Apache-2.0 */
#include "client/thread.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/internal.h"

/*
 * Its address tells a thread from others. A library that is loaded late may have only a few bytes in the
 * threads' static blocks, which are reached without a call.
 */
static _Thread_local __attribute__((tls_model("initial-exec"))) char identity;
static _Thread_local struct results results;
static pthread_key_t results_key;
static pthread_once_t results_once = PTHREAD_ONCE_INIT;
static bool results_have_key;

static void results_free(void *p)
{
	struct results *r = p;

	free(r->message);
	free(r->answer);
	free(r->event);
	r->message = NULL;
	r->answer = r->event = NULL;
}

static void results_make_key(void)
{
	results_have_key = pthread_key_create(&results_key, results_free) == 0;
}

struct results *dc_results(void)
{
	return &results;
}

void dc_results_keep(void *slot, void *p)
{
	void **at = slot;

	free(*at);
	*at = p;
	if (!p)
		return;
	pthread_once(&results_once, results_make_key);
	if (results_have_key)
		pthread_setspecific(results_key, &results);
}

int dc_threads_init(struct threads *t)
{
	int error = pthread_mutex_init(&t->mutex, NULL);

	dray_list_init(&t->followers);
	return -error;
}

void dc_threads_deinit(struct threads *t)
{
	pthread_mutex_destroy(&t->mutex);
}

static bool is_holder(const struct threads *t)
{
	return __atomic_load_n(&t->holder, __ATOMIC_RELAXED) == &identity;
}

static void take(struct threads *t)
{
	if (pthread_mutex_trylock(&t->mutex)) {
		__atomic_fetch_add(&t->contenders, 1, __ATOMIC_RELAXED);
		pthread_mutex_lock(&t->mutex);
		__atomic_fetch_sub(&t->contenders, 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&t->holder, &identity, __ATOMIC_RELAXED);
}

bool dc_is_inherited(const struct dray *d)
{
	if (*d->owner && (!d->owner_pid || d->owner_pid == getpid()))
		return false;
	dc_fail(d, DRAY_E_OUT_OF_ORDER,
		"the session belongs to the parent process; open one in the child");
	return true;
}

struct dray *dc_enter(const struct dray *handle)
{
	struct dray *d = (struct dray *)(uintptr_t)handle;

	if (dc_is_inherited(d))
		return NULL;
	if (!is_holder(&d->threads))
		take(&d->threads);
	d->threads.depth++;
	return d;
}

/* Wakes the threads whose conditions hold. */
static void wake_ready(struct dray *d)
{
	struct threads *t = &d->threads;

	t->changed = false;
	if (dray_list_empty(&t->followers) && !t->poller)
		return;
	dray_list_for_each(&t->followers, w, struct waiter, link)
		if (w->ready(d, w->arg))
			pthread_cond_signal(&w->cond);
	if (t->poller && t->poller->ready(d, t->poller->arg))
		dc_engine_wake_poller(d);
}

/* To be called before the mutex is unlocked. */
static void let_go(struct dray *d)
{
	struct threads *t = &d->threads;

	t->depth = 0;
	if (t->changed)
		wake_ready(d);
	__atomic_store_n(&t->holder, NULL, __ATOMIC_RELAXED);
}

void dc_leave(struct dray *d)
{
	if (d->threads.depth > 1)
		d->threads.depth--;
	else
		dc_threads_release(d);
}

uint32_t dc_threads_release(struct dray *d)
{
	uint32_t depth = d->threads.depth;

	let_go(d);
	pthread_mutex_unlock(&d->threads.mutex);
	return depth;
}

void dc_threads_acquire(struct dray *d, uint32_t depth)
{
	take(&d->threads);
	d->threads.depth = depth;
}

int dc_threads_poll(struct dray *d, struct waiter *self, struct epoll_event *ev, int max,
		    int timeout_ms)
{
	uint32_t depth;
	int n;

	d->threads.poller = self;
	depth = dc_threads_release(d);
	n = epoll_wait(d->epoll_fd, ev, max, timeout_ms);
	dc_threads_acquire(d, depth);
	d->threads.poller = NULL;
	return n;
}

/* Of CLOCK_MONOTONIC, which pthread_cond_timedwait() then measures. */
static int cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int error = pthread_condattr_init(&attr);

	if (error)
		return error;
	error = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!error)
		error = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return error;
}

void dc_threads_follow(struct dray *d, struct waiter *self, int64_t until)
{
	struct threads *t = &d->threads;
	struct timespec at = { until / DRAY_NS_PER_SEC, until % DRAY_NS_PER_SEC };
	uint32_t depth = t->depth;

	if (cond_init(&self->cond)) {
		/* without memory: lets the others run, then looks again */
		dc_threads_release(d);
		sched_yield();
		dc_threads_acquire(d, depth);
		return;
	}
	dray_list_add(&t->followers, &self->link);
	let_go(d);
	if (until == INT64_MAX)
		pthread_cond_wait(&self->cond, &t->mutex);
	else
		pthread_cond_timedwait(&self->cond, &t->mutex, &at);
	__atomic_store_n(&t->holder, &identity, __ATOMIC_RELAXED);
	t->depth = depth;
	dray_list_del(&self->link);
	pthread_cond_destroy(&self->cond);
}

void dc_threads_succeed(struct dray *d)
{
	struct waiter *next = dray_list_first(&d->threads.followers, struct waiter, link);

	if (next && !d->threads.poller)
		pthread_cond_signal(&next->cond);
}
