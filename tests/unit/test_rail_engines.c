/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs to engines with Mooncake, and the memory that is registered for them, on simulated verbs. */
#include "tests/unit/rails_fixture.h"

#include "agent/model/peer_link.h"

#define ENGINE (9ull << 48 | 1ull << 24 | 5)

static struct {
	struct rails_engine_request asked[16];
	unsigned n_asked, gone;
} engine;
static struct peer_link engine_link;

static void engine_connect(void *arg, const struct rails_engine_request *request)
{
	assert_true(engine.n_asked < 16);
	assert_int_equal(request->engine, ENGINE);
	assert_string_equal(request->device, "dev0");
	engine.asked[engine.n_asked++] = *request;
}

static void engine_gone(void *arg, dray_handle handle)
{
	assert_int_equal(handle, ENGINE);
	engine.gone++;
}

static int setup_with(void **state, int max_cqe, unsigned workers)
{
	memset(&engine, 0, sizeof(engine));
	setup(state);
	lab->pool.n = workers;
	dev.max_cqe = max_cqe;
	lab->cfg.mooncake.import = true;
	lab->rails->deps.engine_connect = engine_connect;
	lab->rails->deps.engine_gone = engine_gone;
	see(1, 1, 0);
	UNTIL(IS(0, "up"));
	assert_int_equal(dev.pds, 2);
	return 0;
}

static int engines_setup(void **state)
{
	return setup_with(state, 0, 1);
}

static int small_setup(void **state)
{
	return setup_with(state, 8, 1);
}

static int workers_setup(void **state)
{
	return setup_with(state, 0, 2);
}

static void meet_engine(void)
{
	struct rails_engine e = { .link = &engine_link, .segment = "10.0.0.9:15000", .n = 1 };

	engine_link = (struct peer_link){ .peer = ENGINE };
	e.ports[0].gid.s6_addr[15] = 9;
	assert_int_equal(rails_engine_up(lab->rails, &e), 0);
	UNTIL(told(RDMA_PATHS) == lab->pool.n);
	assert_int_equal(told(RDMA_ENGINE_UP), lab->pool.n);
	assert_int_equal(last(RDMA_ENGINE_UP)->peer, ENGINE);
}

static void hear(enum rdma_event type, uint64_t id, uint32_t code)
{
	rails_handle_message(lab->rails, 0,
			     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							  .type = type,
							  .peer = ENGINE,
							  .id = id,
							  .code = code });
}

static void answer_all(const char *refused)
{
	unsigned n = engine.n_asked;

	engine.n_asked = 0;
	for (unsigned i = 0; i < n; i++)
		rails_engine_connected(lab->rails, engine.asked[i].id,
				       &(struct rails_engine_reply){ .refused = refused,
								     .qpn = 4711 });
}

static void leave_engine(void)
{
	rails_engine_down(lab->rails, ENGINE);
	assert_int_equal(last(RDMA_ENGINE_DOWN)->peer, ENGINE);
	for (unsigned i = 0, n = lab->n_told; i < n; i++)
		if (lab->told[i].type == RDMA_QP_UP)
			hear(RDMA_QP_LOST, lab->told[i].id, RDMA_LOSS_PEER);
	UNTIL(dev.qps == 0);
	hear(RDMA_ENGINE_GONE, 0, 0);
	assert_int_equal(engine.gone, 1);
}

/* Slots of the queue pairs that were asked for. */
static unsigned slots(void)
{
	unsigned set = 0;

	for (unsigned i = 0; i < engine.n_asked; i++)
		set |= 1u << (4 * engine.asked[i].class + engine.asked[i].slot);
	return set;
}

