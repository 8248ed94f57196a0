/* SPDX-License-Identifier: Apache-2.0 */
/* Transport rdma: posting, completion, and moving transfers when there is no path. */
#include "agent/data/transfer/object.h"
#include "tests/unit/rdma_fixture.h"

static void test_write_and_read(void **state)
{
	static const uint64_t ops[][3] = { { 1, 3, 3000001 },
					   { 3500000, 5000003, 65537 },
					   { 4000000, 6000000, 1 } };

	simple(256);
	submit(DMSG_DIRECTION_WRITE, ops, 3, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_same(ops[i][0], ops[i][1], ops[i][2]);
	memset(lab->there, 0x55, BYTES);
	submit(DMSG_DIRECTION_READ, ops, 3, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_same(ops[i][0], ops[i][1], ops[i][2]);
	assert_int_equal(counted(DRAY_METRIC_RDMA_SENT_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_int_equal(counted(DRAY_METRIC_RDMA_RECEIVED_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_int_equal(lab->rails[0].counters.slices, lab->path.slices);
}

/* Many small operations: one doorbell for many requests, and one completion for each doorbell. */
static void test_lists(void **state)
{
	uint64_t(*ops)[3] = calloc(1024, sizeof(*ops));
	struct fake_qp *f = simple(256);

	for (unsigned i = 0; i < 1024; i++) {
		ops[i][0] = i * 8192;
		ops[i][1] = (1023 - i) * 8192;
		ops[i][2] = 4096;
	}
	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 1024, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 1024; i++)
		assert_same(ops[i][0], ops[i][1], 4096);
	/*
	 * at most two operations cross a border of memory regions at the peer, or of extents here
	 */
	assert_in_range(counted(DRAY_METRIC_RDMA_WORK_REQUESTS_TOTAL), 1024, 1026);
	assert_in_range(f->lists, 16, 17);
	assert_int_equal(counted(DRAY_METRIC_RDMA_COMPLETIONS_TOTAL), f->lists);
	free(ops);
}

struct cost {
	uint64_t posts, requests, completions, polls, arms, inlined;
};

static struct cost cost_now(void)
{
	return (struct cost){ counted(DRAY_METRIC_RDMA_POSTS_TOTAL),
			      counted(DRAY_METRIC_RDMA_WORK_REQUESTS_TOTAL),
			      counted(DRAY_METRIC_RDMA_COMPLETIONS_TOTAL),
			      counted(DRAY_METRIC_RDMA_POLLS_TOTAL),
			      counted(DRAY_METRIC_RDMA_ARMS_TOTAL),
			      counted(DRAY_METRIC_RDMA_INLINED_TOTAL) };
}

/* Runs n transfers to their end, each with a batch of operations that are not adjacent. */
static struct cost cost_of(enum dmsg_direction way, unsigned transfers, unsigned batch,
			   uint64_t bytes)
{
	uint64_t(*ops)[3] = calloc(batch, sizeof(*ops));
	/* behind the first memory region at the peer, so that no request is cut */
	uint64_t first = 3000000 / bytes + 1, slots = BYTES / bytes - first;
	struct cost since = cost_now(), now;

	for (unsigned t = 0; t < transfers; t++) {
		for (unsigned i = 0; i < batch; i++) {
			uint64_t slot = ((uint64_t)t * batch + i) * 2 % (slots | 1);

			ops[i][0] = slot * bytes;
			ops[i][1] = (first + slot % slots) * bytes;
			ops[i][2] = bytes;
		}
		submit(way, (const uint64_t(*)[3])ops, batch, false);
	}
	free(ops);
	run_all();
	now = cost_now();
	return (struct cost){ now.posts - since.posts,
			      now.requests - since.requests,
			      now.completions - since.completions,
			      now.polls - since.polls,
			      now.arms - since.arms,
			      now.inlined - since.inlined };
}

/*
 * One doorbell and one completion for each list of 64 requests, or of 64 KiB if transfers are
 * smaller than a list, whatever the depth of the queue. A full queue pair is polled once for many
 * requests.
 */
static void test_counts(void **state)
{
	static const struct {
		unsigned transfers, batch;
		uint64_t bytes, posts;
	} cases[] = {
		{ 1, 1, 64, 1 },      { 1, 16, 64, 1 },      { 1, 64, 64, 1 },
		{ 1, 256, 64, 4 },    { 1, 1024, 64, 16 },   { 1, 4096, 64, 64 },
		{ 1, 1, 4096, 1 },    { 1, 16, 4096, 1 },    { 1, 64, 4096, 1 },
		{ 1, 256, 4096, 4 },  { 1, 1024, 4096, 16 }, { 1, 4096, 4096, 64 },
		{ 1, 1, 1 << 20, 1 }, { 1, 4, 1 << 20, 4 },  { 64, 1, 64, 1 },
		{ 64, 16, 64, 16 },   { 64, 20, 64, 20 },    { 64, 1, 4096, 4 },
		{ 64, 16, 4096, 64 }, { 64, 64, 64, 64 },    { 8, 1024, 64, 128 },
	};
	static const uint32_t depths[] = { 512, 256, 200 };

	set_keys(1, 1);
	set_paths(1);
	for (unsigned d = 0; d < DRAY_ARRAY_SIZE(depths); d++) {
		add_qp(0, DMSG_CLASS_BULK, depths[d], 64);
		for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++)
			for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ;
			     way++) {
				uint64_t n = cases[i].transfers * cases[i].batch;
				struct cost c = cost_of((enum dmsg_direction)way,
							cases[i].transfers, cases[i].batch,
							cases[i].bytes);

				assert_int_equal(c.requests, n);
				assert_int_equal(c.posts, cases[i].posts);
				assert_int_equal(c.completions, c.posts);
				assert_true(c.polls <= 1 + n / 100);
				assert_int_equal(c.arms, 0);
				assert_int_equal(c.inlined, way == DMSG_DIRECTION_WRITE &&
									    cases[i].bytes <= 64 ?
								    n :
								    0);
			}
		message(RDMA_QP_LOSE, d + 1, NULL);
		message(RDMA_QP_DEAD, d + 1, NULL);
	}
}

/* A queue that is never empty is refilled by whole lists, and polling takes one call. */
static void test_counts_under_way(void **state)
{
	uint64_t(*ops)[3] = scattered(1024);
	struct fake_qp *f = simple(200);
	struct cost c;

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 1024, false);
	turn();
	assert_int_equal(f->lists, 3);
	free(ops);
	for (unsigned i = 0; lab->rig.n_ended == 0; i++) {
		assert_true(i < 1000);
		run(f, 10);
		turn();
	}
	c = cost_now();
	assert_int_equal(c.requests, 1024);
	assert_int_equal(c.posts, 16);
	assert_int_equal(c.completions, 16);
	/* one in each turn with expected completions */
	assert_int_equal(c.polls, 103);
}

/*
 * A range that is contiguous at the peer is gathered from pieces here, as many as the queue pair
 * allows.
 */
static void test_gather(void **state)
{
	uint64_t ops[6][3];
	struct fake_qp *f = simple(64);

	for (unsigned i = 0; i < 6; i++) {
		ops[i][0] = i * 10000;
		ops[i][1] = i * 1000;
		ops[i][2] = 1000;
	}
	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 6, false);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(f->q[0].wr.num_sge, 4);
	assert_int_equal(f->q[1].wr.num_sge, 2);
	run_all();
	for (unsigned i = 0; i < 6; i++)
		assert_same(ops[i][0], ops[i][1], 1000);
}

static void test_inline(void **state)
{
	struct fake_qp *f;

	set_keys(1, 1);
	set_paths(1);
	f = add_qp(0, DMSG_CLASS_BULK, 64, 64);
	write_all(64);
	write_all(65);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 100, 100, 8 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 3);
	assert_true(f->q[0].wr.send_flags & IBV_SEND_INLINE);
	assert_false(f->q[1].wr.send_flags & IBV_SEND_INLINE);
	assert_false(f->q[2].wr.send_flags & IBV_SEND_INLINE);
	assert_int_equal(f->lists, 1);
	/* the posted bytes count */
	*rig_at(&lab->local, 0) ^= 0xff;
	run(f, 1);
	assert_int_equal(lab->there[0] ^ 0xff, *rig_at(&lab->local, 0));
	run_all();
	assert_int_equal(lab->rig.n_ended, 3);
}

