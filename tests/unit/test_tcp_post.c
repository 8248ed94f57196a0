/* SPDX-License-Identifier: Apache-2.0 */
/* The importing side of transport tcp; the test is the owner, or there is none. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/transfer/object.h"
#include "agent/transport/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1u << 20)

static struct lab lab;
static struct lab_side *const a = &lab.side[0];
static uint8_t *payload;
static int fds_before;

static void prepare(void)
{
	fds_before = cm_fds_count();
	lab_prepare(&lab);
	lab.raw = lab.hold_resets = true;
	a->core.cfg.tcp_streams = 1;
	payload = malloc(8 * MIB);
	assert_non_null(payload);
}

static void go(void)
{
	lab_start(&lab, 8 * MIB, 4);
	lab_fill(a, 0, 8 * MIB, 1);
}

static void start(void)
{
	prepare();
	go();
}

static void finish(void)
{
	free(payload);
	lab_deinit(&lab);
	assert_int_equal(cm_fds_count(), fds_before);
}

static struct tcp *tcp_state(void)
{
	return a->tcp;
}

static void stop(uint64_t id, uint32_t code, bool urgent)
{
	xfer_stop(&a->core, lab_xfer(a, id), code, NULL, urgent);
}

static void expect_end(uint64_t id, uint32_t code)
{
	if (!lab_end(a, id))
		fail_msg("transfer %u has not ended", (unsigned)id);
	assert_int_equal(lab_end(a, id)->code, code);
}

/* The newest stream, once it stands. */
static int stream(unsigned n)
{
	lab_until(&lab, lab.n_raw >= n);
	return lab.raw_fd[n - 1];
}

static struct pmsg_frame receive_frame(int fd, struct pmsg_seg *ret_segs)
{
	uint8_t wire[TCP_HEAD_MAX];
	struct pmsg_frame f;

	assert_true(lab_receive(&lab, fd, wire, PMSG_FRAME_SIZE));
	pmsg_frame_get(wire, &f);
	assert_true(f.segs >= 1 && f.segs <= PMSG_SEGS_MAX);
	assert_int_equal(f.grant, LAB_GRANT);
	assert_int_equal(f.status, 0);
	assert_true(lab_receive(&lab, fd, wire + PMSG_FRAME_SIZE, (size_t)f.segs * PMSG_SEG_SIZE));
	pmsg_seg_get(wire + PMSG_FRAME_SIZE, ret_segs);
	return f;
}

static struct pmsg_frame receive_write(int fd, uint64_t local, uint64_t remote, uint64_t n)
{
	struct pmsg_seg seg;
	struct pmsg_frame f = receive_frame(fd, &seg);

	assert_int_equal(f.kind, PMSG_FRAME_KIND_WRITE);
	assert_int_equal(f.length, n);
	assert_int_equal(seg.offset, remote);
	assert_true(lab_receive(&lab, fd, payload, n));
	assert_true(lab_equal(a, local, payload, n));
	return f;
}

static struct pmsg_frame receive_read(int fd, uint64_t remote, uint64_t n)
{
	struct pmsg_seg seg;
	struct pmsg_frame f = receive_frame(fd, &seg);

	assert_int_equal(f.kind, PMSG_FRAME_KIND_READ);
	assert_int_equal(f.length, n);
	assert_int_equal(seg.offset, remote);
	return f;
}

static void answer(int fd, uint8_t kind, uint64_t slice, uint32_t status, uint64_t length)
{
	uint8_t wire[PMSG_FRAME_SIZE];

	lab_send(&lab, fd, wire, lab_answer(wire, kind, slice, status, length));
	lab_settle(&lab);
}

static void ack(int fd, uint64_t slice, uint32_t status)
{
	answer(fd, PMSG_FRAME_KIND_WRITE_ACK, slice, status, 0);
}

static void dead(unsigned lost)
{
	transport_tcp.stream_dead(&a->core, tcp_state(), LAB_PEER, a->lost.id[lost]);
}

/* --- connecting ------------------------------------------------------------------------------ */

static void test_lazy(void **state)
{
	start();
	lab_settle(&lab);
	assert_int_equal(lab.n_raw, 0);
	assert_true(transport_tcp.tick(&a->core, tcp_state()) == INT64_MAX);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 5, 6, 7);
	receive_write(stream(1), 5, 6, 7);
	assert_int_equal(lab.raw_id[0] >> 32, a->core.index);
	finish();
}

