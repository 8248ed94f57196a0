/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers between memory of one GPU, of two GPUs, and host memory: every byte arrives, and no other byte
 * changes.
 */
#include "agent/data/gpu_queue/gpu_queue.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/wait.h"
#include "agent/data/transport/gpu/gpu.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/gpu_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)
#define PIECES 4096

static uint64_t counter(struct gpu_rig *g, enum dray_metric m)
{
	return atomic_load(&g->rig.counters.v[m]);
}

/* Returns the region's bytes in the order of their offsets. */
static uint8_t *bytes_of(struct rig_region *r)
{
	uint64_t piece = r->bytes / r->view->n_extents;
	uint8_t *all = malloc(r->bytes);

	assert_non_null(all);
	for (uint32_t i = 0; i < r->view->n_extents; i++)
		memcpy(all + i * piece, rig_at(r, i * piece), piece);
	return all;
}

static void move(struct gpu_rig *g, bool write, unsigned local, unsigned remote,
		 const uint64_t (*ops)[3], uint32_t n)
{
	struct rig_region *mine = &g->regions[local - 1].region;
	struct rig_region *theirs = &g->regions[remote - 1].region;
	struct rig_region *to = write ? theirs : mine;
	uint8_t *from dray_auto_free = bytes_of(write ? mine : theirs);
	uint8_t *want dray_auto_free = bytes_of(to);
	uint8_t *got dray_auto_free = NULL;
	unsigned ended = g->rig.n_ended;

	for (uint32_t k = 0; k < n; k++)
		memcpy(want + ops[k][write], from + ops[k][!write], ops[k][2]);
	gpu_rig_submit(g, ended, write, local, remote, ops, n);
	gpu_rig_until(g, ended + 1);
	assert_int_equal(g->rig.ended[ended].code, 0);
	got = bytes_of(to);
	assert_true(!memcmp(got, want, to->bytes));
}

/* Sizes around the limits of kernel and engines, any alignment, across borders of extents. */
static void every_path(void **state)
{
	const uint64_t ops[][3] = {
		{ 0, 1, 1 },
		{ 17, 3, 3 },
		{ 4096, 8192, 4096 },
		{ 10001, 20003, 16 * KIB },
		{ 300 * KIB, 301 * KIB + 5, 256 * KIB },
		{ 600 * KIB, 700 * KIB, 256 * KIB + 1 },
		{ 1 * MIB + 7, 1 * MIB + 9, 700 * KIB },
		{ 3 * MIB - 5, 3 * MIB - 3, 10 },
		{ 5 * MIB, 6 * MIB + 1, 3 * MIB },
	};
	static const struct {
		int local, remote;
		enum gpu_route route;
	} ways[] = { { 0, 0, GPU_WITHIN },
		     { 0, 1, GPU_PEER },
		     { 1, 0, GPU_PEER },
		     { 0, -1, GPU_TO_HOST },
		     { -1, 1, GPU_FROM_HOST } };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(ways) * 2; i++) {
		bool write = i % 2;
		struct gpu_rig g;

		gpu_rig_init(&g, PIECES);
		gpu_rig_region(&g, ways[i / 2].local, 12 * MIB, 1);
		gpu_rig_region(&g, ways[i / 2].remote, 12 * MIB, 3);
		for (unsigned k = 0; k < 2; k++)
			if (!g.regions[k].import)
				gpu_rig_pin(&g, &g.regions[k].region);
		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(ops); k++)
			move(&g, write, 1, 2, &ops[k], 1);
		move(&g, write, 1, 2, ops, DRAY_ARRAY_SIZE(ops));
		assert_true(counter(&g, DRAY_METRIC_GPU_BYTES_TOTAL) > 0);
		assert_int_equal(counter(&g, DRAY_METRIC_LOCAL_BYTES_TOTAL), 0);
		gpu_rig_deinit(&g);
	}
}

/* A list of pages takes one launch, whether or not operations are used as pieces. */
static void pages(void **state)
{
	enum { N = 2000, PAGE = 4096 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));

	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = i * 2 * PAGE;
		ops[i][1] = (i * 7 % N * 2 + 1) * PAGE;
		ops[i][2] = PAGE;
	}
	for (uint32_t extents = 1; extents <= 4; extents += 3) {
		struct gpu_rig g;

		gpu_rig_init(&g, PIECES);
		gpu_rig_region(&g, 0, 2 * N * PAGE, extents);
		gpu_rig_region(&g, 1, 2 * N * PAGE, 1);
		move(&g, false, 1, 2, (const uint64_t(*)[3])ops, N);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 1);
		move(&g, true, 1, 2, (const uint64_t(*)[3])ops, N);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 2);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_BYTES_TOTAL), 2ull * N * PAGE);
		/* one READ from device 1 to device 0, and one WRITE back */
		for (unsigned k = 0; k < 2; k++) {
			assert_int_equal(g.rig.counters.gpus[k].read, 1ull * N * PAGE);
			assert_int_equal(g.rig.counters.gpus[k].written, 1ull * N * PAGE);
		}
		gpu_rig_deinit(&g);
	}
	free(ops);
}

