/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importing side of windows. The window is the peer's memory as RDMA devices reach it. The test makes
 * the requested copies between the window and the owner's memory when it chooses.
 */
#include "agent/data/transfer/object.h"
#include "tests/unit/rdma_gpu_fixture.h"

#define WINDOW 7
#define SHARE (16u * UNIT)
#define START (64u << 10) /* offset of the share in the window */
#define ASKS_MAX 64

static struct {
	uint8_t *far;                              /* the owner's memory behind the remote */
	struct rdma_stage_request *asks[ASKS_MAX]; /* unanswered requests, oldest first */
	unsigned n, seen, total;
} owner;

static int window_setup(void **state)
{
	assert_int_equal(gpu_setup(state), 0);
	memset(&owner, 0, sizeof(owner));
	owner.far = calloc(1, BYTES);
	for (unsigned i = 0; i < BYTES; i++)
		owner.far[i] = (uint8_t)(i * 3 + i / 4096);
	owner.seen = lab->rig.n_told;
	lab->from = REGION;
	set_keys(1, 0);
	return 0;
}

static int paths_setup(void **state)
{
	int ret = window_setup(state);

	set_paths(1);
	return ret;
}

static void answer_to(struct rdma_stage_request *ask, uint32_t code)
{
	message_code(RDMA_STAGED, 0, code, ask);
}

static int window_teardown(void **state)
{
	int ret = gpu_teardown(state);

	free(owner.far);
	return ret;
}

/* Gives keys of n rails for this number of bytes. */
static void give_keys(uint64_t id, uint64_t length, unsigned rails, uint64_t keyed)
{
	struct rdma_share *share = calloc(1, sizeof(*share));

	assert_non_null(share);
	*share = (struct rdma_share){ .window = id, .offset = START, .length = length };
	if (rails) {
		share->keys = rail_keys_new(rails);
		for (unsigned r = 0; r < rails; r++)
			share->keys->v[r] = (struct rail_key){ .rail = r,
							       .key = RKEY(r),
							       .base = (uintptr_t)lab->there,
							       .length = keyed };
		rail_keys_seal(share->keys, keyed, false);
	}
	message(RDMA_WINDOW, 0, share);
}

static void give(uint64_t id, uint64_t length, unsigned rails)
{
	give_keys(id, length, rails, BYTES);
}

static struct fake_qp *window_qp(void)
{
	give(WINDOW, SHARE, 2);
	return add_qp(0, DMSG_CLASS_BULK, 256, 0);
}

/* Requests since the last call, kept until they are answered. */
static unsigned hear(void)
{
	for (; owner.seen < lab->rig.n_told; owner.seen++) {
		const struct transport_message *m = &lab->rig.told[owner.seen];
		struct rdma_stage_request *ask = m->arg;

		if (m->transport != DMSG_TRANSPORT_RDMA || m->type != RDMA_STAGE)
			continue;
		assert_true(owner.n < ASKS_MAX);
		assert_int_equal(ask->m.grant, GRANT);
		assert_true(ask->m.offset >= START &&
			    ask->m.offset + ask->m.length <= START + SHARE);
		/* the buffer of a request belongs to no other slice */
		for (unsigned i = 0; i < owner.n; i++)
			assert_true(ask->m.offset + ask->m.length <= owner.asks[i]->m.offset ||
				    owner.asks[i]->m.offset + owner.asks[i]->m.length <=
					    ask->m.offset);
		owner.asks[owner.n++] = ask;
		owner.total++;
	}
	if (lab->rig.n_told > RIG_TOLD_MAX / 2)
		lab->rig.n_told = owner.seen = 0;
	return owner.n;
}

static struct rdma_stage_request *next_ask(void)
{
	struct rdma_stage_request *ask;

	assert_true(hear() > 0);
	ask = owner.asks[0];
	memmove(owner.asks, owner.asks + 1, --owner.n * sizeof(ask));
	return ask;
}

