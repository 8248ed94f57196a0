/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of pieces: the lists of all slices of a transfer copy each byte to its place once, however they are
 * cut. And the choice of the copying device.
 */
#include "agent/data/gpu_queue/way.h"
#include "agent/data/transport/gpu/plan.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)
#define HANDLE(n) (1ull << 32 | (n))

/* A transport that only holds transfers; the test takes their slices. */
static struct channel channel;

static struct channel *hold(struct core *c, void *state, const struct xfer *x)
{
	(void)c;
	(void)state;
	(void)x;
	return &channel;
}

static void kick(struct core *c, void *state, struct channel *ch)
{
	(void)c;
	(void)state;
	(void)ch;
}

static const struct transport_ops holder = {
	.id = DMSG_TRANSPORT_GPU,
	.walks_ops = 300,
	.channel = hold,
	.kick = kick,
};

struct lab {
	struct rig rig;
	struct rig_session s;
	struct region_view *views[2];
	struct remote_view *remote;
	uint8_t *memory[2]; /* by offset */
};

static struct region_view *region(struct lab *l, unsigned n, uint64_t bytes, uint32_t n_extents)
{
	struct region_view *v = calloc(1, sizeof(*v) + n_extents * sizeof(v->extents[0]));

	assert_non_null(v);
	v->o = (struct object_view){ OBJECT_REGION, HANDLE(n), 77, 5, bytes, DMSG_ACCESS_ALL };
	v->memory = REGION_GPU;
	v->n_extents = n_extents;
	/* unequal ones, not adjacent, at inaccessible addresses */
	for (uint32_t i = 0; i < n_extents; i++) {
		uint64_t start = bytes / n_extents * i + (i ? i % 3 : 0);
		uint64_t end = i + 1 == n_extents ? bytes :
						    bytes / n_extents * (i + 1) + (i + 1) % 3;

		v->extents[i] = (struct extent_view){
			.start = start,
			.length = end - start,
			.base = (uint8_t *)(uintptr_t)((uint64_t)(n * 1024 + i) << 30),
			.node = -1
		};
	}
	object_publish(&l->rig.core, &v->o);
	return v;
}

static void lab_init(struct lab *l, uint64_t bytes, uint32_t near, uint32_t far)
{
	memset(l, 0, sizeof(*l));
	rig_init(&l->rig);
	channel_init(&channel, &holder, DMSG_CLASS_BULK, NULL);
	transport_local.deinit(&l->rig.core, l->rig.core.transport_state[0]);
	l->rig.core.transports[0] = &holder;
	rig_session_init(&l->rig, &l->s, 5);
	l->views[0] = region(l, 1, bytes, near);
	l->views[1] = region(l, 2, bytes, far);
	l->remote = calloc(1, sizeof(*l->remote));
	l->remote->o = (struct object_view){ OBJECT_REMOTE, HANDLE(1),      77, 5,
					     bytes - 512,   DMSG_ACCESS_ALL };
	l->remote->is_local = true;
	l->remote->region = HANDLE(2);
	l->remote->offset = 512;
	object_publish(&l->rig.core, &l->remote->o);
	for (unsigned k = 0; k < 2; k++) {
		l->memory[k] = malloc(bytes);
		for (uint64_t i = 0; i < bytes; i++)
			l->memory[k][i] = (uint8_t)(i * 13 + (i >> 9) + k * 77);
	}
}

static void lab_deinit(struct lab *l)
{
	channel_deinit(&channel);
	xfer_session_deinit(&l->s.xs);
	xfers_deinit(&l->rig.core);
	objects_deinit(&l->rig.core);
	loop_deinit(&l->rig.core.loop);
	for (unsigned k = 0; k < 2; k++) {
		free(l->views[k]);
		free(l->memory[k]);
	}
	free(l->remote);
}

