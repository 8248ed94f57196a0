/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows on the control thread: which peers get one, which requests are allowed, and when the
 * memory is released.
 */
#include "tests/unit/rails_fixture.h"
#include "schema/gen/errors.h"
#include "lib/time.h"

#define BASE (64 * GIB)
#define WINDOW (1u << 20)
#define GPU_HOST ((struct gpu_host *)&dev)

static int window_setup(void **state)
{
	int ret = setup(state);

	lab->cfg.gpu.window = WINDOW;
	lab->cfg.gpu.windows = 2 * WINDOW;
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	return ret;
}

/* The requested memory was pinned. */
static void pinned(void)
{
	lab->pinned_fn(lab->pinned_arg, GPU_HOST, (void *)BASE, NULL);
}

static void give(void)
{
	meet(1);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 1);
	pinned();
	UNTIL(lab->window_rails == 1);
}

static uint64_t bytes(void)
{
	return metric(DRAY_METRIC_GPU_WINDOW_BYTES);
}

static uint8_t segs[PMSG_SEGS_MAX * PMSG_SEG_SIZE];

static struct pmsg_stage stage(uint64_t offset, uint64_t length)
{
	pmsg_seg_put(segs, &(struct pmsg_seg){ 4096, length });
	return (struct pmsg_stage){ .window = lab->window.window,
				    .offset = offset,
				    .length = length,
				    .grant = 5,
				    .kind = PMSG_STAGE_KIND_SCATTER,
				    .class = DMSG_CLASS_LATENCY,
				    .segs = { segs, 1 } };
}

static struct rdma_copy *ask(uint64_t request, uint64_t offset, uint64_t length)
{
	struct pmsg_stage m = stage(offset, length);
	unsigned n = told(RDMA_COPY);

	lab->stage_code = 0;
	rails_peer_stage(lab->rails, PEER, request, &m);
	return told(RDMA_COPY) > n ? last(RDMA_COPY)->arg : NULL;
}

static void copied(struct rdma_copy *copy, uint32_t code)
{
	rails_handle_message(lab->rails, 0,
			     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							  .type = RDMA_COPIED,
							  .peer = PEER,
							  .code = code,
							  .arg = copy });
}

/* --- which peers get a window --------------------------------------------------------------------------- */

static void test_a_peer_gets_a_window(void **state)
{
	give();
	assert_int_equal(lab->pinned_bytes, WINDOW);
	assert_int_equal(lab->window.length, WINDOW);
	assert_true(lab->window.window != 0);
	assert_int_equal(dev.last_access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
			 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	assert_int_equal(bytes(), WINDOW);
	assert_int_equal(told(RDMA_STAGING), 0);
	/* one window is enough for all grants */
	grant_staged(REGION(2));
	assert_int_equal(lab->pins, 1);
	/* it ends with the peer: first the devices deregister it */
	rails_peer_down(lab->rails, PEER);
	UNTIL(lab->unpins == 1);
	assert_int_equal(dev.mrs, 1);
	assert_int_equal(bytes(), 0);
}

/* A rail that comes later reaches the window too, and a rail that is lost no longer does. */
static void test_keys_follow(void **state)
{
	unsigned said = 0;

	give();
	see(2, 2, 3);
	UNTIL(lab->window_rails == 2);
	see(1, 1, 3);
	UNTIL(lab->window_rails == 1);
	UNTIL((let_go(&said), dev.contexts == 1));
	assert_int_equal(lab->window.length, WINDOW);
	part();
	UNTIL(lab->unpins == 1);
}

static void test_not_before_a_path(void **state)
{
	rails_peer_up(lab->rails, PEER, PMSG_FEATURE_RDMA | PMSG_FEATURE_WINDOW);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 0);
	rails_peer_down(lab->rails, PEER);
	meet(1);
	assert_int_equal(lab->pins, 0);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 1);
	/* the path is down before the memory is pinned */
	rails_peer_down(lab->rails, PEER);
	assert_int_equal(bytes(), WINDOW);
	pinned();
	assert_int_equal(lab->unpins, 1);
	assert_int_equal(lab->windows, 0);
	assert_int_equal(bytes(), 0);
}

