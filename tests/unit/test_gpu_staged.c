/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of GPU memory through staging memory, because no device can move them directly. */
#include "agent/data/transport/gpu/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "agent/data/transfer/xfer.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/gpu_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)
#define BYTES (4 * MIB)

static uint64_t counter(struct gpu_rig *g, enum dray_metric m)
{
	return atomic_load(&g->rig.counters.v[m]);
}

/* The two sides: a device, or -1: host memory that is not pinned. */
static const struct {
	int local, remote;
} ways[] = { { 0, -1 }, { -1, 1 }, { 0, 1 }, { 1, 0 } };

static void begin(struct gpu_rig *g, unsigned way, uint32_t room)
{
	fake_gpu_peers(false);
	gpu_rig_init(g, room);
	gpu_rig_stage(g, 8 * MIB);
	gpu_rig_region(g, ways[way].local, BYTES, 1);
	gpu_rig_region(g, ways[way].remote, BYTES, 4);
}

static void every_path(void **state)
{
	enum { N = 300 };
	uint64_t ops[N][3];
	struct gpu_rig g;

	for (unsigned i = 0; i < N; i++) {
		ops[i][0] = (uint64_t)i * 13000 + i % 17;
		ops[i][1] = (uint64_t)(N - 1 - i) * 13001;
		ops[i][2] = i == 7 ? 1 : 12000 + i;
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(ways) * 2; i++) {
		bool write = i % 2;
		uint64_t bytes = 0;
		unsigned to;

		begin(&g, i / 2, i < 4 ? 16 : 4096);
		to = write ? 1 : 0;
		gpu_rig_submit(&g, 1, write, 1, 2, (const uint64_t(*)[3])ops, N);
		gpu_rig_until(&g, 1);
		assert_int_equal(g.rig.ended[0].code, 0);
		for (unsigned k = 0; k < N; k++) {
			struct rig_region *into = &g.regions[to].region;
			struct rig_region *from = &g.regions[!to].region;

			for (uint64_t b = 0; b < ops[k][2]; b += b + 1 < ops[k][2] ? 1 + b : 1)
				assert_int_equal(*rig_at(into, ops[k][to] + b),
						 *rig_at(from, ops[k][!to] + b));
			bytes += ops[k][2];
		}
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_STAGED_BYTES_TOTAL), bytes);
		assert_int_equal(counter(&g, DRAY_METRIC_GPU_BYTES_TOTAL), bytes);
		gpu_rig_deinit(&g);
	}
}

static void no_staging_memory(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, KIB } };
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, BYTES, 1);
	gpu_rig_region(&g, -1, BYTES, 1);
	gpu_rig_submit(&g, 1, true, 1, 2, op, 1);
	assert_int_equal(g.rig.n_ended, 1);
	assert_int_equal(g.rig.ended[0].code, DRAY_E_UNSUPPORTED);
	gpu_rig_deinit(&g);
}

/* As after truncation of the file: every access faults. */
static void take_away(struct rig_region *r)
{
	uint8_t *base = r->view->extents[r->view->n_extents - 1].base;
	int fd = memfd_create("cut", MFD_CLOEXEC);

	assert_ptr_equal(
		mmap(base, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), base);
	close(fd);
}

static void faults(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, BYTES } };

	for (unsigned i = 0; i < 4; i++) {
		struct gpu_rig g;

		begin(&g, i / 2, 64);
		/* again, because cmocka has installed its own handler */
		assert_int_equal(fault_init(), 0);
		take_away(&g.regions[i / 2 ? 0 : 1].region);
		gpu_rig_submit(&g, 1, i % 2, 1, 2, op, 1);
		gpu_rig_until(&g, 1);
		assert_int_equal(g.rig.ended[0].code, DRAY_E_REGION_FAULT);
		assert_true(g.rig.n_faults > 0);
		gpu_rig_deinit(&g);
	}
}

struct counting_waiter {
	struct stage_waiter waiter;
	unsigned n;
};

static void count_wake(struct core *c, struct stage_waiter *w)
{
	dray_container_of(w, struct counting_waiter, waiter)->n++;
}

