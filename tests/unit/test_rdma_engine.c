/* SPDX-License-Identifier: Apache-2.0 */
/* Transport rdma: transfers to engines with Mooncake, which have no other way, and whose ends of queue pairs nobody destroys. */
#include "agent/data/transfer/object.h"
#include "tests/unit/rdma_fixture.h"

/* Its index is that of the peer. */
#define ENGINE (9ull << 48 | 2ull << 24 | (PEER & DRAY_HANDLES_MAX))

static struct peer_link engine_link;

static void tell(enum rdma_command type, uint64_t id, void *arg)
{
	transport_rdma.message(&lab->rig.core, rdma(),
			       &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							    .type = type,
							    .peer = ENGINE,
							    .id = id,
							    .arg = arg });
}

static int engine_setup(void **state)
{
	int r = setup(state);

	engine_link = (struct peer_link){ .peer = ENGINE };
	tell(RDMA_ENGINE_UP, 0, &engine_link);
	lab->remote.peer = ENGINE;
	object_set_keys(&lab->rig.core, OBJECT_REMOTE, REMOTE, remote_keys(1));
	return r;
}

static void tell_paths(unsigned n)
{
	struct rdma_paths *p = calloc(1, sizeof(*p) + sizeof(p->v[0]));

	p->n = n;
	tell(RDMA_PATHS, 0, p);
}

static struct fake_qp *give_qp(void)
{
	struct fake_qp *f = &lab->qps[lab->n_qps];
	struct rdma_qp *q = calloc(1, sizeof(*q));

	f->q = calloc(POSTED_MAX, sizeof(*f->q));
	f->rail = &lab->rails[0];
	f->qp.context = &lab->rails[0].context;
	*q = (struct rdma_qp){ .id = ++lab->n_qps,
			       .qp = &f->qp,
			       .depth = 64,
			       .sges = 4,
			       .write_max = 1 << 20,
			       .read_max = 1 << 20,
			       .soft_roce = lab->soft_roce,
			       .flush_lkey = 1,
			       .flush_local = (uintptr_t)&lab->flush,
			       .path_counters = &lab->path,
			       .rail_counters = &lab->rails[0].counters };
	tell(RDMA_QP_UP, q->id, q);
	return f;
}

static struct fake_qp *ready(void)
{
	tell_paths(1);
	tell(RDMA_ENGINE_KEYS, REGION, local_keys(1));
	return give_qp();
}

static uint32_t code_of(uint64_t id)
{
	for (unsigned i = 0; i < lab->rig.n_ended; i++)
		if (lab->rig.ended[i].request_id == id)
			return lab->rig.ended[i].code;
	fail_msg("the transfer has not ended");
	return 0;
}

/* The memory is registered after the transfer has begun, which waits for that, and for paths, and for a queue pair. */
static void test_waits(void **state)
{
	struct fake_qp *f;

	write_all(BYTES);
	turn();
	tell_paths(1);
	f = give_qp();
	run_all();
	assert_int_equal(f->tail, 0);
	assert_int_equal(lab->rig.n_ended, 0);
	tell(RDMA_ENGINE_KEYS, REGION, local_keys(1));
	run_all();
	assert_int_equal(last()->code, 0);
	assert_same(0, 0, BYTES);
}

/* The control thread answers a request for queue pairs that there is no way, until it has paths. */
static void test_keys_before_paths(void **state)
{
	write_all(BYTES);
	turn();
	tell(RDMA_ENGINE_KEYS, REGION, local_keys(1));
	turn();
	assert_int_equal(told(RDMA_WANTED), 0);
	tell_paths(1);
	assert_int_equal(told(RDMA_WANTED), 1);
	give_qp();
	run_all();
	assert_int_equal(last()->code, 0);
}

/* No device registers it: transfers end, those that wait and those that come later. */
static void test_not_registered(void **state)
{
	static const uint64_t op[][3] = { { 0, 0, 100 } };
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = 1000,
				  .spec.direction = DMSG_DIRECTION_WRITE,
				  .spec.local = REGION,
				  .spec.remote = REMOTE };

	tell_paths(1);
	write_all(BYTES);
	turn();
	assert_int_equal(lab->rig.n_ended, 0);
	tell(RDMA_ENGINE_KEYS, REGION, rail_keys_new(0));
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
	assert_int_equal(rig_submit(&lab->rig, &lab->s, &r, op, 1, &err), 0);
	assert_int_equal(code_of(1000), DRAY_E_PEER_UNREACHABLE);
	/* a kind of memory that no device registers */
	lab->local.view->memory = REGION_GPU;
	r.request_id = 1001;
	assert_int_equal(rig_submit(&lab->rig, &lab->s, &r, op, 1, &err), 0);
	assert_int_equal(code_of(1001), DRAY_E_UNSUPPORTED);
	lab->local.view->memory = REGION_HOST;
	/* keys of an unknown region are given back */
	tell(RDMA_ENGINE_KEYS, 777, rail_keys_new(0));
}

