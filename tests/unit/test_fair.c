/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker shares its turns between owners and their sessions; the test runs the turns. */
#include <sys/socket.h>

#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define ENTRIES 256

static struct ring_rig rig;

static int setup(void **state)
{
	ring_rig_init(&rig, 1, ENTRIES, 0, false);
	return 0;
}

static int teardown(void **state)
{
	ring_rig_deinit(&rig);
	return 0;
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

/* The worker reads sockets before rings, so a request may name an entry that is still in the ring. */
static void a_cancellation_does_not_empty_the_ring(void **state)
{
	unsigned n, turns = 0;

	cancel(0, 1000, 5000);
	worker_turn(rig.worker, false);
	fill(0, &ring_rig_write64);
	worker_turn(rig.worker, false);
	n = taken(0);
	print_message("one turn took %u of %u entries\n", n, ENTRIES);
	assert_true(n <= 64);
	assert_int_equal(answer(0, 1000), UINT32_MAX);
	while (answer(0, 1000) == UINT32_MAX && turns++ < 100)
		worker_turn(rig.worker, false);
	assert_true(turns < 100);
	assert_int_equal(taken(0), ENTRIES);
	assert_int_equal(ring_end_reap(rig.ends[0]), ENTRIES);
}

static void an_entry_in_the_ring_is_cancelled(void **state)
{
	unsigned turns = 0;

	cancel(0, 1000, ENTRIES - 1);
	cancel(0, 1001, ENTRIES - 1);
	worker_turn(rig.worker, false);
	for (unsigned i = 0; i < ENTRIES - 1; i++)
		ring_end_put(rig.ends[0], &ring_rig_write64);
	ring_rig_submit_waiting(&rig, 0);
	worker_turn(rig.worker, false);
	assert_int_equal(answer(0, 1001), DRAY_E_EXISTS);
	while (answer(0, 1000) == UINT32_MAX && turns++ < 100)
		worker_turn(rig.worker, false);
	assert_true(turns < 100);
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
	worker_turn(rig.worker, false);
	assert_int_equal(answer(0, 1000 + allowed), DRAY_E_BUSY);
	for (unsigned i = 0; i < 10; i++)
		worker_turn(rig.worker, false);
	for (unsigned i = 0; i < allowed; i++)
		assert_int_equal(answer(0, 1000 + i), DRAY_E_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_cancellation_does_not_empty_the_ring, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_entry_in_the_ring_is_cancelled, setup, teardown),
		cmocka_unit_test_setup_teardown(cancellations_that_wait_are_bounded, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
