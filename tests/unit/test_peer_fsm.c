/* SPDX-License-Identifier: Apache-2.0 */
/* The peer state machine in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/fsm.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define MS 1000000LL
#define SEC 1000000000LL

struct rig {
	struct peer_fsm f; /* must be the first member */
	int64_t now;
	unsigned dials, ups, drops, closed, heartbeats, changes;
	bool was_up, needed, in_use, busy;
	bool told_rests; /* content of the last heartbeat */
	int dial_result, up_result;
};

static struct rig *of(struct peer_fsm *f)
{
	return dray_container_of(f, struct rig, f);
}

static void changed(struct peer_fsm *f, enum peer_state old, enum peer_event event)
{
	assert_int_not_equal(old, f->state);
	of(f)->changes++;
}

static int dial(struct peer_fsm *f, struct dray_err *reterr)
{
	of(f)->dials++;
	return of(f)->dial_result;
}

static int up(struct peer_fsm *f, struct dray_err *reterr)
{
	of(f)->ups++;
	return of(f)->up_result;
}

static void drop(struct peer_fsm *f)
{
	of(f)->drops++;
}

static void closed(struct peer_fsm *f, bool was_up)
{
	of(f)->closed++;
	of(f)->was_up = was_up;
}

static void heartbeat(struct peer_fsm *f, int64_t rest_ns)
{
	of(f)->heartbeats++;
	of(f)->told_rests = rest_ns != 0;
}

static bool needed(struct peer_fsm *f)
{
	return of(f)->needed;
}

static bool in_use(struct peer_fsm *f)
{
	return of(f)->in_use;
}

static bool busy(struct peer_fsm *f)
{
	return of(f)->busy;
}

static const struct peer_fsm_ops ops = { changed,   dial,   up,     drop, closed,
					 heartbeat, needed, in_use, busy };

static const struct dray_config cfg = {
	.peer = {
		.connect_timeout = 5 * SEC,
		.backoff_min = 50 * MS,
		.backoff_max = 5 * SEC,
		.heartbeat = 1 * SEC,
		.rest_heartbeat = 15 * SEC,
		.idle_timeout = 600 * SEC,
	},
};

static void init(struct rig *r, bool initiator)
{
	memset(r, 0, sizeof(*r));
	r->now = 1000 * SEC;
	r->needed = true;
	r->busy = true;
	peer_fsm_init(&r->f, &ops, &cfg, initiator, r->now);
	r->f.silence_ns = 3 * SEC;
}

static void step(struct rig *r, enum peer_event e)
{
	const struct dray_err why = dray_err_of(DRAY_E_PEER_LOST, "because");

	peer_step(&r->f, e, r->now, &why);
}

/* Advances the time to the next timer, and handles it. */
static void pass(struct rig *r)
{
	assert_true(r->f.timer_ns != INT64_MAX);
	r->now = dray_max(r->now, r->f.timer_ns);
	step(r, PEER_EVENT_TIMER);
}

static void to_ready(struct rig *r)
{
	init(r, true);
	step(r, PEER_EVENT_DIAL);
	step(r, PEER_EVENT_CONNECTED);
	step(r, PEER_EVENT_SECURED);
	step(r, PEER_EVENT_AGREED);
	assert_int_equal(r->f.state, PEER_STATE_READY);
}

static void test_initiator(void **state)
{
	struct rig r;

	to_ready(&r);
	assert_int_equal(r.dials, 1);
	assert_int_equal(r.ups, 1);
	assert_int_equal(r.changes, 4);
	assert_int_equal(r.drops, 0);
}

static void test_acceptor(void **state)
{
	struct rig r;

	init(&r, false);
	step(&r, PEER_EVENT_ACCEPTED);
	assert_int_equal(r.f.state, PEER_STATE_HELLO);
	step(&r, PEER_EVENT_AGREED);
	assert_int_equal(r.f.state, PEER_STATE_READY);
	/* the accepting side does not connect itself */
	step(&r, PEER_EVENT_FAILED);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_true(r.was_up);
	assert_int_equal(r.dials, 0);
}

