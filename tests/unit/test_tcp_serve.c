/* SPDX-License-Identifier: Apache-2.0 */
/* The owning side of transport tcp; the test plays the importer, byte by byte. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/tcp/serve.h"
#include "agent/data/transport/tcp/tcp.h"
#include "agent/model/ranges.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB
#define STREAM HAND_STREAM

static struct lab_side *const b = &hand.lab.side[1];

static void test_byte_by_byte(void **state)
{
	struct pmsg_seg segs[] = { { 100, 3 }, { 5000, 9000 }, { 7, 1 } };
	size_t n;

	hand_import_start(2048, 0);
	n = lab_frame(hand.frame, PMSG_FRAME_KIND_WRITE, 5, LAB_GRANT, segs, 3);
	for (size_t i = 0; i < n; i++) {
		lab_send(&hand.lab, hand.fd, hand.frame + i, 1);
		assert_int_equal(hand_grant()->users, i == n - 1);
	}
	for (size_t i = 0; i < 9004; i++)
		lab_send(&hand.lab, hand.fd, hand.payload + i, 1);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 5, 0, 0);
	assert_int_equal(hand_grant()->users, 0);
	assert_true(lab_equal(b, 100, hand.payload, 3));
	assert_true(lab_equal(b, 5000, hand.payload + 3, 9000));
	assert_true(lab_equal(b, 7, hand.payload + 9003, 1));
	n = lab_frame(hand.frame, PMSG_FRAME_KIND_READ, 6, LAB_GRANT, segs, 3);
	for (size_t i = 0; i < n; i++)
		lab_send(&hand.lab, hand.fd, hand.frame + i, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 6, 0, 9004);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload + MIB, 9004));
	assert_memory_equal(hand.payload + MIB, hand.payload, 9004);
	hand_import_finish();
}

static bool turns_are_short(void)
{
	return ((struct tcp *)b->tcp)->short_ns > b->core.now_ns;
}

/* A session that waits for each small request does not wait for long turns of others; many at once, and large ones, do. */
static void test_lone_small_requests(void **state)
{
	struct pmsg_seg small = { 0, 100 }, large = { 0, SERVE_SMALL_READ + 1 };
	size_t n = 0;

	hand_import_start(1, 0);
	hand_send_frame(PMSG_FRAME_KIND_READ, 1, LAB_GRANT, &large, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 1, 0, large.length);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, large.length));
	for (uint64_t i = 2; i <= 4; i++)
		n += lab_frame(hand.frame + n, PMSG_FRAME_KIND_READ, i, LAB_GRANT, &small, 1);
	lab_send(&hand.lab, hand.fd, hand.frame, n);
	for (uint64_t i = 2; i <= 4; i++) {
		hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, i, 0, small.length);
		assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, small.length));
	}
	assert_false(turns_are_short());
	hand_send_frame(PMSG_FRAME_KIND_READ, 5, LAB_GRANT, &small, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 5, 0, small.length);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, small.length));
	assert_true(turns_are_short());
	lab_advance(&hand.lab, 1001);
	lab_settle(&hand.lab);
	assert_false(turns_are_short());
	hand_write(6, 0, 100);
	assert_true(turns_are_short());
	hand_import_finish();
}

/* A worker that is not told of the end of its peers ends while one of them has not read its answers. */
static void test_end_with_answers(void **state)
{
	struct pmsg_seg seg = { 0, 1000 };
	const struct tcp *t;

	hand_import_start(1, 4096);
	for (uint64_t i = 1; i <= 50; i++)
		hand_send_frame(PMSG_FRAME_KIND_READ, i, LAB_GRANT, &seg, 1);
	lab_settle(&hand.lab);
	t = b->tcp;
	assert_true(t->pool_n < t->pool_cap);
	hand.lab.forced_end = true;
	lab_deinit(&hand.lab);
	close(hand.fd);
	free(hand.payload);
}

