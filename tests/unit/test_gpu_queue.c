/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's queues of GPUs, with tasks of other users than transport gpu. */

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
		gpu_finish(c, &second);
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
	gpu_finish(&g.rig.core, &task);
	assert_int_equal(n_done, 1);
	assert_true(n_checks > 1);
	assert_true(gpu_is_up(&g.rig.core, 0));
	gpu_rig_deinit(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tasks_end_once),
		cmocka_unit_test(descheduled_worker),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
