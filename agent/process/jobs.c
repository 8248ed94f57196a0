/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/patience.h"

#define STACK_BYTES (256ul << 10)
#define FREE_LIMIT_NS ((int64_t)DRAY_NS_PER_SEC)

struct jobs {
	pthread_t thread;
	sd_event_source *source;
	int done_fd;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t wake;
	struct dray_list todo, done;
	bool quit, ended, abandoned;
};

static void finish_locked(struct jobs *js, struct job *j)
{
	uint64_t one = 1;

	dray_list_add(&js->done, &j->link);
	/* a full counter means that the control thread has not looked yet */
	if (write(js->done_fd, &one, sizeof(one)) < 0)
		return;
}

static void jobs_destroy(struct jobs *js)
{
	pthread_cond_destroy(&js->wake);
	pthread_mutex_destroy(&js->lock);
	dray_close(js->done_fd);
	free(js);
}

static void *jobs_main(void *arg)
{
	struct jobs *js = arg;
	bool abandoned;

	pthread_mutex_lock(&js->lock);
	for (;;) {
		struct job *j = dray_list_first(&js->todo, struct job, link);

		if (!j && js->quit)
			break;
		if (!j) {
			pthread_cond_wait(&js->wake, &js->lock);
			continue;
		}
		dray_list_del(&j->link);
		pthread_mutex_unlock(&js->lock);
		j->run(j);
		pthread_mutex_lock(&js->lock);
		finish_locked(js, j);
	}
	js->ended = true;
	abandoned = js->abandoned;
	pthread_cond_broadcast(&js->wake);
	pthread_mutex_unlock(&js->lock);
	if (abandoned)
		jobs_destroy(js);
	return NULL;
}

static int handle_done(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct jobs *js = arg;
	struct job *j;
	uint64_t n;

	(void)source;
	(void)events;
	if (read(fd, &n, sizeof(n)) < 0)
		return 0;
	pthread_mutex_lock(&js->lock);
	dray_list_splice(&now, &js->done);
	pthread_mutex_unlock(&js->lock);
	while ((j = dray_list_first(&now, struct job, link))) {
		dray_list_del(&j->link);
		j->done(j);
	}
	return 0;
}

/* Signals are the control thread's. */
static int start(struct jobs *js, const char *name, size_t stack)
{
	pthread_attr_t attr;
	sigset_t all, former;
	int r = pthread_attr_init(&attr);

	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, stack ? stack : STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &former);
	r = pthread_create(&js->thread, &attr, jobs_main, js);
	pthread_sigmask(SIG_SETMASK, &former, NULL);
	pthread_attr_destroy(&attr);
	if (!r)
		pthread_setname_np(js->thread, name);
	return -r;
}

int jobs_new(struct jobs **ret, sd_event *event, const char *name, size_t stack)
{
	struct jobs *js = calloc(1, sizeof(*js));
	pthread_condattr_t attr;
	int r;

	if (!js)
		return -ENOMEM;
	dray_list_init(&js->todo);
	dray_list_init(&js->done);
	pthread_mutex_init(&js->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&js->wake, &attr);
	pthread_condattr_destroy(&attr);
	js->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = js->done_fd < 0 ? -errno : 0;
	if (r >= 0)
		r = sd_event_add_io(event, &js->source, js->done_fd, EPOLLIN, handle_done, js);
	if (r >= 0)
		r = start(js, name, stack);
	if (r < 0) {
		sd_event_source_disable_unref(js->source);
		jobs_destroy(js);
		return r;
	}
	*ret = js;
	return 0;
}

void jobs_add(struct jobs *js, struct job *j, void (*run)(struct job *j),
	      void (*done)(struct job *j))
{
	*j = (struct job){ .run = run, .done = done };
	dray_list_init(&j->link);
	pthread_mutex_lock(&js->lock);
	dray_list_add(&js->todo, &j->link);
	pthread_cond_broadcast(&js->wake);
	pthread_mutex_unlock(&js->lock);
}

void jobs_finish(struct jobs *js, struct job *j, void (*done)(struct job *j))
{
	*j = (struct job){ .done = done };
	dray_list_init(&j->link);
	pthread_mutex_lock(&js->lock);
	finish_locked(js, j);
	pthread_mutex_unlock(&js->lock);
}

bool jobs_free(struct jobs *js)
{
	bool ended;

	if (!js)
		return true;
	sd_event_source_disable_unref(js->source);
	pthread_mutex_lock(&js->lock);
	js->quit = true;
	pthread_cond_broadcast(&js->wake);
	ended = dray_patience_await(&js->ended, &js->wake, &js->lock, FREE_LIMIT_NS);
	js->abandoned = !ended;
	if (!ended)
		pthread_detach(js->thread);
	pthread_mutex_unlock(&js->lock);
	if (ended) {
		pthread_join(js->thread, NULL);
		jobs_destroy(js);
	}
	return ended;
}