static void test_most_segments(void **state)
{
	struct pmsg_seg segs[PMSG_SEGS_MAX];

	/* large and small frames of 256 segments in turn, all at once */
	hand_import_start(1024, 0);
	for (unsigned round = 0; round < 6; round++) {
		uint64_t length = round % 2 ? 8000 : 10, at = 0;

		for (unsigned i = 0; i < PMSG_SEGS_MAX; i++)
			segs[i] =
				(struct pmsg_seg){ (PMSG_SEGS_MAX - i) * 8192ull + round, length };
		hand_send_frame(PMSG_FRAME_KIND_WRITE, round, LAB_GRANT, segs, PMSG_SEGS_MAX);
		lab_send(&hand.lab, hand.fd, hand.payload, length * PMSG_SEGS_MAX);
		hand_send_frame(PMSG_FRAME_KIND_READ, round, LAB_GRANT, segs, PMSG_SEGS_MAX);
		hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, round, 0, 0);
		for (unsigned i = 0; i < PMSG_SEGS_MAX; i++, at += length)
			assert_true(lab_equal(b, segs[i].offset, hand.payload + at, length));
		hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, round, 0, length * PMSG_SEGS_MAX);
		assert_true(lab_receive(&hand.lab, hand.fd, hand.payload + 4 * MIB,
					length * PMSG_SEGS_MAX));
		assert_memory_equal(hand.payload + 4 * MIB, hand.payload, length * PMSG_SEGS_MAX);
	}
	hand_import_finish();
}

static void test_malformed(void **state)
{
	struct pmsg_seg one = { 0, 10 };
	struct {
		const char *what;
		struct pmsg_frame f;
		struct pmsg_seg seg;
	} bad[] = {
		{ "kind 0", { 0, 1, 0, 1, LAB_GRANT, 10 }, one },
		{ "kind 200", { 200, 1, 0, 1, LAB_GRANT, 10 }, one },
		{ "an answer", { PMSG_FRAME_KIND_WRITE_ACK, 0, 0, 1, LAB_GRANT, 0 }, one },
		{ "data", { PMSG_FRAME_KIND_READ_DATA, 0, 0, 1, LAB_GRANT, 10 }, one },
		{ "no segments", { PMSG_FRAME_KIND_READ, 0, 0, 1, LAB_GRANT, 10 }, one },
		{ "too many",
		  { PMSG_FRAME_KIND_READ, PMSG_SEGS_MAX + 1, 0, 1, LAB_GRANT, 10 },
		  one },
		{ "a status", { PMSG_FRAME_KIND_READ, 1, 1, 1, LAB_GRANT, 10 }, one },
		{ "no bytes", { PMSG_FRAME_KIND_READ, 1, 0, 1, LAB_GRANT, 0 }, { 0, 0 } },
		{ "sum too small", { PMSG_FRAME_KIND_WRITE, 1, 0, 1, LAB_GRANT, 11 }, one },
		{ "sum too big", { PMSG_FRAME_KIND_WRITE, 1, 0, 1, LAB_GRANT, 9 }, one },
		{ "too long",
		  { PMSG_FRAME_KIND_WRITE, 1, 0, 1, LAB_GRANT, PMSG_FRAME_BYTES_MAX + 1 },
		  { 0, PMSG_FRAME_BYTES_MAX + 1 } },
		{ "huge",
		  { PMSG_FRAME_KIND_WRITE, 1, 0, 1, LAB_GRANT, UINT64_MAX },
		  { 0, UINT64_MAX } },
	};

	hand_import_start(1, 0);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		unsigned n = b->closed.n;

		close(hand.fd);
		lab_until(&hand.lab, b->closed.n == n + 1);
		b->closed.n = 0;
		hand.fd = lab_raw_stream(b, STREAM + i, 0);
		hand_write(i, 3, 10);
		pmsg_frame_put(hand.frame, &bad[i].f);
		pmsg_seg_put(hand.frame + PMSG_FRAME_SIZE, &bad[i].seg);
		lab_send(&hand.lab, hand.fd, hand.frame, PMSG_FRAME_SIZE + PMSG_SEG_SIZE);
		if (!lab_is_closed(&hand.lab, hand.fd))
			fail_msg("accepted: %s", bad[i].what);
		assert_int_equal(b->closed.n, 1);
		assert_int_equal(b->closed.id[0], STREAM + i);
		assert_int_equal(hand_grant()->users, 0);
		/* the loop closes the next one */
		b->closed.n = 0;
		hand.fd = lab_raw_stream(b, 1000 + i, 0);
	}
	hand_import_finish();
}

