/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/jobs.h"
#include "lib/thread.h"
#include "tests/unit/cm.h"

static sem_t may_run, ended;
static int begun;

struct task {
	struct dray_job job;
	int n;
	bool ran;
	pthread_t ran_on;
};

static int order[8], n_ordered;

static void begin(void)
{
	begun++;
}

static void run(struct dray_job *j)
{
	struct task *t = dray_container_of(j, struct task, job);

	t->ran = true;
	t->ran_on = pthread_self();
}

static void run_when_allowed(struct dray_job *j)
{
	sem_wait(&may_run);
	run(j);
}

static void run_and_free(struct dray_job *j)
{
	sem_post(&may_run);
	free(dray_container_of(j, struct task, job));
}

static void run_and_post(struct dray_job *j)
{
	run(j);
	sem_post(&ended);
}

static void done(struct dray_job *j)
{
	order[n_ordered++] = dray_container_of(j, struct task, job)->n;
}

static int setup(void **state)
{
	begun = n_ordered = 0;
	sem_init(&may_run, 0, 0);
	sem_init(&ended, 0, 0);
	return 0;
}

/* Runs the loop until n jobs are delivered. */
static void deliver(struct dray_jobs *js, int n)
{
	struct pollfd p = { .fd = js->done_fd, .events = POLLIN };

	while (n_ordered < n) {
		assert_int_equal(poll(&p, 1, 60000), 1);
		dray_jobs_deliver(js);
	}
	assert_int_equal(poll(&p, 1, 0), 0);
}

static void jobs_run_and_are_delivered_in_order(void **state)
{
	struct task t[5] = { 0 };
	struct dray_jobs *js;

	assert_int_equal(dray_jobs_new(&js, "test-jobs", 0, begin), 0);
	for (int i = 0; i < 5; i++) {
		t[i].n = i;
		dray_jobs_add(js, &t[i].job, run, done);
	}
	deliver(js, 5);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(order[i], i);
		assert_true(t[i].ran);
		assert_false(pthread_equal(t[i].ran_on, pthread_self()));
	}
	assert_int_equal(begun, 1);
	assert_true(dray_jobs_free(js));
	assert_true(dray_jobs_free(NULL));
}

static void a_job_can_be_delivered_without_running(void **state)
{
	struct task running = { .n = 1 }, finished = { .n = 2 };
	struct dray_jobs *js;

	assert_int_equal(dray_jobs_new(&js, "test-jobs", 64 << 10, NULL), 0);
	dray_jobs_add(js, &running.job, run_when_allowed, done);
	dray_jobs_finish(js, &finished.job, done);
	deliver(js, 1);
	assert_int_equal(order[0], 2);
	assert_false(finished.ran);
	sem_post(&may_run);
	deliver(js, 2);
	assert_int_equal(order[1], 1);
	assert_true(dray_jobs_free(js));
}

static void a_job_without_done_can_free_itself(void **state)
{
	struct task *t = calloc(1, sizeof(*t)), last = { .n = 3 };
	struct dray_jobs *js;

	assert_int_equal(dray_jobs_new(&js, "test-jobs", 0, NULL), 0);
	dray_jobs_add(js, &t->job, run_and_free, NULL);
	dray_jobs_add(js, &last.job, run_when_allowed, done);
	deliver(js, 1);
	assert_int_equal(order[0], 3);
	assert_true(dray_jobs_free(js));
}

static void the_end_runs_queued_jobs_and_delivers_none(void **state)
{
	struct task t[3] = { 0 };
	struct dray_jobs *js;

	assert_int_equal(dray_jobs_new(&js, "test-jobs", 0, NULL), 0);
	for (int i = 0; i < 3; i++)
		dray_jobs_add(js, &t[i].job, run, done);
	assert_true(dray_jobs_free(js));
	for (int i = 0; i < 3; i++)
		assert_true(t[i].ran);
	assert_int_equal(n_ordered, 0);
}

static void the_end_does_not_wait_for_a_job_that_hangs(void **state)
{
	static struct task hangs, behind;
	struct dray_jobs *js;

	assert_int_equal(dray_jobs_new(&js, "test-jobs", 0, NULL), 0);
	dray_jobs_add(js, &hangs.job, run_when_allowed, done);
	dray_jobs_add(js, &behind.job, run_and_post, NULL);
	assert_false(dray_jobs_free(js));
	/* the thread continues and frees the queue itself */
	sem_post(&may_run);
	sem_wait(&ended);
	assert_true(hangs.ran);
}

static void *signals_of(void *arg)
{
	pthread_sigmask(SIG_SETMASK, NULL, arg);
	return NULL;
}

static void a_thread_gets_no_signals_except_its_own_faults(void **state)
{
	sigset_t before, after, inside;
	pthread_t t;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(dray_thread_start(&t, "test-thread", 0, signals_of, &inside), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	pthread_join(t, NULL);
	assert_true(sigismember(&inside, SIGTERM) && sigismember(&inside, SIGCHLD));
	assert_false(sigismember(&inside, SIGBUS) || sigismember(&inside, SIGSEGV));
	for (int s = 1; s < NSIG; s++)
		assert_int_equal(sigismember(&before, s), sigismember(&after, s));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(jobs_run_and_are_delivered_in_order, setup),
		cmocka_unit_test_setup(a_job_can_be_delivered_without_running, setup),
		cmocka_unit_test_setup(a_job_without_done_can_free_itself, setup),
		cmocka_unit_test_setup(the_end_runs_queued_jobs_and_delivers_none, setup),
		cmocka_unit_test_setup(the_end_does_not_wait_for_a_job_that_hangs, setup),
		cmocka_unit_test(a_thread_gets_no_signals_except_its_own_faults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