/* On a device that MPS shares, copies to and from the host are large ones: each waits for a kernel of an engine to end. */
static void on_a_shared_device(void **state)
{
	enum { N = 512, PAGE = 64 * KIB };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));

	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = i * PAGE;
		ops[i][1] = i * 7 % N * PAGE;
		ops[i][2] = PAGE;
	}
	for (unsigned i = 0; i < 4; i++) {
		bool write = i & 1, shared = i & 2;
		struct gpu_rig g;

		gpu_rig_init(&g, PIECES);
		g.queues[0].shared = shared;
		gpu_rig_lists(&g);
		gpu_rig_region(&g, 0, N * PAGE, 1);
		gpu_rig_region(&g, -1, N * PAGE, 1);
		gpu_rig_pin(&g, &g.regions[1].region);
		move(&g, write, 1, 2, (const uint64_t(*)[3])ops, N);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), shared ? 1 : 4);
		gpu_rig_deinit(&g);
	}
	free(ops);
}

/*
 * Lists that devices read in place need no room. They stay allocated while they are read, and are
 * reused afterwards.
 */
static void lists(void **state)
{
	enum { N = 40000, PAGE = 64, ROOM = 1024, TRANSFERS = 90 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));
	struct gpu_rig g;

	gpu_rig_init(&g, ROOM);
	gpu_rig_lists(&g);
	g.s.shared.ops_max = 1u << 24;
	gpu_rig_region(&g, 0, 2 * N * PAGE, 1);
	gpu_rig_region(&g, 1, 2 * N * PAGE, 1);
	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = i * 2 * PAGE;
		ops[i][1] = (i * 7 % N * 2 + 1) * PAGE;
		ops[i][2] = PAGE;
	}
	/* the operations of a whole slice, and the rest */
	move(&g, false, 1, 2, (const uint64_t(*)[3])ops, N);
	assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 2);
	move(&g, true, 1, 2, (const uint64_t(*)[3])ops, N);
	assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 4);
	for (unsigned k = 0; k < TRANSFERS; k++) {
		gpu_rig_submit(&g, k, true, 1, 2, (const uint64_t(*)[3])ops + k,
			       500 + k * 997 % 20000);
		if (k % 7 == 3)
			xfer_stop(&g.rig.core, gpu_rig_xfer(&g, k), DRAY_E_SESSION_CLOSED, NULL,
				  true);
		if (k % 5 == 4)
			gpu_rig_turn(&g);
	}
	gpu_rig_until(&g, 2 + TRANSFERS);
	for (unsigned i = 2; i < 2 + TRANSFERS; i++)
		assert_int_equal(g.rig.ended[i].code,
				 g.rig.ended[i].request_id % 7 == 3 ? DRAY_E_SESSION_CLOSED : 0);
	move(&g, false, 1, 2, (const uint64_t(*)[3])ops, N);
	gpu_rig_deinit(&g);
	free(ops);
}

/* A list that a lost device may still read is not written. */
static void lists_of_a_lost_device(void **state)
{
	enum { N = 40000 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));
	const struct xfer_op *lost;
	struct gpu_rig g;

	gpu_rig_init(&g, PIECES);
	gpu_rig_lists(&g);
	g.s.shared.ops_max = 1u << 24;
	gpu_rig_region(&g, 0, 2 * N, 1);
	gpu_rig_region(&g, 1, 2 * N, 1);
	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = ops[i][1] = 2 * i;
		ops[i][2] = 1;
	}
	fake_gpu_hold(true);
	gpu_rig_submit(&g, 0, true, 1, 1, (const uint64_t(*)[3])ops, N);
	gpu_rig_turn(&g);
	gpu_rig_held(1);
	lost = gpu_rig_xfer(&g, 0)->ops;
	assert_true(gpu_rig_xfer(&g, 0)->ops_pinned);
	fake_gpu_lose(0, true);
	gpu_rig_until(&g, 1);
	assert_int_equal(g.rig.ended[0].code, DRAY_E_GPU_LOST);
	for (unsigned k = 1; k < 10; k++)
		gpu_rig_submit(&g, k, true, 2, 2, (const uint64_t(*)[3])ops, N);
	for (unsigned k = 1; k < 10; k++) {
		assert_ptr_not_equal(gpu_rig_xfer(&g, k)->ops, lost);
		/* from memory for eight lists */
		assert_int_equal(gpu_rig_xfer(&g, k)->ops_pinned, k < 8);
	}
	fake_gpu_hold(false);
	gpu_rig_until(&g, 10);
	gpu_rig_deinit(&g);
	free(ops);
}

