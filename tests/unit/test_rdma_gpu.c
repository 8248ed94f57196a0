/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport rdma and GPU memory: staged if devices do not know it, direct if they do. A buffer stays
 * reserved while a device may use it.
 */
#include "tests/unit/rdma_gpu_fixture.h"

static void test_staged(void **state)
{
	static const uint64_t ops[][3] = { { 1, 3, 3000001 },
					   { 3500000, 5000003, 65537 },
					   { 4000000, 6000000, 1 } };

	staged_qp();
	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		submit((enum dmsg_direction)way, ops, 3, false);
		until_ended(way == DMSG_DIRECTION_WRITE ? 1 : 2);
		assert_int_equal(last()->code, 0);
		assert_int_equal(gpu.path, DMSG_GPU_PATH_STAGED);
		for (unsigned i = 0; i < 3; i++)
			assert_memory_equal(gpu.memory + ops[i][0], lab->there + ops[i][1],
					    ops[i][2]);
		for (unsigned i = 0; i < BYTES; i++)
			lab->there[i] ^= 0x5a;
	}
	/* a GPU wrote them: no flush is needed */
	assert_int_equal(fake_gpu_status()->flushes, gpu.flushes);
	assert_int_equal(counted(DRAY_METRIC_RDMA_SENT_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_true(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL) >= 2 * (3000001 + 65537 + 1));
}

static void test_host_beside_gpu(void **state)
{
	staged_qp();
	set_keys(1, 1);
	for (unsigned i = 0; i < 4; i++) {
		lab->from = i % 2 ? REGION : GPU_REGION;
		move(DMSG_DIRECTION_WRITE, 0, i * (BYTES / 4), BYTES / 4);
	}
	until_ended(4);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned k = 0; k < BYTES / 4; k++)
			assert_int_equal(lab->there[i * (BYTES / 4) + k],
					 i % 2 ? *rig_at(&lab->local, k) : gpu.memory[k]);
}

/* Slices wait while other holders have all buffers, and continue afterwards. */
static void test_no_buffers(void **state)
{
	struct core *c = &lab->rig.core;
	struct dray_list got = DRAY_LIST_INIT(got);
	struct fake_qp *f = staged_qp();
	struct stage_buffer *b;

	while ((b = stage_get(c, STAGE_OWN, DMSG_CLASS_LATENCY, NULL)))
		dray_list_add(&got, &b->link);
	move(DMSG_DIRECTION_READ, 0, 0, 4 * UNIT);
	gpu_turn();
	gpu_turn();
	assert_int_equal(f->tail, 0);
	while ((b = dray_list_first(&got, struct stage_buffer, link)))
		stage_put(c, b);
	until_ended(1);
	assert_memory_equal(gpu.memory, lab->there, 4 * UNIT);
}

static void test_not_registered(void **state)
{
	lab->spare_open = true;
	set_paths(1);
	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_LOCAL);
	assert_false(dray_list_empty(&lab->spare.flows));
	staged_on(1);
	set_keys(0, 0);
	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_REMOTE);
	stop_all(DRAY_E_CANCELLED, false);
}

/* The region's registration ends while slices wait: they move to the next transport. */
static void test_registration_ends(void **state)
{
	struct fake_qp *f = staged_qp();

	lab->spare_open = true;
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	staged_on(0);
	assert_false(dray_list_empty(&lab->spare.flows));
	stop_all(DRAY_E_CANCELLED, false);
	staged_on(1);
	move(DMSG_DIRECTION_WRITE, 0, 0, 16 * UNIT);
	until_posted(f, 2);
	staged_on(0);
	while (dray_list_empty(&lab->spare.flows)) {
		run(f, UINT32_MAX);
		gpu_turn();
		sched_yield();
	}
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 2);
}

/* The region is registered with another rail, the one with a queue pair. */
static void test_registered_later(void **state)
{
	staged_on(1);
	set_paths(2);
	add_qp(1, DMSG_CLASS_BULK, 256, 256);
	move(DMSG_DIRECTION_WRITE, 0, 0, 4 * UNIT);
	for (unsigned i = 0; i < 100; i++)
		gpu_turn();
	assert_int_equal(lab->rig.n_ended, 0);
	staged_on(2);
	until_ended(1);
	assert_int_equal(last()->code, 0);
	assert_memory_equal(gpu.memory, lab->there, 4 * UNIT);
}

