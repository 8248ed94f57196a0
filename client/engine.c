/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of a handle. One epoll instance, which dray_fd() returns, watches the data socket,
 * the completion doorbell and a timer.
 *
 * Once dray_fd() was called, the handle is armed while no function of the library waits: the agent
 * then rings for completions, and a poll on the descriptor wakes. A wait disarms the handle, takes
 * what is in the ring, spins while that pays (lib/linger.h), and arms it before it sleeps. After
 * each arming the ring is checked once more (see ring.h).
 *
 * A blocking function may take completions of other requests off the ring or the socket, which
 * leaves dray_fd() unreadable. It then sets the timer to expire at once (kick).
 */
#include <limits.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "client/internal.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"

/* Calls of dray_poll() between two polls of epoll. */
#define POLLS_PER_EPOLL 256

/* Waits that end while spinning, between two polls of epoll. */
#define WAITS_PER_EPOLL 16

/* Loads of the ring's index between two reads of the clock. */
#define LOADS_PER_CLOCK 32

void dc_engine_watch(struct dray *d)
{
	struct epoll_event ev = {
		.events = (d->reading ? EPOLLIN : 0U) | (d->writing ? EPOLLOUT : 0U),
		.data.u32 = ENGINE_SOCKET,
	};

	if (d->sock >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, d->sock, &ev);
}

