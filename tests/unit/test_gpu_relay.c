/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged copies, through memory on the devices: every byte arrives and no other byte changes, whatever stops them, and
 * the memory is given back.
 */
#include "agent/data/transport/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/gpu_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)
#define N 900
#define MEMORY (2 * MIB)
#define SECOND_NS INT64_C(1000000000)

struct lab {
	struct gpu_rig g;
	struct rig_region *to, *from; /* regions 1 and 2 */
	uint64_t ops[N][3];
	uint8_t *want;
	uint64_t bytes;
};

enum shape { SCATTERED, SOURCE_RUNS, TARGET_RUNS };

/* Pieces of odd lengths and alignments; one side may lie in a row. */
static void ops_make(struct lab *l, enum shape shape)
{
	uint64_t at = 0;

	l->bytes = 0;
	for (uint64_t i = 0; i < N; i++) {
		uint64_t length = 1 + i * 37 % (12 * KIB), place = i * 401 % N;

		l->ops[i][0] = shape == TARGET_RUNS ? at : place * 16 * KIB + i % 5;
		l->ops[i][1] = shape == SOURCE_RUNS ? at : (N - 1 - place) * 16 * KIB + i % 3;
		l->ops[i][2] = length;
		at += length;
	}
	l->bytes = at;
}

/* The agent copies staged, whatever the load. */
static void lab_init(struct lab *l, int to, int from, enum shape shape)
{
	memset(l, 0, sizeof(*l));
	gpu_rig_init_watched(&l->g, 300);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		l->g.queues[i].copy = DRAY_CONFIG_GPU_COPY_STAGED;
	l->to = gpu_rig_region(&l->g, to, 16 * MIB, 1);
	l->from = gpu_rig_region(&l->g, from, 16 * MIB, from < 0 ? 1 : 4);
	for (unsigned k = 0; k < 2; k++)
		if (!l->g.regions[k].import)
			gpu_rig_pin(&l->g, &l->g.regions[k].region);
	ops_make(l, shape);
	l->want = malloc(l->to->bytes);
	assert_non_null(l->want);
	memcpy(l->want, rig_at(l->to, 0), l->to->bytes);
}

static void lab_deinit(struct lab *l)
{
	gpu_rig_deinit(&l->g);
	free(l->want);
}

static void submit(struct lab *l, uint64_t id)
{
	gpu_rig_submit(&l->g, id, false, 1, 2, (const uint64_t(*)[3])l->ops, N);
}

static void expect_bytes(struct lab *l)
{
	for (unsigned i = 0; i < N; i++)
		for (uint64_t k = 0; k < l->ops[i][2]; k++)
			l->want[l->ops[i][0] + k] = *(uint8_t *)rig_at(l->from, l->ops[i][1] + k);
	assert_true(!memcmp(l->want, rig_at(l->to, 0), l->to->bytes));
}

static uint64_t staged(struct lab *l)
{
	return atomic_load(&l->g.rig.counters.v[DRAY_METRIC_GPU_COPY_STAGED_BYTES_TOTAL]);
}

static bool asked(struct lab *l, unsigned device)
{
	return gpu_rig_told(&l->g, GPU_COPY_MEMORY_WANTED, device);
}

/* Gives memory where it was asked for. */
static void memory_give(struct lab *l)
{
	submit(l, 99);
	gpu_rig_until(&l->g, 1);
	assert_int_equal(l->g.rig.ended[0].code, 0);
	assert_int_equal(staged(l), 0);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		if (asked(l, i))
			gpu_rig_memory(&l->g, i, MEMORY);
}