/* Queue pairs are made by their slots; after a loss the same slot is asked for again, without a pause if the engine has refused access. */
static void test_connect(void **state)
{
	unsigned all;

	meet_engine();
	assert_int_equal(dev.qps, 0);
	hear(RDMA_WANTED, 0, 0);
	UNTIL(engine.n_asked == 3);
	all = slots();
	assert_int_equal(__builtin_popcount(all), 3);
	assert_int_equal(engine.asked[0].qpn, 17);
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 3);
	hear(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_REM_ACCESS_ERR);
	UNTIL(told(RDMA_QP_DEAD) == 1 && engine.n_asked == 1);
	assert_int_equal(slots() & ~all, 0);
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 4);
	/* its queue pairs are not given up, although they move nothing, because nothing else reaches it */
	for (unsigned up = 5; up < 9; up++) {
		hear(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_RETRY_EXC_ERR);
		UNTIL(engine.n_asked == 1);
		answer_all(NULL);
		UNTIL(told(RDMA_QP_UP) == up);
	}
	assert_int_equal(told(RDMA_UNREACHABLE) + told(RDMA_QP_LOSE), 0);
	leave_engine();
}

/* On a slow machine the next attempt may begin before the worker is told. */
static void refuse_until_told(void)
{
	while (told(RDMA_UNREACHABLE) < 2) {
		answer_all("no room");
		UNTIL(told(RDMA_UNREACHABLE) == 2 || engine.n_asked == 3);
	}
}

/* What the engine refuses, a device cannot do, or nobody answers, is told to the worker once. Attempts go on. */
static void test_refused(void **state)
{
	char why[256] = "";
	uint64_t id;

	meet_engine();
	hear(RDMA_WANTED, 0, 0);
	UNTIL(engine.n_asked == 3);
	id = engine.asked[0].id;
	refuse_until_told();
	rails_each_path(lab->rails, note_reason, why);
	assert_non_null(strstr(why, "no room"));
	UNTIL(engine.n_asked == 3);
	/* an answer that comes too late */
	rails_engine_connected(lab->rails, id, &(struct rails_engine_reply){ .qpn = 1 });
	dev.modify_error = -EINVAL;
	answer_all(NULL);
	UNTIL(dev.qps == 0 || engine.n_asked);
	dev.modify_error = 0;
	UNTIL(engine.n_asked == 3);
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 3);
	assert_int_equal(told(RDMA_UNREACHABLE), 2);
	rails_each_path(lab->rails, note_reason, why);
	assert_string_equal(why, "same subnet");
	leave_engine();
}

/* The completion queue has no room for a queue pair, and no attempt is under way: the worker is told. */
static void test_no_room(void **state)
{
	meet_engine();
	hear(RDMA_WANTED, 0, 0);
	UNTIL(told(RDMA_UNREACHABLE) == 2);
	assert_int_equal(engine.n_asked, 0);
	leave_engine();
}

/* The engine goes while it is asked. */
static void test_down_early(void **state)
{
	meet_engine();
	hear(RDMA_WANTED, 0, 0);
	UNTIL(engine.n_asked == 3);
	leave_engine();
	answer_all(NULL);
	assert_int_equal(told(RDMA_QP_UP), 0);
}

static unsigned keys_of(dray_handle region)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lab->n_told; i++)
		n += lab->told[i].type == RDMA_ENGINE_KEYS && lab->told[i].id == region;
	return n;
}

/* Memory is registered a second time, without access for others, from the first engine on; it is given back with the region. */
static void test_memory(void **state)
{
	struct region_view *a = view_new(REGION(1), 0x10000000, 1 << 20, DMSG_ACCESS_ALL);
	struct region_view *b = view_new(REGION(2), 0x20000000, 1 << 20, DMSG_ACCESS_ALL);
	int before = dev.mrs;

	rails_region_add(lab->rails, a, NULL);
	UNTIL(dev.registered == 1);
	meet_engine();
	UNTIL(dev.registered == 2 && lab->engine_keys);
	lab->held = rail_keys_ref(lab->engine_keys);
	assert_int_equal(dev.last_access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE), 0);
	assert_int_equal(lab->engine_keys->rails, 1);
	rails_region_add(lab->rails, b, NULL);
	UNTIL(dev.registered == 4);
	UNTIL(last(RDMA_ENGINE_KEYS)->id == REGION(2) && lab->engine_keys);
	remove_region(b);
	assert_int_equal(dev.mrs, before + 2);
	/* a device that cannot register it: workers are told that no keys will come */
	dev.reg_error = -ENOMEM;
	rails_region_add(lab->rails, b = view_new(REGION(3), 0x30000000, 1 << 20, DMSG_ACCESS_ALL),
			 NULL);
	UNTIL(keys_of(REGION(3)) && lab->engine_keys);
	assert_int_equal(lab->engine_keys->rails, 0);
	dev.reg_error = 0;
	remove_region(b);
	/* a work request that still uses the keys keeps the memory */
	rails_region_remove(lab->rails, REGION(1), removed, NULL);
	for (int i = 0; i < 20; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->done, 2);
	rail_keys_unref(lab->held);
	UNTIL(lab->done == 3);
	assert_int_equal(dev.mrs, before);
	free(a);
	leave_engine();
}

