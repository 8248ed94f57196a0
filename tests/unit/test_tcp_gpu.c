/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport tcp and GPU memory: ends during copies, lost devices, and lack of buffers. test_tcp_pair checks
 * that bytes arrive.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transport/stage/stage.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/gpu/fake.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB
#define HOST_REGION LAB_HANDLE(20)
#define HOST_GRANT LAB_HANDLE(21)
#define HOST_BYTES 65536u

static struct lab lab;
static struct lab_side *const a = &lab.side[0], *const b = &lab.side[1];
static struct lab_side *const owner = &hand.lab.side[1];

static void on_gpus(bool importer, bool owners)
{
	lab_staging[0] = importer ? 8 * MIB : 0;
	lab_staging[1] = owners ? 8 * MIB : 0;
}

static uint8_t host_memory[HOST_BYTES];
static struct region_view *host_region;
static struct grant_view host_grant;

static void host_publish(struct lab_side *s)
{
	host_region = calloc(1, sizeof(*host_region) + sizeof(struct extent_view));
	assert_non_null(host_region);
	host_region->o = (struct object_view){ OBJECT_REGION, HOST_REGION, LAB_GROUP,
					       LAB_SESSION,   HOST_BYTES,  DMSG_ACCESS_ALL };
	host_region->n_extents = 1;
	host_region->extents[0] =
		(struct extent_view){ .length = HOST_BYTES, .base = host_memory, .node = -1 };
	host_grant = (struct grant_view){ .o = { OBJECT_GRANT, HOST_GRANT, 0, 0, HOST_BYTES,
						 DMSG_ACCESS_ALL },
					  .peer = LAB_PEER,
					  .region = HOST_REGION };
	object_publish(&s->core, &host_region->o);
	object_publish(&s->core, &host_grant.o);
}

static void send_write(uint64_t id, uint64_t grant, uint64_t offset, uint64_t n)
{
	struct pmsg_seg seg = { offset, n };

	hand_send_frame(PMSG_FRAME_KIND_WRITE, id, grant, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, n);
}

static void send_read(uint64_t id, uint64_t grant, uint64_t offset, uint64_t n)
{
	struct pmsg_seg seg = { offset, n };

	hand_send_frame(PMSG_FRAME_KIND_READ, id, grant, &seg, 1);
}

static void expect_data(uint64_t id, const uint8_t *want, uint64_t n)
{
	static uint8_t got[MIB];

	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, id, 0, n);
	assert_true(lab_receive(&hand.lab, hand.fd, got, n));
	assert_memory_equal(got, want, n);
}

/* Frames are received while the GPU copies, and answered in order, whatever memory they access. */
static void test_answers_in_order(void **state)
{
	static uint8_t want[50000];

	on_gpus(false, true);
	hand_import_start(4, 0);
	host_publish(owner);
	memset(host_memory, 0x5a, sizeof(host_memory));
	lab_read(owner, 4 * MIB, want, sizeof(want));
	fake_gpu_hold(true);
	send_write(1, LAB_GRANT, 1000, 50000);
	send_read(2, LAB_GRANT, 4 * MIB, sizeof(want));
	send_write(3, HOST_GRANT, 0, 1000);
	send_read(4, LAB_GRANT, 8 * MIB, 1);
	send_write(5, LAB_GRANT, 2 * MIB, 3000);
	send_read(6, HOST_GRANT, 0, 40000);
	send_read(7, HOST_GRANT, 500, 100);
	lab_settle(&hand.lab);
	assert_false(lab_is_closed(&hand.lab, hand.fd));
	assert_memory_equal(host_memory, hand.payload, 1000);
	fake_gpu_hold(false);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, 0, 0);
	assert_true(lab_equal(owner, 1000, hand.payload, 50000));
	expect_data(2, want, sizeof(want));
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 3, 0, 0);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 4, DRAY_E_RANGE, 0);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 5, 0, 0);
	expect_data(6, host_memory, 40000);
	expect_data(7, host_memory + 500, 100);
	assert_true(lab_equal(owner, 2 * MIB, hand.payload, 3000));
	hand_import_finish();
	free(host_region);
}

