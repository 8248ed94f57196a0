/* SPDX-License-Identifier: Apache-2.0 */
/* The measurement of rates, on the fake plug-in: it leaves nothing behind, however it ends. */
#include "agent/control/gpu/measure.h"

#include <errno.h>
#include <stdlib.h>

#include "tests/gpu/fake_internal.h"
#include "tests/unit/cm.h"

#define GIB (1ull << 30)
#define BETWEEN (1u << GPU_BUS_NVLINK)
#define OTHERS (1u << GPU_BUS_WITHIN | 1u << GPU_BUS_TO_HOST | 1u << GPU_BUS_FROM_HOST)

static struct gpu_plugin *plugin;
static struct gpu_plugin_ops ops;
static atomic_bool go;
static unsigned n_copies, stop_at, busy_from;

static int setup(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t bytes;
	uint32_t peers;

	ops = gpu_plugin_ops;
	n_copies = 0;
	atomic_store(&go, true);
	if (ops.open(&plugin, &err) < 0)
		return -1;
	for (unsigned i = 0; i < 2; i++)
		if (ops.start(plugin, i, &bytes, &peers, &err) < 0)
			return -1;
	return 0;
}

/* Copies are done at once. */
static int setup_dry(void **state)
{
	setenv("FAKE_GPU_DRY", "1", 1);
	return setup(state);
}

static int teardown(void **state)
{
	const struct fake_gpu_status *s = fake_gpu_status();

	unsetenv("FAKE_GPU_DRY");
	assert_int_equal(s->queues + s->host_allocs + s->blocks + s->illegal, 0);
	for (unsigned i = 0; i < 2; i++)
		ops.stop(plugin, i);
	ops.close(plugin);
	return 0;
}

static int measure(unsigned buses, uint64_t memory, struct gpu_rates *ret)
{
	struct gpu_measure m = { .ops = &ops,
				 .plugin = plugin,
				 .device = 1,
				 .peer = 0,
				 .share = 100,
				 .memory = memory,
				 .buses = buses,
				 .go = &go };
	struct dray_err err = DRAY_ERR_NULL;
	int r = -EAGAIN;

	/* a machine that does something else meanwhile looks like a busy GPU */
	for (unsigned i = 0; i < 100 && r == -EAGAIN; i++) {
		n_copies = 0;
		r = gpu_measure(&m, &err);
	}
	*ret = m.rates;
	return r;
}

/* The fake does not copy here, so this checks what it would have copied. */
static int submit_checked(struct gpu_queue *q, const struct gpu_copy *c)
{
	uint64_t bytes = 0;

	n_copies++;
	for (uint32_t i = 0; i < c->n; i++) {
		const struct dray_piece *p = &c->pieces[i];

		assert_non_null(fake_range_find(1, (uintptr_t)p->to, p->bytes, true));
		assert_non_null(fake_range_find(1, (uintptr_t)p->from, p->bytes, false));
		assert_true(p->bytes > 0 && (c->engine || p->bytes <= GPU_PIECE_MAX));
		assert_true(p->from + p->bytes <= p->to || p->to + p->bytes <= p->from);
		bytes += p->bytes;
	}
	assert_int_equal(bytes, c->bytes);
	return gpu_plugin_ops.submit(q, c);
}

static void each_bus(void **state)
{
	struct gpu_rates rates;

	ops.submit = submit_checked;
	assert_int_equal(measure(OTHERS | BETWEEN, GIB, &rates), 0);
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++) {
		bool measured = (OTHERS | BETWEEN) >> bus & 1;

		assert_int_equal(rates.kernel[bus] > 0, measured);
		for (unsigned i = 0; i < GPU_RATE_SIZES; i++)
			assert_int_equal(rates.engines[bus][i] > 0, measured);
	}
	assert_true(n_copies < 200);
	/* a small device, and one bus of a large one; both have room for each list */
	assert_int_equal(measure(OTHERS, 1, &rates), 0);
	assert_int_equal(measure(BETWEEN, 64 * GIB, &rates), 0);
	assert_int_equal(rates.kernel[GPU_BUS_WITHIN], 0);
}

static int measure_once(struct dray_err *err)
{
	struct gpu_measure m = { .ops = &ops,
				 .plugin = plugin,
				 .share = 100,
				 .memory = GIB,
				 .buses = OTHERS,
				 .go = &go };

	*err = DRAY_ERR_NULL;
	return gpu_measure(&m, err);
}