/* A worker that sleeps with one copy in flight is woken by its end; with several it does not sleep for long. */
static void wakes(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 16 * KIB } };
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	gpu_rig_init(&g, PIECES);
	gpu_rig_region(&g, 0, MIB, 1);
	for (unsigned i = 0; i < 20; i++) {
		fake_gpu_hold(true);
		gpu_rig_submit(&g, i, true, 1, 1, op, 1);
		gpu_rig_turn(&g);
		assert_false(transport_gpu.announce(c, c->transport_state[1]));
		fake_gpu_hold(false);
		while (loop_turn(&c->loop, DRAY_NS_PER_SEC) != 1)
			;
		gpu_rig_turn(&g);
		assert_int_equal(g.rig.n_ended, i + 1);
	}
	assert_int_equal(transport_gpu.tick(c, c->transport_state[1]), INT64_MAX);
	fake_gpu_hold(true);
	for (unsigned i = 0; i < 2; i++) {
		gpu_rig_submit(&g, i, true, 1, 1, op, 1);
		gpu_rig_turn(&g);
	}
	assert_false(transport_gpu.announce(c, c->transport_state[1]));
	assert_true(transport_gpu.tick(c, c->transport_state[1]) - c->now_ns < DRAY_NS_PER_MS);
	fake_gpu_hold(false);
	gpu_rig_until(&g, 22);
	gpu_rig_deinit(&g);
}

/* A queue that should end soon is polled if that is allowed, but not if it makes no progress. */
static void polls(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 16 * KIB } };
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	gpu_rig_init(&g, PIECES);
	gpu_rig_region(&g, 0, 4 * MIB, 1);
	gpu_rig_region(&g, -1, 40 * MIB, 1);
	gpu_rig_pin(&g, &g.regions[1].region);
	fake_gpu_hold(true);
	gpu_rig_submit(&g, 0, true, 1, 1, op, 1);
	gpu_rig_turn(&g);
	assert_true(transport_gpu.tick(c, c->transport_state[1]) > c->now_ns);
	c->cfg.poll_time_ns = 1;
	assert_int_equal(transport_gpu.tick(c, c->transport_state[1]), c->now_ns);
	c->now_ns += DRAY_NS_PER_MS / 2;
	assert_true(transport_gpu.tick(c, c->transport_state[1]) > c->now_ns);
	/* nor does the check of the device's health count as progress */
	c->now_ns += DRAY_NS_PER_MS;
	for (unsigned i = 0; i < 2; i++)
		assert_true(transport_gpu.tick(c, c->transport_state[1]) > c->now_ns);
	fake_gpu_hold(false);
	gpu_rig_until(&g, 1);
	/* over PCIe the copy takes 200 times as long, long enough to sleep */
	fake_gpu_hold(true);
	for (unsigned i = 0; i < 20; i++)
		gpu_rig_submit(&g, 1 + i, true, 1, 2, (const uint64_t[1][3]){ { 0, 0, MIB } }, 1);
	gpu_rig_turn(&g);
	assert_true(transport_gpu.tick(c, c->transport_state[1]) > c->now_ns);
	fake_gpu_hold(false);
	gpu_rig_until(&g, 21);
	gpu_rig_deinit(&g);
}

/* With little room for pieces a list takes several copies, and the rest waits. */
static void little_room(void **state)
{
	enum { N = 1000, ROOM = 48 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));
	struct gpu_rig g;

	gpu_rig_init(&g, ROOM);
	gpu_rig_region(&g, 0, N * 300, 3);
	gpu_rig_region(&g, 1, N * 300, 7);
	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = i * 300;
		ops[i][1] = (N - 1 - i) * 299;
		ops[i][2] = 1 + i % 299;
	}
	move(&g, false, 1, 2, (const uint64_t(*)[3])ops, N);
	for (unsigned k = 0; k < 40; k++)
		gpu_rig_submit(&g, 1 + k, false, 1, 2, (const uint64_t(*)[3])ops, 1 + k * 7 % 100);
	gpu_rig_until(&g, 41);
	for (unsigned k = 0; k < 41; k++)
		assert_int_equal(g.rig.ended[k].code, 0);
	assert_true(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL) >= N / ROOM);
	gpu_rig_deinit(&g);
	free(ops);
}

/* Small transfers that arrive together share a launch. */
static void many_small_ones(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 16 * KIB } };
	struct gpu_rig g;

	gpu_rig_init(&g, PIECES);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	for (unsigned k = 0; k < 30; k++)
		gpu_rig_submit(&g, k, true, 1, 2, op, 1);
	gpu_rig_until(&g, 30);
	assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 1);
	gpu_rig_deinit(&g);
}