/*
 * The session is dead while the device still reads the buffers: they are not reused before the
 * device is done.
 */
static void test_urgent_write(void **state)
{
	struct fake_qp *f = staged_qp();
	unsigned left;

	move(DMSG_DIRECTION_WRITE, 0, 0, 2 * UNIT);
	until_posted(f, 2);
	stop_all(DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(last()->code, DRAY_E_SESSION_CLOSED);
	left = buffers_left();
	assert_int_equal(left, OWN - 2);
	run(f, UINT32_MAX);
	gpu_turn();
	assert_memory_equal(gpu.memory, lab->there, 2 * UNIT);
	assert_int_equal(buffers_left(), OWN);
}

/* The same, and the queue pair is lost. */
static void test_urgent_on_lost(void **state)
{
	struct fake_qp *f = staged_qp();

	move(DMSG_DIRECTION_READ, 0, 0, 2 * UNIT);
	until_posted(f, 2);
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	gpu_turn();
	stop_all(DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(last()->code, DRAY_E_SESSION_CLOSED);
	assert_int_equal(buffers_left(), OWN - 2);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(buffers_left(), OWN);
}

/* A READ that was posted before the cancel does not reach the GPU any more. */
static void test_cancelled_read(void **state)
{
	struct fake_qp *f = staged_qp();
	uint8_t before = gpu.memory[0];

	lab->there[0] = (uint8_t)~before;
	move(DMSG_DIRECTION_READ, 0, 0, UNIT);
	until_posted(f, 1);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 0);
	until_ended(1);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(gpu.memory[0], before);
}

/* Stopped while the GPU gathers its bytes: the slice ends with the copy. */
static void test_cancelled_gather(void **state)
{
	struct fake_qp *f = staged_qp();

	fake_gpu_hold(true);
	move(DMSG_DIRECTION_WRITE, 0, 0, UNIT);
	gpu_turn();
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 0);
	fake_gpu_hold(false);
	until_ended(1);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(f->tail, 0);
}

static void test_device_lost(void **state)
{
	staged_qp();
	fake_gpu_hold(true);
	move(DMSG_DIRECTION_WRITE, 0, 0, 4 * UNIT);
	gpu_turn();
	fake_gpu_lose(0, true);
	fake_gpu_hold(false);
	while (!lab->rig.n_ended) {
		lab->rig.core.now_ns = dray_now().ns;
		transport_gpu.tick(&lab->rig.core, gpu_state());
		gpu_turn();
	}
	assert_int_equal(last()->code, DRAY_E_GPU_LOST);
}

static void test_peer_lost(void **state)
{
	struct fake_qp *f = staged_qp();
	struct core *c = &lab->rig.core;

	move(DMSG_DIRECTION_WRITE, 0, 0, 12 * UNIT);
	until_posted(f, 4);
	stop_all(DRAY_E_PEER_LOST, false);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(lab->rig.n_gone, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_PEER_LOST);
	assert_int_equal(lab->rig.n_gone, 1);
}

