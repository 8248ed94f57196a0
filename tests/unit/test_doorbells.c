/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which side rings the doorbell, and how often: libdray's end of a ring and the worker's end in one
 * thread, so that the test chooses the order of their steps.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/data/transfer/transport.h"
#include "agent/process/process.h"
#include "lib/time.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 16

static struct ring_rig rig;

static int setup(void **state)
{
	ring_rig_init(&rig, 2, ENTRIES, 20000, false);
	return 0;
}

static int teardown(void **state)
{
	ring_rig_deinit(&rig);
	return 0;
}

/*
 * Returns how often the client has rung since the last call. The agent does not see these
 * doorbells.
 */
static unsigned rung(unsigned session)
{
	eventfd_t n = 0;

	if (eventfd_read(rig.rings[session].doorbell_fd, &n) < 0)
		return 0;
	return (unsigned)n;
}

/* Returns true if the agent has rung. */
static bool told(unsigned session)
{
	struct epoll_event ev;

	return epoll_wait(ring_end_completion_fd(rig.ends[session]), &ev, 1, 0) == 1;
}

static uint64_t count(enum dray_metric m)
{
	return worker_counters(rig.worker)->v[m];
}

static void turn_until_done(unsigned session)
{
	for (unsigned turns = 0; ring_end_in_flight(rig.ends[session]); turns++) {
		assert_true(turns < 1000);
		worker_turn(rig.worker, false);
		ring_end_reap(rig.ends[session]);
	}
}

static void an_awake_agent_is_not_rung(void **state)
{
	for (unsigned i = 0; i < 50; i++) {
		ring_rig_submit(&rig, 0, 1 + i % ENTRIES);
		assert_int_equal(rung(0), 0);
		turn_until_done(0);
	}
	assert_int_equal(count(DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL), 0);
}

static void a_sleeping_agent_is_rung_once(void **state)
{
	struct ring *r = ring_rig_session(&rig, 0)->ring;

	for (unsigned i = 1; i <= 20; i++) {
		assert_false(ring_announce(r));
		ring_rig_submit(&rig, 0, 3);
		assert_int_equal(rung(0), 1);
		/* the doorbell is not handled yet: the agent also finds later entries */
		ring_rig_submit(&rig, 0, 3);
		ring_rig_submit(&rig, 0, 1);
		assert_int_equal(rung(0), 0);
		ring_awake(r);
		ring_rig_submit(&rig, 0, 1);
		assert_int_equal(rung(0), 0);
		turn_until_done(0);
		assert_int_equal(count(DRAY_METRIC_TRANSFERS_DONE_TOTAL), i * 8);
	}
}

static void doorbells_are_counted(void **state)
{
	for (unsigned i = 1; i <= 20; i++) {
		assert_false(ring_announce(ring_rig_session(&rig, 0)->ring));
		assert_false(ring_announce(ring_rig_session(&rig, 1)->ring));
		ring_rig_submit(&rig, 0, 4);
		ring_rig_submit(&rig, 1, 4);
		ring_awake(ring_rig_session(&rig, 0)->ring);
		ring_awake(ring_rig_session(&rig, 1)->ring);
		turn_until_done(0);
		turn_until_done(1);
		assert_int_equal(count(DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL), 2 * i);
	}
}

static void entries_before_the_announcement_are_seen(void **state)
{
	ring_rig_submit(&rig, 0, 1);
	assert_true(ring_announce(ring_rig_session(&rig, 0)->ring));
	ring_awake(ring_rig_session(&rig, 0)->ring);
	assert_int_equal(rung(0), 0);
	turn_until_done(0);
	assert_false(ring_announce(ring_rig_session(&rig, 0)->ring));
	ring_awake(ring_rig_session(&rig, 0)->ring);
}

static void a_polling_client_is_not_rung(void **state)
{
	for (unsigned i = 0; i < 20; i++) {
		ring_rig_submit(&rig, 0, ENTRIES);
		turn_until_done(0);
		assert_false(told(0));
	}
	assert_int_equal(count(DRAY_METRIC_DOORBELLS_SENT_TOTAL), 0);
}

