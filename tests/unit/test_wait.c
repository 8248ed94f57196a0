/* SPDX-License-Identifier: Apache-2.0 */
/* Many transfers that wait for a word, or whose deadline passes: what one turn does, and for which owner. */
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/owner.h"
#include "agent/data/transport/local/local.h"
#include "lib/time.h"
#include "tests/unit/account.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define MANY 900
#define BYTES 4096
#define REGION 1ull
#define REMOTE 1ull
#define WORD 1024
#define TO 2048

/* Two sessions of one owner, and one of another. */
enum { CROWD, SIBLING, OTHER, SESSIONS };

static struct {
	struct rig rig;
	struct rig_session sessions[SESSIONS];
	struct owner_account other;
	struct rig_region region;
	struct remote_view *remote;
} t;

static int setup(void **state)
{
	rig_init(&t.rig);
	for (unsigned i = 0; i < SESSIONS; i++) {
		rig_session_init(&t.rig, &t.sessions[i], i + 1);
		t.sessions[i].shared.own.transfers_max = MANY;
	}
	owner_leave(&t.sessions[OTHER].xs);
	account_init_other(&t.other);
	t.sessions[OTHER].shared.account = &t.other;
	assert_int_equal(owner_join(&t.rig.core, &t.sessions[OTHER].xs), 0);
	rig_region_init(&t.rig, &t.region, REGION, 1, BYTES, 1);
	t.remote = rig_remote(&t.rig, REMOTE, &t.region, 1);
	return 0;
}

static void stop(struct core *c, struct xfer *x, void *arg)
{
	xfer_stop(c, x, DRAY_E_CANCELLED, NULL, true);
}

static int teardown(void **state)
{
	xfers_each(&t.rig.core, stop, NULL);
	for (unsigned i = 0; i < SESSIONS; i++)
		xfer_session_deinit(&t.sessions[i].xs);
	rig_deinit(&t.rig);
	rig_region_deinit(&t.region);
	free(t.remote);
	return 0;
}

static void set_word(uint32_t value)
{
	*(uint32_t *)(void *)rig_at(&t.region, WORD) = value;
}

/* Transfers that wait for value 1; overdue after deadline_ms, 0: never. */
static void add(unsigned session, unsigned n, uint32_t deadline_ms)
{
	const uint64_t op[1][3] = { { 0, 64, 64 } };

	for (unsigned i = 0; i < n; i++) {
		struct dray_err err = DRAY_ERR_NULL;
		struct xfer_request r = { .request_id = i + 1,
					  .spec.local = REGION,
					  .spec.remote = REMOTE,
					  .spec.flags = DMSG_TRANSFER_FLAG_WAIT,
					  .spec.wait_region = REGION,
					  .spec.wait_offset = WORD,
					  .spec.wait_value = 1,
					  .spec.deadline_ms = deadline_ms };

		assert_int_equal(rig_submit(&t.rig, &t.sessions[session], &r, op, 1, &err), 0);
	}
}

/* Transfers of the session whose word was found. */
static unsigned begun(unsigned session)
{
	unsigned n = 0;

	dray_list_for_each(&t.sessions[session].xs.xfers, x, struct xfer, session_link)
		n += x->state == XFER_RUNNING;
	return n;
}

static void a_turn_looks_at_a_bounded_number_of_words(void **state)
{
	struct core *c = &t.rig.core;
	unsigned n, turns = 1;
	int64_t next;

	add(CROWD, MANY - 2, 0);
	add(SIBLING, 1, 0);
	add(OTHER, 1, 0);
	set_word(1);
	next = xfers_tick(c);
	n = begun(CROWD);
	print_message("of %u waiting transfers of one session, one turn found %u\n", MANY - 2, n);
	assert_true(n <= 128);
	/* nobody else waits for the crowd */
	assert_int_equal(begun(SIBLING), 1);
	assert_int_equal(begun(OTHER), 1);
	for (; begun(CROWD) < MANY - 2; turns++) {
		/* the rest comes soon */
		assert_true(next - c->now_ns <= 20000);
		c->now_ns = next;
		next = xfers_tick(c);
	}
	assert_true(turns <= MANY / 64);
}

/* As long as few transfers of an owner wait, each turn looks at all of them, however many others have. */
static void few_words_are_looked_at_in_every_turn(void **state)
{
	struct core *c = &t.rig.core;

	add(CROWD, MANY - 20, 0);
	for (unsigned i = 0; i < 5; i++) {
		set_word(0);
		add(OTHER, 4, 0);
		xfers_tick(c);
		c->now_ns += 100;
		assert_int_equal(begun(OTHER), 4 * i);
		set_word(1);
		xfers_tick(c);
		assert_int_equal(begun(OTHER), 4 * (i + 1));
	}
}

