/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU limit out of recorded /proc and cgroup files. */
#include "lib/cpu.h"

#include <limits.h>
#include <sched.h>

#include "tests/unit/cm.h"

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
#define V1_MOUNT                                                            \
	"31 30 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" \
	"32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"

static char dir[CM_DIR_BYTES];

static int setup(void **state)
{
	cm_dir_make(dir);
	return 0;
}

static int teardown(void **state)
{
	cm_dir_remove(dir);
	return 0;
}

static void proc(const char *cgroup, const char *mountinfo)
{
	cm_file_write(dir, "proc/self/cgroup", cgroup);
	cm_file_write(dir, "proc/self/mountinfo", mountinfo);
}

static void nothing_there_is_no_limit(void **state)
{
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
	proc("", "");
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
	proc("0::/\n", V2_MOUNT);
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
}

static void v2_takes_the_least_upwards(void **state)
{
	proc("0::/kube/pod/box\n", "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
	cm_file_write(dir, "sys/fs/cgroup/kube/pod/box/cpu.max", "max 100000\n");
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
	cm_file_write(dir, "sys/fs/cgroup/kube/pod/cpu.max", "250000 100000\n");
	assert_int_equal(dray_cpu_quota(dir), 3);
	cm_file_write(dir, "sys/fs/cgroup/kube/cpu.max", "50000 100000\n");
	assert_int_equal(dray_cpu_quota(dir), 1);
	cm_file_write(dir, "sys/fs/cgroup/kube/cpu.max", "400000 100000\n");
	assert_int_equal(dray_cpu_quota(dir), 3);
}

static void v2_in_a_namespace_reads_the_mount(void **state)
{
	proc("0::/\n", V2_MOUNT);
	cm_file_write(dir, "sys/fs/cgroup/cpu.max", "150000 100000\n");
	assert_int_equal(dray_cpu_quota(dir), 2);
	/* moved out of the namespace's root */
	proc("0::/../other\n", V2_MOUNT);
	assert_int_equal(dray_cpu_quota(dir), 2);
	/* a mount of a folder, as container engines bind it; and an escaped name */
	proc("0::/a/b/c\n", "30 23 0:26 /a/b /sys/fs/c\\040g ro - cgroup2 cgroup rw\n");
	cm_file_write(dir, "sys/fs/c g/c/cpu.max", "700000 100000\n");
	assert_int_equal(dray_cpu_quota(dir), 7);
	proc("0::/a/bb\n", "30 23 0:26 /a/b /sys/fs/c\\040g ro - cgroup2 cgroup rw\n");
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
}

static void v1_reads_quota_and_period(void **state)
{
	proc("5:cpuset:/x\n4:cpu,cpuacct:/box\n0::/\n", V1_MOUNT);
	cm_file_write(dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
	cm_file_write(dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
	cm_file_write(dir, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "410000\n");
	assert_int_equal(dray_cpu_quota(dir), 5);
}

static void nonsense_is_no_limit(void **state)
{
	static const char *const bad[] = { "",         "\n",
					   "x 1",      "100000 0",
					   "0 100000", "-5 100000",
					   "100000",   "9999999999999999999 1" };

	proc("0::/\n", V2_MOUNT);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cm_file_write(dir, "sys/fs/cgroup/cpu.max", bad[i]);
		assert_true(dray_cpu_quota(dir) == UINT_MAX);
	}
	proc("garbage\n:\n::\n0::\n", "garbage\n - \n - cgroup2\n1 2 3 - cgroup2 x y\n");
	assert_true(dray_cpu_quota(dir) == UINT_MAX);
}

static void affinity_counts(void **state)
{
	cpu_set_t before, one;
	int first = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	while (!CPU_ISSET(first, &before))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_true(dray_cpu_count() >= 1);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(dray_cpu_count(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_there_is_no_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(v2_takes_the_least_upwards, setup, teardown),
		cmocka_unit_test_setup_teardown(v2_in_a_namespace_reads_the_mount, setup, teardown),
		cmocka_unit_test_setup_teardown(v1_reads_quota_and_period, setup, teardown),
		cmocka_unit_test_setup_teardown(nonsense_is_no_limit, setup, teardown),
		cmocka_unit_test(affinity_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
