/* SPDX-License-Identifier: Apache-2.0 */
/* The owning side of transport tcp: memory is dropped, or faults, in the middle of a frame. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB
#define STREAM HAND_STREAM

static struct lab_side *const b = &hand.lab.side[1];

static void drop(enum object_kind kind, bool urgent)
{
	object_drop(&b->core, kind, kind == OBJECT_GRANT ? LAB_GRANT : LAB_REGION, DRAY_E_REVOKED,
		    urgent ? DROP_URGENT : DROP_STOP);
}

static void revoke_write(enum object_kind kind, bool urgent)
{
	struct pmsg_seg seg = { 1000, 2 * MIB };
	uint8_t *before;

	hand_import_start(8, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB);
	lab_settle(&hand.lab);
	assert_int_equal(hand_grant()->users, 1);
	assert_true(lab_equal(b, 1000, hand.payload, MIB));
	/* sent, but not received when the drop comes */
	assert_int_equal(send(hand.fd, hand.payload + MIB, 4096, MSG_DONTWAIT), 4096);
	drop(kind, urgent);
	assert_int_equal(b->n_dropped, 1);
	before = malloc(8 * MIB);
	assert_non_null(before);
	lab_read(b, 0, before, 8 * MIB);
	lab_send(&hand.lab, hand.fd, hand.payload + MIB + 4096, MIB - 4096);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, DRAY_E_REVOKED, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 2, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, 2 * MIB);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 2, DRAY_E_REVOKED, 0);
	assert_true(lab_equal(b, 0, before, 8 * MIB));
	free(before);
	hand_import_finish();
}

static void test_revoke_write_grant(void **state)
{
	revoke_write(OBJECT_GRANT, false);
}

static void test_revoke_write_region(void **state)
{
	revoke_write(OBJECT_REGION, false);
}

static void test_revoke_write_urgent(void **state)
{
	revoke_write(OBJECT_REGION, true);
}

/* A READ answer that is partly sent, because the peer does not read it. */
static void start_stuck_read(uint64_t bytes)
{
	struct pmsg_seg seg = { 0, bytes };
	size_t n;

	hand_import_start(4, 20000);
	n = lab_frame(hand.frame, PMSG_FRAME_KIND_READ, 1, LAB_GRANT, &seg, 1);
	assert_int_equal(send(hand.fd, hand.frame, n, 0), n);
	lab_until(&hand.lab, hand_grant()->users == 1);
	lab_settle(&hand.lab);
	assert_int_equal(hand_grant()->users, 1);
}

static void test_revoke_read_grace(void **state)
{
	start_stuck_read(4 * MIB);
	drop(OBJECT_GRANT, false);
	assert_int_equal(b->n_dropped, 0);
	/* the answer is read in time and is complete */
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 1, 0, 4 * MIB);
	hand.lab.skew_ns -= 100 * DRAY_NS_PER_MS;
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, 4 * MIB));
	assert_true(lab_equal(b, 0, hand.payload, 4 * MIB));
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 0);
	hand_import_finish();
}

static void test_revoke_read_late(void **state)
{
	start_stuck_read(4 * MIB);
	drop(OBJECT_REGION, false);
	lab_settle(&hand.lab);
	assert_int_equal(b->n_dropped, 0);
	lab_advance(&hand.lab, 60);
	lab_turn(&hand.lab);
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 1);
	assert_int_equal(b->closed.id[0], STREAM);
	assert_false(lab_receive(&hand.lab, hand.fd, hand.payload, 4 * MIB));
	hand_import_finish();
}

static void test_revoke_read_urgent(void **state)
{
	start_stuck_read(4 * MIB);
	drop(OBJECT_REGION, true);
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 1);
	hand_import_finish();
}

static void test_revoke_read_escalated(void **state)
{
	start_stuck_read(4 * MIB);
	drop(OBJECT_GRANT, false);
	assert_int_equal(b->n_dropped, 0);
	object_drop(&b->core, OBJECT_GRANT, LAB_GRANT, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 1);
	hand_import_finish();
}

/*
 * Sends `before` small READs and a big one, and reads no answer before the grant is dropped. True: the drop
 * ended at once.
 */
