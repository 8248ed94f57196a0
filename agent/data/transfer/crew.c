/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/fault.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"

#define LINE 64
/* A task is a matter of microseconds; from so many looks on its thread is likely not running. */
#define DRAIN_LOOKS 2000

/* What others look at is on lines of its own. */
struct seat {
	_Alignas(LINE) _Atomic bool lends; /* jobs are out, or will be in a moment */
	_Atomic bool sleeping;
	_Atomic int node;
	int wake_fd;
	_Alignas(LINE) struct crew_job jobs[CREW_JOBS];
};

struct crew {
	unsigned n;       /* seats */
	unsigned helpers; /* at most at a time */
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

/* --- control thread ------------------------------------------------------------------------------ */

int crew_new(struct crew **ret, unsigned n_workers, unsigned helpers)
{
	size_t bytes = sizeof(struct crew) + n_workers * sizeof(struct seat);
	struct crew *c;

	dray_assert(n_workers <= CREW_MAX);
	/* pages of jobs that are never used are never touched */
	c = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
	if (!c)
		return -ENOMEM;
	*c = (struct crew){ .n = n_workers, .helpers = helpers };
	for (unsigned i = 0; i < n_workers; i++) {
		struct seat *s = &c->seats[i];

		s->wake_fd = -1;
		atomic_init(&s->lends, false);
		atomic_init(&s->sleeping, false);
		atomic_init(&s->node, -1);
		for (unsigned k = 0; k < CREW_JOBS; k++) {
			atomic_init(&s->jobs[k].word, 0);
			s->jobs[k].generation = 0;
			s->jobs[k].open = false;
		}
	}
	*ret = c;
	return 0;
}

struct crew *crew_free(struct crew *c)
{
	if (!c)
		return NULL;
	for (unsigned i = 0; i < c->n; i++)
		dray_close(c->seats[i].wake_fd);
	free(c);
	return NULL;
}

int crew_join(struct crew *c, unsigned worker, int wake_fd)
{
	/* our own: who wakes it must not depend on when that worker ends */
	c->seats[worker].wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 3);
	return c->seats[worker].wake_fd < 0 ? -errno : 0;
}

void crew_place(struct crew *c, unsigned worker, int node)
{
	atomic_store_explicit(&c->seats[worker].node, node, memory_order_relaxed);
}

bool crew_suits(const int *nodes, unsigned n, unsigned owner, unsigned worker, int node)
{
	if (node < 0 || nodes[worker] < 0 || nodes[worker] == node)
		return true;
	for (unsigned i = 0; i < n; i++)
		if (i != owner && nodes[i] == node)
			return false;
	return true;
}

static bool suits(const struct crew *c, unsigned owner, unsigned worker, const struct crew_job *j)
{
	int node = atomic_load_explicit(&j->node, memory_order_relaxed), nodes[CREW_MAX];

	if ((worker + c->n - owner) % c->n > atomic_load_explicit(&j->reach, memory_order_relaxed))
		return false;
	if (node < 0)
		return true;
	for (unsigned i = 0; i < c->n; i++)
		nodes[i] = atomic_load_explicit(&c->seats[i].node, memory_order_relaxed);
	return crew_suits(nodes, c->n, owner, worker, node);
}

/* --- a worker that lends out --------------------------------------------------------------------- */

struct crew_job *crew_job(struct crew *c, unsigned worker)
{
	for (unsigned i = 0; i < CREW_JOBS; i++)
		if (!c->seats[worker].jobs[i].open)
			return &c->seats[worker].jobs[i];
	return NULL;
}

static uint64_t copy_task(struct crew_job *j, unsigned task)
{
	const struct dray_piece *v = &j->pieces[j->first[task]];
	unsigned n = (unsigned)(j->first[task + 1] - j->first[task]);
	const void *address = NULL;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		bytes += v[i].bytes;
	/* with one fault known the others need not be copied */
	if (!atomic_load_explicit(&j->fault, memory_order_relaxed) &&
	    fault_copy_pieces(v, n, j->stream, &address) < 0)
		atomic_store_explicit(&j->fault, (uintptr_t)address, memory_order_relaxed);
	return bytes;
}