/* The bytes at an address of either region; regions with all bytes in one extent. */
static uint8_t *at(struct lab *l, uint64_t address, uint64_t bytes)
{
	unsigned k = (unsigned)(address >> 40) - 1, i = (unsigned)(address >> 30) & 1023;
	const struct extent_view *e;

	assert_true(k < 2 && i < l->views[k]->n_extents);
	e = &l->views[k]->extents[i];
	assert_true(address - (uintptr_t)e->base + bytes <= e->length);
	return l->memory[k] + e->start + (address - (uintptr_t)e->base);
}

/* Carries out a list as a device does. */
static void carry_out(struct lab *l, const struct gpu_plan *p)
{
	uint64_t bytes = 0;

	assert_true(p->n > 0 && p->n <= p->max);
	for (uint32_t i = 0; i < p->n; i++) {
		uint64_t first = (uintptr_t)p->pieces[i].to, second = (uintptr_t)p->pieces[i].from;
		uint64_t n = p->pieces[i].bytes;

		assert_true(n > 0);
		if (p->copy.engine)
			assert_true(n >= p->limits->engine_min);
		else
			assert_true(n <= GPU_PIECE_MAX);
		memcpy(at(l, (p->copy.swapped ? second : first) + p->copy.to_base, n),
		       at(l, (p->copy.swapped ? first : second) + p->copy.from_base, n), n);
		bytes += n;
	}
	assert_int_equal(bytes, p->copy.bytes);
}

/* Takes and carries out all slices, cut at a number of bytes, with room for a number of pieces. */
static unsigned run(struct lab *l, enum gpu_path_kind kind, uint64_t max_bytes, uint32_t room)
{
	struct dray_piece *pieces = malloc(room * sizeof(*pieces));
	unsigned relative = 0;
	struct slice *s;

	while ((s = sched_next(&l->rig.core, &channel, max_bytes))) {
		struct gpu_plan p;
		struct local_walk w;

		gpu_plan_init(&p, kind, pieces, room);
		if (gpu_plan_add_ops(&p, s)) {
			relative++;
			assert_int_equal(p.copy.bytes, s->bytes);
			carry_out(l, &p);
		} else {
			uint64_t bytes = 0;
			bool all;

			local_walk_slice(&w, s);
			do {
				gpu_plan_init(&p, kind, pieces, room);
				all = gpu_plan_add(&p, &w);
				carry_out(l, &p);
				bytes += p.copy.bytes;
			} while (!all);
			assert_int_equal(bytes, s->bytes);
		}
		xfer_slice_done(&l->rig.core, s, 0, NULL);
	}
	free(pieces);
	return relative;
}

static unsigned move(struct lab *l, bool write, const uint64_t (*ops)[3], uint32_t n,
		     enum gpu_path_kind kind, uint64_t max_bytes, uint32_t room)
{
	struct xfer_request r = { .spec.direction = write ? DMSG_DIRECTION_WRITE :
							    DMSG_DIRECTION_READ,
				  .spec.local = HANDLE(1),
				  .spec.remote = HANDLE(1) };
	unsigned to = write ? 1 : 0, ended = l->rig.n_ended, relative;
	uint64_t bytes = l->views[0]->o.length;
	uint8_t *want dray_auto_free = malloc(bytes);
	struct dray_err err = DRAY_ERR_NULL;

	memcpy(want, l->memory[to], bytes);
	for (uint32_t i = 0; i < n; i++)
		memcpy(want + ops[i][to] + (to ? 512 : 0),
		       l->memory[!to] + ops[i][!to] + (to ? 0 : 512), ops[i][2]);
	assert_int_equal(rig_submit(&l->rig, &l->s, &r, ops, n, &err), 0);
	relative = run(l, kind, max_bytes, room);
	assert_int_equal(l->rig.n_ended, ended + 1);
	assert_int_equal(l->rig.ended[ended].code, 0);
	assert_true(!memcmp(want, l->memory[to], bytes));
	return relative;
}

