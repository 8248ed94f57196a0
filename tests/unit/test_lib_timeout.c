/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/timeout.h"

#include "tests/unit/cm.h"

#define MS DRAY_NS_PER_MS

struct awaited {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool ended;
};

static void waiting_counts(void **state)
{
	struct dray_timeout p = { .limit_ns = 30 * MS };

	(void)state;
	for (int64_t now = MS; now < 30 * MS; now += MS)
		assert_false(dray_timeout_passed(&p, now));
	assert_true(dray_timeout_passed(&p, 30 * MS));
	assert_true(dray_timeout_passed(&p, 30 * MS));
}

static void descheduled_time_does_not_count(void **state)
{
	struct dray_timeout p = { .limit_ns = 2 * DRAY_TIMEOUT_STEP };

	(void)state;
	assert_false(dray_timeout_passed(&p, 5000 * MS));
	assert_false(dray_timeout_passed(&p, 5001 * MS));
	assert_true(dray_timeout_passed(&p, 9000 * MS));
}

static void begins_at_once(void **state)
{
	struct dray_timeout p = dray_timeout_start(MS);

	(void)state;
	assert_false(dray_timeout_passed(&p, p.checked_ns));
	assert_true(dray_timeout_passed(&p, p.checked_ns + MS));
}

static void *say_ended(void *arg)
{
	struct awaited *a = arg;

	pthread_mutex_lock(&a->lock);
	a->ended = true;
	pthread_cond_broadcast(&a->wake);
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

static void an_end_is_waited_for(void **state)
{
	struct awaited a = { .ended = false };
	pthread_condattr_t attr;
	pthread_t thread;

	(void)state;
	pthread_mutex_init(&a.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a.wake, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_lock(&a.lock);
	assert_false(dray_timeout_await(&a.ended, &a.wake, &a.lock, MS));
	assert_int_equal(pthread_create(&thread, NULL, say_ended, &a), 0);
	assert_true(dray_timeout_await(&a.ended, &a.wake, &a.lock, 60000 * MS));
	pthread_mutex_unlock(&a.lock);
	pthread_join(thread, NULL);
	pthread_cond_destroy(&a.wake);
	pthread_mutex_destroy(&a.lock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiting_counts),
		cmocka_unit_test(descheduled_time_does_not_count),
		cmocka_unit_test(begins_at_once),
		cmocka_unit_test(an_end_is_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