/* With lost buffers, one use waits within its share for a buffer that the other one has. */
static void other_use_gives_back(void **state)
{
	struct counting_waiter own = { .waiter.ready = count_wake };
	struct stage_buffer *held[64], *peer = NULL;
	unsigned n = 0;
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	begin(&g, 0, 64);
	while ((held[n] = stage_get(c, STAGE_OWN, DMSG_CLASS_LATENCY, NULL)))
		stage_lose(held[n++], 0);
	while (n)
		stage_put(c, held[--n]);
	while ((held[n] = stage_get(c, STAGE_PEER, DMSG_CLASS_LATENCY, NULL)))
		peer = held[n++];
	assert_null(stage_get(c, STAGE_OWN, DMSG_CLASS_LATENCY, NULL));
	dray_list_init(&own.waiter.link);
	stage_wait(c, &own.waiter, STAGE_OWN, DMSG_CLASS_LATENCY);
	stage_put(c, peer);
	assert_int_equal(own.n, 1);
	peer = stage_get(c, STAGE_OWN, DMSG_CLASS_LATENCY, NULL);
	assert_non_null(peer);
	stage_put(c, peer);
	for (unsigned i = 0; i + 1 < n; i++)
		stage_put(c, held[i]);
	gpu_rig_deinit(&g);
}

/* Ends a transfer in each of its steps: by a stop, by an urgent stop, and by loss of the device. */
static void ends_early(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, BYTES } };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(ways) * 2 * 3; i++) {
		bool write = i % 2;
		unsigned how = i / 2 % 3;
		struct gpu_rig g;

		begin(&g, i / 6, 64);
		fake_gpu_hold(true);
		gpu_rig_submit(&g, 1, write, 1, 2, op, 1);
		gpu_rig_submit(&g, 2, write, 1, 2, op, 1);
		gpu_rig_turn(&g);
		gpu_rig_held(1);
		if (how == 0) {
			xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 1), DRAY_E_CANCELLED, NULL, false);
			fake_gpu_hold(false);
		} else if (how == 1) {
			fake_gpu_hold(false);
			xfer_stop(&g.rig.core, gpu_rig_xfer(&g, 1), DRAY_E_CANCELLED, NULL, true);
			assert_int_equal(g.rig.n_ended, 1);
		} else {
			fake_gpu_lose(0, true);
			fake_gpu_lose(1, true);
			fake_gpu_hold(false);
		}
		gpu_rig_until(&g, 2);
		for (unsigned k = 0; k < 2; k++)
			assert_int_equal(g.rig.ended[k].code, how == 2 ? DRAY_E_GPU_LOST :
							      g.rig.ended[k].request_id == 1 ?
									 DRAY_E_CANCELLED :
									 0);
		gpu_rig_deinit(&g);
	}
}

/*
 * All buffers are in use, so transfers wait; when one becomes free, the worker does not go to
 * sleep.
 */
static void waits_for_a_buffer(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, BYTES } };
	struct stage_buffer *held[64];
	unsigned n = 0;
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	begin(&g, 0, 64);
	while (n < 64 && (held[n] = stage_get(c, STAGE_OWN, DMSG_CLASS_BULK, NULL)))
		n++;
	assert_true(n > 0 && n < 64);
	gpu_rig_submit(&g, 1, true, 1, 2, op, 1);
	for (unsigned i = 0; i < 10; i++)
		assert_false(gpu_rig_turn(&g));
	assert_false(transport_gpu.announce(c, c->transport_state[1]));
	assert_int_equal(counter(&g, DRAY_METRIC_GPU_LAUNCHES_TOTAL), 0);
	stage_put(c, held[--n]);
	assert_true(transport_gpu.announce(c, c->transport_state[1]));
	gpu_rig_until(&g, 1);
	assert_int_equal(g.rig.ended[0].code, 0);
	while (n)
		stage_put(c, held[--n]);
	gpu_rig_deinit(&g);
}

/* Takes all free buffers and gives them back. True: one of them is at this address. */
static bool is_free(struct core *c, const uint8_t *base)
{
	struct stage_buffer *held[64];
	unsigned n = 0;
	bool found = false;

	for (unsigned use = 0; use < STAGE_USE_N; use++)
		while ((held[n] = stage_get(c, (enum stage_use)use, DMSG_CLASS_LATENCY, NULL)))
			found |= held[n++]->base == base;
	while (n)
		stage_put(c, held[--n]);
	return found;
}

static const uint8_t *touched;