/* A slice with more requests than the queue holds is posted in parts. */
static void test_shallow_queue(void **state)
{
	uint64_t(*ops)[3] = scattered(200);
	struct fake_qp *f = simple(16);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 200, false);
	turn();
	assert_int_equal(f->tail - f->head, 16);
	while (lab->rig.n_ended == 0) {
		assert_true(f->tail - f->head <= 16);
		assert_true(run(f, UINT32_MAX) > 0);
		turn();
	}
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 200; i++)
		assert_same(ops[i][0], ops[i][1], 100);
	free(ops);
}

/* The notification waits for a read that was queued behind the bytes. */
static void test_flush_before_notification(void **state)
{
	struct fake_qp *f = simple(64);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, true);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(f->q[1].wr.opcode, IBV_WR_RDMA_READ);
	/* a read of the last written byte, in any kind of memory */
	assert_int_equal(f->q[1].wr.wr.rdma.remote_addr, (uintptr_t)lab->there + 99);
	assert_int_equal(f->q[1].wr.wr.rdma.rkey, RKEY(0));
	assert_int_equal(f->q[1].sge[0].length, 1);
	run(f, 1);
	turn();
	assert_int_equal(lab->rig.n_notify, 0);
	run(f, 1);
	turn();
	assert_int_equal(lab->rig.n_notify, 1);
	assert_int_equal(lab->flushes, 1);
	xfer_notified(&lab->rig.core, lab->rig.last_notify, 0);
	assert_int_equal(last()->code, 0);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, true);
	run_all();
	assert_int_equal(lab->flushes, 1);
	xfer_notified(&lab->rig.core, lab->rig.last_notify, 0);
}

