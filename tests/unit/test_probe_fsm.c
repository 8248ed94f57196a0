/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of probes in virtual time, and the heap that orders probes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "agent/placement/probe/fsm.h"
#include "lib/cleanup.h"

#define MS 1000000LL
#define SEC 1000000000LL

static const struct dray_config cfg = { .probe = { .interval = 10 * SEC,
						   .backoff_min = 250 * MS,
						   .backoff_max = 5 * SEC,
						   .rise = 2,
						   .fall = 3 } };

struct rig {
	struct probe_fsm f;
	int64_t now;
	enum dmsg_segment_state old; /* before the last event */
};

static void init(struct rig *r)
{
	memset(r, 0, sizeof(*r));
	r->now = 1000 * SEC;
	probe_fsm_init(&r->f, DMSG_SEGMENT_STATE_UNKNOWN, r->now);
}

/* Waits for the next probe, which takes 3 ms and ends as given. Returns the wait. */
static int64_t probe(struct rig *r, bool ok)
{
	int64_t wait = r->f.next_ns - r->now;

	r->now = dray_max(r->now, r->f.next_ns);
	probe_fsm_begin(&r->f, r->now);
	assert_true(r->f.in_flight && r->f.next_ns == INT64_MAX);
	r->now += 3 * MS;
	r->old = probe_fsm_end(&r->f, &cfg, ok, ok ? "fine" : "refused", 3 * MS, r->now);
	return wait;
}

static void to_ready(struct rig *r)
{
	init(r);
	probe(r, true);
	assert_int_equal(r->f.state, DMSG_SEGMENT_STATE_READY);
}

static void to_lost(struct rig *r)
{
	to_ready(r);
	for (unsigned i = 0; i < cfg.probe.fall; i++)
		probe(r, false);
	assert_int_equal(r->f.state, DMSG_SEGMENT_STATE_LOST);
}

static void test_first(void **state)
{
	struct rig r;

	init(&r);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_UNKNOWN);
	assert_int_equal(r.f.next_ns, r.now);
	assert_string_equal(r.f.reason, "");
	r.now += SEC;
	assert_int_equal(probe_fsm_begin(&r.f, r.now), DMSG_SEGMENT_STATE_UNKNOWN);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_PROBING);
	assert_int_equal(r.f.since_ns, r.now);
	assert_string_not_equal(r.f.reason, "");
	r.now += 5 * MS;
	/* one success is enough for a segment that was never lost */
	assert_int_equal(probe_fsm_end(&r.f, &cfg, true, "fine", 5 * MS, r.now),
			 DMSG_SEGMENT_STATE_PROBING);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_int_equal(r.f.since_ns, r.now);
	assert_int_equal(r.f.latency_ns, 5 * MS);
	assert_string_equal(r.f.reason, "fine");
	assert_true(r.f.verified);
	assert_int_equal(r.f.probes, 1);
	assert_int_equal(r.f.failed, 0);
}

static void test_never_there(void **state)
{
	int64_t since, wait, full = cfg.probe.backoff_min;
	struct rig r;

	init(&r);
	probe(&r, false);
	since = r.f.since_ns;
	for (unsigned i = 0; i < 50; i++) {
		wait = probe(&r, false);
		/* the pause doubles up to the limit, minus jitter of up to half */
		assert_true(wait >= full / 2 && wait <= full);
		full = dray_min(2 * full, cfg.probe.backoff_max);
		/* a segment that never answered does not become lost */
		assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_PROBING);
		assert_int_equal(r.f.since_ns, since);
		assert_false(r.f.verified);
		assert_string_equal(r.f.reason, "refused");
	}
	assert_int_equal(r.f.failed, 51);
	probe(&r, true);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
}

static void test_interval(void **state)
{
	int64_t wait, low = INT64_MAX, high = 0;
	struct rig r;

	to_ready(&r);
	/* the first interval is random, so that probes that began together spread out */
	wait = probe(&r, true);
	assert_true(wait > 0 && wait <= cfg.probe.interval);
	for (unsigned i = 0; i < 200; i++) {
		wait = probe(&r, true);
		low = dray_min(low, wait);
		high = dray_max(high, wait);
	}
	assert_true(low > cfg.probe.interval * 7 / 8 && high <= cfg.probe.interval);
	assert_true(high - low > cfg.probe.interval / 16);
}

static void test_probes_begun_together_spread_out(void **state)
{
	unsigned slots[10] = { 0 };
	struct rig r;

	for (unsigned i = 0; i < 1000; i++) {
		memset(&r, 0, sizeof(r));
		probe_fsm_init(&r.f, DMSG_SEGMENT_STATE_UNKNOWN, 0);
		probe(&r, true);
		slots[(r.f.next_ns - r.now - 1) * 10 / cfg.probe.interval]++;
	}
	for (unsigned i = 0; i < 10; i++)
		assert_true(slots[i] > 50 && slots[i] < 200);
}

