/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/drive.h"

#include <errno.h>
#include <sys/epoll.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/err.h"
#include "lib/time.h"

/* The deadline of a transfer; an agent that ends none for longer is stopped. */
#define SILENCE_MS 30000
/* The default of libdray's spin_us. */
#define SPIN_NS 20000
/* Polls between two reads of the clock. */
#define TURNS_PER_CLOCK 1024

static int silence_ms(const struct bench_drive *d)
{
	return SILENCE_MS + (int)(d->plan->timeout_ns / DRAY_NS_PER_MS);
}

static int silent(const struct bench_drive *d)
{
	return ctl_fail(d->plan->ctl, CTL_EXIT_UNREACHABLE,
			"the agent has ended no transfer for %d s; check whether it is stopped",
			silence_ms(d) / 1000);
}

static int start(struct bench_drive *d, struct bench_session *s)
{
	int64_t now = dray_now().ns;
	int n;

	d->active_ns = now;
	if (!d->left || now >= d->ends_ns || (d->load && bench_load_has_failed(d->load)))
		return 0;
	n = bench_session_start(s, d->left, now);
	if (n < 0)
		return -1;
	d->left -= (uint64_t)n;
	d->in_flight += (uint64_t)n;
	return 0;
}

/* Takes what libdray has ready, and starts new transfers. The number that ended, or -1. */
static int serve(struct bench_drive *d, struct bench_session *s, int ready)
{
	int n;

	if (!ready)
		return 0;
	if (ready < 0)
		return bench_failed(d->plan->ctl, s->end.d, "the session has ended", ready);
	n = bench_session_complete(s, d->lap);
	if (n < 0)
		return -1;
	d->in_flight -= (uint64_t)n;
	return start(d, s) < 0 ? -1 : n;
}

/* Polls each session. arm: prepares their descriptors for a sleep. The functions below return as serve() does. */
static int look(struct bench_drive *d, bool arm)
{
	int n = 0;

	for (uint64_t i = 0; i < d->plan->sessions; i++) {
		struct bench_session *s = &d->sessions[i];
		int got;

		if (!s->in_flight)
			continue;
		got = serve(d, s, arm ? dray_process(s->end.d, 0) : dray_poll(s->end.d));
		if (got < 0)
			return -1;
		n += got;
	}
	return n;
}

static int spin(struct bench_drive *d)
{
	for (unsigned i = 0; i < TURNS_PER_CLOCK; i++) {
		int n = look(d, false);

		if (n)
			return n;
	}
	if (dray_now().ns - d->active_ns > silence_ms(d) * DRAY_NS_PER_MS)
		return silent(d);
	return 0;
}

static int wait_for_one(struct bench_drive *d)
{
	struct bench_session *s = d->sessions;
	int ready = dray_process(s->end.d, silence_ms(d));

	return ready ? serve(d, s, ready) : silent(d);
}

static int sleep_on_all(struct bench_drive *d)
{
	struct epoll_event ev[CTL_SESSIONS_MAX];
	int n = epoll_wait(d->epoll_fd, ev, CTL_SESSIONS_MAX, silence_ms(d)), ended = 0;

	if (n < 0 && errno != EINTR)
		return ctl_failed(d->plan->ctl, "epoll failed: %s", dray_errno_text(errno));
	if (!n)
		return silent(d);
	for (int i = 0; i < n; i++) {
		struct bench_session *s = ev[i].data.ptr;
		int got = serve(d, s, dray_process(s->end.d, 0));

		if (got < 0)
			return -1;
		ended += got;
	}
	return ended;
}

static int wait_for_all(struct bench_drive *d)
{
	int64_t until = dray_now().ns + d->spin_ns;
	int n = 0;

	/* Without polls in between, the descriptors are still prepared. */
	if (!d->spin_ns)
		return sleep_on_all(d);
	while (!n && dray_now().ns < until)
		n = look(d, false);
	if (!n)
		n = look(d, true);
	return n ? n : sleep_on_all(d);
}

static int turn(struct bench_drive *d)
{
	if (d->plan->wait == CTL_WAIT_METHOD_SPIN)
		return spin(d);
	return d->plan->sessions == 1 ? wait_for_one(d) : wait_for_all(d);
}

int bench_drive_lap(struct bench_drive *d, uint64_t count, int64_t duration_ns,
		    struct bench_lap *ret)
{
	int64_t began = dray_now().ns;

	*ret = (struct bench_lap){ .transfers = 0 };
	d->lap = ret;
	d->left = count ? count : UINT64_MAX;
	d->ends_ns = count ? INT64_MAX : began + duration_ns;
	for (uint64_t i = 0; i < d->plan->sessions; i++)
		if (start(d, &d->sessions[i]) < 0)
			return -1;
	while (d->in_flight)
		if (turn(d) < 0)
			return -1;
	ret->duration_ns = dray_now().ns - began;
	return 0;
}

int bench_drive_open(struct bench_drive *d, const struct bench_plan *p,
		     struct bench_session *sessions)
{
	struct dray_cpus cpus;

	*d = (struct bench_drive){ .plan = p, .sessions = sessions, .epoll_fd = -1 };
	dray_cpus_get(&cpus);
	if (p->wait == CTL_WAIT_METHOD_ADAPTIVE && dray_cpus_can_spin(&cpus, NULL, 0))
		d->spin_ns = SPIN_NS;
	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	for (uint64_t i = 0; i < p->sessions; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &sessions[i] };

		if (d->epoll_fd < 0 ||
		    epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, dray_fd(sessions[i].end.d), &ev))
			return ctl_failed(p->ctl, "cannot use epoll: %s", dray_errno_text(errno));
	}
	return 0;
}

void bench_drive_close(struct bench_drive *d)
{
	d->epoll_fd = dray_close(d->epoll_fd);
}