static void words(void **state)
{
	const uint64_t op[1][3] = { { 0, 64 * KIB, 64 * KIB } };
	struct xfer_request r = { .request_id = 9,
				  .spec.flags = DMSG_TRANSFER_FLAG_WAIT | DMSG_TRANSFER_FLAG_SET,
				  .spec.local = gpu_rig_handle(1),
				  .spec.remote = gpu_rig_handle(2),
				  .spec.wait_region = gpu_rig_handle(3),
				  .spec.wait_value = 7,
				  .spec.set_region = gpu_rig_handle(3),
				  .spec.set_offset = 4,
				  .spec.set_value = 8 };
	struct dray_err err = DRAY_ERR_NULL;
	struct rig_region *words;
	struct gpu_rig g;
	_Atomic uint32_t *w;

	gpu_rig_init(&g, PIECES);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 1, MIB, 1);
	words = gpu_rig_region(&g, -1, 4096, 1);
	w = (_Atomic uint32_t *)(void *)words->memory;
	w[0] = w[1] = 0;
	assert_int_equal(rig_submit(&g.rig, &g.s, &r, op, 1, &err), 0);
	gpu_rig_turn(&g);
	assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 0);
	atomic_store(&w[0], 7);
	gpu_rig_until(&g, 1);
	assert_int_equal(atomic_load(&w[1]), 8);
	assert_memory_equal(g.regions[0].region.memory, g.regions[1].region.memory + 64 * KIB,
			    64 * KIB);
	/* words cannot be in GPU memory, because CPUs access them */
	r.spec.set_region = gpu_rig_handle(1);
	assert_true(rig_submit(&g.rig, &g.s, &r, op, 1, &err) < 0);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
	gpu_rig_deinit(&g);
}

/* Copies in flight end by themselves, others do not begin; the other transfer of the launch continues. */
static void stopped(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 64 * KIB } };
	const uint64_t big[1][3] = { { 0, 0, 40 * MIB } };
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, 40 * MIB, 1);
	gpu_rig_region(&g, 0, 40 * MIB, 1);
	fake_gpu_hold(true);
	gpu_rig_submit(&g, 1, true, 1, 2, op, 1);
	gpu_rig_submit(&g, 2, true, 1, 2, op, 1);
	gpu_rig_submit(&g, 3, true, 1, 2, big, 1);
	gpu_rig_turn(&g);
	gpu_rig_held(1);
	xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 1), DRAY_E_CANCELLED, NULL, false);
	xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 3), DRAY_E_CANCELLED, NULL, false);
	gpu_rig_turn(&g);
	assert_int_equal(g.rig.n_ended, 0);
	fake_gpu_hold(false);
	gpu_rig_until(&g, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(g.rig.ended[i].code,
				 g.rig.ended[i].request_id == 2 ? 0 : DRAY_E_CANCELLED);
	assert_true(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL) < 160 / 64 + 1);
	gpu_rig_deinit(&g);
}

/* After an urgent stop no byte moves any more, and no other transfer ends inside it. */
static void stopped_at_once(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 4 * MIB } };
	struct gpu_rig g;

	gpu_rig_init(&g, PIECES);
	gpu_rig_region(&g, 0, 4 * MIB, 1);
	gpu_rig_region(&g, 1, 4 * MIB, 1);
	for (unsigned k = 0; k < 20; k++) {
		unsigned before = g.rig.n_ended;
		uint8_t *seen dray_auto_free = malloc(4 * MIB);

		memset(g.regions[1].region.memory, (int)k, 4 * MIB);
		gpu_rig_submit(&g, 2 * k, true, 1, 2, op, 1);
		gpu_rig_submit(&g, 2 * k + 1, true, 1, 2, op, 1);
		gpu_rig_turn(&g);
		xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 2 * k), DRAY_E_SESSION_CLOSED, NULL, true);
		assert_int_equal(g.rig.n_ended, before + 1);
		xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 2 * k + 1), DRAY_E_SESSION_CLOSED, NULL,
			  true);
		assert_int_equal(g.rig.n_ended, before + 2);
		memcpy(seen, g.regions[1].region.memory, 4 * MIB);
		gpu_rig_turn(&g);
		assert_memory_equal(seen, g.regions[1].region.memory, 4 * MIB);
	}
	gpu_rig_deinit(&g);
}

/* Every transfer ends once, because of the lost device, in any state. */
static void lost(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 300 * KIB } };
	const uint64_t big[1][3] = { { 0, 0, 40 * MIB } };

	for (unsigned how = 0; how < 3; how++) {
		struct gpu_rig g;

		gpu_rig_init(&g, 64);
		gpu_rig_region(&g, 0, 40 * MIB, 1);
		gpu_rig_region(&g, 0, 40 * MIB, 1);
		gpu_rig_region(&g, 1, 40 * MIB, 1);
		fake_gpu_hold(true);
		for (unsigned k = 0; k < 90; k++)
			gpu_rig_submit(&g, k, true, 1, 2, k == 40 ? big : op, 1);
		gpu_rig_turn(&g);
		gpu_rig_held(1);
		fake_gpu_lose(0, true);
		if (how == 1)
			gpu_rig_submit(&g, 90, true, 1, 2, op, 1);
		if (how == 2)
			xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 3), DRAY_E_SESSION_CLOSED, NULL,
				  true);
		fake_gpu_hold(how == 2);
		gpu_rig_until(&g, how == 1 ? 91 : 90);
		for (unsigned i = 0; i < g.rig.n_ended; i++)
			assert_int_equal(g.rig.ended[i].code,
					 how == 2 && g.rig.ended[i].request_id == 3 ?
						 DRAY_E_SESSION_CLOSED :
						 DRAY_E_GPU_LOST);
		assert_int_equal(g.rig.n_told, 1);
		assert_int_equal(g.rig.told[0].type, GPU_LOST);
		assert_int_equal(g.rig.told[0].id, 0);
		/* the other device continues */
		fake_gpu_hold(false);
		gpu_rig_submit(&g, 100, true, 3, 3, big, 1);
		gpu_rig_until(&g, g.rig.n_ended + 1);
		assert_int_equal(g.rig.ended[g.rig.n_ended - 1].code, 0);
		gpu_rig_deinit(&g);
	}
}

