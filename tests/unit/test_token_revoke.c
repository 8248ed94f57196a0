/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of tokens and grants, and when they are proved. */
#include "agent/control/region/internal.h"
#include "tests/unit/token_fixture.h"

static void test_revoke(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant, other;
	struct exported x = export(f, region, 0), y = export(f, region, 0);
	struct outcome one, two;

	assert_int_equal(start_revoke(f, region, x.id + 99, &one), DRAY_E_NOT_FOUND);
	assert_int_equal(start_revoke(f, region + 1, x.id, &one), DRAY_E_NOT_FOUND);
	f->owner.group++;
	assert_int_equal(start_revoke(f, region, x.id, &one), DRAY_E_NOT_FOUND);
	f->owner.group--;

	/* no peer has imported it */
	assert_int_equal(start_revoke(f, region, x.id, &one), 0);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_REVOKED);
	fake_answer_all();
	assert_int_equal(one.calls, 1);
	assert_int_equal(one.count, 1);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_REVOKED);
	assert_int_equal(start_revoke(f, region, x.id, &one), DRAY_E_NOT_FOUND);

	/* a peer and a local remote: the answers of both the workers and the peer are needed */
	assert_int_equal(import(f, &y.t, &grant), 0);
	assert_int_equal(import_local(f, &y.t, 77), 0);
	assert_int_equal(start_revoke(f, region, 0, &one), 0);
	assert_int_equal(f->fences, 1);
	assert_int_equal(f->fenced[0], grant);
	assert_int_equal(f->revoked_locals, 1);
	assert_int_equal(f->revoked_local[0], 77);
	assert_false(f->last_urgent);
	assert_int_equal(import(f, &y.t, &other), DRAY_E_REVOKED);
	/* a second request waits for the same end */
	assert_int_equal(start_revoke(f, region, y.id, &two), 0);
	fake_answer_all();
	assert_int_equal(one.calls + two.calls, 0);
	local_remote_gone(f->regions, y.id, 77, PMSG_RELEASE_HOW_USED);
	assert_int_equal(one.calls + two.calls, 0);
	grant_fenced(f->regions, PEER + 1, grant);
	assert_int_equal(one.calls + two.calls, 0);
	grant_fenced(f->regions, PEER, grant);
	assert_int_equal(one.calls, 1);
	assert_int_equal(one.count, 1);
	assert_int_equal(two.calls, 1);
	assert_int_equal(f->tokens, 0);
	assert_int_equal(grants_count(f->regions, PEER), 0);

	assert_int_equal(start_revoke(f, region, 0, &one), 0);
	fake_answer_all();
	assert_int_equal(one.calls, 1);
	assert_int_equal(one.count, 0);
	remove_all(f, region);
}

/*
 * The acknowledgement can come before the answers of the workers, a release can cross the fence,
 * and the peer can die.
 */