static void test_unreachable(void **state)
{
	int64_t begin;
	unsigned tries = 0;

	prepare();
	close(lab.side[1].listen_fd);
	go();
	begin = dray_now().ns;
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, 2 * MIB);
	while (!lab_end(a, 1)) {
		lab_turn(&lab);
		lab_advance(&lab, 10);
		assert_true(++tries < 100000);
	}
	expect_end(1, DRAY_E_PEER_UNREACHABLE);
	expect_end(2, DRAY_E_PEER_UNREACHABLE);
	/* not before connect_timeout of trying, and not much later */
	assert_true(dray_now().ns - begin + lab.skew_ns >= 5 * DRAY_NS_PER_SEC);
	assert_true(dray_now().ns - begin + lab.skew_ns <= 16 * DRAY_NS_PER_SEC);
	/* the next one is tried before it fails too */
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 0, 0, 100);
	assert_null(lab_end(a, 3));
	lab_advance(&lab, 8000);
	lab_settle(&lab);
	expect_end(3, DRAY_E_PEER_UNREACHABLE);
	/* nothing waits, nothing is tried */
	lab_advance(&lab, 80000);
	lab_settle(&lab);
	assert_true(transport_tcp.tick(&a->core, tcp_state()) == INT64_MAX);
	lab.side[1].listen_fd = socket(AF_UNIX, SOCK_STREAM, 0);
	finish();
}

static void test_back_after_refusal(void **state)
{
	prepare();
	lab.welcome_status = DRAY_E_BUSY;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	for (unsigned i = 0; i < 100; i++) {
		lab_turn(&lab);
		lab_advance(&lab, 10);
	}
	assert_null(lab_end(a, 1));
	assert_int_equal(lab.n_raw, 0);
	assert_int_equal(a->lost.n, 0);
	lab.welcome_status = 0;
	lab_advance(&lab, 3000);
	ack(stream(1), receive_write(stream(1), 0, 0, 100).slice, 0);
	expect_end(1, 0);
	finish();
}

static void test_bad_mac(void **state)
{
	prepare();
	lab.bad_mac = true;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	for (unsigned i = 0; i < 2000 && !lab_end(a, 1); i++) {
		lab_turn(&lab);
		lab_advance(&lab, 10);
	}
	expect_end(1, DRAY_E_PEER_UNREACHABLE);
	assert_int_equal(lab.n_raw, 0);
	finish();
}

static void test_no_welcome(void **state)
{
	prepare();
	lab.no_welcome = true;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_settle(&lab);
	lab_advance(&lab, 4000);
	lab_settle(&lab);
	assert_int_equal(lab.side[1].n_half, 1);
	/* connect_timeout over: closed, and another made after a pause */
	lab_advance(&lab, 1100);
	lab_settle(&lab);
	assert_true(recv(lab.side[1].half_fd[0], payload, 200, MSG_DONTWAIT) > 0 &&
		    recv(lab.side[1].half_fd[0], payload, 200, MSG_DONTWAIT) <= 0);
	lab_advance(&lab, 200);
	lab_settle(&lab);
	assert_int_equal(lab.side[1].n_half, 2);
	assert_null(lab_end(a, 1));
	/* stopping what waits needs no stream */
	stop(1, DRAY_E_CANCELLED, false);
	expect_end(1, DRAY_E_CANCELLED);
	finish();
}

/* --- answers --------------------------------------------------------------------------------- */