static const struct gpu_rig *asking;
static struct gpu_queue *asked[8];
static unsigned n_asked;

static int ask(struct gpu_queue *q)
{
	/* the query may take a while, and others begin copies meanwhile */
	assert_int_equal(asking->rig.n_told, 1);
	asked[n_asked++ % 8] = q;
	return gpu_plugin_ops.check(q);
}

/* Those who wait for any queue of a device are told when one of them failed. */
static void lost_with_all_queues(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 300 * KIB } };
	struct gpu_plugin_ops ops = gpu_plugin_ops;
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	ops.check = ask;
	g.queues[0].ops = &ops;
	n_asked = 0;
	asking = &g;
	fake_gpu_lose(0, true);
	gpu_rig_submit(&g, 1, true, 1, 2, op, 1);
	gpu_rig_until(&g, 1);
	assert_int_equal(g.rig.ended[0].code, DRAY_E_GPU_LOST);
	assert_int_equal(n_asked, GPU_LANE_COPY_N);
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++)
		assert_ptr_equal(asked[k], g.queues[0].queue[k]);
	gpu_rig_deinit(&g);
}

static unsigned n_submitted;

static int lose_before_the_second(struct gpu_queue *q, const struct gpu_copy *c)
{
	if (n_submitted++)
		fake_gpu_lose(0, true);
	return gpu_plugin_ops.submit(q, c);
}

/* The device is lost between two copies of one slice: the slice ends once, after the first of them. */
static void lost_between_copies_of_a_slice(void **state)
{
	/* pieces for the kernel, for a copy engine, and for the kernel again */
	const uint64_t op[][3] = { { 0, 0, 4096 },
				   { 64 * KIB, 64 * KIB, 3 * MIB },
				   { 5 * MIB, 5 * MIB, 4096 } };

	for (unsigned stop = 0; stop < 2; stop++) {
		struct gpu_plugin_ops ops = gpu_plugin_ops;
		struct gpu_rig g;

		gpu_rig_init(&g, 64);
		gpu_rig_region(&g, 0, 8 * MIB, 1);
		gpu_rig_region(&g, -1, 8 * MIB, 1);
		gpu_rig_pin(&g, &g.regions[1].region);
		ops.submit = lose_before_the_second;
		g.queues[0].ops = &ops;
		n_submitted = 0;
		fake_gpu_hold(true);
		gpu_rig_submit(&g, 0, true, 1, 2, op, DRAY_ARRAY_SIZE(op));
		gpu_rig_turn(&g);
		assert_int_equal(n_submitted, 2);
		if (stop)
			xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 0), DRAY_E_CANCELLED, NULL, false);
		gpu_rig_until(&g, 1);
		assert_int_equal(g.rig.ended[0].code, DRAY_E_GPU_LOST);
		fake_gpu_hold(false);
		gpu_rig_deinit(&g);
	}
}

/* The transfers of a copy that the driver refuses end alone, after the copies of theirs that are in flight. */
static void refused(void **state)
{
	/* the second piece takes a copy of its own */
	const uint64_t two[][3] = { { 0, 0, 4096 }, { 64 * KIB, 64 * KIB, 3 * MIB } };
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, 8 * MIB, 1);
	gpu_rig_region(&g, -1, 8 * MIB, 1);
	gpu_rig_pin(&g, &g.regions[1].region);
	fake_gpu_hold(true);
	gpu_rig_submit(&g, 0, true, 1, 2, two, 1);
	gpu_rig_turn(&g);
	gpu_rig_held(1);
	fake_gpu_refuse(true);
	gpu_rig_submit(&g, 1, true, 1, 2, two, 2);
	gpu_rig_turn(&g);
	fake_gpu_refuse(false);
	gpu_rig_submit(&g, 2, true, 1, 2, two, 2);
	gpu_rig_turn(&g);
	assert_int_equal(g.rig.n_ended, 0);
	fake_gpu_hold(false);
	gpu_rig_until(&g, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(g.rig.ended[i].code,
				 g.rig.ended[i].request_id == 1 ? DRAY_E_INTERNAL : 0);
	/* both copies were refused in one turn */
	assert_int_equal(g.rig.n_told, 1);
	assert_true(gpu_rig_told(&g, GPU_REFUSED, 0));
	assert_string_equal(g.rig.told[0].arg, "fakeErrorRefused");
	gpu_rig_deinit(&g);
}

