/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/workshare.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/fault.h"
#include "lib/wake.h"

#define LINE 64
/* A task takes microseconds. After this many looks its thread is probably descheduled, and this one yields. */
#define DRAIN_LOOKS 2000

/* Fields that other workers read have cache lines of their own. */
struct seat {
	_Alignas(LINE) _Atomic bool lends; /* it has published jobs, or is about to */
	_Atomic bool sleeping;
	_Atomic int node;
	int wake_fd;
	_Alignas(LINE) struct workshare_job jobs[WORKSHARE_JOBS];
};

struct workshare {
	unsigned n;       /* seats */
	unsigned helpers; /* at the same time, at most */
	_Alignas(LINE) _Atomic unsigned lenders;
	_Alignas(LINE) _Atomic unsigned helping;
	struct seat seats[];
};

static unsigned word_next(uint64_t w)
{
	return w & 0xffff;
}

static unsigned word_tasks(uint64_t w)
{
	return w >> 16 & 0xffff;
}

int workshare_new(struct workshare **ret, unsigned n_workers, unsigned helpers)
{
	size_t bytes = sizeof(struct workshare) + n_workers * sizeof(struct seat);
	struct workshare *c;

	dray_assert(n_workers <= WORKSHARE_MAX);
	/* not zeroed: pages of jobs that are never used stay unallocated */
	c = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
	if (!c)
		return -ENOMEM;
	*c = (struct workshare){ .n = n_workers, .helpers = helpers };
	for (unsigned i = 0; i < n_workers; i++) {
		struct seat *s = &c->seats[i];

		s->wake_fd = -1;
		atomic_init(&s->lends, false);
		atomic_init(&s->sleeping, false);
		atomic_init(&s->node, -1);
		for (unsigned k = 0; k < WORKSHARE_JOBS; k++) {
			atomic_init(&s->jobs[k].word, 0);
			s->jobs[k].generation = 0;
			s->jobs[k].open = false;
		}
	}
	*ret = c;
	return 0;
}

struct workshare *workshare_free(struct workshare *c)
{
	if (!c)
		return NULL;
	for (unsigned i = 0; i < c->n; i++)
		dray_close(c->seats[i].wake_fd);
	free(c);
	return NULL;
}

int workshare_join(struct workshare *c, unsigned worker, int wake_fd)
{
	/* a duplicate, because a worker may be woken while it ends */
	c->seats[worker].wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 3);
	return c->seats[worker].wake_fd < 0 ? -errno : 0;
}

void workshare_place(struct workshare *c, unsigned worker, int node)
{
	atomic_store_explicit(&c->seats[worker].node, node, memory_order_relaxed);
}

static int node_of(const struct workshare *c, unsigned worker)
{
	return atomic_load_explicit(&c->seats[worker].node, memory_order_relaxed);
}

/*
 * May `worker` help `owner` with this job? Workers of the destination's node may; others may if the node has no worker
 * besides the owner.
 */
static bool suits(const struct workshare *c, unsigned owner, unsigned worker,
		  const struct workshare_job *j)
{
	int node = atomic_load_explicit(&j->node, memory_order_relaxed), own = node_of(c, worker);

	if ((worker + c->n - owner) % c->n > atomic_load_explicit(&j->reach, memory_order_relaxed))
		return false;
	if (node < 0 || own < 0 || own == node)
		return true;
	for (unsigned i = 0; i < c->n; i++)
		if (i != owner && node_of(c, i) == node)
			return false;
	return true;
}

struct workshare_job *workshare_job(struct workshare *c, unsigned worker)
{
	for (unsigned i = 0; i < WORKSHARE_JOBS; i++)
		if (!c->seats[worker].jobs[i].open)
			return &c->seats[worker].jobs[i];
	return NULL;
}

static uint64_t copy_task(struct workshare_job *j, unsigned task)
{
	const struct dray_piece *v = &j->pieces[j->first[task]];
	unsigned n = (unsigned)(j->first[task + 1] - j->first[task]);
	const void *address = NULL;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		bytes += v[i].bytes;
	/* after one fault the copy has failed: the other tasks only count their bytes */
	if (!atomic_load_explicit(&j->fault, memory_order_relaxed) &&
	    fault_copy_pieces(v, n, j->stream, &address) < 0)
		atomic_store_explicit(&j->fault, (uintptr_t)address, memory_order_relaxed);
	return bytes;
}