static void test_statuses(void **state)
{
	static const uint32_t codes[][2] = { { DRAY_E_REVOKED, DRAY_E_REVOKED },
					     { DRAY_E_REGION_FAULT, DRAY_E_REGION_FAULT },
					     { DRAY_ERROR_N, DRAY_E_PROTOCOL },
					     { UINT32_MAX, DRAY_E_PROTOCOL } };
	int fd;

	start();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(codes); i++) {
		lab_transfer1(a, 2 * i + 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
		fd = stream(1);
		ack(fd, receive_write(fd, 0, 0, 100).slice, codes[i][0]);
		expect_end(2 * i + 1, codes[i][1]);
		lab_transfer1(a, 2 * i + 2, DMSG_DIRECTION_READ, 0, 0, MIB);
		answer(fd, PMSG_FRAME_KIND_READ_DATA, receive_read(fd, 0, MIB).slice, codes[i][0], 0);
		expect_end(2 * i + 2, codes[i][1]);
	}
	assert_int_equal(a->lost.n, 0);
	assert_true(lab_filled(a, 0, 8 * MIB, 1));
	finish();
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

	start();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		uint64_t id = i + 1;
		int fd;

		lab_transfer1(a, id, bad[i].write ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ, 0, 0, 100);
		lab_advance(&lab, 2000);
		fd = stream(2 * i + 1);
		bad[i].f.slice += bad[i].write ? receive_write(fd, 0, 0, 100).slice : receive_read(fd, 0, 100).slice;
		pmsg_frame_put(payload, &bad[i].f);
		lab_send(&lab, fd, payload, PMSG_FRAME_SIZE);
		lab_settle(&lab);
		if (!lab_is_closed(&lab, fd) || a->lost.n != i + 1)
			fail_msg("accepted: %s", bad[i].what);
		assert_int_equal(a->lost.id[i], lab.raw_id[2 * i]);
		dead(i);
		lab_advance(&lab, 6000);
		fd = stream(2 * i + 2);
		if (bad[i].write)
			ack(fd, receive_write(fd, 0, 0, 100).slice, 0);
		else
			answer(fd, PMSG_FRAME_KIND_READ_DATA, receive_read(fd, 0, 100).slice, DRAY_E_REVOKED, 0);
		expect_end(id, bad[i].write ? 0 : DRAY_E_REVOKED);
		/* the next round makes a stream of its own */
		close(fd);
		lab.raw_fd[2 * i + 1] = -1;
		lab_settle(&lab);
		a->lost.n = i + 1;
	}
	finish();
}

static void test_answers_out_of_order(void **state)
{
	uint64_t slice[8];
	int fd;

	start();
	for (unsigned i = 0; i < 8; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * 100, i, 50);
	fd = stream(1);
	for (unsigned i = 0; i < 8; i++)
		slice[i] = receive_write(fd, i * 100, i, 50).slice;
	/* the window is full */
	lab_transfer1(a, 9, DMSG_DIRECTION_WRITE, 900, 9, 50);
	lab_settle(&lab);
	assert_true(recv(fd, payload, 1, MSG_DONTWAIT) < 0);
	for (unsigned i = 0; i < 8; i++) {
		ack(fd, slice[7 - i], 0);
		expect_end(8 - i, 0);
	}
	receive_write(fd, 900, 9, 50);
	/* twice the same */
	ack(fd, slice[3], 0);
	assert_int_equal(a->lost.n, 1);
	finish();
}

/* --- stopping -------------------------------------------------------------------------------- */

static void test_stop_write_sent(void **state)
{
	struct pmsg_frame f[2];
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 200, 0, 100);
	fd = stream(1);
	f[0] = receive_write(fd, 0, 0, 100);
	f[1] = receive_write(fd, 200, 0, 100);
	stop(1, DRAY_E_CANCELLED, false);
	lab_settle(&lab);
	/* may still land */
	assert_null(lab_end(a, 1));
	ack(fd, f[0].slice, 0);
	expect_end(1, DRAY_E_CANCELLED);
	/* the owner is dead: nobody waits, but the stream remembers */
	stop(2, DRAY_E_SESSION_CLOSED, true);
	expect_end(2, DRAY_E_SESSION_CLOSED);
	ack(fd, f[1].slice, 0);
	assert_int_equal(a->lost.n, 0);
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 0, 0, 100);
	ack(fd, receive_write(fd, 0, 0, 100).slice, 0);
	expect_end(3, 0);
	finish();
}

/* Several transfers, of which the first is in the middle of being sent. */
static int start_stuck_writes(unsigned n)
{
	prepare();
	a->core.cfg.tcp_buffer = 20000;
	a->core.cfg.slice_size = 4 * MIB;
	go();
	for (unsigned i = 0; i < n; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * MIB, i * MIB, i ? 1000 : 4 * MIB);
	stream(1);
	lab_settle(&lab);
	return lab.raw_fd[0];
}