/* The engine refuses the second of three: it ends with that, and the third one, which was not carried out, is posted again. */
static void refusal(enum dmsg_direction way)
{
	uint64_t ids[3];
	struct fake_qp *f = ready();

	for (unsigned i = 0; i < 3; i++)
		ids[i] = submit(way, (const uint64_t[][3]){ { i * 8192, i * 8192, 4096 } }, 1,
				false);
	turn();
	assert_int_equal(f->lists, 3);
	run(f, 1);
	break_down(f, IBV_WC_REM_ACCESS_ERR);
	turn();
	assert_int_equal(code_of(ids[0]), 0);
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	tell(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(code_of(ids[1]), DRAY_E_REVOKED);
	assert_int_equal(lab->rig.n_ended, 2);
	give_qp();
	run_all();
	assert_int_equal(code_of(ids[2]), 0);
	assert_same(16384, 16384, 4096);
}

static void test_write_refused(void **state)
{
	refusal(DMSG_DIRECTION_WRITE);
}

static void test_read_refused(void **state)
{
	refusal(DMSG_DIRECTION_READ);
}

/* A queue pair is lost: what was posted of a WRITE may still be carried out, and is not posted again. A READ is. */
static void test_lost(void **state)
{
	struct fake_qp *f = ready();
	uint64_t written =
		submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, 4096 } }, 1, false);
	uint64_t got = submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 8192, 8192, 4096 } }, 1,
			      false);
	uint64_t later;

	turn();
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	turn();
	later = submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 20000, 20000, 100 } }, 1,
		       false);
	assert_int_equal(lab->rig.n_ended, 0);
	tell(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(code_of(written), DRAY_E_PEER_LOST);
	assert_int_equal(lab->rig.n_ended, 1);
	give_qp();
	run_all();
	assert_int_equal(code_of(got), 0);
	assert_int_equal(code_of(later), 0);
	assert_same(8192, 8192, 4096);
}

/* A transfer that is stopping ends with its own code, not with that of the loss. */
static void test_lost_while_stopping(void **state)
{
	struct fake_qp *f = ready();

	write_all(4096);
	turn();
	stop_all(DRAY_E_DEADLINE, false);
	assert_int_equal(lab->rig.n_ended, 0);
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	turn();
	tell(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_DEADLINE);
}

/* No queue pair can be made: transfers end, because nothing else reaches the engine, and later ones for the same reason. */
static void test_unreachable(void **state)
{
	uint64_t later;

	tell_paths(1);
	tell(RDMA_ENGINE_KEYS, REGION, local_keys(1));
	write_all(4096);
	turn();
	tell(RDMA_UNREACHABLE, DMSG_CLASS_BULK, NULL);
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
	later = submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, false);
	assert_int_equal(code_of(later), DRAY_E_PEER_UNREACHABLE);
	give_qp();
	later = submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, false);
	run_all();
	assert_int_equal(code_of(later), 0);
}

static const char *detail;

static void note_detail(struct rig *r, struct xfer *x)
{
	detail = x->detail;
}

/* No rail reaches a device that is used: the error says so if the engine has others. */
static void test_devices_that_are_not_used(void **state)
{
	lab->rig.on_end = note_detail;
	tell_paths(0);
	tell(RDMA_ENGINE_KEYS, REGION, local_keys(1));
	write_all(100);
	turn();
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
	assert_null(strstr(detail, "not all"));
	engine_link.partial = true;
	write_all(100);
	turn();
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(detail, "not all"));
}

/* Reads are confirmed by another read of the same memory: the engine has told no word for that. */
static void test_confirmed(void **state)
{
	lab->soft_roce = true;
	ready();
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100000 } }, 1, false);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_true(lab->flushes);
	assert_same(0, 0, 100000);
}

/* The last remote is gone: the control thread hears so when the queue pair is dead. */
static void test_down(void **state)
{
	ready();
	write_all(100);
	run_all();
	tell(RDMA_ENGINE_DOWN, 0, NULL);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(told(RDMA_ENGINE_GONE), 0);
	tell(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(told(RDMA_ENGINE_GONE), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].peer, ENGINE);
	/* its handle may be given out again */
	tell(RDMA_ENGINE_UP, 0, &engine_link);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, engine_setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(waits),
		TEST(keys_before_paths),
		TEST(not_registered),
		TEST(write_refused),
		TEST(read_refused),
		TEST(lost),
		TEST(lost_while_stopping),
		TEST(unreachable),
		TEST(devices_that_are_not_used),
		TEST(confirmed),
		TEST(down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