void workshare_set(struct workshare_job *j, unsigned n, unsigned helpers,
		   uint64_t (*run)(struct workshare_job *j, unsigned task), void *arg)
{
	dray_assert(n && n <= WORKSHARE_TASKS_MAX);
	j->n_tasks = (uint16_t)n;
	atomic_store_explicit(&j->reach, helpers, memory_order_relaxed);
	j->run = run;
	j->arg = arg;
}

void workshare_set_copy(struct workshare_job *j, unsigned n, bool stream)
{
	uint64_t bytes = 0;

	j->n_tasks = 0;
	j->first[0] = 0;
	for (unsigned i = 0; i < n; i++) {
		bytes += j->pieces[i].bytes;
		/* the last task takes all remaining pieces */
		if (i + 1 < n && (bytes < WORKSHARE_TASK || j->n_tasks + 1 == WORKSHARE_TASKS))
			continue;
		j->first[++j->n_tasks] = (uint16_t)(i + 1);
		bytes = 0;
	}
	j->stream = stream;
	workshare_set(j, j->n_tasks, WORKSHARE_MAX, copy_task, NULL);
}

void workshare_publish(struct workshare *c, unsigned worker, struct workshare_job *j, int node)
{
	struct seat *s = &c->seats[worker];

	j->open = true;
	j->generation++;
	atomic_store_explicit(&j->ended, 0, memory_order_relaxed);
	atomic_store_explicit(&j->fault, 0, memory_order_relaxed);
	atomic_store_explicit(&j->node, node, memory_order_relaxed);
	/* after the list is complete, and before workshare_wake() looks for sleepers (sequentially consistent) */
	atomic_store_explicit(&j->word, (uint64_t)j->generation << 32 | (uint64_t)j->n_tasks << 16,
			      memory_order_seq_cst);
	if (!atomic_load_explicit(&s->lends, memory_order_relaxed)) {
		atomic_store_explicit(&s->lends, true, memory_order_relaxed);
		atomic_fetch_add_explicit(&c->lenders, 1, memory_order_seq_cst);
	}
}

unsigned workshare_helpers(const struct workshare *c)
{
	return c->helpers;
}

unsigned workshare_workers(const struct workshare *c)
{
	return c->n;
}

bool workshare_call(struct workshare *c, unsigned worker)
{
	struct seat *s = &c->seats[worker];
	bool sleeps = atomic_load_explicit(&s->sleeping, memory_order_seq_cst) &&
		      atomic_exchange_explicit(&s->sleeping, false, memory_order_acq_rel);

	if (sleeps)
		dray_wake(s->wake_fd);
	return sleeps;
}

void workshare_wake(struct workshare *c, unsigned worker, const struct workshare_job *j,
		    unsigned tasks)
{
	unsigned left = dray_min(tasks, c->helpers);

	for (unsigned k = 1; k < c->n && left; k++) {
		unsigned i = (worker + k) % c->n;

		if (suits(c, worker, i, j) && workshare_call(c, i))
			left--;
	}
}

/* The next task of a job whose word was w. -1: there is none, or another worker took it. */
static int take(struct workshare_job *j, uint64_t w)
{
	if (word_next(w) >= word_tasks(w))
		return -1;
	/* acquire: sees the list that was published with this generation */
	if (!atomic_compare_exchange_strong_explicit(&j->word, &w, w + 1, memory_order_acquire,
						     memory_order_relaxed))
		return -1;
	return (int)word_next(w);
}

static uint64_t run(struct workshare_job *j, int task)
{
	uint64_t bytes = j->run(j, (unsigned)task);

	/* release: its bytes are in place, and it no longer reads the job's memory */
	atomic_fetch_add_explicit(&j->ended, 1, memory_order_release);
	return bytes;
}

bool workshare_work(struct workshare_job *j, uint64_t *ret_bytes)
{
	*ret_bytes = 0;
	for (;;) {
		uint64_t w = atomic_load_explicit(&j->word, memory_order_relaxed);
		int task = take(j, w);

		if (task >= 0) {
			*ret_bytes = run(j, task);
			return true;
		}
		if (word_next(w) >= word_tasks(w))
			return false;
	}
}

bool workshare_job_over(const struct workshare_job *j, const void **ret_fault)
{
	uint64_t w = atomic_load_explicit(&j->word, memory_order_relaxed);

	/* acquire: sees what the helpers have copied */
	if (word_next(w) < word_tasks(w) ||
	    atomic_load_explicit(&j->ended, memory_order_acquire) != word_tasks(w))
		return false;
	*ret_fault = (const void *)atomic_load_explicit(&j->fault, memory_order_relaxed);
	return true;
}

