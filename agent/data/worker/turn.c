/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's thread. A turn handles commands, sockets, client rings, transports and timeouts. After work the worker polls for as
 * long as lib/linger.h allows, at most cfg.poll_time_ns. Then it announces every client ring, looks once more, and
 * sleeps on its descriptors.
 */

#include "agent/data/transfer/transport.h"
#include "agent/data/worker/internal.h"
#include "agent/process/process.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"

/* Slots of the event ring that clients must leave for the worker's own events. */
#define EVENTS_RESERVE 512
#define LOOK_AGAIN_NS ((int64_t)DRAY_NS_PER_MS)
/* Without a part of large payloads for so long, their sender has stopped. */
#define FILLING_NS ((int64_t)DRAY_NS_PER_MS)
/*
 * Interval between looks at descriptors while rings are polled, because the system call costs as much as a small
 * transfer. It grows while nothing is found, unless a transport waits for a peer's answer on one of them.
 */
#define LOOK_MIN_NS 2000
#define LOOK_MAX_NS 16000
/*
 * Time slices of a worker that moves data, the kernel's least. A thread that wakes up gets the processor of one with longer slices:
 * so the worker has little to wait for beside engines that compute, but it interrupts its own clients as well. Those that send
 * many requests for the control thread would be interrupted by each; therefore slices are short only for so long after data.
 */
#define TIME_SLICE_NS (DRAY_NS_PER_MS / 10)
#define MOVING_NS ((int64_t)DRAY_NS_PER_SEC)

void worker_event(struct worker *w, const struct event *ev)
{
	w->event_pending = true;
	dray_spsc_send(&w->events, ev);
}

bool worker_has_room(const struct worker *w)
{
	return !w->events.n_late && dray_spsc_room(&w->events) > EVENTS_RESERVE;
}

void worker_command_ready(struct loop_source *source, uint32_t events)
{
	/* every turn looks for commands anyway */
	dray_wake_clear(source->fd);
}

/* Sockets with something to read, in turn, while the owner may work. True if there were any. */
static bool read_sockets(struct xfer_owner *o)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct wsession *s;
	bool did;

	dray_list_splice(&now, &o->ready);
	did = !dray_list_empty(&now);
	while (owner_may_work(o) && (s = dray_list_pop(&now, struct wsession, ready_link)))
		if (wsession_read(s) && dray_list_empty(&s->ready_link))
			dray_list_add(&o->ready, &s->ready_link);
	/* those that were not read come first in the next turn */
	dray_list_splice(&now, &o->ready);
	dray_list_splice(&o->ready, &now);
	return did;
}

static bool any_ready(const struct worker *w)
{
	dray_list_for_each(&w->core.owners, o, const struct xfer_owner, link)
		if (!dray_list_empty(&o->ready))
			return true;
	return false;
}

/*
 * Input of clients, from sockets and rings: for each owner as much work, whatever its clients send. True if any did work or has
 * more.
 */
static bool run_clients(struct worker *w)
{
	bool did = false;

	if (!worker_has_room(w))
		return false;
	dray_list_for_each(&w->core.owners, o, struct xfer_owner, link) {
		bool rings_first = o->rings_first;

		owner_begin_turn(o);
		if (rings_first)
			did |= rings_poll(o);
		did |= read_sockets(o);
		/* sockets may have taken the whole turn */
		o->rings_first = !rings_first && !owner_may_work(o);
		if (!rings_first)
			did |= rings_poll(o);
	}
	return did;
}

/* Announces every ring and transport. True if there is work after all. */
static bool announce_sleep(struct worker *w)
{
	struct core *c = &w->core;
	bool work;

	w->stalled = false;
	work = rings_announce(w);
	transports_each(c, i, announce)
		work |= c->transports[i]->announce(c, c->transport_state[i]);
	return work || !dray_spsc_empty(&w->commands);
}

/* Parts of large payloads that follow each other are not polled for while they come: the sender is busy with them, and the waits are many. */
static bool may_poll(struct worker *w)
{
	const struct core *c = &w->core;

	if (!c->filling || c->now_ns - c->filled_ns > FILLING_NS)
		return dray_linger_idle(&w->linger, c->now_ns);
	/* it sleeps, which tells nothing about other waits */
	dray_linger_begin(&w->linger);
	return false;
}

