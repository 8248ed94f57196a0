/* SPDX-License-Identifier: Apache-2.0 */
/* Which rings a worker looks at while one of them keeps it busy; the worker's turns are the test's own. */
#include <sys/eventfd.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 8
/* More than enough for an idle ring to be left alone. */
#define MANY 2000

enum { BUSY, OTHER };

static struct ring_rig rig;

static int setup(void **state)
{
	ring_rig_init(&rig, 2, ENTRIES, 0, false);
	return 0;
}

static int teardown(void **state)
{
	ring_rig_deinit(&rig);
	return 0;
}

/* Doorbells that have reached the worker. */
static unsigned received(void)
{
	return (unsigned)worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL];
}

/* A turn in which the busy one has had something done. */
static void busy_turn(void)
{
	ring_rig_submit(&rig, BUSY, 1);
	worker_turn(rig.worker, false);
	assert_int_equal(ring_end_reap(rig.ends[BUSY]), 1);
}

/* Between turns, and not while a doorbell is on its way. */
static bool resting(unsigned i)
{
	bool rests = dray_list_empty(&ring_rig_session(&rig, i)->ring->polled_link);

	assert_int_equal(rests, ring_rig_announced(&rig, i));
	return rests;
}

/* Until the other one is left alone; how many turns that took. */
static unsigned until_rest(void)
{
	unsigned n = 0;

	while (!resting(OTHER) && n++ < MANY)
		busy_turn();
	assert_true(n <= MANY);
	return n;
}

static void an_idle_ring_rests_and_its_doorbell_brings_it_back(void **state)
{
	/* it has its chance: a doorbell is dearer than some looks */
	assert_true(until_rest() > 50);
	assert_false(resting(BUSY));

	ring_rig_submit(&rig, OTHER, 2);
	for (unsigned i = 0; i < 3; i++)
		busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 2);
	assert_int_equal(received(), 1);
	/* awake: the next needs none */
	assert_false(resting(OTHER));
	ring_rig_submit(&rig, OTHER, 1);
	busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 1);
	assert_int_equal(received(), 1);
	until_rest();
}

static void nothing_rests_while_there_is_no_work_elsewhere(void **state)
{
	for (unsigned i = 0; i < MANY; i++)
		worker_turn(rig.worker, false);
	assert_false(resting(OTHER));
	assert_false(resting(BUSY));
}

static void a_completion_brings_a_ring_back(void **state)
{
	unsigned done = 0;

	ring_rig_submit_waiting(&rig, OTHER);
	until_rest();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 0);
	ring_rig_let_go(&rig);
	for (unsigned i = 0; i < MANY && !done; i++) {
		busy_turn();
		done = ring_end_reap(rig.ends[OTHER]);
	}
	assert_int_equal(done, 1);
	assert_false(resting(OTHER));
	ring_rig_submit(&rig, OTHER, 1);
	busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 1);
	assert_int_equal(received(), 0);
}

/* Reaping rings no doorbell: a ring that waits for room in it is looked at until it has some. */
static void a_ring_that_waits_for_its_client_does_not_rest(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		/* more than dc_ring_room() would have allowed */
		for (unsigned k = 0; k < ENTRIES; k++)
			ring_end_put(rig.ends[OTHER], &ring_rig_write64);
		ring_end_submit(rig.ends[OTHER]);
		busy_turn();
	}
	/* two rounds of entries are completed, and the third finds no room for its completions */
	for (unsigned i = 0; i < MANY; i++)
		busy_turn();
	assert_false(resting(OTHER));
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 2 * ENTRIES);
	busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), ENTRIES);
	assert_int_equal(received(), 0);
}

