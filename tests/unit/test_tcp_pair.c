/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport tcp, both sides against each other: requested bytes arrive, whatever happens to the streams, in
 * host and in GPU memory.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1u << 20)
#define TINY 20000

static struct lab lab;
static struct lab_side *const a = &lab.side[0], *const b = &lab.side[1];

static void run_one(uint64_t id, enum dmsg_direction d, enum dmsg_class class,
		    const uint64_t (*ops)[3], uint32_t n)
{
	uint64_t bytes = 0;

	lab_transfer(a, id, d, class, ops, n);
	lab_until(&lab, lab_end(a, id));
	for (uint32_t i = 0; i < n; i++)
		bytes += ops[i][2];
	assert_int_equal(lab_end(a, id)->code, 0);
	assert_int_equal(lab_end(a, id)->bytes, bytes);
}

static void test_one_operation(void **state)
{
	static const uint64_t lengths[] = { 1,     31,    4095, 16384,      16385,
					    65536, 65537, MIB,  3 * MIB + 5 };
	uint64_t id = 1;

	lab_init(&lab, 8 * MIB, 1);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lengths); i++) {
		const uint64_t op[1][3] = { { 3, 4 * MIB + 1, lengths[i] } };
		uint8_t before = *lab_at(b, 4 * MIB), after = *lab_at(b, 4 * MIB + 1 + lengths[i]);

		lab_fill(a, 3, lengths[i], (uint32_t)i);
		run_one(id++, DMSG_DIRECTION_WRITE, i % 2, op, 1);
		assert_true(lab_equal(b, 4 * MIB + 1, lab_at(a, 3), lengths[i]));
		assert_int_equal(*lab_at(b, 4 * MIB), before);
		assert_int_equal(*lab_at(b, 4 * MIB + 1 + lengths[i]), after);
		memset(a->region.memory, 0, a->region.bytes);
		run_one(id++, DMSG_DIRECTION_READ, i % 2, op, 1);
		assert_true(lab_filled(a, 3, lengths[i], (uint32_t)i));
		assert_int_equal(*lab_at(a, 2), 0);
		assert_int_equal(*lab_at(a, 3 + lengths[i]), 0);
	}
	/* two bulk streams, one for latency */
	assert_int_equal(lab_counter(a, DRAY_METRIC_TCP_STREAMS), 3);
	assert_int_equal(atomic_load(&a->link.streams), 3);
	assert_true(atomic_load(&a->link.bytes_sent) > 4 * MIB);
	assert_int_equal(atomic_load(&a->link.bytes_sent),
			 lab_counter(a, DRAY_METRIC_TCP_SENT_BYTES_TOTAL));
	assert_int_equal(atomic_load(&a->link.bytes_sent),
			 lab_counter(b, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL));
	assert_int_equal(atomic_load(&b->link.bytes_sent), atomic_load(&a->link.bytes_received));
	lab_deinit(&lab);
}

static void test_scattered_extents(void **state)
{
	enum { N = 2000 };
	static uint64_t ops[N][3];

	/* extents of 4,096 bytes: segments cross several of them */
	lab_init(&lab, 16 * MIB, 4096);
	lab_fill(a, 0, 16 * MIB, 1);
	for (unsigned i = 0; i < N; i++) {
		ops[i][0] = (uint64_t)(i * 7 % N) * 8000 + 3;
		ops[i][1] = (uint64_t)(i * 3 % N) * 8100 + 11;
		ops[i][2] = 1 + (i * 977) % 7900;
	}
	run_one(1, DMSG_DIRECTION_WRITE, DMSG_CLASS_BULK, (const uint64_t(*)[3])ops, N);
	for (unsigned i = 0; i < N; i++)
		for (uint64_t k = 0; k < ops[i][2]; k++)
			assert_int_equal(*lab_at(b, ops[i][1] + k), lab_pattern(ops[i][0] + k, 1));
	memset(a->region.memory, 0, a->region.bytes);
	run_one(2, DMSG_DIRECTION_READ, DMSG_CLASS_BULK, (const uint64_t(*)[3])ops, N);
	for (unsigned i = 0; i < N; i++)
		assert_true(lab_filled(a, ops[i][0], ops[i][2], 1));
	lab_deinit(&lab);
}

static void test_many_small(void **state)
{
	enum { ROUNDS = 40, N = 90 };
	uint64_t sent = 0;

	lab_init(&lab, 4 * MIB, 4);
	for (unsigned r = 0; r < ROUNDS; r++) {
		a->n_ended = 0;
		lab_fill(a, 0, N * 64, r);
		memset(b->region.memory, 0, b->region.bytes);
		for (unsigned i = 0; i < N; i++)
			lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * 64, i * 100, 64);
		lab_until(&lab, a->n_ended == N);
		sent += N * 64;
		for (unsigned i = 0; i < N; i++) {
			assert_int_equal(lab_end(a, i + 1)->code, 0);
			for (unsigned k = 0; k < 64; k++)
				assert_int_equal(*lab_at(b, i * 100 + k),
						 lab_pattern(i * 64 + k, r));
		}
		a->n_ended = 0;
		memset(a->region.memory, 0, a->region.bytes);
		for (unsigned i = 0; i < N; i++)
			lab_transfer1(a, i + 1, DMSG_DIRECTION_READ, i * 64, i * 100, 64);
		lab_until(&lab, a->n_ended == N);
		assert_true(lab_filled(a, 0, N * 64, r));
	}
	assert_int_equal(atomic_load(&a->link.bytes_sent), sent);
	lab_deinit(&lab);
}

