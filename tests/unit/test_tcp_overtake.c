/* SPDX-License-Identifier: Apache-2.0 */
/* Transport tcp: bulk bytes and turns during a latency transfer. */
#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1u << 20)
#define BULK 16
#define TRIPS 40

static struct lab lab;
static struct lab_side *const a = &lab.side[0], *const b = &lab.side[1];

/* Payload received on either side. */
static uint64_t received(void)
{
	return lab_counter(a, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL) +
	       lab_counter(b, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL);
}

static void latency(uint64_t id, enum dmsg_direction d)
{
	uint64_t ops[16][3];

	for (uint64_t i = 0; i < 16; i++) {
		ops[i][0] = i * 8192;
		ops[i][1] = i * 8192;
		ops[i][2] = 4096;
	}
	lab_transfer(a, id, d, DMSG_CLASS_LATENCY, (const uint64_t(*)[3])ops, 16);
}

/* Queues `bulk` bytes of bulk; latency transfers overtake it one by one. */
static void overtake(enum dmsg_direction bulk, enum dmsg_direction d)
{
	lab_init(&lab, 64 * MIB, 1);
	latency(1, d);
	lab_until(&lab, lab_end(a, 1));
	for (uint64_t i = 0; i < BULK; i++)
		lab_transfer1(a, 1000 + i, bulk, 0, 0, 64 * MIB);
	lab_until(&lab, received() > 16 * MIB);
	for (uint64_t i = 2; i < 2 + TRIPS; i++) {
		uint64_t before = received();
		unsigned turns = 0;

		latency(i, d);
		while (!lab_end(a, i)) {
			lab_turn(&lab);
			/* a request and its answer, and a turn more if the kernel delivers late */
			assert_true(++turns <= 4);
		}
		assert_int_equal(lab_end(a, i)->code, 0);
		/* each side has at most a short bulk turn in each turn, and its last call may exceed that */
		assert_true(received() - before <=
			    65536 + turns * 2 * (TCP_TURN_BYTES_SHORT + TCP_CALL_MIN));
		assert_null(lab_end(a, 1000 + BULK - 1));
	}
	lab_until(&lab, a->n_ended == 1 + TRIPS + BULK);
	for (uint64_t i = 0; i < BULK; i++)
		assert_int_equal(lab_end(a, 1000 + i)->code, 0);
	lab_deinit(&lab);
}

static void test_latency_overtakes_bulk(void **state)
{
	overtake(DMSG_DIRECTION_WRITE, DMSG_DIRECTION_WRITE);
	overtake(DMSG_DIRECTION_WRITE, DMSG_DIRECTION_READ);
	overtake(DMSG_DIRECTION_READ, DMSG_DIRECTION_WRITE);
	overtake(DMSG_DIRECTION_READ, DMSG_DIRECTION_READ);
}

/* Bulk has whole turns without latency transfers, and again some time after the last one. */
static void test_bulk_has_whole_turns_alone(void **state)
{
	uint64_t most[2] = { 0 };

	lab_init(&lab, 64 * MIB, 1);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 0, 0, 4 * MIB);
	/* opening a stream takes turns of its own */
	lab_until(&lab, a->n_ended == 1 && lab_counter(b, DRAY_METRIC_TCP_STREAMS) == 2);
	latency(1, DMSG_DIRECTION_WRITE);
	lab_until(&lab, lab_end(a, 1));
	for (unsigned alone = 0; alone < 2; alone++) {
		if (alone)
			lab_advance(&lab, TCP_TURN_SHORT_NS / DRAY_NS_PER_MS + 1);
		for (uint64_t i = 0; i < 4; i++)
			lab_transfer1(a, 10 + 10 * alone + i, DMSG_DIRECTION_WRITE, 0, 0, 64 * MIB);
		while (a->n_ended < 6 + 4 * alone) {
			uint64_t before = lab_counter(a, DRAY_METRIC_TCP_SENT_BYTES_TOTAL), n;

			lab_turn(&lab);
			n = lab_counter(a, DRAY_METRIC_TCP_SENT_BYTES_TOTAL) - before;
			/* a slow machine may have returned to whole turns already */
			if (alone || a->core.now_ns < ((struct tcp *)a->tcp)->short_ns)
				most[alone] = dray_max(most[alone], n);
		}
	}
	assert_true(most[0] > 0);
	assert_true(most[0] <= TCP_TURN_BYTES_SHORT + TCP_CALL_MIN);
	assert_true(most[1] > TCP_TURN_BYTES_SHORT + TCP_CALL_MIN);
	lab_deinit(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_latency_overtakes_bulk),
		cmocka_unit_test(test_bulk_has_whole_turns_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