static void every_byte_once(void **state)
{
	static const struct {
		uint64_t length, more; /* lengths of operations: the first, and the increment */
		uint32_t n;
	} lists[] = { { 1, 0, 1 },       { 4096, 0, 200 },       { 100, 1, 400 },
		      { 3001, 17, 150 }, { 300 * KIB, 5000, 5 }, { 700 * KIB, 1, 2 } };
	static const uint32_t extents[][2] = { { 1, 1 }, { 1, 64 }, { 7, 1 }, { 5, 300 } };
	static const uint64_t cuts[] = { 4096, 10001, 256 * KIB, 64 * MIB };
	static const uint32_t rooms[] = { 3, 50, 4096 };
	const uint64_t bytes = 3 * MIB;
	unsigned relative = 0, walked = 0;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lists) * DRAY_ARRAY_SIZE(extents); i++) {
		const unsigned e = i / DRAY_ARRAY_SIZE(lists), k = i % DRAY_ARRAY_SIZE(lists);
		uint64_t(*ops)[3] = malloc(lists[k].n * sizeof(*ops));
		uint64_t place = 0;
		struct lab l;

		lab_init(&l, bytes, extents[e][0], extents[e][1]);
		for (uint32_t n = 0; n < lists[k].n; n++) {
			ops[n][2] = lists[k].length + n * lists[k].more;
			ops[n][0] = place;
			ops[n][1] = bytes - 512 - place - ops[n][2];
			place += ops[n][2] + n % 3;
		}
		for (unsigned v = 0; v < 2 * DRAY_ARRAY_SIZE(cuts) * DRAY_ARRAY_SIZE(rooms); v++) {
			unsigned got = move(&l, v % 2, (const uint64_t(*)[3])ops, lists[k].n,
					    GPU_PATH_PEER, cuts[v / 2 % 4], rooms[v / 8]);

			relative += got;
			walked += !got;
		}
		lab_deinit(&l);
		free(ops);
	}
	assert_true(relative > 0 && walked > 0);
}

/* Pieces for engines get a list of their own and are not cut. */
static void engines(void **state)
{
	const uint64_t ops[][3] = { { 0, 8 * MIB, 4096 }, { 2 * MIB, 3 * MIB, 4 * MIB } };
	struct dray_piece pieces[64];
	struct gpu_plan p;
	struct local_walk w;
	struct slice *s;
	struct lab l;
	struct xfer_request r = { .spec.direction = DMSG_DIRECTION_READ,
				  .spec.local = HANDLE(1),
				  .spec.remote = HANDLE(1) };
	struct dray_err err = DRAY_ERR_NULL;

	lab_init(&l, 9 * MIB, 1, 1);
	assert_int_equal(rig_submit(&l.rig, &l.s, &r, ops, 2, &err), 0);
	s = sched_next(&l.rig.core, &channel, 64 * MIB);
	local_walk_slice(&w, s);
	gpu_plan_init(&p, GPU_PATH_TO_HOST, pieces, 64);
	assert_false(gpu_plan_add(&p, &w));
	assert_int_equal(p.n, 1);
	assert_false(p.copy.engine);
	gpu_plan_init(&p, GPU_PATH_TO_HOST, pieces, 64);
	assert_true(gpu_plan_add(&p, &w));
	assert_int_equal(p.n, 1);
	assert_true(p.copy.engine);
	assert_int_equal(p.pieces[0].bytes, 4 * MIB);
	/* inside a device the kernel is as fast: equal pieces */
	local_walk_slice(&w, s);
	gpu_plan_init(&p, GPU_PATH_WITHIN, pieces, 64);
	assert_true(gpu_plan_add(&p, &w));
	assert_int_equal(p.n, 17);
	assert_false(p.copy.engine);
	xfer_slice_done(&l.rig.core, s, 0, NULL);
	lab_deinit(&l);
}

