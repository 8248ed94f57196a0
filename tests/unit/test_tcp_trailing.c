/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that follow the answer to a question: between two workers, and with a test that plays one side. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB
#define NONE UINT32_MAX
#define OBJECTS 64

static struct lab_side *const a = &hand.lab.side[0], *const b = &hand.lab.side[1];

/* What follows the answers of the owner: objects of `each` bytes of hand.payload's pattern. */
static struct {
	uint64_t each;
	unsigned n, n_made, n_ended, n_turns;
	uint64_t work, most; /* that each answer needs, and that one turn does */
} owner;
static uint8_t *store;

static void trailing_end(struct trailing *p)
{
	owner.n_ended++;
	free(p);
}

/* The first byte of an answer is wrong until it is complete. */
static bool complete(struct trailing *p, uint8_t *found, uint64_t *turn)
{
	uint64_t n = dray_min(*turn, owner.work);

	assert_true(*turn > 0);
	owner.n_turns++;
	owner.most = dray_max(owner.most, n);
	owner.work -= n;
	*turn -= n;
	if (owner.work)
		return false;
	found[0] ^= UINT8_MAX;
	return true;
}

static uint32_t find(struct core *c, struct peer_link *link, const uint8_t *question, size_t n,
		     uint8_t *found, size_t *ret_n, struct trailing **ret_trailing)
{
	struct trailing *p = calloc(1, sizeof(*p));
	static struct iovec objects[OBJECTS];

	assert_non_null(p);
	assert_in_range(owner.n, 1, OBJECTS);
	for (unsigned i = 0; i < owner.n; i++)
		objects[i] = (struct iovec){ store + i * owner.each, owner.each };
	memcpy(found, question, n);
	*ret_n = n;
	p->end = trailing_end;
	if (owner.work) {
		p->complete = complete;
		found[0] ^= UINT8_MAX;
	}
	p->v = objects;
	p->n = owner.n;
	p->bytes = owner.n * owner.each;
	owner.n_made++;
	*ret_trailing = p;
	return 0;
}

static void answer_questions(struct lab_side *s, unsigned n, uint64_t each)
{
	static struct core_upcalls up;

	up = *s->core.up;
	up.find = find;
	s->core.up = &up;
	owner.n = n;
	owner.each = each;
	owner.n_made = owner.n_ended = owner.n_turns = 0;
	owner.work = owner.most = 0;
}

/* A question, and the transfer that takes what follows its answer: from `ops` of them, to [at, ...) here. */
struct question {
	struct seek seek;
	uint32_t code; /* NONE: it has not ended */
	uint64_t follows, id;
	uint64_t ops[OBJECTS][3];
	uint32_t n_ops;
	struct object remote;
	struct remote_view view;
	uint8_t text[16];
	uint8_t found[FOUND_MAX + SEAL_BYTES];
};

static struct question *q;

static void take(struct seek *k)
{
	struct xfer_request r = { .request_id = q->id,
				  .spec.direction = DMSG_DIRECTION_READ,
				  .spec.class = DMSG_CLASS_BULK,
				  .spec.local = LAB_REGION,
				  .remote = &q->remote,
				  .n_ops = q->n_ops,
				  .ops_ours = true,
				  .outlived = true };
	uint8_t wire[OBJECTS * DMSG_OP_SIZE];
	struct dray_err err = DRAY_ERR_NULL;

	q->view = (struct remote_view){
		.o = { .kind = OBJECT_REMOTE, .length = q->follows, .access = DMSG_ACCESS_READ },
		.peer = LAB_PEER
	};
	object_init(&q->remote, &q->view.o);
	q->remote.trailing = k->trailing;
	for (uint32_t i = 0; i < q->n_ops; i++)
		dmsg_op_put(wire + i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ q->ops[i][0], q->ops[i][1], q->ops[i][2] });
	r.ops = wire;
	if (xfer_start(&a->core, &a->session, &r, &err) < 0)
		fail_msg("%s", err.msg);
}

static uint64_t ended(struct core *c, struct seek *k, uint32_t code)
{
	assert_int_equal(q->code, NONE);
	q->code = code;
	if (code)
		return 0;
	if (q->n_ops)
		take(k);
	return q->follows;
}

