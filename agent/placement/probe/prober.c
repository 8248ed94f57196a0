/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch is in one of three places: in the heap by the time it is due, in the queue of its host, or under way. Who is
 * due while another probe of the same host and port is under way waits in that host's queue, and then
 * goes back to the heap with the time that it had, so that the longest overdue still goes first.
 */
#include "agent/placement/probe/prober.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/probe/fsm.h"
#include "lib/addr.h"
#include "lib/assert.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* After what is more urgent than to know who is there. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 8)
#define ACCURACY_US 1000
/* In one turn of the loop; the rest in the next. */
#define STARTS_PER_TURN 32
/* The loop did not run for so long: it was stopped, or starved. */
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
	struct dray_list queue;
	unsigned watches;
	bool busy;
};

struct watch {
	struct prober *p;
	struct dray_list link;  /* in p->watches */
	struct dray_list queue; /* in host->queue */
	struct host *host;
	struct probe_target target;
	void *owner;
	struct probe_fsm fsm;
	struct dray_heap_node due;
	struct probe *probe; /* NULL: none under way */
};

struct prober {
	struct prober_deps deps;
	struct probe_deps probe_deps;
	sd_event_source *timer;
	struct dray_heap due;
	struct dray_list watches;
	struct dray_map hosts; /* struct host */
	struct watch *current; /* that callbacks are about; NULL once freed */
	uint32_t n_watches, in_flight;
	int64_t armed_ns;    /* for what is due then; INT64_MAX: off */
	int64_t expected_ns; /* when the timer should fire, then */
	uint64_t probes, failures;
};

static int64_t now_ns(struct prober *p)
{
	uint64_t usec;

	dray_assert(sd_event_now(p->deps.event, CLOCK_MONOTONIC, &usec) >= 0);
	return (int64_t)usec * 1000;
}

static struct probe_fsm_config fsm_config(const struct prober *p)
{
	const struct dray_config *c = p->deps.cfg;

	return (struct probe_fsm_config){
		.interval_ns = c->probe.interval,
		.backoff_min_ns = c->probe.backoff_min,
		.backoff_max_ns = c->probe.backoff_max,
		.rise = (uint32_t)c->probe.rise,
		.fall = (uint32_t)c->probe.fall,
	};
}

/* --- when --------------------------------------------------------------------------------------- */

/*
 * Puts it into the heap. Settled ones come by ticks: to wake up for each of a thousand costs more than to probe it.
 */
static void plan(struct watch *w)
{
	const struct probe_fsm *f = &w->fsm;
	struct prober *p = w->p;
	int64_t at = f->next_ns;
	int64_t tick = dray_min(p->deps.cfg->probe.interval / 64, TICK_MAX_NS);

	if (f->state == DMSG_SEGMENT_STATE_READY && !f->failures && tick > 0 && at > now_ns(p))
		at += tick - 1 - (at + tick - 1) % tick;
	/* cannot fail: prober_watch_known() reserved the room */
	(void)dray_heap_set(&p->due, &w->due, at);
}

/* --- hosts -------------------------------------------------------------------------------------- */

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

/* Its probe is over: the next one of the queue may be begun. */
static void host_release(struct prober *p, struct host *h)
{
	struct watch *next = dray_list_first(&h->queue, struct watch, queue);

	h->busy = false;
	p->in_flight--;
	if (!next)
		return;
	dray_list_del(&next->queue);
	plan(next);
}

/* --- probes ------------------------------------------------------------------------------------- */