static void paths(void **state)
{
	enum { G0, G1, HOST, NIC };
	static const struct {
		uint8_t from, to;
		bool pinned, staging;
		uint32_t peers[2];
		enum gpu_path_kind kind;
		uint8_t device;
	} rows[] = {
		{ G0, G0, false, false, { 1, 2 }, GPU_PATH_WITHIN, 0 },
		{ G1, G1, false, true, { 0, 2 }, GPU_PATH_WITHIN, 1 },
		{ G0, G1, false, false, { 3, 3 }, GPU_PATH_PEER, 1 },
		{ G1, G0, false, false, { 3, 3 }, GPU_PATH_PEER, 0 },
		{ G0, G1, false, false, { 1, 3 }, GPU_PATH_PEER, 1 },
		{ G0, G1, false, false, { 3, 2 }, GPU_PATH_PEER, 0 },
		{ G0, G1, false, true, { 1, 2 }, GPU_PATH_PEER_STAGED, 0 },
		{ G0, G1, false, true, { 1, 0 }, GPU_PATH_NONE, 0 },
		{ G0, G1, false, false, { 1, 2 }, GPU_PATH_NONE, 0 },
		{ G0, HOST, true, true, { 1, 2 }, GPU_PATH_TO_HOST, 0 },
		{ HOST, G1, true, false, { 1, 2 }, GPU_PATH_FROM_HOST, 1 },
		{ G0, HOST, false, true, { 1, 2 }, GPU_PATH_TO_HOST_STAGED, 0 },
		{ HOST, G1, false, true, { 1, 2 }, GPU_PATH_FROM_HOST_STAGED, 1 },
		{ G1, HOST, false, false, { 1, 2 }, GPU_PATH_NONE, 0 },
		{ G1, HOST, true, true, { 1, 0 }, GPU_PATH_NONE, 0 },
		{ HOST, HOST, true, true, { 1, 2 }, GPU_PATH_NONE, 0 },
		{ NIC, G0, true, true, { 1, 2 }, GPU_PATH_NONE, 0 },
		{ G0, NIC, true, true, { 1, 2 }, GPU_PATH_NONE, 0 },
	};
	static const struct region_view sides[] = {
		[G0] = { .memory = REGION_GPU, .gpu = 0 },
		[G1] = { .memory = REGION_GPU, .gpu = 1 },
		[HOST] = { .memory = REGION_HOST },
		[NIC] = { .memory = REGION_RDMA },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		uint32_t peers[GPU_DEVICES_MAX] = { rows[i].peers[0], rows[i].peers[1] };
		struct gpu_path_choice c = gpu_plan_path(&sides[rows[i].from], rows[i].pinned,
							 &sides[rows[i].to], rows[i].pinned, peers,
							 rows[i].staging);

		assert_int_equal(c.kind, rows[i].kind);
		if (c.kind != GPU_PATH_NONE)
			assert_int_equal(c.device, rows[i].device);
	}
}

#define WITHIN GPU_WITHIN
#define PEER GPU_PEER
#define TO_HOST GPU_TO_HOST
#define FROM_HOST GPU_FROM_HOST
#define AUTO DRAY_CONFIG_GPU_COPY_AUTO
#define WAIT_NS 2000000
#define KERNEL(d)                               \
	{                                       \
		(d), false, false, false, false \
	}
#define ENGINES(d)                             \
	{                                      \
		(d), true, false, false, false \
	}
#define LISTS(d)                              \
	{                                     \
		(d), true, false, true, false \
	}
#define STAGED(d)                              \
	{                                      \
		(d), false, true, false, false \
	}
#define STAGED_LISTS(d)                       \
	{                                     \
		(d), false, true, true, false \
	}