static void test_revoke_orders(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct outcome o;

	for (unsigned way = 0; way < 3; way++) {
		struct exported x = export(f, region, 0);

		assert_int_equal(import(f, &x.t, &grant), 0);
		assert_int_equal(start_revoke(f, region, x.id, &o), 0);
		fake_answer_others(OBJECT_GRANT, grant);
		if (way == 0)
			grant_fenced(f->regions, PEER, grant);
		else if (way == 1)
			grant_release(f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
		else
			grants_peer_gone(f->regions, PEER);
		assert_int_equal(o.calls, 0);
		fake_answer_all();
		assert_int_equal(o.calls, 1);
		/* late messages about the grant */
		grant_fenced(f->regions, PEER, grant);
		grant_release(f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	}
	remove_all(f, region);
}

/* One of two tokens is revoked: the other stays. */
static void test_revoke_one(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), gone, stays;
	struct exported x = export(f, region, 0), y = export(f, region, 0);
	struct outcome o;

	assert_int_equal(import(f, &x.t, &gone), 0);
	assert_int_equal(import(f, &y.t, &stays), 0);
	assert_int_equal(start_revoke(f, region, x.id, &o), 0);
	assert_int_equal(f->fences, 1);
	assert_int_equal(f->fenced[0], gone);
	grant_fenced(f->regions, PEER, gone);
	fake_answer_all();
	assert_int_equal(o.calls, 1);
	assert_int_equal(grant_region(f->regions, PEER, stays), region);
	grants_peer_gone(f->regions, PEER);
	remove_all(f, region);
}

static struct {
	unsigned calls;
	void (*done)(void *arg);
	void *arg;
} keys_end;

static bool end_keys(struct rails *rails, dray_handle region, void (*done)(void *arg), void *arg)
{
	keys_end.calls++;
	keys_end.done = done;
	keys_end.arg = arg;
	return true;
}

static int setup_with_keys(void **state)
{
	static struct regions_upcalls up;

	up = fixture_up;
	up.revoked = end_keys;
	keys_end.calls = 0;
	return fixture_setup_with(state, &up);
}

/* A revocation is answered after the keys have ended that a peer has seen by the token; a removal waits for that, too. */
static void test_revoke_ends_keys(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), unseen, seen, stays;
	struct exported x = export(f, region, 0), y = export(f, region, 0),
			z = export(f, region, 0);
	struct outcome o;
	unsigned done = 0;

	assert_int_equal(import(f, &x.t, &unseen), 0);
	assert_int_equal(import(f, &y.t, &seen), 0);
	assert_int_equal(import(f, &z.t, &stays), 0);
	grant_expose(f->regions, PEER, seen);
	grant_expose(f->regions, PEER, stays);
	/* no peer has seen keys by this token */
	assert_int_equal(start_revoke(f, region, x.id, &o), 0);
	grant_fenced(f->regions, PEER, unseen);
	fake_answer_all();
	assert_int_equal(o.calls, 1);
	assert_int_equal(keys_end.calls, 0);
	/* its holder has released it, and may remember the keys */
	grant_release(f->regions, PEER, seen, PMSG_RELEASE_HOW_USED);
	assert_int_equal(start_revoke(f, region, y.id, &o), 0);
	fake_answer_all();
	assert_int_equal(keys_end.calls, 1);
	assert_int_equal(o.calls, 0);
	assert_int_equal(grant_region(f->regions, PEER, stays), region);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	grant_fenced(f->regions, PEER, stays);
	fake_answer_all();
	assert_int_equal(done, 0);
	keys_end.done(keys_end.arg);
	assert_int_equal(o.calls, 1);
	assert_int_equal(done, 1);
	assert_int_equal(f->tokens, 0);
}

static void test_remove_fenced(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct exported x = export(f, region, 0);
	struct outcome o;
	unsigned done = 0;

	assert_int_equal(import(f, &x.t, &grant), 0);
	assert_int_equal(import_local(f, &x.t, 77), 0);
	assert_int_equal(start_revoke(f, region, x.id, &o), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	assert_int_equal(f->fences, 1);
	fake_answer_all();
	local_remote_gone(f->regions, x.id, 77, PMSG_RELEASE_HOW_USED);
	assert_int_equal(done, 0);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_REVOKED);
	grant_fenced(f->regions, PEER, f->fenced[0]);
	assert_int_equal(done, 1);
	assert_int_equal(o.calls, 1);
	assert_int_equal(f->tokens, 0);
	assert_int_equal(import(f, &x.t, &grant), DRAY_E_REVOKED);
}

/*
 * The memory of a dead session is released when the workers have answered; the peer's
 * acknowledgement then finds only its grant.
 */
static void test_remove_urgent(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct exported x = export(f, region, 0);
	unsigned done = 0;

	assert_int_equal(import(f, &x.t, &grant), 0);
	assert_int_equal(import_local(f, &x.t, 77), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, true, count_done, &done), 0);
	assert_true(f->last_urgent);
	assert_int_equal(f->fences, 1);
	fake_answer(OBJECT_REGION, region);
	/* a worker still serves the grant */
	assert_int_equal(done, 0);
	fake_answer(OBJECT_GRANT, grant);
	assert_int_equal(done, 1);
	assert_int_equal(f->tokens, 0);
	assert_int_equal(grants_count(f->regions, PEER), 1);
	local_remote_gone(f->regions, x.id, 77, PMSG_RELEASE_HOW_USED);
	grant_fenced(f->regions, PEER, grant);
	assert_int_equal(grants_count(f->regions, PEER), 0);
}

