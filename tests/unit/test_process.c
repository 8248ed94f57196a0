/* SPDX-License-Identifier: Apache-2.0 */
/* Time slices of the process, each in a child. */
#include "agent/process/process.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"

#define SLICE 200000u

/* Words of the kernel's struct sched_attr. */
struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static struct attr get(void)
{
	struct attr a = { 0 };

	CHILD_CHECK(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) == 0);
	return a;
}

static void *get_in_thread(void *arg)
{
	*(struct attr *)arg = get();
	return NULL;
}

/* Kernels before 6.12 say 0. */
static bool known(const struct attr *a)
{
	return a->runtime;
}

static void do_limit(void *arg)
{
	const struct attr before = get();
	const int nicer = dray_min(before.nice + 3, 19);
	struct attr other, now;
	uint64_t usual, none;
	pthread_t thread;

	CHILD_CHECK(nice(3) == nicer);
	CHILD_CHECK(process_limit_time_slice(SLICE, &usual) == 0);
	now = get();
	CHILD_CHECK(now.policy == before.policy && now.nice == nicer);
	CHILD_CHECK(!known(&now) || now.runtime == SLICE);
	CHILD_CHECK(usual == before.runtime);
	CHILD_CHECK(pthread_create(&thread, NULL, get_in_thread, &other) == 0);
	CHILD_CHECK(pthread_join(thread, NULL) == 0);
	CHILD_CHECK(other.runtime == now.runtime && other.nice == nicer);
	/* a shorter one stays */
	CHILD_CHECK(process_limit_time_slice(2ull * SLICE, &none) == 0);
	CHILD_CHECK(get().runtime == now.runtime);
	if (known(&now)) {
		CHILD_CHECK(!none);
		CHILD_CHECK(process_restore_time_slice(none) == 0);
		CHILD_CHECK(get().runtime == now.runtime);
	}
	CHILD_CHECK(process_restore_time_slice(usual) == 0);
	now = get();
	CHILD_CHECK(now.runtime == before.runtime && now.nice == nicer);
}

static void test_limit(void **state)
{
	assert_int_equal(child_run(do_limit, NULL), 0);
}

static void do_other_policies(void *arg)
{
	struct sched_param none = { 0 };
	struct attr now;
	uint64_t usual;

	CHILD_CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
	CHILD_CHECK(process_limit_time_slice(SLICE, &usual) == 0);
	now = get();
	CHILD_CHECK(now.policy == SCHED_BATCH && (!known(&now) || now.runtime == SLICE));
	CHILD_CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
	CHILD_CHECK(process_restore_time_slice(usual) == (usual ? -ENOTSUP : 0));
	CHILD_CHECK(process_limit_time_slice(SLICE / 2, &usual) == -ENOTSUP && !usual);
	CHILD_CHECK(get().policy == SCHED_IDLE);
}

static void test_other_policies(void **state)
{
	assert_int_equal(child_run(do_other_policies, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_other_policies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