static void test_older_peer(void **state)
{
	uint8_t buf[PMSG_PORT_SIZE];

	pmsg_port_put(buf, &(struct pmsg_port){ .mtu = 4096, .gid_type = 2, .layer = 2 });
	rails_peer_up(lab->rails, PEER, PMSG_FEATURE_RDMA);
	rails_peer_ports(lab->rails, PEER, &(struct dray_vec){ buf, 1 });
	UNTIL(told(RDMA_PATHS) > 0);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 0);
	rails_peer_down(lab->rails, PEER);
}

static void test_limits(void **state)
{
	lab->cfg.gpu.windows = WINDOW - 1;
	meet(1);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 0);
	rails_peer_down(lab->rails, PEER);
	lab->cfg.gpu.windows = WINDOW;
	lab->cfg.gpu.window = 0;
	meet(1);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 0);
	rails_peer_down(lab->rails, PEER);
}

/* A peer that reconnects before the memory of its former window is released. */
static void test_peer_returns_early(void **state)
{
	struct rdma_copy *copy;

	lab->cfg.gpu.windows = WINDOW;
	give();
	copy = ask(1, 0, 4096);
	rails_peer_down(lab->rails, PEER);
	meet(1);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 1);
	lab->window_rails = 0;
	copied(copy, 0);
	UNTIL(lab->pins == 2);
	assert_int_equal(lab->unpins, 1);
	pinned();
	UNTIL(lab->window_rails == 1);
	assert_int_equal(bytes(), WINDOW);
	rails_peer_down(lab->rails, PEER);
	UNTIL(lab->unpins == 2);
}

static void test_no_memory(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;

	dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "none");
	meet(1);
	grant_staged(REGION(1));
	lab->pinned_fn(lab->pinned_arg, NULL, NULL, &err);
	assert_int_equal(bytes(), 0);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 1);
	rails_peer_down(lab->rails, PEER);
}

/* The agent waits while a device may still register the region. */
static void test_pending(void **state)
{
	const struct region_dmabuf at = { 7, 0 };
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);

	v->memory = REGION_GPU;
	meet(1);
	rails_region_add(lab->rails, v, &at);
	grant_staged(REGION(1));
	assert_int_equal(lab->pins, 0);
	UNTIL(lab->keys);
	assert_int_equal(lab->pins, 0);
	remove_region(v);
	/* a region that no device registers */
	dev.reg_error = -EINVAL;
	v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	v->memory = REGION_GPU;
	rails_region_add(lab->rails, v, &at);
	UNTIL(lab->pins == 1);
	dev.reg_error = 0;
	pinned();
	UNTIL(lab->window_rails == 1);
	remove_region(v);
	part();
	UNTIL(lab->unpins == 1);
}

/* No device registers the region, and the awaited device cannot be opened. */
static void test_pending_device_fails(void **state)
{
	const struct region_dmabuf at = { 7, 0 };
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);

	v->memory = REGION_GPU;
	meet(1);
	dev.reg_error = -EINVAL;
	rails_region_add(lab->rails, v, &at);
	dev.open_error = -ENODEV;
	see(2, 2, 3);
	UNTIL(IS(1, "failed"));
	UNTIL(lab->pins == 1);
	dev.reg_error = dev.open_error = 0;
	pinned();
	remove_region(v);
	part();
	UNTIL(lab->unpins == 1);
}

/* --- requests of the peer -------------------------------------------------------------------------------- */

static void test_copies(void **state)
{
	struct rdma_copy *first, *second;

	give();
	first = ask(11, 4096, 65536);
	second = ask(12, WINDOW - 100, 100);
	assert_non_null(first);
	assert_int_equal((uintptr_t)first->base, BASE + 4096);
	assert_int_equal(first->length, 65536);
	assert_int_equal(first->grant, 5);
	assert_int_equal(first->peer, PEER);
	assert_true(first->scatter);
	assert_int_equal(first->class, DMSG_CLASS_LATENCY);
	assert_int_equal(first->n_segs, 1);
	assert_int_equal(first->segs[0].offset, 4096);
	copied(second, 0);
	assert_int_equal(lab->staged, 12);
	assert_int_equal(lab->stage_code, 0);
	copied(first, DRAY_E_REVOKED);
	assert_int_equal(lab->staged, 11);
	assert_int_equal(lab->stage_code, DRAY_E_REVOKED);
	part();
	UNTIL(lab->unpins == 1);
}