/* Two segments whose lengths overflow to the given sum. */
static void test_sum_overflow(void **state)
{
	struct pmsg_frame f = { PMSG_FRAME_KIND_WRITE, 2, 0, 1, LAB_GRANT, 10 };

	hand_import_start(1, 0);
	pmsg_frame_put(hand.frame, &f);
	pmsg_seg_put(hand.frame + PMSG_FRAME_SIZE, &(struct pmsg_seg){ 0, UINT64_MAX - 9 });
	pmsg_seg_put(hand.frame + PMSG_FRAME_SIZE + PMSG_SEG_SIZE, &(struct pmsg_seg){ 0, 20 });
	lab_send(&hand.lab, hand.fd, hand.frame, PMSG_FRAME_SIZE + 2 * PMSG_SEG_SIZE);
	assert_true(lab_is_closed(&hand.lab, hand.fd));
	hand_import_finish();
}

/* At 1000, 2000 and 3000. */
static struct ranges *pieces_of_100(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint8_t wire[DMSG_RANGE_SIZE];
	struct ranges *r;

	dmsg_range_put(wire, &(struct dmsg_range){ 1000, 100, 1000, 3 });
	assert_int_equal(ranges_new(&r, wire, 1, 8 * MIB, &err), 0);
	return r;
}

static void test_refused(void **state)
{
	struct ranges *ranges = pieces_of_100();
	/* a part of the region, for reading; one of another peer; one whose region is unknown */
	struct grant_view
		part = { .o = { OBJECT_GRANT, LAB_HANDLE(20), 0, 0, 1000, DMSG_ACCESS_READ },
			 .peer = LAB_PEER,
			 .region = LAB_REGION,
			 .offset = 500 },
		foreign = { .o = { OBJECT_GRANT, LAB_HANDLE(21), 0, 0, 1000, DMSG_ACCESS_ALL },
			    .peer = LAB_HANDLE(9),
			    .region = LAB_REGION },
		dangling = { .o = { OBJECT_GRANT, LAB_HANDLE(22), 0, 0, 1000, DMSG_ACCESS_ALL },
			     .peer = LAB_PEER,
			     .region = LAB_HANDLE(99) },
		write_only = { .o = { OBJECT_GRANT, LAB_HANDLE(23), 0, 0, 1000, DMSG_ACCESS_WRITE },
			       .peer = LAB_PEER,
			       .region = LAB_REGION },
		beyond = { .o = { OBJECT_GRANT, LAB_HANDLE(24), 0, 0, 8 * MIB, DMSG_ACCESS_ALL },
			   .peer = LAB_PEER,
			   .region = LAB_REGION,
			   .offset = 1 },
		lease = { .o = { OBJECT_GRANT, LAB_HANDLE(25), 0, 0, 8 * MIB, DMSG_ACCESS_ALL },
			  .peer = LAB_PEER,
			  .region = LAB_REGION,
			  .ranges = ranges };
	struct {
		uint8_t kind;
		uint64_t grant;
		struct pmsg_seg seg;
		uint32_t status;
	} cases[] = {
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { 0, 1000 }, 0 },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { 999, 1 }, 0 },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { 1, 1000 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { 1000, 1 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { UINT64_MAX, 1 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(20), { UINT64_MAX - 600, 700 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(20), { 0, 100 }, DRAY_E_DENIED },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(21), { 0, 100 }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(21), { 0, 100000 }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(22), { 0, 100 }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(23), { 0, 100 }, 0 },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(23), { 0, 100 }, DRAY_E_DENIED },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(24), { 0, 100 }, DRAY_E_RANGE },
		/* a lease */
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(25), { 2000, 100 }, 0 },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(25), { 3099, 1 }, 0 },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(25), { 3000, 101 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(25), { 1999, 1 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_READ, LAB_HANDLE(25), { 1000, 2100 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(25), { 4000, 1 }, DRAY_E_RANGE },
		{ PMSG_FRAME_KIND_WRITE, LAB_HANDLE(50), { 0, 3 * MIB }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_WRITE,
		  LAB_GRANT + ((uint64_t)1 << 32),
		  { 0, 100 },
		  DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_READ, 0, { 0, 100 }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_READ, UINT64_MAX, { 0, 100 }, DRAY_E_REVOKED },
		{ PMSG_FRAME_KIND_WRITE, LAB_GRANT, { 8 * MIB - 10, 11 }, DRAY_E_RANGE },
	};

	hand_import_start(4, 0);
	object_publish(&b->core, &part.o);
	object_publish(&b->core, &foreign.o);
	object_publish(&b->core, &dangling.o);
	object_publish(&b->core, &write_only.o);
	object_publish(&b->core, &beyond.o);
	object_publish(&b->core, &lease.o);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		bool write = cases[i].kind == PMSG_FRAME_KIND_WRITE;
		uint64_t n = cases[i].seg.length;

		lab_fill(b, 0, 8 * MIB, 1);
		hand_send_frame(cases[i].kind, i, cases[i].grant, &cases[i].seg, 1);
		if (write) {
			lab_send(&hand.lab, hand.fd, hand.payload, n);
			hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, i, cases[i].status, 0);
		} else {
			hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, i, cases[i].status,
					   cases[i].status ? 0 : n);
			if (!cases[i].status)
				assert_true(
					lab_receive(&hand.lab, hand.fd, hand.payload + 4 * MIB, n));
		}
		if (cases[i].grant == LAB_HANDLE(20) && !cases[i].status)
			assert_true(
				lab_equal(b, 500 + cases[i].seg.offset, hand.payload + 4 * MIB, n));
		if (cases[i].status)
			assert_true(lab_filled(b, 0, 8 * MIB, 1));
		/* the stream continues */
		hand_write(100 + i, 4000, 5000);
	}
	hand_import_finish();
	ranges_unref(ranges);
}

