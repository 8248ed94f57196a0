/* SPDX-License-Identifier: Apache-2.0 */
/* Which rings a worker polls while one of them keeps it busy; the test runs the worker's turns. */
#include <sys/eventfd.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 8
/* more than enough turns for an idle ring to rest */
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

/* Doorbells that the worker has received. */
static unsigned received(void)
{
	return (unsigned)worker_counters(rig.worker)->v[DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL];
}

/* A turn with work on the busy ring. */
static void busy_turn(void)
{
	ring_rig_submit(&rig, BUSY, 1);
	worker_turn(rig.worker, false);
	assert_int_equal(ring_end_reap(rig.ends[BUSY]), 1);
}

/* Whether ring i rests; call it between turns, without a doorbell in flight. */
static bool resting(unsigned i)
{
	bool rests = dray_list_empty(&ring_rig_session(&rig, i)->ring->polled_link);

	assert_int_equal(rests, ring_rig_announced(&rig, i));
	return rests;
}

/* Runs turns until the other ring rests; returns their number. */
static unsigned until_rest(void)
{
	unsigned n = 0;

	while (!resting(OTHER) && n++ < MANY)
		busy_turn();
	assert_true(n <= MANY);
	return n;
}

static void an_idle_ring_rests_until_its_doorbell(void **state)
{
	/* it rests only after a while, because a doorbell costs more than some polls */
	assert_true(until_rest() > 50);
	assert_false(resting(BUSY));

	ring_rig_submit(&rig, OTHER, 2);
	for (unsigned i = 0; i < 3; i++)
		busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 2);
	assert_int_equal(received(), 1);
	/* awake: the next entry needs no doorbell */
	assert_false(resting(OTHER));
	ring_rig_submit(&rig, OTHER, 1);
	busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 1);
	assert_int_equal(received(), 1);
	until_rest();
}

static void no_ring_rests_while_no_other_has_work(void **state)
{
	for (unsigned i = 0; i < MANY; i++)
		worker_turn(rig.worker, false);
	assert_false(resting(OTHER));
	assert_false(resting(BUSY));
}

static void a_completion_ends_the_rest(void **state)
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

/*
 * Taking completions rings no doorbell, so the worker keeps polling a ring that waits for room for
 * completions.
 */
static void a_ring_that_waits_for_its_client_does_not_rest(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		/* more than dc_ring_room() would allow */
		for (unsigned k = 0; k < ENTRIES; k++)
			ring_end_put(rig.ends[OTHER], &ring_rig_write64);
		ring_end_submit(rig.ends[OTHER]);
		busy_turn();
	}
	/* two rounds of entries are completed, and the third has no room for its completions */
	for (unsigned i = 0; i < MANY; i++)
		busy_turn();
	assert_false(resting(OTHER));
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), 2 * ENTRIES);
	busy_turn();
	assert_int_equal(ring_end_reap(rig.ends[OTHER]), ENTRIES);
	assert_int_equal(received(), 0);
}

static void a_resting_session_can_end_by_an_invalid_index(void **state)
{
	uint8_t *ring = rig.rings[OTHER].ring;
	struct event ev;
	bool told = false;

	until_rest();
	/*
	 * an index that claims more than the ring holds ends the session, also if its doorbell
	 * announces it
	 */
	atomic_store((_Atomic uint32_t *)(void *)(ring + DMSG_RING_SQ_TAIL), 1000);
	assert_int_equal(eventfd_write(rig.rings[OTHER].doorbell_fd, 1), 0);
	for (unsigned i = 0; i < MANY; i++)
		busy_turn();
	while (worker_next_event(rig.worker, &ev))
		if (ev.type == EVENT_SESSION_EOF) {
			told |= ev.code == DRAY_E_PROTOCOL;
			packet_free(ev.packet);
		}
	assert_true(told);
}

/*
 * The session has a completion that its client was not notified of, and its ring is about to be
 * polled again: both lists drop it.
 */
static void a_resting_session_can_be_closed(void **state)
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
static void an_entry_beyond_a_limit_is_too_large(void **state)
{
	static uint8_t arena[(DMSG_OPS_MAX + 1) * DMSG_OP_SIZE];
	struct ring_memory *m = &rig.rings[OTHER];
	struct dmsg_sqe e = ring_rig_write64;

	m->arena = arena;
	m->arena_bytes = sizeof(arena);
	e.flags = DMSG_TRANSFER_FLAG_ARENA;
	e.op_count = DMSG_OPS_MAX + 1;
	assert_int_equal(status_of(&e), DRAY_E_TOO_LARGE);
	e = ring_rig_write64;
	e.flags = DMSG_TRANSFER_FLAG_NOTIFY;
	e.notify_length = DMSG_NOTIFY_MAX + 1;
	assert_int_equal(status_of(&e), DRAY_E_TOO_LARGE);
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
		cmocka_unit_test_setup_teardown(an_idle_ring_rests_until_its_doorbell, setup,
						teardown),
		cmocka_unit_test_setup_teardown(no_ring_rests_while_no_other_has_work, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_completion_ends_the_rest, setup, teardown),
		cmocka_unit_test_setup_teardown(a_ring_that_waits_for_its_client_does_not_rest,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_resting_session_can_end_by_an_invalid_index,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_resting_session_can_be_closed, setup, teardown),
		cmocka_unit_test_setup_teardown(an_entry_beyond_a_limit_is_too_large, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_drain_refuses_malformed_entries_too, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
