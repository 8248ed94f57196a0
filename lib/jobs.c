/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jobs.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/thread.h"
#include "lib/timeout.h"
#include "lib/wake.h"

#define FREE_LIMIT_NS ((int64_t)DRAY_NS_PER_SEC)

static void finish_locked(struct dray_jobs *js, struct dray_job *j)
{
	dray_list_add(&js->done, &j->link);
	dray_wake(js->done_fd);
}

static void destroy(struct dray_jobs *js)
{
	pthread_cond_destroy(&js->wake);
	pthread_mutex_destroy(&js->lock);
	dray_close(js->done_fd);
	free(js);
}

static void run_locked(struct dray_jobs *js, struct dray_job *j)
{
	bool deliver = j->done;

	dray_list_del(&j->link);
	pthread_mutex_unlock(&js->lock);
	j->run(j);
	pthread_mutex_lock(&js->lock);
	if (deliver)
		finish_locked(js, j);
}

static void *jobs_main(void *arg)
{
	struct dray_jobs *js = arg;
	struct dray_job *j;
	bool abandoned;

	if (js->begin)
		js->begin();
	pthread_mutex_lock(&js->lock);
	while ((j = dray_list_first(&js->todo, struct dray_job, link)) || !js->quit) {
		if (j)
			run_locked(js, j);
		else
			pthread_cond_wait(&js->wake, &js->lock);
	}
	js->ended = true;
	abandoned = js->abandoned;
	pthread_cond_broadcast(&js->wake);
	pthread_mutex_unlock(&js->lock);
	if (abandoned)
		destroy(js);
	return NULL;
}

int dray_jobs_new(struct dray_jobs **ret, const char *name, size_t stack, void (*begin)(void))
{
	struct dray_jobs *js = calloc(1, sizeof(*js));
	pthread_condattr_t attr;
	int r;

	if (!js)
		return -ENOMEM;
	js->begin = begin;
	dray_list_init(&js->todo);
	dray_list_init(&js->done);
	pthread_mutex_init(&js->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&js->wake, &attr);
	pthread_condattr_destroy(&attr);
	js->done_fd = dray_wake_new();
	r = dray_min(js->done_fd, 0);
	if (r >= 0)
		r = dray_thread_start(&js->thread, name, stack, jobs_main, js);
	if (r < 0) {
		destroy(js);
		return r;
	}
	*ret = js;
	return 0;
}

void dray_jobs_add(struct dray_jobs *js, struct dray_job *j, void (*run)(struct dray_job *j),
		   void (*done)(struct dray_job *j))
{
	*j = (struct dray_job){ .run = run, .done = done };
	pthread_mutex_lock(&js->lock);
	dray_list_add(&js->todo, &j->link);
	pthread_cond_broadcast(&js->wake);
	pthread_mutex_unlock(&js->lock);
}

void dray_jobs_finish(struct dray_jobs *js, struct dray_job *j, void (*done)(struct dray_job *j))
{
	*j = (struct dray_job){ .done = done };
	pthread_mutex_lock(&js->lock);
	finish_locked(js, j);
	pthread_mutex_unlock(&js->lock);
}

void dray_jobs_deliver(struct dray_jobs *js)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct dray_job *j;

	pthread_mutex_lock(&js->lock);
	/* under the lock, so that done_fd is not readable for a job that is taken here */
	dray_wake_clear(js->done_fd);
	dray_list_splice(&now, &js->done);
	pthread_mutex_unlock(&js->lock);
	while ((j = dray_list_pop(&now, struct dray_job, link)))
		j->done(j);
}

bool dray_jobs_free(struct dray_jobs *js)
{
	bool ended;

	if (!js)
		return true;
	pthread_mutex_lock(&js->lock);
	js->quit = true;
	pthread_cond_broadcast(&js->wake);
	ended = dray_timeout_await(&js->ended, &js->wake, &js->lock, FREE_LIMIT_NS);
	js->abandoned = !ended;
	if (!ended)
		pthread_detach(js->thread);
	pthread_mutex_unlock(&js->lock);
	if (ended) {
		pthread_join(js->thread, NULL);
		destroy(js);
	}
	return ended;
}

void dray_jobs_leave(struct dray_jobs *js)
{
	if (!js)
		return;
	pthread_mutex_lock(&js->lock);
	js->quit = js->abandoned = true;
	js->done_fd = dray_close(js->done_fd);
	pthread_detach(js->thread);
	pthread_cond_broadcast(&js->wake);
	pthread_mutex_unlock(&js->lock);
}