/* The session dies while its REGION_REMOVE waits for a peer that does not answer. */
static void test_hurry_fenced(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct exported x = export(f, region, 0);
	struct outcome o;
	unsigned done = 0;

	assert_int_equal(import(f, &x.t, &grant), 0);
	assert_int_equal(start_revoke(f, region, 0, &o), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	fake_answer_all();
	assert_int_equal(done + o.calls, 0);
	region_hurry(f->regions, region);
	assert_int_equal(done + o.calls, 0);
	fake_answer_all();
	assert_int_equal(done, 1);
	assert_int_equal(o.calls, 1);
	grants_peer_gone(f->regions, PEER);
	assert_int_equal(grants_count(f->regions, PEER), 0);
}

/* More dead tokens than are remembered. */
static void test_graves(void **state)
{
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct exported first = export(f, region, 0), last = first;
	struct outcome o;

	for (unsigned i = 0; i < 1100; i++) {
		if (i)
			last = export(f, region, 0);
		assert_int_equal(start_revoke(f, region, last.id, &o), 0);
		fake_answer_all();
	}
	assert_int_equal(import(f, &last.t, &grant), DRAY_E_REVOKED);
	assert_int_equal(import(f, &first.t, &grant), DRAY_E_TOKEN_INVALID);
	remove_all(f, region);
}

/* The revocation of many tokens takes several turns of the loop. Nobody can import one of them meanwhile, and others stay. */
static void test_revoke_in_turns(void **state)
{
	const unsigned n = 3 * ENDS_PER_TURN + 1;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), held, grant;
	struct exported first = { 0 }, middle = { 0 }, last, later;
	struct outcome all, again, one;
	unsigned turns = 0;

	f->cfg.limits.tokens_per_session = n + 1;
	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++) {
		last = export(f, region, 0);
		if (i == 0)
			first = last;
		else if (i == n / 2)
			middle = last;
	}
	assert_int_equal(import(f, &last.t, &held), 0);
	assert_int_equal(import_local(f, &last.t, 77), 0);
	assert_int_equal(start_revoke(f, region, 0, &all), 0);
	assert_int_equal(f->tokens, n - ENDS_PER_TURN);
	assert_int_equal(f->fences, 0);
	assert_int_equal(import(f, &first.t, &grant), DRAY_E_REVOKED);
	assert_int_equal(import(f, &middle.t, &grant), DRAY_E_REVOKED);
	assert_int_equal(import(f, &last.t, &grant), DRAY_E_REVOKED);
	assert_null(grant_find(f->regions, PEER, held));
	later = export(f, region, 0);
	/* these wait for what has yet to end, too */
	assert_int_equal(start_revoke(f, region, last.id, &one), 0);
	assert_int_equal(start_revoke(f, region, middle.id, &again), 0);
	fake_answer_all();
	assert_int_equal(all.calls + one.calls, 0);
	assert_int_equal(again.calls, 1);
	assert_int_equal(again.count, 0);
	for (uint32_t before; f->tokens > 2; turns++) {
		before = f->tokens;
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
		assert_in_range(before - f->tokens, 0, ENDS_PER_TURN);
	}
	assert_true(turns >= 2);
	assert_int_equal(f->fences, 1);
	assert_int_equal(start_revoke(f, region, last.id, &again), 0);
	fake_answer_all();
	local_remote_gone(f->regions, last.id, 77, PMSG_RELEASE_HOW_USED);
	assert_int_equal(all.calls + one.calls + again.calls, 0);
	grant_fenced(f->regions, PEER, held);
	assert_int_equal(all.calls, 1);
	assert_int_equal(all.count, n);
	assert_int_equal(one.calls, 1);
	assert_int_equal(again.calls, 1);
	assert_int_equal(import(f, &later.t, &grant), 0);
	grant_release(f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	/* a new turn has room */
	assert_true(sd_event_run(f->event, 0) >= 0);
	remove_all(f, region);
}