/* A device that completes a read without its bytes fails the queue pair later: the read is done again. */
static void test_confirmed_reads(void **state)
{
	struct fake_qp *f, *g;

	lab->soft_roce = true;
	f = simple(64);
	g = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	memset(lab->there, 0x55, 4096);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 4096 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(g->tail, 0);
	assert_false(f->q[0].wr.send_flags & IBV_SEND_SIGNALED);
	assert_int_equal(f->q[1].wr.wr.rdma.rkey, FLUSH_KEY);
	/* without its bytes */
	complete(f, &f->q[f->head++], IBV_WC_SUCCESS);
	break_down(f, IBV_WC_WR_FLUSH_ERR);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(g->tail, 2);
	assert_int_equal(last()->code, 0);
	assert_same(0, 0, 4096);
}

/* On Soft-RoCE nothing is posted while reads are in flight, and no read while other requests are. */
static void test_reads_alone(void **state)
{
	struct fake_qp *f;

	lab->soft_roce = true;
	f = simple(256);
	write_all(2 << 20);
	turn();
	assert_int_equal(f->tail, 2);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 2 << 20 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 2);
	run(f, 1);
	turn();
	assert_int_equal(f->tail, 2);
	run(f, 1);
	turn();
	/* both slices, each with its confirming read, and one completion for all */
	assert_int_equal(f->tail, 6);
	for (unsigned i = 2; i < 6; i++)
		assert_int_equal(f->q[i].wr.send_flags & IBV_SEND_SIGNALED ? 1 : 0, i == 5);
	write_all(100);
	run(f, 3);
	turn();
	assert_int_equal(f->tail, 6);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(lab->rig.n_ended, 3);
	assert_same(0, 0, 2 << 20);
}

/* On Soft-RoCE neither small writes nor small reads join the list of the others. */
static void test_no_mixed_lists(void **state)
{
	struct fake_qp *f;

	lab->soft_roce = true;
	f = simple(256);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, false);
	write_all(100);
	turn();
	/* the read and its confirming read */
	assert_int_equal(f->tail, 2);
	run(f, 2);
	turn();
	assert_int_equal(f->tail, 3);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, false);
	write_all(100);
	turn();
	assert_int_equal(f->tail, 3);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(lab->rig.n_ended, 4);
}

/* A slice of many requests is posted list by list. */
static void test_scattered_reads_alone(void **state)
{
	enum { N = 3 * RDMA_LIST };
	uint64_t(*ops)[3] = scattered(N);
	struct fake_qp *f;

	lab->soft_roce = true;
	f = simple(1024);
	submit(DMSG_DIRECTION_READ, (const uint64_t(*)[3])ops, N, false);
	turn();
	assert_true(f->tail > 0 && f->tail <= RDMA_LIST);
	while (lab->rig.n_ended == 0) {
		unsigned before = f->tail;

		assert_true(run(f, UINT32_MAX) > 0);
		turn();
		assert_true(f->tail - before <= RDMA_LIST);
	}
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < N; i++)
		assert_same(ops[i][0], ops[i][1], 100);
	free(ops);
}

static void test_spread(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 2);
	set_paths(2);
	a = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(2 << 20);
	turn();
	assert_int_equal(a->tail, 1);
	assert_int_equal(b->tail, 1);
	run_all();
	write_all(BYTES);
	run_all();
	assert_same(0, 0, BYTES);
	assert_int_equal(lab->rails[0].counters.sent + lab->rails[1].counters.sent,
			 BYTES + (2 << 20));
	assert_true(lab->rails[1].counters.sent >= 2 << 20);
	/* each rail has had work requests in flight for some time */
	assert_true(lab->rails[0].counters.moving_ns > 0);
	assert_true(lab->rails[1].counters.moving_ns > 0);
}

/* Keys on one rail only: the other one is not used. */
static void test_keys_decide(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 1);
	set_paths(2);
	a = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	write_all(4 << 20);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(a->tail, 0);
	assert_true(b->tail > 0);
}

/* Publishes another remote of the same peer, with keys of rail 1 alone. */
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

static void submit_as(struct rig_session *s, enum dmsg_direction way, dray_handle remote,
		      uint64_t bytes)
{
	static uint64_t id = 1000;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = ++id,
				  .spec.direction = (uint8_t)way,
				  .spec.local = REGION,
				  .spec.remote = remote,
				  .notify = (const uint8_t *)"" };

	assert_int_equal(
		rig_submit(&lab->rig, s, &r, (const uint64_t[][3]){ { 0, 0, bytes } }, 1, &err), 0);
}

/*
 * Memory of one owner is known on a rail that has no queue pair yet. What waits for it holds up no other owner, has one slice of its session
 * and wakes nothing up; a queue pair does, a cancel ends it, and peers and keys that go do, too.
 */
