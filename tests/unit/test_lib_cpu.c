/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU limit from recorded /proc and cgroup files. */
#include "lib/cpu.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#include "tests/unit/cm.h"

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
#define V1_MOUNT                                                            \
	"31 30 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" \
	"32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"

static void proc(const char *cgroup, const char *mountinfo)
{
	cm_file_write(cm_dir, "proc/self/cgroup", cgroup);
	cm_file_write(cm_dir, "proc/self/mountinfo", mountinfo);
}

static unsigned limit_found(void)
{
	struct dray_cpu_limits limits = { 0 };
	unsigned limit;

	assert_int_equal(dray_cpu_limits_find(&limits, cm_dir), 0);
	limit = dray_cpu_limits_read(&limits);
	dray_cpu_limits_deinit(&limits);
	return limit;
}

static void missing_files_are_no_limit(void **state)
{
	assert_true(limit_found() == UINT_MAX);
	proc("", "");
	assert_true(limit_found() == UINT_MAX);
	proc("0::/\n", V2_MOUNT);
	assert_true(limit_found() == UINT_MAX);
}

static void v2_uses_the_lowest_limit_up_to_the_root(void **state)
{
	proc("0::/kube/pod/box\n", "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/pod/box/cpu.max", "max 100000\n");
	assert_true(limit_found() == UINT_MAX);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/pod/cpu.max", "250000 100000\n");
	assert_int_equal(limit_found(), 2500);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/cpu.max", "50000 100000\n");
	assert_int_equal(limit_found(), 500);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/cpu.max", "400000 100000\n");
	assert_int_equal(limit_found(), 2500);
}

static void v2_in_a_namespace_reads_the_mount(void **state)
{
	proc("0::/\n", V2_MOUNT);
	cm_file_write(cm_dir, "sys/fs/cgroup/cpu.max", "150000 100000\n");
	assert_int_equal(limit_found(), 1500);
	/* the process was moved out of the root of its cgroup namespace */
	proc("0::/../other\n", V2_MOUNT);
	assert_int_equal(limit_found(), 1500);
	/* a mount of a folder, as container engines bind it, and a name with an escape */
	proc("0::/a/b/c\n", "30 23 0:26 /a/b /sys/fs/c\\040g ro - cgroup2 cgroup rw\n");
	cm_file_write(cm_dir, "sys/fs/c g/c/cpu.max", "700000 100000\n");
	assert_int_equal(limit_found(), 7000);
	proc("0::/a/bb\n", "30 23 0:26 /a/b /sys/fs/c\\040g ro - cgroup2 cgroup rw\n");
	assert_true(limit_found() == UINT_MAX);
}