void crew_set(struct crew_job *j, unsigned n, unsigned helpers,
	      uint64_t (*run)(struct crew_job *j, unsigned task), void *arg)
{
	dray_assert(n && n <= CREW_TASKS_MAX);
	j->n_tasks = (uint16_t)n;
	atomic_store_explicit(&j->reach, helpers, memory_order_relaxed);
	j->run = run;
	j->arg = arg;
}

void crew_set_copy(struct crew_job *j, unsigned n, bool stream)
{
	uint64_t bytes = 0;

	j->n_tasks = 0;
	j->first[0] = 0;
	for (unsigned i = 0; i < n; i++) {
		bytes += j->pieces[i].bytes;
		/* the last one takes what is left */
		if (i + 1 < n && (bytes < CREW_TASK || j->n_tasks + 1 == CREW_TASKS))
			continue;
		j->first[++j->n_tasks] = (uint16_t)(i + 1);
		bytes = 0;
	}
	j->stream = stream;
	crew_set(j, j->n_tasks, CREW_MAX, copy_task, NULL);
}

void crew_publish(struct crew *c, unsigned worker, struct crew_job *j, int node)
{
	struct seat *s = &c->seats[worker];

	j->open = true;
	j->generation++;
	atomic_store_explicit(&j->ended, 0, memory_order_relaxed);
	atomic_store_explicit(&j->fault, 0, memory_order_relaxed);
	atomic_store_explicit(&j->node, node, memory_order_relaxed);
	/* the list is whole; and before the look at who sleeps, in the one order of all */
	atomic_store_explicit(&j->word, (uint64_t)j->generation << 32 | (uint64_t)j->n_tasks << 16,
			      memory_order_seq_cst);
	if (!atomic_load_explicit(&s->lends, memory_order_relaxed)) {
		atomic_store_explicit(&s->lends, true, memory_order_relaxed);
		atomic_fetch_add_explicit(&c->lenders, 1, memory_order_seq_cst);
	}
}

void crew_wake(struct crew *c, unsigned worker, const struct crew_job *j, unsigned tasks)
{
	unsigned left = dray_min(tasks, c->helpers);
	uint64_t one = 1;

	for (unsigned k = 1; k < c->n && left; k++) {
		unsigned i = (worker + k) % c->n;
		struct seat *s = &c->seats[i];

		if (!suits(c, worker, i, j) ||
		    !atomic_load_explicit(&s->sleeping, memory_order_seq_cst) ||
		    !atomic_exchange_explicit(&s->sleeping, false, memory_order_acq_rel))
			continue;
		left--;
		/* a full counter means that it is woken already */
		if (write(s->wake_fd, &one, sizeof(one)) < 0)
			continue;
	}
}

/* The next task of a job whose word was w. -1: there is none, or somebody was faster. */
static int take(struct crew_job *j, uint64_t w)
{
	if (word_next(w) >= word_tasks(w))
		return -1;
	/* acquire: the list that was published with this generation */
	if (!atomic_compare_exchange_strong_explicit(&j->word, &w, w + 1, memory_order_acquire,
						     memory_order_relaxed))
		return -1;
	return (int)word_next(w);
}

static uint64_t run(struct crew_job *j, int task)
{
	uint64_t bytes = j->run(j, (unsigned)task);

	/* release: what it did is in place, and its memory not looked at any more */
	atomic_fetch_add_explicit(&j->ended, 1, memory_order_release);
	return bytes;
}

bool crew_work(struct crew_job *j, uint64_t *ret_bytes)
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

bool crew_job_over(const struct crew_job *j, const void **ret_fault)
{
	uint64_t w = atomic_load_explicit(&j->word, memory_order_relaxed);

	/* acquire: what the helpers have copied */
	if (word_next(w) < word_tasks(w) ||
	    atomic_load_explicit(&j->ended, memory_order_acquire) != word_tasks(w))
		return false;
	*ret_fault = (const void *)atomic_load_explicit(&j->fault, memory_order_relaxed);
	return true;
}

/* As many tasks as were taken is as many as it has. */
void crew_close(struct crew_job *j)
{
	uint64_t w = atomic_load_explicit(&j->word, memory_order_relaxed);

	while (!atomic_compare_exchange_weak_explicit(
		&j->word, &w, (w & ~(uint64_t)0xffff0000) | (uint64_t)word_next(w) << 16,
		memory_order_relaxed, memory_order_relaxed))
		;
}