static void test_waits_aside(void **state)
{
	struct core *c = &lab->rig.core;
	struct remote_view second;
	struct rig_session other;
	struct fake_qp *f, *g;
	unsigned polls;

	rig_session_init(&lab->rig, &other, SESSION + 1);
	set_keys(2, 1);
	set_paths(2);
	remote_on_rail_1(&second);
	f = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(4 << 20);
	write_all(100);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 1 << 20);
	turn();
	assert_int_equal(f->tail, 1);
	assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 1);
	run(f, 1);
	turn();
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(last()->session, SESSION + 1);
	/* each completion looks once, takes nothing more of that session, and then nothing is left to do */
	for (unsigned i = 0; i < 3; i++) {
		submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
		run_all();
		assert_int_equal(lab->rig.n_ended, 2 + i);
		assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 1);
		polls = (unsigned)counted(DRAY_METRIC_RDMA_POLLS_TOTAL);
		assert_false(transport_rdma.announce(c, rdma()));
		assert_int_equal(counted(DRAY_METRIC_RDMA_POLLS_TOTAL), polls);
	}
	g = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	run_all();
	assert_int_equal(lab->rig.n_ended, 6);
	assert_true(g->tail >= 5);
	assert_same(0, 0, 4 << 20);
	/* it is lost: what waits ends by a cancel, at once */
	message(RDMA_QP_LOSE, 2, NULL);
	message(RDMA_QP_DEAD, 2, NULL);
	write_all(4 << 20);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
	turn();
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 7);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	run_all();
	assert_int_equal(lab->rig.n_ended, 8);
	/* and moves with the paths */
	lab->spare_open = true;
	write_all(4 << 20);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
	run_all();
	set_keys(2, 0);
	run_all();
	assert_false(dray_list_empty(&lab->spare.flows));
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 10);
	assert_int_equal(other.xs.slices[DMSG_CLASS_BULK], 0);
	object_drop(c, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
	xfer_session_deinit(&other.xs);
}

/* Sessions whose slices wait for a queue pair are not looked at while others go on, and all continue with it. */
static void test_many_wait(void **state)
{
	enum { N = 50 };
	struct rdma_channel *ch = &rdma_peer_get(rdma(), PEER)->channels[DMSG_CLASS_BULK];
	struct rig_session *s = calloc(N + 1, sizeof(*s));
	struct remote_view second;
	unsigned ended;

	for (unsigned i = 0; i <= N; i++)
		rig_session_init(&lab->rig, &s[i], SESSION + 1 + i);
	set_keys(2, 1);
	set_paths(2);
	remote_on_rail_1(&second);
	add_qp(1, DMSG_CLASS_BULK, 256, 0);
	for (unsigned i = 0; i < N; i++)
		submit_as(&s[i], DMSG_DIRECTION_WRITE, REMOTE, 100);
	for (unsigned i = 0; i < 3; i++) {
		submit_as(&s[N], DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
		/* another transfer of a session that waits gets no slice, not even if its flow was empty */
		submit_as(&s[i], DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
		run_all();
		assert_int_equal(lab->rig.n_ended, 1 + i);
		assert_int_equal(s[i].xs.slices[DMSG_CLASS_BULK], 1);
		assert_true(dray_list_empty(&ch->ch.retry));
		assert_int_equal(dray_list_length(&ch->parked), N);
	}
	/* the end of one of them lets its session go on, and the others wait as before */
	dray_list_for_each(&s[0].xs.xfers, x, struct xfer, session_link)
		if (object_remote(x->remote)->o.handle == REMOTE)
			xfer_stop(&lab->rig.core, x, DRAY_E_CANCELLED, NULL, false);
	run_all();
	assert_int_equal(lab->rig.n_ended, 3 + 2);
	assert_true(dray_list_empty(&ch->ch.retry));
	assert_int_equal(dray_list_length(&ch->parked), N - 1);
	ended = lab->rig.n_ended;
	add_qp(0, DMSG_CLASS_BULK, 256, 0);
	run_all();
	assert_int_equal(lab->rig.n_ended, ended + N - 1 + 2);
	assert_true(dray_list_empty(&ch->parked) && dray_list_empty(&ch->parked_flows));
	object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
	for (unsigned i = 0; i <= N; i++)
		xfer_session_deinit(&s[i].xs);
	free(s);
}

/* A session whose slice waits goes on when that slice moves to the next transport, although nothing is in flight here. */
static void test_goes_on_behind_what_moves(void **state)
{
	struct remote_view second;
	struct fake_qp *f;

	set_keys(2, 1);
	set_paths(2);
	remote_on_rail_1(&second);
	f = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(100);
	submit_as(&lab->s, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
	turn();
	assert_int_equal(f->tail, 0);
	lab->spare_open = true;
	message(RDMA_PATH_UNREACHABLE, rdma_path_id(0, DMSG_CLASS_BULK), NULL);
	assert_false(dray_list_empty(&lab->adopted));
	turn();
	assert_int_equal(f->tail, 1);
	run_all();
	assert_int_equal(lab->rig.n_ended, 1);
	stop_all(DRAY_E_CANCELLED, false);
	object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
}

/* The same beside a rail that is busy. It takes nothing more behind the slice that waits for it: on Soft-RoCE a read waits for its end. */
static void test_waits_aside_of_writes(void **state)
{
	struct remote_view second;
	struct rig_session other;
	struct fake_qp *f, *g;

	lab->soft_roce = true;
	rig_session_init(&lab->rig, &other, SESSION + 1);
	set_keys(2, 1);
	set_paths(2);
	remote_on_rail_1(&second);
	f = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	g = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(1 << 20);
	write_all(1 << 20);
	turn();
	assert_int_equal(f->tail, 2);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, false);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE, 100);
	submit_as(&lab->s, DMSG_DIRECTION_WRITE, REMOTE, 100);
	turn();
	assert_int_equal(f->tail, 2);
	run(f, 1);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE, 100);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(g->tail, 0);
	run(f, 1);
	turn();
	/* the read and its confirming read */
	assert_int_equal(f->tail, 4);
	assert_int_equal(f->q[2].wr.opcode, IBV_WR_RDMA_READ);
	run_all();
	assert_int_equal(lab->rig.n_ended, 6);
	object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
	xfer_session_deinit(&other.xs);
}