static int refuse_as(struct gpu_queue *q, const struct gpu_copy *copy, const char *error)
{
	int r;

	/* an announcement has no pieces */
	fake_gpu_refuse(copy->n);
	r = gpu_plugin_ops.submit(q, copy);
	fake_gpu_refuse(false);
	if (copy->n)
		q->refusal = error;
	return r;
}

static int refuse_first(struct gpu_queue *q, const struct gpu_copy *copy)
{
	return refuse_as(q, copy, "fakeErrorFirst");
}

static int refuse_second(struct gpu_queue *q, const struct gpu_copy *copy)
{
	return refuse_as(q, copy, "fakeErrorSecond");
}

static char why[2][128];

static void note_detail(struct rig *r, struct xfer *x)
{
	snprintf(why[x->request_id], sizeof(why[0]), "%s", x->detail);
}

/* Two devices refuse copies in one turn, and each transfer ends with the error of its own. */
static void refused_by_two_devices(void **state)
{
	const uint64_t op[][3] = { { 0, 0, 4096 } };
	struct gpu_plugin_ops ops[2] = { gpu_plugin_ops, gpu_plugin_ops };
	struct gpu_rig g;

	ops[0].submit = refuse_first;
	ops[1].submit = refuse_second;
	gpu_rig_init(&g, 64);
	for (unsigned i = 0; i < 2; i++) {
		gpu_rig_region(&g, (int)i, MIB, 1);
		gpu_rig_region(&g, (int)i, MIB, 1);
		g.queues[i].ops = &ops[i];
	}
	g.rig.on_end = note_detail;
	for (unsigned i = 0; i < 2; i++)
		gpu_rig_submit(&g, i, true, 2 * i + 1, 2 * i + 2, op, 1);
	gpu_rig_until(&g, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(g.rig.ended[i].code, DRAY_E_INTERNAL);
	assert_string_equal(why[0],
			    "the GPU driver refused a copy of the transfer: fakeErrorFirst");
	assert_string_equal(why[1],
			    "the GPU driver refused a copy of the transfer: fakeErrorSecond");
	for (unsigned i = 0; i < 2; i++)
		g.queues[i].ops = &gpu_plugin_ops;
	gpu_rig_deinit(&g);
}

static unsigned refused_part;

static int refuse_part(struct gpu_queue *q, const struct gpu_copy *copy)
{
	int r;

	/* an announcement has no pieces */
	fake_gpu_refuse(copy->n && n_submitted++ == refused_part);
	r = gpu_plugin_ops.submit(q, copy);
	fake_gpu_refuse(false);
	return r;
}

/* A slice of several copies fails, whichever of them the driver refuses. */
static void refused_part_of_a_slice(void **state)
{
	const uint64_t op[][3] = { { 0, 0, 4096 },
				   { 64 * KIB, 64 * KIB, 3 * MIB },
				   { 5 * MIB, 5 * MIB, 4096 } };
	struct gpu_plugin_ops ops = gpu_plugin_ops;

	ops.submit = refuse_part;
	for (refused_part = 0; refused_part < DRAY_ARRAY_SIZE(op); refused_part++) {
		struct gpu_rig g;

		gpu_rig_init(&g, 64);
		gpu_rig_region(&g, 0, 8 * MIB, 1);
		gpu_rig_region(&g, -1, 8 * MIB, 1);
		gpu_rig_pin(&g, &g.regions[1].region);
		g.queues[0].ops = &ops;
		n_submitted = 0;
		gpu_rig_submit(&g, 0, true, 1, 2, op, DRAY_ARRAY_SIZE(op));
		gpu_rig_until(&g, 1);
		assert_int_equal(n_submitted, DRAY_ARRAY_SIZE(op));
		assert_int_equal(g.rig.ended[0].code, DRAY_E_INTERNAL);
		g.queues[0].ops = &gpu_plugin_ops;
		gpu_rig_deinit(&g);
	}
}

/* Looks at the queues once a millisecond, without waiting for that. */
static void look(struct gpu_rig *g, unsigned times)
{
	struct core *c = &g->rig.core;

	for (unsigned i = 0; i < times; i++) {
		c->now_ns += DRAY_NS_PER_MS;
		transport_gpu.tick(c, c->transport_state[1]);
	}
}

/*
 * A transfer that was stopped does not wait for ever for a device that hangs: this counts as lost. A device that MPS shares may be
 * busy for any time.
 */
static void hangs(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 64 * KIB } };

	for (unsigned shared = 0; shared < 2; shared++) {
		struct gpu_rig g;

		gpu_rig_init(&g, 64);
		g.queues[0].shared = shared;
		g.rig.core.cfg.slice_timeout_ns = 20 * (int64_t)DRAY_NS_PER_MS;
		gpu_rig_region(&g, 0, MIB, 1);
		fake_gpu_hold(true);
		gpu_rig_submit(&g, 0, true, 1, 1, op, 1);
		gpu_rig_turn(&g);
		gpu_rig_held(1);
		look(&g, 100);
		assert_int_equal(g.rig.n_told, 0);
		xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 0), DRAY_E_DEADLINE, NULL, false);
		look(&g, 10);
		assert_int_equal(g.rig.n_told, 0);
		assert_int_equal(g.rig.n_ended, 0);
		look(&g, 100);
		assert_int_equal(gpu_rig_told(&g, GPU_LOST, 0), !shared);
		fake_gpu_hold(!shared);
		gpu_rig_until(&g, 1);
		/* the copies of a device that hangs may go on */
		assert_int_equal(g.rig.ended[0].code, shared ? DRAY_E_DEADLINE : DRAY_E_GPU_LOST);
		fake_gpu_hold(false);
		while (!atomic_load(g.queues[0].queue[0]->done) &&
		       !atomic_load(g.queues[0].queue[1]->done))
			sched_yield();
		gpu_rig_deinit(&g);
	}
}