static void test_stop_write_in_middle(void **state)
{
	int fd = start_stuck_writes(3);

	stop(1, DRAY_E_DEADLINE, false);
	lab_settle(&lab);
	assert_null(lab_end(a, 1));
	/* one that has not begun ends at once */
	stop(2, DRAY_E_CANCELLED, false);
	expect_end(2, DRAY_E_CANCELLED);
	ack(fd, receive_write(fd, 0, 0, 4 * MIB).slice, 0);
	expect_end(1, DRAY_E_DEADLINE);
	ack(fd, receive_write(fd, 2 * MIB, 2 * MIB, 1000).slice, 0);
	expect_end(3, 0);
	finish();
}

static void test_stop_write_in_middle_urgent(void **state)
{
	int fd = start_stuck_writes(3);

	stop(1, DRAY_E_SESSION_CLOSED, true);
	expect_end(1, DRAY_E_SESSION_CLOSED);
	assert_int_equal(a->lost.n, 1);
	assert_true(lab_is_closed(&lab, fd) || recv(fd, payload, MIB, 0) > 0);
	/* the others were not begun: they go on over another stream at once, and are not re-sent */
	lab_advance(&lab, 1000);
	fd = stream(2);
	ack(fd, receive_write(fd, MIB, MIB, 1000).slice, 0);
	ack(fd, receive_write(fd, 2 * MIB, 2 * MIB, 1000).slice, 0);
	expect_end(2, 0);
	expect_end(3, 0);
	assert_int_equal(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL), 0);
	dead(0);
	finish();
}

static void test_stop_read(void **state)
{
	struct pmsg_frame f[3];
	int fd;

	start();
	lab_fill(a, 0, 8 * MIB, 3);
	for (unsigned i = 0; i < 3; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_READ, i * MIB, 0, MIB);
	fd = stream(1);
	for (unsigned i = 0; i < 3; i++)
		f[i] = receive_read(fd, 0, MIB);
	memset(payload, 0x55, MIB);
	/* in the middle of its payload, and before any of it */
	answer(fd, PMSG_FRAME_KIND_READ_DATA, f[0].slice, 0, MIB);
	lab_send(&lab, fd, payload, 5000);
	lab_settle(&lab);
	stop(1, DRAY_E_CANCELLED, false);
	expect_end(1, DRAY_E_CANCELLED);
	stop(2, DRAY_E_CANCELLED, true);
	expect_end(2, DRAY_E_CANCELLED);
	assert_true(lab_equal(a, 0, payload, 5000));
	lab_send(&lab, fd, payload, MIB - 5000);
	answer(fd, PMSG_FRAME_KIND_READ_DATA, f[1].slice, 0, MIB);
	lab_send(&lab, fd, payload, MIB);
	assert_true(lab_filled(a, 5000, 2 * MIB - 5000, 3));
	answer(fd, PMSG_FRAME_KIND_READ_DATA, f[2].slice, 0, MIB);
	lab_send(&lab, fd, payload, MIB);
	lab_settle(&lab);
	expect_end(3, 0);
	assert_true(lab_equal(a, 2 * MIB, payload, MIB));
	assert_int_equal(a->lost.n, 0);
	finish();
}

/* --- broken streams -------------------------------------------------------------------------- */

static void test_lost_write_waits(void **state)
{
	struct pmsg_frame f[2];
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 100, 100, 100);
	lab_transfer1(a, 3, DMSG_DIRECTION_READ, MIB, 7, 100);
	fd = stream(1);
	f[0] = receive_write(fd, 0, 0, 100);
	f[1] = receive_write(fd, 100, 100, 100);
	receive_read(fd, 7, 100);
	close(fd);
	lab.raw_fd[0] = -1;
	lab_until(&lab, a->lost.n == 1);
	assert_int_equal(a->lost.id[0], lab.raw_id[0]);
	/* the READ goes out again at once, the WRITEs do not */
	lab_advance(&lab, 1000);
	fd = stream(2);
	assert_true(receive_read(fd, 7, 100).slice);
	lab_settle(&lab);
	assert_true(recv(fd, payload, 1, MSG_DONTWAIT) < 0);
	stop(2, DRAY_E_CANCELLED, false);
	lab_settle(&lab);
	assert_null(lab_end(a, 2));
	/* other ids change nothing */
	transport_tcp.stream_dead(&a->core, tcp_state(), LAB_PEER, a->lost.id[0] + 1000);
	transport_tcp.stream_dead(&a->core, tcp_state(), LAB_HANDLE(90), a->lost.id[0]);
	lab_settle(&lab);
	assert_true(recv(fd, payload, 1, MSG_DONTWAIT) < 0);
	dead(0);
	expect_end(2, DRAY_E_CANCELLED);
	assert_int_equal(receive_write(fd, 0, 0, 100).slice, f[0].slice);
	assert_int_equal(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL), 2);
	ack(fd, f[0].slice, 0);
	expect_end(1, 0);
	dead(0);
	finish();
}