static void test_attempt_times_out(void **state)
{
	struct rig r;
	int64_t began;

	init(&r, true);
	began = r.now;
	step(&r, PEER_EVENT_DIAL);
	r.now += 4 * SEC;
	step(&r, PEER_EVENT_CONNECTED);
	/* one limit for connect and handshake together */
	assert_int_equal(r.f.timer_ns, began + 5 * SEC);
	pass(&r);
	assert_int_equal(r.f.state, PEER_STATE_BACKOFF);
	assert_int_equal(r.f.why.code, DRAY_E_PEER_UNREACHABLE);
	assert_int_equal(r.drops, 1);
}

static void test_backoff_doubles(void **state)
{
	int64_t span = 50 * MS;
	struct rig r;

	init(&r, true);
	r.dial_result = -ECONNREFUSED;
	step(&r, PEER_EVENT_DIAL);
	for (unsigned i = 0; i < 20; i++) {
		int64_t pause = r.f.timer_ns - r.now;

		assert_int_equal(r.f.state, PEER_STATE_BACKOFF);
		assert_true(pause >= span / 2 && pause <= span);
		span = dray_min(span * 2, 5 * SEC);
		pass(&r);
	}
	assert_int_equal(r.dials, 21);
	/* a success resets the back-off */
	r.dial_result = 0;
	pass(&r);
	step(&r, PEER_EVENT_CONNECTED);
	step(&r, PEER_EVENT_SECURED);
	step(&r, PEER_EVENT_AGREED);
	assert_int_equal(r.f.failures, 0);
}

/* An import that does not wait wants to know at once whether the address still refuses. */
static void test_dial_ends_backoff(void **state)
{
	struct rig r;

	init(&r, true);
	r.dial_result = -ECONNREFUSED;
	step(&r, PEER_EVENT_DIAL);
	assert_int_equal(r.f.state, PEER_STATE_BACKOFF);
	step(&r, PEER_EVENT_DIAL);
	assert_int_equal(r.f.state, PEER_STATE_BACKOFF);
	assert_int_equal(r.dials, 2);
	r.dial_result = 0;
	step(&r, PEER_EVENT_DIAL);
	assert_int_equal(r.f.state, PEER_STATE_CONNECTING);
	/* it does not disturb an attempt */
	step(&r, PEER_EVENT_DIAL);
	assert_int_equal(r.dials, 3);
}

static void test_jitter_differs(void **state)
{
	struct rig a, b;

	init(&a, true);
	init(&b, true);
	a.dial_result = b.dial_result = -1;
	step(&a, PEER_EVENT_DIAL);
	step(&b, PEER_EVENT_DIAL);
	assert_int_not_equal(a.f.retry_ns, b.f.retry_ns);
}

static void test_not_needed(void **state)
{
	struct rig r;

	init(&r, true);
	step(&r, PEER_EVENT_DIAL);
	r.needed = false;
	step(&r, PEER_EVENT_UNNEEDED);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_false(r.was_up);

	init(&r, true);
	step(&r, PEER_EVENT_DIAL);
	step(&r, PEER_EVENT_FAILED);
	assert_int_equal(r.f.state, PEER_STATE_BACKOFF);
	r.needed = false;
	pass(&r);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);

	/* once the connection is up, that is no reason to close it */
	to_ready(&r);
	r.needed = false;
	step(&r, PEER_EVENT_UNNEEDED);
	assert_int_equal(r.f.state, PEER_STATE_READY);
}

static void test_refused(void **state)
{
	const struct dray_err why = dray_err_of(DRAY_E_PEER_DENIED, "wrong key");
	struct rig r;

	init(&r, true);
	step(&r, PEER_EVENT_DIAL);
	peer_step(&r.f, PEER_EVENT_REFUSED, r.now, &why);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_int_equal(r.f.why.code, DRAY_E_PEER_DENIED);
	assert_string_equal(r.f.why.msg, "wrong key");
	assert_int_equal(r.f.timer_ns, INT64_MAX);
	step(&r, PEER_EVENT_DIAL);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_int_equal(r.dials, 1);
}

static void test_heartbeats(void **state)
{
	struct rig r;

	to_ready(&r);
	for (unsigned i = 0; i < 10; i++) {
		r.f.heard_ns = r.now;
		pass(&r);
	}
	assert_int_equal(r.heartbeats, 10);
	assert_int_equal(r.f.state, PEER_STATE_READY);
	/* other messages count as signs of life */
	r.f.heard_ns = r.f.sent_ns = r.now += 500 * MS;
	r.f.timer_ns = r.now;
	pass(&r);
	assert_int_equal(r.heartbeats, 10);
	assert_int_equal(r.f.timer_ns, r.now + 1 * SEC);
}