/* Slices that are posted, gathered or being gathered move to the other queue pair with their buffers. */
static void test_other_rail(void **state)
{
	struct fake_qp *f;

	staged_on(2);
	set_paths(2);
	f = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	move(DMSG_DIRECTION_WRITE, 0, 0, 16 * UNIT);
	until_posted(f, 2);
	fake_gpu_hold(true);
	gpu_turn();
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	gpu_turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	add_qp(1, DMSG_CLASS_BULK, 256, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	fake_gpu_hold(false);
	until_ended(1);
	assert_int_equal(last()->code, 0);
	assert_memory_equal(gpu.memory, lab->there, 16 * UNIT);
}

/* No rail is left: the next transport gets the slices with their buffers, after the copies in flight. */
static void test_no_rail(void **state)
{
	struct fake_qp *f = staged_qp();
	unsigned n = 0;

	lab->spare_open = true;
	move(DMSG_DIRECTION_WRITE, 0, 0, 16 * UNIT);
	until_posted(f, 1);
	fake_gpu_hold(true);
	run(f, 1);
	gpu_turn();
	message(RDMA_QP_LOSE, 1, NULL);
	message(RDMA_UNREACHABLE, 0, NULL);
	message(RDMA_QP_DEAD, 1, NULL);
	fake_gpu_hold(false);
	while (dray_list_empty(&lab->adopted)) {
		gpu_turn();
		sched_yield();
	}
	dray_list_for_each(&lab->adopted, s, struct slice, link) {
		assert_non_null(s->staged);
		assert_false(s->staged->busy);
		assert_memory_equal(s->staged->base, gpu.memory + s->remote[0].offset, s->bytes);
		n++;
	}
	assert_true(n >= 1);
	assert_false(dray_list_empty(&lab->spare.flows));
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
}

static void remote_on_rail_1(struct remote_view *v)
{
	struct rail_keys *k = remote_keys(2);

	*v = lab->remote;
	v->o.handle = REMOTE + 1;
	object_publish(&lab->rig.core, &v->o);
	k->v[0] = k->v[2];
	k->v[1] = k->v[3];
	k->n = 2;
	k->rails = 0;
	rail_keys_seal(k, BYTES, false);
	object_set_keys(&lab->rig.core, OBJECT_REMOTE, REMOTE + 1, k);
}

static void submit_as(struct rig_session *s, dray_handle remote, uint64_t bytes)
{
	static uint64_t id = 1000;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = ++id,
				  .spec.direction = DMSG_DIRECTION_WRITE,
				  .spec.local = GPU_REGION,
				  .spec.remote = remote,
				  .notify = (const uint8_t *)"" };

	assert_int_equal(
		rig_submit(&lab->rig, s, &r, (const uint64_t[][3]){ { 0, 0, bytes } }, 1, &err), 0);
}

/* Memory of one owner is known on a rail that has no queue pair. What waits for it holds no buffers, so another owner goes on; a queue pair ends that, or a cancel. */
static void test_waits_aside_staged(void **state)
{
	static struct remote_view second;
	static struct rig_session other;

	rig_session_init(&lab->rig, &other, SESSION + 1);
	set_keys(2, 1);
	staged_on(2);
	set_paths(2);
	remote_on_rail_1(&second);
	add_qp(1, DMSG_CLASS_BULK, 256, 0);
	submit_as(&lab->s, REMOTE, 16 * UNIT);
	while (!lab->s.xs.slices[DMSG_CLASS_BULK])
		gpu_turn();
	for (unsigned i = 0; i < 3; i++) {
		submit_as(&other, REMOTE + 1, 8 * UNIT);
		until_ended(1 + i);
		assert_int_equal(last()->session, SESSION + 1);
		assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 1);
	}
	assert_memory_equal(gpu.memory, lab->there, 8 * UNIT);
	add_qp(0, DMSG_CLASS_BULK, 256, 0);
	until_ended(4);
	assert_int_equal(last()->code, 0);
	assert_memory_equal(gpu.memory, lab->there, 16 * UNIT);
	/* it is lost */
	message(RDMA_QP_LOSE, 2, NULL);
	message(RDMA_QP_DEAD, 2, NULL);
	submit_as(&lab->s, REMOTE, 16 * UNIT);
	while (!lab->s.xs.slices[DMSG_CLASS_BULK])
		gpu_turn();
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 5);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	/* its rail goes: the next transport gets it, without a buffer */
	lab->spare_open = true;
	submit_as(&lab->s, REMOTE, 16 * UNIT);
	while (!lab->s.xs.slices[DMSG_CLASS_BULK])
		gpu_turn();
	set_keys(2, 0);
	while (dray_list_empty(&lab->adopted))
		gpu_turn();
	assert_null(dray_list_first(&lab->adopted, struct slice, link)->staged);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 6);
	object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
	xfer_session_deinit(&other.xs);
}