static void a_sleeping_client_is_rung_once_for_a_batch(void **state)
{
	for (unsigned i = 1; i <= 20; i++) {
		ring_rig_submit(&rig, 0, ENTRIES);
		assert_false(ring_end_set_sleeping(rig.ends[0], true));
		assert_false(told(0));
		for (unsigned turns = 0; !ring_end_pending(rig.ends[0]); turns++) {
			assert_true(turns < 1000);
			worker_turn(rig.worker, false);
		}
		assert_true(told(0));
		ring_end_set_sleeping(rig.ends[0], false);
		turn_until_done(0);
		assert_false(told(0));
		assert_int_equal(count(DRAY_METRIC_DOORBELLS_SENT_TOTAL), i);
	}
}

static void completions_before_the_announcement_are_seen(void **state)
{
	ring_rig_submit(&rig, 0, 1);
	while (!ring_end_pending(rig.ends[0]))
		worker_turn(rig.worker, false);
	assert_true(ring_end_set_sleeping(rig.ends[0], true));
	assert_false(told(0));
	ring_end_set_sleeping(rig.ends[0], false);
	turn_until_done(0);
}

/*
 * Some transports complete work only after the worker has set agent_sleeping: a client that sees
 * the completion and submits again need not ring.
 */
static void an_agent_that_completes_work_is_not_rung(void **state)
{
	struct worker *w = rig.worker;

	ring_rig_submit_waiting(&rig, 0);
	worker_turn(w, false);
	assert_false(rings_announce(w));
	ring_rig_let_go(&rig);
	xfers_tick(&w->core);
	transports_each(&w->core, i, progress)
		w->core.transports[i]->progress(&w->core, w->core.transport_state[i]);
	assert_int_equal(ring_end_reap(rig.ends[0]), 1);
	ring_rig_submit(&rig, 0, 1);
	assert_int_equal(rung(0), 0);
	/* the other ring still has agent_sleeping set */
	ring_rig_submit(&rig, 1, 1);
	assert_int_equal(rung(1), 1);
	rings_awake(w);
	turn_until_done(0);
	turn_until_done(1);
}

static void poll_time(int64_t ns)
{
	struct data_config *cfg = malloc(sizeof(*cfg));

	assert_non_null(cfg);
	*cfg = rig.worker->core.cfg;
	cfg->poll_time_ns = ns;
	worker_post(rig.worker, &(struct command){ .type = COMMAND_CONFIG, .config = cfg });
	worker_turn(rig.worker, false);
}

/*
 * The worker's own turns: it polls, sets agent_sleeping, sleeps, wakes up, and clears
 * agent_sleeping.
 */
static void a_turn_that_sleeps_sets_agent_sleeping(void **state)
{
	poll_time(0);
	for (unsigned i = 0; i < 20; i++) {
		struct wsession *s = ring_rig_session(&rig, 1);

		ring_rig_submit(&rig, 0, 2);
		/*
		 * with the work done the worker sleeps, and an event that waits already wakes it
		 * for later entries
		 */
		worker_turn(rig.worker, true);
		assert_false(s->ring->announced);
		dray_wake(rig.worker->command_fd);
		worker_turn(rig.worker, true);
		assert_false(s->ring->announced);
		ring_end_reap(rig.ends[0]);
		assert_int_equal(ring_end_in_flight(rig.ends[0]), 0);
		ring_rig_submit(&rig, 1, 1);
		assert_int_equal(rung(1), 0);
		turn_until_done(1);
	}
}

static unsigned kicks, announced;

/* One transport gives work to another, whose part of the turn is over. */
static bool kick_progress(struct core *c, void *state)
{
	c->kicked = kicks-- > 0;
	return false;
}

static bool kick_announce(struct core *c, void *state)
{
	announced++;
	return false;
}