static void test_arm(void **state)
{
	struct core *c = &lab->rig.core;
	struct fake_qp *f = simple(64);

	/* a new queue pair is polled first */
	assert_true(transport_rdma.announce(c, rdma()));
	turn();
	assert_false(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rails[0].armed, 0);
	write_all(100);
	turn();
	assert_false(transport_rdma.announce(c, rdma()));
	assert_false(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rails[0].armed, 1);
	run(f, 1);
	/* the completion came before the event was requested: the worker must not sleep */
	assert_true(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rig.n_ended, 1);
}

static void test_error_moves_slices(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 2);
	set_paths(2);
	a = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(BYTES);
	turn();
	run(a, 1);
	break_down(a, IBV_WC_RETRY_EXC_ERR);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, IBV_WC_RETRY_EXC_ERR);
	while (run(b, UINT32_MAX))
		turn();
	/* slices in flight on the lost one may still arrive: the transfer has not ended */
	assert_int_equal(lab->rig.n_ended, 0);
	assert_int_equal(counted(DRAY_METRIC_SLICES_RESENT_TOTAL), 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_same(0, 0, BYTES);
	assert_true(counted(DRAY_METRIC_SLICES_RESENT_TOTAL) > 0);
	assert_int_equal(counted(DRAY_METRIC_SLICES_RESENT_TOTAL),
			 counted(DRAY_METRIC_RDMA_FAILOVERS_TOTAL));
	assert_int_equal(lab->path.failovers, counted(DRAY_METRIC_RDMA_FAILOVERS_TOTAL));
	/* late completions of the dead queue pair are ignored */
	lab->rails[0].wc[lab->rails[0].n_wc++] =
		(struct ibv_wc){ .wr_id = 77, .status = IBV_WC_WR_FLUSH_ERR };
	turn();
}

static void test_post_refused(void **state)
{
	struct fake_qp *a = simple(64), *b;

	a->fail = ENOMEM;
	write_all(100);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_POST);
	b = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(b->tail, 1);
}

static void test_timeout(void **state)
{
	struct core *c = &lab->rig.core;

	simple(64);
	write_all(100);
	turn();
	assert_true(transport_rdma.tick(c, rdma()) <= c->now_ns + c->cfg.slice_timeout_ns);
	c->now_ns += c->cfg.slice_timeout_ns + 1;
	transport_rdma.tick(c, rdma());
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_TIMEOUT);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
}

static void test_cancel(void **state)
{
	struct fake_qp *f = simple(64);

	write_all(BYTES);
	turn();
	stop_all(DRAY_E_CANCELLED, false);
	/* four slices are posted */
	assert_int_equal(lab->rig.n_ended, 0);
	run_all();
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(f->tail, f->head);
	assert_true(last()->bytes < BYTES);
}

/* A cancel in the middle of a slice that is posted in parts. */
static void test_cancel_partial(void **state)
{
	uint64_t(*ops)[3] = scattered(200);
	struct fake_qp *f = simple(16);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 200, false);
	turn();
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 0);
	run(f, UINT32_MAX);
	turn();
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(f->tail, 16);
	free(ops);
}

static bool gone;

static void keys_gone(void *arg)
{
	(void)arg;
	gone = true;
}

/* The session is dead: its transfers end at once; keys and remote are released when the device is done. */
static void test_urgent(void **state)
{
	struct core *c = &lab->rig.core;
	struct rail_keys *k;
	struct fake_qp *f;

	set_keys(1, 1);
	set_paths(1);
	k = local_keys(1);
	k->gone = keys_gone;
	gone = false;
	object_set_keys(c, OBJECT_REGION, REGION, k);
	f = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	write_all(2 << 20);
	turn();
	stop_all(DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 0);
	object_drop(c, OBJECT_REGION, REGION, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	assert_int_equal(lab->rig.n_dropped, 1);
	assert_int_equal(lab->rig.last_dropped, REGION);
	assert_false(gone);
	run(f, UINT32_MAX);
	turn();
	assert_int_equal(lab->rig.n_dropped, 2);
	assert_int_equal(lab->rig.last_dropped, REMOTE);
	assert_true(gone);
}

/*
 * The session that made the remote is dead, and a transfer of another member of its group uses it: that session learns of
 * the end when the device no longer writes to its memory.
 */
static void test_urgent_for_another_session(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 1 << 20 } };
	struct fake_qp *f = simple(64);

	lab->remote.o.session = SESSION + 1;
	submit(DMSG_DIRECTION_READ, op, 1, false);
	turn();
	object_drop(&lab->rig.core, OBJECT_REMOTE, REMOTE, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	assert_int_equal(lab->rig.n_ended, 0);
	run(f, UINT32_MAX);
	turn();
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(last()->code, DRAY_E_SESSION_CLOSED);
	assert_int_equal(lab->rig.n_dropped, 1);
	assert_int_equal(lab->rig.last_dropped, REMOTE);
}

