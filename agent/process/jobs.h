/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for calls that may block. Jobs run there in order; what is to be done with a job's result runs on
 * the control thread, in the order in which jobs ended.
 */
#ifndef DRAY_AGENT_PROCESS_JOBS_H
#define DRAY_AGENT_PROCESS_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <systemd/sd-event.h>

#include "lib/list.h"

struct jobs;

/* Embedded in what it works for, which stays while the job is under way. */
struct job {
	struct dray_list link;
	void (*run)(struct job *j);  /* the thread */
	void (*done)(struct job *j); /* control thread; may free the job, or add it again */
};

/* name: of the thread. stack: its bytes; 0: 256 KiB, enough for what is mostly system calls. 0 or -errno. */
int jobs_new(struct jobs **ret, sd_event *event, const char *name, size_t stack);

/* Control thread. */
void jobs_add(struct jobs *js, struct job *j, void (*run)(struct job *j),
	      void (*done)(struct job *j));

/* Any thread: done() alone will run. */
void jobs_finish(struct jobs *js, struct job *j, void (*done)(struct job *j));

/*
 * Finishes what is queued, without calling done(); waits no longer than a second for it. NULL is allowed.
 * False: a job goes on after that, with what it has; its thread ends by itself.
 */
bool jobs_free(struct jobs *js);

#endif