static void test_fall(void **state)
{
	struct rig r;
	int64_t since;

	to_ready(&r);
	since = r.f.since_ns;
	probe(&r, false);
	/* after a failure the next probe comes soon, not after the interval */
	assert_true(probe(&r, false) <= cfg.probe.backoff_min);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_int_equal(r.f.since_ns, since);
	assert_string_equal(r.f.reason, "refused");
	/* failures in a row: one success restarts the count */
	probe(&r, true);
	assert_true(probe(&r, false) > cfg.probe.interval / 2);
	probe(&r, false);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	probe(&r, false);
	assert_int_equal(r.old, DMSG_SEGMENT_STATE_READY);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(r.f.since_ns, r.now);
}

static void test_rise(void **state)
{
	struct rig r;
	int64_t since;

	to_lost(&r);
	since = r.f.since_ns;
	probe(&r, true);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_LOST);
	assert_string_equal(r.f.reason, "it answers again, 1 of 2 times: fine");
	/* successes in a row */
	assert_true(probe(&r, false) <= cfg.probe.backoff_min);
	probe(&r, true);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(r.f.since_ns, since);
	probe(&r, true);
	assert_int_equal(r.old, DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_int_equal(r.f.since_ns, r.now);
}

static void test_lost_long(void **state)
{
	struct rig r;

	to_lost(&r);
	for (unsigned i = 0; i < 100; i++)
		assert_true(probe(&r, false) <= cfg.probe.backoff_max);
	assert_true(r.f.next_ns - r.now >= cfg.probe.backoff_max / 2);
}

static void test_pause_of_ready_is_bounded(void **state)
{
	struct dray_config odd = cfg;
	struct rig r;

	/* a back-off longer than the interval must not delay the detection of a loss */
	odd.probe.backoff_min = odd.probe.backoff_max = 60 * SEC;
	to_ready(&r);
	r.now = r.f.next_ns;
	probe_fsm_begin(&r.f, r.now);
	probe_fsm_end(&r.f, &odd, false, "refused", 0, r.now);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_true(r.f.next_ns - r.now <= odd.probe.interval);
	/* limits in the wrong order have no effect */
	odd.probe.backoff_max = 10 * MS;
	probe_fsm_begin(&r.f, r.now);
	probe_fsm_end(&r.f, &odd, false, "refused", 0, r.now);
	assert_true(r.f.next_ns > r.now);
}

static void test_restored_state(void **state)
{
	struct rig r;

	init(&r);
	probe_fsm_init(&r.f, DMSG_SEGMENT_STATE_READY, r.now);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_false(r.f.verified);
	assert_int_equal(r.f.next_ns, r.now);
	probe(&r, true);
	assert_int_equal(r.old, DMSG_SEGMENT_STATE_READY);
	assert_true(r.f.verified);

	init(&r);
	probe_fsm_init(&r.f, DMSG_SEGMENT_STATE_READY, r.now);
	probe(&r, false);
	probe(&r, false);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);
	assert_false(r.f.verified);
	probe(&r, false);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_LOST);
	assert_true(r.f.verified);

	init(&r);
	probe_fsm_init(&r.f, DMSG_SEGMENT_STATE_LOST, r.now);
	probe(&r, false);
	assert_true(r.f.verified);
	probe(&r, true);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_LOST);
	probe(&r, true);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_READY);

	/* a restored state of probing has no information */
	init(&r);
	probe_fsm_init(&r.f, DMSG_SEGMENT_STATE_PROBING, r.now);
	assert_int_equal(r.f.state, DMSG_SEGMENT_STATE_UNKNOWN);
}

static void test_hurry(void **state)
{
	struct rig r;

	to_ready(&r);
	r.now += MS;
	probe_fsm_hurry(&r.f, r.now);
	assert_int_equal(r.f.next_ns, r.now);
	/* an overdue probe keeps its place */
	probe_fsm_hurry(&r.f, r.now + SEC);
	assert_int_equal(r.f.next_ns, r.now);
	/* during a probe: after a failure another one follows at once, after a success not */
	for (unsigned ok = 0; ok < 2; ok++) {
		probe_fsm_begin(&r.f, r.now);
		probe_fsm_hurry(&r.f, r.now);
		assert_int_equal(r.f.next_ns, INT64_MAX);
		probe_fsm_end(&r.f, &cfg, ok, "so it is", 0, r.now);
		assert_true(ok ? r.f.next_ns > r.now : r.f.next_ns == r.now);
	}
	/* only once */
	probe_fsm_begin(&r.f, r.now);
	probe_fsm_end(&r.f, &cfg, false, "refused", 0, r.now);
	assert_true(r.f.next_ns > r.now);
}