static bool drop_behind(unsigned before, uint64_t length)
{
	struct pmsg_seg small = { 0, length }, big = { 5000, MIB };
	bool held, at_once;

	hand_import_start(4, 20000);
	for (unsigned i = 0; i <= before; i++) {
		size_t n = lab_frame(hand.frame, PMSG_FRAME_KIND_READ, i, LAB_GRANT,
				     i < before ? &small : &big, 1);

		assert_int_equal(send(hand.fd, hand.frame, n, MSG_DONTWAIT), n);
	}
	lab_settle(&hand.lab);
	held = hand_grant()->users;
	drop(OBJECT_GRANT, false);
	at_once = b->n_dropped;
	hand.lab.skew_ns -= 100 * DRAY_NS_PER_SEC;
	for (unsigned i = 0; i <= before; i++) {
		struct pmsg_frame f = hand_receive_answer();

		assert_int_equal(f.kind, PMSG_FRAME_KIND_READ_DATA);
		assert_int_equal(f.slice, i);
		if (f.status) {
			assert_int_equal(f.status, DRAY_E_REVOKED);
			assert_int_equal(f.length, 0);
			continue;
		}
		assert_int_equal(f.length, i < before ? small.length : big.length);
		assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, f.length));
		assert_true(lab_equal(b, i < before ? small.offset : big.offset, hand.payload,
				      f.length));
	}
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 0);
	hand_import_finish();
	return held && at_once;
}

/* If earlier answers fill the socket, the head of a READ's answer is still here and can report the error. */
static void test_revoke_read_head_not_sent(void **state)
{
	unsigned n = 0;

	/* The kernel decides how much the socket takes; one of these counts keeps the big answer's head here. */
	for (unsigned before = 1; before < 12; before++)
		for (uint64_t length = 7000; length < 16384; length += 3000)
			n += drop_behind(before, length);
	assert_true(n > 0);
}

/* The largest READs that are answered together. */
#define JOINED (MIB / 4)

/* Frames of n such READs, from the first byte on, in hand.payload. Their bytes. */
static size_t reads_of(unsigned n)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		bytes += lab_frame(hand.payload + bytes, PMSG_FRAME_KIND_READ, i + 1, LAB_GRANT,
				   &(struct pmsg_seg){ i * JOINED, JOINED }, 1);
	return bytes;
}

/* Several READs in one send, of which the socket takes a part of the first answer. */
static void start_stuck_reads(unsigned n)
{
	size_t bytes;

	hand_import_start(1, 20000);
	bytes = reads_of(n);
	assert_int_equal(send(hand.fd, hand.payload, bytes, 0), bytes);
	lab_until(&hand.lab, hand_grant()->users == n);
	lab_settle(&hand.lab);
	assert_int_equal(hand_grant()->users, n);
}

/* Of answers that are sent together, those behind the first one report the drop, and their memory is not read any more. */
static void test_revoke_reads_together(void **state)
{
	start_stuck_reads(4);
	drop(OBJECT_GRANT, false);
	assert_int_equal(b->n_dropped, 0);
	hand.lab.skew_ns -= 100 * DRAY_NS_PER_SEC;
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 1, 0, JOINED);
	assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, JOINED));
	assert_true(lab_equal(b, 0, hand.payload, JOINED));
	for (unsigned i = 2; i <= 4; i++)
		hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, i, DRAY_E_REVOKED, 0);
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 0);
	hand_import_finish();
}

static void test_revoke_reads_together_urgent(void **state)
{
	start_stuck_reads(4);
	drop(OBJECT_REGION, true);
	assert_int_equal(b->n_dropped, 1);
	assert_int_equal(b->closed.n, 1);
	hand_import_finish();
}

/* A drop looks at streams that have served frames since the last one, not at every stream of every peer. */
static void test_idle_streams(void **state)
{
	struct tcp *t;

	hand_import_start(1, 0);
	t = b->tcp;
	assert_false(dray_list_empty(&t->streams));
	assert_true(dray_list_empty(&t->serving));
	hand_write(1, 0, 1000);
	assert_false(dray_list_empty(&t->serving));
	drop(OBJECT_GRANT, false);
	assert_int_equal(b->n_dropped, 1);
	assert_true(dray_list_empty(&t->serving));
	assert_false(dray_list_empty(&t->streams));
	hand_import_finish();
}