/* Ending a waiting transfer takes it out of the rotation. */
static void transfers_that_end_are_not_looked_for(void **state)
{
	struct core *c = &t.rig.core;

	add(CROWD, 300, 0);
	add(SIBLING, 10, 0);
	for (unsigned i = 0; i < 20; i++) {
		c->now_ns += DRAY_NS_PER_MS;
		xfers_tick(c);
		if (i == 5)
			dray_list_for_each(&t.sessions[CROWD].xs.xfers, x, struct xfer,
					   session_link)
				xfer_stop(c, x, DRAY_E_CANCELLED, NULL, false);
	}
	assert_int_equal(t.rig.n_ended, 300);
	set_word(1);
	xfers_tick(c);
	assert_int_equal(begun(SIBLING), 10);
	assert_int_equal(xfers_tick(c) == INT64_MAX, 0); /* deadlines */
}

static uint64_t movable;

static uint64_t may_move(const struct xfer *x)
{
	return movable;
}

/* A write of 2,000 bytes to TO and on, of which `movable` may move. */
static void add_ready(uint64_t request_id)
{
	const uint64_t ops[3][3] = { { 0, TO, 600 },
				     { 600, TO + 600, 400 },
				     { 1000, TO + 1048, 1000 } };
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = request_id,
				  .spec.direction = DMSG_DIRECTION_WRITE,
				  .spec.local = REGION,
				  .spec.remote = REMOTE,
				  .ready = may_move };

	movable = 0;
	memset(rig_at(&t.region, 0), 'a', TO);
	memset(rig_at(&t.region, TO), 0, BYTES - TO);
	assert_int_equal(rig_submit(&t.rig, &t.sessions[OTHER], &r, ops, 3, &err), 0);
}

static void turns(void)
{
	t.rig.core.now_ns += DRAY_NS_PER_MS;
	xfers_tick(&t.rig.core);
	while (rig_turn(&t.rig))
		;
}

static unsigned moved(void)
{
	unsigned n = 0;

	for (unsigned i = TO; i < BYTES; i++)
		n += *rig_at(&t.region, i) == 'a';
	return n;
}

static void bytes_move_as_soon_as_they_may(void **state)
{
	add_ready(1);
	turns();
	assert_int_equal(begun(OTHER), 0);
	/* a device that comes up changes nothing */
	xfers_retry(&t.rig.core);
	assert_int_equal(begun(OTHER), 0);
	for (movable = 1; movable < 1000; movable += 333) {
		turns();
		assert_int_equal(begun(OTHER), 1);
		assert_int_equal(moved(), movable);
		turns();
		assert_int_equal(moved(), movable);
	}
	assert_int_equal(t.rig.n_ended, 0);
	/* a worker looks at what waits before it sends, and must not sleep then */
	t.rig.core.now_ns += DRAY_NS_PER_MS;
	movable++;
	xfers_tick(&t.rig.core);
	t.rig.core.kicked = false;
	transport_local.progress(&t.rig.core, t.rig.core.transport_state[0]);
	assert_true(t.rig.core.kicked);
	movable = 2000;
	turns();
	assert_int_equal(t.rig.n_ended, 1);
	assert_int_equal(t.rig.ended[0].code, 0);
	assert_int_equal(t.rig.ended[0].bytes, 2000);
}

/* Another transfer of the session goes on meanwhile, and one that waits for bytes can be stopped. */
static void a_transfer_that_waits_for_bytes_holds_up_no_other(void **state)
{
	add_ready(7);
	movable = 100;
	turns();
	set_word(1);
	add(OTHER, 1, 0);
	turns();
	assert_int_equal(t.rig.n_ended, 1);
	xfer_stop(&t.rig.core, xfer_find(&t.sessions[OTHER].xs, 7), DRAY_E_CANCELLED, NULL, false);
	assert_int_equal(t.rig.n_ended, 2);
	assert_int_equal(t.rig.ended[1].code, DRAY_E_CANCELLED);
	movable = 2000;
	turns();
	assert_int_equal(moved(), 100);
}

static void a_turn_ends_a_bounded_number_of_overdue_transfers(void **state)
{
	struct core *c = &t.rig.core;
	unsigned turns = 1;

	add(CROWD, MANY - 1, 5);
	add(OTHER, 1, 5);
	c->now_ns += 5 * DRAY_NS_PER_MS;
	/* at once again, because some are overdue */
	assert_true(xfers_tick(c) <= c->now_ns);
	print_message("of %u overdue transfers, one turn ended %u\n", MANY, t.rig.n_ended);
	assert_true(t.rig.n_ended && t.rig.n_ended <= 64);
	for (; t.rig.n_ended < MANY; turns++)
		xfers_tick(c);
	assert_true(turns <= MANY / 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_turn_looks_at_a_bounded_number_of_words, setup,
						teardown),
		cmocka_unit_test_setup_teardown(few_words_are_looked_at_in_every_turn, setup,
						teardown),
		cmocka_unit_test_setup_teardown(transfers_that_end_are_not_looked_for, setup,
						teardown),
		cmocka_unit_test_setup_teardown(bytes_move_as_soon_as_they_may, setup, teardown),
		cmocka_unit_test_setup_teardown(a_transfer_that_waits_for_bytes_holds_up_no_other,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_turn_ends_a_bounded_number_of_overdue_transfers,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