static void test_reconfigured(void **state)
{
	struct dray_config soon = cfg;
	int64_t next;
	struct rig r;

	to_ready(&r);
	probe(&r, true);
	next = r.f.next_ns;
	probe_fsm_reconfigured(&r.f, &cfg, r.now);
	assert_int_equal(r.f.next_ns, next);
	soon.probe.interval = SEC;
	probe_fsm_reconfigured(&r.f, &soon, r.now);
	assert_true(r.f.next_ns > r.now && r.f.next_ns <= r.now + SEC);
	probe_fsm_begin(&r.f, r.now);
	probe_fsm_reconfigured(&r.f, &soon, r.now);
	assert_int_equal(r.f.next_ns, INT64_MAX);
}

static void test_put_off(void **state)
{
	struct rig r;
	int64_t next;

	to_ready(&r);
	r.now = r.f.next_ns + 100 * SEC;
	probe_fsm_postpone(&r.f, &cfg, r.now);
	assert_true(r.f.next_ns >= r.now && r.f.next_ns < r.now + cfg.probe.interval);
	/* one that is due at once is not postponed */
	next = r.now;
	probe_fsm_hurry(&r.f, r.now);
	r.now += 100 * SEC;
	probe_fsm_postpone(&r.f, &cfg, r.now);
	assert_int_equal(r.f.next_ns, next);
	/* a probe that must confirm a failure is not postponed */
	probe(&r, false);
	next = r.f.next_ns;
	r.now += 100 * SEC;
	probe_fsm_postpone(&r.f, &cfg, r.now);
	assert_int_equal(r.f.next_ns, next);
}

/* --- any order of events -------------------------------------------------------------------------- */

static void check(const struct rig *r, enum dmsg_segment_state old, unsigned ok_run,
		  unsigned fail_run, const struct dray_config *c)
{
	enum dmsg_segment_state s = r->f.state;

	assert_true(s != DMSG_SEGMENT_STATE_UNKNOWN);
	if (old == DMSG_SEGMENT_STATE_PROBING)
		assert_int_equal(s, ok_run ? DMSG_SEGMENT_STATE_READY : DMSG_SEGMENT_STATE_PROBING);
	if (old == DMSG_SEGMENT_STATE_READY)
		assert_int_equal(s, fail_run >= c->probe.fall ? DMSG_SEGMENT_STATE_LOST :
								DMSG_SEGMENT_STATE_READY);
	if (old == DMSG_SEGMENT_STATE_LOST)
		assert_int_equal(s, ok_run >= c->probe.rise ? DMSG_SEGMENT_STATE_READY :
							      DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(r->f.successes, ok_run);
	assert_int_equal(r->f.failures, fail_run);
	assert_true(s == old || r->f.since_ns == r->now);
	assert_true(r->f.since_ns <= r->now);
	assert_true(r->f.next_ns >= r->now);
	assert_true(r->f.next_ns <= r->now + dray_max(c->probe.interval, c->probe.backoff_max));
	assert_true(r->f.failed <= r->f.probes);
	assert_string_not_equal(r->f.reason, "");
}

static void walk(unsigned seed)
{
	unsigned ok_run = 0, fail_run = 0, happy;
	struct dray_config c = cfg;
	enum dmsg_segment_state old;
	struct rig r;

	srandom(seed);
	c.probe.rise = 1 + (unsigned)random() % 4;
	c.probe.fall = 1 + (unsigned)random() % 4;
	happy = (unsigned)random() % 100;
	init(&r);
	for (unsigned i = 0; i < 500; i++) {
		bool ok = (unsigned)random() % 100 < happy;

		if (random() % 4 == 0)
			probe_fsm_hurry(&r.f, r.now);
		if (random() % 16 == 0)
			probe_fsm_reconfigured(&r.f, &c, r.now);
		r.now = dray_max(r.now, r.f.next_ns) + random() % SEC;
		if (random() % 16 == 0)
			probe_fsm_postpone(&r.f, &c, r.now);
		probe_fsm_begin(&r.f, r.now);
		if (random() % 16 == 0)
			probe_fsm_hurry(&r.f, r.now);
		r.now += random() % SEC;
		ok_run = ok ? ok_run + 1 : 0;
		fail_run = ok ? 0 : fail_run + 1;
		old = probe_fsm_end(&r.f, &c, ok, "so it is", 1, r.now);
		check(&r, old, ok_run, fail_run, &c);
	}
	assert_int_equal(r.f.probes, 500);
}

static void test_walks(void **state)
{
	for (unsigned seed = 1; seed <= 200; seed++)
		walk(seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first),
		cmocka_unit_test(test_never_there),
		cmocka_unit_test(test_interval),
		cmocka_unit_test(test_probes_begun_together_spread_out),
		cmocka_unit_test(test_fall),
		cmocka_unit_test(test_rise),
		cmocka_unit_test(test_lost_long),
		cmocka_unit_test(test_pause_of_ready_is_bounded),
		cmocka_unit_test(test_restored_state),
		cmocka_unit_test(test_hurry),
		cmocka_unit_test(test_reconfigured),
		cmocka_unit_test(test_put_off),
		cmocka_unit_test(test_walks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
