/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of a handle. One epoll instance watches the data socket, the completion doorbell and
 * a timer. dray_fd() returns a second one, which watches the first.
 *
 * Once dray_fd() was called, the handle is armed while no function of the library waits: the agent
 * then rings for completions, and a poll on the descriptor wakes. A wait disarms the handle, takes
 * what is in the ring, spins while that pays (lib/linger.h), and arms it before it sleeps. After
 * each arming the ring is checked once more (see ring.h).
 *
 * A blocking function may take completions of other requests off the ring or the socket, which
 * leaves the first epoll instance unreadable. It then writes to the eventfd that the second one
 * watches too (tell_user).
 */
#include <limits.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "client/internal.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/wake.h"

/* Calls of dray_poll() between two polls of epoll. */
#define POLLS_PER_EPOLL 256

/* Waits that end while spinning, between two polls of epoll. */
#define WAITS_PER_EPOLL 16

/* What one epoll_wait() returns: the socket, the doorbell, the timer, a pidfd. */
#define EVENTS 4

/* In a trial, spins for that many times as long: within 100 us an agent that sleeps wakes up and makes a small transfer. */
#define SPINS_OF_TRIAL 5

/*
 * A wait for copies of the store that take longer than NEAR_SPINS spins sleeps until so short a time before their end. One that takes
 * longer than FAR_SPINS sleeps until it is told: the wake-up is a small part of it.
 */
#define NEAR_SPINS 8
#define FAR_SPINS 64

/* Loads of the ring's index between two reads of the clock, and while an answer on the socket is awaited. */
#define LOADS_PER_CLOCK 32
#define LOADS_PER_EPOLL 4

void dc_engine_watch(struct dray *d)
{
	struct epoll_event ev = {
		.events = (d->reading ? EPOLLIN : 0U) | (d->writing ? EPOLLOUT : 0U),
		.data.u32 = ENGINE_SOCKET,
	};

	if (d->sock >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, d->sock, &ev);
}

void dc_engine_read(struct dray *d)
{
	if (d->reading)
		return;
	d->reading = true;
	dc_engine_watch(d);
}

static int64_t next_tick(const struct dray *d)
{
	return dray_min(dc_session_next_tick(d), dc_proof_next_tick(d));
}

/* A timer that expires too early is left: most deadlines never pass, and each change is a system call. */
static void set_timer(struct dray *d, int64_t at)
{
	struct itimerspec t = { 0 };

	if (at >= d->timer_at)
		return;
	d->timer_at = at;
	/* 0 would switch the timer off */
	at = dray_max(at, (int64_t)1);
	t.it_value.tv_sec = at / DRAY_NS_PER_SEC;
	t.it_value.tv_nsec = at % DRAY_NS_PER_SEC;
	timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

void dc_engine_wake_poller(struct dray *d)
{
	set_timer(d, 0);
}

/* Makes dray_fd() readable until the next dray_process() or dray_poll(). */
static void tell_user(struct dray *d)
{
	if (d->user_fd < 0 || d->ready_set)
		return;
	d->ready_set = true;
	dray_wake(d->ready_fd);
}

static void user_is_here(struct dray *d)
{
	if (!d->ready_set)
		return;
	d->ready_set = false;
	dray_wake_clear(d->ready_fd);
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
		d->threads.changed = true;
		dc_engine_watch(d);
	}
	/* the agent is gone, which is behind its last messages, and is reported until it is read */
	if (events & (EPOLLHUP | EPOLLERR))
		dc_engine_read(d);
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		dc_receive_all(d, events & (EPOLLHUP | EPOLLERR));
}

/* Handles the events of epoll, then timers, completions and queued requests. */
static void handle_all(struct dray *d, const struct epoll_event *ev, int n)
{
	d->doorbell_rang = false;
	for (int i = 0; i < n; i++) {
		if (ev[i].data.u32 == ENGINE_TIMER)
			timer_expired(d);
		else if (ev[i].data.u32 == ENGINE_SOCKET)
			socket_ready(d, ev[i].events);
		else if (ev[i].data.u32 == ENGINE_AGENT)
			dc_proof_check(d);
		else
			d->doorbell_rang = true; /* the ring is read below */
	}
	if (next_tick(d) != INT64_MAX) {
		int64_t now = dray_now().ns;

		dc_session_tick(d, now);
		dc_proof_tick(d, now);
	}
	dc_session_settle(d);
	dc_transfer_take_ring(d);
	dc_session_settle(d);
	dc_splits_pump(d);
	dc_requests_flush(d);
	set_timer(d, next_tick(d));
}