/* How long to sleep without work, ns; 0: not at all, -1: until an event. */
static int64_t rest(struct worker *w, int64_t next)
{
	int64_t timeout;

	if (may_poll(w)) {
		dray_cpu_relax();
		return 0;
	}
	timeout = next == INT64_MAX ? -1 : dray_max(next - w->core.now_ns, (int64_t)0);
	if (!timeout)
		return 0;
	if (announce_sleep(w)) {
		rings_awake(w);
		return 0;
	}
	/* waiting for room in the event ring, for a client to reap, for room for descriptors, or for memory has no event of its own */
	if (w->stalled || w->events.n_late || any_ready(w) || !dray_list_empty(&w->again))
		timeout = timeout < 0 ? LOOK_AGAIN_NS : dray_min(timeout, LOOK_AGAIN_NS);
	return timeout;
}

/* Handles descriptors; sleeps for up to `timeout` ns, -1: until an event. */
static void look(struct worker *w, int64_t timeout)
{
	int n;

	w->looked_ns = w->core.now_ns;
	n = loop_turn(&w->core.loop, timeout);
	w->look_ns = n || timeout || !w->look_ns ? LOOK_MIN_NS : w->look_ns * 2;
	w->look_ns = dray_min(w->look_ns, (int64_t)LOOK_MAX_NS);
	if (n > 0) {
		/* also while it polls: a peer's frames and answers come as events alone */
		if (timeout)
			w->looked_ns = dray_now().ns;
		dray_linger_worked(&w->linger, w->looked_ns);
	}
	if (timeout)
		rings_awake(w);
}

/* True if descriptors can wait: rings are polled, and the last look was a short time ago. */
static bool looked_lately(const struct worker *w)
{
	const struct core *c = &w->core;
	int64_t interval = c->awaited ? LOOK_MIN_NS : w->look_ns;

	return rings_polled(w) && c->now_ns - w->looked_ns < interval;
}

/* What reads from other agents, and questions to them: there is nothing of it in most turns. Returns when to look again. */
static int64_t store_tick(struct worker *w)
{
	int64_t next;

	if (dray_list_empty(&w->watched) && dray_list_empty(&w->directs) &&
	    dray_list_empty(&w->readings) && dray_list_empty(&w->steps))
		return INT64_MAX;
	next = dray_min(silences_tick(w), sources_step(w));
	next = dray_min(next, directs_tick(w));
	readings_check(w, false);
	return next;
}

/* Failures are ignored: they only affect speed beside busy processors. */
static void set_time_slice(struct worker *w, bool moves)
{
	w->moves = moves;
	if (moves)
		process_limit_time_slice(TIME_SLICE_NS, &w->usual_slice);
	else
		process_restore_time_slice(w->usual_slice);
}

void worker_turn(struct worker *w, bool may_sleep)
{
	struct core *c = &w->core;
	int64_t next, timeout = 0;
	bool did, more = false;

	c->now_ns = dray_now().ns;
	turn_meter_between(&w->turns, c->now_ns);
	did = worker_run_commands(w);
	did |= run_clients(w);
	wsessions_again(w);
	/* before the transports: a transfer whose wait word is set has slices for them */
	next = xfers_tick(c);
	c->kicked = false;
	transports_each(c, i, progress)
		more |= c->transports[i]->progress(c, c->transport_state[i]);
	if (!did && !more) {
		/* without work of its own: helps another worker */
		transports_each(c, i, assist)
			more |= c->transports[i]->assist(c, c->transport_state[i]);
	}
	/* after the transports, which may have received something */
	next = dray_min(next, store_tick(w));
	transports_each(c, i, tick)
		next = dray_min(next, c->transports[i]->tick(c, c->transport_state[i]));
	/* after all that ends transfers */
	if (!dray_list_empty(&w->kept))
		keeps_check(w);
	more |= c->kicked;
	rings_flush(w);
	dray_spsc_flush(&w->events);
	if (w->event_pending) {
		w->event_pending = false;
		dray_wake(w->event_fd);
	}
	if ((c->now_ns - c->moved_ns < MOVING_NS) != w->moves)
		set_time_slice(w, !w->moves);
	w->busy = did || more;
	if (w->busy)
		dray_linger_worked(&w->linger, c->now_ns);
	else if (may_sleep)
		timeout = rest(w, next);
	if (may_sleep && !timeout && looked_lately(w))
		return;
	look(w, timeout);
}

void *worker_main(void *arg)
{
	struct worker *w = arg;

	while (!w->quit)
		worker_turn(w, true);
	worker_event(w, &(struct event){ .type = EVENT_QUIT });
	/* after all events that the control thread has not taken yet */
	while (!dray_spsc_flush(&w->events)) {
		dray_wake(w->event_fd);
		nanosleep(&(struct timespec){ .tv_nsec = DRAY_NS_PER_MS }, NULL);
	}
	dray_wake(w->event_fd);
	return NULL;
}