static void ways(void **state)
{
	static const struct {
		enum gpu_route route;
		enum dray_config_gpu_copy setting;
		uint8_t device;
		bool busy;
		int other;
		bool other_busy;
		uint32_t pieces;
		uint64_t each, run, memory; /* KiB, KiB, MiB */
		struct gpu_way way;
	} rows[] = {
		/* what is fixed does not follow the load */
		{ PEER, DRAY_CONFIG_GPU_COPY_KERNEL, 1, true, 0, false, 1, 1, 0, 512, KERNEL(1) },
		{ WITHIN, DRAY_CONFIG_GPU_COPY_COPY_ENGINE, 1, false, -1, false, 9, 1, 0, 0,
		  ENGINES(1) },
		{ PEER, DRAY_CONFIG_GPU_COPY_STAGED, 1, false, -1, false, 9, 1, 0, 512, STAGED(1) },
		{ PEER, DRAY_CONFIG_GPU_COPY_STAGED, 1, true, 0, false, 9, 1, 0, 0, KERNEL(1) },
		{ WITHIN, DRAY_CONFIG_GPU_COPY_STAGED, 1, true, -1, false, 9, 1, 0, 512,
		  KERNEL(1) },
		{ PEER, AUTO, 1, false, 0, true, 1, 1, 0, 512, KERNEL(1) },
		/* the other device of a pair, if that is idle */
		{ PEER, AUTO, 1, true, 0, false, 9, 1, 0, 512, KERNEL(0) },
		/* short lists, and long ones of large pieces, by engines */
		{ PEER, AUTO, 1, true, -1, false, 64, 32, 0, 512, ENGINES(1) },
		{ PEER, AUTO, 1, true, 0, true, 64, 32, 0, 512, ENGINES(1) },
		{ PEER, AUTO, 1, true, 0, true, 8192, 256, 0, 512, ENGINES(1) },
		{ WITHIN, AUTO, 0, true, -1, false, 64, 16, 0, 512, ENGINES(0) },
		{ WITHIN, AUTO, 0, true, -1, false, 65536, 16, 0, 512, KERNEL(0) },
		{ TO_HOST, AUTO, 0, true, -1, false, 64, 32, 0, 512, ENGINES(0) },
		{ TO_HOST, AUTO, 0, true, -1, false, 32768, 16, 16, 512, ENGINES(0) },
		{ TO_HOST, AUTO, 0, true, -1, false, 32768, 2, 2, 512, KERNEL(0) },
		{ TO_HOST, AUTO, 0, true, -1, false, 2048, 256, 512, 512, ENGINES(0) },
		/* of small pieces from the host only many are worth the wait of lists */
		{ FROM_HOST, AUTO, 0, true, -1, false, 32768, 16, 16, 512, LISTS(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 2048, 16, 16, 512, LISTS(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 256, 16, 16, 512, ENGINES(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 32768, 2, 2, 512, KERNEL(0) },
		{ FROM_HOST, DRAY_CONFIG_GPU_COPY_COPY_ENGINE, 0, false, -1, false, 32768, 16, 16,
		  512, LISTS(0) },
		{ FROM_HOST, DRAY_CONFIG_GPU_COPY_STAGED, 0, false, -1, false, 32768, 16, 16, 512,
		  STAGED_LISTS(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 32768, 32, 32, 512, ENGINES(0) },
		/* many small pieces are staged, where there is memory and the host's side has runs */
		{ PEER, AUTO, 1, true, 0, true, 65536, 32, 0, 512, STAGED(1) },
		{ PEER, AUTO, 1, true, 0, true, 65536, 32, 0, 0, ENGINES(1) },
		{ TO_HOST, AUTO, 0, true, -1, false, 32768, 16, 1024, 512, STAGED(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 32768, 16, 1024, 512, STAGED(0) },
		{ FROM_HOST, AUTO, 0, true, -1, false, 32768, 16, 1024, 0, LISTS(0) },
	};

	static const enum gpu_bus buses[] = { [WITHIN] = GPU_BUS_WITHIN,
					      [PEER] = GPU_BUS_NVLINK,
					      [TO_HOST] = GPU_BUS_TO_HOST,
					      [FROM_HOST] = GPU_BUS_FROM_HOST };
	static const uint64_t sizes[] = { 0, 8 * MIB, 32 * MIB, 512 * MIB, 4096 * MIB };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		struct gpu_way_question q = {
			.route = rows[i].route,
			.bus = buses[rows[i].route],
			.rates = &gpu_rates_built_in,
			.setting = rows[i].setting,
			.device = rows[i].device,
			.busy = rows[i].busy,
			.other = rows[i].other,
			.other_busy = rows[i].other_busy,
			.pieces = rows[i].pieces,
			.bytes = rows[i].pieces * rows[i].each * KIB,
			.run = rows[i].run * KIB,
			.memory = rows[i].memory * MIB,
			.wait_ns = WAIT_NS,
		};
		struct gpu_way way = gpu_way_choose(&q);
		bool wants;

		assert_int_equal(way.device, rows[i].way.device);
		assert_int_equal(way.engines, rows[i].way.engines);
		assert_int_equal(way.staged, rows[i].way.staged);
		assert_int_equal(way.lists, rows[i].way.lists);
		q.could_have = q.memory;
		if (way.staged)
			assert_true(gpu_way_wants_memory(&q));
		/* it is wanted exactly if it will be used */
		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(sizes); k++) {
			q.could_have = sizes[k];
			wants = gpu_way_wants_memory(&q);
			q.memory = sizes[k];
			assert_int_equal(gpu_way_choose(&q).staged, wants);
		}
	}
}

/* Half of the pages of a part of host memory: runs of two pages on average. */
static void ways_of_pages_with_gaps(void **state)
{
	struct gpu_way_question q = { .route = TO_HOST,
				      .bus = GPU_BUS_TO_HOST,
				      .rates = &gpu_rates_built_in,
				      .setting = AUTO,
				      .busy = true,
				      .other = -1,
				      .pieces = 16384,
				      .bytes = 16384 * 16 * KIB,
				      .run = 32 * KIB,
				      .memory = 1024 * MIB,
				      .wait_ns = WAIT_NS };

	assert_true(gpu_way_choose(&q).staged);
	assert_false(gpu_way_choose(&q).pads);
	q.route = FROM_HOST;
	q.bus = GPU_BUS_FROM_HOST;
	q.can_pad = true;
	assert_true(gpu_way_choose(&q).staged);
	assert_true(gpu_way_choose(&q).pads);
	assert_false(gpu_way_choose(&q).lists);
	/* single pages would be twice as many bytes, and a row has no short runs */
	q.run = 16 * KIB;
	assert_false(gpu_way_choose(&q).pads);
	q.run = 1024 * KIB;
	assert_true(gpu_way_choose(&q).staged);
	assert_false(gpu_way_choose(&q).pads);
	q.run = 32 * KIB;
	q.can_pad = false;
	assert_false(gpu_way_choose(&q).pads);
}

/* The same question has another answer on a machine with other rates. */
static void ways_by_measured_rates(void **state)
{
	struct gpu_rates rates = gpu_rates_built_in;
	struct gpu_way_question q = { .route = FROM_HOST,
				      .bus = GPU_BUS_FROM_HOST,
				      .rates = &rates,
				      .setting = AUTO,
				      .busy = true,
				      .other = -1,
				      .pieces = 32768,
				      .bytes = 32768 * 16 * KIB,
				      .run = 16 * KIB,
				      .wait_ns = WAIT_NS };

	/* pieces of 16 KiB: lists from the host are as fast as those to it */
	assert_true(gpu_way_choose(&q).lists);
	rates.engines[GPU_BUS_TO_HOST][2] = 1000;
	assert_false(gpu_way_choose(&q).engines);
	rates.engines[GPU_BUS_FROM_HOST][2] = 40000;
	assert_true(gpu_way_choose(&q).engines);
	assert_false(gpu_way_choose(&q).lists);
	q = (struct gpu_way_question){ .route = PEER,
				       .rates = &rates,
				       .setting = AUTO,
				       .busy = true,
				       .other = -1,
				       .pieces = 4096,
				       .bytes = 4096 * 256 * KIB,
				       .memory = 512 * MIB,
				       .wait_ns = WAIT_NS };
	q.bus = GPU_BUS_NVLINK;
	assert_true(gpu_way_choose(&q).engines);
	rates.engines[GPU_BUS_NVLINK][6] = 3000;
	assert_true(gpu_way_choose(&q).staged);
	q.bus = GPU_BUS_PCIE;
	assert_true(gpu_way_choose(&q).engines);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_once),
		cmocka_unit_test(engines),
		cmocka_unit_test(paths),
		cmocka_unit_test(ways),
		cmocka_unit_test(ways_of_pages_with_gaps),
		cmocka_unit_test(ways_by_measured_rates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