/* A part of the copy is in flight when the device fails. */
static int fail_in_the_middle(struct gpu_queue *q, const struct gpu_copy *copy)
{
	touched = copy->route == GPU_TO_HOST ? copy->pieces[0].to : copy->pieces[0].from;
	fake_gpu_lose(0, true);
	return -EIO;
}

static void copied(struct core *c, struct stage_buffer *b)
{
	assert_int_equal(b->code, DRAY_E_GPU_LOST);
}

static unsigned n_woken;

static void woken(struct core *c, struct stage_waiter *w)
{
	n_woken++;
}

/* A buffer that a lost device may still access is not used until the copies of the device have ended; then it is given to a waiter. */
static void buffers_of_a_lost_device(void **state)
{
	const uint64_t op[1][3] = { { 0, 0, 4 * KIB } };
	struct gpu_plugin_ops ops = gpu_plugin_ops;

	ops.submit = fail_in_the_middle;
	for (unsigned network = 0; network < 2; network++) {
		struct stage_waiter waiter = { .ready = woken };
		struct gpu_rig g;
		struct core *c = &g.rig.core;

		begin(&g, 0, 64);
		g.queues[0].ops = &ops;
		if (network) {
			struct stage_buffer *b = stage_get(c, STAGE_PEER, DMSG_CLASS_BULK, NULL);

			b->ranges[0] = (struct iovec){ g.regions[0].region.view->extents[0].base,
						       4 * KIB };
			b->n_ranges = 1;
			b->bytes = 4 * KIB;
			stage_copy(c, b, 0, true, copied);
			stage_progress(c);
			assert_false(b->busy);
			stage_put(c, b);
		} else {
			gpu_rig_submit(&g, 1, true, 1, 2, op, 1);
			gpu_rig_until(&g, 1);
			assert_int_equal(g.rig.ended[0].code, DRAY_E_GPU_LOST);
		}
		assert_false(is_free(c, touched));
		dray_list_init(&waiter.link);
		stage_wait(c, &waiter, STAGE_OWN, DMSG_CLASS_BULK);
		n_woken = 0;
		gpu_rig_device(&g, 0, false);
		assert_int_equal(n_woken, 0);
		gpu_rig_ended(&g, 0);
		assert_int_equal(n_woken, 1);
		assert_true(is_free(c, touched));
		g.queues[0].ops = &gpu_plugin_ops;
		gpu_rig_device(&g, 0, true);
		gpu_rig_deinit(&g);
	}
}

static unsigned n_copied;

static void note(struct core *c, struct stage_buffer *b)
{
	n_copied++;
}

/* A stopped copy for which the queue has no room ends at once: it would wait for copies that nobody has stopped. */
static void stopped_before_its_copy(void **state)
{
	enum { PIECES = 8 };
	struct stage_buffer *b[2];
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	begin(&g, 0, PIECES);
	fake_gpu_hold(true);
	n_copied = 0;
	for (unsigned i = 0; i < 2; i++) {
		b[i] = stage_get(c, STAGE_OWN, DMSG_CLASS_BULK, NULL);
		for (unsigned k = 0; k < PIECES; k++)
			b[i]->ranges[k] = (struct iovec){
				(uint8_t *)g.regions[0].region.view->extents[0].base + k * 8 * KIB,
				4 * KIB
			};
		b[i]->n_ranges = PIECES;
		b[i]->bytes = PIECES * 4 * KIB;
		stage_copy(c, b[i], 0, false, note);
	}
	stage_stop(c, b[1], false);
	assert_int_equal(n_copied, 1);
	assert_false(b[1]->busy);
	assert_int_equal(b[1]->code, DRAY_E_CANCELLED);
	fake_gpu_hold(false);
	while (n_copied < 2)
		gpu_rig_turn(&g);
	assert_int_equal(b[0]->code, 0);
	for (unsigned i = 0; i < 2; i++)
		stage_put(c, b[i]);
	gpu_rig_deinit(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_path),
		cmocka_unit_test(no_staging_memory),
		cmocka_unit_test(faults),
		cmocka_unit_test(other_use_gives_back),
		cmocka_unit_test(ends_early),
		cmocka_unit_test(waits_for_a_buffer),
		cmocka_unit_test(buffers_of_a_lost_device),
		cmocka_unit_test(stopped_before_its_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
