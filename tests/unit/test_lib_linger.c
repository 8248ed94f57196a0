/* SPDX-License-Identifier: Apache-2.0 */
/* How long to poll before sleeping, with a clock of the test. */
#include "lib/linger.h"

#include "tests/unit/cm.h"

#define MAX 16000
#define TURN 100 /* ns between two polls */
#define TRIAL (6 * MAX)
#define WAKE_UP (4 * MAX)

struct life {
	struct dray_linger l;
	int64_t now, polled; /* polled: total time spent polling */
	unsigned sleeps;
};

/* Work arrives `after` ns from now. If this side sleeps, it wakes up `late` ns after that. */
static void wait(struct life *f, int64_t after, int64_t late)
{
	int64_t begin = f->now;

	dray_linger_worked(&f->l, f->now);
	while (dray_linger_idle(&f->l, f->now)) {
		if (f->now - begin >= after) {
			f->polled += f->now - begin;
			dray_linger_worked(&f->l, f->now);
			return;
		}
		f->now += TURN;
	}
	f->polled += f->now - begin;
	f->sleeps++;
	/* it stays asleep */
	assert_false(dray_linger_idle(&f->l, f->now));
	f->now = begin + after + late > f->now ? begin + after + late : f->now + late;
	dray_linger_worked(&f->l, f->now);
}

static struct life life(void)
{
	struct life f = { .now = 1000000 };

	dray_linger_limit(&f.l, MAX, MAX);
	return f;
}

static void zeroed_never_polls(void **state)
{
	struct life f = { .now = 5 };

	for (int i = 0; i < 100; i++)
		wait(&f, 0, 0);
	assert_int_equal(f.polled, 0);
	assert_int_equal(f.sleeps, 100);
	f = life();
	dray_linger_limit(&f.l, 0, 0);
	wait(&f, 100, 0);
	assert_int_equal(f.polled, 0);
}

static void busy_never_sleeps(void **state)
{
	struct life f = life();

	for (int i = 0; i < 1000; i++)
		wait(&f, 50 + i % 15000, 3000);
	assert_int_equal(f.sleeps, 0);
	assert_int_equal(f.l.budget_ns, MAX);
}

/* Work itself may take longer than the budget: only the time after it counts. */
static void work_does_not_count_as_waiting(void **state)
{
	struct life f = life();

	for (int i = 0; i < 100; i++) {
		dray_linger_worked(&f.l, f.now);
		f.now += 50 * MAX;
		assert_true(dray_linger_idle(&f.l, f.now));
		f.now += 1000;
	}
	assert_int_equal(f.l.budget_ns, MAX);
}

static void an_idle_budget_halves_to_zero(void **state)
{
	static const int64_t budgets[] = { MAX / 2, MAX / 4, MAX / 8, MAX / 16, 0, 0 };
	struct life f = life();

	for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
		wait(&f, 1000 * MAX, 3000);
		assert_int_equal(f.l.budget_ns, budgets[i]);
	}
	f.polled = 0;
	for (int i = 0; i < 1000; i++)
		wait(&f, 1000 * MAX, 3000);
	assert_int_equal(f.polled, 0);
}

/*
 * The first request finds this side asleep, the second raises the budget, the third finds it
 * polling.
 */
static void polling_starts_with_the_second_request(void **state)
{
	struct life f = life();

	for (int i = 0; i < 10; i++)
		wait(&f, 1000 * MAX, 3000);
	f.sleeps = 0;
	wait(&f, 3000, 3000);
	assert_int_equal(f.sleeps, 1);
	assert_int_equal(f.l.budget_ns, MAX);
	for (int i = 0; i < 100; i++)
		wait(&f, 3000, 3000);
	assert_int_equal(f.sleeps, 1);
}

static void success_doubles_the_budget(void **state)
{
	struct life f = life();

	for (int i = 0; i < 3; i++)
		wait(&f, 1000 * MAX, 3000);
	assert_int_equal(f.l.budget_ns, MAX / 8);
	wait(&f, 500, 0);
	assert_int_equal(f.l.budget_ns, MAX / 4);
	wait(&f, 500, 0);
	wait(&f, 500, 0);
	wait(&f, 500, 0);
	assert_int_equal(f.l.budget_ns, MAX);
}

/*
 * Both sides share a CPU without knowing it: work arrives only after this side sleeps, and then
 * soon.
 */
static void wait_sharing(struct life *f)
{
	dray_linger_worked(&f->l, f->now);
	for (; dray_linger_idle(&f->l, f->now); f->now += TURN)
		f->polled += TURN;
	f->now += 3000;
}

/* Polling stops except for trials, which become rare. */
static void a_shared_cpu_stops_polling(void **state)
{
	struct life f = life();

	for (int i = 0; i < 2000; i++)
		wait_sharing(&f);
	f.polled = 0;
	for (int i = 0; i < 10000; i++)
		wait_sharing(&f);
	assert_in_range(f.polled, 1, (10000 / DRAY_LINGER_EARLY_MAX + 2) * (MAX + TURN));
}