static void ask(uint64_t follows)
{
	static uint64_t id = 100;

	q->code = NONE;
	q->id = id++;
	q->follows = follows;
	q->seek = (struct seek){ .find = q->text,
				 .n_find = sizeof(q->text),
				 .found = q->found,
				 .room = MIB,
				 .class = DMSG_CLASS_BULK,
				 .ended = ended };
	dray_list_init(&q->seek.link);
	lab_until(&hand.lab, transport_tcp.seek(&a->core, a->tcp, LAB_PEER, &q->seek));
}

static void take_all(uint64_t bytes)
{
	q->n_ops = 1;
	q->ops[0][0] = 1000;
	q->ops[0][1] = 0;
	q->ops[0][2] = bytes;
}

static void expect_taken(void)
{
	for (uint32_t i = 0; i < q->n_ops; i++)
		assert_true(lab_equal(a, q->ops[i][0], store + q->ops[i][1], q->ops[i][2]));
}

static int set_up(void **state)
{
	store = malloc(8 * MIB);
	q = calloc(1, sizeof(*q));
	if (!store || !q)
		return -1;
	lab_pattern_fill(store, 0, 8 * MIB, 9);
	return hand_set_up(state);
}

static int tear_down(void **state)
{
	free(store);
	free(q);
	return 0;
}

/* An answer that takes long is completed in turns, and what was asked for behind it comes behind it. */
static void test_completed_in_turns(void **state)
{
	static const uint64_t work[] = { 1, MIB, MIB + 1, 9 * MIB };

	lab_init(&hand.lab, 8 * MIB, 4);
	a->core.cfg.tcp_streams = 1;
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(work); i++) {
		lab_fill(a, 0, 8 * MIB, 1);
		answer_questions(b, 1, 3 * MIB);
		owner.work = work[i];
		take_all(3 * MIB);
		memset(q->text, (int)i, sizeof(q->text));
		ask(3 * MIB);
		for (unsigned k = 0; k < 4; k++)
			lab_transfer1(a, 1 + k, DMSG_DIRECTION_READ, 5 * MIB, 0, 100000);
		lab_until(&hand.lab, lab_end(a, q->id));
		hand_expect_end(q->id, 0);
		assert_memory_equal(q->found, q->text, sizeof(q->text));
		expect_taken();
		for (unsigned k = 0; k < 4; k++) {
			lab_until(&hand.lab, lab_end(a, 1 + k));
			hand_expect_end(1 + k, 0);
		}
		assert_int_equal(owner.work, 0);
		assert_in_range(owner.most, 1, TCP_TURN_BYTES);
		assert_in_range(owner.n_turns, (work[i] + MIB - 1) / MIB, 20);
		assert_int_equal(owner.n_made, owner.n_ended);
		a->n_ended = 0;
	}
	assert_int_equal(a->link.started, a->link.ended);
	lab_deinit(&hand.lab);
}

static void test_sizes(void **state)
{
	static const uint64_t sizes[] = { 1, 16385, 65536, 262144, 262145, 3 * MIB, 8 * MIB - 1000 };

	lab_init(&hand.lab, 8 * MIB, 4);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(sizes); i++) {
		lab_fill(a, 0, 8 * MIB, 1);
		answer_questions(b, 1, sizes[i]);
		take_all(sizes[i]);
		ask(sizes[i]);
		lab_until(&hand.lab, lab_end(a, q->id));
		hand_expect_end(q->id, 0);
		assert_int_equal(lab_end(a, q->id)->bytes, sizes[i]);
		expect_taken();
		assert_true(lab_filled(a, 0, 1000, 1));
		assert_int_equal(owner.n_made, owner.n_ended);
	}
	assert_int_equal(a->link.started, a->link.ended);
	lab_deinit(&hand.lab);
}