/* Reduces the number of tasks to those that were taken. */
static void workshare_close(struct workshare_job *j)
{
	uint64_t w = atomic_load_explicit(&j->word, memory_order_relaxed);

	while (!atomic_compare_exchange_weak_explicit(
		&j->word, &w, (w & ~(uint64_t)0xffff0000) | (uint64_t)word_next(w) << 16,
		memory_order_relaxed, memory_order_relaxed))
		;
}

void workshare_drain(struct workshare_job *j)
{
	const void *fault;

	workshare_close(j);
	for (unsigned looks = 0; !workshare_job_over(j, &fault); looks++) {
		if (looks < DRAIN_LOOKS)
			dray_cpu_relax();
		else
			sched_yield();
	}
}

void workshare_job_put(struct workshare_job *j)
{
	j->open = false;
}

void workshare_rest(struct workshare *c, unsigned worker)
{
	struct seat *s = &c->seats[worker];

	if (!atomic_load_explicit(&s->lends, memory_order_relaxed))
		return;
	for (unsigned i = 0; i < WORKSHARE_JOBS; i++)
		if (s->jobs[i].open)
			return;
	atomic_store_explicit(&s->lends, false, memory_order_relaxed);
	atomic_fetch_sub_explicit(&c->lenders, 1, memory_order_relaxed);
}

/*
 * Looks for a task of another worker that this worker suits, its neighbour's first, so that helpers spread over several
 * owners. ret_task: takes one and sets it; NULL: only looks. *ret_job: NULL if there is none. False: there is an open job
 * that does not suit this worker, and none that does.
 */
static bool find_task(struct workshare *c, unsigned worker, struct workshare_job **ret_job,
		      int *ret_task)
{
	bool suited = true;

	*ret_job = NULL;
	for (unsigned i = WORKSHARE_JOBS; i < c->n * WORKSHARE_JOBS; i++) {
		unsigned owner = (worker + i / WORKSHARE_JOBS) % c->n;
		struct seat *s = &c->seats[owner];
		struct workshare_job *j = &s->jobs[i % WORKSHARE_JOBS];
		uint64_t w;

		if (!atomic_load_explicit(&s->lends, memory_order_relaxed))
			continue;
		w = atomic_load_explicit(&j->word, memory_order_seq_cst);
		if (word_next(w) >= word_tasks(w))
			continue;
		if (!suits(c, owner, worker, j)) {
			suited = false;
		} else if (!ret_task || (*ret_task = take(j, w)) >= 0) {
			*ret_job = j;
			return true;
		}
	}
	return suited;
}

enum workshare_help workshare_help(struct workshare *c, unsigned worker, bool *member,
				   uint64_t *ret_bytes)
{
	struct workshare_job *j;
	int task;

	*ret_bytes = 0;
	if (!atomic_load_explicit(&c->lenders, memory_order_relaxed)) {
		workshare_leave(c, member);
		return WORKSHARE_NOTHING;
	}
	if (!*member &&
	    atomic_fetch_add_explicit(&c->helping, 1, memory_order_relaxed) >= c->helpers) {
		atomic_fetch_sub_explicit(&c->helping, 1, memory_order_relaxed);
		return WORKSHARE_NOTHING;
	}
	*member = true;
	if (!find_task(c, worker, &j, &task)) {
		workshare_leave(c, member);
		return WORKSHARE_NOTHING;
	}
	if (!j)
		return WORKSHARE_STAY;
	*ret_bytes = run(j, task);
	return WORKSHARE_HELPED;
}

void workshare_leave(struct workshare *c, bool *member)
{
	if (*member)
		atomic_fetch_sub_explicit(&c->helping, 1, memory_order_relaxed);
	*member = false;
}

bool workshare_sleep(struct workshare *c, unsigned worker)
{
	struct workshare_job *found = NULL;

	atomic_store_explicit(&c->seats[worker].sleeping, true, memory_order_seq_cst);
	if (atomic_load_explicit(&c->lenders, memory_order_seq_cst) &&
	    atomic_load_explicit(&c->helping, memory_order_relaxed) < c->helpers)
		find_task(c, worker, &found, NULL);
	return found;
}

void workshare_awake(struct workshare *c, unsigned worker)
{
	atomic_store_explicit(&c->seats[worker].sleeping, false, memory_order_relaxed);
}