/* The peer gets the CPU in the middle of our polling: that is no success of polling. */
static void losing_the_cpu_is_not_a_success(void **state)
{
	struct life f = life();

	for (int i = 0; i < 8; i++) {
		dray_linger_begin(&f.l);
		if (!dray_linger_idle(&f.l, f.now))
			break;
		f.now += 4000000;
		dray_linger_worked(&f.l, f.now);
	}
	assert_int_equal(f.l.budget_ns, 0);
}

/* After the longest series of failures the budget recovers within this number of wake-ups. */
static void the_budget_recovers(void **state)
{
	struct life f = life();

	for (int i = 0; i < 10000; i++)
		wait_sharing(&f);
	f.sleeps = 0;
	for (int i = 0; i < 2 * DRAY_LINGER_EARLY_MAX; i++)
		wait(&f, 1000, 3000);
	assert_in_range(f.sleeps, 0, DRAY_LINGER_EARLY_MAX);
	f.sleeps = 0;
	wait(&f, 1000, 3000);
	assert_int_equal(f.sleeps, 0);
}

static void an_abandoned_wait_changes_nothing(void **state)
{
	struct life f = life();

	for (int i = 0; i < 100; i++) {
		dray_linger_begin(&f.l);
		assert_true(dray_linger_idle(&f.l, f.now));
		f.now += 10 * MAX;
	}
	assert_int_equal(f.l.budget_ns, MAX);
}

static void a_new_limit_starts_anew(void **state)
{
	struct life f = life();

	for (int i = 0; i < 10; i++)
		wait(&f, 1000 * MAX, 3000);
	dray_linger_limit(&f.l, MAX, MAX);
	assert_int_equal(f.l.budget_ns, 0);
	dray_linger_limit(&f.l, 2 * MAX, 2 * MAX);
	assert_int_equal(f.l.budget_ns, 2 * MAX);
}

/* One of two ends that work in turn, each on a CPU of its own. */
struct end {
	struct dray_linger l;
	int64_t idle_ns; /* when its work ended */
	unsigned sleeps;
};

/* Work arrives at this time; returns when this end has it. */
static int64_t get(struct end *e, int64_t arrives)
{
	int64_t now = e->idle_ns;

	while (dray_linger_idle(&e->l, now)) {
		if (now >= arrives) {
			dray_linger_worked(&e->l, now);
			return now;
		}
		now += TURN;
	}
	e->sleeps++;
	now = (arrives > now ? arrives : now) + WAKE_UP;
	/* what came before it fell asleep keeps it awake */
	dray_linger_worked(&e->l, arrives > e->idle_ns ? arrives : e->idle_ns);
	return now;
}

static void rounds(struct end *client, struct end *agent, unsigned n, int64_t work, int64_t think)
{
	int64_t now = client->idle_ns;

	client->sleeps = agent->sleeps = 0;
	for (unsigned i = 0; i < n; i++) {
		now = get(agent, now) + work;
		agent->idle_ns = now;
		now = get(client, now) + think;
		client->idle_ns = now;
		dray_linger_begin(&client->l);
	}
}

static void ends_init(struct end *client, struct end *agent)
{
	*client = *agent = (struct end){ .idle_ns = 1000000 };
	dray_linger_limit(&client->l, MAX, TRIAL);
	dray_linger_limit(&agent->l, MAX, MAX);
	/* both are asleep after a pause */
	client->l.budget_ns = agent->l.budget_ns = 0;
}

static void two_sleeping_ends_wake_each_other(void **state)
{
	struct end client, agent;

	ends_init(&client, &agent);
	rounds(&client, &agent, 100, 2000, 5000);
	assert_in_range(client.sleeps, 1, 10);
	assert_in_range(agent.sleeps, 1, 10);
	rounds(&client, &agent, 1000, 2000, 5000);
	assert_int_equal(client.sleeps, 0);
	assert_int_equal(agent.sleeps, 0);
}

/* The work takes longer than the limit, but less than a trial: trials become rare. */
static void trials_of_slow_work_become_rare(void **state)
{
	struct end client, agent;

	ends_init(&client, &agent);
	rounds(&client, &agent, 2000, 3 * MAX / 2, 5000);
	rounds(&client, &agent, 10000, 3 * MAX / 2, 5000);
	assert_in_range(10000 - client.sleeps, 1,
			(10000 / DRAY_LINGER_EARLY_MAX + 2) * DRAY_LINGER_TRIALS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zeroed_never_polls),
		cmocka_unit_test(busy_never_sleeps),
		cmocka_unit_test(work_does_not_count_as_waiting),
		cmocka_unit_test(an_idle_budget_halves_to_zero),
		cmocka_unit_test(polling_starts_with_the_second_request),
		cmocka_unit_test(success_doubles_the_budget),
		cmocka_unit_test(a_shared_cpu_stops_polling),
		cmocka_unit_test(losing_the_cpu_is_not_a_success),
		cmocka_unit_test(the_budget_recovers),
		cmocka_unit_test(an_abandoned_wait_changes_nothing),
		cmocka_unit_test(a_new_limit_starts_anew),
		cmocka_unit_test(two_sleeping_ends_wake_each_other),
		cmocka_unit_test(trials_of_slow_work_become_rare),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
