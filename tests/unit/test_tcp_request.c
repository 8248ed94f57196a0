/* SPDX-License-Identifier: Apache-2.0 */
/* The importing side of transport tcp; the test is the owner. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB

static struct lab_side *const a = &hand.lab.side[0];

static void test_statuses(void **state)
{
	static const uint32_t codes[][2] = { { DRAY_E_REVOKED, DRAY_E_REVOKED },
					     { DRAY_E_REGION_FAULT, DRAY_E_REGION_FAULT },
					     { DRAY_ERROR_N, DRAY_E_PROTOCOL },
					     { UINT32_MAX, DRAY_E_PROTOCOL } };
	uint64_t slice;
	int fd;

	hand_own_start();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(codes); i++) {
		lab_transfer1(a, 2 * i + 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
		fd = hand_stream(1);
		slice = hand_receive_write(fd, 0, 0, 100).slice;
		assert_int_equal(a->core.awaited, 1);
		hand_ack(fd, slice, codes[i][0]);
		hand_expect_end(2 * i + 1, codes[i][1]);
		assert_int_equal(a->core.awaited, 0);
		lab_transfer1(a, 2 * i + 2, DMSG_DIRECTION_READ, 0, 0, MIB);
		hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, hand_receive_read(fd, 0, MIB).slice,
			    codes[i][0], 0);
		hand_expect_end(2 * i + 2, codes[i][1]);
	}
	assert_int_equal(a->lost.n, 0);
	assert_true(lab_filled(a, 0, 8 * MIB, 1));
	hand_own_finish();
}

static void test_bad_answers(void **state)
{
	struct {
		const char *what;
		struct pmsg_frame f;
		bool write; /* the request */
	} bad[] = {
		{ "unknown slice", { PMSG_FRAME_KIND_WRITE_ACK, 0, 0, 99, 0, 0 }, true },
		{ "a request", { PMSG_FRAME_KIND_WRITE, 0, 0, 0, 0, 0 }, true },
		{ "kind 0", { 0, 0, 0, 0, 0, 0 }, true },
		{ "segments", { PMSG_FRAME_KIND_WRITE_ACK, 1, 0, 0, 0, 0 }, true },
		{ "payload", { PMSG_FRAME_KIND_WRITE_ACK, 0, 0, 0, 0, 1 }, true },
		{ "data for a write", { PMSG_FRAME_KIND_READ_DATA, 0, 0, 0, 0, 100 }, true },
		{ "acknowledged read", { PMSG_FRAME_KIND_WRITE_ACK, 0, 0, 0, 0, 0 }, false },
		{ "too little", { PMSG_FRAME_KIND_READ_DATA, 0, 0, 0, 0, 99 }, false },
		{ "too much", { PMSG_FRAME_KIND_READ_DATA, 0, 0, 0, 0, 101 }, false },
		{ "error with data", { PMSG_FRAME_KIND_READ_DATA, 0, 30, 0, 0, 100 }, false },
	};

	hand_own_start();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		uint64_t id = i + 1;
		int fd;

		lab_transfer1(a, id, bad[i].write ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ, 0,
			      0, 100);
		lab_advance(&hand.lab, 2000);
		fd = hand_stream(2 * i + 1);
		bad[i].f.slice += bad[i].write ? hand_receive_write(fd, 0, 0, 100).slice :
						 hand_receive_read(fd, 0, 100).slice;
		pmsg_frame_put(hand.payload, &bad[i].f);
		lab_send(&hand.lab, fd, hand.payload, PMSG_FRAME_SIZE);
		lab_settle(&hand.lab);
		if (!lab_is_closed(&hand.lab, fd) || a->lost.n != i + 1)
			fail_msg("accepted: %s", bad[i].what);
		/* another stream asks again for what was to be read, soon or on a busy machine by now */
		assert_true(a->core.awaited <= !bad[i].write);
		assert_int_equal(a->lost.id[i], hand.lab.raw_id[2 * i]);
		hand_dead(i);
		lab_advance(&hand.lab, 6000);
		fd = hand_stream(2 * i + 2);
		if (bad[i].write)
			hand_ack(fd, hand_receive_write(fd, 0, 0, 100).slice, 0);
		else
			hand_answer(fd, PMSG_FRAME_KIND_READ_DATA,
				    hand_receive_read(fd, 0, 100).slice, DRAY_E_REVOKED, 0);
		hand_expect_end(id, bad[i].write ? 0 : DRAY_E_REVOKED);
		/* the next round opens its own stream */
		close(fd);
		hand.lab.raw_fd[2 * i + 1] = -1;
		lab_settle(&hand.lab);
		a->lost.n = i + 1;
	}
	hand_own_finish();
}

