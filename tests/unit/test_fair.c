/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker shares its turns between owners and their sessions; the test runs the turns. */
#include <sys/socket.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 256
#define GREEDY 3 /* sessions of one owner */

static struct ring_rig rig;
static uint8_t arena[(size_t)DMSG_OPS_MAX * DMSG_OP_SIZE];

static int setup(void **state)
{
	ring_rig_init(&rig, GREEDY, ENTRIES, 0, false);
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < rig.n; i++) {
		rig.rings[i].arena = NULL;
		rig.rings[i].arena_bytes = 0;
	}
	ring_rig_deinit(&rig);
	return 0;
}

/* A list of the largest length whose last operation exceeds the region: all of it is read for nothing. */
static struct dmsg_sqe refused_list(unsigned session)
{
	struct dmsg_sqe e = ring_rig_write64;

	for (uint32_t i = 0; i < DMSG_OPS_MAX; i++)
		dmsg_op_put(arena + (size_t)i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ i % 512 * 64, i % 512 * 64, 64 });
	dmsg_op_put(arena + sizeof(arena) - DMSG_OP_SIZE, &(struct dmsg_op){ 0, 0, 1 << 30 });
	rig.rings[session].arena = arena;
	rig.rings[session].arena_bytes = sizeof(arena);
	e.flags = DMSG_TRANSFER_FLAG_ARENA;
	e.op_count = DMSG_OPS_MAX;
	return e;
}

static void fill(unsigned session, const struct dmsg_sqe *e)
{
	while (ring_end_room(rig.ends[session]))
		ring_end_put(rig.ends[session], e);
	ring_end_submit(rig.ends[session]);
}

/* Entries that the worker has taken from the ring. */
static unsigned taken(unsigned session)
{
	return atomic_load(
		(_Atomic uint32_t *)(void *)(rig.rings[session].ring + DMSG_RING_SQ_HEAD));
}

/* The worker reads it in the next turn but one: at the end of the next turn it looks at its descriptors. */
static void cancel(unsigned session, uint64_t id, uint64_t request)
{
	uint8_t buf[64];
	int n = dmsg_transfer_cancel_encode(buf, sizeof(buf), id,
					    &(struct dmsg_transfer_cancel){ request });

	assert_true(n > 0);
	assert_int_equal(send(rig.clients[session], buf, (size_t)n, MSG_NOSIGNAL), n);
}

/* The answer to request `id`: 0, or the code of an error; UINT32_MAX: none has come. */
static uint32_t answer(unsigned session, uint64_t id)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;
	struct dmsg_error m;
	uint8_t buf[1024];
	ssize_t n = recv(rig.clients[session], buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0)
		return UINT32_MAX;
	assert_int_equal(dmsg_header_decode(buf, (size_t)n, &h, &err), 0);
	assert_int_equal(h.request_id, id);
	if (h.type == DMSG_TRANSFER_CANCEL_REPLY)
		return 0;
	assert_int_equal(dmsg_error_decode(buf + DMSG_HEADER_SIZE, h.length, &m, &err), 0);
	return m.code;
}

/* The same, which comes within a few turns. */
static uint32_t answered(unsigned session, uint64_t id)
{
	uint32_t code;

	for (unsigned turns = 0; (code = answer(session, id)) == UINT32_MAX; turns++) {
		assert_true(turns < 100);
		worker_turn(rig.worker, false);
	}
	return code;
}

/* A socket may be read before the ring, so a request may name an entry that is still in the ring. */
static void a_cancellation_does_not_empty_the_ring(void **state)
{
	unsigned n;

	cancel(0, 1000, 5000);
	worker_turn(rig.worker, false);
	fill(0, &ring_rig_write64);
	worker_turn(rig.worker, false);
	n = taken(0);
	print_message("one turn took %u of %u entries\n", n, ENTRIES);
	assert_true(n <= 64);
	assert_int_equal(answer(0, 1000), UINT32_MAX);
	assert_int_equal(answered(0, 1000), DRAY_E_NOT_FOUND);
	assert_int_equal(taken(0), ENTRIES);
	assert_int_equal(ring_end_reap(rig.ends[0]), ENTRIES);
}

static void an_entry_in_the_ring_is_cancelled(void **state)
{
	cancel(0, 1000, ENTRIES - 1);
	cancel(0, 1001, ENTRIES - 1);
	worker_turn(rig.worker, false);
	for (unsigned i = 0; i < ENTRIES - 1; i++)
		ring_end_put(rig.ends[0], &ring_rig_write64);
	ring_rig_submit_waiting(&rig, 0);
	assert_int_equal(answered(0, 1001), DRAY_E_EXISTS);
	assert_int_equal(answered(0, 1000), 0);
	for (unsigned i = 0; i < ENTRIES - 1; i++)
		assert_int_equal(ring_end_status(rig.ends[0]), 0);
	assert_int_equal(ring_end_status(rig.ends[0]), DRAY_E_CANCELLED);
}

