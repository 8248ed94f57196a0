/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two workers that share slices and two that help, as fast as they can. Each slice is finished or
 * stopped half way. Afterwards only the owner uses the memory and fills it anew at once, so that a
 * helper that still reads it shows as a race. From time to time the owner leaves all work to
 * helpers that may be asleep: a lost wake-up shows as a timeout.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/data/transfer/xfer.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/transport/local/local.h"
#include "lib/assert.h"
#include "lib/cpu.h"
#include "lib/time.h"

#define LENDERS 2
#define WORKERS 4
#define ROUNDS 5000
#define BYTES (4 * WORKSHARE_TASK - 100)
#define BYTES_SHORT 4000
#define LIMIT_NS (60 * DRAY_NS_PER_SEC)

static struct workshare *workshare;
static int wake_fds[WORKERS];
static _Atomic unsigned lenders_left = LENDERS;
static _Atomic uint64_t helped, slept;

/* One operation that covers a region behind a local remote. */
struct work {
	struct xfer xfer;
	struct object target;
	struct xfer_op op;
	struct object near;
	struct region_view *views[2];
	uint8_t *from, *to;
};

static struct region_view *view_of(uint8_t *memory)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(struct extent_view));

	dray_assert(v && memory);
	v->n_extents = 1;
	v->extents[0] = (struct extent_view){ .length = BYTES, .base = memory, .node = -1 };
	return v;
}

static struct work *work_new(void)
{
	struct work *w = calloc(1, sizeof(*w));

	dray_assert(w);
	w->from = malloc(BYTES);
	w->to = malloc(BYTES);
	w->views[0] = view_of(w->from);
	w->views[1] = view_of(w->to);
	w->near.view = &w->views[0]->o;
	w->target.view = &w->views[1]->o;
	w->op = (struct xfer_op){ 0, 0, BYTES };
	w->xfer.local = &w->near;
	w->xfer.target = &w->target;
	w->xfer.ops = &w->op;
	w->xfer.n_ops = 1;
	w->xfer.direction = DMSG_DIRECTION_WRITE;
	return w;
}

static void work_free(struct work *w)
{
	free(w->views[0]);
	free(w->views[1]);
	free(w->from);
	free(w->to);
	free(w);
}

static void lost(const char *what)
{
	printf("not ok - shared copies # %s\n", what);
	exit(1);
}

static void lend(unsigned worker, struct work *w, unsigned round, unsigned *seed)
{
	struct workshare_job *job = workshare_job(workshare, worker);
	bool alone = rand_r(seed) % 8 == 0, stop = rand_r(seed) % 4 == 0;
	/* mostly one task: wake-ups and ends are as with four, but bytes cost most of the time */
	uint64_t length = round % 16 ? BYTES_SHORT : BYTES;
	int64_t end = dray_now().ns + LIMIT_NS;
	struct local_walk walk;
	const void *fault;
	uint64_t bytes;

	memset(w->from, (int)round, length);
	memset(w->to, (int)round + 1, length);
	w->op.length = length;
	local_walk_init(&walk, &w->xfer, (struct xfer_cursor){ 0 }, length);
	dray_assert(job && local_walk_share(&walk, job, round / 16 % 2));
	workshare_publish(workshare, worker, job, -1);
	if (alone || rand_r(seed) % 2)
		workshare_wake(workshare, worker, job, 2);
	if (stop && !alone) {
		workshare_work(job, &bytes);
		workshare_drain(job);
		dray_assert(workshare_job_over(job, &fault));
	} else {
		while (!workshare_job_over(job, &fault)) {
			if (dray_now().ns > end)
				lost("no helper woke up");
			if (alone || !workshare_work(job, &bytes))
				dray_cpu_relax();
		}
		dray_assert(!fault && !memcmp(w->from, w->to, length));
	}
	workshare_job_put(job);
	/* before the next slice, helpers may be asleep or about to sleep */
	for (unsigned n = (unsigned)rand_r(seed) % 4096; n; n--)
		dray_cpu_relax();
	if (rand_r(seed) % 2)
		workshare_rest(workshare, worker);
}

static void *lender(void *arg)
{
	unsigned worker = (unsigned)(uintptr_t)arg, seed = worker + 1;
	struct work *w = work_new();
	uint64_t one = 1;

	for (unsigned i = 0; i < ROUNDS; i++)
		lend(worker, w, i, &seed);
	workshare_rest(workshare, worker);
	work_free(w);
	if (atomic_fetch_sub(&lenders_left, 1) == 1)
		for (unsigned i = LENDERS; i < WORKERS; i++)
			dray_assert(write(wake_fds[i], &one, sizeof(one)) == sizeof(one));
	return NULL;
}

static void *helper(void *arg)
{
	unsigned worker = (unsigned)(uintptr_t)arg;
	struct pollfd p = { .fd = wake_fds[worker], .events = POLLIN };
	bool member = false;
	uint64_t bytes, n;

	while (atomic_load(&lenders_left)) {
		enum workshare_help did = workshare_help(workshare, worker, &member, &bytes);

		if (did == WORKSHARE_HELPED)
			atomic_fetch_add(&helped, bytes);
		if (did != WORKSHARE_NOTHING && rand() % 16)
			continue;
		workshare_leave(workshare, &member);
		if (!workshare_sleep(workshare, worker)) {
			atomic_fetch_add(&slept, 1);
			if (poll(&p, 1, (int)(LIMIT_NS / DRAY_NS_PER_MS)) != 1)
				lost("a helper was not woken");
			dray_assert(read(p.fd, &n, sizeof(n)) == sizeof(n) || errno == EAGAIN);
		}
		workshare_awake(workshare, worker);
	}
	workshare_leave(workshare, &member);
	return NULL;
}

int main(void)
{
	pthread_t threads[WORKERS];

	dray_assert(workshare_new(&workshare, WORKERS, WORKERS - LENDERS) == 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		wake_fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		dray_assert(workshare_join(workshare, i, wake_fds[i]) == 0);
	}
	for (uintptr_t i = 0; i < WORKERS; i++)
		dray_assert(pthread_create(&threads[i], NULL, i < LENDERS ? lender : helper,
					   (void *)i) == 0);
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < WORKERS; i++)
		close(wake_fds[i]);
	workshare_free(workshare);
	printf("ok - shared copies # %llu bytes by helpers, %llu sleeps\n",
	       (unsigned long long)atomic_load(&helped), (unsigned long long)atomic_load(&slept));
	return atomic_load(&helped) ? 0 : 1;
}
