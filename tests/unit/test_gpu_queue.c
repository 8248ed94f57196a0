/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's queues of GPUs, with tasks of other users than transport gpu. */

#include "agent/data/gpu_queue/load.h"
#include "tests/unit/cm.h"
#include "tests/unit/gpu_rig.h"

#define KIB 1024ull
#define MIB (1ull << 20)

static struct gpu_task first, second;
static unsigned n_done;

static void task_done(struct core *c, struct gpu_task *t, uint32_t code)
{
	assert_int_equal(code, 0);
	n_done++;
	if (t == &first)
		gpu_task_stop(c, &second, true);
}

static void copy_some(struct gpu_rig *g, struct gpu_task *t)
{
	struct core *c = &g->rig.core;
	struct gpu_copy copy = { .route = GPU_WITHIN, .bytes = KIB };

	t->done = task_done;
	gpu_pieces(c, 0, DMSG_CLASS_BULK)[0] =
		(struct dray_piece){ g->regions[0].region.view->extents[0].base,
				     g->regions[1].region.view->extents[0].base, KIB };
	assert_int_equal(gpu_submit(c, 0, DMSG_CLASS_BULK, &copy, 1, t), 0);
}

/* The callback of one task's end ends the last task. */
static void tasks_end_once(void **state)
{
	unsigned n = 0;
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	n_done = 0;
	copy_some(&g, &first);
	copy_some(&g, &second);
	gpu_queues_down(&g.rig.core, 0);
	while (n_done < 2)
		gpu_queues_poll(&g.rig.core);
	for (unsigned i = 0; i < g.rig.n_told; i++)
		n += g.rig.told[i].type == GPU_GONE && g.rig.told[i].id == 0;
	assert_int_equal(n, 1);
	gpu_rig_deinit(&g);
}

static unsigned n_checks;

static int check_late(struct gpu_queue *q)
{
	static const struct timespec pause = { 1, 200000000 };

	(void)q;
	if (n_checks++ == 0)
		nanosleep(&pause, NULL);
	else
		fake_gpu_hold(false);
	return 0;
}

/* A worker that was descheduled draws no conclusion about its GPU, whose threads may have been descheduled too. */
static void descheduled_worker(void **state)
{
	struct gpu_plugin_ops ops = gpu_plugin_ops;
	struct gpu_task task;
	struct gpu_rig g;

	gpu_rig_init(&g, 64);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	ops.check = check_late;
	g.queues[0].ops = &ops;
	n_done = n_checks = 0;
	fake_gpu_hold(true);
	copy_some(&g, &task);
	gpu_task_stop(&g.rig.core, &task, true);
	assert_int_equal(n_done, 1);
	assert_true(n_checks > 1);
	assert_true(gpu_is_up(&g.rig.core, 0));
	gpu_rig_deinit(&g);
}

/* Two slow probes in a row make a device busy; eight quick ones in a row make it idle. */
static void load_follows_series(void **state)
{
	struct gpu_load l = { 0 };

	gpu_load_note(&l, true, 4000, 1);
	assert_false(l.busy);
	assert_int_equal(l.due_ns, 1);
	gpu_load_note(&l, false, 0, 2);
	assert_true(l.due_ns > 2);
	gpu_load_note(&l, true, 8000, 3);
	assert_false(l.busy);
	gpu_load_note(&l, true, 5000, 4);
	assert_true(l.busy);
	for (unsigned i = 0; i < 20; i++) {
		gpu_load_note(&l, i == 7, 5000, 5);
		assert_int_equal(l.busy, i < 15);
	}
}

/* A kernel that still waits makes the known wait longer and not shorter. */
static void a_stall_is_a_lower_bound(void **state)
{
	struct gpu_load l = { .wait_ns = 4000000 };
	const struct gpu_queues q = { .load = &l, .queue[GPU_LANE_PROBE] = (void *)&l };

	assert_true(gpu_load_stalled(&q, 900000, 1));
	assert_int_equal(l.wait_ns, 4000000);
	assert_true(gpu_load_stalled(&q, 8000000, 2));
	assert_int_equal(l.wait_ns, 5000000);
}