static void a_resting_session_may_die(void **state)
{
	uint8_t *ring = rig.rings[OTHER].ring;
	struct event ev;
	bool told = false;

	until_rest();
	/* an index that claims more than the ring holds ends the session, also where its doorbell tells of it */
	atomic_store((_Atomic uint32_t *)(void *)(ring + DMSG_RING_SQ_TAIL), 1000);
	assert_int_equal(eventfd_write(rig.rings[OTHER].doorbell_fd, 1), 0);
	for (unsigned i = 0; i < MANY; i++)
		busy_turn();
	while (worker_next_event(rig.worker, &ev))
		told |= ev.type == EVENT_SESSION_EOF && ev.code == DRAY_E_PROTOCOL;
	assert_true(told);
}

/* With news for its client that nobody was told of, and among the rings that are looked at again: both let go of it. */
static void a_resting_session_may_be_closed(void **state)
{
	ring_rig_submit_waiting(&rig, OTHER);
	until_rest();
	worker_post(rig.worker, &(struct command){ .type = COMMAND_SESSION_CLOSE,
						   .session = rig.shared[OTHER].session,
						   .code = DRAY_E_SESSION_CLOSED });
	for (unsigned i = 0; i < 3; i++)
		busy_turn();
	assert_null(wsession_get(rig.worker, rig.shared[OTHER].session));
	assert_int_equal(rig.shared[OTHER].own.transfers, 0);
}

static uint32_t status_of(const struct dmsg_sqe *sqe)
{
	ring_end_put(rig.ends[OTHER], sqe);
	ring_end_submit(rig.ends[OTHER]);
	busy_turn();
	return ring_end_status(rig.ends[OTHER]);
}

/* The arena has room for the operations and for the notification: their number alone is the reason. */
static void an_entry_beyond_a_limit_is_out_of_range(void **state)
{
	static uint8_t arena[(DMSG_OPS_MAX + 1) * DMSG_OP_SIZE];
	struct ring_memory *m = &rig.rings[OTHER];
	struct dmsg_sqe e = ring_rig_write64;

	m->arena = arena;
	m->arena_bytes = sizeof(arena);
	e.flags = DMSG_TRANSFER_FLAG_ARENA;
	e.op_count = DMSG_OPS_MAX + 1;
	assert_int_equal(status_of(&e), DRAY_E_RANGE);
	e = ring_rig_write64;
	e.flags = DMSG_TRANSFER_FLAG_NOTIFY;
	e.notify_length = DMSG_NOTIFY_MAX + 1;
	assert_int_equal(status_of(&e), DRAY_E_RANGE);
	e.notify_length = 0;
	e.notify_offset = sizeof(arena) + 1;
	assert_int_equal(status_of(&e), DRAY_E_RANGE);
	m->arena = NULL;
	m->arena_bytes = 0;
}

/* A drain is the answer to every entry, whatever else is wrong with it. */
static void a_drain_refuses_malformed_entries_too(void **state)
{
	struct dmsg_sqe none = ring_rig_write64, far = ring_rig_write64;

	none.op_count = 0;
	far.flags = DMSG_TRANSFER_FLAG_ARENA;
	far.arena_offset = UINT64_MAX;
	assert_int_equal(status_of(&none), DRAY_E_INVALID);
	assert_int_equal(status_of(&far), DRAY_E_RANGE);
	rig.worker->draining = true;
	for (unsigned i = 0; i < 2; i++) {
		ring_end_put(rig.ends[OTHER], i ? &none : &far);
		ring_end_submit(rig.ends[OTHER]);
		worker_turn(rig.worker, false);
		assert_int_equal(ring_end_status(rig.ends[OTHER]), DRAY_E_DRAINING);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_idle_ring_rests_and_its_doorbell_brings_it_back,
						setup, teardown),
		cmocka_unit_test_setup_teardown(nothing_rests_while_there_is_no_work_elsewhere,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_completion_brings_a_ring_back, setup, teardown),
		cmocka_unit_test_setup_teardown(a_ring_that_waits_for_its_client_does_not_rest,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_resting_session_may_die, setup, teardown),
		cmocka_unit_test_setup_teardown(a_resting_session_may_be_closed, setup, teardown),
		cmocka_unit_test_setup_teardown(an_entry_beyond_a_limit_is_out_of_range, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_drain_refuses_malformed_entries_too, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