/* Polls epoll once, without sleeping. True if there was an event. */
static bool poll_all(struct dray *d)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(d->epoll_fd, ev, EVENTS, 0);

	handle_all(d, ev, n);
	return n > 0;
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
	int64_t spin_ns;

	if (d->spin_fixed) {
		dray_linger_limit(&d->linger, d->spin_ns, d->spin_ns);
		return;
	}
	dray_cpus_get(&cpus);
	spin_ns = dray_cpus_can_spin(&cpus, NULL, 0) ? d->spin_ns : 0;
	dray_linger_limit(&d->linger, spin_ns, SPINS_OF_TRIAL * spin_ns);
}

/* A wait for an answer. */
struct wait {
	int64_t since_ns; /* when it began */
	int64_t copy_ns;  /* how long the copies that it is for will still take */
};

/* The time without that of the copies: a wait that ends while they last has taken none. */
static int64_t time_of(const struct wait *w)
{
	return dray_max(w->since_ns, dray_now().ns - w->copy_ns);
}

/* Spins until the ring has a completion, or the socket an answer of the store (true), or spinning no longer pays. */
static bool spin(struct dray *d, const struct wait *w, int64_t until)
{
	bool socket = d->requests.store_n;
	int loads = socket ? LOADS_PER_EPOLL : LOADS_PER_CLOCK;
	int64_t now = w->since_ns;

	dray_linger_begin(&d->linger);
	/* a thread that wants the lock gets it */
	while (dray_linger_idle(&d->linger, now) && now + w->copy_ns < until &&
	       !dc_threads_contend(&d->threads)) {
		for (int i = 0; i < loads; i++) {
			if (dc_ring_pending(&d->ring)) {
				dray_linger_worked(&d->linger, now);
				return true;
			}
			dray_cpu_relax();
		}
		if (socket && poll_all(d)) {
			dray_linger_worked(&d->linger, now);
			return true;
		}
		now = time_of(w);
	}
	return false;
}

static struct wait wait_begin(const struct dray *d)
{
	int64_t now = dray_now().ns;

	return (struct wait){ now, dc_copies_left(&d->requests, now) };
}

/* Spinning may pay, if lib/linger.h says so: the answer comes from a worker, and soon. */
static bool may_spin(const struct dray *d, const struct wait *w)
{
	return d->linger.max_ns && w->copy_ns <= FAR_SPINS * d->linger.max_ns &&
	       (d->ring.in_flight || d->requests.store_n);
}

/* The wait first sleeps: the timer wakes it shortly before the copies end. */
static bool is_far(struct dray *d, const struct wait *w)
{
	int64_t near = NEAR_SPINS * d->linger.max_ns;

	if (w->copy_ns <= near || !d->linger.budget_ns)
		return false;
	set_timer(d, w->since_ns + w->copy_ns - near);
	return true;
}

static void sleep_until(struct dray *d, struct waiter *self, int64_t until)
{
	struct wait w = wait_begin(d);
	bool spins = may_spin(d, &w);
	uint32_t waited = d->requests.store_n;
	struct epoll_event ev[EVENTS];
	int n;

	if (d->threads.poller) {
		dc_threads_follow(d, self, until);
		return;
	}

	if (spins && !is_far(d, &w) && spin(d, &w, until)) {
		d->spun++;
		/* a busy ring must not starve the socket and the timers */
		if (++d->turns % WAITS_PER_EPOLL == 0)
			poll_all(d);
		return;
	}
	d->slept++;
	if (dc_ring_set_sleeping(&d->ring, true)) {
		poll_all(d);
		d->doorbell_rang = true;
	} else {
		n = dc_threads_poll(d, self, ev, EVENTS, left_ms(until));
		handle_all(d, ev, n);
	}
	if (spins && (d->doorbell_rang || d->requests.store_n < waited))
		dray_linger_worked(&d->linger, time_of(&w));
	/* another thread may have armed the handle meanwhile, and rely on the doorbell */
	if (!d->armed)
		dc_ring_set_sleeping(&d->ring, false);
}

