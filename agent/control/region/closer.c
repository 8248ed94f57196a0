/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/closer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "agent/process/privilege.h"
#include "lib/cleanup.h"
#include "lib/list.h"
#include "lib/patience.h"

#define STACK_BYTES (128 << 10)
#define FREE_LIMIT_NS ((int64_t)DRAY_NS_PER_SEC)

struct job {
	struct dray_list link;
	void *p; /* NULL: nothing to unmap */
	uint64_t bytes;
	int fd;
};

struct closer {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct dray_list jobs;
	bool quit;
	bool abandoned; /* nobody will join: the thread frees */
	bool ended;
};

static void job_run(const struct job *j)
{
	if (j->p)
		munmap(j->p, j->bytes);
	dray_close(j->fd);
}

static void closer_destroy(struct closer *c)
{
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static void *closer_main(void *arg)
{
	struct closer *c = arg;
	bool abandoned;

	privilege_drop();
	pthread_mutex_lock(&c->lock);
	for (;;) {
		struct job *j = dray_list_first(&c->jobs, struct job, link);

		if (!j) {
			if (c->quit)
				break;
			pthread_cond_wait(&c->wake, &c->lock);
			continue;
		}
		dray_list_del(&j->link);
		pthread_mutex_unlock(&c->lock);
		job_run(j);
		free(j);
		pthread_mutex_lock(&c->lock);
	}
	c->ended = true;
	abandoned = c->abandoned;
	pthread_cond_broadcast(&c->wake);
	pthread_mutex_unlock(&c->lock);
	if (abandoned)
		closer_destroy(c);
	return NULL;
}

/* No signal is meant for this thread; its stack holds nothing but system calls. */
static int closer_start(struct closer *c)
{
	pthread_attr_t attr;
	sigset_t all, former;
	int r;

	r = pthread_attr_init(&attr);
	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &former);
	r = pthread_create(&c->thread, &attr, closer_main, c);
	pthread_sigmask(SIG_SETMASK, &former, NULL);
	pthread_attr_destroy(&attr);
	if (!r)
		pthread_setname_np(c->thread, "dray-closer");
	return -r;
}

int closer_new(struct closer **ret)
{
	struct closer *c = calloc(1, sizeof(*c));
	pthread_condattr_t attr;
	int r;

	if (!c)
		return -ENOMEM;
	dray_list_init(&c->jobs);
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &attr);
	pthread_condattr_destroy(&attr);
	r = closer_start(c);
	if (r < 0) {
		closer_destroy(c);
		return r;
	}
	*ret = c;
	return 0;
}

struct closer *closer_free(struct closer *c)
{
	bool ended;

	if (!c)
		return NULL;
	pthread_mutex_lock(&c->lock);
	c->quit = true;
	pthread_cond_broadcast(&c->wake);
	ended = dray_patience_await(&c->ended, &c->wake, &c->lock, FREE_LIMIT_NS);
	c->abandoned = !ended;
	if (!ended)
		pthread_detach(c->thread);
	pthread_mutex_unlock(&c->lock);
	if (ended) {
		pthread_join(c->thread, NULL);
		closer_destroy(c);
	}
	return NULL;
}

static void closer_add(struct closer *c, const struct job *job)
{
	struct job *j = malloc(sizeof(*j));

	if (!j) {
		job_run(job);
		return;
	}
	*j = *job;
	pthread_mutex_lock(&c->lock);
	dray_list_add(&c->jobs, &j->link);
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

void closer_close(struct closer *c, int fd)
{
	if (fd >= 0)
		closer_add(c, &(struct job){ .fd = fd });
}

void closer_unmap(struct closer *c, void *p, uint64_t bytes, int fd)
{
	closer_add(c, &(struct job){ .p = p, .bytes = bytes, .fd = fd });
}