static uint32_t random_below(uint32_t n)
{
	static uint64_t x = 88172645463325252;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return (uint32_t)(x >> 16) % n;
}

/* Breaks a random stream of a random side: by a reset, or by closing this side's half. */
static void break_something(void)
{
	struct lab_side *s = &lab.side[random_below(2)];
	struct tcp *t = s->tcp;

	dray_list_for_each(&t->streams, st, struct tcp_stream, link)
		if (st->fd >= 0 && random_below(3) == 0) {
			shutdown(st->fd, random_below(2) ? SHUT_RDWR : SHUT_WR);
			return;
		}
}

#define SLOTS 64
#define SLOT_BYTES 65536
#define HALF ((uint64_t)SLOTS * SLOT_BYTES)

/*
 * Side s starts n transfers at once to disjoint destinations: WRITEs go to slots of the other side's upper
 * half, READs to slots of its own lower half. Sources are the other halves, which are not written.
 */
static void submit_round(struct lab_side *s, unsigned n, uint8_t *want_local, uint8_t *want_remote,
			 struct lab_side *o, unsigned *ret_ops)
{
	unsigned slot_w = 0, slot_r = 0;

	for (unsigned i = 0; i < n; i++) {
		bool write = random_below(2);
		uint64_t ops[32][3];
		unsigned k = 1 + random_below(8), n_ops = 0;
		unsigned *slot = write ? &slot_w : &slot_r;

		for (; n_ops < k && *slot < SLOTS; n_ops++) {
			uint64_t length =
				1 + random_below(random_below(4) ? 5000 : SLOT_BYTES - 4096);
			uint64_t source = HALF + random_below((uint32_t)(HALF - length));
			uint64_t target = (uint64_t)(*slot)++ * SLOT_BYTES + random_below(4096);

			ops[n_ops][0] = write ? source : target;
			ops[n_ops][1] = write ? target : source;
			ops[n_ops][2] = length;
			lab_read(write ? s : o, source, (write ? want_remote : want_local) + target,
				 length);
		}
		if (!n_ops)
			break;
		lab_transfer(s, i + 1, write ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ,
			     random_below(4) ? DMSG_CLASS_BULK : DMSG_CLASS_LATENCY,
			     (const uint64_t(*)[3])ops, n_ops);
		*ret_ops += n_ops;
	}
}

static bool broken_enough(void)
{
	return lab_counter(a, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL) > 20 &&
	       lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL) > 20;
}

/* With faults, runs rounds until enough streams broke: the kernel decides how many turns a round takes. */
static void random_rounds(unsigned rounds, bool faults)
{
	uint8_t *want[2] = { calloc(1, 2 * HALF), calloc(1, 2 * HALF) };
	unsigned n_ops = 0;

	assert_true(want[0] && want[1]);
	for (unsigned i = 0; i < 2; i++)
		lab_fill(&lab.side[i], HALF, HALF, i);
	for (unsigned r = 0; r < rounds || (faults && r < 20 * rounds && !broken_enough()); r++) {
		/* one side at a time, so that destinations do not overlap */
		struct lab_side *s = &lab.side[faults ? 0 : random_below(2)],
				*o = &lab.side[!s->index];
		int64_t end = dray_now().ns + 20 * DRAY_NS_PER_SEC;

		a->n_ended = b->n_ended = 0;
		submit_round(s, 1 + random_below(40), want[s->index], want[o->index], o, &n_ops);
		while (!dray_list_empty(&s->session.xfers)) {
			if (faults && random_below(6) == 0)
				break_something();
			lab.hold_resets = faults && random_below(4);
			lab_turn(&lab);
			assert_true(dray_now().ns < end);
			if (faults)
				lab_advance(&lab, random_below(20));
		}
		for (unsigned i = 0; i < s->n_ended; i++)
			assert_int_equal(s->ended[i].code, 0);
		for (unsigned i = 0; i < 2; i++)
			assert_true(lab_equal(&lab.side[i], 0, want[i], HALF));
	}
	assert_true(n_ops > rounds * 10);
	free(want[0]);
	free(want[1]);
}

static void test_random(void **state)
{
	lab_init(&lab, 2 * HALF, 4);
	random_rounds(60, false);
	assert_int_equal(lab_counter(a, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL), 0);
	lab_deinit(&lab);
}

