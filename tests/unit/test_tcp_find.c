/* SPDX-License-Identifier: Apache-2.0 */
/* Questions on data streams: between two workers, and with a test that plays one side. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB
#define NONE UINT32_MAX

static struct lab_side *const a = &hand.lab.side[0], *const b = &hand.lab.side[1];

/* What the owner answers: the question back, and so many further bytes. */
static struct {
	uint32_t code;
	size_t more;
	unsigned n;
} owner;

static uint32_t find(struct core *c, struct peer_link *link, const uint8_t *question, size_t n,
		     uint8_t *found, size_t *ret_n, struct trailing **ret_trailing)
{
	assert_int_equal(link->peer, LAB_PEER);
	owner.n++;
	memcpy(found, question, n);
	lab_pattern_fill(found + n, 0, owner.more, 3);
	*ret_n = n + owner.more;
	return owner.code;
}

static void answer_questions(struct lab_side *s)
{
	static struct core_upcalls up;

	up = *s->core.up;
	up.find = find;
	s->core.up = &up;
	owner.code = 0;
	owner.more = 0;
	owner.n = 0;
}

struct question {
	struct seek seek;
	uint32_t code; /* NONE: it has not ended */
	uint8_t text[FIND_MAX];
	uint8_t found[FOUND_MAX + SEAL_BYTES];
};

static uint64_t ended(struct core *c, struct seek *k, uint32_t code)
{
	struct question *q = dray_container_of(k, struct question, seek);

	assert_int_equal(q->code, NONE);
	q->code = code;
	return 0;
}

static void ask(struct question *q, size_t n)
{
	q->code = NONE;
	lab_pattern_fill(q->text, 0, n, (uint32_t)n);
	q->seek = (struct seek){ .find = q->text, .n_find = n, .found = q->found, .ended = ended };
	dray_list_init(&q->seek.link);
	lab_until(&hand.lab, transport_tcp.seek(&a->core, a->tcp, LAB_PEER, &q->seek));
}

static void expect_found(const struct question *q, size_t more)
{
	assert_int_equal(q->code, 0);
	assert_int_equal(q->seek.n_found, q->seek.n_find + more);
	assert_memory_equal(q->found, q->text, q->seek.n_find);
	for (size_t i = 0; i < more; i++)
		assert_int_equal(q->found[q->seek.n_find + i], lab_pattern(i, 3));
}

static struct question *questions_new(unsigned n)
{
	struct question *v = calloc(n, sizeof(*v));

	assert_non_null(v);
	return v;
}

/* From one byte to the longest, alone and between transfers. */
static void test_answers(void **state)
{
	static const size_t more[] = { 0, 1, 4096, 16 * 1024, 40000, FOUND_MAX - 100 };
	struct question *q = questions_new(DRAY_ARRAY_SIZE(more));

	lab_init(&hand.lab, 8 * MIB, 4);
	lab_fill(b, 0, 8 * MIB, 1);
	answer_questions(b);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(more); i++) {
		owner.more = more[i];
		ask(&q[i], 1 + i);
		lab_until(&hand.lab, q[i].code != NONE);
		expect_found(&q[i], more[i]);
	}
	owner.more = 50;
	ask(q, FIND_MAX);
	lab_until(&hand.lab, q->code != NONE);
	expect_found(q, 50);
	owner.more = 30000;
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(more); i++) {
		static const uint64_t ops[][3] = { { 0, 0, 100000 } };

		ask(&q[i], 100);
		lab_transfer(a, 1 + i, DMSG_DIRECTION_READ, DMSG_CLASS_LATENCY, ops, 1);
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(more); i++) {
		lab_until(&hand.lab, q[i].code != NONE && lab_end(a, 1 + i));
		expect_found(&q[i], 30000);
		assert_int_equal(lab_end(a, 1 + i)->code, 0);
	}
	assert_true(lab_filled(a, 0, 100000, 1));
	assert_int_equal(a->link.started, a->link.ended);
	lab_deinit(&hand.lab);
	free(q);
}

/* The owner's word, and an owner that knows no questions. */
static void test_refused(void **state)
{
	struct question *q = questions_new(1);

	lab_init(&hand.lab, MIB, 1);
	ask(q, 10);
	lab_until(&hand.lab, q->code != NONE);
	assert_int_equal(q->code, DRAY_E_UNSUPPORTED);
	answer_questions(b);
	owner.code = DRAY_E_DENIED;
	ask(q, 10);
	lab_until(&hand.lab, q->code != NONE);
	assert_int_equal(q->code, DRAY_E_DENIED);
	assert_int_equal(q->seek.n_found, 0);
	assert_false(transport_tcp.seek(&a->core, a->tcp, LAB_PEER + 1, &q->seek));
	lab_deinit(&hand.lab);
	free(q);
}