/* What no transfer takes is discarded: in front, between, behind, and all of it. */
static void test_gaps(void **state)
{
	static const uint32_t taken[] = { 1, 2, 4, 5, 0, 3, 6, 7 };
	const uint64_t each = 300000;

	lab_init(&hand.lab, 8 * MIB, 4);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(taken); i++) {
		lab_fill(a, 0, 8 * MIB, 1);
		answer_questions(b, 3, each);
		q->n_ops = 0;
		for (unsigned k = 0; k < 3; k++) {
			uint64_t *op = q->ops[q->n_ops];

			if (!(taken[i] & 1u << k))
				continue;
			op[0] = MIB * (k + 1) + 7;
			op[1] = each * k + k;
			op[2] = each - 2 * k;
			q->n_ops++;
		}
		ask(3 * each);
		lab_transfer1(a, 1 + i, DMSG_DIRECTION_READ, 5 * MIB, 0, 100000);
		lab_until(&hand.lab,
			  q->code != NONE && lab_end(a, 1 + i) && (!q->n_ops || lab_end(a, q->id)));
		hand_expect_end(1 + i, 0);
		if (q->n_ops)
			hand_expect_end(q->id, 0);
		expect_taken();
		assert_true(lab_filled(a, 0, MIB, 1));
		assert_true(lab_filled(a, 4 * MIB, MIB, 1));
	}
	assert_int_equal(a->link.started, a->link.ended);
	lab_deinit(&hand.lab);
}

/* Objects that follow each other go to places that do not, some of them whole and some not, and one in eight to none. */
static void test_scattered(void **state)
{
	static const uint64_t each[] = { 1, 1000, 65536, 100001 };

	lab_init(&hand.lab, 8 * MIB, 4);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(each); i++) {
		lab_fill(a, 0, 8 * MIB, 1);
		answer_questions(b, OBJECTS, each[i]);
		q->n_ops = 0;
		for (unsigned k = 0; k < OBJECTS; k++) {
			uint64_t *op = q->ops[q->n_ops];

			if (k % 8 == 3)
				continue;
			op[0] = (OBJECTS - 1 - k) * (each[i] + 1);
			op[1] = k * each[i];
			op[2] = each[i] - (k % 8 == 5 && each[i] > 1);
			q->n_ops++;
		}
		ask(OBJECTS * each[i]);
		lab_until(&hand.lab, lab_end(a, q->id));
		hand_expect_end(q->id, 0);
		expect_taken();
		for (unsigned k = 0; k < OBJECTS; k++)
			assert_true(lab_filled(a, k * (each[i] + 1) + each[i], 1, 1));
		assert_int_equal(owner.n_made, owner.n_ended);
	}
	assert_int_equal(a->link.started, a->link.ended);
	lab_deinit(&hand.lab);
}

/* The session has all its slices in flight, which wait behind these bytes. */
static void test_limit_of_slices(void **state)
{
	lab_prepare(&hand.lab);
	a->core.cfg.slices_per_session = 1;
	a->core.cfg.tcp_streams = 1;
	lab_start(&hand.lab, 8 * MIB, 4);
	answer_questions(b, 1, 2 * MIB);
	take_all(2 * MIB);
	ask(2 * MIB);
	for (unsigned i = 0; i < 4; i++)
		lab_transfer1(a, 1 + i, DMSG_DIRECTION_READ, 4 * MIB, 0, 200000);
	lab_until(&hand.lab, lab_end(a, q->id) && lab_end(a, 4));
	hand_expect_end(q->id, 0);
	hand_expect_end(4, 0);
	expect_taken();
	assert_int_equal(a->session.slices[DMSG_CLASS_BULK], 0);
	lab_deinit(&hand.lab);
}

/* A stream that has much to bring takes no question with room for much more, but others. */
static void test_no_room(void **state)
{
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 600000);
	fd = hand_stream(1);
	lab_settle(&hand.lab);
	q->code = NONE;
	q->seek = (struct seek){ .find = q->text,
				 .n_find = sizeof(q->text),
				 .found = q->found,
				 .room = 500000,
				 .class = DMSG_CLASS_BULK,
				 .ended = ended };
	dray_list_init(&q->seek.link);
	assert_false(transport_tcp.seek(&a->core, a->tcp, LAB_PEER, &q->seek));
	q->seek.room = 400000;
	assert_true(transport_tcp.seek(&a->core, a->tcp, LAB_PEER, &q->seek));
	close(fd);
	lab_until(&hand.lab, q->code == DRAY_E_PEER_LOST);
	hand_stop(1, DRAY_E_CANCELLED, true);
	hand_own_finish();
}