/* The grant is published after its frame was received, but before the worker read its commands. */
static void test_grant_just_published(void **state)
{
	struct grant_view late = { .o = { OBJECT_GRANT, LAB_HANDLE(30), 0, 0, 1000,
					  DMSG_ACCESS_ALL },
				   .peer = LAB_PEER,
				   .region = LAB_REGION };
	struct pmsg_seg seg = { 0, 1000 };
	size_t n;

	hand_import_start(1, 0);
	n = lab_frame(hand.frame, PMSG_FRAME_KIND_WRITE, 1, LAB_HANDLE(30), &seg, 1);
	assert_int_equal(send(hand.fd, hand.frame, n, 0), n);
	assert_int_equal(send(hand.fd, hand.payload, 1000, 0), 1000);
	lab_side_turn(b);
	lab_side_turn(b);
	object_publish(&b->core, &late.o);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, 0, 0);
	assert_true(lab_equal(b, 0, hand.payload, 1000));
	/* its command does not even fit into the ring, for as long as that takes */
	late.o.handle = LAB_HANDLE(31);
	atomic_store(&b->core.commands_late, true);
	n = lab_frame(hand.frame, PMSG_FRAME_KIND_READ, 2, LAB_HANDLE(31), &seg, 1);
	assert_int_equal(send(hand.fd, hand.frame, n, 0), n);
	lab_settle(&hand.lab);
	object_publish(&b->core, &late.o);
	atomic_store(&b->core.commands_late, false);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 2, 0, 1000);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload + MIB, 1000));
	hand_import_finish();
}

/*
 * A peer that does not read its answers is served only until the sockets are full; when it reads,
 * all answers come.
 */
static void test_back_pressure(void **state)
{
	enum { N = 600 };
	unsigned sent = 0, at = 0;
	uint8_t *wire;
	size_t bytes = 0;

	hand_import_start(16, 20000);
	wire = malloc(N * (PMSG_FRAME_SIZE + PMSG_SEG_SIZE));
	assert_non_null(wire);
	for (unsigned i = 0; i < N; i++) {
		struct pmsg_seg seg = { i * 5000, i % 7 ? 100 + i : 30000 + i };

		bytes += lab_frame(wire + bytes, PMSG_FRAME_KIND_READ, i, LAB_GRANT, &seg, 1);
	}
	for (unsigned i = 0; i < 1000; i++) {
		ssize_t n = send(hand.fd, wire + at, bytes - at, MSG_DONTWAIT);

		at += n > 0 ? (unsigned)n : 0;
		lab_turn(&hand.lab);
	}
	assert_true(lab_counter(b, DRAY_METRIC_TCP_SENT_BYTES_TOTAL) < 2 * MIB);
	for (unsigned i = 0; i < N; i++) {
		uint64_t n = i % 7 ? 100 + i : 30000 + i;

		while (at < bytes) {
			ssize_t k = send(hand.fd, wire + at, bytes - at, MSG_DONTWAIT);

			if (k < 0)
				break;
			at += (unsigned)k;
		}
		hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, i, 0, n);
		assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, n));
		assert_true(lab_equal(b, i * 5000, hand.payload, n));
		sent++;
	}
	assert_int_equal(sent, N);
	free(wire);
	hand_import_finish();
}