static void test_silence(void **state)
{
	struct rig r;
	int64_t heard;

	to_ready(&r);
	heard = r.now;
	while (r.f.state == PEER_STATE_READY)
		pass(&r);
	assert_int_equal(r.now - heard, 3 * SEC);
	assert_int_equal(r.f.why.code, DRAY_E_PEER_LOST);
	assert_true(r.was_up);
}

static void heard(struct rig *r, int64_t rest_ns)
{
	r->f.heard_ns = r->now;
	r->f.peer_rest_ns = rest_ns;
	step(r, PEER_EVENT_HEARTBEAT);
}

/* Three seconds without work on this side; the peer still has work. */
static void to_rest(struct rig *r)
{
	to_ready(r);
	r->busy = false;
	for (unsigned i = 0; i < 3; i++) {
		assert_false(r->f.rests);
		heard(r, 0);
		pass(r);
	}
	assert_true(r->f.rests);
	assert_true(r->told_rests);
	assert_int_equal(r->f.timer_ns, r->now + 1 * SEC);
}

static void to_slow(struct rig *r)
{
	to_rest(r);
	heard(r, 20 * SEC);
	/* the next multiple of the interval, when other peers' heartbeats are sent too */
	assert_int_equal(r->f.timer_ns, (r->now / (15 * SEC) + 1) * 15 * SEC);
	r->heartbeats = 0;
}

static void test_rest(void **state)
{
	struct rig r;
	int64_t last;

	to_slow(&r);
	last = r.now;
	pass(&r);
	assert_int_equal(r.heartbeats, 1);
	assert_true(r.told_rests);
	/* three times the interval that the peer announced */
	while (r.f.state == PEER_STATE_READY)
		pass(&r);
	assert_int_equal(r.now - last, 60 * SEC);
	assert_int_equal(r.f.why.code, DRAY_E_PEER_LOST);
}

/*
 * Work on this side: a heartbeat tells the peer at once, and the usual limit for its answer
 * applies.
 */
static void test_work_ends_rest(void **state)
{
	struct rig r;
	int64_t began;

	to_slow(&r);
	r.now += 10 * SEC;
	began = r.now;
	step(&r, PEER_EVENT_USED);
	assert_int_equal(r.heartbeats, 1);
	assert_false(r.told_rests);
	assert_int_equal(r.f.timer_ns, began + 1 * SEC);
	r.busy = true;
	while (r.f.state == PEER_STATE_READY)
		pass(&r);
	assert_int_equal(r.now - began, 3 * SEC);
}

/* Work on the peer's side: its heartbeat is answered at once, even without work here. */
static void test_peer_ends_rest(void **state)
{
	struct rig r;

	to_slow(&r);
	r.now += 10 * SEC;
	heard(&r, 0);
	assert_int_equal(r.heartbeats, 1);
	assert_true(r.told_rests);
	assert_int_equal(r.f.timer_ns, r.now + 1 * SEC);
	/* no change: no answer */
	heard(&r, 0);
	heard(&r, 15 * SEC);
	assert_int_equal(r.heartbeats, 1);
}

/* While one side has work, or just had some, the interval stays short. */
static void test_no_rest(void **state)
{
	struct rig r;

	to_ready(&r);
	for (unsigned i = 0; i < 20; i++) {
		r.busy = i % 3 == 0;
		heard(&r, 15 * SEC);
		pass(&r);
		assert_false(r.f.rests);
	}
	assert_int_equal(r.heartbeats, 20);
	to_rest(&r);
	r.heartbeats = 0;
	for (unsigned i = 0; i < 20; i++) {
		heard(&r, 0);
		pass(&r);
	}
	assert_int_equal(r.heartbeats, 20);
}

/* Our process was stopped: the peer gets the time of one more heartbeat. */
static void test_late_timer(void **state)
{
	struct rig r;

	to_ready(&r);
	r.now += 60 * SEC;
	step(&r, PEER_EVENT_TIMER);
	assert_int_equal(r.f.state, PEER_STATE_READY);
	assert_true(r.f.timer_ns <= r.now + 1 * SEC);
	pass(&r);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
}

