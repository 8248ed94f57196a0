/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several workers for one large thing. A worker publishes it as a job of a few tasks; it does task by task itself,
 * and every other worker that has nothing of its own to do takes one task in each of its turns. Large copies are such
 * jobs, a slice each (agent/data/transport/local/local.c), and long lists of operations (ops_load.c).
 *
 * A job's word holds its generation, how many tasks it has, and which is next; taking a task is a compare and
 * swap of it. Whoever took one holds the job in its place until it says that it is through with the task, and
 * nobody can take one of a job that its owner has closed. So with all tasks taken or closed, and as many ended
 * as were taken, nobody reads or writes the job's memory any more: the owner's objects, which keep it
 * mapped, are never looked at by anybody else. Nothing here locks or allocates after crew_new(), and nothing blocks but
 * crew_drain().
 *
 * Sleeping is announced as between client and agent (agent/data/worker/ring.c): a helper stores `sleeping`, then looks
 * for jobs; a lender stores a job, then looks who sleeps. All four are sequentially
 * consistent, so one sees the other.
 */
#ifndef DRAY_AGENT_DATA_TRANSFER_CREW_H
#define DRAY_AGENT_DATA_TRANSFER_CREW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/copy.h"

/* Workers of a pool. */
#define CREW_MAX 8
/* Jobs that one worker may have out: so many that helpers find the next when one ends. */
#define CREW_JOBS 8
/* Bytes of a task: how long a helper's own sessions may wait for it, and its owner in the end. */
#define CREW_TASK (128u << 10)
#define CREW_TASKS 16
/* Tasks of any job. */
#define CREW_TASKS_MAX 64
/* A slice that falls into more pieces is not published: it would be more work to list than to copy. */
#define CREW_PIECES 320

struct crew;

struct crew_job {
	_Atomic uint64_t word;   /* generation << 32 | tasks << 16 | next */
	_Atomic uint32_t ended;  /* tasks that were taken and are over */
	_Atomic uintptr_t fault; /* address that could not be reached, 0: none */
	_Atomic int node;        /* of the destination */
	_Atomic unsigned reach;  /* so many workers behind its owner may help */
	/* written by the owner while nobody else can have a task of it */
	uint32_t generation;
	bool open;
	uint16_t n_tasks;
	/* Bytes that it copied between regions. On any worker's thread; holds nothing that a worker has alone. */
	uint64_t (*run)(struct crew_job *j, unsigned task);
	void *arg; /* run()'s */
	/* a copy's */
	bool stream;
	uint16_t first[CREW_TASKS + 1]; /* task i is the pieces from first[i] up to first[i + 1] */
	struct dray_piece pieces[CREW_PIECES];
};

/* --- control thread ------------------------------------------------------------------------------ */

/* helpers: how many may copy for others at a time. 0 or -errno. */
int crew_new(struct crew **ret, unsigned n_workers, unsigned helpers);
/* When no worker runs any more. Returns NULL. */
struct crew *crew_free(struct crew *c);
/* Before its worker starts. wake_fd: eventfd that its loop watches; duplicated. 0 or -errno. */
int crew_join(struct crew *c, unsigned worker, int wake_fd);
/* The NUMA node it runs on from now on, -1: anywhere. */
void crew_place(struct crew *c, unsigned worker, int node);

/* --- a worker that lends out --------------------------------------------------------------------- */

/* One that is not in use, or NULL. The caller says what it is, and publishes it. */
struct crew_job *crew_job(struct crew *c, unsigned worker);
/* n tasks, at most CREW_TASKS_MAX, for so many helpers. arg is borrowed until the job is over. */
void crew_set(struct crew_job *j, unsigned n, unsigned helpers,
	      uint64_t (*run)(struct crew_job *j, unsigned task), void *arg);
/* A copy of the first n of its pieces. */
void crew_set_copy(struct crew_job *j, unsigned n, bool stream);
void crew_publish(struct crew *c, unsigned worker, struct crew_job *j, int node);
/* Wakes helpers that sleep and suit the job, up to `tasks` of them. */
void crew_wake(struct crew *c, unsigned worker, const struct crew_job *j, unsigned tasks);
/* Does one task of the job. False: all are taken. *ret_bytes: that it copied. */
bool crew_work(struct crew_job *j, uint64_t *ret_bytes);
/* True when nobody touches its memory any more. *ret_fault: address, or NULL. */
bool crew_job_over(const struct crew_job *j, const void **ret_fault);
/* No task is given out any more. */
void crew_close(struct crew_job *j);
/* Closes it and waits for those who have a task in hand: each one task, at the speed of its thread. */
void crew_drain(struct crew_job *j);
/* It may be used anew. */
void crew_job_put(struct crew_job *j);
/* Helpers may sleep, if it has no job out any more. */
void crew_rest(struct crew *c, unsigned worker);

/* --- a worker that helps ------------------------------------------------------------------------- */

enum crew_help {
	CREW_NOTHING, /* to do for this worker */
	CREW_STAY,    /* more may come any moment */
	CREW_HELPED,
};

/*
 * Does one task for another worker. *member: it is among those that help, whose number is bounded; the
 * caller keeps it, and gives it back with crew_leave() once it has something better to do.
 */
enum crew_help crew_help(struct crew *c, unsigned worker, bool *member, uint64_t *ret_bytes);
void crew_leave(struct crew *c, bool *member);
/* It is about to sleep, and will be woken where it can help. True: it can now. */
bool crew_sleep(struct crew *c, unsigned worker);
void crew_awake(struct crew *c, unsigned worker);

/*
 * May `worker` help `owner` with a destination on this node? Those of the node, and others where no other worker but the
 * owner is there. nodes: of the n workers, -1: anywhere. Pure.
 */
bool crew_suits(const int *nodes, unsigned n, unsigned owner, unsigned worker, int node);

#endif