/* The test plays the owner: it answers the question of the stream. */
static void answer(int fd, uint64_t raw_id)
{
	struct seal *s = seal_new(a->link.stream_key, a->link.agent_id, raw_id, SEAL_FOUND);
	uint8_t wire[PMSG_FRAME_SIZE + PMSG_FIND_MAX];
	struct pmsg_frame f;

	assert_non_null(s);
	assert_true(lab_receive(&hand.lab, fd, wire, PMSG_FRAME_SIZE));
	pmsg_frame_get(wire, &f);
	assert_int_equal(f.kind, PMSG_FRAME_KIND_FIND);
	assert_true(lab_receive(&hand.lab, fd, wire, f.length));
	seal_close(s, f.slice, q->text, sizeof(q->text), wire);
	hand_answer(fd, PMSG_FRAME_KIND_FOUND, f.slice, 0, sizeof(q->text) + SEAL_BYTES);
	lab_send(&hand.lab, fd, wire, sizeof(q->text) + SEAL_BYTES);
	seal_free(s);
}

/* The answer to a question, behind which so many bytes come, all of them for a transfer. The owner's end of the stream. */
static int answered(uint64_t bytes)
{
	int fd;

	take_all(bytes);
	ask(bytes);
	fd = hand_stream(1);
	answer(fd, hand.lab.raw_id[0]);
	return fd;
}

/* It ends in the middle: nothing of it is written any more, and the stream goes on. */
static void test_stopped(void **state)
{
	static const uint32_t codes[] = { DRAY_E_CANCELLED, DRAY_E_DEADLINE, DRAY_E_TIMEOUT };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(codes); i++) {
		int fd;

		hand_own_start();
		fd = answered(2 * MIB);
		lab_send(&hand.lab, fd, store, MIB + 5);
		lab_settle(&hand.lab);
		assert_true(lab_equal(a, 1000, store, MIB + 5));
		assert_null(lab_end(a, q->id));
		hand_stop(q->id, codes[i], false);
		hand_expect_end(q->id, codes[i]);
		assert_int_equal(q->remote.users, 0);
		lab_fill(a, 0, 8 * MIB, 1);
		lab_send(&hand.lab, fd, store + MIB + 5, MIB - 5);
		lab_settle(&hand.lab);
		assert_true(lab_filled(a, 0, 8 * MIB, 1));
		ask(2 * MIB);
		answer(fd, hand.lab.raw_id[0]);
		lab_send(&hand.lab, fd, store, 2 * MIB);
		lab_until(&hand.lab, lab_end(a, q->id));
		hand_expect_end(q->id, 0);
		expect_taken();
		close(fd);
		hand_own_finish();
	}
}

/* The stream, or the peer, ends in the middle. */
static void test_lost(void **state)
{
	for (unsigned way = 0; way < 3; way++) {
		int fd;

		hand_own_start();
		fd = answered(2 * MIB);
		/* not a byte, some, and whole slices */
		lab_send(&hand.lab, fd, store, way * 400000);
		lab_settle(&hand.lab);
		if (way < 2) {
			close(fd);
			lab_until(&hand.lab, lab_end(a, q->id));
		} else {
			lab_peer_down(a, DRAY_E_PEER_LOST);
			a->down = true;
			close(fd);
		}
		hand_expect_end(q->id, DRAY_E_PEER_LOST);
		assert_int_equal(q->remote.users, 0);
		assert_int_equal(a->link.started, a->link.ended);
		hand_own_finish();
	}
}

/* A requester with so many streams, whose sockets take only a part of a large WRITE. */
static void start_narrow(uint32_t streams)
{
	hand_own_prepare();
	a->core.cfg.tcp_streams = streams;
	a->core.cfg.tcp_buffer = 20000;
	a->core.cfg.slice_size = 8 * MIB;
	hand_own_go();
	for (uint32_t i = 1; i <= streams; i++) {
		tcp_connect(&tcp_peer_get(a->tcp, LAB_PEER)->channels[DMSG_CLASS_BULK]);
		hand_stream(i);
		lab_settle(&hand.lab);
	}
}

