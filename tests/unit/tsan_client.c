/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: several threads use one handle. */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "client/dray.h"
#include "lib/assert.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

#define THREADS 4
#define ROUNDS 300

struct shared {
	struct dray *d;
	struct dray_memory m;
	dray_region region;
	dray_remote remote;
	struct dray_op op;
	uint32_t taken;  /* completions and callbacks */
	uint32_t failed; /* results that a thread did not expect */
	bool stop;
};

static struct shared shared;

static int setup(void **state)
{
	client_setup(state);
	shared = (struct shared){ .op = { .length = 64 } };
	shared.d = client_connect(0);
	client_region(shared.d, &shared.region, &shared.m);
	client_remote(shared.d, &shared.remote);
	return 0;
}

static int teardown(void **state)
{
	dray_disconnect(shared.d);
	dray_memory_free(&shared.m);
	return client_teardown(state);
}

static void expect(bool condition)
{
	if (!condition)
		__atomic_fetch_add(&shared.failed, 1, __ATOMIC_RELAXED);
}

static struct dray_transfer transfer(void)
{
	return (struct dray_transfer){ .local = shared.region,
				       .remote = shared.remote,
				       .direction = DRAY_DIRECTION_READ,
				       .ops = &shared.op,
				       .count = 1 };
}

static bool stopped(void)
{
	return __atomic_load_n(&shared.stop, __ATOMIC_ACQUIRE);
}