static void test_peer_down(void **state)
{
	struct core *c = &lab->rig.core;

	simple(64);
	write_all(BYTES);
	turn();
	stop_all(DRAY_E_PEER_LOST, false);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_gone, 0);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(lab->rig.n_gone, 1);
	assert_int_equal(last()->code, DRAY_E_PEER_LOST);
	/* completions of a freed queue pair are ignored */
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_UNUSED);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(lab->rig.n_gone, 2);
}

static void test_waits_for_paths(void **state)
{
	set_keys(1, 1);
	write_all(100);
	turn();
	assert_int_equal(lab->rig.n_ended, 0);
	assert_int_equal(told(RDMA_WANTED), 0);
	set_paths(1);
	assert_int_equal(told(RDMA_WANTED), 1);
	write_all(100);
	assert_int_equal(told(RDMA_WANTED), 1);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	run_all();
	assert_int_equal(lab->rig.n_ended, 2);
	assert_int_equal(last()->code, 0);
}

static void test_no_path(void **state)
{
	lab->spare_open = true;
	set_keys(1, 1);
	write_all(100);
	assert_true(dray_list_empty(&lab->spare.flows));
	set_paths(0);
	assert_false(dray_list_empty(&lab->spare.flows));
	/* the next transfers go there at once, and the reason is reported once */
	write_all(100);
	write_all(100);
	assert_int_equal(told(RDMA_FALLBACK), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_PATHS);
	stop_all(DRAY_E_CANCELLED, false);
}

static void test_reasons(void **state)
{
	lab->spare_open = true;
	set_paths(2);
	/* memory of the store, which is not registered, says nothing of regions */
	lab->own = true;
	write_all(100);
	assert_int_equal(told(RDMA_FALLBACK), 0);
	lab->own = false;
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_LOCAL);
	set_keys(1, 0);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_REMOTE);
	set_keys(1, 1);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 2].code, RDMA_FALLBACK_NONE);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].type, RDMA_WANTED);
	message(RDMA_UNREACHABLE, 0, NULL);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_UNREACHABLE);
	stop_all(DRAY_E_CANCELLED, false);
}

/* A transfer that is partly done and partly in flight moves as a whole. */
static void test_moves_to_next_transport(void **state)
{
	struct fake_qp *f = simple(64);

	lab->spare_open = true;
	write_all(BYTES);
	turn();
	run(f, 1);
	turn();
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	turn();
	message(RDMA_UNREACHABLE, 0, NULL);
	assert_true(dray_list_empty(&lab->adopted));
	message(RDMA_QP_DEAD, 1, NULL);
	assert_false(dray_list_empty(&lab->adopted));
	assert_false(dray_list_empty(&lab->spare.flows));
	assert_int_equal(lab->rig.n_ended, 0);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
}

/* The memory of one owner is known only on a rail whose queue pairs fail, and another rail works: its transfers do not wait for the first one. */
static void test_path_fails_beside_another(void **state)
{
	struct core *c = &lab->rig.core;
	struct remote_view second;
	struct rig_session other;
	struct fake_qp *a, *b;

	rig_session_init(&lab->rig, &other, SESSION + 1);
	set_keys(2, 1);
	set_paths(2);
	remote_on_rail_1(&second);
	a = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	lab->spare_open = true;
	/* one of its slices is in flight on the queue pair that fails, others wait */
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, BYTES);
	turn();
	assert_true(b->tail > 0);
	break_down(b, IBV_WC_RETRY_EXC_ERR);
	turn();
	message(RDMA_PATH_UNREACHABLE, rdma_path_id(1, DMSG_CLASS_LATENCY), NULL);
	message(RDMA_PATH_UNREACHABLE, rdma_path_id(0, DMSG_CLASS_LATENCY), NULL);
	message(RDMA_QP_DEAD, 2, NULL);
	turn();
	assert_true(dray_list_empty(&lab->spare.flows));
	message(RDMA_PATH_UNREACHABLE, rdma_path_id(1, DMSG_CLASS_BULK), NULL);
	assert_false(dray_list_empty(&lab->spare.flows));
	assert_false(dray_list_empty(&lab->adopted));
	assert_int_equal(lab->rig.n_ended, 0);
	/* the other rail is used, and new transfers need not wait for the first one either */
	write_all(100);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_UNREACHABLE);
	run_all();
	assert_int_equal(a->tail, 1);
	assert_int_equal(lab->rig.n_ended, 1);
	/* it works again */
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	submit_as(&other, DMSG_DIRECTION_WRITE, REMOTE + 1, 100);
	run_all();
	assert_int_equal(b->tail, 1);
	assert_int_equal(lab->rig.n_ended, 2);
	dray_list_for_each(&other.xs.xfers, x, struct xfer, session_link)
		xfer_stop(c, x, DRAY_E_CANCELLED, NULL, false);
	assert_int_equal(other.xs.slices[DMSG_CLASS_BULK], 0);
	object_drop(c, OBJECT_REMOTE, REMOTE + 1, DRAY_E_REVOKED, DROP_STOP);
	xfer_session_deinit(&other.xs);
}