static void test_answers_out_of_order(void **state)
{
	uint64_t slice[8];
	int fd;

	hand_own_prepare();
	/* two of these transfers have the bytes of a whole slice */
	a->core.cfg.slice_size = 100;
	hand_own_go();
	for (unsigned i = 0; i < 8; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * 100, i, 50);
	fd = hand_stream(1);
	for (unsigned i = 0; i < 8; i++)
		slice[i] = hand_receive_write(fd, i * 100, i, 50).slice;
	/* no further frame may be sent */
	lab_transfer1(a, 9, DMSG_DIRECTION_WRITE, 900, 9, 50);
	lab_settle(&hand.lab);
	assert_true(recv(fd, hand.payload, 1, MSG_DONTWAIT) < 0);
	for (unsigned i = 0; i < 8; i++) {
		hand_ack(fd, slice[7 - i], 0);
		hand_expect_end(8 - i, 0);
	}
	hand_receive_write(fd, 900, 9, 50);
	/* the same answer twice */
	hand_ack(fd, slice[3], 0);
	assert_int_equal(a->lost.n, 1);
	hand_own_finish();
}

static void test_stop_write_sent(void **state)
{
	struct pmsg_frame f[2];
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 200, 0, 100);
	fd = hand_stream(1);
	f[0] = hand_receive_write(fd, 0, 0, 100);
	f[1] = hand_receive_write(fd, 200, 0, 100);
	hand_stop(1, DRAY_E_CANCELLED, false);
	lab_settle(&hand.lab);
	/* may still arrive */
	assert_null(lab_end(a, 1));
	hand_ack(fd, f[0].slice, 0);
	hand_expect_end(1, DRAY_E_CANCELLED);
	/* the session is dead: the slice ends, but the stream keeps its frame */
	hand_stop(2, DRAY_E_SESSION_CLOSED, true);
	hand_expect_end(2, DRAY_E_SESSION_CLOSED);
	hand_ack(fd, f[1].slice, 0);
	assert_int_equal(a->lost.n, 0);
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 0, 0, 100);
	hand_ack(fd, hand_receive_write(fd, 0, 0, 100).slice, 0);
	hand_expect_end(3, 0);
	assert_int_equal(a->core.awaited, 0);
	hand_own_finish();
}

static void test_stop_write_in_middle(void **state)
{
	int fd = hand_own_start_stuck(3);

	hand_stop(1, DRAY_E_DEADLINE, false);
	lab_settle(&hand.lab);
	assert_null(lab_end(a, 1));
	/* an unsent one ends at once */
	hand_stop(2, DRAY_E_CANCELLED, false);
	hand_expect_end(2, DRAY_E_CANCELLED);
	hand_ack(fd, hand_receive_write(fd, 0, 0, 4 * MIB).slice, 0);
	hand_expect_end(1, DRAY_E_DEADLINE);
	hand_ack(fd, hand_receive_write(fd, 2 * MIB, 2 * MIB, 1000).slice, 0);
	hand_expect_end(3, 0);
	hand_own_finish();
}

static void test_deadline_in_middle(void **state)
{
	int fd = hand_own_start_stuck(2);
	const struct xfer *first = lab_xfer(a, 1);

	assert_ptr_equal(xfers_first_due(&a->core), first);
	a->core.now_ns = lab_xfer(a, 2)->deadline.key;
	xfers_tick(&a->core);
	/* an unsent one ends at once, and the other one is overdue until its answer has come */
	hand_expect_end(2, DRAY_E_DEADLINE);
	assert_null(lab_end(a, 1));
	assert_ptr_equal(xfers_first_due(&a->core), first);
	assert_int_equal(xfers_count(&a->core), 1);
	hand_ack(fd, hand_receive_write(fd, 0, 0, 4 * MIB).slice, 0);
	hand_expect_end(1, DRAY_E_DEADLINE);
	assert_null(xfers_first_due(&a->core));
	hand_own_finish();
}