static void busy(struct gpu_rig *g, unsigned device)
{
	atomic_store(&g->loads[device].busy, true);
	/* probes of the test's own time would change it */
	atomic_store(&g->loads[device].due_ns, INT64_MAX);
}

/* Each way of copying beside a busy device moves every byte, and its bytes are counted. */
static void ways_beside_a_busy_device(void **state)
{
	enum { N = 700, PAGE = 32 << 10, FEW = 40 };
	static const struct {
		int local, remote; /* a read, so `local` is the destination */
		bool other_busy;
		enum dmsg_gpu_way few, many;
	} rows[] = {
		{ 0, 1, false, DMSG_GPU_WAY_OTHER_KERNEL, DMSG_GPU_WAY_OTHER_KERNEL },
		{ 0, 1, true, DMSG_GPU_WAY_COPY_ENGINE, DMSG_GPU_WAY_COPY_ENGINE },
		{ 1, 0, false, DMSG_GPU_WAY_KERNEL, DMSG_GPU_WAY_KERNEL },
		{ 0, 0, false, DMSG_GPU_WAY_COPY_ENGINE, DMSG_GPU_WAY_KERNEL },
		{ 0, -1, false, DMSG_GPU_WAY_COPY_ENGINE, DMSG_GPU_WAY_COPY_ENGINE },
		{ -1, 0, false, DMSG_GPU_WAY_COPY_ENGINE, DMSG_GPU_WAY_COPY_ENGINE },
	};
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));

	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = i * 2 * PAGE + 1;
		ops[i][1] = (i * 3 % N * 2 + 1) * PAGE;
		ops[i][2] = PAGE;
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		uint64_t engines = rows[i].few == DMSG_GPU_WAY_COPY_ENGINE ? FEW * PAGE : 0;
		uint64_t other = rows[i].few == DMSG_GPU_WAY_OTHER_KERNEL ? FEW * PAGE : 0;
		struct gpu_rig g;

		gpu_rig_init_watched(&g, 1024);
		gpu_rig_region(&g, rows[i].local, (2 * N + 1) * PAGE, 1);
		gpu_rig_region(&g, rows[i].remote, (2 * N + 1) * PAGE, 1);
		for (unsigned k = 0; k < 2; k++)
			if (!g.regions[k].import)
				gpu_rig_pin(&g, &g.regions[k].region);
		busy(&g, 0);
		if (rows[i].other_busy)
			busy(&g, 1);
		else
			atomic_store(&g.loads[1].due_ns, INT64_MAX);
		move(&g, false, 1, 2, (const uint64_t(*)[3])ops, FEW);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_ENGINE_BYTES_TOTAL), engines);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_OTHER_KERNEL_BYTES_TOTAL), other);
		move(&g, false, 1, 2, (const uint64_t(*)[3])ops, N);
		engines += rows[i].many == DMSG_GPU_WAY_COPY_ENGINE ? N * PAGE : 0;
		other += rows[i].many == DMSG_GPU_WAY_OTHER_KERNEL ? N * PAGE : 0;
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_ENGINE_BYTES_TOTAL), engines);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_OTHER_KERNEL_BYTES_TOTAL), other);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_BYTES_TOTAL), (FEW + N) * PAGE);
		gpu_rig_deinit(&g);
	}
	free(ops);
}