static void test_lost_write_urgent(void **state)
{
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd = stream(1);
	receive_write(fd, 0, 0, 100);
	close(fd);
	lab.raw_fd[0] = -1;
	lab_until(&lab, a->lost.n == 1);
	stop(1, DRAY_E_SESSION_CLOSED, true);
	expect_end(1, DRAY_E_SESSION_CLOSED);
	dead(0);
	lab_settle(&lab);
	finish();
}

static void test_slice_timeout(void **state)
{
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd = stream(1);
	receive_write(fd, 0, 0, 100);
	lab_advance(&lab, 4900);
	lab_settle(&lab);
	assert_int_equal(a->lost.n, 0);
	lab_advance(&lab, 200);
	lab_settle(&lab);
	assert_int_equal(a->lost.n, 1);
	assert_true(lab_is_closed(&lab, fd));
	dead(0);
	lab_advance(&lab, 1000);
	fd = stream(2);
	ack(fd, receive_write(fd, 0, 0, 100).slice, 0);
	expect_end(1, 0);
	/* idle streams have no time-out */
	lab_advance(&lab, 100000);
	lab_settle(&lab);
	assert_int_equal(a->lost.n, 1);
	assert_true(transport_tcp.tick(&a->core, tcp_state()) == INT64_MAX);
	finish();
}

/* Bytes trickle, so the stream lives; but a transfer that is stopping waits no longer than the slice time-out. */
static void test_trickle(void **state)
{
	struct pmsg_frame f;
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, MIB, 0, MIB);
	fd = stream(1);
	receive_write(fd, 0, 0, 100);
	f = receive_read(fd, 0, MIB);
	answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, MIB);
	for (unsigned i = 0; i < 10; i++) {
		lab_advance(&lab, 3000);
		lab_send(&lab, fd, payload, 1);
		lab_settle(&lab);
	}
	assert_int_equal(a->lost.n, 0);
	stop(1, DRAY_E_DEADLINE, false);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(a->lost.n, 0);
		lab_advance(&lab, 3000);
		lab_send(&lab, fd, payload, 1);
		lab_settle(&lab);
	}
	assert_int_equal(a->lost.n, 1);
	assert_null(lab_end(a, 1));
	dead(0);
	expect_end(1, DRAY_E_DEADLINE);
	finish();
}

/* Streams that open and break before they answer anything are like streams that do not open. */
static void test_useless_streams(void **state)
{
	unsigned n = 0;

	start();
	lab.hold_resets = true;
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 100);
	for (unsigned i = 0; i < 5000 && !lab_end(a, 1); i++) {
		lab_turn(&lab);
		lab_advance(&lab, 10);
		while (n < lab.n_raw) {
			close(lab.raw_fd[n]);
			lab.raw_fd[n++] = -1;
		}
	}
	expect_end(1, DRAY_E_PEER_UNREACHABLE);
	assert_true(n >= 5 && n < 20);
	finish();
}

/* --- faults ---------------------------------------------------------------------------------- */

static void test_write_fault(void **state)
{
	int fd;

	start();
	if (!lab_punch(a, 0, 65536)) {
		finish();
		skip();
	}
	/* of several in one batch only the one whose memory is gone */
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 3 * MIB, 0, 1000);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 100, 1, 1000);
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 4 * MIB, 2, 1000);
	fd = stream(1);
	lab_settle(&lab);
	expect_end(2, DRAY_E_REGION_FAULT);
	assert_int_equal(a->n_faults, 1);
	assert_int_equal(a->last_fault, LAB_SESSION);
	ack(fd, receive_write(fd, 3 * MIB, 0, 1000).slice, 0);
	ack(fd, receive_write(fd, 4 * MIB, 2, 1000).slice, 0);
	expect_end(1, 0);
	expect_end(3, 0);
	assert_int_equal(a->lost.n, 0);
	finish();
}

