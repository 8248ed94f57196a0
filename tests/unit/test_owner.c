/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of sessions, and of what is here without a client. */
#include <stdlib.h>

#include "agent/control/owner/owner.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static struct rig {
	struct dray_config cfg;
	sd_event *event;
	struct owners *all;
	unsigned done;
} rig;

static int setup(void **state)
{
	rig = (struct rig){ .done = 0 };
	rig.cfg.data.tenant = (char[]){ "default" };
	rig.cfg.limits.fds_per_owner = 1000;
	assert_true(sd_event_new(&rig.event) >= 0);
	return owners_new(&rig.all, rig.event, &rig.cfg);
}

static int teardown(void **state)
{
	owners_free(rig.all);
	sd_event_unref(rig.event);
	return 0;
}

static void run(struct owner_job *j)
{
}

static void done(struct owner_job *j)
{
	rig.done++;
}

static bool has_threads(const struct owner *o)
{
	return o->opener && o->closer;
}

/* Another agent names owners again and again, and what it wants of them takes no thread. */
static void test_idle(void **state)
{
	struct owner *named = owner_get_named(rig.all, "a", 1);
	struct owner *stored = owner_get_idle(rig.all, "b", 2);

	assert_non_null(named);
	assert_non_null(stored);
	assert_ptr_not_equal(named, stored);
	assert_null(named->opener);
	assert_null(stored->opener);
	assert_ptr_equal(owner_get_idle(rig.all, "a", 1), named);
	owner_unref(named);
	owner_unref(named);
	owner_unref(stored);
}

/* Its first client starts them, whatever it has here already; they stay until its last reference. */
static void test_client(void **state)
{
	struct owner *o = owner_get_named(rig.all, "a", 1);
	struct owner_job open, close;

	assert_ptr_equal(owner_get(rig.all, "a", 1), o);
	assert_true(has_threads(o));
	assert_ptr_equal(owner_get(rig.all, "a", 1), o);
	owner_open_job(o, &open, run, done);
	owner_close_job(o, &close, run, done);
	owner_unref(o);
	owner_unref(o);
	while (rig.done < 2)
		assert_true(sd_event_run(rig.event, UINT64_MAX) >= 0);
	assert_true(has_threads(o));
	assert_ptr_equal(owner_get_named(rig.all, "a", 1), o);
	owner_unref(o);
	owner_unref(o);
	o = owner_get_named(rig.all, "a", 1);
	assert_null(o->opener);
	owner_unref(o);
}

/* Work that can wait takes turns, and other jobs wait for one of it at most. */
struct later {
	struct owner_job job;
	unsigned left;
};

static unsigned order[8], n_order;

static void later_done(struct owner_job *j)
{
	struct later *l = dray_container_of(j, struct later, job);

	order[n_order++] = l->left;
	if (--l->left % 10)
		owner_later_job(j->owner, j, run, later_done);
}

static void job_order(struct owner_job *j)
{
	order[n_order++] = 99;
}

static void test_later(void **state)
{
	struct owner *o = owner_get(rig.all, "a", 1);
	struct later a = { .left = 12 }, b = { .left = 22 }, c = { .left = 32 };
	struct owner_job open;

	n_order = 0;
	owner_later_job(o, &a.job, run, later_done);
	owner_later_job(o, &b.job, run, later_done);
	owner_later_job(o, &c.job, run, later_done);
	owner_open_job(o, &open, run, job_order);
	assert_true(owner_later_cancel(&c.job));
	assert_false(owner_later_cancel(&a.job));
	while (n_order < 5)
		assert_true(sd_event_run(rig.event, UINT64_MAX) >= 0);
	assert_int_equal(order[0], 12);
	assert_int_equal(order[1], 99);
	assert_int_equal(order[2], 22);
	assert_int_equal(order[3], 11);
	assert_int_equal(order[4], 21);
	assert_int_equal(o->jobs, 0);
	owner_unref(o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_idle, setup, teardown),
		cmocka_unit_test_setup_teardown(test_client, setup, teardown),
		cmocka_unit_test_setup_teardown(test_later, setup, teardown),
	};

	return cmocka_run_group_tests_name("owner", tests, NULL, NULL);
}