void crew_drain(struct crew_job *j)
{
	const void *fault;

	crew_close(j);
	for (unsigned looks = 0; !crew_job_over(j, &fault); looks++) {
		if (looks < DRAIN_LOOKS)
			dray_cpu_relax();
		else
			sched_yield();
	}
}

void crew_job_put(struct crew_job *j)
{
	j->open = false;
}

void crew_rest(struct crew *c, unsigned worker)
{
	struct seat *s = &c->seats[worker];

	if (!atomic_load_explicit(&s->lends, memory_order_relaxed))
		return;
	for (unsigned i = 0; i < CREW_JOBS; i++)
		if (s->jobs[i].open)
			return;
	atomic_store_explicit(&s->lends, false, memory_order_relaxed);
	atomic_fetch_sub_explicit(&c->lenders, 1, memory_order_relaxed);
}

/* --- a worker that helps ------------------------------------------------------------------------- */

/*
 * Calls fn on what this worker may take of the others' jobs until that returns true. From its neighbour on, so that helpers
 * spread over several lenders. False where something lies open that does not suit it.
 */
static bool each_task(struct crew *c, unsigned worker,
		      bool (*fn)(struct crew_job *j, uint64_t w, void *arg), void *arg)
{
	bool suited = true;

	for (unsigned k = 1; k < c->n; k++) {
		unsigned owner = (worker + k) % c->n;
		struct seat *s = &c->seats[owner];

		if (!atomic_load_explicit(&s->lends, memory_order_relaxed))
			continue;
		for (unsigned i = 0; i < CREW_JOBS; i++) {
			struct crew_job *j = &s->jobs[i];
			uint64_t w = atomic_load_explicit(&j->word, memory_order_seq_cst);

			if (word_next(w) >= word_tasks(w))
				continue;
			if (!suits(c, owner, worker, j))
				suited = false;
			else if (fn(j, w, arg))
				return true;
		}
	}
	return suited;
}

struct help {
	uint64_t bytes;
	bool any;
};

static bool help_with(struct crew_job *j, uint64_t w, void *arg)
{
	struct help *h = arg;
	int task = take(j, w);

	if (task < 0)
		return false;
	*h = (struct help){ run(j, task), true };
	return true;
}

static bool is_there(struct crew_job *j, uint64_t w, void *arg)
{
	bool *found = arg;

	(void)j;
	(void)w;
	return *found = true;
}

enum crew_help crew_help(struct crew *c, unsigned worker, bool *member, uint64_t *ret_bytes)
{
	struct help h = { 0 };

	*ret_bytes = 0;
	if (!atomic_load_explicit(&c->lenders, memory_order_relaxed)) {
		crew_leave(c, member);
		return CREW_NOTHING;
	}
	if (!*member &&
	    atomic_fetch_add_explicit(&c->helping, 1, memory_order_relaxed) >= c->helpers) {
		atomic_fetch_sub_explicit(&c->helping, 1, memory_order_relaxed);
		return CREW_NOTHING;
	}
	*member = true;
	if (!each_task(c, worker, help_with, &h)) {
		crew_leave(c, member);
		return CREW_NOTHING;
	}
	*ret_bytes = h.bytes;
	return h.any ? CREW_HELPED : CREW_STAY;
}

void crew_leave(struct crew *c, bool *member)
{
	if (*member)
		atomic_fetch_sub_explicit(&c->helping, 1, memory_order_relaxed);
	*member = false;
}

bool crew_sleep(struct crew *c, unsigned worker)
{
	bool found = false;

	atomic_store_explicit(&c->seats[worker].sleeping, true, memory_order_seq_cst);
	if (atomic_load_explicit(&c->lenders, memory_order_seq_cst) &&
	    atomic_load_explicit(&c->helping, memory_order_relaxed) < c->helpers)
		each_task(c, worker, is_there, &found);
	return found;
}

void crew_awake(struct crew *c, unsigned worker)
{
	atomic_store_explicit(&c->seats[worker].sleeping, false, memory_order_relaxed);
}