static void a_worker_does_not_sleep_beside_work(void **state)
{
	static const struct transport_ops ops = { .progress = kick_progress,
						  .announce = kick_announce };
	struct core *c = &rig.worker->core;
	const struct transport_ops **last = &c->transports[c->n_transports - 1], *former = *last;

	poll_time(0);
	*last = &ops;
	kicks = 1;
	announced = 0;
	/* an event that waits ends the sleep */
	dray_wake(rig.worker->command_fd);
	worker_turn(rig.worker, true);
	assert_int_equal(announced, 0);
	dray_wake(rig.worker->command_fd);
	worker_turn(rig.worker, true);
	assert_int_equal(announced, 1);
	*last = former;
}

/* Work that comes by a descriptor, as a peer's does, keeps the worker polling as work in a ring does. */
static void an_event_while_polling_is_work(void **state)
{
	struct pollfd event = { .fd = rig.worker->command_fd, .events = POLLIN };
	const struct dray_linger *l = &rig.worker->linger;

	poll_time(3600 * DRAY_NS_PER_SEC);
	worker_turn(rig.worker, true);
	assert_int_equal(l->state, DRAY_LINGER_POLLING);
	dray_wake(rig.worker->command_fd);
	/* not every turn looks at the descriptors while rings are polled */
	while (poll(&event, 1, 0))
		worker_turn(rig.worker, true);
	assert_int_equal(l->state, DRAY_LINGER_WORKING);
	worker_turn(rig.worker, true);
	assert_int_equal(l->state, DRAY_LINGER_POLLING);
}

/* The rest of a payload is not polled for while its parts come, and then other work is polled for again. */
static void a_worker_sleeps_between_the_parts_of_a_payload(void **state)
{
	struct worker *w = rig.worker;
	int64_t poll_ns = 3600 * DRAY_NS_PER_SEC;

	poll_time(poll_ns);
	w->core.filling = 1;
	w->core.filled_ns = INT64_MAX / 2;
	dray_wake(w->command_fd);
	worker_turn(w, true);
	assert_int_equal(w->linger.state, DRAY_LINGER_WORKING);
	assert_int_equal(w->linger.budget_ns, poll_ns);
	w->core.filled_ns = 0;
	worker_turn(w, true);
	assert_int_equal(w->linger.state, DRAY_LINGER_POLLING);
	w->core.filling = 0;
}

/* 0: a kernel without time slices of threads */
static uint64_t time_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags, nice_and_priority, runtime, deadline, period;
	} a;

	assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0), 0);
	return a.runtime;
}

/* Time slices are short from a transfer on until the worker has moved nothing for a second. */
static void a_worker_that_moves_data_has_short_time_slices(void **state)
{
	struct worker *w = rig.worker;
	uint64_t usual = 3 * DRAY_NS_PER_MS;

	/* the worker of another test may have left this thread short ones */
	assert_int_equal(process_restore_time_slice(usual), 0);
	if (time_slice() != usual)
		skip();
	worker_turn(w, false);
	assert_int_equal(time_slice(), usual);
	ring_rig_submit(&rig, 0, 1);
	turn_until_done(0);
	assert_int_equal(time_slice(), DRAY_NS_PER_MS / 10);
	w->core.moved_ns = dray_now().ns - 2 * DRAY_NS_PER_SEC;
	worker_turn(w, false);
	assert_int_equal(time_slice(), usual);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_awake_agent_is_not_rung, setup, teardown),
		cmocka_unit_test_setup_teardown(a_sleeping_agent_is_rung_once, setup, teardown),
		cmocka_unit_test_setup_teardown(doorbells_are_counted, setup, teardown),
		cmocka_unit_test_setup_teardown(entries_before_the_announcement_are_seen, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_polling_client_is_not_rung, setup, teardown),
		cmocka_unit_test_setup_teardown(a_sleeping_client_is_rung_once_for_a_batch, setup,
						teardown),
		cmocka_unit_test_setup_teardown(completions_before_the_announcement_are_seen, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_agent_that_completes_work_is_not_rung, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_turn_that_sleeps_sets_agent_sleeping, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_worker_does_not_sleep_beside_work, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_event_while_polling_is_work, setup, teardown),
		cmocka_unit_test_setup_teardown(a_worker_sleeps_between_the_parts_of_a_payload,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_worker_that_moves_data_has_short_time_slices,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
