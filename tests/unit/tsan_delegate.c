/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two workers that give slices to each other, as fast as they can. A worker that has recalled a slice or got it back fills its memory
 * anew at once, so a helper that still writes to it shows as a race. Workers sleep when they have nothing to do: a lost wake-up
 * shows as a timeout.
 */
#include "agent/data/transfer/delegate.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/workshare.h"
#include "lib/assert.h"
#include "lib/cpu.h"
#include "lib/time.h"

#define WORKERS 2
#define SLICES 20000 /* of each worker */
#define AWAY_MAX 4
#define BYTES 512
#define LIMIT_NS (60 * DRAY_NS_PER_SEC)

struct worker {
	struct core core;
	struct data_counters counters;
	struct remote_view view;
	struct object remote;
	struct xfer xfer;
	struct dray_list away;
	unsigned given, back, n_away;
	unsigned received, recalled, taken_back, slept;
	unsigned seed;
	int wake_fd;
};

static struct worker workers[WORKERS];
static struct workshare *workshare;
static struct delegates *delegates;
static _Atomic unsigned left = WORKERS; /* that still give slices or wait for them */

static void lost(const char *what)
{
	printf("not ok - slices that workers give to each other # %s\n", what);
	exit(1);
}

static uint8_t *memory_of(const struct slice *s)
{
	return s->local[0].iov_base;
}

static void give(struct worker *w, unsigned helper)
{
	struct slice *s = calloc(1, sizeof(*s));

	dray_assert(s);
	s->local[0] = (struct iovec){ malloc(BYTES), BYTES };
	dray_assert(memory_of(s));
	memset(memory_of(s), 0, BYTES);
	s->n_local = 1;
	s->bytes = BYTES;
	s->xfer = &w->xfer;
	w->given++;
	w->n_away++;
	dray_list_add(&w->away, &s->delegated.link);
	delegate_give(&w->core, helper, s);
}

/* From now on the helper leaves the memory alone. */
static void recall(struct worker *w)
{
	struct slice *s = dray_list_first(&w->away, struct slice, delegated.link);

	if (!s)
		return;
	if (rand_r(&w->seed) % 2) {
		if (!delegate_take_back(s))
			return;
		w->taken_back++;
	} else {
		delegate_recall(s);
		w->recalled++;
	}
	dray_list_del(&s->delegated.link);
	s->delegated.xfer = NULL;
	memset(memory_of(s), 1, BYTES);
}

/* For a random time, so that recalls come at any moment. */
static void dawdle(struct worker *w)
{
	for (unsigned n = (unsigned)rand_r(&w->seed) % 1024; n; n--)
		dray_cpu_relax();
}

/* What a helper does with a slice. */
static void receive(struct worker *w, struct slice *s)
{
	for (unsigned part = 0; part < 2; part++) {
		if (!delegate_hold(s)) {
			delegate_return(&w->core, s, DRAY_E_CANCELLED, NULL);
			return;
		}
		dawdle(w);
		memset(memory_of(s) + part * (BYTES / 2), 2, BYTES / 2);
		if (!part)
			delegate_release(s);
		dawdle(w);
	}
	w->received++;
	delegate_return(&w->core, s, 0, NULL);
}

static void check(struct worker *w, struct slice *s)
{
	w->back++;
	w->n_away--;
	if (s->xfer) {
		dray_list_del(&s->delegated.link);
		dray_assert(s->xfer == &w->xfer && !s->delegated.code);
		dray_assert(memory_of(s)[0] == 2 && memory_of(s)[BYTES - 1] == 2);
	} else {
		dray_assert(memory_of(s)[0] == 1 && memory_of(s)[BYTES - 1] == 1);
	}
	free(memory_of(s));
	free(s);
}

static void rest(struct worker *w)
{
	struct pollfd p = { .fd = w->wake_fd, .events = POLLIN };
	uint64_t n;

	workshare_sleep(workshare, w->core.index);
	if (!delegates_wait(&w->core)) {
		w->slept++;
		if (poll(&p, 1, (int)(LIMIT_NS / DRAY_NS_PER_MS)) != 1)
			lost("a worker was not woken");
		dray_assert(read(p.fd, &n, sizeof(n)) == sizeof(n) || errno == EAGAIN);
	}
	workshare_awake(workshare, w->core.index);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned other = !w->core.index;
	bool gives = true;
	struct slice *s;

	while (atomic_load(&left)) {
		bool did = false;

		while ((s = delegate_take(&w->core))) {
			receive(w, s);
			did = true;
		}
		while ((s = delegate_returned(&w->core))) {
			check(w, s);
			did = true;
		}
		if (w->given < SLICES && w->n_away < AWAY_MAX) {
			give(w, other);
			did = true;
		}
		if (rand_r(&w->seed) % 4 == 0)
			recall(w);
		if (gives && w->back == SLICES) {
			gives = false;
			/* the last one ends the other's sleep */
			if (atomic_fetch_sub(&left, 1) == 1)
				workshare_call(workshare, other);
		}
		if (!did && atomic_load(&left))
			rest(w);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[WORKERS];
	unsigned received = 0, recalled = 0, taken_back = 0, slept = 0;

	dray_assert(workshare_new(&workshare, WORKERS, WORKERS - 1) == 0);
	dray_assert(delegates_new(&delegates, WORKERS) == 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct worker *w = &workers[i];

		w->core.index = i;
		w->core.workshare = workshare;
		w->core.delegates = delegates;
		w->seed = i + 1;
		w->remote.view = &w->view.o;
		w->xfer.remote = &w->remote;
		dray_list_init(&w->away);
		w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		dray_assert(workshare_join(workshare, i, w->wake_fd) == 0);
		delegates_join(delegates, i, &w->counters);
	}
	for (unsigned i = 0; i < WORKERS; i++)
		dray_assert(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		pthread_join(threads[i], NULL);
		received += workers[i].received;
		recalled += workers[i].recalled;
		taken_back += workers[i].taken_back;
		slept += workers[i].slept;
		close(workers[i].wake_fd);
	}
	delegates_free(delegates);
	workshare_free(workshare);
	printf("ok - slices that workers give to each other # %u received, %u recalled, %u taken back, %u sleeps\n",
	       received, recalled, taken_back, slept);
	return received && recalled && taken_back && slept ? 0 : 1;
}