static void busy(void **state)
{
	struct dray_err err;

	fake_gpu_busy(0, true);
	assert_int_equal(measure_once(&err), -EAGAIN);
	fake_gpu_busy(0, false);
	assert_int_equal(err.code, 0);
}

static int no_peer(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		   uint64_t *ret_address, struct dray_err *err)
{
	return device ? gpu_plugin_ops.block_alloc(p, device, bytes, ret, ret_address, err) : -EIO;
}

/* A worker copies, or another process begins to compute, in the middle. */
static int submit_watched(struct gpu_queue *q, const struct gpu_copy *c)
{
	n_copies++;
	if (n_copies == stop_at)
		atomic_store(&go, false);
	if (n_copies == busy_from)
		fake_gpu_busy(0, true);
	return gpu_plugin_ops.submit(q, c);
}

/* A peer that is lost says nothing about the device. */
static void lost_peer(void **state)
{
	struct gpu_measure m = { .ops = &ops,
				 .plugin = plugin,
				 .device = 1,
				 .share = 100,
				 .memory = GIB,
				 .buses = BETWEEN,
				 .go = &go };
	struct dray_err err = DRAY_ERR_NULL;

	ops.block_alloc = no_peer;
	assert_int_equal(gpu_measure(&m, &err), -EAGAIN);
}

static void ended_by_a_copy_of_the_peer(void **state)
{
	atomic_bool peer_go = false;
	struct gpu_measure m = { .ops = &ops,
				 .plugin = plugin,
				 .device = 1,
				 .share = 100,
				 .memory = GIB,
				 .buses = BETWEEN,
				 .go = &go,
				 .peer_go = &peer_go };
	struct dray_err err = DRAY_ERR_NULL;

	ops.submit = submit_watched;
	assert_int_equal(gpu_measure(&m, &err), -EAGAIN);
	assert_int_equal(n_copies, 0);
}

static void ended_by_a_copy(void **state)
{
	struct dray_err err;

	ops.submit = submit_watched;
	stop_at = 20;
	assert_int_equal(measure_once(&err), -EAGAIN);
	assert_true(n_copies <= 20);
	stop_at = 0;
}

static void busy_in_the_middle(void **state)
{
	struct dray_err err;

	ops.submit = submit_watched;
	busy_from = 20;
	assert_int_equal(measure_once(&err), -EAGAIN);
	busy_from = 0;
	fake_gpu_busy(0, false);
}

static int submit_losing(struct gpu_queue *q, const struct gpu_copy *c)
{
	if (++n_copies == 10)
		fake_gpu_lose(0, true);
	return gpu_plugin_ops.submit(q, c);
}

static void lost(void **state)
{
	struct dray_err err;

	ops.submit = submit_losing;
	assert_int_equal(measure_once(&err), -EIO);
	assert_true(err.code != 0);
	fake_gpu_lose(0, false);
}

static int no_queue(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		    struct dray_err *err)
{
	return spec->engines ? -ENOMEM : gpu_plugin_ops.queue_new(p, spec, ret, err);
}

static int no_block(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		    uint64_t *ret_address, struct dray_err *err)
{
	return -ENOMEM;
}

static int no_host(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *err)
{
	return bytes > 1 << 18 ? -ENOMEM : gpu_plugin_ops.host_alloc(p, bytes, ret, err);
}

static void without_memory(void **state)
{
	struct dray_err err;

	ops.queue_new = no_queue;
	assert_int_equal(measure_once(&err), -ENOMEM);
	ops.block_alloc = no_block;
	assert_int_equal(measure_once(&err), -ENOMEM);
	ops.host_alloc = no_host;
	assert_int_equal(measure_once(&err), -ENOMEM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_bus, setup_dry, teardown),
		cmocka_unit_test_setup_teardown(busy, setup, teardown),
		cmocka_unit_test_setup_teardown(lost_peer, setup, teardown),
		cmocka_unit_test_setup_teardown(ended_by_a_copy_of_the_peer, setup, teardown),
		cmocka_unit_test_setup_teardown(ended_by_a_copy, setup, teardown),
		cmocka_unit_test_setup_teardown(busy_in_the_middle, setup, teardown),
		cmocka_unit_test_setup_teardown(lost, setup, teardown),
		cmocka_unit_test_setup_teardown(without_memory, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