/* Before dray_fd() is called, no program waits on the descriptor, and the agent need not ring. */
static void arm(struct dray *d)
{
	if (d->armed || d->user_fd < 0)
		return;
	d->armed = true;
	if (dc_ring_set_sleeping(&d->ring, true))
		tell_user(d);
}

static void disarm(struct dray *d)
{
	d->armed = false;
	/* the poller relies on the doorbell */
	if (!d->threads.poller)
		dc_ring_set_sleeping(&d->ring, false);
}

static void take(struct dray *d)
{
	dc_transfer_take_ring(d);
	dc_splits_pump(d);
	if (dc_session_settle(d))
		set_timer(d, next_tick(d));
	dc_requests_call_back(d);
}

bool dc_engine_wait(struct dray *d, engine_ready_fn ready, const void *arg, int64_t until)
{
	struct waiter self = { .ready = ready, .arg = arg };
	bool ok;

	take(d);
	if (ready(d, arg)) {
		arm(d);
		return true;
	}
	dc_requests_flush(d);
	set_timer(d, next_tick(d));
	disarm(d);
	do {
		/* after the limit, one last poll without sleeping */
		if (is_over(until))
			poll_all(d);
		else
			sleep_until(d, &self, until);
		take(d);
		ok = ready(d, arg);
		if (!ok)
			dc_engine_leave(d);
	} while (!ok && !is_over(until));
	dc_threads_succeed(d);
	arm(d);
	return ok;
}

void dc_engine_leave(struct dray *d)
{
	if (d->requests.done_n || dc_events_count(d))
		tell_user(d);
}

void dc_engine_poll(struct dray *d)
{
	poll_all(d);
	/* a new ring is not armed, and what was taken here no longer makes dray_fd() readable */
	arm(d);
	dc_engine_leave(d);
}

static int make_user_fd(struct dray *d)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd dray_auto_close = epoll_create1(EPOLL_CLOEXEC);
	int ready_fd dray_auto_close = dray_wake_new();

	if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, d->epoll_fd, &ev) < 0)
		return -errno;
	if (ready_fd < 0)
		return ready_fd;
	if (epoll_ctl(fd, EPOLL_CTL_ADD, ready_fd, &ev) < 0)
		return -errno;
	d->ready_fd = dray_take_fd(ready_fd);
	d->user_fd = dray_take_fd(fd);
	return 0;
}

int dray_fd(struct dray *d)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	int error = 0;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (d->user_fd >= 0)
		return d->user_fd;
	error = make_user_fd(d);
	if (error)
		return dc_fail(d, dc_code_of_errno(error), "a descriptor to poll: %s",
			       dray_errno_text(error));
	arm(d);
	dc_engine_leave(d);
	return d->user_fd;
}

/* The session is closed, and no proof can come that memory is free. */
static bool is_over_for_good(const struct dray *d)
{
	return d->state == SESSION_CLOSED && !dc_proof_may_come(d);
}

/* Completions and events that can be taken, and callbacks that were run meanwhile. */
static size_t ready_count(const struct dray *d, uint32_t called_back)
{
	return (size_t)d->requests.done_n + dc_events_count(d) + (d->called_back - called_back);
}

static bool is_ready(struct dray *d, const void *called_back)
{
	return ready_count(d, *(const uint32_t *)called_back) || is_over_for_good(d);
}

static int ready_or_closed(struct dray *d, uint32_t called_back)
{
	size_t n = ready_count(d, called_back);

	if (!n && is_over_for_good(d))
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "%s", d->loss.msg);
	return n > INT_MAX ? INT_MAX : (int)n;
}

int dray_process(struct dray *d, int timeout_ms)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint32_t called_back;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	user_is_here(d);
	called_back = d->called_back;
	take(d);
	/* a wait polls by itself */
	if (!timeout_ms || is_ready(d, &called_back)) {
		poll_all(d);
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
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint32_t called_back;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	user_is_here(d);
	called_back = d->called_back;
	if (d->armed)
		disarm(d);
	if (dc_ring_pending(&d->ring))
		take(d);
	if (++d->turns % POLLS_PER_EPOLL == 0) {
		poll_all(d);
		take(d);
	}
	/* avoids speculative loads, which the agent's store would invalidate */
	if (!is_ready(d, &called_back))
		dray_cpu_relax();
	return ready_or_closed(d, called_back);
}