static void test_random_tiny_buffers(void **state)
{
	lab_prepare(&lab);
	for (unsigned i = 0; i < 2; i++) {
		lab.side[i].core.cfg.tcp_buffer = TINY;
		lab.side[i].core.cfg.slice_size = 100000;
		lab.side[i].core.cfg.tcp_slices_in_flight = 3;
	}
	lab_start(&lab, 2 * HALF, 64);
	random_rounds(20, false);
	lab_deinit(&lab);
}

static void test_random_faults(void **state)
{
	lab_prepare(&lab);
	for (unsigned i = 0; i < 2; i++) {
		lab.side[i].core.cfg.tcp_buffer = 50000;
		lab.side[i].core.cfg.tcp_streams = 4;
		/* Back-off must not make a peer unreachable after some bad luck. */
		lab.side[i].core.cfg.connect_timeout_ns = 1000 * DRAY_NS_PER_SEC;
		lab.side[i].core.cfg.deadline_ns = 100000 * DRAY_NS_PER_SEC;
		lab.side[i].core.cfg.slice_timeout_ns = 1000 * DRAY_NS_PER_SEC;
	}
	lab_start(&lab, 2 * HALF, 8);
	random_rounds(80, true);
	assert_true(broken_enough());
	lab.hold_resets = false;
	lab_turn(&lab);
	lab_deinit(&lab);
}

static void test_many_streams(void **state)
{
	lab_prepare(&lab);
	for (unsigned i = 0; i < 2; i++)
		lab.side[i].core.cfg.tcp_streams = 16;
	lab_start(&lab, 16 * MIB, 1);
	lab_fill(a, 0, 16 * MIB, 9);
	for (unsigned i = 0; i < 64; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * 65536, i * 65536, 65536);
	lab_until(&lab, a->n_ended == 64);
	assert_true(lab_filled(b, 0, 64 * 65536, 9));
	assert_int_equal(lab_counter(a, DRAY_METRIC_TCP_STREAMS), 16);
	lab_until(&lab, lab_counter(b, DRAY_METRIC_TCP_STREAMS) == 16);
	lab_deinit(&lab);
}

/* Frames that wait for their answers, on all streams of side a. */
static uint32_t in_flight(void)
{
	const struct tcp *t = a->tcp;
	uint32_t n = 0;

	dray_list_for_each(&t->streams, s, struct tcp_stream, link)
		if (s->side == &tcp_requester_side) {
			const struct tcp_requester *p =
				dray_container_of(s, struct tcp_requester, s);

			n += p->tail - p->head;
		}
	return n;
}

/* Reads of so many bytes that one turn asks for, with n transfers of them at hand. */
static uint32_t asked(uint64_t bytes, unsigned n)
{
	uint32_t asked_for;

	a->n_ended = 0;
	for (unsigned i = 0; i < n; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_READ, 0, 0, bytes);
	lab_side_turn(a);
	asked_for = in_flight();
	lab_until(&lab, a->n_ended == n);
	return asked_for;
}

/* tcp.slices_in_flight counts whole slices: of small ones, as many bytes as one has may be in flight. */
static void test_small_slices_in_flight(void **state)
{
	const unsigned streams = 2, whole = 8, n = 48;

	if (lab_staging[0] || lab_staging[1])
		return; /* buffers limit these */
	lab_init(&lab, 4 * MIB, 1);
	asked(64, 1);
	lab_until(&lab, lab_counter(a, DRAY_METRIC_TCP_STREAMS) == streams);
	assert_int_equal(asked(4096, n), n);
	assert_int_equal(asked(MIB, n), streams * whole);
	assert_int_equal(asked(MIB / 2, n), streams * whole);
	lab_deinit(&lab);
}

/* A few bytes behind whole slices go with the last one, but no more of them than that. */
static void test_few_bytes_behind_slices(void **state)
{
	if (lab_staging[0] || lab_staging[1])
		return; /* buffers limit slices */
	lab_init(&lab, 4 * MIB, 1);
	asked(64, 1);
	assert_int_equal(asked(MIB, 1), 1);
	assert_int_equal(asked(MIB + 256, 1), 1);
	assert_int_equal(asked(MIB + MIB / 64, 1), 1);
	assert_int_equal(asked(MIB + MIB / 64 + 1, 1), 2);
	assert_int_equal(asked(3 * MIB + 256, 1), 3);
	lab_deinit(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_operation),
		cmocka_unit_test(test_scattered_extents),
		cmocka_unit_test(test_many_small),
		cmocka_unit_test(test_small_slices_in_flight),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_random_tiny_buffers),
		cmocka_unit_test(test_random_faults),
		cmocka_unit_test(test_many_streams),
		cmocka_unit_test(test_few_bytes_behind_slices),
	};
	static const char *const names[] = { "host memory", "the importing side's is a GPU's",
					     "the owner's is a GPU's", "both are GPUs'" };
	int failed = 0;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(names); i++) {
		lab_staging[0] = i & 1 ? 8 * MIB : 0;
		lab_staging[1] = i & 2 ? 8 * MIB : 0;
		failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
	}
	return failed;
}