static void test_stop_write_in_middle_urgent(void **state)
{
	int fd = hand_own_start_stuck(3);

	hand_stop(1, DRAY_E_SESSION_CLOSED, true);
	hand_expect_end(1, DRAY_E_SESSION_CLOSED);
	assert_int_equal(a->lost.n, 1);
	assert_true(lab_is_closed(&hand.lab, fd) || recv(fd, hand.payload, MIB, 0) > 0);
	/* the others were unsent: another stream sends them at once, and they do not count as resent */
	lab_advance(&hand.lab, 1000);
	fd = hand_stream(2);
	hand_ack(fd, hand_receive_write(fd, MIB, MIB, 1000).slice, 0);
	hand_ack(fd, hand_receive_write(fd, 2 * MIB, 2 * MIB, 1000).slice, 0);
	hand_expect_end(2, 0);
	hand_expect_end(3, 0);
	assert_int_equal(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL), 0);
	hand_dead(0);
	hand_own_finish();
}

static void test_stop_read(void **state)
{
	struct pmsg_frame f[3];
	int fd;

	hand_own_start();
	lab_fill(a, 0, 8 * MIB, 3);
	for (unsigned i = 0; i < 3; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_READ, i * MIB, 0, MIB);
	fd = hand_stream(1);
	for (unsigned i = 0; i < 3; i++)
		f[i] = hand_receive_read(fd, 0, MIB);
	memset(hand.payload, 0x55, MIB);
	/* in the middle of its payload, and before it */
	hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f[0].slice, 0, MIB);
	lab_send(&hand.lab, fd, hand.payload, 5000);
	lab_settle(&hand.lab);
	hand_stop(1, DRAY_E_CANCELLED, false);
	hand_expect_end(1, DRAY_E_CANCELLED);
	hand_stop(2, DRAY_E_CANCELLED, true);
	hand_expect_end(2, DRAY_E_CANCELLED);
	assert_true(lab_equal(a, 0, hand.payload, 5000));
	lab_send(&hand.lab, fd, hand.payload, MIB - 5000);
	hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f[1].slice, 0, MIB);
	lab_send(&hand.lab, fd, hand.payload, MIB);
	assert_true(lab_filled(a, 5000, 2 * MIB - 5000, 3));
	hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f[2].slice, 0, MIB);
	lab_send(&hand.lab, fd, hand.payload, MIB);
	lab_settle(&hand.lab);
	hand_expect_end(3, 0);
	assert_true(lab_equal(a, 2 * MIB, hand.payload, MIB));
	assert_int_equal(a->core.awaited, 0);
	assert_int_equal(a->lost.n, 0);
	hand_own_finish();
}

static void test_lost_write_waits(void **state)
{
	struct pmsg_frame f[2];
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 100, 100, 100);
	lab_transfer1(a, 3, DMSG_DIRECTION_READ, MIB, 7, 100);
	fd = hand_stream(1);
	f[0] = hand_receive_write(fd, 0, 0, 100);
	f[1] = hand_receive_write(fd, 100, 100, 100);
	hand_receive_read(fd, 7, 100);
	close(fd);
	hand.lab.raw_fd[0] = -1;
	lab_until(&hand.lab, a->lost.n == 1);
	assert_int_equal(a->lost.id[0], hand.lab.raw_id[0]);
	/* the READ is sent again at once, the WRITEs are not */
	lab_advance(&hand.lab, 1000);
	fd = hand_stream(2);
	assert_true(hand_receive_read(fd, 7, 100).slice);
	lab_settle(&hand.lab);
	assert_true(recv(fd, hand.payload, 1, MSG_DONTWAIT) < 0);
	hand_stop(2, DRAY_E_CANCELLED, false);
	lab_settle(&hand.lab);
	assert_null(lab_end(a, 2));
	/* other ids change nothing */
	lab_stream_dead(a, LAB_PEER, a->lost.id[0] + 1000);
	lab_stream_dead(a, LAB_HANDLE(90), a->lost.id[0]);
	lab_settle(&hand.lab);
	assert_true(recv(fd, hand.payload, 1, MSG_DONTWAIT) < 0);
	hand_dead(0);
	hand_expect_end(2, DRAY_E_CANCELLED);
	assert_int_equal(hand_receive_write(fd, 0, 0, 100).slice, f[0].slice);
	assert_int_equal(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL), 2);
	hand_ack(fd, f[0].slice, 0);
	hand_expect_end(1, 0);
	hand_dead(0);
	hand_own_finish();
}

static void test_lost_write_urgent(void **state)
{
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd = hand_stream(1);
	hand_receive_write(fd, 0, 0, 100);
	close(fd);
	hand.lab.raw_fd[0] = -1;
	lab_until(&hand.lab, a->lost.n == 1);
	hand_stop(1, DRAY_E_SESSION_CLOSED, true);
	hand_expect_end(1, DRAY_E_SESSION_CLOSED);
	hand_dead(0);
	lab_settle(&hand.lab);
	hand_own_finish();
}