/* The first transfer asks for memory and is copied in another way; the next one is staged. */
static void every_byte(void **state)
{
	static const struct {
		int to, from;
		enum shape shape;
		bool asks[2];
	} rows[] = {
		{ 1, 0, SCATTERED, { true, true } },   { 0, 1, SCATTERED, { true, true } },
		{ 1, 0, SOURCE_RUNS, { true, true } }, { 1, 0, TARGET_RUNS, { true, true } },
		{ -1, 0, SCATTERED, { true, false } }, { -1, 1, TARGET_RUNS, { false, true } },
		{ 0, -1, SCATTERED, { true, false } }, { 1, -1, SOURCE_RUNS, { false, true } },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		struct lab l;

		lab_init(&l, rows[i].to, rows[i].from, rows[i].shape);
		memory_give(&l);
		assert_int_equal(asked(&l, 0), rows[i].asks[0]);
		assert_int_equal(asked(&l, 1), rows[i].asks[1]);
		memset(l.want, 0x5a, l.to->bytes);
		memset(rig_at(l.to, 0), 0x5a, l.to->bytes);
		submit(&l, 1);
		gpu_rig_until(&l.g, 2);
		assert_int_equal(l.g.rig.ended[1].code, 0);
		assert_int_equal(staged(&l), l.bytes);
		expect_bytes(&l);
		lab_deinit(&l);
	}
}

/* Within a device nothing is staged, and no memory is asked for. */
static void within(void **state)
{
	struct lab l;

	lab_init(&l, 0, 0, SCATTERED);
	memory_give(&l);
	assert_false(asked(&l, 0));
	expect_bytes(&l);
	lab_deinit(&l);
}

/* Without memory the worker asks again only after a while. */
static void refused(void **state)
{
	struct lab l;
	unsigned told;

	lab_init(&l, -1, 0, SCATTERED);
	submit(&l, 1);
	gpu_rig_until(&l.g, 1);
	assert_true(asked(&l, 0));
	gpu_rig_memory(&l.g, 0, 0);
	told = l.g.rig.n_told;
	submit(&l, 2);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(l.g.rig.n_told, told);
	assert_int_equal(staged(&l), 0);
	expect_bytes(&l);
	lab_deinit(&l);
}

/* Transfers that stop, gently or at once, in each step; the memory serves the next one. */
static void stopped(void **state)
{
	for (unsigned i = 0; i < 40; i++) {
		bool urgent = i % 2;
		struct lab l;

		lab_init(&l, i % 4 < 2 ? 1 : -1, 0, SCATTERED);
		memory_give(&l);
		submit(&l, 1);
		for (unsigned k = 0; k < i / 4 && l.g.rig.n_ended < 2; k++)
			gpu_rig_turn(&l.g);
		if (l.g.rig.n_ended < 2)
			xfer_stop(&l.g.rig.core, gpu_rig_xfer(&l.g, 1), DRAY_E_CANCELLED, NULL,
				  urgent);
		if (urgent)
			assert_int_equal(l.g.rig.n_ended, 2);
		gpu_rig_until(&l.g, 2);
		assert_int_equal(l.g.rig.ended[1].request_id, 1);
		submit(&l, 2);
		gpu_rig_until(&l.g, 3);
		assert_int_equal(l.g.rig.ended[2].code, 0);
		expect_bytes(&l);
		lab_deinit(&l);
	}
}

/* Either device is lost in the middle: the transfer ends, and the memory of both goes back. */
static void lost(void **state)
{
	for (unsigned device = 0; device < 2; device++) {
		struct lab l;

		lab_init(&l, 1, 0, SCATTERED);
		memory_give(&l);
		fake_gpu_hold(true);
		submit(&l, 1);
		gpu_rig_turn(&l.g);
		gpu_rig_held(1);
		fake_gpu_lose(device, true);
		fake_gpu_hold(false);
		gpu_rig_until(&l.g, 2);
		assert_int_equal(l.g.rig.ended[1].code, DRAY_E_GPU_LOST);
		lab_deinit(&l);
	}
}

