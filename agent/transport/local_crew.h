/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several workers for one large copy. A worker publishes slices as jobs of a few tasks each; it copies task by
 * task itself, and every other worker that has nothing of its own to do takes one task in each of its turns.
 *
 * A job's word holds its generation, how many tasks it has, and which is next; taking a task is a compare and
 * swap of it. Whoever took one holds the job in its place until it says that it is through with the task, and
 * nobody can take one of a job that its owner has closed. So with all tasks taken or closed, and as many ended
 * as were taken, nobody reads or writes that slice's memory any more: the owner's objects, which keep it
 * mapped, are never looked at by anybody else. Nothing here blocks, locks or allocates after crew_new().
 *
 * Sleeping is announced as between client and agent (worker/ring.c): a helper stores `sleeping`, then looks
 * for jobs; a lender stores a job, then looks who sleeps. All four are sequentially
 * consistent, so one sees the other.
 */
#ifndef DRAY_AGENT_TRANSPORT_LOCAL_CREW_H
#define DRAY_AGENT_TRANSPORT_LOCAL_CREW_H

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
/* A slice that falls into more pieces is not published: it would be more work to list than to copy. */
#define CREW_PIECES 320

struct crew;
struct local_walk;

struct crew_job {
	_Atomic uint64_t word;   /* generation << 32 | tasks << 16 | next */
	_Atomic uint32_t ended;  /* tasks that were taken and are over */
	_Atomic uintptr_t fault; /* address that could not be reached, 0: none */
	_Atomic int node;        /* of the destination */
	/* written by the owner while nobody else can have a task of it */
	uint32_t generation;
	bool open, stream;
	uint16_t n_tasks;
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

/* One that is not in use, or NULL. The caller fills it (crew_fill), and publishes it. */
struct crew_job *crew_job(struct crew *c, unsigned worker);
/* Lists what the walk gives, all of it. False: it falls into too many pieces, and the job is not in use. */
bool crew_fill(struct crew_job *j, struct local_walk *w, bool stream);
void crew_publish(struct crew *c, unsigned worker, struct crew_job *j, int node);
/* Wakes helpers that sleep and suit jobs of this node, up to `tasks` of them. */
void crew_wake(struct crew *c, unsigned worker, int node, unsigned tasks);
/* Copies one task of the job. Bytes; 0: all are taken. */
uint64_t crew_copy(struct crew_job *j);
/* True when nobody touches its memory any more. *ret_fault: address, or NULL. */
bool crew_job_over(const struct crew_job *j, const void **ret_fault);
/* No task is given out any more. */
void crew_close(struct crew_job *j);
/* Closes it and waits for those who have a task in hand: each one task, at the speed of its thread. */
void crew_drain(struct crew_job *j);
/* It may be used anew. */
void crew_job_put(struct crew_job *j);
/* It has no job out any more; helpers may sleep. */
void crew_rest(struct crew *c, unsigned worker);

/* --- a worker that helps ------------------------------------------------------------------------- */

enum crew_help {
	CREW_NOTHING, /* to do for this worker */
	CREW_STAY,    /* more may come any moment */
	CREW_HELPED,
};

/*
 * Copies one task for another worker. *member: it is among those that help, whose number is bounded; the
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