static void test_slice_timeout(void **state)
{
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd = hand_stream(1);
	hand_receive_write(fd, 0, 0, 100);
	lab_advance(&hand.lab, 4900);
	lab_settle(&hand.lab);
	assert_int_equal(a->lost.n, 0);
	lab_advance(&hand.lab, 200);
	lab_settle(&hand.lab);
	assert_int_equal(a->lost.n, 1);
	assert_true(lab_is_closed(&hand.lab, fd));
	hand_dead(0);
	lab_advance(&hand.lab, 1000);
	fd = hand_stream(2);
	hand_ack(fd, hand_receive_write(fd, 0, 0, 100).slice, 0);
	hand_expect_end(1, 0);
	/* idle streams have no timeout */
	lab_advance(&hand.lab, 100000);
	lab_settle(&hand.lab);
	assert_int_equal(a->lost.n, 1);
	assert_true(transport_tcp.tick(&a->core, a->tcp) == INT64_MAX);
	hand_own_finish();
}

/* Trickling bytes keep the stream open, but a stopping transfer waits no longer than the slice timeout. */
static void test_trickle(void **state)
{
	struct pmsg_frame f;
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, MIB, 0, MIB);
	fd = hand_stream(1);
	hand_receive_write(fd, 0, 0, 100);
	f = hand_receive_read(fd, 0, MIB);
	hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, MIB);
	for (unsigned i = 0; i < 10; i++) {
		lab_advance(&hand.lab, 3000);
		lab_send(&hand.lab, fd, hand.payload, 1);
		lab_settle(&hand.lab);
	}
	assert_int_equal(a->lost.n, 0);
	hand_stop(1, DRAY_E_DEADLINE, false);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(a->lost.n, 0);
		lab_advance(&hand.lab, 3000);
		lab_send(&hand.lab, fd, hand.payload, 1);
		lab_settle(&hand.lab);
	}
	assert_int_equal(a->lost.n, 1);
	assert_null(lab_end(a, 1));
	hand_dead(0);
	hand_expect_end(1, DRAY_E_DEADLINE);
	hand_own_finish();
}

/* Streams that break before their first answer count as failed attempts. */
static void test_streams_without_answers(void **state)
{
	unsigned n = 0;

	hand_own_start();
	hand.lab.hold_resets = true;
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 100);
	for (unsigned i = 0; i < 5000 && !lab_end(a, 1); i++) {
		lab_turn(&hand.lab);
		lab_advance(&hand.lab, 10);
		while (n < hand.lab.n_raw) {
			close(hand.lab.raw_fd[n]);
			hand.lab.raw_fd[n++] = -1;
		}
	}
	hand_expect_end(1, DRAY_E_PEER_UNREACHABLE);
	assert_true(n >= 5 && n < 20);
	hand_own_finish();
}

static void test_write_fault(void **state)
{
	int fd;

	hand_own_start();
	if (!lab_punch(a, 0, 65536)) {
		hand_own_finish();
		skip();
	}
	/* only the slice whose memory is gone fails, not the others of its batch */
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 3 * MIB, 0, 1000);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 100, 1, 1000);
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 4 * MIB, 2, 1000);
	fd = hand_stream(1);
	lab_settle(&hand.lab);
	hand_expect_end(2, DRAY_E_REGION_FAULT);
	assert_int_equal(a->n_faults, 1);
	assert_int_equal(a->last_fault, LAB_SESSION);
	hand_ack(fd, hand_receive_write(fd, 3 * MIB, 0, 1000).slice, 0);
	hand_ack(fd, hand_receive_write(fd, 4 * MIB, 2, 1000).slice, 0);
	hand_expect_end(1, 0);
	hand_expect_end(3, 0);
	assert_int_equal(a->lost.n, 0);
	hand_own_finish();
}

static void test_write_fault_in_middle(void **state)
{
	int fd;

	hand_own_start();
	/* the second half of one slice */
	if (!lab_punch(a, MIB - 65536, 65536)) {
		hand_own_finish();
		skip();
	}
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, MIB);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 3 * MIB, 2, 1000);
	fd = hand_stream(1);
	lab_until(&hand.lab, a->lost.n == 1);
	assert_int_equal(a->n_faults, 1);
	assert_null(lab_end(a, 1));
	assert_true(lab_is_closed(&hand.lab, fd) || true);
	hand_dead(0);
	hand_expect_end(1, DRAY_E_REGION_FAULT);
	lab_advance(&hand.lab, 1000);
	fd = hand_stream(2);
	hand_ack(fd, hand_receive_write(fd, 3 * MIB, 2, 1000).slice, 0);
	hand_expect_end(2, 0);
	hand_own_finish();
}