/* A load that changes in the middle of a transfer changes the way of its rest. */
static void the_load_changes(void **state)
{
	enum { N = 3000, PAGE = 4096, ROOM = 64 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));
	struct rig_region *to, *from;
	struct gpu_rig g;

	gpu_rig_init_watched(&g, ROOM);
	to = gpu_rig_region(&g, 0, 2 * N * PAGE, 1);
	from = gpu_rig_region(&g, 1, 2 * N * PAGE, 1);
	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = ops[i][1] = i * 2 * PAGE;
		ops[i][2] = PAGE;
	}
	for (unsigned d = 0; d < GPU_RIG_DEVICES; d++)
		atomic_store(&g.loads[d].due_ns, INT64_MAX);
	gpu_rig_submit(&g, 0, false, 1, 2, (const uint64_t(*)[3])ops, N);
	for (unsigned i = 0; g.rig.n_ended < 1; i++) {
		atomic_store(&g.loads[0].busy, i % 3 > 0);
		gpu_rig_turn(&g);
	}
	assert_int_equal(g.rig.ended[0].code, 0);
	for (uint64_t i = 0; i < N; i++)
		assert_true(!memcmp(rig_at(to, ops[i][0]), rig_at(from, ops[i][1]), PAGE));
	gpu_rig_deinit(&g);
	free(ops);
}

/* The other device is lost while it copies a part of a slice: the transfer ends, although its own device works. */
static void the_other_device_is_lost(void **state)
{
	enum { N = 600, PAGE = 4096 };
	uint64_t(*ops)[3] = malloc(N * sizeof(*ops));
	struct gpu_rig g;

	gpu_rig_init_watched(&g, 64);
	gpu_rig_region(&g, 0, 2 * N * PAGE, 1);
	gpu_rig_region(&g, 1, 2 * N * PAGE, 1);
	for (uint64_t i = 0; i < N; i++) {
		ops[i][0] = ops[i][1] = i * 2 * PAGE;
		ops[i][2] = PAGE;
	}
	busy(&g, 0);
	atomic_store(&g.loads[1].due_ns, INT64_MAX);
	fake_gpu_hold(true);
	gpu_rig_submit(&g, 0, false, 1, 2, (const uint64_t(*)[3])ops, N);
	gpu_rig_turn(&g);
	gpu_rig_held(1);
	fake_gpu_lose(1, true);
	gpu_rig_until(&g, 1);
	assert_int_equal(g.rig.ended[0].code, DRAY_E_GPU_LOST);
	fake_gpu_hold(false);
	gpu_rig_deinit(&g);
	free(ops);
}

/* The memory is seen to be open before the command that tells of its device, so no transport reaches it yet. */
static void open_before_its_device(void **state)
{
	enum { WAIT, REFUSE, CASES };
	const uint64_t op[][3] = { { 0, 0, 4096 } };
	uint32_t open[2] = { 1, 0 };

	for (unsigned i = 0; i < CASES; i++) {
		struct rig_region *to, *from;
		struct object *o;
		struct gpu_rig g;

		gpu_rig_init(&g, PIECES);
		gpu_rig_device(&g, 0, false);
		to = gpu_rig_region(&g, 0, MIB, 1);
		from = gpu_rig_region(&g, 0, MIB, 1);
		to->view->n_parts = 1;
		to->view->open = open;
		o = object_find(&g.rig.core, OBJECT_REGION, to->view->o.handle);
		o->open = false;
		gpu_rig_submit(&g, 0, false, 1, 2, op, 1);
		for (unsigned k = 0; k < 3; k++)
			gpu_rig_turn(&g);
		assert_int_equal(g.rig.n_ended, 0);
		/* no time, but only those commands let it go on */
		assert_true(waits_tick(&g.rig.core) == INT64_MAX);
		if (i == WAIT)
			gpu_rig_device(&g, 0, true);
		else
			object_set_open(&g.rig.core, to->view->o.handle);
		if (i == REFUSE)
			xfers_opened(&g.rig.core, to->view->o.handle);
		gpu_rig_until(&g, 1);
		assert_int_equal(g.rig.ended[0].code, i == WAIT ? 0 : DRAY_E_UNSUPPORTED);
		assert_true(i == REFUSE || !memcmp(rig_at(to, 0), rig_at(from, 0), 4096));
		gpu_rig_deinit(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_path),
		cmocka_unit_test(pages),
		cmocka_unit_test(on_a_shared_device),
		cmocka_unit_test(little_room),
		cmocka_unit_test(many_small_ones),
		cmocka_unit_test(wakes),
		cmocka_unit_test(polls),
		cmocka_unit_test(words),
		cmocka_unit_test(stopped),
		cmocka_unit_test(stopped_at_once),
		cmocka_unit_test(lost),
		cmocka_unit_test(lists),
		cmocka_unit_test(lists_of_a_lost_device),
		cmocka_unit_test(lost_with_all_queues),
		cmocka_unit_test(lost_between_copies_of_a_slice),
		cmocka_unit_test(refused),
		cmocka_unit_test(refused_by_two_devices),
		cmocka_unit_test(refused_part_of_a_slice),
		cmocka_unit_test(hangs),
		cmocka_unit_test(ways_beside_a_busy_device),
		cmocka_unit_test(the_load_changes),
		cmocka_unit_test(the_other_device_is_lost),
		cmocka_unit_test(open_before_its_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