/*
 * A buffer becomes free for a READ in the turn in which the stream meets a frame on an unknown grant. The
 * stream must be served again only in later turns.
 */
static void test_unknown_grant_behind_waiting_read(void **state)
{
	static uint8_t want[3 * MIB], got[3 * MIB];

	on_gpus(false, true);
	hand_import_start(4, 20000);
	lab_read(owner, 0, want, sizeof(want));
	/* one buffer more than a peer's share */
	send_read(1, LAB_GRANT, 0, sizeof(want));
	send_read(2, HOST_GRANT, 0, 100);
	lab_settle(&hand.lab);
	/* a stream on two lists would keep the turn from ending */
	alarm(60);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 1, 0, sizeof(want));
	assert_true(lab_receive(&hand.lab, hand.fd, got, sizeof(got)));
	assert_memory_equal(got, want, sizeof(want));
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 2, DRAY_E_REVOKED, 0);
	alarm(0);
	hand_write(3, 0, MIB);
	hand_import_finish();
}

/* Longer than all buffers of one peer together. */
static void test_frame_of_many_chunks(void **state)
{
	on_gpus(false, true);
	hand_import_start(16, 0);
	hand_write(1, 0, 8 * MIB);
	hand_read(2, 0, 8 * MIB);
	hand_write(3, 5, 8 * MIB - 9);
	hand_read(4, 7, 8 * MIB - 7);
	hand_import_finish();
}

static void *let_go(void *arg)
{
	fake_gpu_hold(false);
	return arg;
}

/* A WRITE of two chunks; the first is being copied. */
static void revoke_write(enum object_kind kind, bool urgent)
{
	dray_handle h = kind == OBJECT_GRANT ? LAB_GRANT : LAB_REGION;
	struct pmsg_seg seg = { 1000, 2 * MIB };
	uint8_t *before = malloc(8 * MIB);
	pthread_t thread;

	assert_non_null(before);
	on_gpus(false, true);
	hand_import_start(8, 0);
	lab_read(owner, 0, before, 8 * MIB);
	fake_gpu_hold(true);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_send(&hand.lab, hand.fd, hand.payload, MIB + 5000);
	lab_until(&hand.lab, atomic_load(&fake_gpu_status()->held) == 1);
	if (urgent) {
		assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
		object_drop(&owner->core, kind, h, DRAY_E_REVOKED, DROP_URGENT);
		assert_int_equal(owner->n_dropped, 1);
		assert_int_equal(pthread_join(thread, NULL), 0);
	} else {
		object_drop(&owner->core, kind, h, DRAY_E_REVOKED, DROP_STOP);
		lab_settle(&hand.lab);
		/* the GPU still writes there */
		assert_int_equal(owner->n_dropped, 0);
		fake_gpu_hold(false);
		lab_until(&hand.lab, owner->n_dropped == 1);
	}
	lab_send(&hand.lab, hand.fd, hand.payload + MIB + 5000, MIB - 5000);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, DRAY_E_REVOKED, 0);
	assert_true(lab_equal(owner, 0, before, 1000));
	assert_true(lab_equal(owner, 1000 + MIB, before + 1000 + MIB, 7 * MIB - 1000));
	free(before);
	hand_import_finish();
}

static void test_revoke_write(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		revoke_write(i / 2 ? OBJECT_GRANT : OBJECT_REGION, i % 2);
}