/* The only queue pair is lost: what waits for the next one holds no buffers meanwhile, and begins again. */
static void test_lost_returns_buffers(void **state)
{
	static const uint64_t op[1][3] = { { 0, 0, 12 * UNIT } };
	struct fake_qp *f;

	staged_on(1);
	set_paths(1);
	for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ; way++) {
		f = add_qp(0, DMSG_CLASS_BULK, 256, 0);
		submit((enum dmsg_direction)way, op, 1, false);
		until_posted(f, 4);
		message(RDMA_QP_LOSE, lab->n_qps, NULL);
		assert_true(buffers_left() <= OWN - 4);
		message(RDMA_QP_DEAD, lab->n_qps, NULL);
		for (unsigned i = 0; i < 100000 && buffers_left() < OWN; i++) {
			gpu_turn();
			sched_yield();
		}
		assert_int_equal(buffers_left(), OWN);
		add_qp(0, DMSG_CLASS_BULK, 256, 0);
		until_ended(1 + way - DMSG_DIRECTION_WRITE);
		assert_int_equal(last()->code, 0);
		assert_memory_equal(gpu.memory, lab->there, 12 * UNIT);
		memset(lab->there, 0x5a, 12 * UNIT);
		message(RDMA_QP_LOSE, lab->n_qps, NULL);
		message(RDMA_QP_DEAD, lab->n_qps, NULL);
	}
}

static void direct_keys(void)
{
	object_set_keys(&lab->rig.core, OBJECT_REGION, GPU_REGION,
			keys_of(gpu.view->extents[0].base, BYTES, 1));
}

/* The requests name the GPU's addresses; the test moves the bytes there as the devices would. */
static void by_device(struct fake_qp *f)
{
	for (; f->head != f->tail; f->head++) {
		struct posted *p = &f->q[f->head % POSTED_MAX];

		for (int i = 0; i < p->wr.num_sge; i++)
			p->sge[i].addr = (uintptr_t)gpu.memory +
					 (p->sge[i].addr - (uintptr_t)gpu.view->extents[0].base);
		carry_out(f, p);
		complete(f, p, IBV_WC_SUCCESS);
	}
}

static void direct(enum dmsg_direction way)
{
	struct fake_qp *f = &lab->qps[0];
	unsigned ended = lab->rig.n_ended;

	move(way, 0, 0, 4 * UNIT);
	while (lab->rig.n_ended == ended) {
		gpu_turn();
		by_device(f);
	}
	assert_int_equal(gpu.path, DMSG_GPU_PATH_DIRECT);
}

static void test_direct(void **state)
{
	staged_qp();
	direct_keys();
	direct(DMSG_DIRECTION_READ);
	assert_int_equal(last()->code, 0);
	assert_memory_equal(gpu.memory, lab->there, 4 * UNIT);
	/* once, before it ended */
	assert_int_equal(fake_gpu_status()->flushes, gpu.flushes + 1);
	direct(DMSG_DIRECTION_WRITE);
	assert_int_equal(fake_gpu_status()->flushes, gpu.flushes + 1);
	gpu.queues.rdma_ordered = true;
	direct(DMSG_DIRECTION_READ);
	assert_int_equal(fake_gpu_status()->flushes, gpu.flushes + 1);
}

static void test_flush_fails(void **state)
{
	staged_qp();
	direct_keys();
	fake_gpu_lose(0, true);
	direct(DMSG_DIRECTION_READ);
	assert_int_equal(last()->code, DRAY_E_GPU_LOST);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].type, GPU_LOST);
}

static int no_flush(struct gpu_plugin *p, unsigned device)
{
	return -EOPNOTSUPP;
}

/* A driver without flush loses nothing. */
static void test_without_flush(void **state)
{
	struct gpu_plugin_ops ops = gpu_plugin_ops;

	ops.flush_rdma = no_flush;
	gpu.queues.ops = &ops;
	staged_qp();
	direct_keys();
	direct(DMSG_DIRECTION_READ);
	assert_int_equal(last()->code, 0);
	gpu.queues.ops = &gpu_plugin_ops;
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, gpu_setup, gpu_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(staged),
		TEST(host_beside_gpu),
		TEST(no_buffers),
		TEST(not_registered),
		TEST(registration_ends),
		TEST(registered_later),
		TEST(urgent_write),
		TEST(urgent_on_lost),
		TEST(cancelled_read),
		TEST(cancelled_gather),
		TEST(device_lost),
		TEST(peer_lost),
		TEST(other_rail),
		TEST(no_rail),
		TEST(direct),
		TEST(flush_fails),
		TEST(without_flush),
		TEST(waits_aside_staged),
		TEST(lost_returns_buffers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
