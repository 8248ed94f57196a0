/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for calls that may block, with a queue of jobs. Jobs run in order. A job that ended is delivered to the owner of
 * the queue, who polls done_fd. A job is embedded in the object it works for and queued once at a time, so
 * the number of these objects bounds the queue.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/list.h"

struct dray_job {
	struct dray_list link;
	void (*run)(struct dray_job *j); /* on the queue's thread */
	/* on the owner's thread; may free the job or add it again. NULL: not delivered, so run() may free the job. */
	void (*done)(struct dray_job *j);
};

struct dray_jobs {
	int done_fd; /* readable when jobs wait for dray_jobs_deliver() */
	void *watch; /* the owner's: what watches done_fd */
	void (*begin)(void);
	pthread_t thread;
	pthread_mutex_t lock; /* of the members below */
	pthread_cond_t wake;
	struct dray_list todo, done;
	bool quit, ended, abandoned;
};

/* begin: called by the thread before the first job; may be NULL. name and stack: as for dray_thread_start(). 0 or -errno. */
int dray_jobs_new(struct dray_jobs **ret, const char *name, size_t stack, void (*begin)(void));

/* The job must stay where it is until it is delivered. */
void dray_jobs_add(struct dray_jobs *js, struct dray_job *j, void (*run)(struct dray_job *j),
		   void (*done)(struct dray_job *j));

/* Delivers the job without running anything. Any thread. */
void dray_jobs_finish(struct dray_jobs *js, struct dray_job *j, void (*done)(struct dray_job *j));

/* Calls done() of the jobs that have ended, in the order in which they ended. */
void dray_jobs_deliver(struct dray_jobs *js);

/*
 * Runs the jobs in the queue without delivering them, but waits no longer than a second for them. NULL is allowed. False: a job
 * still runs, and uses what it was given; the thread ends by itself after it.
 */
bool dray_jobs_free(struct dray_jobs *js);

/* Ends the thread after the jobs in the queue, without waiting for it. No job is delivered any more. NULL is allowed. */
void dray_jobs_leave(struct dray_jobs *js);