/* The region is removed while the revocation of its tokens is under way, and a second revocation waits. */
static void test_remove_in_turns(void **state)
{
	const unsigned n = 2 * ENDS_PER_TURN + 1;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct outcome one, two;
	unsigned done = 0;

	f->cfg.limits.tokens_per_session = n + 1;
	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++)
		export(f, region, 0);
	assert_int_equal(start_revoke(f, region, 0, &one), 0);
	export(f, region, 0);
	assert_int_equal(start_revoke(f, region, 0, &two), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	fake_answer_all();
	assert_int_equal(one.calls + two.calls + done, 0);
	while (f->tokens)
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	fake_answer_all();
	assert_int_equal(one.calls, 1);
	assert_int_equal(one.count, n);
	assert_int_equal(two.calls, 1);
	assert_int_equal(two.count, 1);
	assert_int_equal(done, 1);
}

/* One token with more local imports than one turn ends. */
static void test_revoke_one_in_turns(void **state)
{
	const unsigned n = 3 * ENDS_PER_TURN;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct exported x = export(f, region, 0), other = export(f, region, 0);
	struct outcome one;

	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	assert_int_equal(import(f, &x.t, &grant), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(import_local(f, &x.t, i + 1), 0);
	assert_int_equal(start_revoke(f, region, x.id, &one), 0);
	/* the peer comes first */
	assert_int_equal(f->fences, 1);
	assert_in_range(f->revoked_locals, 1, ENDS_PER_TURN - 1);
	assert_int_equal(import_local(f, &x.t, n + 1), DRAY_E_REVOKED);
	/* one that has yet to learn of it is released */
	local_remote_gone(f->regions, x.id, n, PMSG_RELEASE_HOW_USED);
	for (unsigned before; f->revoked_locals < n - 1;) {
		before = f->revoked_locals;
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
		assert_in_range(f->revoked_locals - before, 0, ENDS_PER_TURN);
	}
	fake_answer_all();
	grant_fenced(f->regions, PEER, grant);
	for (unsigned i = 1; i < n; i++) {
		assert_int_equal(one.calls, 0);
		local_remote_gone(f->regions, x.id, i, PMSG_RELEASE_HOW_USED);
	}
	assert_int_equal(one.calls, 1);
	assert_int_equal(one.count, 1);
	assert_int_equal(import_local(f, &other.t, n + 2), 0);
	local_remote_gone(f->regions, other.id, n + 2, PMSG_RELEASE_HOW_USED);
	assert_true(sd_event_run(f->event, 0) >= 0);
	remove_all(f, region);
}

/* The region is removed while a token of it is being revoked. The workers drop the region after all that could use it. */
static void test_remove_while_one_is_revoked(void **state)
{
	const unsigned n = 3 * ENDS_PER_TURN;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct exported x = export(f, region, 0);
	struct outcome one;
	unsigned done = 0;

	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(import_local(f, &x.t, i + 1), 0);
	assert_int_equal(start_revoke(f, region, x.id, &one), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	while (f->revoked_locals < n) {
		assert_false(fake_dropping(OBJECT_REGION, region));
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	}
	assert_int_equal(f->revoked_locals, n);
	while (!fake_dropping(OBJECT_REGION, region))
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	fake_answer_all();
	for (unsigned i = n; i > 0; i--) {
		assert_int_equal(one.calls + done, 0);
		local_remote_gone(f->regions, x.id, i, PMSG_RELEASE_HOW_USED);
	}
	fake_answer_all();
	assert_int_equal(one.calls, 1);
	assert_int_equal(done, 1);
}

/* A peer with more grants than one turn ends is lost. Nobody waits for its answer to a fence. */
static void test_peer_gone_in_turns(void **state)
{
	const unsigned n = 2 * ENDS_PER_TURN + 1;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1), grant;
	struct outcome last;
	struct exported x;
	unsigned done = 0;

	f->cfg.limits.tokens_per_session = n;
	f->cfg.limits.grants_per_peer = 4 * n;
	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++) {
		x = export(f, region, 0);
		assert_int_equal(import(f, &x.t, &grant), 0);
	}
	grants_peer_gone(f->regions, PEER);
	assert_in_range(fake_waiting(), 1, ENDS_PER_TURN);
	assert_int_equal(start_revoke(f, region, x.id, &last), 0);
	for (unsigned before; fake_waiting() < n + 1;) {
		before = fake_waiting();
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
		assert_in_range(fake_waiting() - before, 0, ENDS_PER_TURN);
	}
	assert_int_equal(last.calls, 0);
	fake_answer_all();
	assert_int_equal(last.calls, 1);
	assert_int_equal(grants_count(f->regions, PEER), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, false, count_done, &done), 0);
	while (f->tokens)
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	fake_answer_all();
	assert_int_equal(done, 1);
}