static void copy_for(const struct rdma_stage_request *ask)
{
	uint8_t *at = lab->there + ask->m.offset;

	for (uint32_t i = 0; i < ask->m.segs.n; i++) {
		struct pmsg_seg seg;

		pmsg_seg_get(ask->segs + i * PMSG_SEG_SIZE, &seg);
		assert_true(seg.offset + seg.length <= BYTES);
		if (ask->m.kind == PMSG_STAGE_KIND_SCATTER)
			memcpy(owner.far + seg.offset, at, seg.length);
		else
			memcpy(at, owner.far + seg.offset, seg.length);
		at += seg.length;
	}
	assert_int_equal(at - (lab->there + ask->m.offset), ask->m.length);
}

static void serve_one(void)
{
	struct rdma_stage_request *ask = next_ask();

	copy_for(ask);
	answer_to(ask, 0);
}

static void until_done(unsigned n)
{
	while (lab->rig.n_ended < n) {
		gpu_turn();
		for (unsigned i = 0; i < lab->n_qps; i++)
			run(&lab->qps[i], UINT32_MAX);
		while (hear())
			serve_one();
		sched_yield();
	}
}

static void until_asked(unsigned n)
{
	while (hear() < n) {
		gpu_turn();
		for (unsigned i = 0; i < lab->n_qps; i++)
			run(&lab->qps[i], UINT32_MAX);
		sched_yield();
	}
}

static uint32_t free_buffers(void)
{
	const struct rdma_peer *peer = rdma_peer_get(rdma(), PEER);

	return peer->window->n_free;
}

static uint8_t near_at(uint64_t i)
{
	return lab->from == REGION ? *rig_at(&lab->local, i) : gpu.memory[i];
}

static void both_ways(void)
{
	static const uint64_t ops[][3] = { { 1, 3, 3000001 },
					   { 3500000, 5000003, 65537 },
					   { 4000000, 6000000, 1 } };

	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		submit((enum dmsg_direction)way, ops, 3, false);
		until_done(way == DMSG_DIRECTION_WRITE ? 1 : 2);
		assert_int_equal(last()->code, 0);
		assert_int_equal(gpu.path, DMSG_GPU_PATH_STAGED);
		for (unsigned i = 0; i < 3; i++)
			for (uint64_t k = 0; k < ops[i][2]; k++)
				assert_int_equal(near_at(ops[i][0] + k), owner.far[ops[i][1] + k]);
		for (unsigned i = 0; i < BYTES; i++)
			owner.far[i] ^= 0x5a;
	}
	assert_int_equal(counted(DRAY_METRIC_RDMA_SENT_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_int_equal(free_buffers(), 16);
}

static void test_window(void **state)
{
	window_qp();
	both_ways();
	assert_int_equal(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL), 0);
}

/* Devices know neither side's memory. */
static void test_both_staged(void **state)
{
	lab->from = GPU_REGION;
	staged_on(1);
	window_qp();
	both_ways();
	assert_int_equal(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL), 2 * (3000001 + 65537 + 1));
}

/* Memory that the owner has registered is reached directly. */
static void test_direct_access_is_preferred(void **state)
{
	window_qp();
	set_keys(1, 1);
	write_all(UNIT);
	until_ended(1);
	assert_same(0, 0, UNIT);
	assert_int_equal(hear(), 0);
}

/* The request follows when the bytes are in the owner's memory, and the notification waits for the answer. */
static void test_order(void **state)
{
	struct fake_qp *f = window_qp();

	submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, UNIT } }, 1, true);
	gpu_turn();
	assert_int_equal(f->tail - f->head, 2);
	run(f, 1);
	gpu_turn();
	assert_int_equal(hear(), 0);
	run(f, 1);
	gpu_turn();
	assert_int_equal(lab->flushes, 1);
	assert_int_equal(hear(), 1);
	assert_int_equal(lab->rig.n_notify, 0);
	serve_one();
	assert_int_equal(lab->rig.n_notify, 1);
	xfer_notified(&lab->rig.core, lab->rig.last_notify, 0);
	assert_int_equal(last()->code, 0);
}

