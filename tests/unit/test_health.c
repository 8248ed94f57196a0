/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the agent is alive and ready, and the text of the metrics, with a fake agent whose
 * workers the test answers for.
 */
#include "agent/control/status/health.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/agent.h"
#include "agent/control/status/gather.h"
#include "agent/control/rails/rails.h"
#include "agent/control/status/ready.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static struct {
	struct config config;
	struct agent agent;
	struct health *health;
	unsigned listings;
	bool no_memory;
	struct dray_list asked;
} fake;

void agent_list_transfers(struct agent *a, enum listing_kind kind, struct transfers_query *q)
{
	fake.listings++;
	if (fake.no_memory) {
		q->fn(q, NULL, 0);
		return;
	}
	assert_true(dray_list_empty(&fake.asked));
	dray_list_add(&fake.asked, &q->link);
	a->listings[kind].missing = 5;
}

/* Answers for two workers; the second has a transfer whose deadline is in `left`. */
static void workers_answer(int64_t left)
{
	struct snapshot idle = { .in_flight = 0 };
	struct snapshot busy = { .in_flight = 2,
				 .first_due = { .record = { .session = 3, .request = 17 },
						.left_ns = left } };
	struct snapshot *both[] = { &idle, &busy };
	struct transfers_query *q = dray_list_first(&fake.asked, struct transfers_query, link);

	dray_list_del(&q->link);
	q->fn(q, both, 2);
}

static int set_up(void **state)
{
	memset(&fake, 0, sizeof(fake));
	fake.config.v.health.worker_limit = 5 * DRAY_NS_PER_MS;
	fake.config.v.transfer.slice_timeout = 2 * DRAY_NS_PER_SEC;
	fake.config.v.peer.heartbeat_limit = DRAY_NS_PER_SEC;
	dray_list_init(&fake.asked);
	fake.agent.config = &fake.config;
	assert_true(sd_event_new(&fake.agent.event) >= 0);
	return health_new(&fake.health, &fake.agent);
}

static int tear_down(void **state)
{
	health_free(fake.health);
	sd_event_unref(fake.agent.event);
	return 0;
}

struct asker {
	struct health_check check;
	unsigned answers;
	char fault[DRAY_ERR_MSG_MAX];
	struct asker *again;
};

static void hear(struct health_check *c, const char *fault)
{
	struct asker *a = dray_container_of(c, struct asker, check);

	a->answers++;
	snprintf(a->fault, sizeof(a->fault), "%s", fault);
	if (a->again)
		health_ask(fake.health, &a->again->check);
}

static void ask(struct asker *a)
{
	*a = (struct asker){ .again = NULL };
	a->check = HEALTH_CHECK_INIT(a->check, hear);
	health_ask(fake.health, &a->check);
	assert_int_equal(a->answers, 0);
}

static void wait_for(const struct asker *a, unsigned answers)
{
	while (a->answers < answers)
		assert_true(sd_event_run(fake.agent.event, UINT64_MAX) >= 0);
}

static void requests_share_a_check(void **state)
{
	struct asker one, two, three;

	ask(&one);
	ask(&two);
	assert_int_equal(fake.listings, 1);
	/* a request from a callback begins a new check */
	three = (struct asker){ .again = NULL };
	three.check = HEALTH_CHECK_INIT(three.check, hear);
	one.again = &three;
	workers_answer(1);
	assert_true(one.answers == 1 && two.answers == 1 && three.answers == 0);
	assert_true(!*one.fault && !*two.fault);
	assert_int_equal(fake.listings, 2);
	workers_answer(1);
	assert_int_equal(three.answers, 1);
	/* and no check begins without a request */
	assert_int_equal(sd_event_run(fake.agent.event, 10000), 0);
	assert_int_equal(fake.listings, 2);
}

static void silent_workers_are_named_and_asked_once(void **state)
{
	struct asker a, b;

	ask(&a);
	wait_for(&a, 1);
	assert_true(*a.fault);
	assert_non_null(strstr(a.fault, "worker 0,2 has not answered for 0.0 s"));
	ask(&a);
	ask(&b);
	wait_for(&b, 1);
	assert_int_equal(a.answers, 1);
	assert_int_equal(fake.listings, 1);
	/* the late answer counts for later requests */
	ask(&a);
	workers_answer(1);
	assert_true(a.answers == 1 && !*a.fault);
}

static void transfers_must_end(void **state)
{
	struct asker a;

	/* stopping a transfer may take slice_timeout and heartbeat_limit */
	ask(&a);
	workers_answer(-3 * DRAY_NS_PER_SEC);
	assert_true(!*a.fault);
	ask(&a);
	workers_answer(-3 * DRAY_NS_PER_SEC - DRAY_NS_PER_SEC / 2);
	assert_true(*a.fault);
	assert_string_equal(
		a.fault,
		"transfer 17 of session 3 in worker 1 has not ended 3.5 s after its deadline");
}

static void an_agent_without_memory_is_not_alive(void **state)
{
	struct asker a;

	fake.no_memory = true;
	ask(&a);
	wait_for(&a, 1);
	assert_true(*a.fault);
	assert_string_equal(a.fault, "out of memory: the workers cannot be checked");
	fake.no_memory = false;
	ask(&a);
	workers_answer(1);
	assert_true(!*a.fault);
}