static void test_fairness(void **state)
{
	struct pmsg_seg seg = { 0, 1 };
	size_t n = lab_frame(hand.frame, PMSG_FRAME_KIND_READ, 1, LAB_GRANT, &seg, 1);
	int other;

	/* Thousands of frames on one stream do not delay another stream until all are done. */
	hand_import_start(1, 4 * MIB);
	other = lab_raw_stream(b, STREAM + 1, 0);
	lab_settle(&hand.lab);
	for (unsigned i = 0; i < 20000; i++)
		if (send(hand.fd, hand.frame, n, MSG_DONTWAIT) != (ssize_t)n)
			break;
	assert_int_equal(send(other, hand.frame, n, 0), n);
	for (unsigned i = 0; i < 3; i++)
		lab_side_turn(b);
	assert_int_equal(recv(other, hand.payload, PMSG_FRAME_SIZE + 1, MSG_DONTWAIT),
			 PMSG_FRAME_SIZE + 1);
	close(other);
	hand_import_finish();
}

static void reset(uint64_t id)
{
	lab_stream_reset(b, LAB_PEER, id);
}

static void test_reset(void **state)
{
	struct pmsg_seg seg = { 0, 2 * MIB };

	hand_import_start(1, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB);
	lab_settle(&hand.lab);
	assert_int_equal(send(hand.fd, hand.payload + MIB, 10000, MSG_DONTWAIT), 10000);
	reset(STREAM);
	assert_int_equal(b->closed.n, 1);
	assert_int_equal(b->closed.id[0], STREAM);
	assert_int_equal(hand_grant()->users, 0);
	assert_true(lab_is_closed(&hand.lab, hand.fd));
	assert_true(lab_equal(b, 0, hand.payload, MIB));
	for (uint64_t i = MIB; i < 8 * MIB; i += 97)
		assert_int_equal(*lab_at(b, i), lab_pattern(i, 1));
	/* unknown by now */
	reset(STREAM);
	reset(12345);
	assert_int_equal(b->closed.n, 3);
	assert_int_equal(b->closed.id[2], 12345);
	hand_import_finish();
}

static void test_end_of_file(void **state)
{
	struct pmsg_seg seg = { 0, 2 * MIB };

	hand_import_start(1, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, 3 * 65536);
	assert_int_equal(hand_grant()->users, 1);
	shutdown(hand.fd, SHUT_WR);
	lab_until(&hand.lab, b->closed.n == 1);
	assert_int_equal(hand_grant()->users, 0);
	hand_import_finish();
}

static int wake_bytes(const struct tcp_stream *s)
{
	socklen_t n = sizeof(int);
	int bytes = 0;

	assert_int_equal(getsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, &n), 0);
	return bytes;
}

/*
 * Large WRITEs are a series from the first one that has followed another one, until none has done so for a while or the stream is
 * closed. While enough of a payload is to come, the worker is woken for more than a byte of it.
 */
static void test_filling(void **state)
{
	struct pmsg_seg seg = { 0, MIB };
	struct tcp_stream *s;
	uint8_t *next;
	size_t head;

	hand_import_start(1, 0);
	s = dray_list_first(&((struct tcp *)b->tcp)->streams, struct tcp_stream, link);
	next = hand.payload + MIB;
	head = lab_frame(next, PMSG_FRAME_KIND_WRITE, 2, LAB_GRANT, &seg, 1);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB - 1000);
	assert_int_equal(b->core.filling, 0);
	lab_send(&hand.lab, hand.fd, next - 1000, 1000 + head + 1000);
	assert_int_equal(b->core.filling, 1);
	assert_true(wake_bytes(s) > 1);
	/* however long this test takes */
	s->series_ns = INT64_MAX / 2;
	/* the rest is received, however little it is, and the next one, which comes alone */
	lab_send(&hand.lab, hand.fd, hand.payload, MIB - 1000 - 10);
	assert_int_equal(b->core.filling, 1);
	assert_int_equal(wake_bytes(s), 1);
	lab_send(&hand.lab, hand.fd, hand.payload, 10);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, 0, 0);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 2, 0, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 3, LAB_GRANT, &seg, 1);
	assert_int_equal(b->core.filling, 1);
	assert_true(wake_bytes(s) > 1);
	/* the last one of the series was long ago */
	s->series_ns = 1;
	lab_send(&hand.lab, hand.fd, hand.payload, MIB / 2);
	assert_int_equal(b->core.filling, 0);
	assert_int_equal(wake_bytes(s), 1);
	lab_send(&hand.lab, hand.fd, next - MIB / 2, MIB / 2 + head + 1000);
	assert_int_equal(b->core.filling, 1);
	shutdown(hand.fd, SHUT_WR);
	lab_until(&hand.lab, b->closed.n == 1);
	assert_int_equal(b->core.filling, 0);
	hand_import_finish();
}