static void test_write_fault_in_middle(void **state)
{
	int fd;

	start();
	/* the second half of what is one slice */
	if (!lab_punch(a, MIB - 65536, 65536)) {
		finish();
		skip();
	}
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, MIB);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 3 * MIB, 2, 1000);
	fd = stream(1);
	lab_until(&lab, a->lost.n == 1);
	assert_int_equal(a->n_faults, 1);
	assert_null(lab_end(a, 1));
	assert_true(lab_is_closed(&lab, fd) || true);
	dead(0);
	expect_end(1, DRAY_E_REGION_FAULT);
	lab_advance(&lab, 1000);
	fd = stream(2);
	ack(fd, receive_write(fd, 3 * MIB, 2, 1000).slice, 0);
	expect_end(2, 0);
	finish();
}

static void test_read_fault(void **state)
{
	static const uint64_t sizes[] = { 500, 300000 };
	struct pmsg_frame f;
	int fd;

	start();
	if (!lab_punch(a, 0, 65536)) {
		finish();
		skip();
	}
	memset(payload, 0x77, MIB);
	for (unsigned i = 0; i < 2; i++) {
		lab_transfer1(a, 2 * i + 1, DMSG_DIRECTION_READ, 100, 0, sizes[i]);
		lab_transfer1(a, 2 * i + 2, DMSG_DIRECTION_READ, 3 * MIB, 1, 1000);
		fd = stream(1);
		f = receive_read(fd, 0, sizes[i]);
		answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, f.length);
		lab_send(&lab, fd, payload, f.length);
		lab_settle(&lab);
		expect_end(2 * i + 1, DRAY_E_REGION_FAULT);
		f = receive_read(fd, 1, 1000);
		answer(fd, PMSG_FRAME_KIND_READ_DATA, f.slice, 0, f.length);
		lab_send(&lab, fd, payload, f.length);
		lab_settle(&lab);
		expect_end(2 * i + 2, 0);
		assert_true(lab_equal(a, 3 * MIB, payload, 1000));
		assert_int_equal(a->n_faults, i + 1);
	}
	assert_int_equal(a->lost.n, 0);
	finish();
}

/* --- the peer goes --------------------------------------------------------------------------- */

static void down(uint32_t code)
{
	transport_tcp.peer_down(&a->core, tcp_state(), LAB_PEER, code);
	a->down = true;
	assert_int_equal(a->n_gone, 1);
	assert_true(dray_list_empty(&a->session.xfers));
	assert_int_equal(a->session.slices, 0);
}

static void test_down_idle(void **state)
{
	start();
	down(DRAY_E_PEER_LOST);
	/* unknown by now */
	transport_tcp.peer_down(&a->core, tcp_state(), LAB_PEER, DRAY_E_PEER_LOST);
	assert_int_equal(a->n_gone, 2);
	/* no channel, so the transfer fails */
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	expect_end(1, DRAY_E_PEER_LOST);
	assert_int_equal(transport_tcp.peer_up(&a->core, tcp_state(), &a->link), 0);
	assert_int_equal(transport_tcp.peer_up(&a->core, tcp_state(), &a->link), -EEXIST);
	a->n_ended = 0;
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	ack(stream(1), receive_write(stream(1), 0, 0, 10).slice, 0);
	expect_end(1, 0);
	transport_tcp.peer_down(&a->core, tcp_state(), LAB_PEER, DRAY_E_PEER_LOST);
	finish();
}

static void test_down_connecting(void **state)
{
	prepare();
	lab.no_welcome = true;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	lab_side_turn(a);
	lab_settle(&lab);
	down(DRAY_E_PEER_LOST);
	expect_end(1, DRAY_E_PEER_LOST);
	lab_settle(&lab);
	finish();
}