/* Gathered bytes do not need the region any more. */
static void test_revoke_read(void **state)
{
	static uint8_t want[MIB];

	on_gpus(false, true);
	hand_import_start(8, 20000);
	lab_read(owner, 0, want, MIB);
	send_read(1, LAB_GRANT, 0, MIB);
	lab_until(&hand.lab, hand_grant()->users == 1);
	lab_until(&hand.lab, hand_grant()->users == 0);
	object_drop(&owner->core, OBJECT_REGION, LAB_REGION, DRAY_E_REVOKED, DROP_URGENT);
	assert_int_equal(owner->n_dropped, 1);
	expect_data(1, want, MIB);
	send_read(2, LAB_GRANT, 0, MIB);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 2, DRAY_E_REVOKED, 0);
	hand_import_finish();
}

/* The stream closes during copies: the close is reported when no byte moves any more. */
static void test_reset_while_copying(void **state)
{
	pthread_t thread;

	on_gpus(false, true);
	hand_import_start(8, 0);
	fake_gpu_hold(true);
	send_write(1, LAB_GRANT, 0, 5000);
	send_read(2, LAB_GRANT, MIB, 5000);
	lab_until(&hand.lab, hand_grant()->users == 2);
	assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
	lab_stream_reset(owner, LAB_PEER, HAND_STREAM);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(owner->closed.n, 1);
	assert_int_equal(hand_grant()->users, 0);
	assert_true(lab_equal(owner, 0, hand.payload, 5000));
	hand_import_finish();
}

static void test_owner_loses_device(void **state)
{
	on_gpus(false, true);
	hand_import_start(8, 0);
	fake_gpu_hold(true);
	send_write(1, LAB_GRANT, 0, 5000);
	send_read(2, LAB_GRANT, MIB, 5000);
	send_write(3, LAB_GRANT, 2 * MIB, 3 * MIB / 2);
	send_read(4, LAB_GRANT, MIB, 5000);
	fake_gpu_lose(LAB_GPU, true);
	fake_gpu_hold(false);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, DRAY_E_GPU_LOST, 0);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 2, DRAY_E_GPU_LOST, 0);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 3, DRAY_E_GPU_LOST, 0);
	hand_expect_answer(PMSG_FRAME_KIND_READ_DATA, 4, DRAY_E_GPU_LOST, 0);
	assert_int_equal(owner->gpu.n_lost, 1);
	/* later frames find no device, then no region */
	send_write(5, LAB_GRANT, 0, 5000);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 5, DRAY_E_GPU_LOST, 0);
	object_drop(&owner->core, OBJECT_REGION, LAB_REGION, DRAY_E_GPU_LOST, DROP_STOP);
	assert_int_equal(owner->n_dropped, 1);
	hand_import_finish();
}

/* A copy that finds the device lost ends in the next turn, which follows at once. */
static void test_lost_device_is_reported_at_once(void **state)
{
	struct pmsg_seg seg = { 0, 5000 };

	on_gpus(false, true);
	hand_import_start(8, 0);
	hand_send_frame(PMSG_FRAME_KIND_WRITE, 1, LAB_GRANT, &seg, 1);
	lab_settle(&hand.lab);
	fake_gpu_lose(LAB_GPU, true);
	assert_int_equal(send(hand.fd, hand.payload, 5000, 0), 5000);
	lab_until(&hand.lab, owner->gpu.n_lost == 1);
	assert_true(owner->more);
	hand_expect_answer(PMSG_FRAME_KIND_WRITE_ACK, 1, DRAY_E_GPU_LOST, 0);
	hand_import_finish();
}

/* Bulk that a peer requests and does not read leaves a buffer for its latency transfers. */
static void test_latency_beside_stalled_bulk(void **state)
{
	int bulk, fd[2];

	on_gpus(false, true);
	hand_import_start(4, 20000);
	send_read(1, LAB_GRANT, 0, 8 * MIB);
	lab_settle(&hand.lab);
	bulk = hand.fd;
	lab_pair(fd, 0);
	lab_stream_adopt(owner, LAB_PEER, fd[1], HAND_STREAM + 1, DMSG_CLASS_LATENCY);
	hand.fd = fd[0];
	hand_read(2, 5, 1000);
	hand_write(3, 7, 2000);
	close(bulk);
	hand_import_finish();
}