static void test_no_other_transport(void **state)
{
	simple(64);
	write_all(BYTES);
	turn();
	message(RDMA_QP_LOSE, 1, NULL);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_COMMAND);
	message(RDMA_QP_LOSE, 1, NULL);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	message(RDMA_UNREACHABLE, 0, NULL);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
}

static void tick_at(int64_t ns)
{
	lab->rig.core.now_ns = ns;
	transport_rdma.tick(&lab->rig.core, rdma());
}

/* Reads that stop end when the queue pair is destroyed here; what they have read from, when it is at the peer. Writes may still arrive. */
static void test_quiet(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 1 << 20 } };
	struct core *c = &lab->rig.core;
	uint64_t first, second;

	simple(64);
	first = submit(DMSG_DIRECTION_READ, op, 1, false);
	second = submit(DMSG_DIRECTION_READ, op, 1, false);
	submit(DMSG_DIRECTION_WRITE, op, 1, false);
	turn();
	/* it is not lost, so it may not be destroyed */
	message(RDMA_QP_QUIET, 1, NULL);
	xfer_stop(c, xfer_find(&lab->s.xs, first), DRAY_E_TIMEOUT, NULL, false);
	assert_int_equal(lab->rig.n_ended, 0);
	object_hasten_within(c, object_get(c, OBJECT_REMOTE, REMOTE), 100);
	tick_at(c->now_ns + 99);
	assert_int_equal(told(RDMA_QP_LOST), 0);
	tick_at(c->now_ns + 1);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_QUIET, 1, NULL);
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(last()->code, DRAY_E_TIMEOUT);
	/* one that stops later */
	xfer_stop(c, xfer_find(&lab->s.xs, second), DRAY_E_CANCELLED, NULL, false);
	assert_int_equal(lab->rig.n_ended, 2);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 2);
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_REVOKED, DROP_STOP);
	assert_int_equal(lab->rig.n_dropped, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(lab->rig.n_ended, 3);
	assert_int_equal(lab->rig.n_dropped, 1);
}

/*
 * The owner fences a remote while a device is silent: long before transfer.slice_timeout the queue pair is lost, so that the owner, which
 * waits for peer.fence_timeout, is answered and keeps the connection.
 */
static void test_fence_beside_a_silent_device(void **state)
{
	struct core *c = &lab->rig.core;
	int64_t fenced_ns;

	c->cfg.fence_timeout_ns = c->cfg.slice_timeout_ns / 2;
	simple(64);
	write_all(100);
	turn();
	fenced_ns = c->now_ns += 10;
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_REVOKED, DROP_STOP);
	tick_at(fenced_ns + c->cfg.fence_timeout_ns / 2 - 1);
	assert_int_equal(told(RDMA_QP_LOST), 0);
	tick_at(fenced_ns + c->cfg.fence_timeout_ns / 2);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_TIMEOUT);
	assert_int_equal(lab->rig.n_dropped, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_REVOKED);
	assert_int_equal(lab->rig.n_dropped, 1);
}

/* The same after the transfer has ended, and while another one goes on on another queue pair, which stays. */
static void test_fence_after_an_urgent_stop(void **state)
{
	struct core *c = &lab->rig.core;
	int64_t fenced_ns;

	c->cfg.fence_timeout_ns = c->cfg.slice_timeout_ns / 2;
	simple(64);
	add_qp(0, DMSG_CLASS_LATENCY, 64, 0);
	write_all(100);
	turn();
	stop_all(DRAY_E_CANCELLED, true);
	assert_int_equal(lab->rig.n_ended, 1);
	fenced_ns = c->now_ns += 10;
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_REVOKED, DROP_STOP);
	tick_at(fenced_ns + c->cfg.fence_timeout_ns / 2);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_dropped, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(lab->rig.n_dropped, 1);
}