static void test_read_fault(void **state)
{
	static const uint64_t sizes[] = { 500, 300000 };
	struct pmsg_frame f;
	int fd;

	hand_own_start();
	if (!lab_punch(a, 0, 65536)) {
		hand_own_finish();
		skip();
	}
	memset(hand.payload, 0x77, MIB);
	for (unsigned i = 0; i < 2; i++) {
		lab_transfer1(a, 2 * i + 1, DMSG_DIRECTION_READ, 100, 0, sizes[i]);
		lab_transfer1(a, 2 * i + 2, DMSG_DIRECTION_READ, 3 * MIB, 1, 1000);
		fd = hand_stream(1);
		f = hand_receive_read(fd, 0, sizes[i]);
		hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, f.length);
		lab_send(&hand.lab, fd, hand.payload, f.length);
		lab_settle(&hand.lab);
		hand_expect_end(2 * i + 1, DRAY_E_REGION_FAULT);
		f = hand_receive_read(fd, 1, 1000);
		hand_answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, f.length);
		lab_send(&hand.lab, fd, hand.payload, f.length);
		lab_settle(&hand.lab);
		hand_expect_end(2 * i + 2, 0);
		assert_true(lab_equal(a, 3 * MIB, hand.payload, 1000));
		assert_int_equal(a->n_faults, i + 1);
	}
	assert_int_equal(a->lost.n, 0);
	hand_own_finish();
}

static const struct core_upcalls *up_before;

static void end_session(struct core *c, struct xfer *x)
{
	up_before->xfer_ended(c, x);
	if (x->request_id == 1)
		xfer_session_stop(c, x->session, DRAY_E_SESSION_CLOSED);
}

/* The memory of a READ is gone, and its session ends with it, which closes the stream that brings the bytes. */
static void test_read_fault_ends_session(void **state)
{
	struct core_upcalls up;
	struct pmsg_frame f;
	size_t n;
	int fd;

	hand_own_prepare();
	a->core.cfg.tcp_buffer = 20000;
	a->core.cfg.slice_size = 8 * MIB;
	hand_own_go();
	if (!lab_punch(a, 0, 65536)) {
		hand_own_finish();
		skip();
	}
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 100, 0, 500);
	fd = hand_stream(1);
	f = hand_receive_read(fd, 0, 500);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 4 * MIB, 0, 4 * MIB);
	lab_settle(&hand.lab);
	up_before = a->core.up;
	up = *up_before;
	up.xfer_ended = end_session;
	a->core.up = &up;
	n = lab_answer(hand.frame, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, f.length);
	memset(hand.frame + n, 0x77, f.length);
	lab_send(&hand.lab, fd, hand.frame, n + f.length);
	lab_until(&hand.lab, lab_end(a, 2));
	a->core.up = up_before;
	hand_expect_end(1, DRAY_E_REGION_FAULT);
	hand_expect_end(2, DRAY_E_SESSION_CLOSED);
	assert_int_equal(a->n_ended, 2);
	assert_int_equal(a->lost.n, 1);
	hand_own_finish();
}

/*
 * A session at its limit of slices continues when slices end. Bulk slices do not count for the latency
 * class's limit.
 */
static void test_session_limit(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 100 } };
	uint64_t first;
	int fd[2];

	hand_own_prepare();
	a->core.cfg.slices_per_session = 1;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd[0] = hand_stream(1);
	lab_settle(&hand.lab);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 0, 0, 100);
	first = hand_receive_write(fd[0], 0, 0, 100).slice;
	lab_transfer(a, 3, DMSG_DIRECTION_WRITE, DMSG_CLASS_LATENCY, op, 1);
	lab_transfer(a, 4, DMSG_DIRECTION_WRITE, DMSG_CLASS_LATENCY, op, 1);
	fd[1] = hand_stream(2);
	hand_ack(fd[1], hand_receive_write(fd[1], 0, 0, 100).slice, 0);
	hand_expect_end(3, 0);
	hand_ack(fd[1], hand_receive_write(fd[1], 0, 0, 100).slice, 0);
	hand_expect_end(4, 0);
	/* the second bulk transfer was not sent meanwhile */
	lab_settle(&hand.lab);
	assert_int_equal(recv(fd[0], hand.payload, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	a->core.kicked = false;
	hand_ack(fd[0], first, 0);
	hand_expect_end(1, 0);
	assert_true(a->core.kicked);
	hand_ack(fd[0], hand_receive_write(fd[0], 0, 0, 100).slice, 0);
	hand_expect_end(2, 0);
	hand_own_finish();
}

/* Two idle streams. */
static void two_streams(void)
{
	hand_own_prepare();
	a->core.cfg.tcp_streams = 2;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 1);
	hand_answer(hand_stream(1), PMSG_FRAME_KIND_READ_DATA,
		    hand_receive_read(hand_stream(1), 0, 1).slice, 0, 1);
	lab_send(&hand.lab, hand_stream(1), hand.payload, 1);
	hand_stream(2);
	lab_settle(&hand.lab);
}

