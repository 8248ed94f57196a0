/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/delegate.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/workshare.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"

#define LINE 64
/* A session that has asked for a transfer within this time may ask for the next one, which would wait for slices of another worker. */
#define IDLE_NS (10 * (int64_t)DRAY_NS_PER_MS)
/* A helper holds a slice for microseconds. After this many looks its thread is probably descheduled, and this one yields. */
#define RECALL_LOOKS 2000

/* Any worker puts slices in; the worker whose mailbox it is takes them out, all at once, and keeps those that it has not handled. */
struct mailbox {
	_Alignas(LINE) _Atomic(struct slice *)
		last;                       /* the others follow, the first one at the end */
	_Alignas(LINE) struct slice *first; /* of those that were taken out; the others follow */
};

struct seat {
	struct mailbox given, returned;
	_Atomic uint64_t bytes; /* of the slices that it has of others */
	const struct data_counters *counters;
};

struct delegates {
	unsigned n;
	_Alignas(LINE) struct seat seats[];
};

int delegates_new(struct delegates **ret, unsigned n_workers)
{
	size_t bytes = sizeof(struct delegates) + n_workers * sizeof(struct seat);
	struct delegates *d = aligned_alloc(LINE, bytes);

	if (!d)
		return -ENOMEM;
	memset(d, 0, bytes);
	d->n = n_workers;
	*ret = d;
	return 0;
}

void delegates_join(struct delegates *d, unsigned worker, const struct data_counters *counters)
{
	d->seats[worker].counters = counters;
}

static struct slice *take(struct mailbox *m)
{
	struct slice *last = NULL, *s;

	/* acquire: sees what was written before the slices were put in */
	if (!m->first && atomic_load_explicit(&m->last, memory_order_relaxed))
		last = atomic_exchange_explicit(&m->last, NULL, memory_order_acquire);
	while ((s = last)) {
		last = s->delegated.next;
		s->delegated.next = m->first;
		m->first = s;
	}
	s = m->first;
	if (s)
		m->first = s->delegated.next;
	return s;
}

static void put(struct core *c, struct mailbox *m, unsigned worker, struct slice *s)
{
	struct slice *last = atomic_load_explicit(&m->last, memory_order_relaxed);

	/* sequentially consistent: before workshare_call() looks whether the worker sleeps */
	do
		s->delegated.next = last;
	while (!atomic_compare_exchange_weak_explicit(&m->last, &last, s, memory_order_seq_cst,
						      memory_order_relaxed));
	workshare_call(c->workshare, worker);
}

static void discard(struct mailbox *m)
{
	struct slice *s;

	while ((s = take(m)))
		free(s);
}

struct delegates *delegates_free(struct delegates *d)
{
	if (!d)
		return NULL;
	for (unsigned i = 0; i < d->n; i++) {
		discard(&d->seats[i].given);
		discard(&d->seats[i].returned);
	}
	free(d);
	return NULL;
}

bool delegate_is_free(const struct core *c, unsigned worker)
{
	const struct data_counters *counters = c->delegates->seats[worker].counters;
	int64_t asked_ns = atomic_load_explicit(&counters->asked_ns, memory_order_relaxed);

	return c->now_ns - asked_ns >= IDLE_NS &&
	       !atomic_load_explicit(&counters->v[DRAY_METRIC_TRANSFERS_IN_FLIGHT],
				     memory_order_relaxed);
}

uint64_t delegate_bytes(const struct core *c, unsigned worker)
{
	return atomic_load_explicit(&c->delegates->seats[worker].bytes, memory_order_relaxed);
}

void delegate_give(struct core *c, unsigned helper, struct slice *s)
{
	const struct remote_view *remote = object_remote(s->xfer->remote);
	struct delegation *g = &s->delegated;

	g->xfer = dray_take(s->xfer);
	g->given_ns = c->now_ns;
	g->peer = remote->peer;
	g->grant = remote->grant;
	g->from = (uint8_t)c->index;
	g->to = (uint8_t)helper;
	atomic_store_explicit(&g->state, DELEGATED_GIVEN, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->delegates->seats[helper].bytes, s->bytes,
				  memory_order_relaxed);
	put(c, &c->delegates->seats[helper].given, helper, s);
}

/* From one state to another: true. acquire, release: of the slice's memory. */
static bool change(struct slice *s, enum delegation_state from, enum delegation_state to)
{
	uint32_t state = from;

	return atomic_compare_exchange_strong_explicit(&s->delegated.state, &state, to,
						       memory_order_acq_rel, memory_order_relaxed);
}

bool delegate_is_waiting(const struct slice *s)
{
	return atomic_load_explicit(&s->delegated.state, memory_order_relaxed) == DELEGATED_GIVEN;
}

bool delegate_take_back(struct slice *s)
{
	return change(s, DELEGATED_GIVEN, DELEGATED_RECALLED);
}

void delegate_recall(struct slice *s)
{
	for (unsigned looks = 0; !change(s, DELEGATED_GIVEN, DELEGATED_RECALLED) &&
				 !change(s, DELEGATED_TAKEN, DELEGATED_RECALLED);
	     looks++) {
		if (looks < RECALL_LOOKS)
			dray_cpu_relax();
		else
			sched_yield();
	}
}

struct slice *delegate_returned(struct core *c)
{
	struct slice *s = take(&c->delegates->seats[c->index].returned);

	if (!s)
		return NULL;
	s->id = ++c->next_slice_id;
	s->xfer = s->delegated.xfer;
	atomic_store_explicit(&s->delegated.state, DELEGATED_NOT, memory_order_relaxed);
	return s;
}

struct slice *delegate_take(struct core *c)
{
	struct slice *s;

	while ((s = take(&c->delegates->seats[c->index].given))) {
		if (change(s, DELEGATED_GIVEN, DELEGATED_TAKEN)) {
			s->id = ++c->next_slice_id;
			return s;
		}
		delegate_return(c, s, DRAY_E_CANCELLED, NULL);
	}
	return NULL;
}

bool delegate_hold(struct slice *s)
{
	return change(s, DELEGATED_TAKEN, DELEGATED_HELD);
}

void delegate_release(struct slice *s)
{
	change(s, DELEGATED_HELD, DELEGATED_TAKEN);
}

void delegate_return(struct core *c, struct slice *s, uint32_t code, const char *detail)
{
	struct delegation *g = &s->delegated;

	/* a copy to its memory may have faulted */
	delegate_release(s);
	g->code = code;
	g->detail = detail;
	atomic_fetch_sub_explicit(&c->delegates->seats[g->to].bytes, s->bytes,
				  memory_order_relaxed);
	put(c, &c->delegates->seats[g->from].returned, g->from, s);
}

static bool is_empty(const struct mailbox *m)
{
	return !m->first && !atomic_load_explicit(&m->last, memory_order_seq_cst);
}

bool delegates_wait(const struct core *c)
{
	const struct seat *own = &c->delegates->seats[c->index];

	return !is_empty(&own->given) || !is_empty(&own->returned);
}