/* Bulk leaves some buffers to latency. */
static void test_room_for_latency(void **state)
{
	struct xfer_request r = { .request_id = 999,
				  .spec.direction = DMSG_DIRECTION_READ,
				  .spec.class = DMSG_CLASS_LATENCY,
				  .spec.local = REGION,
				  .spec.remote = REMOTE };
	struct dray_err err = DRAY_ERR_NULL;

	window_qp();
	add_qp(0, DMSG_CLASS_LATENCY, 256, 0);
	move(DMSG_DIRECTION_READ, 0, 0, 32 * UNIT);
	for (unsigned i = 0; i < 4; i++)
		gpu_turn();
	assert_int_equal(hear(), 12);
	assert_int_equal(rig_submit(&lab->rig, &lab->s, &r,
				    (const uint64_t[][3]){ { BYTES / 2, 0, 4096 } }, 1, &err),
			 0);
	gpu_turn();
	assert_int_equal(hear(), 13);
	until_done(2);
	assert_int_equal(last()->code, 0);
}

static void test_refused(void **state)
{
	window_qp();
	move(DMSG_DIRECTION_READ, 0, 0, 4 * UNIT);
	until_asked(4);
	answer_to(next_ask(), DRAY_E_REVOKED);
	assert_int_equal(lab->rig.n_ended, 0);
	until_done(1);
	assert_int_equal(last()->code, DRAY_E_REVOKED);
	assert_int_equal(free_buffers(), 16);
}

/* The owner does not stage this kind of memory: the remote uses the next transport from then on. */
static void test_owner_cannot_stage(void **state)
{
	struct fake_qp *f = window_qp();
	unsigned n = 0;

	lab->spare_open = true;
	move(DMSG_DIRECTION_READ, 0, 0, 4 * UNIT);
	until_asked(4);
	while (hear())
		answer_to(next_ask(), DRAY_E_UNSUPPORTED);
	gpu_turn();
	assert_int_equal(f->tail, 0);
	assert_int_equal(free_buffers(), 16);
	dray_list_for_each(&lab->adopted, s, struct slice, link) {
		assert_null(s->window);
		n++;
	}
	assert_int_equal(n, 4);
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	gpu_turn();
	assert_int_equal(hear(), 0);
	stop_all(DRAY_E_CANCELLED, false);
}

/* A copy cannot be recalled: the slice ends when the answer comes, and goes no further. */
static void test_cancelled_while_requested(void **state)
{
	struct fake_qp *f = window_qp();

	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		unsigned posted, ended = lab->rig.n_ended;

		move((enum dmsg_direction)way, 0, 0, UNIT);
		until_asked(1);
		posted = f->tail;
		stop_all(DRAY_E_CANCELLED, false);
		assert_int_equal(lab->rig.n_ended, ended);
		serve_one();
		gpu_turn();
		assert_int_equal(lab->rig.n_ended, ended + 1);
		assert_int_equal(last()->code, DRAY_E_CANCELLED);
		assert_int_equal(f->tail, posted);
		assert_int_equal(free_buffers(), 16);
	}
}

/* Bytes that arrived in the window after the stop are not copied. */
static void test_cancelled_in_flight(void **state)
{
	struct fake_qp *f = window_qp();

	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	until_posted(f, 2);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 0);
	run(f, UINT32_MAX);
	gpu_turn();
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(hear(), 0);
	assert_int_equal(free_buffers(), 16);
}

/* The session is dead: buffer and remote are held for the answer instead of the slice. */
static void test_urgent_while_requested(void **state)
{
	window_qp();
	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		move((enum dmsg_direction)way, 0, 0, UNIT);
		until_asked(1);
		stop_all(DRAY_E_SESSION_CLOSED, true);
		assert_int_equal(last()->code, DRAY_E_SESSION_CLOSED);
		assert_int_equal(free_buffers(), 15);
		if (way == DMSG_DIRECTION_READ) {
			object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE, DRAY_E_REVOKED,
				    DROP_STOP);
			assert_int_equal(lab->rig.n_dropped, 0);
		}
		serve_one();
		assert_int_equal(free_buffers(), 16);
	}
	assert_int_equal(lab->rig.n_dropped, 1);
}