/* The test's end of the requester's first stream, and its id. */
static int first_stream(uint64_t *ret_id)
{
	struct tcp_channel *ch = &tcp_peer_get(a->tcp, LAB_PEER)->channels[DMSG_CLASS_BULK];
	const struct tcp_requester *p =
		dray_list_first(&ch->streams, struct tcp_requester, s.peer_link);

	for (unsigned i = 0; i < hand.lab.n_raw; i++)
		if (hand.lab.raw_id[i] == p->s.id) {
			*ret_id = p->s.id;
			return hand.lab.raw_fd[i];
		}
	fail();
	return -1;
}

/* A WRITE that is partly sent closes the stream when it is stopped, and so ends the transfer that comes after it in the session. */
static void test_session_stops(void **state)
{
	uint64_t id;
	int fd;

	start_narrow(1);
	take_all(2 * MIB);
	ask(2 * MIB);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 4 * MIB, 0, 4 * MIB);
	fd = first_stream(&id);
	answer(fd, id);
	lab_send(&hand.lab, fd, store, 1000);
	lab_settle(&hand.lab);
	assert_int_equal(a->n_ended, 0);
	xfer_session_stop(&a->core, &a->session, DRAY_E_SESSION_CLOSED);
	hand_expect_end(1, DRAY_E_SESSION_CLOSED);
	hand_expect_end(q->id, DRAY_E_PEER_LOST);
	assert_int_equal(a->n_ended, 2);
	assert_int_equal(a->link.started, a->link.ended);
	close(fd);
	hand_own_finish();
}

static const struct core_upcalls *up_before;

static void stop_another(struct core *c, struct xfer *x)
{
	up_before->xfer_ended(c, x);
	if (x->request_id == q->id)
		hand_stop(2, DRAY_E_CANCELLED, true);
}

/* The end of one stream ends a transfer, whose client's next step closes the stream behind it. */
static void test_streams_end_each_other(void **state)
{
	struct core_upcalls up;
	uint64_t id;
	int fd;

	start_narrow(2);
	take_all(2 * MIB);
	ask(2 * MIB);
	fd = first_stream(&id);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 4 * MIB, 0, 4 * MIB);
	lab_settle(&hand.lab);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 4 * MIB, 0, 4 * MIB);
	answer(fd, id);
	lab_send(&hand.lab, fd, store, 1000);
	lab_settle(&hand.lab);
	assert_int_equal(a->n_ended, 0);
	up_before = a->core.up;
	up = *up_before;
	up.xfer_ended = stop_another;
	a->core.up = &up;
	hand_stop(1, DRAY_E_CANCELLED, true);
	a->core.up = up_before;
	hand_expect_end(1, DRAY_E_CANCELLED);
	hand_expect_end(2, DRAY_E_CANCELLED);
	hand_expect_end(q->id, DRAY_E_PEER_LOST);
	assert_int_equal(a->n_ended, 3);
	assert_int_equal(lab_counter(a, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL), 2);
	for (unsigned i = 0; i < 2; i++)
		close(hand.lab.raw_fd[i]);
	hand_own_finish();
}

/* The owner stops sending. */
static void test_stalls(void **state)
{
	int fd;

	hand_own_start();
	fd = answered(2 * MIB);
	lab_send(&hand.lab, fd, store, 1000);
	lab_settle(&hand.lab);
	lab_advance(&hand.lab, a->core.cfg.slice_timeout_ns / DRAY_NS_PER_MS + 1);
	lab_until(&hand.lab, lab_end(a, q->id));
	hand_expect_end(q->id, DRAY_E_PEER_LOST);
	close(fd);
	hand_own_finish();
}