static void v1_reads_quota_and_period(void **state)
{
	proc("5:cpuset:/x\n4:cpu,cpuacct:/box\n0::/\n", V1_MOUNT);
	cm_file_write(cm_dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
	cm_file_write(cm_dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
	assert_true(limit_found() == UINT_MAX);
	cm_file_write(cm_dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "410000\n");
	assert_int_equal(limit_found(), 4100);
}

static void limits_change_in_the_folders_that_were_found(void **state)
{
	struct dray_cpu_limits limits = { 0 };

	assert_true(dray_cpu_limits_read(&limits) == UINT_MAX);
	proc("0::/kube/pod\n", V2_MOUNT);
	assert_int_equal(dray_cpu_limits_find(&limits, cm_dir), 0);
	assert_true(dray_cpu_limits_read(&limits) == UINT_MAX);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/pod/cpu.max", "250000 100000\n");
	assert_int_equal(dray_cpu_limits_read(&limits), 2500);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/cpu.max", "50000 100000\n");
	assert_int_equal(dray_cpu_limits_read(&limits), 500);
	/* in another cgroup, once it looks for that */
	proc("0::/kube\n", V2_MOUNT);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/cpu.max", "400000 100000\n");
	assert_int_equal(dray_cpu_limits_read(&limits), 2500);
	assert_int_equal(dray_cpu_limits_find(&limits, cm_dir), 0);
	assert_int_equal(dray_cpu_limits_read(&limits), 4000);
	dray_cpu_limits_deinit(&limits);
	assert_true(dray_cpu_limits_read(&limits) == UINT_MAX);
}

static void malformed_files_are_no_limit(void **state)
{
	static const char *const bad[] = { "",         "\n",
					   "x 1",      "100000 0",
					   "0 100000", "-5 100000",
					   "100000",   "9999999999999999999 1" };

	proc("0::/\n", V2_MOUNT);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cm_file_write(cm_dir, "sys/fs/cgroup/cpu.max", bad[i]);
		assert_true(limit_found() == UINT_MAX);
	}
	proc("garbage\n:\n::\n0::\n", "garbage\n - \n - cgroup2\n1 2 3 - cgroup2 x y\n");
	assert_true(limit_found() == UINT_MAX);
}

static void whole_cpus_are_counted(void **state)
{
	assert_int_equal(dray_cpus_whole(&(struct dray_cpus){ 8, UINT_MAX }), 8);
	assert_int_equal(dray_cpus_whole(&(struct dray_cpus){ 8, 3999 }), 3);
	assert_int_equal(dray_cpus_whole(&(struct dray_cpus){ 2, 3999 }), 2);
	assert_int_equal(dray_cpus_whole(&(struct dray_cpus){ 8, 100 }), 1);
}

static void polling_needs_two_whole_cpus(void **state)
{
	static const struct {
		struct dray_cpus c;
		const char *why;
	} cases[] = {
		{ { 2, UINT_MAX }, "" },
		{ { 2, 2000 }, "" },
		{ { 64, 64000 }, "" },
		{ { 1, UINT_MAX }, "1 CPU allowed" },
		{ { 1, 500 }, "1 CPU allowed" },
		{ { 8, 1999 }, "a CPU limit of 1.999" },
		{ { 8, 1500 }, "a CPU limit of 1.500" },
		{ { 2, 50 }, "a CPU limit of 0.050" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char why[DRAY_CPUS_WHY_BYTES];

		assert_int_equal(dray_cpus_can_spin(&cases[i].c, why, sizeof(why)), !*cases[i].why);
		assert_string_equal(why, cases[i].why);
	}
}

static void *placed(void *arg)
{
	cpu_set_t *one = arg;
	struct dray_cpus c;

	assert_int_equal(sched_setaffinity(0, sizeof(*one), one), 0);
	dray_cpus_get(&c);
	return (void *)(uintptr_t)c.allowed;
}

/* The affinity mask of the process counts, whichever thread asks. */
static void affinity_counts(void **state)
{
	cpu_set_t before, one;
	struct dray_cpus c;
	pthread_t thread;
	int first = 0;
	void *seen;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	while (!CPU_ISSET(first, &before))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	dray_cpus_get(&c);
	assert_int_equal(c.allowed, CPU_COUNT(&before));
	assert_int_equal(pthread_create(&thread, NULL, placed, &one), 0);
	assert_int_equal(pthread_join(thread, &seen), 0);
	assert_int_equal((uintptr_t)seen, CPU_COUNT(&before));
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	dray_cpus_get(&c);
	assert_int_equal(c.allowed, 1);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cm_test_in_dir(missing_files_are_no_limit),
		cm_test_in_dir(v2_uses_the_lowest_limit_up_to_the_root),
		cm_test_in_dir(v2_in_a_namespace_reads_the_mount),
		cm_test_in_dir(v1_reads_quota_and_period),
		cm_test_in_dir(limits_change_in_the_folders_that_were_found),
		cm_test_in_dir(malformed_files_are_no_limit),
		cmocka_unit_test(whole_cpus_are_counted),
		cmocka_unit_test(polling_needs_two_whole_cpus),
		cmocka_unit_test(affinity_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