/* The same while a device uses the buffer. */
static void test_urgent_in_flight(void **state)
{
	struct fake_qp *f = window_qp();

	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	until_posted(f, 2);
	stop_all(DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(last()->code, DRAY_E_SESSION_CLOSED);
	assert_int_equal(free_buffers(), 15);
	run(f, UINT32_MAX);
	gpu_turn();
	assert_int_equal(free_buffers(), 16);
	assert_int_equal(hear(), 0);
}

/* A lost queue pair: the slices continue from their buffers, and are not gathered again. */
static void test_other_rail(void **state)
{
	struct fake_qp *f;

	set_keys(2, 0);
	set_paths(2);
	f = window_qp();
	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		unsigned ended = lab->rig.n_ended, total = owner.total;

		move((enum dmsg_direction)way, 0, 0, 4 * UNIT);
		if (way == DMSG_DIRECTION_READ) {
			until_asked(4);
			while (hear())
				serve_one();
		}
		until_posted(f, 4);
		break_down(f, IBV_WC_RETRY_EXC_ERR);
		gpu_turn();
		assert_true(free_buffers() <= 12);
		message(RDMA_QP_DEAD, way == DMSG_DIRECTION_WRITE ? 1 : 2, NULL);
		f = add_qp(way == DMSG_DIRECTION_WRITE, DMSG_CLASS_BULK, 256, 0);
		until_done(ended + 1);
		assert_int_equal(last()->code, 0);
		assert_int_equal(owner.total, total + 4);
		for (unsigned i = 0; i < 4 * UNIT; i++)
			assert_int_equal(near_at(i), owner.far[i]);
	}
	assert_int_equal(free_buffers(), 16);
}

/* No other rail: what waits for the next queue pair leaves the window to others, and is gathered again. */
static void test_lost_returns_buffers(void **state)
{
	struct fake_qp *f = window_qp();

	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		unsigned ended = lab->rig.n_ended;

		move((enum dmsg_direction)way, 0, 0, 8 * UNIT);
		if (way == DMSG_DIRECTION_READ) {
			until_asked(8);
			while (hear())
				serve_one();
		}
		until_posted(f, 4);
		message(RDMA_QP_LOSE, lab->n_qps, NULL);
		assert_true(free_buffers() <= 14);
		message(RDMA_QP_DEAD, lab->n_qps, NULL);
		for (unsigned i = 0; i < 4; i++)
			gpu_turn();
		assert_int_equal(hear(), 0);
		assert_int_equal(free_buffers(), 16);
		f = add_qp(0, DMSG_CLASS_BULK, 256, 0);
		until_done(ended + 1);
		assert_int_equal(last()->code, 0);
		for (unsigned i = 0; i < 8 * UNIT; i++)
			assert_int_equal(near_at(i), owner.far[i]);
		for (unsigned i = 0; i < BYTES; i++)
			owner.far[i] ^= 0x5a;
	}
}

/* No rail is left: the next transport gets the slices after their answers. */
static void test_no_rail(void **state)
{
	window_qp();
	lab->spare_open = true;
	move(DMSG_DIRECTION_READ, 0, 0, 2 * UNIT);
	until_asked(2);
	message(RDMA_QP_LOSE, 1, NULL);
	message(RDMA_UNREACHABLE, 0, NULL);
	message(RDMA_QP_DEAD, 1, NULL);
	serve_one();
	gpu_turn();
	assert_true(dray_list_empty(&lab->adopted));
	serve_one();
	gpu_turn();
	assert_false(dray_list_empty(&lab->adopted));
	assert_int_equal(free_buffers(), 16);
	stop_all(DRAY_E_CANCELLED, false);
}

