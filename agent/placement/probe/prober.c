/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch is in one of three places: in the heap of due times of its class, in the queue of its host and class, or in
 * flight. A watch that is due while another probe of its host and port is in flight waits in that host's queue. Then it
 * returns to the heap with the time that it had, so the longest overdue one still goes first. A host whose queues are not
 * empty has a probe in flight or a watch in a heap, and one that is not minor if such a watch is in its queue.
 */
#include "agent/placement/probe/prober.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/fds.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Probes are less urgent than all other work of the loop. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 8)
#define ACCURACY_US 1000
/* Further probes begin in the next turn of the loop. */
#define STARTS_PER_TURN 32
/* A longer delay of the timer means that the process was stopped or starved. */
#define PAUSE_NS DRAY_NS_PER_SEC
#define TICK_MAX_NS (DRAY_NS_PER_SEC / 4)

struct host_key {
	uint16_t port;
	char name[DRAY_HOST_MAX];
};

/* One host and port, of which one probe is under way at a time. */
struct host {
	struct dray_map_node node;
	struct host_key key;
	struct dray_list queue, queue_minor;
	unsigned watches;
	bool busy;
};

struct watch {
	struct prober *p;
	struct dray_list link;  /* in p->watches */
	struct dray_list queue; /* in a queue of the host */
	struct host *host;
	struct probe_target target;
	void *owner;
	struct probe_fsm fsm;
	struct dray_heap_node due;
	struct probe *probe; /* in flight; NULL: none */
	bool minor;          /* watch_set_minor() */
};

struct prober {
	struct prober_deps deps;
	struct probe_deps probe_deps;
	sd_event_source *timer;
	struct dray_heap due, due_minor;
	unsigned minor_in_flight; /* of totals.in_flight */
	struct dray_list watches;
	struct dray_map hosts; /* struct host */
	int64_t armed_ns;      /* the due time that the timer is armed for; INT64_MAX: off */
	int64_t expected_ns;   /* when the timer should fire */
	struct prober_totals totals;
};

static int64_t now_ns(struct prober *p)
{
	uint64_t usec;

	dray_assert(sd_event_now(p->deps.event, CLOCK_MONOTONIC, &usec) >= 0);
	return (int64_t)usec * 1000;
}

static struct dray_heap *heap_of(struct watch *w)
{
	return w->minor ? &w->p->due_minor : &w->p->due;
}

/* Puts it into its heap. Ready ones are due at ticks, because a wake-up for each costs more than its probe. */
static void plan(struct watch *w)
{
	const struct probe_fsm *f = &w->fsm;
	struct prober *p = w->p;
	int64_t at = f->next_ns;
	int64_t tick = dray_min(p->deps.cfg->probe.interval / 64, TICK_MAX_NS);

	if (f->state == DMSG_SEGMENT_STATE_READY && !f->failures && tick > 0 && at > now_ns(p))
		at += tick - 1 - (at + tick - 1) % tick;
	/* cannot fail: prober_watch() reserved the room */
	(void)dray_heap_set(heap_of(w), &w->due, at);
}

static struct host *host_ref(struct prober *p, const struct probe_target *t)
{
	struct host_key key = { .port = t->port };
	size_t n = offsetof(struct host_key, name) + dray_host_key(t->host, key.name);
	struct host *h = dray_map_entry(dray_map_find(&p->hosts, &key, n), struct host, node);

	if (h) {
		h->watches++;
		return h;
	}
	h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->key = key;
	h->watches = 1;
	dray_list_init(&h->queue);
	dray_list_init(&h->queue_minor);
	dray_map_add(&p->hosts, &h->node, &h->key, n);
	return h;
}

static void host_unref(struct prober *p, struct host *h)
{
	if (!h || --h->watches)
		return;
	dray_map_del(&p->hosts, &h->node);
	free(h);
}

/* Hints may name any number of minor watches of a host, for which the others do not wait. */
static void enqueue(struct watch *w)
{
	dray_list_move(w->minor ? &w->host->queue_minor : &w->host->queue, &w->queue);
}

/* The first watch of the host's queues may begin. */
static void next_of(struct host *h)
{
	struct watch *next = dray_list_pop(&h->queue, struct watch, queue);

	if (!next)
		next = dray_list_pop(&h->queue_minor, struct watch, queue);
	if (next)
		plan(next);
}