static void arm(struct prober *p)
{
	struct dray_heap_node *first = dray_heap_first(&p->due);
	int64_t now = now_ns(p);

	if (!first || p->in_flight >= (uint64_t)p->deps.cfg->probe.concurrency) {
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

static void report_state(struct prober *p, struct watch *w, enum dmsg_segment_state old)
{
	const struct prober_deps *d = &p->deps;

	if (w->fsm.state != old)
		d->changed(d->arg, w->owner, old, w->fsm.state, w->fsm.reason);
}

static void take_result(struct watch *w, const struct probe_result *r)
{
	const struct probe_fsm_config cfg = fsm_config(w->p);
	struct prober *p = w->p;
	enum dmsg_segment_state old;

	p->probes++;
	p->failures += !r->ok;
	host_release(p, w->host);
	old = probe_fsm_end(&w->fsm, &cfg, r->ok, r->reason, r->latency_ns, now_ns(p));
	plan(w);
	p->current = w;
	if (p->deps.probed)
		p->deps.probed(p->deps.arg, w->owner, r);
	if (p->current == w)
		report_state(p, w, old);
	p->current = NULL;
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
	p->in_flight++;
	old = probe_fsm_begin(&w->fsm, now_ns(p));
	r = probe_start(&w->probe, &p->probe_deps, &w->target, p->deps.cfg->probe.timeout,
			on_probed, w, &why);
	/* by now the watch is in no heap and no queue: whoever is told may free it */
	p->current = w;
	report_state(p, w, old);
	w = p->current;
	p->current = NULL;
	if (r == 0 || !w)
		return;
	memcpy(failed.reason, why.msg, sizeof(failed.reason));
	take_result(w, &failed);
}

/* Begins what is due and fits. */
static void run(struct prober *p)
{
	int64_t now = now_ns(p);
	unsigned left = STARTS_PER_TURN;
	struct dray_heap_node *first;

	while (left && p->in_flight < (uint64_t)p->deps.cfg->probe.concurrency &&
	       (first = dray_heap_first(&p->due)) && first->key <= now) {
		struct watch *w = dray_container_of(first, struct watch, due);

		dray_heap_del(&p->due, &w->due);
		if (w->host->busy) {
			dray_list_add(&w->host->queue, &w->queue);
			continue;
		}
		left--;
		start(w);
	}
}

static void postpone_all(struct prober *p, int64_t now)
{
	const struct probe_fsm_config cfg = fsm_config(p);

	dray_list_for_each(&p->watches, w, struct watch, link) {
		probe_fsm_postpone(&w->fsm, &cfg, now);
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

/* --- watches ------------------------------------------------------------------------------------ */

struct watch *watch_free(struct watch *w)
{
	struct prober *p;

	if (!w)
		return NULL;
	p = w->p;
	if (p->current == w)
		p->current = NULL;
	dray_list_del(&w->link);
	dray_list_del(&w->queue);
	dray_heap_del(&p->due, &w->due);
	if (w->fsm.in_flight) {
		probe_cancel(w->probe);
		host_release(p, w->host);
	}
	host_unref(p, w->host);
	p->n_watches--;
	arm(p);
	free(w);
	return NULL;
}

int prober_watch_known(struct prober *p, const struct probe_target *target,
		       enum dmsg_segment_state state, void *owner, struct watch **ret,
		       struct dray_err *reterr)
{
	struct watch *w = calloc(1, sizeof(*w));
	int64_t now = now_ns(p);

	if (w)
		w->host = host_ref(p, target);
	if (!w || !w->host || dray_heap_reserve(&p->due, p->n_watches + 1) < 0) {
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
	p->n_watches++;
	probe_fsm_init(&w->fsm, now);
	probe_fsm_restore(&w->fsm, state, now);
	plan(w);
	arm(p);
	*ret = w;
	return 0;
}

int prober_watch(struct prober *p, const struct probe_target *target, void *owner,
		 struct watch **ret, struct dray_err *reterr)
{
	return prober_watch_known(p, target, DMSG_SEGMENT_STATE_UNKNOWN, owner, ret, reterr);
}

void watch_now(struct watch *w)
{
	probe_fsm_hurry(&w->fsm, now_ns(w->p));
	/* one in its host's queue is overdue already */
	if (!dray_heap_has(&w->due))
		return;
	plan(w);
	arm(w->p);
}

void watch_info(const struct watch *w, struct watch_info *ret)
{
	const struct probe_fsm *f = &w->fsm;

	*ret = (struct watch_info){
		.state = f->state,
		.reason = f->reason,
		.since_ns = f->since_ns,
		.latency_ns = f->latency_ns,
		.probes = f->probes,
		.failures = f->failed,
		.next_ns = f->next_ns,
		.verified = f->verified,
	};
}

const struct probe_target *watch_target(const struct watch *w)
{
	return &w->target;
}

/* --- the module --------------------------------------------------------------------------------- */

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
	/* each of them arms the timer, so that goes last */
	dray_list_for_each(&p->watches, w, struct watch, link)
		watch_free(w);
	sd_event_source_disable_unref(p->timer);
	dray_heap_deinit(&p->due);
	dray_map_deinit(&p->hosts);
	sd_event_unref(p->deps.event);
	free(p);
	return NULL;
}

void prober_reconfigured(struct prober *p)
{
	const struct probe_fsm_config cfg = fsm_config(p);
	int64_t now = now_ns(p);

	dray_list_for_each(&p->watches, w, struct watch, link) {
		probe_fsm_reconfigured(&w->fsm, &cfg, now);
		if (dray_heap_has(&w->due))
			plan(w);
	}
	arm(p);
}

void prober_totals(const struct prober *p, struct prober_totals *ret)
{
	*ret = (struct prober_totals){ .probes = p->probes,
				       .failures = p->failures,
				       .in_flight = p->in_flight,
				       .watches = p->n_watches };
}
