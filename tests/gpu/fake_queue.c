/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of the fake plug-in: each has a thread that carries out its copies in order. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "schema/gen/errors.h"
#include "tests/gpu/fake_internal.h"

#define ENTRIES 4096
#define HOLD_LOOK_NS 200000
/* That a kernel waits for on a busy device. */
#define TURN_NS 1000000

/* A copy, or if fn is set, a function to call. */
struct entry {
	struct gpu_copy copy;
	void (*fn)(void *arg);
	void *arg;
};

struct queue {
	struct gpu_queue q;
	unsigned device;
	_Atomic uint64_t done;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	bool quit;
	unsigned head, tail; /* positions in the ring; both only grow */
	struct entry ring[ENTRIES];
};

/* --- its thread ---------------------------------------------------------------------------------- */

static bool held(void)
{
	return atomic_load(&fake_held) || (fake.hold && access(fake.hold, F_OK) == 0);
}

static void wait_while_held(struct queue *q)
{
	if (!held())
		return;
	atomic_fetch_add(&fake_gpu_status()->held, 1);
	while (held() && !fake_is_losing(q->device))
		nanosleep(&(struct timespec){ .tv_nsec = HOLD_LOOK_NS }, NULL);
	atomic_fetch_sub(&fake_gpu_status()->held, 1);
}

static void illegal(struct queue *q)
{
	atomic_fetch_add(&fake_gpu_status()->illegal, 1);
	atomic_store(&fake.devices[q->device].losing, true);
}

/* Copies one piece. False: the device is lost. */
static bool copy_piece(struct queue *q, const struct gpu_copy *c, const struct dray_piece *p)
{
	uint64_t first = (uintptr_t)p->to, second = (uintptr_t)p->from;
	uint8_t *to, *from;

	to = fake_range_find(q->device, (c->swapped ? second : first) + c->to_base, p->bytes, true);
	from = fake_range_find(q->device, (c->swapped ? first : second) + c->from_base, p->bytes,
			       false);
	if (!to || !from || !p->bytes || (!c->engine && p->bytes > GPU_PIECE_MAX)) {
		illegal(q);
		return false;
	}
	memmove(to, from, p->bytes);
	return true;
}

static void copy_all(struct queue *q, const struct gpu_copy *c)
{
	struct fake_gpu_status *status = fake_gpu_status();
	uint64_t bytes = 0;

	if (c->n &&
	    !fake_range_find(q->device, (uintptr_t)c->pieces, c->n * sizeof(*c->pieces), false)) {
		illegal(q);
		return;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		if (fake_is_losing(q->device) || !copy_piece(q, c, &c->pieces[i]))
			return;
		bytes += c->pieces[i].bytes;
	}
	dray_assert(bytes == c->bytes);
	atomic_fetch_add(&status->copies, c->n > 0);
	atomic_fetch_add(&status->pieces, c->n);
	atomic_fetch_add(&status->bytes, bytes);
	atomic_fetch_add(&status->engine_copies, c->engine);
	atomic_fetch_add(&fake.devices[q->device].copies, c->n > 0);
	atomic_fetch_add_explicit(&q->done, 1, memory_order_release);
}

static void run(struct queue *q, const struct entry *e)
{
	struct fake_device *d = &fake.devices[q->device];

	if (e->fn) {
		e->fn(e->arg);
		return;
	}
	wait_while_held(q);
	if (!e->copy.engine && fake_is_busy(q->device))
		nanosleep(&(struct timespec){ .tv_nsec = TURN_NS }, NULL);
	/* in this order: if the device is losing and active is 0, no copy starts any more */
	atomic_fetch_add(&d->active, 1);
	if (!fake_is_losing(q->device))
		copy_all(q, &e->copy);
	atomic_fetch_sub(&d->active, 1);
}

