/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several workers share one large job. The owner publishes the job, cut into tasks, and works through it task by task. Every
 * other worker without work of its own takes one task in each of its turns. Large copies are jobs, one for each slice
 * (transport/local/local.c), and so are long lists of operations (ops_load.c).
 *
 * The word of a job holds its generation, the number of its tasks, and the next task. A worker takes a task by one
 * compare-and-swap of that word, and counts the task as ended when it is done with it. Nobody can take a task of a closed job.
 * So when all tasks are taken or closed, and as many have ended as were taken, no other worker touches the job's
 * memory. Helpers never look at the owner's objects, which keep that memory mapped. Nothing here locks, nothing
 * allocates after workshare_new(), and only workshare_drain() waits.
 *
 * A helper that goes to sleep stores `sleeping`, then looks for jobs; an owner stores a job, then looks for sleepers. All four
 * accesses are sequentially consistent, so at least one side sees the other.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/copy.h"

/* Workers of a pool. */
#define WORKSHARE_MAX 8
/* Jobs that one worker may have published: enough for helpers to find the next one when one ends. */
#define WORKSHARE_JOBS 8
/* Bytes of a task. A helper's own sessions, and at the end its owner, wait for the copy of one task. */
#define WORKSHARE_TASK (128u << 10)
#define WORKSHARE_TASKS 16
/* Tasks of any job, at most. */
#define WORKSHARE_TASKS_MAX 64
/* A slice of more pieces is not published, because listing the pieces costs more than copying them. */
#define WORKSHARE_PIECES 320

struct workshare;

struct workshare_job {
	_Atomic uint64_t word;   /* generation << 32 | tasks << 16 | next */
	_Atomic uint32_t ended;  /* tasks that were taken and are done */
	_Atomic uintptr_t fault; /* address of a missing page, 0: none */
	_Atomic int node;        /* of the destination */
	_Atomic unsigned reach;  /* number of workers after the owner that may help */
	/* written by the owner while no other worker can hold a task */
	uint32_t generation;
	bool open;
	uint16_t n_tasks;
	/* Returns the bytes that it copied between regions. Runs on any worker's thread and uses no state of a worker. */
	uint64_t (*run)(struct workshare_job *j, unsigned task);
	void *arg; /* run()'s */
	/* of a copy */
	bool stream;
	/* task i is the pieces from first[i] up to first[i + 1] */
	uint16_t first[WORKSHARE_TASKS + 1];
	struct dray_piece pieces[WORKSHARE_PIECES];
};

/* Control thread. helpers: workers that may help at the same time, at most. 0 or -errno. */
int workshare_new(struct workshare **ret, unsigned n_workers, unsigned helpers);
/* After all workers have ended. Returns NULL. */
struct workshare *workshare_free(struct workshare *c);
/* Control thread, before the worker starts. wake_fd: eventfd that the worker's loop watches; duplicated. 0 or -errno. */
int workshare_join(struct workshare *c, unsigned worker, int wake_fd);
/* Control thread. The NUMA node that the worker runs on from now on, -1: any. */
void workshare_place(struct workshare *c, unsigned worker, int node);

/* The owner: a job that is not in use, or NULL. The caller fills it in and publishes it. */
struct workshare_job *workshare_job(struct workshare *c, unsigned worker);
/* n tasks, at most WORKSHARE_TASKS_MAX, for that many helpers. arg is borrowed until the job is over. */
void workshare_set(struct workshare_job *j, unsigned n, unsigned helpers,
		   uint64_t (*run)(struct workshare_job *j, unsigned task), void *arg);
/* Makes the job a copy of its first n pieces. */
void workshare_set_copy(struct workshare_job *j, unsigned n, bool stream);
void workshare_publish(struct workshare *c, unsigned worker, struct workshare_job *j, int node);
/* Wakes up to `tasks` sleeping workers that suit the job. */
void workshare_wake(struct workshare *c, unsigned worker, const struct workshare_job *j,
		    unsigned tasks);
/* Does one task of the job. False: all tasks are taken. *ret_bytes: bytes that it copied. */
bool workshare_work(struct workshare_job *j, uint64_t *ret_bytes);
/* True when no worker touches the job's memory any more. *ret_fault: address of a missing page, or NULL. */
bool workshare_job_over(const struct workshare_job *j, const void **ret_fault);
/* Closes the job and waits for the helpers that hold a task. Blocks for as long as one task of each takes. */
void workshare_drain(struct workshare_job *j);
/* The job may be used again. */
void workshare_job_put(struct workshare_job *j);
/* If this worker has no published job left, helpers may sleep. */
void workshare_rest(struct workshare *c, unsigned worker);

enum workshare_help {
	WORKSHARE_NOTHING, /* no task for this worker */
	WORKSHARE_STAY,    /* no task now, but the owner may publish more */
	WORKSHARE_HELPED,
};

/*
 * Does one task for another worker. *member says that this worker is counted as a helper; the number of helpers is
 * bounded. The caller keeps *member and ends the membership with workshare_leave() when it has work of its own.
 */
enum workshare_help workshare_help(struct workshare *c, unsigned worker, bool *member,
				   uint64_t *ret_bytes);
void workshare_leave(struct workshare *c, bool *member);
/* The worker is about to sleep and will be woken for a job that it suits. True: there is such a job now. */
bool workshare_sleep(struct workshare *c, unsigned worker);
void workshare_awake(struct workshare *c, unsigned worker);
/* The number of workers, and how many may help at the same time, at most. */
unsigned workshare_workers(const struct workshare *c);
unsigned workshare_helpers(const struct workshare *c);
/* Any worker: wakes this one if it sleeps or is about to: true. It sees what the caller has stored before with sequential consistency. */
bool workshare_call(struct workshare *c, unsigned worker);