/* The same when the owner withdraws only the keys: the work request, which uses them, ends in time for the answer to REKEY. */
static void test_rekey_beside_a_silent_device(void **state)
{
	struct core *c = &lab->rig.core;
	struct rail_keys *keys;
	int64_t withdrawn_ns;

	c->cfg.fence_timeout_ns = c->cfg.slice_timeout_ns / 2;
	simple(64);
	keys = rail_keys_ref(object_get(c, OBJECT_REMOTE, REMOTE)->keys);
	write_all(100);
	turn();
	withdrawn_ns = c->now_ns += 10;
	object_set_keys(c, OBJECT_REMOTE, REMOTE, NULL);
	tick_at(withdrawn_ns + c->cfg.fence_timeout_ns / 2 - 1);
	assert_int_equal(told(RDMA_QP_LOST), 0);
	assert_false(rail_keys_is_last(keys));
	tick_at(withdrawn_ns + c->cfg.fence_timeout_ns / 2);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_true(rail_keys_is_last(keys));
	rail_keys_unref(keys);
	stop_all(DRAY_E_CANCELLED, false);
}

/*
 * The same of a slice that is posted in parts, also of those that are posted later. One that has no part posted yet begins with the keys
 * that are there then, so that the former ones are in use only as long as others' work requests are.
 */
static void test_rekey_of_a_partial_slice(void **state)
{
	struct core *c = &lab->rig.core;
	struct fake_qp *f = simple(4);
	struct rail_keys *keys;
	int64_t withdrawn_ns;

	c->cfg.fence_timeout_ns = c->cfg.slice_timeout_ns / 2;
	keys = rail_keys_ref(object_get(c, OBJECT_REMOTE, REMOTE)->keys);
	write_all(BYTES);
	turn();
	withdrawn_ns = c->now_ns += 10;
	object_set_keys(c, OBJECT_REMOTE, REMOTE, NULL);
	run(f, 1);
	turn();
	assert_false(rail_keys_is_last(keys));
	tick_at(withdrawn_ns + c->cfg.fence_timeout_ns / 2 - 1);
	assert_int_equal(told(RDMA_QP_LOST), 0);
	tick_at(withdrawn_ns + c->cfg.fence_timeout_ns / 2);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_true(rail_keys_is_last(keys));
	rail_keys_unref(keys);
	stop_all(DRAY_E_CANCELLED, false);
}

/* Slices that wait when the keys go move to another transport; when others come first, they go on. Either side's keys may go. */
static void test_keys_go_and_come(void **state)
{
	static const unsigned left[][2] = { { 1, 0 }, { 0, 1 } };

	simple(64);
	for (unsigned i = 0; i < 2; i++) {
		write_all(BYTES);
		turn();
		set_keys(left[i][0], left[i][1]);
		set_keys(1, 1);
		run_all();
		assert_int_equal(lab->rig.n_ended, i + 1);
		assert_int_equal(last()->code, 0);
	}
	lab->spare_open = true;
	write_all(BYTES);
	turn();
	set_keys(1, 0);
	run_all();
	assert_false(dray_list_empty(&lab->spare.flows));
	stop_all(DRAY_E_CANCELLED, false);
}

/* What a session releases itself has the usual time. */
static void test_release_beside_a_silent_device(void **state)
{
	struct core *c = &lab->rig.core;
	int64_t posted_ns;

	c->cfg.fence_timeout_ns = c->cfg.slice_timeout_ns / 2;
	simple(64);
	write_all(100);
	turn();
	posted_ns = c->now_ns;
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_CANCELLED, DROP_STOP);
	tick_at(posted_ns + c->cfg.slice_timeout_ns - 1);
	assert_int_equal(told(RDMA_QP_LOST), 0);
	tick_at(posted_ns + c->cfg.slice_timeout_ns);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
}

static void test_rail_down(void **state)
{
	simple(64);
	write_all(100);
	run_all();
	message(RDMA_QP_LOSE, 1, NULL);
	message(RDMA_QP_DEAD, 1, NULL);
	message(RDMA_RAIL_DOWN, 0, NULL);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].type, RDMA_RAIL_GONE);
	message(RDMA_RAIL_UP, 0, &lab->rails[0].for_worker);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	write_all(100);
	run_all();
	assert_int_equal(last()->code, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(write_and_read),
		TEST(lists),
		TEST(counts),
		TEST(counts_under_way),
		TEST(gather),
		TEST(inline),
		TEST(shallow_queue),
		TEST(flush_before_notification),
		TEST(confirmed_reads),
		TEST(reads_alone),
		TEST(no_mixed_lists),
		TEST(scattered_reads_alone),
		TEST(spread),
		TEST(keys_decide),
		TEST(waits_aside),
		TEST(many_wait),
		TEST(goes_on_behind_what_moves),
		TEST(waits_aside_of_writes),
		TEST(arm),
		TEST(error_moves_slices),
		TEST(post_refused),
		TEST(timeout),
		TEST(cancel),
		TEST(cancel_partial),
		TEST(quiet),
		TEST(urgent),
		TEST(urgent_for_another_session),
		TEST(peer_down),
		TEST(waits_for_paths),
		TEST(no_path),
		TEST(reasons),
		TEST(moves_to_next_transport),
		TEST(path_fails_beside_another),
		TEST(no_other_transport),
		TEST(fence_beside_a_silent_device),
		TEST(fence_after_an_urgent_stop),
		TEST(rekey_beside_a_silent_device),
		TEST(rekey_of_a_partial_slice),
		TEST(keys_go_and_come),
		TEST(release_beside_a_silent_device),
		TEST(rail_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