/* A stream that a drop of other memory has found without frames, and that serves again. */
static void test_stream_that_serves_again(void **state)
{
	const struct pmsg_seg seg = { 1000, 2 * MIB };
	struct object other = { .handle = LAB_GRANT + 1 };
	const struct tcp *t;

	hand_import_start(8, 0);
	hand_write(1, 0, 1000);
	t = b->tcp;
	tcp_serve_drop(&b->core, b->tcp, &other);
	assert_true(dray_list_empty(&t->serving));
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 2, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB);
	lab_settle(&hand.lab);
	assert_int_equal(hand_grant()->users, 1);
	drop(OBJECT_GRANT, false);
	assert_int_equal(b->n_dropped, 1);
	lab_send(&hand.lab, hand.fd, hand.payload + MIB, MIB);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 2, DRAY_E_REVOKED, 0);
	hand_import_finish();
}

static void test_write_fault(void **state)
{
	static const uint64_t sizes[] = { 100, 3000, 40000, 2 * MIB };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(sizes); i++) {
		struct pmsg_seg segs[] = { { 4 * MIB, 2000 }, { 0, sizes[i] } };

		hand_import_start(1, 0);
		if (!lab_punch(b, 0, 65536)) {
			hand_import_finish();
			skip();
		}
		hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, segs, 2);
		lab_send(&hand.lab, hand.fd, hand.payload, 2000 + sizes[i]);
		hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, DRAY_E_REGION_FAULT, 0);
		assert_int_equal(b->n_faults, 1);
		assert_int_equal(b->last_fault, LAB_SESSION);
		assert_int_equal(lab_counter(b, DRAY_METRIC_REGION_FAULTS_TOTAL), 1);
		/* no page was allocated by this process */
		assert_int_equal(lseek(b->region.fd, 0, SEEK_DATA), 65536);
		hand_write(2, 5 * MIB, MIB);
		hand_import_finish();
	}
}

static void test_read_fault(void **state)
{
	struct pmsg_seg seg = { 0, 3000 }, big = { 0, 2 * MIB }, middle = { 4 * MIB, 3 * MIB };

	hand_import_start(1, 0);
	if (!lab_punch(b, 0, 65536) || !lab_punch(b, 6 * MIB, 65536)) {
		hand_import_finish();
		skip();
	}
	hand_send_frame(PMSG_FRAME_KIND_READ, 1, LAB_GRANT, &seg, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 1, DRAY_E_REGION_FAULT, 0);
	hand_send_frame(PMSG_FRAME_KIND_READ, 2, LAB_GRANT, &big, 1);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 2, DRAY_E_REGION_FAULT, 0);
	assert_int_equal(b->n_faults, 2);
	hand_read(3, 4 * MIB, MIB);
	/* too late to report it in the head */
	hand_send_frame(PMSG_FRAME_KIND_READ, 4, LAB_GRANT, &middle, 1);
	assert_false(lab_receive(&hand.lab, hand.fd, hand.payload, PMSG_FRAME_SIZE + 3 * MIB));
	assert_int_equal(b->n_faults, 3);
	assert_int_equal(b->closed.n, 1);
	assert_int_equal(hand_grant()->users, 0);
	hand_import_finish();
}

/* Of answers that are sent together, the one that faults reports it. */
static void test_reads_fault(void **state)
{
	hand_import_start(1, 0);
	if (!lab_punch(b, JOINED, 65536)) {
		hand_import_finish();
		skip();
	}
	lab_send(&hand.lab, hand.fd, hand.payload, reads_of(4));
	for (unsigned i = 0; i < 4; i++) {
		hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, i + 1,
				   i == 1 ? DRAY_E_REGION_FAULT : 0, i == 1 ? 0 : JOINED);
		if (i == 1)
			continue;
		assert_true(lab_receive(&hand.lab, hand.fd, hand.payload, JOINED));
		assert_true(lab_equal(b, i * JOINED, hand.payload, JOINED));
	}
	assert_int_equal(b->n_faults, 1);
	assert_int_equal(hand_grant()->users, 0);
	hand_import_finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_revoke_write_grant),
		cmocka_unit_test(test_revoke_write_region),
		cmocka_unit_test(test_revoke_write_urgent),
		cmocka_unit_test(test_revoke_read_grace),
		cmocka_unit_test(test_revoke_read_late),
		cmocka_unit_test(test_revoke_read_urgent),
		cmocka_unit_test(test_revoke_read_escalated),
		cmocka_unit_test(test_revoke_read_head_not_sent),
		cmocka_unit_test(test_revoke_reads_together),
		cmocka_unit_test(test_revoke_reads_together_urgent),
		cmocka_unit_test(test_idle_streams),
		cmocka_unit_test(test_stream_that_serves_again),
		cmocka_unit_test(test_write_fault),
		cmocka_unit_test(test_read_fault),
		cmocka_unit_test(test_reads_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