/* Without an answer it ends with its stream, or with its peer. */
static void test_lost(void **state)
{
	struct question *q = questions_new(2);

	hand_own_start();
	ask(&q[0], 10);
	lab_settle(&hand.lab);
	assert_int_equal(q[0].code, NONE);
	close(hand_stream(1));
	lab_until(&hand.lab, q[0].code != NONE);
	assert_int_equal(q[0].code, DRAY_E_PEER_LOST);
	ask(&q[1], 10);
	lab_settle(&hand.lab);
	assert_int_equal(q[1].code, NONE);
	lab_peer_down(a, DRAY_E_PEER_LOST);
	a->down = true;
	assert_int_equal(q[1].code, DRAY_E_PEER_LOST);
	close(hand_stream(2));
	hand_own_finish();
	free(q);
}

/* The frame of the question on a stream of side 0, whose text is compared. */
static struct pmsg_frame receive_find(int fd, const struct question *q, struct seal *s)
{
	uint8_t wire[PMSG_FRAME_SIZE + PMSG_FIND_MAX], text[PMSG_FIND_MAX];
	struct pmsg_frame f;

	assert_true(lab_receive(&hand.lab, fd, wire, PMSG_FRAME_SIZE));
	pmsg_frame_get(wire, &f);
	assert_int_equal(f.kind, PMSG_FRAME_KIND_FIND);
	assert_int_equal(f.length, q->seek.n_find + SEAL_BYTES);
	assert_int_equal(f.segs, 0);
	assert_true(lab_receive(&hand.lab, fd, wire, f.length));
	assert_int_equal(seal_open(s, f.slice, wire, f.length, text), 0);
	assert_memory_equal(text, q->text, q->seek.n_find);
	return f;
}

static void test_hostile_owner(void **state)
{
	static const struct {
		uint8_t kind;
		uint32_t status;
		uint64_t length;
		uint32_t code; /* peer_lost: the stream is closed */
	} bad[] = {
		{ PMSG_FRAME_KIND_FOUND, 0, 0, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_FOUND, 0, SEAL_BYTES, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_FOUND, 0, FOUND_MAX + SEAL_BYTES + 1, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_FOUND, DRAY_E_BUSY, 20, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_READ_DATA, 0, 0, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_WRITE_ACK, 0, 0, DRAY_E_PEER_LOST },
		{ PMSG_FRAME_KIND_FOUND, UINT32_MAX, 0, DRAY_E_PROTOCOL },
		{ PMSG_FRAME_KIND_FOUND, DRAY_E_BUSY, 0, DRAY_E_BUSY },
		{ PMSG_FRAME_KIND_FOUND, 0, 5000, DRAY_E_PEER_LOST }, /* not sealed */
	};
	struct question *q = questions_new(1);

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		struct pmsg_frame f;
		struct seal *s;
		int fd;

		hand_own_start();
		ask(q, 10 + i);
		fd = hand_stream(1);
		s = seal_new(a->link.stream_key, a->link.agent_id, hand.lab.raw_id[0], SEAL_FIND);
		f = receive_find(fd, q, s);
		hand_answer(fd, bad[i].kind, f.slice, bad[i].status, bad[i].length);
		if (bad[i].length == 5000)
			lab_send(&hand.lab, fd, hand.payload, bad[i].length);
		lab_until(&hand.lab, q->code != NONE);
		assert_int_equal(q->code, bad[i].code);
		assert_true(q->code != DRAY_E_PEER_LOST || lab_is_closed(&hand.lab, fd));
		close(fd);
		seal_free(s);
		hand_own_finish();
	}
	free(q);
}

/* A frame find with this number, sealed by s. */
static void send_find(struct seal *s, uint64_t number, size_t n)
{
	uint8_t wire[PMSG_FRAME_SIZE + PMSG_FIND_MAX], text[FIND_MAX];

	lab_pattern_fill(text, 0, n, 9);
	pmsg_frame_put(wire, &(struct pmsg_frame){ .kind = PMSG_FRAME_KIND_FIND,
						   .slice = number,
						   .length = n + SEAL_BYTES });
	seal_close(s, number, text, n, wire + PMSG_FRAME_SIZE);
	lab_send(&hand.lab, hand.fd, wire, PMSG_FRAME_SIZE + n + SEAL_BYTES);
}