static void *queue_main(void *arg)
{
	struct queue *q = arg;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct entry e;

		while (q->head == q->tail && !q->quit)
			pthread_cond_wait(&q->more, &q->lock);
		if (q->head == q->tail)
			break;
		e = q->ring[q->head % ENTRIES];
		pthread_mutex_unlock(&q->lock);
		run(q, &e);
		pthread_mutex_lock(&q->lock);
		q->head++;
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

/* --- the functions of the plug-in ---------------------------------------------------------------- */

int fake_queue_new(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		   struct dray_err *reterr)
{
	struct queue *q = calloc(1, sizeof(*q));
	sigset_t all, old;
	int r;

	(void)p;
	dray_assert(fake.devices[spec->device].starts);
	if (!q || fake_fails("queue")) {
		free(q);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a queue");
	}
	q->device = spec->device;
	q->q.done = &q->done;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->more, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&q->thread, NULL, queue_main, q);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r) {
		free(q);
		return dray_err_set(reterr, -r, DRAY_E_NO_MEMORY, "no thread for a queue");
	}
	atomic_fetch_add(&fake_gpu_status()->queues, 1);
	*ret = &q->q;
	return 0;
}

void fake_queue_free(struct gpu_queue *queue)
{
	struct queue *q = dray_container_of(queue, struct queue, q);

	atomic_fetch_add(&fake_gpu_status()->ending, 1);
	pthread_mutex_lock(&q->lock);
	q->quit = true;
	pthread_cond_signal(&q->more);
	pthread_mutex_unlock(&q->lock);
	pthread_join(q->thread, NULL);
	atomic_fetch_sub(&fake_gpu_status()->ending, 1);
	pthread_cond_destroy(&q->more);
	pthread_mutex_destroy(&q->lock);
	free(q);
	atomic_fetch_sub(&fake_gpu_status()->queues, 1);
}

/* A driver refuses a copy by an engine that lies in two allocations, neighbours or not. */
static bool is_refused(const struct queue *q, const struct gpu_copy *c)
{
	bool refused = c->n && (atomic_load(&fake_refusing) ||
				(fake.refuse && access(fake.refuse, F_OK) == 0));

	for (uint32_t i = 0; i < c->n && c->engine && !refused; i++) {
		uint64_t ends[] = {
			(uintptr_t)c->pieces[i].to + (c->swapped ? c->from_base : c->to_base),
			(uintptr_t)c->pieces[i].from + (c->swapped ? c->to_base : c->from_base)
		};

		for (unsigned k = 0; k < 2; k++)
			refused |= fake_range_find(q->device, ends[k], 1, false) &&
				   !fake_range_find(q->device, ends[k], c->pieces[i].bytes, false);
	}
	return refused;
}

static int push(struct queue *q, const struct entry *e)
{
	pthread_mutex_lock(&q->lock);
	dray_assert(q->tail - q->head < ENTRIES);
	q->ring[q->tail++ % ENTRIES] = *e;
	pthread_cond_signal(&q->more);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

int fake_submit(struct gpu_queue *queue, const struct gpu_copy *c)
{
	struct queue *q = dray_container_of(queue, struct queue, q);

	if (fake.dry && c->n) {
		atomic_fetch_add_explicit(&q->done, 1, memory_order_release);
		return 0;
	}
	if (fake_is_lost(q->device))
		return -EIO;
	/* an empty copy measures, so it must not wait for the threads of other processes */
	if (!c->n && !fake_is_busy(q->device)) {
		atomic_fetch_add_explicit(&q->done, 1, memory_order_release);
		return 0;
	}
	if (is_refused(q, c)) {
		push(q, &(struct entry){ .copy = { .route = c->route } });
		queue->refusal = "fakeErrorRefused";
		return -EINVAL;
	}
	return push(q, &(struct entry){ .copy = *c });
}

int fake_check(struct gpu_queue *queue)
{
	struct queue *q = dray_container_of(queue, struct queue, q);

	return fake_is_lost(q->device) ? -EIO : 0;
}

int fake_notify(struct gpu_queue *queue, void (*fn)(void *arg), void *arg)
{
	struct queue *q = dray_container_of(queue, struct queue, q);

	if (fake_is_lost(q->device))
		return -EIO;
	return push(q, &(struct entry){ .fn = fn, .arg = arg });
}