/* Memory of the client is gone. */
static void test_fault(void **state)
{
	int fd;

	hand_own_start();
	if (!lab_punch(a, MIB, 65536)) {
		hand_own_finish();
		skip();
	}
	fd = answered(2 * MIB);
	lab_send(&hand.lab, fd, store, 2 * MIB);
	lab_until(&hand.lab, lab_end(a, q->id));
	hand_expect_end(q->id, DRAY_E_REGION_FAULT);
	assert_int_equal(a->n_faults, 1);
	q->n_ops = 0;
	ask(3);
	answer(fd, hand.lab.raw_id[0]);
	lab_send(&hand.lab, fd, store, 3);
	lab_until(&hand.lab, q->code == 0);
	close(fd);
	hand_own_finish();
}

/* An answer that does not tell how many bytes follow ends the stream. */
static void test_broken(void **state)
{
	int fd;

	hand_own_start();
	q->n_ops = 0;
	ask(SEEK_BROKEN);
	fd = hand_stream(1);
	answer(fd, hand.lab.raw_id[0]);
	assert_true(lab_is_closed(&hand.lab, fd));
	assert_int_equal(q->code, 0);
	close(fd);
	hand_own_finish();
}

/* Questions 1 to n, on the stream of the test. */
static void send_questions(uint64_t n)
{
	struct seal *s =
		seal_new(b->link.stream_key, b->link.peer_agent_id, HAND_STREAM, SEAL_FIND);
	uint8_t wire[PMSG_FRAME_SIZE + 16 + SEAL_BYTES];

	assert_non_null(s);
	for (uint64_t number = 1; number <= n; number++) {
		pmsg_frame_put(wire, &(struct pmsg_frame){ .kind = PMSG_FRAME_KIND_FIND,
							   .slice = number,
							   .length = 16 + SEAL_BYTES });
		seal_close(s, number, store, 16, wire + PMSG_FRAME_SIZE);
		lab_send(&hand.lab, hand.fd, wire, sizeof(wire));
	}
	seal_free(s);
}

/* The stream, the peer, or the time for its object ends while an answer is not complete. Nothing behind it is answered. */
static void test_not_completed(void **state)
{
	for (unsigned round = 0; round < 3; round++) {
		hand_import_start(1, 0);
		answer_questions(b, 1, 3 * MIB);
		owner.work = UINT64_MAX;
		send_questions(3);
		lab_until(&hand.lab, owner.n_turns > 3);
		assert_int_equal(owner.n_made, 1);
		assert_int_equal(owner.n_ended, 0);
		if (round == 1)
			lab_stream_reset(b, LAB_PEER, HAND_STREAM);
		if (round == 2)
			lab_advance(&hand.lab, 11000);
		if (round)
			lab_until(&hand.lab, owner.n_ended);
		b->closed.n = 0;
		hand_import_finish();
		assert_int_equal(owner.n_made, 1);
		assert_int_equal(owner.n_ended, 1);
		b->closed.n = 0;
	}
}

/* A peer that does not read them: the owner holds few of them, and not for ever. */
static void test_unread(void **state)
{
	for (unsigned round = 0; round < 3; round++) {
		hand_import_start(1, 4096);
		answer_questions(b, 2, 3 * MIB);
		send_questions(20);
		lab_settle(&hand.lab);
		assert_in_range(owner.n_made, 1, 8);
		assert_in_range(owner.n_ended, 0, owner.n_made - 1);
		if (round == 1)
			lab_stream_reset(b, LAB_PEER, HAND_STREAM);
		if (round == 2) {
			lab_advance(&hand.lab, 9000);
			lab_settle(&hand.lab);
			assert_in_range(owner.n_ended, 0, owner.n_made - 1);
			lab_advance(&hand.lab, 1500);
			lab_settle(&hand.lab);
			assert_int_equal(owner.n_ended, owner.n_made);
		}
		b->closed.n = 0;
		hand_import_finish();
		assert_int_equal(owner.n_ended, owner.n_made);
		b->closed.n = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_completed_in_turns),
		cmocka_unit_test(test_not_completed),
		cmocka_unit_test(test_gaps),
		cmocka_unit_test(test_scattered),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_limit_of_slices),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_stalls),
		cmocka_unit_test(test_fault),
		cmocka_unit_test(test_broken),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_session_stops),
		cmocka_unit_test(test_streams_end_each_other),
		cmocka_unit_test(test_no_room),
	};

	return cmocka_run_group_tests_name("tcp_trailing", tests, set_up, tear_down);
}
