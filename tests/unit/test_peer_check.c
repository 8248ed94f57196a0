/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is lent for a check, whose region ends at an odd time. */
#include "tests/unit/peer_rig.h"

#include "agent/control/owner/owner.h"
#include "agent/control/peer/check.h"

struct asked {
	unsigned done;
	struct peer_check_result r;
	struct peer_check *check;
};

static void checked(void *arg, const struct peer_check_result *r)
{
	struct asked *a = arg;

	a->done++;
	a->r = *r;
	a->check = peer_check_free(a->check);
}

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* Starts a check of a lender that adds the memory. */
static void ask(struct rig *a, struct rig *b, struct owners *owners, struct asked *q)
{
	struct dray_err err = DRAY_ERR_NULL;

	b->deps.owners = owners;
	b->peers->deps.owners = owners;
	*q = (struct asked){ .done = 0 };
	assert_int_equal(peer_check_start(&q->check, a->peers, peers_segment(b->peers), false,
					  checked, q, &err),
			 0);
	assert_true(rig_until(a->event, b->lent.added));
	assert_int_equal(b->peers->n_lent, 1);
	assert_int_equal(q->done, 0);
}

static void assert_answered(struct rig *a, struct rig *b, struct asked *q)
{
	assert_true(rig_until(a->event, q->done));
	assert_int_equal(q->r.n_token, 0);
	/* the steps back have come */
	assert_true(q->r.n && q->r.v[q->r.n - 1].back);
	assert_int_equal(b->peers->n_lent, 0);
	assert_int_equal(b->peers->n_checks, 0);
}

/* The agent begins to drain while the memory is being added: export is refused, and the memory ends once. */
static void test_drain_before_export(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct owners owners = { .event = e };
	struct asked q;

	ask(a, b, &owners, &q);
	peers_drain(b->peers, 60000);
	b->lent.added(b->lent.arg, NULL);
	assert_int_equal(b->lent_removals, 1);
	/* the timer that the drain made due must not end it again */
	rig_for(e, 20);
	assert_int_equal(b->lent_removals, 1);
	assert_int_equal(b->peers->n_lent, 1);
	b->lent_removed(b->lent_arg);
	assert_answered(a, b, &q);
	rig_kill(a);
	rig_kill(b);
}

/* The memory ends before it is added: the answer does not wait for it. */
static void test_end_before_added(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct owners owners = { .event = e };
	struct asked q;

	ask(a, b, &owners, &q);
	peers_drain(b->peers, 60000);
	assert_true(rig_until(e, b->lent_removals));
	assert_int_equal(q.done, 0);
	b->lent_removed(b->lent_arg);
	assert_answered(a, b, &q);
	rig_kill(a);
	rig_kill(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drain_before_export),
		cmocka_unit_test(test_end_before_added),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