/* Its probe has ended. */
static void release(struct watch *w)
{
	w->host->busy = false;
	w->p->totals.in_flight--;
	w->p->minor_in_flight -= w->minor;
	next_of(w->host);
}

/* Minor probes have half of the places, and one if there is only one. */
static bool has_place(const struct prober *p, bool minor)
{
	uint64_t places = (uint64_t)p->deps.cfg->probe.concurrency;

	return p->totals.in_flight < places &&
	       (!minor || p->minor_in_flight < places / 2 + places % 2);
}

/* The watch that begins next, when it is due: of those that are due, a minor one comes last. NULL: no place is free for any. */
static struct dray_heap_node *first_of(const struct prober *p, int64_t now)
{
	struct dray_heap_node *a = has_place(p, false) ? dray_heap_first(&p->due) : NULL;
	struct dray_heap_node *b = has_place(p, true) ? dray_heap_first(&p->due_minor) : NULL;

	if (!a || !b)
		return a ? a : b;
	return a->key <= now || a->key <= b->key ? a : b;
}

static void arm(struct prober *p)
{
	int64_t now = now_ns(p);
	struct dray_heap_node *first = first_of(p, now);

	if (!first) {
		p->armed_ns = INT64_MAX;
		sd_event_source_set_enabled(p->timer, SD_EVENT_OFF);
		return;
	}
	if (first->key == p->armed_ns)
		return;
	p->armed_ns = first->key;
	p->expected_ns = dray_max(first->key, now);
	sd_event_source_set_time(p->timer, (uint64_t)dray_max(first->key, (int64_t)0) / 1000 + 1);
	sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
}

/* The callback may free the watch. */
static void report(struct watch *w, enum dmsg_segment_state old)
{
	w->p->deps.probed(w->p->deps.arg, w->owner, old, &w->fsm);
}

static void take_result(struct watch *w, const struct probe_result *r)
{
	struct prober *p = w->p;
	enum dmsg_segment_state old;

	p->totals.probes++;
	p->totals.failures += !r->ok && !r->lacking;
	release(w);
	if (!r->ok && r->lacking)
		old = probe_fsm_give_up(&w->fsm, p->deps.cfg, r->reason, now_ns(p));
	else
		old = probe_fsm_end(&w->fsm, p->deps.cfg, r->ok, r->reason, r->latency_ns,
				    now_ns(p));
	plan(w);
	report(w, old);
}

static void on_probed(void *arg, const struct probe_result *r)
{
	struct watch *w = arg;
	struct prober *p = w->p;

	w->probe = NULL;
	take_result(w, r);
	arm(p);
}

static void start(struct watch *w)
{
	struct dray_err why = DRAY_ERR_NULL;
	struct prober *p = w->p;
	struct probe_result failed = { .ok = false };
	enum dmsg_segment_state old;
	int r;

	w->host->busy = true;
	p->totals.in_flight++;
	p->minor_in_flight += w->minor;
	old = probe_fsm_begin(&w->fsm, now_ns(p));
	r = probe_start(&w->probe, &p->probe_deps, &w->target, p->deps.cfg->probe.timeout,
			on_probed, w, &why);
	if (r < 0) {
		failed.lacking = dray_is_own_lack(r);
		memcpy(failed.reason, why.msg, sizeof(failed.reason));
		take_result(w, &failed);
	} else if (w->fsm.state != old) {
		report(w, old);
	}
}

/* Begins what is due and fits. */
static void run(struct prober *p)
{
	int64_t now = now_ns(p);
	unsigned left = STARTS_PER_TURN;
	struct dray_heap_node *first;

	while (left && (first = first_of(p, now)) && first->key <= now) {
		struct watch *w = dray_container_of(first, struct watch, due);

		dray_heap_del(heap_of(w), &w->due);
		if (w->host->busy) {
			enqueue(w);
			continue;
		}
		left--;
		start(w);
	}
}

static void postpone_all(struct prober *p, int64_t now)
{
	dray_list_for_each(&p->watches, w, struct watch, link) {
		probe_fsm_postpone(&w->fsm, p->deps.cfg, now);
		if (dray_heap_has(&w->due))
			plan(w);
	}
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct prober *p = userdata;
	int64_t now = now_ns(p);

	if (p->expected_ns < now - PAUSE_NS)
		postpone_all(p, now);
	p->armed_ns = INT64_MAX;
	run(p);
	arm(p);
	return 0;
}