/* Frames of READs with one segment that have arrived on each of the streams. */
static void count_reads(unsigned per[2])
{
	lab_settle(&hand.lab);
	for (unsigned i = 0; i < 2; i++) {
		ssize_t n = recv(hand.lab.raw_fd[i], hand.payload, 1000, MSG_DONTWAIT);

		per[i] = n > 0 ? (unsigned)n / (PMSG_FRAME_SIZE + PMSG_SEG_SIZE) : 0;
	}
}

static void test_spread(void **state)
{
	unsigned per[2];

	two_streams();
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, 4 * MIB);
	count_reads(per);
	assert_int_equal(per[0], 2);
	assert_int_equal(per[1], 2);
	hand_own_finish();
}

static int checks(const struct xfer *x, const struct slice *s)
{
	return 0;
}

/* Slices are smaller where a checksum is computed when they have come, so that they still are in the cache. */
static void test_checked_slices(void **state)
{
	unsigned per[2];

	two_streams();
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, MIB);
	xfer_find(&a->session, 2)->arrived = checks;
	count_reads(per);
	assert_int_equal(per[0] + per[1], MIB / TCP_CHECKED_MAX);
	hand_own_finish();
}

/* Small READs go out together, so that they wake the owner once, and those behind them take the other stream. */
static void test_small_reads_together(void **state)
{
	unsigned per[2];

	two_streams();
	for (unsigned i = 0; i < 6; i++)
		lab_transfer1(a, 2 + i, DMSG_DIRECTION_READ, 0, 0, 65536);
	count_reads(per);
	assert_int_equal(per[0], 4);
	assert_int_equal(per[1], 2);
	hand_own_finish();
}

/* So do WRITEs, in one system call if the socket takes them. */
static void test_small_writes_together(void **state)
{
	const struct tcp *t;
	uint32_t most = 0, all = 0;

	two_streams();
	t = a->tcp;
	for (unsigned i = 0; i < 4; i++)
		lab_transfer1(a, 2 + i, DMSG_DIRECTION_WRITE, 0, 0, 65536);
	lab_side_turn(a);
	dray_list_for_each(&t->streams, s, struct tcp_stream, link) {
		const struct tcp_requester *p = dray_container_of(s, struct tcp_requester, s);

		most = dray_max(most, p->tail - p->head);
		all += p->tail - p->head;
	}
	assert_int_equal(all, 4);
	assert_int_equal(most, 4);
	hand_own_finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_statuses),
		cmocka_unit_test(test_bad_answers),
		cmocka_unit_test(test_answers_out_of_order),
		cmocka_unit_test(test_stop_write_sent),
		cmocka_unit_test(test_stop_write_in_middle),
		cmocka_unit_test(test_deadline_in_middle),
		cmocka_unit_test(test_stop_write_in_middle_urgent),
		cmocka_unit_test(test_stop_read),
		cmocka_unit_test(test_lost_write_waits),
		cmocka_unit_test(test_lost_write_urgent),
		cmocka_unit_test(test_slice_timeout),
		cmocka_unit_test(test_trickle),
		cmocka_unit_test(test_streams_without_answers),
		cmocka_unit_test(test_write_fault),
		cmocka_unit_test(test_write_fault_in_middle),
		cmocka_unit_test(test_read_fault),
		cmocka_unit_test(test_read_fault_ends_session),
		cmocka_unit_test(test_session_limit),
		cmocka_unit_test(test_spread),
		cmocka_unit_test(test_checked_slices),
		cmocka_unit_test(test_small_reads_together),
		cmocka_unit_test(test_small_writes_together),
	};

	return cmocka_run_group_tests(tests, hand_set_up, NULL);
}