static void a_cancelled_request_is_never_answered(void **state)
{
	struct asker a, b, c;

	ask(&a);
	ask(&b);
	health_cancel(&a.check);
	health_cancel(&a.check);
	wait_for(&b, 1);
	assert_int_equal(a.answers, 0);
	ask(&c);
	health_cancel(&c.check);
	workers_answer(1);
	assert_int_equal(c.answers, 0);
}

/* --- ready -------------------------------------------------------------------------------------- */

static struct facts {
	bool draining;
	unsigned listeners, rails_up;
} facts;

const char *agent_state_name(enum agent_state s)
{
	return s == AGENT_RUNNING ? "running" : "draining";
}

struct peers_totals peers_totals(struct peers *p)
{
	return (struct peers_totals){ .listeners = facts.listeners };
}

unsigned rails_up(const struct rails *r)
{
	return facts.rails_up;
}

bool peers_segment_ready(struct peers *p, const char *segment, char *reason, size_t n)
{
	snprintf(reason, n, "asked for %s", segment);
	return !strcmp(segment, "10.0.0.1:7411");
}

static void judge(const char *listen, const char *words, struct ready *ret)
{
	struct dray_strv *require = &fake.config.v.ready.require;
	struct dray_err err = DRAY_ERR_NULL;
	char text[256], *save = NULL, *addresses[] = { text };

	dray_strv_clear(require);
	snprintf(text, sizeof(text), "%s", words);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		assert_int_equal(ready_word_check(w, &err), 0);
		assert_int_equal(dray_strv_add(require, w, strlen(w)), 0);
	}
	snprintf(text, sizeof(text), "%s", listen);
	fake.config.v.peer.listen = (struct dray_strv){ addresses, 1 };
	fake.config.v.rdma.enable = true;
	fake.agent.state = facts.draining ? AGENT_DRAINING : AGENT_RUNNING;
	agent_ready(&fake.agent, ret);
}

static void ready_needs_the_required_conditions(void **state)
{
	static const char any[] = "0.0.0.0:0";
	struct ready r;

	facts = (struct facts){ .listeners = 1 };
	judge(any, "", &r);
	assert_true(r.ready);
	assert_int_equal(r.n, 4);
	judge(any, "rdma", &r);
	assert_false(r.ready);
	facts.rails_up = 1;
	judge(any, "rdma tcp segment:10.0.0.1:7411", &r);
	assert_true(r.ready);
	assert_string_equal(r.conditions[4].name, "segment:10.0.0.1:7411");
	assert_string_equal(r.conditions[4].reason, "asked for 10.0.0.1:7411");
	judge(any, "segment:10.0.0.2:7411", &r);
	assert_false(r.ready);
	facts = (struct facts){ .listeners = 1, .draining = true };
	judge(any, "", &r);
	assert_false(r.ready);
	facts = (struct facts){ .listeners = 0 };
	judge(any, "", &r);
	assert_false(r.ready);
	judge("none", "", &r);
	assert_true(r.ready);
	judge("none", "tcp", &r);
	assert_false(r.ready);
	dray_strv_clear(&fake.config.v.ready.require);
}

static void unknown_conditions_are_refused(void **state)
{
	static const char *const words[] = {
		"", "gpu", "rdma ", "segment:", "segment:a:1", "segment:0.0.0.0:1", "segment:[::1]"
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(words); i++) {
		struct dray_err err = DRAY_ERR_NULL;

		assert_int_equal(ready_word_check(words[i], &err), -EINVAL);
		assert_true(strlen(err.msg) > 10);
		/* the remedy is a word that is accepted */
		if (i > 3)
			assert_non_null(strstr(err.msg, "write such as segment:10.0.0.1:7411"));
	}
}

/* --- metrics ------------------------------------------------------------------------------------ */

void agent_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	v[DRAY_METRIC_SESSIONS] = UINT64_MAX;
}

void agent_samples(struct agent *a, enum dray_family f, const struct store_shown *spaces,
		   struct metrics_text *t)
{
	static const char *const labels[DRAY_FAMILY_LABELS_MAX] = { "a\"b\\c\nd", "x", "y", "z" };
	const struct dray_family_info *i = &dray_families[f];

	if (i->n_labels)
		metrics_sample(t, labels, 7);
	else
		metrics_sample_real(t, NULL, 0.25);
}

static void metrics_are_escaped_and_exact(void **state)
{
	size_t n;
	dray_auto_free char *text = metrics_render(&fake.agent, &n);

	assert_non_null(text);
	assert_int_equal(strlen(text), n);
	assert_non_null(strstr(text, "\n# TYPE dray_sessions gauge\n"
				     "dray_sessions 18446744073709551615\n"));
	assert_non_null(strstr(text, "\ndray_state{state=\"a\\\"b\\\\c\\nd\"} 7\n"));
	assert_non_null(strstr(text, "{peer=\"a\\\"b\\\\c\\nd\",transport=\"x\"} 7\n"));
	assert_non_null(strstr(text, "\nprocess_cpu_seconds_total 0.250000\n"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(requests_share_a_check),
		TEST(silent_workers_are_named_and_asked_once),
		TEST(transfers_must_end),
		TEST(an_agent_without_memory_is_not_alive),
		TEST(a_cancelled_request_is_never_answered),
		TEST(ready_needs_the_required_conditions),
		cmocka_unit_test(unknown_conditions_are_refused),
		cmocka_unit_test(metrics_are_escaped_and_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