/* The session dies while more importers than one turn detaches have not confirmed the end of their tokens. One token has most of them. */
static void test_abandon_in_turns(void **state)
{
	const unsigned n = ENDS_PER_TURN + 1;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct outcome all;
	struct exported x;
	unsigned done = 0;

	f->cfg.limits.tokens_per_session = n + 1;
	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++) {
		x = export(f, region, 0);
		assert_int_equal(import_local(f, &x.t, i + 1), 0);
	}
	x = export(f, region, 0);
	for (unsigned i = 0; i < 2 * n; i++)
		assert_int_equal(import_local(f, &x.t, n + i + 1), 0);
	assert_int_equal(start_revoke(f, region, 0, &all), 0);
	assert_int_equal(region_remove(f->regions, region, SESSION, true, count_done, &done), 0);
	while (f->revoked_locals < 3 * n)
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	/* a turn in which nothing has been done yet */
	assert_true(sd_event_run(f->event, 0) >= 0);
	fake_answer_all();
	assert_int_equal(f->tokens, n + 1 - ENDS_PER_TURN);
	while (f->tokens) {
		assert_int_equal(done + all.calls, 0);
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	}
	assert_int_equal(all.calls, 1);
	assert_int_equal(all.count, n + 1);
	fake_answer_all();
	assert_int_equal(done, 1);
	local_remote_gone(f->regions, x.id, 3 * n, PMSG_RELEASE_HOW_USED);
}

/* The last importer confirms the end while a part of the others has been detached. */
static void test_confirm_while_abandoned(void **state)
{
	const unsigned n = ENDS_PER_TURN + 1;
	struct fixture *f = *state;
	dray_handle region = add_plain(f, 1);
	struct exported x;
	unsigned done = 0;

	f->cfg.limits.tokens_per_session = n;
	f->regions->deps.event = f->event;
	assert_int_equal(ends_init(f->regions), 0);
	for (unsigned i = 0; i < n; i++) {
		x = export(f, region, 0);
		assert_int_equal(import_local(f, &x.t, i + 1), 0);
	}
	assert_int_equal(region_remove(f->regions, region, SESSION, true, count_done, &done), 0);
	while (f->revoked_locals < n)
		assert_true(sd_event_run(f->event, UINT64_MAX) >= 0);
	assert_true(sd_event_run(f->event, 0) >= 0);
	fake_answer_all();
	assert_int_equal(f->tokens, 1);
	local_remote_gone(f->regions, x.id, n, PMSG_RELEASE_HOW_USED);
	assert_int_equal(f->tokens, 0);
	fake_answer_all();
	assert_int_equal(done, 1);
	/* nothing is left for a later turn */
	assert_true(sd_event_run(f->event, 0) >= 0);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		T(test_revoke),
		T(test_revoke_orders),
		T(test_revoke_one),
		T(test_revoke_in_turns),
		T(test_remove_in_turns),
		T(test_revoke_one_in_turns),
		T(test_remove_while_one_is_revoked),
		T(test_peer_gone_in_turns),
		T(test_abandon_in_turns),
		T(test_confirm_while_abandoned),
		T(test_remove_fenced),
		T(test_remove_urgent),
		T(test_hurry_fenced),
		T(test_graves),
		cmocka_unit_test_setup_teardown(test_revoke_ends_keys, setup_with_keys,
						fixture_teardown),
	};

	return cmocka_run_group_tests_name("token_revoke", tests, NULL, NULL);
}
