/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of windows in a worker: which copies a peer may request, and that no byte moves
 * after they have ended.
 */
#include "agent/data/transfer/object.h"
#include "tests/unit/rdma_gpu_fixture.h"

#define GRANTED 8192u /* start of the grant in the region */
#define LENGTH (4u << 20)
#define SMALL_GRANT (1ull << 32 | 21)
#define HOST_GRANT (1ull << 32 | 22)
#define WRITE_GRANT (1ull << 32 | 23)
#define CUT_GRANT (1ull << 32 | 24)
#define CUT_REGION (1ull << 32 | 25)
#define PAGES 600u

static struct {
	struct grant_view grants[4];
	struct region_view *cut; /* pages of the GPU's memory, in reverse order */
	uint8_t *window;
	struct rdma_copy *copy;
} owner;

static void grant(unsigned i, dray_handle handle, dray_handle region, uint64_t offset,
		  uint64_t length, uint16_t access)
{
	struct grant_view *g = &owner.grants[i];

	*g = (struct grant_view){ .o = { OBJECT_GRANT, handle, 0, SESSION, length, access },
				  .peer = PEER,
				  .region = region,
				  .offset = offset };
	object_publish(&lab->rig.core, &g->o);
}

static int copy_setup(void **state)
{
	assert_int_equal(gpu_setup(state), 0);
	memset(&owner, 0, sizeof(owner));
	owner.window = host(PMSG_FRAME_BYTES_MAX);
	owner.copy = rdma_copy_new();
	owner.cut = calloc(1, sizeof(*owner.cut) + PAGES * sizeof(struct extent_view));
	*owner.cut = *gpu.view;
	owner.cut->o.handle = CUT_REGION;
	owner.cut->o.length = PAGES * 4096ull;
	owner.cut->n_extents = PAGES;
	for (unsigned i = 0; i < PAGES; i++)
		owner.cut->extents[i] = (struct extent_view){ .start = i * 4096ull,
							      .length = 4096,
							      .base = gpu.view->extents[0].base +
								      (PAGES - 1 - i) * 4096ull,
							      .node = -1 };
	object_publish(&lab->rig.core, &owner.cut->o);
	grant(0, SMALL_GRANT, GPU_REGION, GRANTED, LENGTH, DMSG_ACCESS_ALL);
	grant(1, HOST_GRANT, REGION, 0, LENGTH, DMSG_ACCESS_ALL);
	grant(2, WRITE_GRANT, GPU_REGION, 0, LENGTH, DMSG_ACCESS_WRITE);
	grant(3, CUT_GRANT, CUT_REGION, 0, PAGES * 4096ull, DMSG_ACCESS_ALL);
	return 0;
}

static int copy_teardown(void **state)
{
	gpu_plugin_ops.host_free(gpu.plugin, owner.window);
	gpu_teardown(state);
	free(owner.copy);
	free(owner.cut);
	return 0;
}

static void begin(dray_handle grant_handle, bool scatter, const struct pmsg_seg *segs, uint32_t n)
{
	struct rdma_copy *copy = owner.copy;

	lab->rig.n_told = 0;
	*copy = (struct rdma_copy){ .peer = PEER,
				    .grant = grant_handle,
				    .scatter = scatter,
				    .base = owner.window,
				    .n_segs = n };
	for (uint32_t i = 0; i < n; i++) {
		copy->segs[i] = segs[i];
		copy->length += segs[i].length;
	}
	message(RDMA_COPY, 0, copy);
}

static bool over(void)
{
	if (!told(RDMA_COPIED))
		return false;
	assert_int_equal(told(RDMA_COPIED), 1);
	assert_ptr_equal(lab->rig.told[0].arg, owner.copy);
	assert_int_equal(lab->rig.told[0].peer, PEER);
	return true;
}

static uint32_t ends(void)
{
	while (!over()) {
		lab->rig.core.now_ns = dray_now().ns;
		transport_gpu.tick(&lab->rig.core, gpu_state());
		gpu_turn();
		sched_yield();
	}
	return lab->rig.told[0].code;
}

static uint32_t all(dray_handle grant_handle, bool scatter, uint64_t offset, uint64_t length)
{
	begin(grant_handle, scatter, &(struct pmsg_seg){ offset, length }, 1);
	return ends();
}

static void test_bytes(void **state)
{
	static const struct pmsg_seg segs[] = { { 5, 1000001 },
						{ 3000000, 1 },
						{ 2000000, 65537 } };
	uint8_t *at = owner.window;

	begin(SMALL_GRANT, false, segs, 3);
	assert_int_equal(ends(), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_memory_equal(at, gpu.memory + GRANTED + segs[i].offset, segs[i].length);
		at += segs[i].length;
	}
	for (unsigned i = 0; i < BYTES; i++)
		owner.window[i] ^= 0x5a;
	begin(SMALL_GRANT, true, segs, 3);
	assert_int_equal(ends(), 0);
	at = owner.window;
	for (unsigned i = 0; i < 3; i++) {
		assert_memory_equal(at, gpu.memory + GRANTED + segs[i].offset, segs[i].length);
		at += segs[i].length;
	}
	assert_int_equal(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL), 2 * (1000001 + 1 + 65537));
	/* the objects are released */
	object_drop(&lab->rig.core, OBJECT_GRANT, SMALL_GRANT, DRAY_E_REVOKED, DROP_STOP);
	assert_int_equal(lab->rig.n_dropped, 1);
}