static void refused(struct pmsg_stage m, uint32_t code)
{
	unsigned n = told(RDMA_COPY);

	lab->stage_code = 0;
	rails_peer_stage(lab->rails, PEER, 77, &m);
	assert_int_equal(lab->staged, 77);
	assert_int_equal(lab->stage_code, code);
	assert_int_equal(told(RDMA_COPY), n);
	lab->staged = 0;
}

static void test_refused(void **state)
{
	struct pmsg_stage m;

	meet(1);
	refused(stage(0, 64), DRAY_E_NOT_FOUND);
	rails_peer_down(lab->rails, PEER);
	lab->n_told = 0;
	give();
	m = stage(0, 64);
	m.window++;
	refused(m, DRAY_E_NOT_FOUND);
	refused(stage(WINDOW - 63, 64), DRAY_E_INVALID);
	refused(stage(WINDOW, 64), DRAY_E_INVALID);
	refused(stage(UINT64_MAX, 64), DRAY_E_INVALID);
	refused(stage(0, 0), DRAY_E_INVALID);
	refused(stage(0, UINT64_MAX), DRAY_E_INVALID);
	m = stage(0, 64);
	m.kind = 3;
	refused(m, DRAY_E_INVALID);
	m = stage(0, 64);
	m.class = 9;
	refused(m, DRAY_E_INVALID);
	m = stage(0, 64);
	m.segs.n = 0;
	refused(m, DRAY_E_INVALID);
	/* segments whose sum is larger, smaller, or zero */
	m = stage(0, 64);
	m.length = 65;
	refused(m, DRAY_E_INVALID);
	m.length = 63;
	refused(m, DRAY_E_INVALID);
	m = stage(0, 64);
	m.segs.n = 2;
	pmsg_seg_put(segs + PMSG_SEG_SIZE, &(struct pmsg_seg){ 0, 0 });
	refused(m, DRAY_E_INVALID);
	pmsg_seg_put(segs + PMSG_SEG_SIZE, &(struct pmsg_seg){ 0, UINT64_MAX });
	refused(m, DRAY_E_INVALID);
	part();
	UNTIL(lab->unpins == 1);
}

/* Copies in flight never exceed the window. */
static void test_too_many(void **state)
{
	struct rdma_copy *copy;
	unsigned first;

	give();
	copy = ask(1, 0, WINDOW - 4096);
	assert_non_null(copy);
	refused(stage(0, 8192), DRAY_E_QUOTA);
	copied(copy, 0);
	first = lab->n_told;
	for (unsigned i = 0; i < 512; i++)
		assert_non_null(ask(2 + i, i, 1));
	refused(stage(600, 1), DRAY_E_QUOTA);
	for (unsigned i = first; i < lab->n_told; i++)
		if (lab->told[i].type == RDMA_COPY)
			copied(lab->told[i].arg, 0);
	assert_non_null(copy = ask(700, 0, WINDOW));
	copied(copy, 0);
	part();
	UNTIL(lab->unpins == 1);
}

/* The memory stays until the last copy has ended, and the peer gets no answer. */
static void test_down_while_copying(void **state)
{
	struct rdma_copy *copy;

	give();
	copy = ask(1, 0, 4096);
	part();
	UNTIL(dev.mrs == 1);
	assert_int_equal(lab->unpins, 0);
	copied(copy, 0);
	UNTIL(lab->unpins == 1);
	assert_int_equal(bytes(), 0);
	/* likewise if the devices deregistered it before */
	lab->n_told = lab->pins = lab->window_rails = 0;
	give();
	copy = ask(2, 0, 4096);
	assert_non_null(copy);
	part();
	UNTIL(dev.mrs == 1);
	for (unsigned i = 0; i < 5; i++)
		sd_event_run(lab->event, 5000);
	assert_int_equal(lab->unpins, 1);
	copied(copy, 0);
	assert_int_equal(lab->unpins, 2);
}