static void test_withdrawn(void **state)
{
	struct rdma_peer *peer = rdma_peer_get(rdma(), PEER);

	window_qp();
	lab->spare_open = true;
	move(DMSG_DIRECTION_READ, 0, 0, 32 * UNIT);
	until_asked(4);
	give(WINDOW, 0, 0);
	assert_null(peer->window);
	assert_false(dray_list_empty(&peer->windows));
	for (unsigned i = 0; hear(); i++) {
		if (i % 2)
			answer_to(next_ask(), DRAY_E_NOT_FOUND);
		else
			serve_one();
	}
	for (unsigned i = 0; i < 4; i++)
		gpu_turn();
	assert_false(dray_list_empty(&lab->adopted));
	assert_true(dray_list_empty(&peer->windows));
	assert_int_equal(lab->rig.n_ended, 0);
	stop_all(DRAY_E_CANCELLED, false);
	/* new transfers go there at once */
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	gpu_turn();
	assert_int_equal(hear(), 0);
	stop_all(DRAY_E_CANCELLED, false);
}

/* Another window replaces it: requests that the owner did not carry out for the former one are repeated. */
static void test_replaced(void **state)
{
	struct rdma_stage_request *ask;

	window_qp();
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	until_asked(1);
	ask = next_ask();
	give(WINDOW + 1, SHARE, 1);
	answer_to(ask, DRAY_E_NOT_FOUND);
	until_asked(1);
	assert_int_equal(owner.asks[0]->m.window, WINDOW + 1);
	until_done(1);
	assert_int_equal(last()->code, 0);
	/* without another window the error is the answer */
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	until_asked(1);
	answer_to(next_ask(), DRAY_E_NOT_FOUND);
	assert_int_equal(last()->code, DRAY_E_NOT_FOUND);
}

/* New keys for the same memory do not affect slices in flight. */
static void test_new_keys(void **state)
{
	window_qp();
	move(DMSG_DIRECTION_READ, 0, 0, 4 * UNIT);
	until_asked(4);
	give(WINDOW, SHARE, 1);
	until_done(1);
	assert_int_equal(last()->code, 0);
	assert_int_equal(owner.total, 4);
}

/* The peer is gone when all requests are answered. */
static void test_peer_lost(void **state)
{
	struct core *c = &lab->rig.core;

	window_qp();
	move(DMSG_DIRECTION_READ, 0, 0, 3 * UNIT);
	until_asked(3);
	stop_all(DRAY_E_PEER_LOST, false);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(last()->code, DRAY_E_PEER_LOST);
	message(RDMA_QP_DEAD, 1, NULL);
	while (hear()) {
		assert_int_equal(lab->rig.n_gone, 0);
		answer_to(next_ask(), DRAY_E_PEER_LOST);
	}
	assert_int_equal(lab->rig.n_gone, 1);
	assert_int_equal(lab->rig.n_ended, 1);
}

/* A window that arrives before the paths. */
static void test_before_paths(void **state)
{
	set_keys(1, 1);
	write_all(UNIT);
	give(WINDOW, SHARE, 1);
	set_paths(1);
	add_qp(0, DMSG_CLASS_BULK, 256, 0);
	until_done(1);
	assert_same(0, 0, UNIT);
	assert_int_equal(owner.total, 0);
}

/* A share that is too small for a buffer is not used. */
static void test_tiny(void **state)
{
	lab->spare_open = true;
	give(WINDOW, 4096, 1);
	add_qp(0, DMSG_CLASS_BULK, 256, 0);
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	assert_false(dray_list_empty(&lab->spare.flows));
	give(WINDOW, 16384, 1);
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	until_done(1);
	assert_int_equal(last()->code, 0);
	assert_int_equal(owner.total, 16);
	stop_all(DRAY_E_CANCELLED, false);
}

/* The same window becomes shorter: nothing is posted beyond the bytes of its keys. */
static void test_shorter(void **state)
{
	struct fake_qp *f = window_qp();

	give_keys(WINDOW, 16384, 1, START + 16384);
	move(DMSG_DIRECTION_WRITE, 0, 0, 16 * UNIT);
	until_posted(f, 1);
	stop_all(DRAY_E_CANCELLED, true);
	run(f, UINT32_MAX);
	gpu_turn();
}