static void run(unsigned n, void *(*const threads[])(void *))
{
	pthread_t t[THREADS + 1];

	for (unsigned i = 0; i < n; i++)
		assert_int_equal(pthread_create(&t[i], NULL, threads[i], NULL), 0);
	for (unsigned i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(shared.failed, 0);
}

static void *runs_transfers(void *arg)
{
	struct dray_transfer t = transfer();
	struct dray_completion c;

	for (int i = 0; i < ROUNDS; i++) {
		t.arg = &t;
		expect(dray_run(shared.d, &t, &c) == 0 && c.arg == &t && c.status == 0);
	}
	return NULL;
}

static void *submits_and_waits(void *arg)
{
	struct dray_transfer t = transfer();
	struct dray_completion c;
	uint64_t id;

	for (int i = 0; i < ROUNDS; i++) {
		int error = dray_submit(shared.d, &t, &id);

		expect(!error && dray_wait(shared.d, id, -1, &c) == 0 && c.id == id);
	}
	return NULL;
}

static void each_waits_for_its_own(void **state)
{
	void *(*const threads[])(void *) = { runs_transfers, submits_and_waits, runs_transfers,
					     submits_and_waits };

	run(THREADS, threads);
}

static void *submits(void *arg)
{
	struct dray_transfer t = transfer();

	for (int i = 0; i < ROUNDS; i++) {
		int error;

		do {
			error = dray_submit(shared.d, &t, NULL);
		} while (error == -DRAY_E_BUSY);
		expect(!error);
	}
	return NULL;
}

static void *takes(void *arg)
{
	struct dray_completion c;

	while (__atomic_load_n(&shared.taken, __ATOMIC_RELAXED) < 2 * ROUNDS) {
		/* the other thread that takes may take the last one: the limit lets this one see it */
		expect(dray_process(shared.d, 50) >= 0);
		while (dray_next_completion(shared.d, &c) > 0) {
			expect(c.status == 0);
			__atomic_fetch_add(&shared.taken, 1, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void *takes_by_descriptor(void *arg)
{
	struct pollfd p = { .fd = dray_fd(shared.d), .events = POLLIN };
	struct dray_completion c;

	while (__atomic_load_n(&shared.taken, __ATOMIC_RELAXED) < 2 * ROUNDS) {
		poll(&p, 1, 50);
		expect(dray_process(shared.d, 0) >= 0);
		while (dray_next_completion(shared.d, &c) > 0) {
			expect(c.status == 0);
			__atomic_fetch_add(&shared.taken, 1, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void each_completion_is_taken_once(void **state)
{
	void *(*const threads[])(void *) = { submits, takes, submits, takes_by_descriptor };

	run(THREADS, threads);
	assert_int_equal(shared.taken, 2 * ROUNDS);
}

static void *registers(void *arg)
{
	for (int i = 0; i < ROUNDS / 10; i++) {
		dray_region region;
		struct dray_token token;
		struct dray_info info;

		expect(dray_region_add_memory(shared.d, &shared.m, DRAY_READ, &region) == 0);
		expect(dray_region_export(shared.d, region, NULL, &token) == 0);
		expect(dray_get_info(shared.d, &info) == 0 && strlen(info.version) > 0);
		expect(dray_region_remove(shared.d, region) == 0);
	}
	return NULL;
}

static void *fails(void *arg)
{
	struct dray_transfer t = transfer();
	dray_region none = { 77 };

	t.count = 0;
	for (int i = 0; i < ROUNDS; i++) {
		expect(dray_submit(shared.d, &t, NULL) == -DRAY_E_INVALID);
		expect(strstr(dray_last_error(shared.d), "at least one operation") != NULL);
		expect(dray_region_remove(shared.d, none) == -DRAY_E_NOT_FOUND);
		expect(strstr(dray_last_error(shared.d), "no such region") != NULL);
	}
	return NULL;
}

static void the_text_of_an_error_is_the_threads(void **state)
{
	void *(*const threads[])(void *) = { fails, registers, runs_transfers, registers };

	run(THREADS, threads);
}

static void hold(struct fake *f, void *arg)
{
	f->hold_transfers = arg != NULL;
	f->ignore_ring = arg != NULL;
}

static void *waits_for_a_held_one(void *arg)
{
	struct dray_transfer t = transfer();
	struct dray_completion c;
	uint64_t id;

	expect(dray_submit(shared.d, &t, &id) == 0);
	expect(dray_wait(shared.d, id, -1, &c) == 0);
	expect(c.status == -DRAY_E_AGENT_RESTARTED);
	__atomic_fetch_add(&shared.taken, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void *ends_the_agent(void *arg)
{
	struct dray_info info;

	do {
		dray_get_info(shared.d, &info);
	} while (info.in_flight < THREADS);
	fake_do(&client_fake, client_restart, NULL);
	return NULL;
}

static void a_lost_agent_ends_all_waits(void **state)
{
	void *(*const threads[])(void *) = { waits_for_a_held_one, waits_for_a_held_one,
					     waits_for_a_held_one, waits_for_a_held_one,
					     ends_the_agent };

	fake_do(&client_fake, hold, &shared);
	run(THREADS + 1, threads);
	assert_int_equal(shared.taken, THREADS);
}

static void *loses_the_session(void *arg)
{
	struct dray_info info = { 0 };

	for (int i = 0; i < 20; i++) {
		fake_do(&client_fake, client_hang_up, NULL);
		do {
			dray_process(shared.d, 1);
			dray_get_info(shared.d, &info);
		} while (!info.connected);
	}
	__atomic_store_n(&shared.stop, true, __ATOMIC_RELEASE);
	return NULL;
}

static void *runs_until_the_end(void *arg)
{
	struct dray_transfer t = transfer();
	struct dray_completion c;

	while (!stopped())
		/* the remote is lost with the first session */
		expect(dray_run(shared.d, &t, &c) <= 0);
	return NULL;
}

static void *registers_until_the_end(void *arg)
{
	while (!stopped()) {
		dray_region region;

		if (dray_region_add_memory(shared.d, &shared.m, DRAY_READ, &region) == 0)
			dray_region_remove(shared.d, region);
	}
	return NULL;
}

static void sessions_come_and_go(void **state)
{
	void *(*const threads[])(void *) = { runs_until_the_end, loses_the_session,
					     registers_until_the_end, runs_until_the_end };

	run(THREADS, threads);
}

static void called_back(struct dray *d, const struct dray_completion *c)
{
	expect(c->status == 0);
	__atomic_fetch_add(&shared.taken, 1, __ATOMIC_RELAXED);
}

static void *submits_with_callbacks(void *arg)
{
	struct dray_transfer t = transfer();

	t.done = called_back;
	for (int i = 0; i < ROUNDS; i++) {
		int error;

		while ((error = dray_submit(shared.d, &t, NULL)) == -DRAY_E_BUSY)
			dray_process(shared.d, 10);
		expect(!error);
	}
	while (__atomic_load_n(&shared.taken, __ATOMIC_RELAXED) < THREADS * ROUNDS)
		dray_process(shared.d, 10);
	return NULL;
}

static void each_callback_runs_once(void **state)
{
	void *(*const threads[])(void *) = { submits_with_callbacks, submits_with_callbacks,
					     submits_with_callbacks, submits_with_callbacks };

	run(THREADS, threads);
	assert_int_equal(shared.taken, THREADS * ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_waits_for_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(each_completion_is_taken_once, setup, teardown),
		cmocka_unit_test_setup_teardown(the_text_of_an_error_is_the_threads, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_lost_agent_ends_all_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(sessions_come_and_go, setup, teardown),
		cmocka_unit_test_setup_teardown(each_callback_runs_once, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