/* Eight WRITEs and eight READs of 1 MiB, with their copies held. */
static void start_held(void)
{
	lab_init(&lab, 16 * MIB, 4);
	fake_gpu_hold(true);
	for (unsigned i = 0; i < 8; i++) {
		lab_transfer1(a, i, DMSG_DIRECTION_WRITE, i * MIB, i * MIB, MIB);
		lab_transfer1(a, 8 + i, DMSG_DIRECTION_READ, (8 + i) * MIB, (8 + i) * MIB, MIB);
	}
	lab_until(&lab, atomic_load(&fake_gpu_status()->held) >= 1);
	lab_settle(&lab);
}

static void test_importer_loses_device(void **state)
{
	on_gpus(true, false);
	start_held();
	fake_gpu_lose(LAB_GPU, true);
	fake_gpu_hold(false);
	lab_until(&lab, a->gpu.n_lost == 1);
	/* transfers without a copy end when the control thread drops the region */
	object_drop(&a->core, OBJECT_REGION, LAB_REGION, DRAY_E_GPU_LOST, DROP_STOP);
	lab_until(&lab, a->n_ended == 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(a->ended[i].code, DRAY_E_GPU_LOST);
	lab_until(&lab, a->n_dropped == 1);
	lab_deinit(&lab);
}

static void test_session_ends_while_copying(void **state)
{
	pthread_t thread;

	on_gpus(true, false);
	start_held();
	assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
	for (unsigned i = 0; i < 16; i++)
		if (!lab_end(a, i))
			xfer_stop(&a->core, lab_xfer(a, i), DRAY_E_SESSION_CLOSED, NULL, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(a->n_ended, 16);
	assert_int_equal(a->session.slices[DMSG_CLASS_BULK], 0);
	/* all buffers are free again */
	lab_transfer1(a, 100, DMSG_DIRECTION_WRITE, 0, 0, 16 * MIB);
	lab_until(&lab, lab_end(a, 100));
	assert_int_equal(lab_end(a, 100)->code, 0);
	assert_true(lab_equal(b, 0, a->region.memory + 12 * MIB, 4 * MIB));
	lab_deinit(&lab);
}

static void test_cancelled_while_copying(void **state)
{
	on_gpus(true, true);
	start_held();
	for (unsigned i = 0; i < 16; i++)
		xfer_stop(&a->core, lab_xfer(a, i), DRAY_E_CANCELLED, NULL, false);
	assert_true(a->n_ended < 16);
	fake_gpu_hold(false);
	lab_until(&lab, a->n_ended == 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(a->ended[i].code, DRAY_E_CANCELLED);
	lab_deinit(&lab);
}

static void test_peer_down_while_copying(void **state)
{
	pthread_t thread;

	on_gpus(true, false);
	start_held();
	assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
	lab_peer_down(a, DRAY_E_PEER_LOST);
	assert_int_equal(pthread_join(thread, NULL), 0);
	a->down = true;
	assert_int_equal(a->n_gone, 1);
	assert_int_equal(a->n_ended, 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(a->ended[i].code, DRAY_E_PEER_LOST);
	lab_deinit(&lab);
}

/* Without free buffers, transfers of host memory in the same session continue. */
static void test_host_memory_continues(void **state)
{
	uint8_t op[DMSG_OP_SIZE];
	struct xfer_request r = { .request_id = 100,
				  .spec.direction = DMSG_DIRECTION_WRITE,
				  .spec.class = DMSG_CLASS_BULK,
				  .spec.local = HOST_REGION,
				  .spec.remote = LAB_REMOTE,
				  .ops = op,
				  .n_ops = 1 };
	struct dray_err err = DRAY_ERR_NULL;

	on_gpus(true, false);
	start_held();
	host_publish(a);
	memset(host_memory, 0x77, sizeof(host_memory));
	dmsg_op_put(op, &(struct dmsg_op){ 0, 0, HOST_BYTES });
	assert_int_equal(xfer_start(&a->core, &a->session, &r, &err), 0);
	lab_until(&lab, lab_end(a, 100));
	assert_int_equal(lab_end(a, 100)->code, 0);
	assert_int_equal(a->n_ended, 1);
	assert_true(lab_equal(b, 0, host_memory, HOST_BYTES));
	fake_gpu_hold(false);
	lab_until(&lab, a->n_ended == 17);
	lab_deinit(&lab);
	free(host_region);
}

/* A peer that does not answer does not get all buffers. */
static void test_stalled_peer_leaves_buffers(void **state)
{
	struct stage_buffer *left;

	on_gpus(true, false);
	hand_own_start();
	for (unsigned i = 0; i < 8; i++)
		lab_transfer1(&hand.lab.side[0], i, DMSG_DIRECTION_READ, i * MIB, i * MIB, MIB);
	hand_stream(1);
	hand_receive_read(hand.lab.raw_fd[0], 0, MIB);
	lab_settle(&hand.lab);
	left = stage_get(&hand.lab.side[0].core, STAGE_OWN, DMSG_CLASS_BULK, NULL);
	assert_non_null(left);
	stage_put(&hand.lab.side[0].core, left);
	hand_own_finish();
}

/* Transfers that another transport began continue here, however long their slices are. */
static void test_taken_over_slices_are_cut(void **state)
{
	static const uint64_t ops[][3] = { { 1, 9 * MIB, 2 * MIB },
					   { 3 * MIB + 5, 11 * MIB, 1000 },
					   { 4 * MIB, 12 * MIB + 3, 2 * MIB - 1 },
					   { 7 * MIB, 15 * MIB, MIB } };
	static uint8_t bytes[2 * MIB];

	on_gpus(true, true);
	lab_prepare(&lab);
	lab_start(&lab, 16 * MIB, 16);
	lab_fill(a, 0, 8 * MIB, 1);
	lab_fill(b, 8 * MIB, 8 * MIB, 1);
	assert_int_equal(stage_unit(&a->core), MIB);
	for (unsigned i = 0; i < 2; i++) {
		struct slice *s;

		lab_transfer(a, i, i ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE, DMSG_CLASS_BULK,
			     ops, DRAY_ARRAY_SIZE(ops));
		s = sched_next(&a->core, lab_xfer(a, i)->channel, 8 * MIB);
		assert_non_null(s);
		assert_true(s->bytes > 5 * MIB);
		transport_tcp.adopt(&a->core, a->tcp, lab_xfer(a, i)->channel, s);
		lab_until(&lab, lab_end(a, i));
		assert_int_equal(lab_end(a, i)->code, 0);
		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(ops); k++) {
			lab_read(a, ops[k][0], bytes, ops[k][2]);
			assert_true(lab_equal(b, ops[k][1], bytes, ops[k][2]));
		}
		lab_fill(a, 0, 8 * MIB, 3);
	}
	assert_int_equal(a->session.slices[DMSG_CLASS_BULK], 0);
	lab_deinit(&lab);
}

/*
 * The slice keeps its buffer, which is no longer charged to the other transport's account, so that
 * transport may forget the peer first.
 */
static void test_taken_over_buffers_change_account(void **state)
{
	struct stage_account *former = calloc(1, sizeof(*former));
	static uint8_t bytes[MIB];
	struct stage_buffer *buffer;
	struct slice *s;

	on_gpus(true, true);
	lab_prepare(&lab);
	lab_start(&lab, 16 * MIB, 16);
	lab_fill(b, 8 * MIB, MIB, 1);
	lab_transfer1(a, 0, DMSG_DIRECTION_READ, 5, 8 * MIB, MIB);
	s = sched_next(&a->core, lab_xfer(a, 0)->channel, MIB);
	assert_non_null(s);
	assert_non_null(former);
	buffer = stage_get(&a->core, STAGE_OWN, DMSG_CLASS_BULK, former);
	assert_non_null(buffer);
	assert_int_equal(former->held[DMSG_CLASS_BULK], 1);
	s->staged = buffer;
	buffer->holder = s;
	buffer->n_ranges = s->n_local;
	buffer->bytes = s->bytes;
	memcpy(buffer->ranges, s->local, s->n_local * sizeof(s->local[0]));
	transport_tcp.adopt(&a->core, a->tcp, lab_xfer(a, 0)->channel, s);
	assert_int_equal(former->held[DMSG_CLASS_BULK], 0);
	free(former);
	lab_until(&lab, lab_end(a, 0));
	assert_int_equal(lab_end(a, 0)->code, 0);
	lab_read(a, 5, bytes, MIB);
	assert_true(lab_equal(b, 8 * MIB, bytes, MIB));
	lab_deinit(&lab);
}

/* Both sides request more than there are buffers; neither waits for the other for ever. */
static void test_both_out_of_buffers(void **state)
{
	on_gpus(true, true);
	lab_init(&lab, 32 * MIB, 4);
	lab_fill(a, 0, 8 * MIB, 1);
	lab_fill(b, 0, 8 * MIB, 2);
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < 32; k++) {
			uint64_t at = k / 4 * MIB + k % 4 * (MIB / 4);

			lab_transfer1(&lab.side[i], k, DMSG_DIRECTION_WRITE, at, 8 * MIB + at,
				      MIB / 4);
			lab_transfer1(&lab.side[i], 32 + k, DMSG_DIRECTION_READ, 16 * MIB + at, at,
				      MIB / 4);
		}
	lab_until(&lab, a->n_ended == 64 && b->n_ended == 64);
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(a->ended[i].code, 0);
		assert_int_equal(b->ended[i].code, 0);
	}
	for (uint64_t at = 0; at < 8 * MIB; at += 4001) {
		assert_int_equal(*lab_at(b, 8 * MIB + at), lab_pattern(at, 1));
		assert_int_equal(*lab_at(a, 8 * MIB + at), lab_pattern(at, 2));
		assert_int_equal(*lab_at(a, 16 * MIB + at), lab_pattern(at, 2));
		assert_int_equal(*lab_at(b, 16 * MIB + at), lab_pattern(at, 1));
	}
	lab_deinit(&lab);
}

/* Each byte passes through pinned memory once on each side with GPU memory. */
static void test_counted(void **state)
{
	on_gpus(true, true);
	lab_init(&lab, 16 * MIB, 4);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 8 * MIB, 3 * MIB + 1);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 8 * MIB, 0, 2 * MIB);
	lab_until(&lab, a->n_ended == 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(lab_counter(&lab.side[i], DRAY_METRIC_GPU_STAGED_BYTES_TOTAL),
				 5 * MIB + 1);
	lab_deinit(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_in_order),
		cmocka_unit_test(test_unknown_grant_behind_waiting_read),
		cmocka_unit_test(test_frame_of_many_chunks),
		cmocka_unit_test(test_revoke_write),
		cmocka_unit_test(test_revoke_read),
		cmocka_unit_test(test_reset_while_copying),
		cmocka_unit_test(test_owner_loses_device),
		cmocka_unit_test(test_lost_device_is_reported_at_once),
		cmocka_unit_test(test_latency_beside_stalled_bulk),
		cmocka_unit_test(test_importer_loses_device),
		cmocka_unit_test(test_session_ends_while_copying),
		cmocka_unit_test(test_cancelled_while_copying),
		cmocka_unit_test(test_peer_down_while_copying),
		cmocka_unit_test(test_host_memory_continues),
		cmocka_unit_test(test_stalled_peer_leaves_buffers),
		cmocka_unit_test(test_taken_over_slices_are_cut),
		cmocka_unit_test(test_taken_over_buffers_change_account),
		cmocka_unit_test(test_both_out_of_buffers),
		cmocka_unit_test(test_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
