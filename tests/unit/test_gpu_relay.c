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
#include "tests/gpu/fake_internal.h"
#include "tests/unit/gpu_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)
#define N 900
#define MEMORY (2 * MIB)
/* Pieces that a queue holds. */
#define PIECES 300
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
static void lab_init_extents(struct lab *l, int to, uint32_t to_extents, int from, enum shape shape)
{
	memset(l, 0, sizeof(*l));
	gpu_rig_init_watched(&l->g, PIECES);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++) {
		l->g.queues[i].copy = DRAY_CONFIG_GPU_COPY_STAGED;
		l->g.queues[i].copy_memory = 64 * MIB;
	}
	l->to = gpu_rig_region(&l->g, to, 16 * MIB, to_extents);
	l->from = gpu_rig_region(&l->g, from, 16 * MIB, from < 0 ? 1 : 4);
	for (unsigned k = 0; k < 2; k++)
		if (!l->g.regions[k].import)
			gpu_rig_pin(&l->g, &l->g.regions[k].region);
	ops_make(l, shape);
	l->want = malloc(l->to->bytes);
	assert_non_null(l->want);
	memcpy(l->want, l->to->memory, l->to->bytes);
}

static void lab_init(struct lab *l, int to, int from, enum shape shape)
{
	lab_init_extents(l, to, 1, from, shape);
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

/* Reads the source, whose bytes follow each other only within an extent. */
static void source_read(struct lab *l, uint8_t *to, uint64_t at, uint64_t bytes)
{
	uint64_t extent = l->from->bytes / l->from->view->n_extents, n;

	for (; bytes; to += n, at += n, bytes -= n) {
		n = dray_min(bytes, extent - at % extent);
		memcpy(to, rig_at(l->from, at), n);
	}
}

static void expect_bytes(struct lab *l)
{
	for (unsigned i = 0; i < N; i++)
		source_read(l, l->want + l->ops[i][0], l->ops[i][1], l->ops[i][2]);
	assert_true(!memcmp(l->want, l->to->memory, l->to->bytes));
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
static void memory_give_bytes(struct lab *l, uint64_t bytes)
{
	submit(l, 99);
	gpu_rig_until(&l->g, 1);
	assert_int_equal(l->g.rig.ended[0].code, 0);
	assert_int_equal(staged(l), 0);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		if (asked(l, i))
			gpu_rig_memory(&l->g, i, bytes);
}

static void memory_give(struct lab *l)
{
	memory_give_bytes(l, MEMORY);
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

/* A copy whose bytes lie in a row on both sides goes through one device's memory only, and keeps that of both. */
static void kept(void **state)
{
	const uint64_t ops[][3] = { { 0, 0, MIB / 4 } };
	struct core *c;
	struct lab l;
	int64_t given;

	lab_init(&l, 1, 0, SCATTERED);
	c = &l.g.rig.core;
	memory_give(&l);
	given = dray_now().ns;
	gpu_rig_submit(&l.g, 1, false, 1, 2, ops, 1);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(staged(&l), MIB / 4);
	c->now_ns = given + 10 * SECOND_NS - 1;
	transport_gpu.tick(c, c->transport_state[1]);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		assert_false(gpu_rig_told(&l.g, GPU_COPY_MEMORY_BACK, i));
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

/* A transfer that is alone gathers at once as many slices as there are parts, so that they take one time slice of the device. */
static void all_parts(void **state)
{
	enum { PARTS = 8, EACH = MEMORY / PARTS, PER_PART = 4, ALL = 2 * PARTS * PER_PART };
	uint64_t ops[ALL][3];
	_Atomic uint64_t *launches;
	uint64_t before, gathers;
	struct lab l;

	for (uint64_t i = 0; i < ALL; i++) {
		ops[i][0] = (ALL - 1 - i) * 2 * EACH / PER_PART;
		ops[i][1] = i * 2 * EACH / PER_PART;
		ops[i][2] = EACH / PER_PART;
	}
	lab_init(&l, 1, 0, SCATTERED);
	memory_give(&l);
	launches = &l.g.rig.counters.v[DRAY_METRIC_GPU_LAUNCHES_TOTAL];
	before = atomic_load(launches);
	fake_gpu_hold(true);
	gpu_rig_submit(&l.g, 1, false, 1, 2, (const uint64_t(*)[3])ops, ALL);
	gpu_rig_turn(&l.g);
	gathers = atomic_load(launches) - before;
	fake_gpu_hold(false);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(gathers, PARTS);
	assert_int_equal(l.g.rig.ended[1].code, 0);
	lab_deinit(&l);
}

/* Beside two busy devices a list of many small pieces is staged, a short one is not. */
static void by_the_load(void **state)
{
	enum { LONG = 8192, EACH = 2048 };
	static uint64_t ops[LONG][3];
	struct lab l;

	lab_init(&l, 1, 0, SCATTERED);
	for (uint64_t i = 0; i < LONG; i++) {
		ops[i][0] = i * 401 % LONG * EACH;
		ops[i][1] = i * 207 % LONG * EACH;
		ops[i][2] = EACH;
	}
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++) {
		l.g.queues[i].copy = DRAY_CONFIG_GPU_COPY_AUTO;
		atomic_store(&l.g.loads[i].busy, true);
		atomic_store(&l.g.loads[i].due_ns, INT64_MAX);
		/* an engine that gets the device back at once */
		atomic_store(&l.g.loads[i].wait_ns, 1);
	}
	gpu_rig_submit(&l.g, 1, false, 1, 2, (const uint64_t(*)[3])ops, LONG);
	gpu_rig_until(&l.g, 1);
	assert_true(asked(&l, 0) && asked(&l, 1));
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		gpu_rig_memory(&l.g, i, 64 * MIB);
	memset(rig_at(l.to, 0), 0, l.to->bytes);
	gpu_rig_submit(&l.g, 2, false, 1, 2, (const uint64_t(*)[3])ops, LONG);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(staged(&l), LONG * EACH);
	for (unsigned i = 0; i < LONG; i++)
		assert_true(!memcmp(rig_at(l.to, ops[i][0]), rig_at(l.from, ops[i][1]), EACH));
	gpu_rig_submit(&l.g, 3, false, 1, 2, (const uint64_t(*)[3])ops, 40);
	gpu_rig_until(&l.g, 3);
	assert_int_equal(staged(&l), LONG * EACH);
	lab_deinit(&l);
}

/* Without gpu.copy_memory no memory is asked for. */
static void no_memory_to_have(void **state)
{
	struct lab l;

	lab_init(&l, 1, 0, SCATTERED);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		l.g.queues[i].copy_memory = 0;
	memory_give(&l);
	assert_false(asked(&l, 0) || asked(&l, 1));
	expect_bytes(&l);
	lab_deinit(&l);
}

static bool has_ended(const struct lab *l, uint64_t id)
{
	for (unsigned i = 0; i < l->g.rig.n_ended; i++)
		if (l->g.rig.ended[i].request_id == id)
			return true;
	return false;
}

/* A transfer of class latency, or one in the other direction, ends beside bulk transfers without end. */
static void beside_a_crowd(void **state)
{
	enum { CROWD = 6, CROWD_MAX = 60, ONE = 1000 };

	for (unsigned i = 0; i < 4; i++) {
		bool latency = i % 2;
		struct xfer_request one = {
			.request_id = ONE,
			.spec.class = latency ? DMSG_CLASS_LATENCY : DMSG_CLASS_BULK,
			.spec.direction = latency ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE,
			.spec.local = gpu_rig_handle(1),
			.spec.remote = gpu_rig_handle(2)
		};
		struct dray_err err = DRAY_ERR_NULL;
		struct lab l;
		unsigned n = 0;

		lab_init(&l, i < 2 ? 1 : -1, 0, SCATTERED);
		memory_give(&l);
		while (n < CROWD)
			submit(&l, n++);
		while (!staged(&l))
			gpu_rig_turn(&l.g);
		assert_int_equal(rig_submit(&l.g.rig, &l.g.s, &one, (const uint64_t(*)[3])l.ops, N,
					    &err),
				 0);
		while (!has_ended(&l, ONE) && n < CROWD_MAX) {
			gpu_rig_turn(&l.g);
			while (n < l.g.rig.n_ended - 1 + CROWD)
				submit(&l, n++);
		}
		assert_true(has_ended(&l, ONE));
		gpu_rig_until(&l.g, n + 2);
		for (unsigned k = 0; k < n + 2; k++)
			assert_int_equal(l.g.rig.ended[k].code, 0);
		lab_deinit(&l);
	}
}

/* Two imports that are neighbours: copy engines get no piece that lies in both. */
static void neighbours(void **state)
{
	/* long runs, which copy engines move to the target itself */
	const uint64_t half = 8 * MIB, each = 6000;
	uint8_t *base;
	struct lab l;

	lab_init_extents(&l, 1, 2, 0, TARGET_RUNS);
	/* the second extent lies before the first one, so the target begins in that and goes on in this */
	for (uint64_t i = 0; i < N; i++) {
		l.ops[i][0] = (i * each + 2 * half - N / 2 * each) % (2 * half);
		l.ops[i][2] = each;
	}
	base = l.to->view->extents[1].base;
	assert_true(base + half == l.to->view->extents[0].base);
	fake_range_del((uintptr_t)base);
	assert_int_equal(fake_range_add((uintptr_t)base, half, l.to->memory, 1, true), 0);
	assert_int_equal(fake_range_add((uintptr_t)base + half, half, l.to->memory + half, 1, true),
			 0);
	/* slices of 2 MiB: one lies in both */
	memory_give_bytes(&l, 16 * MIB);
	submit(&l, 1);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(l.g.rig.ended[1].code, 0);
	assert_int_equal(staged(&l), N * each);
	for (unsigned i = 0; i < N; i++)
		assert_true(!memcmp(rig_at(l.to, l.ops[i][0]), rig_at(l.from, l.ops[i][1]),
				    l.ops[i][2]));
	fake_range_del((uintptr_t)base + half);
	lab_deinit(&l);
}

/* However well pieces can be merged for copy engines, a turn reads no more of them than the queue holds. */
static void bounded_turns(void **state)
{
	enum { SMALL = 3000, EACH = 16 };
	static uint64_t ops[SMALL][3];
	uint64_t copies;
	struct lab l;

	lab_init(&l, 0, -1, SCATTERED);
	memory_give(&l);
	for (uint64_t i = 0; i < SMALL; i++) {
		ops[i][0] = i * 2 * EACH;
		ops[i][1] = i * EACH;
		ops[i][2] = EACH;
	}
	copies = fake_gpu_status()->engine_copies;
	gpu_rig_submit(&l.g, 1, false, 1, 2, (const uint64_t(*)[3])ops, SMALL);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(staged(&l), SMALL * EACH);
	assert_true(fake_gpu_status()->engine_copies - copies >= SMALL / PIECES);
	for (unsigned i = 0; i < SMALL; i++)
		assert_true(!memcmp(rig_at(l.to, ops[i][0]), rig_at(l.from, ops[i][1]), EACH));
	lab_deinit(&l);
}

enum { PAGES = 2048, PAGE = 4096 };

/*
 * Every page of 8 MiB in an order of its own on each side. pair: two pages that are neighbours on both sides, and in the list,
 * become one operation; in the order of their places they lie on both sides of the end of a slice of 2 MiB.
 */
static void pages_make(uint64_t ops[PAGES][3], bool pair)
{
	const uint64_t first = 511 * PAGE;

	for (uint64_t i = 0; i < PAGES; i++) {
		ops[i][0] = i * 401 % PAGES * PAGE;
		ops[i][1] = i * 207 % PAGES * PAGE;
		ops[i][2] = PAGE;
	}
	for (unsigned i = 0; pair && i < 2; i++)
		for (unsigned side = 0; side < 2; side++)
			for (unsigned k = i; k < PAGES; k++)
				if (ops[k][side] == first + i * PAGE) {
					ops[k][side] = ops[i][side];
					ops[i][side] = first + i * PAGE;
					break;
				}
}

/* Pages that a list names in random order, but that fill the host's memory: copy engines move them in long runs. */
static void check_order(bool to_host, bool write, bool pair)
{
	static uint64_t ops[PAGES][3];
	struct lab l;
	uint64_t pieces;

	pages_make(ops, pair);
	/* the first region is the target of a read and the source of a write */
	lab_init(&l, to_host != write ? -1 : 0, to_host != write ? 0 : -1, SCATTERED);
	gpu_rig_submit(&l.g, 1, write, 1, 2, (const uint64_t(*)[3])ops, PAGES);
	gpu_rig_until(&l.g, 1);
	gpu_rig_memory(&l.g, 0, 16 * MIB);
	/* page by page: a region's bytes follow each other only within an extent */
	for (unsigned k = 0; k < PAGES; k++)
		memset(rig_at(write ? l.from : l.to, k * PAGE), 0, PAGE);
	pieces = fake_gpu_status()->pieces;
	gpu_rig_submit(&l.g, 2, write, 1, 2, (const uint64_t(*)[3])ops, PAGES);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(l.g.rig.ended[1].code, 0);
	assert_int_equal(staged(&l), PAGES * PAGE);
	pieces = fake_gpu_status()->pieces - pieces;
	/* the kernel's, and some for copy engines */
	assert_true(pieces > PAGES - 1 && pieces <= PAGES + PAGES / 64);
	for (unsigned k = 0; k < PAGES; k++)
		assert_true(!memcmp(rig_at(l.to, ops[k][0]), rig_at(l.from, ops[k][1]), PAGE));
	lab_deinit(&l);
}

static void in_order(void **state)
{
	for (unsigned i = 0; i < 8; i++)
		check_order(i & 1, i & 2, i & 4);
}

/*
 * Pages of host memory with gaps between them: single ones are read with the page behind them, which goes nowhere, but for the last one
 * of the region.
 */
static void check_gaps(bool write, uint64_t memory, unsigned unpadded)
{
	enum { EACH = 4 * PAGE, SPAN = 1024 };
	static uint64_t ops[SPAN][3];
	struct rig_region *source, *target;
	unsigned n = 0, single = 0;
	uint64_t moved, least;
	struct lab l;

	/* the first region is the target of a read and the source of a write */
	lab_init(&l, write ? -1 : 0, write ? 0 : -1, SCATTERED);
	source = write ? l.to : l.from;
	target = write ? l.from : l.to;
	for (uint64_t i = 0; i < SPAN; i++) {
		/* runs of one, two and three pages */
		if (i % 9 == 1 || i % 9 == 4 || i % 9 == 8)
			continue;
		single += i % 9 == 0 && i + 1 < SPAN;
		ops[n][write ? 0 : 1] = i * EACH;
		ops[n][write ? 1 : 0] = i * 401 % SPAN * EACH;
		ops[n++][2] = EACH;
	}
	for (unsigned i = 0; i < n; i++) { /* in no order */
		uint64_t x[3];

		memcpy(x, ops[i], sizeof(x));
		memcpy(ops[i], ops[i * 401 % n], sizeof(x));
		memcpy(ops[i * 401 % n], x, sizeof(x));
	}
	gpu_rig_submit(&l.g, 1, write, 1, 2, (const uint64_t(*)[3])ops, n);
	gpu_rig_until(&l.g, 1);
	gpu_rig_memory(&l.g, 0, memory);
	for (unsigned i = 0; i < SPAN; i++)
		memset(rig_at(target, i * EACH), 0x5a, EACH);
	moved = fake_gpu_status()->bytes;
	gpu_rig_submit(&l.g, 2, write, 1, 2, (const uint64_t(*)[3])ops, n);
	gpu_rig_until(&l.g, 2);
	assert_int_equal(l.g.rig.ended[1].code, 0);
	assert_int_equal(staged(&l), (uint64_t)n * EACH);
	moved = fake_gpu_status()->bytes - moved;
	least = 2 * (uint64_t)n * EACH + (single - unpadded) * EACH;
	/* runs that slices cut may be short, too */
	assert_true(moved >= least && moved <= least + (unpadded + 32) * EACH);
	for (unsigned i = 0; i < n; i++) {
		uint8_t *at = rig_at(target, ops[i][write]);

		assert_true(!memcmp(at, rig_at(source, ops[i][!write]), EACH));
		memset(at, 0x5a, EACH);
	}
	/* and nothing else */
	memset(l.want, 0x5a, EACH);
	for (unsigned i = 0; i < SPAN; i++)
		assert_true(!memcmp(rig_at(target, i * EACH), l.want, EACH));
	lab_deinit(&l);
}

static void gaps(void **state)
{
	for (unsigned write = 0; write < 2; write++) {
		check_gaps(write, 128 * MIB, 0);
		/* the first slice, which is cut as for copies that are not padded, has no room for that: 2 MiB */
		check_gaps(write, 16 * MIB, 32);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte),
		cmocka_unit_test(within),
		cmocka_unit_test(refused),
		cmocka_unit_test(stopped),
		cmocka_unit_test(lost),
		cmocka_unit_test(idle),
		cmocka_unit_test(memory_goes),
		cmocka_unit_test(both_ways),
		cmocka_unit_test(all_parts),
		cmocka_unit_test(by_the_load),
		cmocka_unit_test(no_memory_to_have),
		cmocka_unit_test(kept),
		cmocka_unit_test(neighbours),
		cmocka_unit_test(beside_a_crowd),
		cmocka_unit_test(bounded_turns),
		cmocka_unit_test(in_order),
		cmocka_unit_test(gaps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