/* Memory that nothing uses goes back; the next transfer asks for it again. */
static void idle(void **state)
{
	struct core *c;
	struct lab l;

	lab_init(&l, -1, 0, SCATTERED);
	c = &l.g.rig.core;
	memory_give(&l);
	c->now_ns += 9 * SECOND_NS;
	transport_gpu.tick(c, c->transport_state[1]);
	assert_false(gpu_rig_told(&l.g, GPU_COPY_MEMORY_BACK, 0));
	c->now_ns += 2 * SECOND_NS;
	transport_gpu.tick(c, c->transport_state[1]);
	assert_true(gpu_rig_told(&l.g, GPU_COPY_MEMORY_BACK, 0));
	gpu_plugin_ops.block_free(l.g.blocks[0]);
	l.g.blocks[0] = NULL;
	l.g.rig.n_told = 0;
	submit(&l, 1);
	gpu_rig_until(&l.g, 2);
	assert_true(asked(&l, 0));
	expect_bytes(&l);
	lab_deinit(&l);
}

/* The memory of the other device goes while jobs are on their way to it: copy engines write the target itself. */
static void memory_goes(void **state)
{
	struct lab l;

	lab_init(&l, 1, 0, SCATTERED);
	memory_give(&l);
	memset(l.want, 0, l.to->bytes);
	memset(rig_at(l.to, 0), 0, l.to->bytes);
	fake_gpu_hold(true);
	submit(&l, 1);
	gpu_rig_turn(&l.g);
	gpu_rig_held(1);
	gpu_relay_down(&l.g.rig.core, l.g.rig.core.transport_state[1], 1);
	fake_gpu_hold(false);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(l.g.rig.ended[1].code, 0);
	expect_bytes(&l);
	lab_deinit(&l);
}

/* Transfers in both directions between two devices do not wait for each other's parts for ever. */
static void both_ways(void **state)
{
	struct lab l;

	lab_init(&l, 1, 0, SCATTERED);
	memory_give(&l);
	for (unsigned i = 0; i < 12; i++)
		gpu_rig_submit(&l.g, i, i % 2, 1, 2, (const uint64_t(*)[3])l.ops, N);
	gpu_rig_until(&l.g, 13);
	for (unsigned i = 0; i < 12; i++)
		assert_int_equal(l.g.rig.ended[1 + i].code, 0);
	assert_true(staged(&l) == 12 * l.bytes);
	lab_deinit(&l);
}

/* Beside two busy devices a long list is staged, a short one is not. */
static void by_the_load(void **state)
{
	/* a list of N takes engines longer than a round through the memory */
	static const struct gpu_rates rates = {
		.kernel = { [GPU_WITHIN] = 1000000, [GPU_PEER] = 3000 },
		.engines[GPU_PEER] = { 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 300000 },
	};
	struct lab l;

	lab_init(&l, 1, 0, SCATTERED);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++) {
		l.g.queues[i].copy = DRAY_CONFIG_GPU_COPY_AUTO;
		l.g.queues[i].rates = &rates;
		atomic_store(&l.g.loads[i].busy, true);
		atomic_store(&l.g.loads[i].due_ns, INT64_MAX);
		/* an engine that gets the device back at once */
		atomic_store(&l.g.loads[i].wait_ns, 1);
	}
	submit(&l, 1);
	gpu_rig_until(&l.g, 1);
	assert_true(asked(&l, 0) && asked(&l, 1));
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		gpu_rig_memory(&l.g, i, 64 * MIB);
	submit(&l, 2);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(staged(&l), l.bytes);
	gpu_rig_submit(&l.g, 3, false, 1, 2, (const uint64_t(*)[3])l.ops, 40);
	gpu_rig_until(&l.g, 3);
	assert_int_equal(staged(&l), l.bytes);
	expect_bytes(&l);
	lab_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte),  cmocka_unit_test(within),
		cmocka_unit_test(refused),     cmocka_unit_test(stopped),
		cmocka_unit_test(lost),        cmocka_unit_test(idle),
		cmocka_unit_test(memory_goes), cmocka_unit_test(both_ways),
		cmocka_unit_test(by_the_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