static void cancellations_that_wait_are_bounded(void **state)
{
	unsigned allowed = rig.shared[0].requests_max;

	for (unsigned i = 0; i <= allowed; i++)
		cancel(0, 1000 + i, 5000 + i);
	worker_turn(rig.worker, false);
	fill(0, &ring_rig_write64);
	assert_int_equal(answered(0, 1000 + allowed), DRAY_E_BUSY);
	for (unsigned i = 0; i < allowed; i++)
		assert_int_equal(answered(0, 1000 + i), DRAY_E_NOT_FOUND);
}

/* Several sessions of one owner send lists that are refused; the work of a turn does not grow with them. */
static void refused_lists_are_read_in_bounded_steps(void **state)
{
	const unsigned turns = 256;
	unsigned lists = 0;

	for (unsigned i = 0; i < GREEDY; i++) {
		struct dmsg_sqe e = refused_list(i);

		fill(i, &e);
	}
	for (unsigned i = 0; i < turns; i++)
		worker_turn(rig.worker, false);
	for (unsigned i = 0; i < GREEDY; i++)
		lists += taken(i);
	print_message("%u turns began %u lists of %u operations\n", turns, lists, DMSG_OPS_MAX);
	assert_true(lists <= turns / 8);
	/* each session has its share */
	for (unsigned i = 0; i < GREEDY; i++) {
		assert_true(taken(i) > 0);
		assert_int_equal(ring_end_status(rig.ends[i]), DRAY_E_RANGE);
	}
}

/* Another owner's transfers are carried out in the turn in which they are found. */
static void an_owner_does_not_wait_for_another(void **state)
{
	unsigned honest = ring_rig_add(&rig, ENTRIES);

	for (unsigned i = 0; i < GREEDY; i++) {
		struct dmsg_sqe e = refused_list(i);

		fill(i, &e);
	}
	for (unsigned i = 0; i < 100; i++) {
		ring_rig_submit(&rig, honest, 1);
		worker_turn(rig.worker, false);
		assert_int_equal(ring_end_reap(rig.ends[honest]), 1);
	}
}

/* Small submissions and long lists of one owner's sessions take turns. */
static void sessions_of_an_owner_take_turns(void **state)
{
	struct dmsg_sqe e = refused_list(0);

	fill(0, &e);
	fill(1, &e);
	for (unsigned i = 0; i < 50; i++) {
		unsigned turns = 0;

		ring_rig_submit(&rig, 2, 1);
		while (!ring_end_reap(rig.ends[2])) {
			worker_turn(rig.worker, false);
			assert_true(turns++ < 2 * GREEDY);
		}
	}
}

/* The first turn reads a part of the list. */
static void begin_list(unsigned session)
{
	struct dmsg_sqe e = refused_list(session);

	ring_end_put(rig.ends[session], &e);
	ring_end_submit(rig.ends[session]);
	worker_turn(rig.worker, false);
	assert_int_equal(taken(session), 1);
	assert_false(ring_end_pending(rig.ends[session]));
	assert_int_equal(rig.shared[session].own.transfers, 1);
}

static void a_list_that_is_read_can_be_stopped(void **state)
{
	begin_list(0);
	worker_post(rig.worker, &(struct command){ .type = COMMAND_DROP,
						   .kind = OBJECT_REMOTE,
						   .handle = RING_RIG_TO,
						   .code = DRAY_E_REVOKED,
						   .mode = DROP_STOP });
	worker_turn(rig.worker, false);
	assert_int_equal(ring_end_status(rig.ends[0]), DRAY_E_REVOKED);
	assert_int_equal(rig.shared[0].own.transfers, 0);
	/* the session goes on */
	ring_rig_submit(&rig, 0, 1);
	worker_turn(rig.worker, false);
	assert_int_equal(ring_end_status(rig.ends[0]), DRAY_E_REVOKED);
}

/* The rest is in teardown(). */
static void a_session_ends_while_its_list_is_read(void **state)
{
	begin_list(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_cancellation_does_not_empty_the_ring, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_entry_in_the_ring_is_cancelled, setup, teardown),
		cmocka_unit_test_setup_teardown(cancellations_that_wait_are_bounded, setup,
						teardown),
		cmocka_unit_test_setup_teardown(refused_lists_are_read_in_bounded_steps, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_owner_does_not_wait_for_another, setup,
						teardown),
		cmocka_unit_test_setup_teardown(sessions_of_an_owner_take_turns, setup, teardown),
		cmocka_unit_test_setup_teardown(a_list_that_is_read_can_be_stopped, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_session_ends_while_its_list_is_read, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