/* Traffic measures the load of its device, in whatever way it is copied, and no other device's. */
static void load_is_measured(void **state)
{
	struct gpu_rig g;

	gpu_rig_init_watched(&g, 64);
	fake_gpu_busy(0, true);
	while (!gpu_is_busy(&g.rig.core, 0)) {
		gpu_watch(&g.rig.core, 0);
		gpu_rig_turn(&g);
	}
	assert_int_equal(g.loads[1].due_ns, 0);
	fake_gpu_busy(0, false);
	while (gpu_is_busy(&g.rig.core, 0)) {
		gpu_watch(&g.rig.core, 0);
		gpu_rig_turn(&g);
	}
	/* a device that goes while a probe waits */
	fake_gpu_busy(0, true);
	while (g.loads[0].due_ns != INT64_MAX) {
		gpu_watch(&g.rig.core, 0);
		gpu_rig_turn(&g);
	}
	gpu_rig_deinit(&g);
}

/* Kernels of a long series, between which probes pass, show the load by not ending. */
static void load_is_seen_in_kernels(void **state)
{
	struct gpu_rig g;

	gpu_rig_init_watched(&g, 64);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	fake_gpu_busy(0, true);
	while (!gpu_is_busy(&g.rig.core, 0)) {
		/* the end of the first task ends the second */
		n_done = 0;
		copy_some(&g, &first);
		copy_some(&g, &second);
		while (n_done < 2)
			gpu_rig_turn(&g);
	}
	gpu_rig_deinit(&g);
}

static struct gpu_copy kept;
static struct gpu_queue *kept_queue;

/* Kernels with pieces stay in flight. */
static int submit_kept(struct gpu_queue *q, const struct gpu_copy *c)
{
	if (!c->n)
		return gpu_plugin_ops.submit(q, c);
	kept = *c;
	kept_queue = q;
	return 0;
}

/*
 * A kernel of the agent that is in flight has the device for this process, as small as it is. So probes that pass beside it do
 * not show that the device is idle.
 */
static void probes_beside_kernels_are_no_quick_results(void **state)
{
	struct gpu_plugin_ops ops = gpu_plugin_ops;
	struct gpu_task task = { .done = task_done };
	struct gpu_copy copy = { .route = GPU_TO_HOST, .bytes = KIB };
	struct gpu_rig g;
	struct core *c = &g.rig.core;

	gpu_rig_init_watched(&g, 64);
	gpu_rig_region(&g, 0, MIB, 1);
	gpu_rig_region(&g, 0, MIB, 1);
	ops.submit = submit_kept;
	g.queues[0].ops = &ops;
	n_done = 0;
	gpu_pieces(c, 0, DMSG_CLASS_BULK)[0] =
		(struct dray_piece){ g.regions[0].region.view->extents[0].base,
				     g.regions[1].region.view->extents[0].base, KIB };
	assert_int_equal(gpu_submit(c, 0, DMSG_CLASS_BULK, &copy, 1, &task), 0);
	atomic_store(&g.loads[0].busy, true);
	for (unsigned i = 0; i < 20; i++) {
		atomic_store(&g.loads[0].due_ns, 0);
		gpu_watch(c, 0);
		assert_int_equal(g.loads[0].due_ns, INT64_MAX);
		while (atomic_load(&g.loads[0].due_ns) == INT64_MAX)
			gpu_rig_turn(&g);
	}
	assert_true(gpu_is_busy(c, 0));
	assert_int_equal(gpu_plugin_ops.submit(kept_queue, &kept), 0);
	while (!n_done)
		gpu_rig_turn(&g);
	gpu_rig_deinit(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tasks_end_once),
		cmocka_unit_test(descheduled_worker),
		cmocka_unit_test(load_follows_series),
		cmocka_unit_test(a_stall_is_a_lower_bound),
		cmocka_unit_test(load_is_measured),
		cmocka_unit_test(load_is_seen_in_kernels),
		cmocka_unit_test(probes_beside_kernels_are_no_quick_results),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