/* More ranges than one copy takes. */
static void test_rounds(void **state)
{
	for (unsigned way = 0; way < 2; way++) {
		assert_int_equal(all(CUT_GRANT, way, 100, PAGES * 4096ull - 200), 0);
		for (uint64_t i = 100; i < PAGES * 4096ull - 100; i++)
			assert_int_equal(owner.window[i - 100],
					 gpu.memory[(PAGES - 1 - i / 4096) * 4096 + i % 4096]);
		for (unsigned i = 0; i < PAGES * 4096; i++)
			owner.window[i] ^= 0x33;
	}
}

static void test_refused(void **state)
{
	const struct pmsg_seg two[] = { { 0, 64 }, { LENGTH - 63, 64 } };

	assert_int_equal(all(12345, false, 0, 64), DRAY_E_REVOKED);
	assert_int_equal(all(SMALL_GRANT, false, LENGTH - 63, 64), DRAY_E_RANGE);
	assert_int_equal(all(SMALL_GRANT, false, UINT64_MAX, 64), DRAY_E_RANGE);
	begin(SMALL_GRANT, false, two, 2);
	assert_int_equal(ends(), DRAY_E_RANGE);
	assert_int_equal(all(WRITE_GRANT, false, 0, 64), DRAY_E_DENIED);
	assert_int_equal(all(WRITE_GRANT, true, 0, 64), 0);
	assert_int_equal(all(HOST_GRANT, false, 0, 64), DRAY_E_UNSUPPORTED);
	/* a grant of another peer */
	owner.grants[0].peer = PEER + 1;
	assert_int_equal(all(SMALL_GRANT, false, 0, 64), DRAY_E_REVOKED);
	assert_int_equal(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL), 64);
}

/* A dropped grant waits for the copy, and no further round begins. */
static void test_dropped(void **state)
{
	fake_gpu_hold(true);
	begin(CUT_GRANT, true, &(struct pmsg_seg){ 0, PAGES * 4096ull }, 1);
	gpu_turn();
	object_drop(&lab->rig.core, OBJECT_GRANT, CUT_GRANT, DRAY_E_REVOKED, DROP_STOP);
	gpu_turn();
	assert_int_equal(lab->rig.n_dropped, 0);
	assert_false(over());
	fake_gpu_hold(false);
	assert_int_equal(ends(), DRAY_E_REVOKED);
	assert_int_equal(lab->rig.n_dropped, 1);
	assert_true(counted(DRAY_METRIC_GPU_STAGED_BYTES_TOTAL) < PAGES * 4096ull);
	assert_int_equal(all(CUT_GRANT, true, 0, 64), DRAY_E_REVOKED);
}

/* The session is dead: no byte moves after the call returns. */
static void test_dropped_urgently(void **state)
{
	begin(CUT_GRANT, true, &(struct pmsg_seg){ 0, PAGES * 4096ull }, 1);
	object_drop(&lab->rig.core, OBJECT_REGION, CUT_REGION, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	assert_true(over());
	assert_int_equal(lab->rig.told[0].code, DRAY_E_REVOKED);
	assert_int_equal(lab->rig.n_dropped, 1);
	assert_int_equal(all(CUT_GRANT, true, 0, 64), DRAY_E_REVOKED);
	assert_int_equal(all(SMALL_GRANT, true, 0, 64), 0);
}

static void test_device_lost(void **state)
{
	fake_gpu_hold(true);
	begin(SMALL_GRANT, false, &(struct pmsg_seg){ 0, 65536 }, 1);
	gpu_turn();
	fake_gpu_lose(0, true);
	fake_gpu_hold(false);
	while (!told(RDMA_COPIED)) {
		lab->rig.core.now_ns = dray_now().ns;
		transport_gpu.tick(&lab->rig.core, gpu_state());
		gpu_turn();
	}
	for (unsigned i = 0; i < lab->rig.n_told; i++)
		if (lab->rig.told[i].type == RDMA_COPIED &&
		    lab->rig.told[i].transport == DMSG_TRANSPORT_RDMA)
			assert_int_equal(lab->rig.told[i].code, DRAY_E_GPU_LOST);
	/* the device may still write to the memory */
	assert_true(owner.copy->gpu_lost);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, copy_setup, copy_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bytes),   TEST(rounds),           TEST(refused),
		TEST(dropped), TEST(dropped_urgently), TEST(device_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
