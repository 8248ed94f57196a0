/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the machine, and limits of cgroups from recorded files. */
#include "lib/memory.h"

#include <unistd.h>

#include "tests/unit/cm.h"

static void the_least_limit_counts(void **state)
{
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	assert_true(dray_memory_get(cm_dir) == machine);
	cm_file_write(cm_dir, "proc/self/cgroup", "0::/kube/pod/box\n");
	cm_file_write(cm_dir, "proc/self/mountinfo",
		      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
	assert_true(dray_memory_get(cm_dir) == machine);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/pod/box/memory.max", "max\n");
	assert_true(dray_memory_get(cm_dir) == machine);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/pod/memory.max", "1048576\n");
	assert_true(dray_memory_get(cm_dir) == 1048576);
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/memory.max", "65536\n");
	assert_true(dray_memory_get(cm_dir) == 65536);
	/* no process has so much */
	cm_file_write(cm_dir, "sys/fs/cgroup/kube/memory.max", "9223372036854771712\n");
	assert_true(dray_memory_get(cm_dir) == 1048576);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cm_test_in_dir(the_least_limit_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
