/* SPDX-License-Identifier: Apache-2.0 */
/* Which rings a worker looks at while one of them keeps it busy; the worker's turns are the test's own. */
#include <stdlib.h>

#include "agent/region/fault.h"
#include "agent/worker/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_client.h"

#define ENTRIES 8
#define BYTES 4096
#define REGION (1ull << 32 | 1)
#define REMOTE (1ull << 32 | 1)
/* More than enough for an idle ring to be left alone. */
#define MANY 2000

struct rig {
	struct worker *w;
	struct ring_client busy, other;
	struct region_view *region;
	struct remote_view remote;
};

static uint8_t bytes[BYTES] __attribute__((aligned(4096)));

static const struct dmsg_sqe write64 = { .direction = DMSG_DIRECTION_WRITE,
					 .op_count = 1,
					 .local = REGION,
					 .remote = REMOTE,
					 .op_remote = 1024,
					 .op_length = 64 };

static int setup(void **state)
{
	static const struct core_config cfg = { .slice_size = 65536,
						.slice_timeout_ns = DRAY_NS_PER_SEC,
						.deadline_ns = 60 * DRAY_NS_PER_SEC,
						.slices_per_session = 4,
						.tcp_streams = 1,
						.tcp_latency_streams = 1,
						.tcp_slices_in_flight = 4 };
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	assert_int_equal(fault_init(), 0);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(worker_make(&r->w, 0, &cfg, 64, NULL), 0);
	r->region = calloc(1, sizeof(*r->region) + sizeof(struct extent_view));
	assert_non_null(r->region);
	r->region->o = (struct object_view){ OBJECT_REGION, REGION, RING_CLIENT_GROUP,
					     REGION,        BYTES,  DMSG_ACCESS_ALL };
	r->region->n_extents = 1;
	r->region->extents[0] = (struct extent_view){ 0, BYTES, bytes, -1 };
	r->remote.o = (struct object_view){ OBJECT_REMOTE, REMOTE, RING_CLIENT_GROUP,
					    REGION,        BYTES,  DMSG_ACCESS_ALL };
	r->remote.is_local = true;
	r->remote.region = REGION;
	worker_post(r->w, &(struct command){ .type = COMMAND_PUBLISH, .view = &r->region->o });
	worker_post(r->w, &(struct command){ .type = COMMAND_PUBLISH, .view = &r->remote.o });
	ring_client_open(&r->busy, r->w, 1, ENTRIES);
	ring_client_open(&r->other, r->w, 2, ENTRIES);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;
	unsigned gone = 0;
	struct event ev;

	for (uint64_t i = 1; i <= 2; i++)
		worker_post(r->w, &(struct command){ .type = COMMAND_SESSION_CLOSE,
						     .session = 1ull << 32 | i,
						     .code = DRAY_E_SESSION_CLOSED });
	for (unsigned i = 0; i < 100 && gone < 2; i++) {
		worker_turn(r->w, false);
		while (worker_next_event(r->w, &ev))
			gone += ev.type == EVENT_SESSION_GONE;
	}
	assert_int_equal(gone, 2);
	worker_release(r->w);
	ring_client_release(&r->busy);
	ring_client_release(&r->other);
	free(r->region);
	free(r);
	return 0;
}

/* A turn in which the busy one has had something done. */
static void busy_turn(struct rig *r)
{
	ring_client_submit(&r->busy, &write64, 1);
	worker_turn(r->w, false);
	assert_int_equal(ring_client_reap(&r->busy), 1);
	assert_int_equal(r->busy.last_status, 0);
}

static bool resting(struct ring_client *c)
{
	return atomic_load(ring_client_word(c, DMSG_RING_AGENT_SLEEPING));
}

/* Until the other one is left alone; how many turns that took. */
static unsigned until_rest(struct rig *r)
{
	unsigned n = 0;

	while (!resting(&r->other) && n++ < MANY)
		busy_turn(r);
	assert_true(n <= MANY);
	return n;
}

static void an_idle_ring_rests_and_its_doorbell_brings_it_back(void **state)
{
	struct rig *r = *state;

	/* it has its chance: a doorbell is dearer than some looks */
	assert_true(until_rest(r) > 50);
	assert_false(resting(&r->busy));
	assert_true(dray_list_empty(&r->w->sessions[2]->ring->polled_link));

	ring_client_submit(&r->other, &write64, 2);
	assert_true(ring_client_bell(&r->other));
	for (unsigned i = 0; i < 3; i++)
		busy_turn(r);
	assert_int_equal(ring_client_reap(&r->other), 2);
	/* awake: the next needs none */
	assert_false(resting(&r->other));
	ring_client_submit(&r->other, &write64, 1);
	assert_false(ring_client_bell(&r->other));
	busy_turn(r);
	assert_int_equal(ring_client_reap(&r->other), 1);
	until_rest(r);
}

static void nothing_rests_while_there_is_no_work_elsewhere(void **state)
{
	struct rig *r = *state;

	for (unsigned i = 0; i < MANY; i++)
		worker_turn(r->w, false);
	assert_false(resting(&r->other));
	assert_false(resting(&r->busy));
}

static void a_completion_brings_a_ring_back(void **state)
{
	struct dmsg_sqe waits = write64;
	struct rig *r = *state;

	waits.flags = DMSG_TRANSFER_FLAG_WAIT;
	waits.wait_region = REGION;
	waits.wait_offset = 2048;
	waits.wait_value = 5;
	ring_client_submit(&r->other, &waits, 1);
	until_rest(r);
	assert_int_equal(ring_client_reap(&r->other), 0);
	bytes[2048] = 5;
	for (unsigned i = 0; i < MANY && !ring_client_reap(&r->other); i++)
		busy_turn(r);
	assert_int_equal(r->other.completed, 1);
	assert_false(resting(&r->other));
	ring_client_submit(&r->other, &write64, 1);
	assert_false(ring_client_bell(&r->other));
	busy_turn(r);
	assert_int_equal(ring_client_reap(&r->other), 1);
}

/* Reaping rings no doorbell: a ring that waits for room in it is looked at until it has some. */
static void a_ring_that_waits_for_its_client_does_not_rest(void **state)
{
	struct rig *r = *state;

	for (unsigned i = 0; i < 3; i++) {
		ring_client_submit(&r->other, &write64, ENTRIES);
		busy_turn(r);
	}
	/* two rounds of entries are completed, and the third finds no room for its completions */
	for (unsigned i = 0; i < MANY; i++)
		busy_turn(r);
	assert_false(resting(&r->other));
	assert_int_equal(ring_client_reap(&r->other), 2 * ENTRIES);
	busy_turn(r);
	assert_int_equal(ring_client_reap(&r->other), ENTRIES);
	assert_int_equal(r->other.bells, 0);
}

static void a_resting_session_may_die(void **state)
{
	struct rig *r = *state;
	struct event ev;
	bool told = false;

	until_rest(r);
	/* an index that claims more than the ring holds ends the session, also where its doorbell tells of it */
	atomic_store(ring_client_word(&r->other, DMSG_RING_SQ_TAIL), 1000);
	assert_true(ring_client_bell(&r->other));
	for (unsigned i = 0; i < MANY; i++)
		busy_turn(r);
	while (worker_next_event(r->w, &ev))
		told |= ev.type == EVENT_SESSION_EOF && ev.code == DRAY_E_PROTOCOL;
	assert_true(told);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
