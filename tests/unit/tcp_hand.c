/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tcp_hand.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"

#define MIB HAND_MIB
#define STREAM HAND_STREAM

struct hand hand;

static struct lab_side *const a = &hand.lab.side[0], *const b = &hand.lab.side[1];

void hand_import_start(uint32_t extents, int buffer)
{
	lab_init(&hand.lab, 8 * MIB, extents);
	lab_fill(b, 0, 8 * MIB, 1);
	hand.fd = lab_raw_stream(b, STREAM, buffer);
	hand.payload = malloc(8 * MIB);
	assert_non_null(hand.payload);
	lab_pattern_fill(hand.payload, 0, 8 * MIB, 2);
}

void hand_import_finish(void)
{
	close(hand.fd);
	lab_settle(&hand.lab);
	free(hand.payload);
	lab_deinit(&hand.lab);
}

void hand_send_frame(uint8_t kind, uint64_t id, uint64_t grant, const struct pmsg_seg *segs,
		     uint16_t n)
{
	size_t bytes = lab_frame(hand.frame, kind, id, grant, segs, n);

	lab_send(&hand.lab, hand.fd, hand.frame, bytes);
}

struct pmsg_frame hand_receive_answer(void)
{
	uint8_t wire[PMSG_FRAME_SIZE];
	struct pmsg_frame f;

	assert_true(lab_receive(&hand.lab, hand.fd, wire, sizeof(wire)));
	pmsg_frame_get(wire, &f);
	assert_int_equal(f.segs, 0);
	return f;
}

void hand_expect_answer(uint8_t kind, uint64_t id, uint32_t status, uint64_t length)
{
	struct pmsg_frame f = hand_receive_answer();

	assert_int_equal(f.kind, kind);
	assert_int_equal(f.slice, id);
	assert_int_equal(f.status, status);
	assert_int_equal(f.length, length);
}

struct object *hand_grant(void)
{
	return object_get(&b->core, OBJECT_GRANT, LAB_GRANT);
}

void hand_write(uint64_t id, uint64_t offset, uint64_t n)
{
	struct pmsg_seg seg = { offset, n };

	hand_send_frame(PMSG_FRAME_KIND_WRITE, id, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, n);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, id, 0, 0);
	assert_true(lab_equal(b, offset, hand.payload, n));
}

void hand_read(uint64_t id, uint64_t offset, uint64_t n)
{
	struct pmsg_seg seg = { offset, n };
	uint8_t *got = malloc(n);

	assert_non_null(got);
	hand_send_frame(PMSG_FRAME_KIND_READ, id, LAB_GRANT, &seg, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, id, 0, n);
	assert_true(lab_receive(&hand.lab, hand.fd, got, n));
	assert_true(lab_equal(b, offset, got, n));
	free(got);
}

void hand_own_prepare(void)
{
	hand.fds_before = cm_fds_count();
	lab_prepare(&hand.lab);
	hand.lab.raw = hand.lab.hold_resets = true;
	a->core.cfg.tcp_streams = 1;
	hand.payload = malloc(8 * MIB);
	assert_non_null(hand.payload);
}

void hand_own_go(void)
{
	lab_start(&hand.lab, 8 * MIB, 4);
	lab_fill(a, 0, 8 * MIB, 1);
}

void hand_own_start(void)
{
	hand_own_prepare();
	hand_own_go();
}

void hand_own_finish(void)
{
	free(hand.payload);
	lab_deinit(&hand.lab);
	assert_int_equal(cm_fds_count(), hand.fds_before);
}

void hand_stop(uint64_t id, uint32_t code, bool urgent)
{
	xfer_stop(&a->core, lab_xfer(a, id), code, NULL, urgent);
}

void hand_expect_end(uint64_t id, uint32_t code)
{
	if (!lab_end(a, id))
		fail_msg("transfer %u has not ended", (unsigned)id);
	assert_int_equal(lab_end(a, id)->code, code);
}

/* The newest stream, once it is open. */
int hand_stream(unsigned n)
{
	lab_until(&hand.lab, hand.lab.n_raw >= n);
	return hand.lab.raw_fd[n - 1];
}

static struct pmsg_frame hand_receive_frame(int fd, struct pmsg_seg *ret_segs)
{
	uint8_t wire[TCP_HEAD_MAX];
	struct pmsg_frame f;

	assert_true(lab_receive(&hand.lab, fd, wire, PMSG_FRAME_SIZE));
	pmsg_frame_get(wire, &f);
	assert_true(f.segs >= 1 && f.segs <= PMSG_SEGS_MAX);
	assert_int_equal(f.grant, LAB_GRANT);
	assert_int_equal(f.status, 0);
	assert_true(
		lab_receive(&hand.lab, fd, wire + PMSG_FRAME_SIZE, (size_t)f.segs * PMSG_SEG_SIZE));
	pmsg_seg_get(wire + PMSG_FRAME_SIZE, ret_segs);
	return f;
}

struct pmsg_frame hand_receive_write(int fd, uint64_t local, uint64_t remote, uint64_t n)
{
	struct pmsg_seg seg;
	struct pmsg_frame f = hand_receive_frame(fd, &seg);

	assert_int_equal(f.kind, PMSG_FRAME_KIND_WRITE);
	assert_int_equal(f.length, n);
	assert_int_equal(seg.offset, remote);
	assert_true(lab_receive(&hand.lab, fd, hand.payload, n));
	assert_true(lab_equal(a, local, hand.payload, n));
	return f;
}

struct pmsg_frame hand_receive_read(int fd, uint64_t remote, uint64_t n)
{
	struct pmsg_seg seg;
	struct pmsg_frame f = hand_receive_frame(fd, &seg);

	assert_int_equal(f.kind, PMSG_FRAME_KIND_READ);
	assert_int_equal(f.length, n);
	assert_int_equal(seg.offset, remote);
	return f;
}

void hand_answer(int fd, uint8_t kind, uint64_t slice, uint32_t status, uint64_t length)
{
	uint8_t wire[PMSG_FRAME_SIZE];

	lab_send(&hand.lab, fd, wire, lab_answer(wire, kind, slice, status, length));
	lab_settle(&hand.lab);
}

void hand_ack(int fd, uint64_t slice, uint32_t status)
{
	hand_answer(fd, PMSG_FRAME_KIND_WRITE_ACK, slice, status, 0);
}

void hand_dead(unsigned lost)
{
	lab_stream_dead(a, LAB_PEER, a->lost.id[lost]);
}

/* Several transfers; the first is partly sent. */
int hand_own_start_stuck(unsigned n)
{
	hand_own_prepare();
	a->core.cfg.tcp_buffer = 20000;
	a->core.cfg.slice_size = 4 * MIB;
	hand_own_go();
	for (unsigned i = 0; i < n; i++)
		lab_transfer1(a, i + 1, DMSG_DIRECTION_WRITE, i * MIB, i * MIB, i ? 1000 : 4 * MIB);
	hand_stream(1);
	lab_settle(&hand.lab);
	return hand.lab.raw_fd[0];
}

/* Descriptors that a process opens once and keeps are not leaks. */
int hand_set_up(void **state)
{
	lab_init(&hand.lab, MIB, 1);
	lab_deinit(&hand.lab);
	return 0;
}