static struct seal *seal_of_stream(uint64_t stream, enum seal_side side)
{
	struct seal *s = seal_new(b->link.stream_key, b->link.peer_agent_id, stream, side);

	assert_non_null(s);
	return s;
}

static void test_by_hand(void **state)
{
	struct seal *s = seal_of_stream(HAND_STREAM, SEAL_FIND),
		    *r = seal_of_stream(HAND_STREAM, SEAL_FOUND);
	uint8_t found[200], text[200];

	hand_import_start(1, 0);
	answer_questions(b);
	for (uint64_t number = 1; number < 30; number += number) {
		send_find(s, number, 100);
		hand_expect_answer(PMSG_FRAME_KIND_FOUND, number, 0, 100 + SEAL_BYTES);
		assert_true(lab_receive(&hand.lab, hand.fd, found, 100 + SEAL_BYTES));
		assert_int_equal(seal_open(r, number, found, 100 + SEAL_BYTES, text), 0);
		lab_pattern_fill(found, 0, 100, 9);
		assert_memory_equal(text, found, 100);
		hand_read(1000 + number, 0, 10);
	}
	/* once more: the answer would be sealed with the same number */
	owner.n = 0;
	send_find(s, 16, 100);
	assert_true(lab_is_closed(&hand.lab, hand.fd));
	assert_int_equal(owner.n, 0);
	b->closed.n = 0;
	hand_import_finish();
	seal_free(s);
	seal_free(r);
}

static void test_hostile_importer(void **state)
{
	static const struct pmsg_frame bad[] = {
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .length = 0 },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .length = SEAL_BYTES },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .length = PMSG_FIND_MAX + 1 },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .length = UINT64_MAX },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .segs = 1, .length = 100 },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .status = 1, .length = 100 },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .grant = LAB_GRANT, .length = 100 },
		{ .kind = PMSG_FRAME_KIND_FIND, .slice = 1, .length = 100 }, /* not sealed */
		{ .kind = PMSG_FRAME_KIND_FOUND, .slice = 1, .length = 100 },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		hand_import_start(1, 0);
		answer_questions(b);
		pmsg_frame_put(hand.frame, &bad[i]);
		memset(hand.frame + PMSG_FRAME_SIZE, 5, 200);
		lab_send(&hand.lab, hand.fd, hand.frame, PMSG_FRAME_SIZE + 200);
		if (!lab_is_closed(&hand.lab, hand.fd))
			fail_msg("accepted: %u", i);
		assert_int_equal(owner.n, 0);
		b->closed.n = 0;
		hand_import_finish();
	}
}

/* More questions than the owner answers at once; each has its answer, in order. */
static void test_many(void **state)
{
	struct seal *s = seal_of_stream(HAND_STREAM, SEAL_FIND),
		    *r = seal_of_stream(HAND_STREAM, SEAL_FOUND);
	static uint8_t found[60100], text[60100];

	hand_import_start(1, 0);
	answer_questions(b);
	owner.more = 60000;
	for (uint64_t number = 1; number <= 40; number++)
		send_find(s, number, 10);
	for (uint64_t number = 1; number <= 40; number++) {
		hand_expect_answer(PMSG_FRAME_KIND_FOUND, number, 0, 60010 + SEAL_BYTES);
		assert_true(lab_receive(&hand.lab, hand.fd, found, 60010 + SEAL_BYTES));
		assert_int_equal(seal_open(r, number, found, 60010 + SEAL_BYTES, text), 0);
	}
	hand_read(1000, 0, 10);
	hand_import_finish();
	seal_free(s);
	seal_free(r);
}

/* Answers that the importer does not read are given back with the stream, and with the peer. */
static void test_unread(void **state)
{
	struct seal *s = seal_of_stream(HAND_STREAM, SEAL_FIND);

	for (unsigned round = 0; round < 2; round++) {
		hand_import_start(1, 4096);
		answer_questions(b);
		owner.more = 60000;
		for (uint64_t number = 1; number <= 40; number++)
			send_find(s, number, 10);
		lab_settle(&hand.lab);
		/* they take a bounded part of its memory */
		assert_in_range(owner.n, 2, 39);
		if (round)
			lab_stream_reset(b, LAB_PEER, HAND_STREAM);
		hand_import_finish();
		b->closed.n = 0;
	}
	seal_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_lost),    cmocka_unit_test(test_hostile_owner),
		cmocka_unit_test(test_by_hand), cmocka_unit_test(test_hostile_importer),
		cmocka_unit_test(test_many),    cmocka_unit_test(test_unread),
	};

	return cmocka_run_group_tests_name("tcp_find", tests, hand_set_up, NULL);
}