static void test_idle(void **state)
{
	struct rig r;
	int64_t began;

	to_ready(&r);
	began = r.now;
	r.in_use = true;
	for (unsigned i = 0; i < 2000 && r.f.state == PEER_STATE_READY; i++) {
		r.f.heard_ns = r.now;
		pass(&r);
		r.in_use = r.now - began < 1000 * SEC;
	}
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_int_equal(r.f.why.code, DRAY_OK);
	assert_true(r.now - began >= 1600 * SEC && r.now - began <= 1602 * SEC);
}

static void test_draining(void **state)
{
	struct rig r;

	to_ready(&r);
	step(&r, PEER_EVENT_DRAINS);
	assert_int_equal(r.f.state, PEER_STATE_DRAINING);
	step(&r, PEER_EVENT_DRAINS);
	r.f.heard_ns = r.now;
	pass(&r);
	assert_int_equal(r.heartbeats, 1);
	step(&r, PEER_EVENT_RESUMED);
	assert_int_equal(r.f.state, PEER_STATE_READY);
	step(&r, PEER_EVENT_DRAINS);
	step(&r, PEER_EVENT_CLOSE);
	assert_true(r.was_up);
}

static void test_claim(void **state)
{
	struct rig r;

	init(&r, false);
	step(&r, PEER_EVENT_ACCEPTED);
	step(&r, PEER_EVENT_RIVAL);
	assert_int_equal(r.f.state, PEER_STATE_CLAIM);
	step(&r, PEER_EVENT_AGREED);
	assert_int_equal(r.f.state, PEER_STATE_CLAIM);
	step(&r, PEER_EVENT_CLEARED);
	step(&r, PEER_EVENT_AGREED);
	assert_int_equal(r.f.state, PEER_STATE_READY);

	/* the claim does not wait for ever */
	init(&r, false);
	step(&r, PEER_EVENT_ACCEPTED);
	step(&r, PEER_EVENT_RIVAL);
	pass(&r);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
	assert_false(r.was_up);
}

static void test_up_fails(void **state)
{
	struct rig r;

	init(&r, false);
	r.up_result = -ENOMEM;
	step(&r, PEER_EVENT_ACCEPTED);
	step(&r, PEER_EVENT_AGREED);
	assert_int_equal(r.f.state, PEER_STATE_CLOSED);
}

/*
 * Any events in any order: no assertion fails, no timer runs in an ended machine, and the end comes
 * at most once.
 */
static void test_random_walk(void **state)
{
	uint64_t x = 88172645463325252u;
	struct rig r;

	for (unsigned walk = 0; walk < 2000; walk++) {
		init(&r, walk & 1);
		for (unsigned i = 0; i < 60; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			r.needed = x >> 20 & 3;
			r.in_use = x >> 22 & 1;
			r.dial_result = (x >> 23 & 7) ? 0 : -1;
			r.now += (int64_t)(x >> 30 & 0xfffffff) * 8;
			if (x >> 58 & 1)
				r.f.heard_ns = r.now;
			step(&r, (enum peer_event)(x % PEER_EVENT_N));
			if (r.f.state == PEER_STATE_CLOSED)
				assert_true(r.f.timer_ns == INT64_MAX);
			else if (r.f.state != PEER_STATE_IDLE)
				assert_true(r.f.timer_ns != INT64_MAX);
		}
		assert_true(r.closed <= 1);
		assert_int_equal(r.closed, r.f.state == PEER_STATE_CLOSED);
	}
}

static void test_names(void **state)
{
	for (unsigned i = 0; i < PEER_STATE_N; i++)
		assert_true(*peer_state_name((enum peer_state)i));
	for (unsigned i = 0; i < PEER_EVENT_N; i++)
		assert_true(*peer_event_name((enum peer_event)i));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_initiator),
		cmocka_unit_test(test_acceptor),
		cmocka_unit_test(test_attempt_times_out),
		cmocka_unit_test(test_backoff_doubles),
		cmocka_unit_test(test_dial_ends_backoff),
		cmocka_unit_test(test_jitter_differs),
		cmocka_unit_test(test_not_needed),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_heartbeats),
		cmocka_unit_test(test_rest),
		cmocka_unit_test(test_work_ends_rest),
		cmocka_unit_test(test_peer_ends_rest),
		cmocka_unit_test(test_no_rest),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_late_timer),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_draining),
		cmocka_unit_test(test_claim),
		cmocka_unit_test(test_up_fails),
		cmocka_unit_test(test_random_walk),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