static void test_adopt_refused(void **state)
{
	int pair[2];

	hand_import_start(1, 0);
	/* of an unknown peer */
	lab_pair(pair, 0);
	lab_stream_adopt(b, LAB_HANDLE(66), pair[1], 5, DMSG_CLASS_BULK);
	assert_int_equal(b->closed.n, 1);
	assert_true(lab_is_closed(&hand.lab, pair[0]));
	close(pair[0]);
	/* the same id twice: both are closed and reported */
	lab_pair(pair, 0);
	lab_stream_adopt(b, LAB_PEER, pair[1], STREAM, DMSG_CLASS_BULK);
	assert_int_equal(b->closed.n, 3);
	assert_true(lab_is_closed(&hand.lab, pair[0]));
	assert_true(lab_is_closed(&hand.lab, hand.fd));
	close(pair[0]);
	close(hand.fd);
	/* A local socket works too, and bytes from before the adoption are not lost. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	hand.fd = pair[0];
	assert_int_equal(send(hand.fd, hand.frame,
			      lab_frame(hand.frame, PMSG_FRAME_KIND_READ, 9, LAB_GRANT,
					&(struct pmsg_seg){ 1, 2 }, 1),
			      0),
			 PMSG_FRAME_SIZE + PMSG_SEG_SIZE);
	lab_stream_adopt(b, LAB_PEER, pair[1], 6, DMSG_CLASS_LATENCY);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 9, 0, 2);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload + 4 * MIB, 2));
	hand_write(10, 77, 100000);
	hand_import_finish();
}

static void test_peer_down(void **state)
{
	struct pmsg_seg seg = { 0, 2 * MIB };
	int fds = cm_fds_count();

	hand_import_start(1, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB);
	lab_peer_down(b, DRAY_E_PEER_LOST);
	b->down = true;
	assert_int_equal(b->n_gone, 1);
	assert_int_equal(hand_grant()->users, 0);
	assert_true(lab_is_closed(&hand.lab, hand.fd));
	reset(STREAM);
	assert_int_equal(b->closed.n, 1);
	hand_import_finish();
	assert_int_equal(cm_fds_count(), fds);
}

/* Memory that a burst made resident is freed. */
static void test_buffers_trimmed(void **state)
{
	struct tcp *t = NULL;
	unsigned char resident[16];
	unsigned n = 0;
	int fds[30];

	hand_import_start(1, 0);
	t = b->tcp;
	for (unsigned i = 0; i < 30; i++) {
		fds[i] = lab_raw_stream(b, 1000 + i, 0);
		/* half a head for each stream, so each keeps a buffer */
		assert_int_equal(send(fds[i], "\1", 1, 0), 1);
	}
	lab_settle(&hand.lab);
	assert_int_equal(t->pool_cap - t->pool_n, 30);
	for (unsigned i = 0; i < 30; i++)
		close(fds[i]);
	lab_settle(&hand.lab);
	assert_int_equal(t->pool_n, t->pool_cap);
	assert_int_equal(t->pool_cap, 2);
	lab_advance(&hand.lab, 2000);
	lab_settle(&hand.lab);
	for (unsigned i = 0; i < t->pool_n; i++) {
		assert_int_equal(mincore(t->pool[i], TCP_BUFFER, resident), 0);
		for (unsigned k = 0; k < 16; k++)
			n += resident[k] & 1;
	}
	assert_true(n <= 2);
	hand_import_finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_most_segments),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_sum_overflow),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_grant_just_published),
		cmocka_unit_test(test_back_pressure),
		cmocka_unit_test(test_fairness),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_end_of_file),
		cmocka_unit_test(test_adopt_refused),
		cmocka_unit_test(test_peer_down),
		cmocka_unit_test(test_buffers_trimmed),
		cmocka_unit_test(test_filling),
		cmocka_unit_test(test_lone_small_requests),
		cmocka_unit_test(test_end_with_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