/* A slice returns from a lost queue pair after its window was replaced. */
static void test_replaced_while_lost(void **state)
{
	struct fake_qp *f = window_qp();

	lab->spare_open = false;
	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	until_posted(f, 2);
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	gpu_turn();
	give(WINDOW, SHARE, 0);
	give(WINDOW, 0, 0);
	give(WINDOW + 1, SHARE, 1);
	message(RDMA_QP_DEAD, 1, NULL);
	f = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	set_keys(1, 1);
	write_all(UNIT);
	for (unsigned i = 0; i < 2000 && lab->rig.n_ended < 2; i++) {
		gpu_turn();
		for (unsigned q = 0; q < lab->n_qps; q++)
			run(&lab->qps[q], UINT32_MAX);
		while (hear())
			serve_one();
	}
	assert_int_equal(lab->rig.n_ended, 2);
}

static enum { DIRECT, STAGED, WINDOWED } kind_of(const struct posted *p)
{
	uint8_t *to = (uint8_t *)(uintptr_t)p->wr.wr.rdma.remote_addr;
	uint8_t *from = (uint8_t *)(uintptr_t)p->sge[0].addr;

	if (to < lab->there + 2 * SHARE)
		return WINDOWED;
	return (uint64_t)(from - gpu.staging.base) < gpu.staging.bytes ? STAGED : DIRECT;
}

static unsigned count(const struct dray_list *l)
{
	unsigned n = 0;

	dray_list_for_each(l, s, struct slice, link)
		n++;
	return n;
}

/* A queue pair that is always full takes as many slices of each kind. */
static void test_equal_shares(void **state)
{
	struct remote_view registered = lab->remote;
	struct core *c = &lab->rig.core;
	struct rdma_channel *ch = &rdma_peer_get(rdma(), PEER)->channels[DMSG_CLASS_BULK];
	struct fake_qp *f;
	unsigned posted[3] = { 0 };

	registered.o.handle = REMOTE + 100;
	object_publish(c, &registered.o);
	object_set_keys(c, OBJECT_REMOTE, registered.o.handle, remote_keys(1));
	staged_on(1);
	f = window_qp();
	move(DMSG_DIRECTION_WRITE, 0, 0, 32 * UNIT);
	lab->to = registered.o.handle;
	move(DMSG_DIRECTION_WRITE, 0, 4 * SHARE, 32 * UNIT);
	lab->from = GPU_REGION;
	move(DMSG_DIRECTION_WRITE, 0, 4 * SHARE, 32 * UNIT);
	gpu_turn();
	for (unsigned round = 0; round < 7; round++) {
		/* slices are gathered while others are in flight */
		while (count(&ch->ch.ready) < 2) {
			gpu_turn();
			sched_yield();
		}
		while (f->head != f->tail) {
			const struct posted *p = &f->q[f->head % POSTED_MAX];

			if (round && p->wr.opcode == IBV_WR_RDMA_WRITE)
				posted[kind_of(p)]++;
			run(f, 1);
		}
		gpu_turn();
		while (hear())
			serve_one();
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(posted[i], 8);
	until_done(3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, paths_setup, window_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(window),
		TEST(both_staged),
		TEST(direct_access_is_preferred),
		TEST(order),
		TEST(room_for_latency),
		TEST(refused),
		TEST(owner_cannot_stage),
		TEST(cancelled_while_requested),
		TEST(cancelled_in_flight),
		TEST(urgent_while_requested),
		TEST(urgent_in_flight),
		TEST(other_rail),
		TEST(lost_returns_buffers),
		TEST(no_rail),
		TEST(withdrawn),
		TEST(replaced),
		TEST(new_keys),
		TEST(peer_lost),
		TEST(tiny),
		TEST(shorter),
		TEST(replaced_while_lost),
		TEST(equal_shares),
		cmocka_unit_test_setup_teardown(test_before_paths, window_setup, window_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