/* Device memory that nothing registers: workers are told so, whether it or the engine came first. */
static void test_unregistrable(void **state)
{
	struct region_view *a = view_new(REGION(1), 0x10000000, 1 << 20, DMSG_ACCESS_ALL);
	struct region_view *b = view_new(REGION(2), 0x20000000, 1 << 20, DMSG_ACCESS_ALL);

	a->memory = b->memory = REGION_GPU;
	rails_region_add(lab->rails, a, NULL);
	meet_engine();
	UNTIL(keys_of(REGION(1)) && lab->engine_keys);
	assert_int_equal(lab->engine_keys->rails, 0);
	rails_region_add(lab->rails, b, NULL);
	UNTIL(keys_of(REGION(2)) && lab->engine_keys);
	assert_int_equal(lab->engine_keys->rails, 0);
	assert_string_equal(text_of(b), "");
	remove_region(b);
	remove_region(a);
	leave_engine();
}

/* Two ports of our device reach the same device of the engine, which tells queue pairs apart by the devices alone. */
static void test_two_ports(void **state)
{
	unsigned seen = 0;

	see_ports(1, 1, 0, 2);
	UNTIL(lab->rails->n == 2 && lab->rails->v[1]->state == RAIL_UP);
	meet_engine();
	hear(RDMA_WANTED, 0, 0);
	UNTIL(engine.n_asked == 6);
	for (unsigned i = 0; i < 6; i++) {
		unsigned name = 1u << (8 * engine.asked[i].class + engine.asked[i].slot);

		assert_int_equal(engine.asked[i].port, 0);
		assert_false(seen & name);
		seen |= name;
	}
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 6);
	leave_engine();
}

/* The completion queue of one worker has no room: the other one reaches the engine, and this one does when there is room. */
static void test_room_by_worker(void **state)
{
	uint32_t *used = lab->rails->v[0]->cq_used;
	char why[256] = "";

	meet_engine();
	used[0] += 1 << 20;
	for (unsigned i = 0; i < 2; i++)
		rails_handle_message(lab->rails, i,
				     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
								  .type = RDMA_WANTED,
								  .peer = ENGINE });
	UNTIL(engine.n_asked == 3);
	assert_int_equal(told(RDMA_UNREACHABLE), 2);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(engine.asked[i].worker, 1);
	rails_each_path(lab->rails, note_reason, why);
	assert_non_null(strstr(why, "completion queue is full"));
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 3);
	used[0] -= 1 << 20;
	UNTIL(engine.n_asked == 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(engine.asked[i].worker, 0);
	answer_all(NULL);
	UNTIL(told(RDMA_QP_UP) == 6);
	rails_each_path(lab->rails, note_reason, why);
	assert_string_equal(why, "same subnet");
	leave_engine();
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, engines_setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(connect),
		TEST(refused),
		cmocka_unit_test_setup_teardown(test_no_room, small_setup, teardown),
		TEST(down_early),
		TEST(memory),
		TEST(unregistrable),
		TEST(two_ports),
		cmocka_unit_test_setup_teardown(test_room_by_worker, workers_setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