struct watch *watch_free(struct watch *w)
{
	struct prober *p;

	if (!w)
		return NULL;
	p = w->p;
	dray_list_del(&w->link);
	dray_list_del(&w->queue);
	dray_heap_del(heap_of(w), &w->due);
	if (w->fsm.in_flight) {
		probe_cancel(w->probe);
		release(w);
	} else if (!w->host->busy) {
		/* it may have been the next of its host */
		next_of(w->host);
	}
	host_unref(p, w->host);
	p->totals.watches--;
	arm(p);
	free(w);
	return NULL;
}

int prober_watch(struct prober *p, const struct probe_target *target, enum dmsg_segment_state state,
		 void *owner, struct watch **ret, struct dray_err *reterr)
{
	struct watch *w = calloc(1, sizeof(*w));

	if (w)
		w->host = host_ref(p, target);
	if (!w || !w->host || dray_heap_reserve(&p->due, p->totals.watches + 1) < 0 ||
	    dray_heap_reserve(&p->due_minor, p->totals.watches + 1) < 0) {
		if (w)
			host_unref(p, w->host);
		free(w);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for probes");
	}
	w->p = p;
	w->target = *target;
	w->owner = owner;
	dray_list_init(&w->queue);
	dray_list_add(&p->watches, &w->link);
	p->totals.watches++;
	probe_fsm_init(&w->fsm, state, now_ns(p));
	plan(w);
	arm(p);
	*ret = w;
	return 0;
}

void watch_set_minor(struct watch *w, bool minor)
{
	bool due = dray_heap_has(&w->due);

	if (w->minor == minor)
		return;
	if (due)
		dray_heap_del(heap_of(w), &w->due);
	if (w->fsm.in_flight)
		w->p->minor_in_flight = minor ? w->p->minor_in_flight + 1 :
						w->p->minor_in_flight - 1;
	w->minor = minor;
	if (due)
		plan(w);
	if (!dray_list_empty(&w->queue))
		enqueue(w);
	/* the next of the host is another one now */
	if (!w->host->busy)
		next_of(w->host);
	arm(w->p);
}

void watch_now(struct watch *w)
{
	probe_fsm_hurry(&w->fsm, now_ns(w->p));
	/* in its host's queue it is overdue already */
	if (!dray_heap_has(&w->due))
		return;
	plan(w);
	arm(w->p);
}

const struct probe_fsm *watch_state(const struct watch *w)
{
	return &w->fsm;
}

const struct probe_target *watch_target(const struct watch *w)
{
	return &w->target;
}

int prober_new(struct prober **ret, const struct prober_deps *deps, struct dray_err *reterr)
{
	dray_auto(prober_free) struct prober *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for probes");
	p->deps = *deps;
	p->deps.event = sd_event_ref(deps->event);
	p->probe_deps = (struct probe_deps){
		.event = deps->event,
		.resolver = deps->resolver,
		.peer_probes = deps->peer_probes,
		.peers = deps->peers,
	};
	p->armed_ns = INT64_MAX;
	dray_list_init(&p->watches);
	dray_map_init(&p->hosts);
	r = sd_event_add_time(p->deps.event, &p->timer, CLOCK_MONOTONIC, 0, ACCURACY_US, on_timer,
			      p);
	if (r >= 0)
		r = sd_event_source_set_enabled(p->timer, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_event_source_set_priority(p->timer, TIMER_PRIORITY);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for probes");
	*ret = dray_take(p);
	return 0;
}

struct prober *prober_free(struct prober *p)
{
	if (!p)
		return NULL;
	/* freeing a watch arms the timer, so the timer is freed last */
	dray_list_for_each(&p->watches, w, struct watch, link)
		watch_free(w);
	sd_event_source_disable_unref(p->timer);
	dray_heap_deinit(&p->due);
	dray_heap_deinit(&p->due_minor);
	dray_map_deinit(&p->hosts);
	sd_event_unref(p->deps.event);
	free(p);
	return NULL;
}

void prober_reconfigured(struct prober *p)
{
	int64_t now = now_ns(p);

	dray_list_for_each(&p->watches, w, struct watch, link) {
		probe_fsm_reconfigured(&w->fsm, p->deps.cfg, now);
		if (dray_heap_has(&w->due))
			plan(w);
	}
	arm(p);
}

const struct prober_totals *prober_totals(const struct prober *p)
{
	return &p->totals;
}