/* Memory that a lost GPU may still write to is not used again. */
static void test_gpu_lost(void **state)
{
	struct rdma_copy *first, *second;
	uint64_t id;

	give();
	id = lab->window.window;
	first = ask(1, 0, 4096);
	second = ask(2, 4096, 4096);
	first->gpu_lost = true;
	copied(first, DRAY_E_GPU_LOST);
	assert_int_equal(lab->window.length, 0);
	assert_int_equal(lab->window.window, id);
	assert_int_equal(lab->stage_code, DRAY_E_GPU_LOST);
	refused(stage(0, 64), DRAY_E_NOT_FOUND);
	copied(second, 0);
	/* another window, if the limit allows it */
	lab->window_rails = 0;
	assert_int_equal(lab->pins, 2);
	lab->pinned_fn(lab->pinned_arg, GPU_HOST, (void *)(BASE + GIB), NULL);
	UNTIL(lab->window_rails == 1);
	assert_int_not_equal(lab->window.window, id);
	assert_int_equal(bytes(), 2 * WINDOW);
	part();
	UNTIL(lab->unpins == 1 && dev.mrs == 1);
	assert_int_equal(bytes(), WINDOW);
}

/* --- windows of peers ------------------------------------------------------------------------------------ */

static void test_share(void **state)
{
	uint8_t buf[PMSG_RAIL_SIZE];
	struct pmsg_window m = { .window = 9, .length = WINDOW, .rails = { buf, 1 } };

	pmsg_rail_put(buf, &(struct pmsg_rail){ .rkey = 77, .base = BASE, .length = WINDOW });
	rails_peer_window(lab->rails, PEER, &m); /* not a peer */
	assert_int_equal(told(RDMA_WINDOW), 0);
	meet(1);
	rails_peer_window(lab->rails, PEER, &m);
	assert_int_equal(told(RDMA_WINDOW), 1);
	assert_int_equal(lab->share.window, 9);
	assert_int_equal(lab->share.offset, 0);
	assert_int_equal(lab->share.length, WINDOW);
	assert_int_equal(lab->share.keys->rails, 1);
	assert_int_equal(rail_keys_find(lab->share.keys, 0, 5)->key, 77);
	/* keys with a gap cannot be used */
	m.length++;
	rails_peer_window(lab->rails, PEER, &m);
	assert_int_equal(lab->share.keys->rails, 0);
	m.length = 0;
	m.rails.n = 0;
	rails_peer_window(lab->rails, PEER, &m);
	assert_int_equal(lab->share.length, 0);
	assert_null(lab->share.keys);
	part();
}

static void test_requests_to_the_peer(void **state)
{
	struct rdma_stage_request ask = { .peer = PEER };
	struct transport_message m = {
		.transport = DMSG_TRANSPORT_RDMA, .type = RDMA_STAGE, .peer = PEER, .arg = &ask
	};

	meet(1);
	rails_handle_message(lab->rails, 0, &m);
	assert_int_equal(told(RDMA_STAGED), 0);
	lab->stage_fn(lab->stage_arg, DRAY_E_DENIED, NULL);
	assert_int_equal(told(RDMA_STAGED), 1);
	assert_int_equal(last(RDMA_STAGED)->code, DRAY_E_DENIED);
	assert_ptr_equal(last(RDMA_STAGED)->arg, &ask);
	/* every request is answered, also if it cannot be sent to the peer */
	lab->stage_error = -ENOTCONN;
	rails_handle_message(lab->rails, 0, &m);
	assert_int_equal(told(RDMA_STAGED), 2);
	assert_int_equal(last(RDMA_STAGED)->code, DRAY_E_PEER_LOST);
	part();
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, window_setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_peer_gets_a_window),
		TEST(keys_follow),
		TEST(not_before_a_path),
		TEST(older_peer),
		TEST(limits),
		TEST(peer_returns_early),
		TEST(no_memory),
		TEST(pending),
		TEST(pending_device_fails),
		TEST(copies),
		TEST(refused),
		TEST(too_many),
		TEST(down_while_copying),
		TEST(gpu_lost),
		TEST(share),
		TEST(requests_to_the_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