static void set_timer(struct dray *d, int64_t at)
{
	struct itimerspec t = { 0 };

	if (at == d->timer_at)
		return;
	d->timer_at = at;
	if (at != INT64_MAX) {
		/* 0 would switch the timer off */
		at = dray_max(at, (int64_t)1);
		t.it_value.tv_sec = at / DRAY_NS_PER_SEC;
		t.it_value.tv_nsec = at % DRAY_NS_PER_SEC;
	}
	timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void kick(struct dray *d)
{
	set_timer(d, 0);
}

static void timer_expired(struct dray *d)
{
	uint64_t count;

	if (read(d->timer_fd, &count, sizeof(count)) > 0)
		d->timer_at = INT64_MAX;
}

static void socket_ready(struct dray *d, uint32_t events)
{
	if (events & EPOLLOUT) {
		d->writing = false;
		dc_engine_watch(d);
	}
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		dc_receive_all(d);
}

/* Polls epoll once and handles its events, then timers, completions and queued requests. */
static void poll_all(struct dray *d, int timeout_ms)
{
	struct epoll_event ev[3];
	int n = epoll_wait(d->epoll_fd, ev, DRAY_ARRAY_SIZE(ev), timeout_ms);

	d->doorbell_rang = false;
	for (int i = 0; i < n; i++) {
		if (ev[i].data.u32 == ENGINE_TIMER)
			timer_expired(d);
		else if (ev[i].data.u32 == ENGINE_SOCKET)
			socket_ready(d, ev[i].events);
		else
			d->doorbell_rang = true; /* the ring is read below */
	}
	if (d->state != SESSION_CLOSED && dc_session_next_tick(d) != INT64_MAX)
		dc_session_tick(d, dray_now().ns);
	dc_session_settle(d);
	dc_transfer_take_ring(d);
	dc_session_settle(d);
	dc_requests_flush(d);
	set_timer(d, dc_session_next_tick(d));
}

int64_t dc_engine_until(int timeout_ms)
{
	if (timeout_ms < 0)
		return INT64_MAX;
	return timeout_ms ? dray_now().ns + timeout_ms * DRAY_NS_PER_MS : 0;
}

/* Reads the clock only if there is a limit. */
static bool is_over(int64_t until)
{
	return !until || (until != INT64_MAX && dray_now().ns >= until);
}

static int left_ms(int64_t until)
{
	int64_t ms;

	if (until == INT64_MAX)
		return -1;
	ms = (until - dray_now().ns + DRAY_NS_PER_MS - 1) / DRAY_NS_PER_MS;
	return ms > INT_MAX ? INT_MAX : (int)dray_max(ms, (int64_t)0);
}

void dc_engine_limit(struct dray *d)
{
	struct dray_cpus cpus;

	if (d->spin_fixed) {
		dray_linger_limit(&d->linger, d->spin_ns);
		return;
	}
	dray_cpus_get(&cpus);
	dray_linger_limit(&d->linger, dray_cpus_can_spin(&cpus, NULL, 0) ? d->spin_ns : 0);
}

/* Spins until the ring has a completion (true), or spinning no longer pays. */
static bool spin(struct dray *d, int64_t until)
{
	int64_t now = dray_now().ns;

	dray_linger_begin(&d->linger);
	while (dray_linger_idle(&d->linger, now) && now < until) {
		for (int i = 0; i < LOADS_PER_CLOCK; i++) {
			if (dc_ring_pending(&d->ring)) {
				dray_linger_worked(&d->linger, now);
				return true;
			}
			dray_cpu_relax();
		}
		now = dray_now().ns;
	}
	return false;
}

static void sleep_until(struct dray *d, int64_t until)
{
	bool spins = d->linger.max_ns && d->ring.in_flight;
	bool pending;

	if (spins && spin(d, until)) {
		d->spun++;
		/* a busy ring must not starve the socket and the timers */
		if (++d->turns % WAITS_PER_EPOLL == 0)
			poll_all(d, 0);
		return;
	}
	d->slept++;
	pending = dc_ring_set_sleeping(&d->ring, true);
	poll_all(d, pending ? 0 : left_ms(until));
	if (spins && (pending || d->doorbell_rang))
		dray_linger_worked(&d->linger, dray_now().ns);
	dc_ring_set_sleeping(&d->ring, false);
}

/* Before dray_fd() is called, no program waits on the descriptor, and the agent need not ring. */
static void arm(struct dray *d)
{
	if (d->armed || !d->fd_given)
		return;
	d->armed = true;
	if (dc_ring_set_sleeping(&d->ring, true))
		kick(d);
}

static void disarm(struct dray *d)
{
	d->armed = false;
	dc_ring_set_sleeping(&d->ring, false);
}

static void take(struct dray *d)
{
	dc_transfer_take_ring(d);
	if (dc_session_settle(d))
		set_timer(d, dc_session_next_tick(d));
	dc_requests_call_back(d);
}

bool dc_engine_wait(struct dray *d, engine_ready_fn ready, const void *arg, int64_t until)
{
	bool ok;

	take(d);
	if (ready(d, arg)) {
		arm(d);
		return true;
	}
	if (d->must_read && !d->reading) {
		d->reading = true;
		dc_engine_watch(d);
	}
	dc_requests_flush(d);
	set_timer(d, dc_session_next_tick(d));
	disarm(d);
	do {
		/* after the limit, one last poll without sleeping */
		if (is_over(until))
			poll_all(d, 0);
		else
			sleep_until(d, until);
		take(d);
		ok = ready(d, arg);
	} while (!ok && !is_over(until));
	arm(d);
	return ok;
}

void dc_engine_leave(struct dray *d)
{
	if (d->requests.done_n || d->events_n)
		kick(d);
}

void dc_engine_poll(struct dray *d)
{
	poll_all(d, 0);
	/* a new ring is not armed, and what was taken here no longer makes dray_fd() readable */
	arm(d);
	dc_engine_leave(d);
}

int dray_fd(struct dray *d)
{
	if (dc_enter(d))
		return -DRAY_E_OUT_OF_ORDER;
	if (!d->fd_given) {
		d->fd_given = true;
		arm(d);
	}
	return d->epoll_fd;
}

/* Completions and events that can be taken, and callbacks that were run meanwhile. */
static size_t ready_count(const struct dray *d, uint32_t called_back)
{
	return (size_t)d->requests.done_n + d->events_n + (d->called_back - called_back);
}

static bool is_ready(struct dray *d, const void *called_back)
{
	return ready_count(d, *(const uint32_t *)called_back) || d->state == SESSION_CLOSED;
}

static int ready_or_closed(struct dray *d, uint32_t called_back)
{
	size_t n = ready_count(d, called_back);

	if (!n && d->state == SESSION_CLOSED)
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "%s", d->loss.msg);
	return n > INT_MAX ? INT_MAX : (int)n;
}

int dray_process(struct dray *d, int timeout_ms)
{
	uint32_t called_back;

	if (dc_enter(d))
		return -DRAY_E_OUT_OF_ORDER;
	called_back = d->called_back;
	take(d);
	/* a wait polls by itself */
	if (!timeout_ms || is_ready(d, &called_back)) {
		poll_all(d, 0);
		take(d);
	}
	if (timeout_ms && !is_ready(d, &called_back))
		dc_engine_wait(d, is_ready, &called_back, dc_engine_until(timeout_ms));
	else
		arm(d);
	return ready_or_closed(d, called_back);
}

int dray_poll(struct dray *d)
{
	uint32_t called_back;

	if (dc_enter(d))
		return -DRAY_E_OUT_OF_ORDER;
	called_back = d->called_back;
	if (d->armed)
		disarm(d);
	if (dc_ring_pending(&d->ring))
		take(d);
	if (++d->turns % POLLS_PER_EPOLL == 0) {
		poll_all(d, 0);
		take(d);
	}
	/* avoids speculative loads, which the agent's store would invalidate */
	if (!is_ready(d, &called_back))
		dray_cpu_relax();
	return ready_or_closed(d, called_back);
}