static void test_down_in_flight(void **state)
{
	int fd = start_stuck_writes(1);

	for (unsigned i = 0; i < 20; i++)
		lab_transfer1(a, 10 + i, i % 2 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE, i * 4096, i * 4096, 4096);
	lab_settle(&lab);
	down(DRAY_E_PEER_LOST);
	expect_end(1, DRAY_E_PEER_LOST);
	for (unsigned i = 0; i < 20; i++)
		expect_end(10 + i, DRAY_E_PEER_LOST);
	lab_settle(&lab);
	while (recv(fd, payload, MIB, MSG_DONTWAIT) > 0)
		;
	assert_true(lab_is_closed(&lab, fd));
	finish();
}

static void test_down_lost(void **state)
{
	int fd;

	start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, MIB, 0, MIB);
	fd = stream(1);
	receive_write(fd, 0, 0, 100);
	close(fd);
	lab.raw_fd[0] = -1;
	lab_until(&lab, a->lost.n == 1);
	down(DRAY_E_INCARNATION);
	expect_end(1, DRAY_E_INCARNATION);
	expect_end(2, DRAY_E_INCARNATION);
	dead(0);
	finish();
}

/* --- limits ---------------------------------------------------------------------------------- */

/* A session at its limit of slices, which another channel's slices fill, goes on when they end. */
static void test_session_limit(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 100 } };
	int fd[2];

	prepare();
	a->core.cfg.slices_per_session = 1;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	fd[0] = stream(1);
	lab_settle(&lab);
	lab_transfer(a, 2, DMSG_DIRECTION_WRITE, DMSG_CLASS_LATENCY, op, 1);
	lab_settle(&lab);
	assert_int_equal(lab.n_raw, 1);
	ack(fd[0], receive_write(fd[0], 0, 0, 100).slice, 0);
	expect_end(1, 0);
	fd[1] = stream(2);
	ack(fd[1], receive_write(fd[1], 0, 0, 100).slice, 0);
	expect_end(2, 0);
	finish();
}

static void test_spread(void **state)
{
	unsigned per[2] = { 0 };

	prepare();
	a->core.cfg.tcp_streams = 2;
	go();
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 1);
	answer(stream(1), PMSG_FRAME_KIND_READ_DATA, receive_read(stream(1), 0, 1).slice, 0, 1);
	lab_send(&lab, stream(1), payload, 1);
	stream(2);
	lab_settle(&lab);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, 4 * MIB);
	lab_settle(&lab);
	for (unsigned i = 0; i < 2; i++) {
		ssize_t n = recv(lab.raw_fd[i], payload, 1000, MSG_DONTWAIT);

		per[i] = n > 0 ? (unsigned)n / (PMSG_FRAME_SIZE + PMSG_SEG_SIZE) : 0;
	}
	assert_int_equal(per[0], 2);
	assert_int_equal(per[1], 2);
	finish();
}

/* What a process opens once, for good, does not count as left behind. */
static int set_up(void **state)
{
	lab_init(&lab, MIB, 1);
	lab_deinit(&lab);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lazy),
		cmocka_unit_test(test_unreachable),
		cmocka_unit_test(test_back_after_refusal),
		cmocka_unit_test(test_bad_mac),
		cmocka_unit_test(test_no_welcome),
		cmocka_unit_test(test_statuses),
		cmocka_unit_test(test_bad_answers),
		cmocka_unit_test(test_answers_out_of_order),
		cmocka_unit_test(test_stop_write_sent),
		cmocka_unit_test(test_stop_write_in_middle),
		cmocka_unit_test(test_stop_write_in_middle_urgent),
		cmocka_unit_test(test_stop_read),
		cmocka_unit_test(test_lost_write_waits),
		cmocka_unit_test(test_lost_write_urgent),
		cmocka_unit_test(test_slice_timeout),
		cmocka_unit_test(test_trickle),
		cmocka_unit_test(test_useless_streams),
		cmocka_unit_test(test_write_fault),
		cmocka_unit_test(test_write_fault_in_middle),
		cmocka_unit_test(test_read_fault),
		cmocka_unit_test(test_down_idle),
		cmocka_unit_test(test_down_connecting),
		cmocka_unit_test(test_down_in_flight),
		cmocka_unit_test(test_down_lost),
		cmocka_unit_test(test_session_limit),
		cmocka_unit_test(test_spread),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
