/* SPDX-License-Identifier: Apache-2.0 */
/* Leases at their owner: every way to their end, and when the owner hears of it. */
#include "agent/control/region/internal.h"
#include "agent/model/ranges.h"
#include "tests/unit/token_fixture.h"
#include "tests/unit/untouched.h"

#define MS 60000u
#define ENDS_MAX 16

static struct dmsg_lease_ended ends[ENDS_MAX];
static unsigned n_ends;

static void up_ended(struct sessions *sessions, dray_handle session,
		     const struct dmsg_lease_ended *m)
{
	assert_int_equal(session, SESSION);
	if (n_ends < ENDS_MAX)
		ends[n_ends] = *m;
	n_ends++;
}

static struct regions_upcalls lease_up;

struct lab {
	struct fixture *f;
	dray_handle region;
	struct lease_counts counts;
};

static struct lab lab_new(void **state)
{
	struct fixture *f = *state;
	struct lab l = { .f = f, .region = add_plain(f, 4) };

	n_ends = 0;
	f->cfg.limits.leases_per_session = 4;
	f->cfg.limits.lease_ranges_per_session = 100;
	return l;
}

struct leased {
	uint64_t id;
	struct pmsg_token t;
};

static int lease_with(struct lab *l, struct dmsg_lease m, const struct dmsg_range *v, uint32_t n,
		      struct leased *ret)
{
	struct region_owner owner = l->f->owner;
	uint8_t wire[8 * DMSG_RANGE_SIZE], token[DMSG_TOKEN_MAX];
	char segment[256];
	uint32_t length;

	for (uint32_t i = 0; i < n; i++)
		dmsg_range_put(wire + i * DMSG_RANGE_SIZE, &v[i]);
	m.region = m.region ? m.region : l->region;
	m.ranges = (struct dray_vec){ wire, n };
	owner.leases = &l->counts;
	last_err = DRAY_ERR_NULL;
	if (lease_new(l->f->regions, &owner, &m, SEGMENT, &ret->id, token, &length, &last_err) == 0)
		assert_int_equal(token_parse(token, length, &ret->t, segment, &last_err), 0);
	return last_err.code;
}

static struct leased lease(struct lab *l, uint32_t holders)
{
	static const struct dmsg_range r = { 16, 8, 32, 3 };
	struct leased x;

	assert_int_equal(lease_with(l,
				    (struct dmsg_lease){ .access = DMSG_ACCESS_READ,
							 .holders = holders,
							 .expiry_ms = MS },
				    &r, 1, &x),
			 0);
	assert_int_equal(dray_handle_kind(x.id), DMSG_HANDLE_KIND_LEASE);
	assert_int_equal(x.t.token_id, x.id);
	return x;
}

static int acquire_as(struct lab *l, const struct leased *x, dray_handle peer, dray_handle *ret)
{
	struct pmsg_lease_key key = { .token_id = x->t.token_id,
				      .region = x->t.region,
				      .incarnation = x->t.incarnation };
	struct pmsg_lease_granted g = { 0 };
	const struct ranges *ranges;

	memcpy(key.capability, x->t.capability, sizeof(key.capability));
	last_err = DRAY_ERR_NULL;
	if (lease_acquire(l->f->regions, peer, peer_id, &key, false, &g, &ranges, &last_err) == 0) {
		assert_int_equal(g.length, 4 * PAGE);
		assert_int_equal(g.ranges, ranges->n);
		assert_in_range(g.expiry_ms, MS / 2, MS);
		assert_ptr_equal(((const struct grant_view *)fake_last[OBJECT_GRANT])->ranges,
				 ranges);
		*ret = g.grant;
	}
	return last_err.code;
}

static dray_handle acquire(struct lab *l, const struct leased *x)
{
	dray_handle grant = 0;

	assert_int_equal(acquire_as(l, x, PEER, &grant), 0);
	return grant;
}

static int acquire_local(struct lab *l, const struct leased *x, dray_handle remote)
{
	struct remote_view view = { .o = { .handle = remote } };
	uint32_t ms;

	last_err = DRAY_ERR_NULL;
	if (lease_acquire_local(l->f->regions, &x->t, &view, &ms, &last_err) == 0) {
		assert_int_equal(view.o.length, 4 * PAGE);
		assert_int_equal(view.offset, 0);
		assert_int_equal(view.ranges->pieces, 3);
		ranges_unref(view.ranges);
	}
	return last_err.code;
}

static int start_end(struct lab *l, const struct leased *x, struct outcome *o)
{
	*o = (struct outcome){ 0 };
	last_err = DRAY_ERR_NULL;
	lease_end(l->f->regions, x->id, &l->f->owner, revoked, o, &last_err);
	assert_int_equal(o->calls, 0);
	return last_err.code;
}

static void expect_end(unsigned n, const struct leased *x, enum dmsg_lease_outcome outcome,
		       uint32_t acquired)
{
	assert_int_equal(n_ends, n);
	assert_true(n <= ENDS_MAX);
	assert_int_equal(ends[n - 1].lease, x->id);
	assert_int_equal(ends[n - 1].outcome, outcome);
	assert_int_equal(ends[n - 1].acquired, acquired);
}

static void lab_end(struct lab *l)
{
	remove_all(l->f, l->region);
	assert_int_equal(l->counts.leases, 0);
	assert_int_equal(l->counts.ranges, 0);
	assert_int_equal(leases_totals(l->f->regions).leases, 0);
	assert_int_equal(leases_totals(l->f->regions).holders, 0);
}

static void test_used(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 2);
	dray_handle one = acquire(&l, &x), two = acquire(&l, &x), three;

	assert_int_equal(acquire_as(&l, &x, PEER, &three), DRAY_E_TOKEN_USED);
	grant_release(l.f->regions, PEER, one, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	assert_int_equal(n_ends, 0);
	grant_release(l.f->regions, PEER, two, PMSG_RELEASE_HOW_USED);
	/* the workers here may still serve it */
	assert_int_equal(n_ends, 0);
	fake_answer_all();
	expect_end(1, &x, DMSG_LEASE_OUTCOME_USED, 2);
	assert_int_equal(acquire_as(&l, &x, PEER, &three), DRAY_E_TOKEN_USED);
	assert_int_equal(l.f->fences, 0);
	lab_end(&l);
	assert_int_equal(n_ends, 1);
}

static void test_used_here(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1);

	assert_int_equal(acquire_local(&l, &x, 77), 0);
	assert_int_equal(acquire_local(&l, &x, 78), DRAY_E_TOKEN_USED);
	local_remote_gone(l.f->regions, x.id, 77, PMSG_RELEASE_HOW_USED);
	expect_end(1, &x, DMSG_LEASE_OUTCOME_USED, 1);
	x = lease(&l, 1);
	assert_int_equal(acquire_local(&l, &x, 79), 0);
	local_remote_gone(l.f->regions, x.id, 79, PMSG_RELEASE_HOW_LOST);
	expect_end(2, &x, DMSG_LEASE_OUTCOME_PEER_LOST, 1);
	lab_end(&l);
}

static void test_expired(void **state)
{
	struct lab l = lab_new(state);
	struct leased nobody = lease(&l, 1), held = lease(&l, 1);
	dray_handle grant = acquire(&l, &held), other;
	int64_t now = dray_now().ns;
	uint32_t ms;

	leases_expire(l.f->regions, now + MS / 2 * DRAY_NS_PER_MS);
	assert_int_equal(n_ends, 0);
	leases_expire(l.f->regions, now + (MS + 1000) * DRAY_NS_PER_MS);
	/* no holder: at once. A holder: after its fence. */
	expect_end(1, &nobody, DMSG_LEASE_OUTCOME_EXPIRED, 0);
	assert_int_equal(acquire_as(&l, &nobody, PEER, &other), DRAY_E_TOKEN_EXPIRED);
	assert_int_equal(l.f->fences, 1);
	assert_int_equal(l.f->fenced[0], grant);
	assert_int_equal(lease_renew(l.f->regions, PEER, grant, 0, &ms), -ENOENT);
	fake_answer_all();
	assert_int_equal(n_ends, 1);
	grant_fenced(l.f->regions, PEER, grant);
	expect_end(2, &held, DMSG_LEASE_OUTCOME_EXPIRED, 1);
	lab_end(&l);
}

static void test_renewed(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1);
	dray_handle grant = acquire(&l, &x);
	int64_t made = dray_now().ns;
	uint32_t ms;

	/* never shorter, and never longer than the owner's limit */
	assert_int_equal(lease_renew(l.f->regions, PEER, grant, 10, &ms), 0);
	assert_in_range(ms, MS / 2, MS);
	assert_int_equal(lease_renew(l.f->regions, PEER, grant, UINT32_MAX, &ms), 0);
	assert_in_range(ms, MS / 2, MS);
	assert_int_equal(lease_renew(l.f->regions, PEER + 1, grant, 0, &ms), -ENOENT);
	assert_int_equal(lease_renew_local(l.f->regions, x.id, 0, &ms), 0);
	assert_int_equal(lease_renew_local(l.f->regions, x.id + 1, 0, &ms), -ENOENT);
	leases_expire(l.f->regions, made + MS / 2 * DRAY_NS_PER_MS);
	assert_int_equal(n_ends, 0);
	assert_int_equal(leases_totals(l.f->regions).renewed, 3);
	lab_end(&l);
}

static void test_ended_by_owner(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 2), y = lease(&l, 1);
	dray_handle grant = acquire(&l, &x), other = acquire(&l, &y);
	struct outcome one, two, three;

	assert_int_equal(acquire_local(&l, &x, 77), 0);
	assert_int_equal(start_end(&l, &x, &one), 0);
	assert_int_equal(l.f->fences, 1);
	assert_int_equal(l.f->fenced[0], grant);
	assert_int_equal(l.f->revoked_local[0], 77);
	/* a second call waits for the same end; another lease has a fence of its own */
	assert_int_equal(start_end(&l, &x, &two), 0);
	assert_int_equal(start_end(&l, &y, &three), 0);
	fake_answer_all();
	grant_fenced(l.f->regions, PEER, other);
	expect_end(1, &y, DMSG_LEASE_OUTCOME_ENDED, 1);
	assert_int_equal(three.calls, 1);
	assert_int_equal(one.calls + two.calls, 0);
	local_remote_gone(l.f->regions, x.id, 77, PMSG_RELEASE_HOW_LOST);
	/* a release that crosses the fence counts as its acknowledgement */
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	expect_end(2, &x, DMSG_LEASE_OUTCOME_ENDED, 2);
	assert_int_equal(one.calls, 1);
	assert_int_equal(two.calls, 1);
	assert_int_equal(start_end(&l, &x, &one), DRAY_E_NOT_FOUND);
	x.id = l.region;
	assert_int_equal(start_end(&l, &x, &one), DRAY_E_INVALID);
	lab_end(&l);
}

static void test_peer_lost(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 2), y = lease(&l, 1);
	dray_handle lost = acquire(&l, &x), other, held = acquire(&l, &y);

	assert_int_equal(acquire_as(&l, &x, PEER + 1, &other), 0);
	grants_peer_gone(l.f->regions, PEER);
	/* the other holder of the lease is fenced */
	assert_int_equal(l.f->fences, 1);
	assert_int_equal(l.f->fenced[0], other);
	fake_answer_all();
	expect_end(1, &y, DMSG_LEASE_OUTCOME_PEER_LOST, 1);
	grant_fenced(l.f->regions, PEER + 1, other);
	expect_end(2, &x, DMSG_LEASE_OUTCOME_PEER_LOST, 2);
	assert_null(grant_find(l.f->regions, PEER, lost));
	assert_null(grant_find(l.f->regions, PEER, held));
	lab_end(&l);
}

/* A holder counts once: what comes of its grant afterwards, until the workers have let go of it, says nothing about the lease. */
static void test_holder_gone_once(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 2), y = lease(&l, 2), z = lease(&l, 2);
	dray_handle grant, other;

	/* released, and then its connection ends */
	grant = acquire(&l, &x);
	assert_int_equal(acquire_as(&l, &x, PEER + 1, &other), 0);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	grants_peer_gone(l.f->regions, PEER);
	assert_int_equal(l.f->fences, 0);
	grant_release(l.f->regions, PEER + 1, other, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	expect_end(1, &x, DMSG_LEASE_OUTCOME_USED, 2);
	/* released twice */
	grant = acquire(&l, &y);
	other = acquire(&l, &y);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	assert_int_equal(n_ends, 1);
	assert_non_null(grant_find(l.f->regions, PEER, other));
	grant_release(l.f->regions, PEER, other, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	expect_end(2, &y, DMSG_LEASE_OUTCOME_USED, 2);
	/* given back twice */
	grant = acquire(&l, &z);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_DECLINED);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_DECLINED);
	acquire(&l, &z);
	acquire(&l, &z);
	assert_int_equal(acquire_as(&l, &z, PEER, &other), DRAY_E_TOKEN_USED);
	grants_peer_gone(l.f->regions, PEER);
	fake_answer_all();
	expect_end(3, &z, DMSG_LEASE_OUTCOME_PEER_LOST, 2);
	lab_end(&l);
}

static void test_session_of_holder_lost(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1), y = lease(&l, 1);
	dray_handle grant = acquire(&l, &x), drained = acquire(&l, &y);

	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_LOST);
	fake_answer_all();
	expect_end(1, &x, DMSG_LEASE_OUTCOME_PEER_LOST, 1);
	/* while this agent drains, peers give their grants back */
	regions_drain(l.f->regions, true);
	grant_release(l.f->regions, PEER, drained, PMSG_RELEASE_HOW_LOST);
	fake_answer_all();
	expect_end(2, &y, DMSG_LEASE_OUTCOME_ENDED, 1);
	lab_end(&l);
}

static void test_declined(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1);
	dray_handle grant = acquire(&l, &x);

	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_DECLINED);
	fake_answer_all();
	assert_int_equal(n_ends, 0);
	/* somebody else may acquire it */
	grant = acquire(&l, &x);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	expect_end(1, &x, DMSG_LEASE_OUTCOME_USED, 1);
	lab_end(&l);
}

/* A request that crosses a grant without a request is answered with that grant. */
static void test_unasked(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1);
	struct pmsg_lease_key key = { .token_id = x.t.token_id,
				      .region = x.t.region,
				      .incarnation = x.t.incarnation };
	struct pmsg_lease_granted unasked = { 0 }, answer = { 0 };
	const struct ranges *ranges;
	struct dray_err err = DRAY_ERR_NULL;
	dray_handle other;

	memcpy(key.capability, x.t.capability, sizeof(key.capability));
	assert_int_equal(
		lease_acquire(l.f->regions, PEER, peer_id, &key, true, &unasked, &ranges, &err), 0);
	assert_int_equal(acquire_as(&l, &x, PEER + 1, &other), DRAY_E_TOKEN_USED);
	key.capability[0]++;
	assert_int_equal(lease_acquire(l.f->regions, PEER, peer_id, &key, false, &answer, &ranges,
				       &err),
			 -EPERM);
	assert_int_equal(err.code, DRAY_E_TOKEN_INVALID);
	key.capability[0]--;
	assert_int_equal(
		lease_acquire(l.f->regions, PEER, peer_id, &key, false, &answer, &ranges, &err), 1);
	assert_int_equal(answer.grant, unasked.grant);
	/* it answers one request only */
	assert_int_equal(acquire_as(&l, &x, PEER, &other), DRAY_E_TOKEN_USED);
	grant_release(l.f->regions, PEER, answer.grant, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	expect_end(1, &x, DMSG_LEASE_OUTCOME_USED, 1);
	lab_end(&l);
}

static void test_ends_with_region_or_tokens(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1), y;
	struct outcome o;

	assert_int_equal(start_revoke(l.f, l.region, 0, &o), 0);
	expect_end(1, &x, DMSG_LEASE_OUTCOME_ENDED, 0);
	fake_answer_all();
	assert_int_equal(o.count, 1);
	y = lease(&l, 1);
	acquire(&l, &y);
	lab_end(&l);
	expect_end(2, &y, DMSG_LEASE_OUTCOME_ENDED, 1);
}

/* The counts belong to the session, which ends before the region of another member of its group. */
static void test_session_gone(void **state)
{
	struct lab l = lab_new(state);
	struct lab other = l;
	struct leased of_other = lease(&other, 1), x = lease(&l, 1), y = lease(&l, 1);
	struct token *t = dray_handles_get(&l.f->regions->leases, of_other.id);
	dray_handle grant = acquire(&l, &x);
	struct outcome o;

	lease(&l, 1);
	assert_int_equal(start_end(&l, &y, &o), 0);
	/* leases of other sessions are not looked at */
	UNTOUCHED_BEGIN(t->lease);
	leases_session_gone(&l.counts);
	UNTOUCHED_END(t->lease);
	assert_int_equal(l.f->fences, 1);
	memset(&l.counts, 0, sizeof(l.counts));
	fake_answer_all();
	grant_fenced(l.f->regions, PEER, grant);
	expect_end(3, &x, DMSG_LEASE_OUTCOME_ENDED, 1);
	assert_int_equal(other.counts.leases, 1);
	lab_end(&other);
	expect_end(4, &of_other, DMSG_LEASE_OUTCOME_ENDED, 0);
}

/* Leases that expire together end in several turns of the loop, which has other things to do between them. */
static void test_expire_in_turns(void **state)
{
	static const struct dmsg_range r = { 16, 8, 32, 3 };
	const unsigned n = 2 * LEASES_EXPIRE_PER_TURN + 1;
	struct dmsg_lease m = { .access = DMSG_ACCESS_READ, .holders = 1, .expiry_ms = 1 };
	struct lab l = lab_new(state);
	struct leased x;
	unsigned turns = 0;

	l.f->cfg.limits.leases_per_session = l.f->cfg.limits.lease_ranges_per_session = n;
	l.f->regions->deps.event = l.f->event;
	assert_int_equal(leases_init(l.f->regions), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(lease_with(&l, m, &r, 1, &x), 0);
	for (unsigned before; n_ends < n; turns++) {
		before = n_ends;
		assert_true(sd_event_run(l.f->event, UINT64_MAX) >= 0);
		assert_in_range(n_ends - before, 0, LEASES_EXPIRE_PER_TURN);
	}
	assert_true(turns >= 3);
	lab_end(&l);
}

static struct leased lease_many(struct lab *l, unsigned n)
{
	static const struct dmsg_range r = { 16, 8, 32, 3 };
	struct dmsg_lease m = { .access = DMSG_ACCESS_READ, .holders = 1, .expiry_ms = MS };
	struct leased last;

	l->f->cfg.limits.leases_per_session = l->f->cfg.limits.lease_ranges_per_session = n;
	l->f->regions->deps.event = l->f->event;
	assert_int_equal(ends_init(l->f->regions), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(lease_with(l, m, &r, 1, &last), 0);
	return last;
}

/* Runs the loop until that many leases have ended. */
static void end_in_turns(struct lab *l, unsigned n)
{
	for (unsigned before; n_ends < n;) {
		before = n_ends;
		assert_true(sd_event_run(l->f->event, UINT64_MAX) >= 0);
		assert_in_range(n_ends - before, 0, ENDS_PER_TURN);
	}
}

/* The end of a region with many leases takes several turns, in which nobody can begin to use it. */
static void test_region_ends_in_turns(void **state)
{
	const unsigned n = 2 * ENDS_PER_TURN + 1;
	struct lab l = lab_new(state);
	struct leased last = lease_many(&l, n);
	dray_handle grant, other = add_plain(l.f, 4);
	unsigned done = 0;
	uint32_t ms;

	assert_int_equal(region_remove(l.f->regions, l.region, SESSION, false, count_done, &done),
			 0);
	assert_int_equal(n_ends, ENDS_PER_TURN);
	assert_int_equal(acquire_as(&l, &last, PEER, &grant), DRAY_E_REVOKED);
	assert_int_equal(lease_renew_local(l.f->regions, last.id, MS, &ms), -ENOENT);
	fake_answer_all();
	assert_int_equal(done, 0);
	/* the first one hurries now, and the next one waits for a turn */
	assert_int_equal(region_remove(l.f->regions, other, SESSION, false, count_done, &done), 0);
	region_hurry(l.f->regions, l.region);
	end_in_turns(&l, n);
	while (sd_event_run(l.f->event, 0) > 0)
		;
	fake_answer_all();
	assert_int_equal(done, 2);
	assert_int_equal(l.counts.leases, 0);
}

/* So do the leases that a session has on regions of others. */
static void test_session_ends_in_turns(void **state)
{
	const unsigned n = 2 * ENDS_PER_TURN + 1;
	struct lab l = lab_new(state);
	struct leased last = lease_many(&l, n);
	dray_handle grant;
	uint32_t ms;

	leases_session_gone(&l.counts);
	assert_int_equal(l.counts.leases, 0);
	assert_int_equal(n_ends, ENDS_PER_TURN);
	assert_int_equal(acquire_as(&l, &last, PEER, &grant), DRAY_E_REVOKED);
	assert_int_equal(lease_renew_local(l.f->regions, last.id, MS, &ms), -ENOENT);
	end_in_turns(&l, n);
	/* the session's counts are not used any more */
	l.counts.ranges = 0;
	lab_end(&l);
}

/* A lease that is granted to many holders at once leaves grants of the same peer to the regions of other owners. */
static void test_grants_of_another_owner(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 8);
	struct pmsg_lease_key key = { .token_id = x.t.token_id,
				      .region = x.t.region,
				      .incarnation = x.t.incarnation };
	struct region_owner owner = l.f->owner;
	struct pmsg_lease_granted g = { 0 };
	struct dray_err err = DRAY_ERR_NULL;
	const struct ranges *ranges;
	dray_handle region, grants[3];
	struct exported e;
	unsigned n = 0;

	l.f->cfg.limits.grants_per_peer = 8;
	memcpy(key.capability, x.t.capability, sizeof(key.capability));
	while (lease_acquire(l.f->regions, PEER, peer_id, &key, true, &g, &ranges, &err) == 0)
		n++;
	assert_int_equal(n, 4);
	assert_int_equal(err.code, DRAY_E_QUOTA);
	assert_non_null(strstr(err.msg, "limits.grants_per_peer"));
	/* another peer has grants of its own */
	assert_int_equal(
		lease_acquire(l.f->regions, PEER + 1, peer_id, &key, true, &g, &ranges, &err), 0);
	l.f->owner.uid_owner = owner_get(l.f->owners, "test", 8);
	region = add_plain(l.f, 4);
	e = export(l.f, region, 0);
	for (n = 0; n < 2; n++)
		assert_int_equal(import(l.f, &e.t, &grants[n]), 0);
	assert_int_equal(import(l.f, &e.t, &grants[2]), DRAY_E_QUOTA);
	grant_release(l.f->regions, PEER, grants[0], PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	assert_int_equal(import(l.f, &e.t, &grants[2]), 0);
	grants_peer_gone(l.f->regions, PEER);
	grants_peer_gone(l.f->regions, PEER + 1);
	fake_answer_all();
	remove_all(l.f, region);
	owner_unref(l.f->owner.uid_owner);
	l.f->owner = owner;
	lab_end(&l);
}

/* Leases are many: the end of one looks at no other of its region. */
static void test_ends_alone(void **state)
{
	struct lab l = lab_new(state);
	struct leased other, x, y;
	struct outcome one, two;
	struct token *t;
	dray_handle grant;

	l.f->cfg.limits.leases_per_session = 8;
	other = lease(&l, 1);
	/* neighbours in lists are touched */
	lease(&l, 1);
	x = lease(&l, 1);
	y = lease(&l, 1);
	lease(&l, 1);
	t = dray_handles_get(&l.f->regions->leases, other.id);
	UNTOUCHED_BEGIN(t->link);
	/* by its owner, held and not, and while the end of another is pending */
	grant = acquire(&l, &y);
	assert_int_equal(start_end(&l, &y, &one), 0);
	assert_int_equal(start_end(&l, &x, &two), 0);
	expect_end(1, &x, DMSG_LEASE_OUTCOME_ENDED, 0);
	fake_answer_all();
	assert_int_equal(two.calls, 1);
	assert_int_equal(one.calls, 0);
	grant_fenced(l.f->regions, PEER, grant);
	expect_end(2, &y, DMSG_LEASE_OUTCOME_ENDED, 1);
	assert_int_equal(one.calls, 1);
	/* used */
	lease(&l, 1);
	x = lease(&l, 1);
	grant = acquire(&l, &x);
	grant_release(l.f->regions, PEER, grant, PMSG_RELEASE_HOW_USED);
	fake_answer_all();
	expect_end(3, &x, DMSG_LEASE_OUTCOME_USED, 1);
	UNTOUCHED_END(t->link);
	lab_end(&l);
}

static void test_refusals(void **state)
{
	struct lab l = lab_new(state);
	static const struct dmsg_range good = { 0, 8, 16, 3 }, far = { 4 * PAGE, 1, 0, 1 };
	const struct dmsg_lease ok = { .access = DMSG_ACCESS_READ, .holders = 1, .expiry_ms = 1 };
	struct dmsg_lease m = ok;
	struct leased x, y;
	struct exported e;
	dray_handle grant;

	m.holders = 0;
	assert_int_equal(lease_with(&l, m, &good, 1, &x), DRAY_E_INVALID);
	m.holders = DMSG_LEASE_HOLDERS_MAX + 1;
	assert_int_equal(lease_with(&l, m, &good, 1, &x), DRAY_E_INVALID);
	m = ok;
	m.expiry_ms = 0;
	assert_int_equal(lease_with(&l, m, &good, 1, &x), DRAY_E_INVALID);
	m = ok;
	m.access = 0;
	assert_int_equal(lease_with(&l, m, &good, 1, &x), DRAY_E_INVALID);
	assert_int_equal(lease_with(&l, ok, &good, 0, &x), DRAY_E_INVALID);
	assert_int_equal(lease_with(&l, ok, &far, 1, &x), DRAY_E_RANGE);
	m = ok;
	m.region = l.region + 1;
	assert_int_equal(lease_with(&l, m, &good, 1, &x), DRAY_E_NOT_FOUND);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(lease_with(&l, ok, &good, 1, &x), 0);
	assert_int_equal(lease_with(&l, ok, &good, 1, &y), DRAY_E_QUOTA);
	assert_non_null(strstr(last_err.msg, "limits.leases_per_session"));
	leases_expire(l.f->regions, dray_now().ns + DRAY_NS_PER_SEC);
	assert_int_equal(n_ends, 4);
	l.f->cfg.limits.lease_ranges_per_session = 1;
	assert_int_equal(lease_with(&l, ok, (struct dmsg_range[]){ good, { 1000, 1, 0, 1 } }, 2,
				    &y),
			 DRAY_E_QUOTA);
	assert_non_null(strstr(last_err.msg, "limits.lease_ranges_per_session"));

	/* the tokens of exports and leases do not serve for each other */
	x = lease(&l, 1);
	assert_int_equal(import(l.f, &x.t, &grant), DRAY_E_TOKEN_INVALID);
	e = export(l.f, l.region, 0);
	y.t = e.t;
	assert_int_equal(acquire_as(&l, &y, PEER, &grant), DRAY_E_TOKEN_INVALID);
	x.t.capability[0]++;
	assert_int_equal(acquire_as(&l, &x, PEER, &grant), DRAY_E_TOKEN_INVALID);
	x.t.capability[0]--;
	x.t.incarnation++;
	assert_int_equal(acquire_as(&l, &x, PEER, &grant), DRAY_E_INCARNATION);
	regions_drain(l.f->regions, true);
	assert_int_equal(lease_with(&l, ok, &good, 1, &y), DRAY_E_DRAINING);
	lab_end(&l);
}

static void see(void *arg, const struct dray_dbus_lease *lease)
{
	*(struct dray_dbus_lease *)arg = *lease;
}

static void see_first(struct lab *l, struct dray_dbus_lease *ret)
{
	uint32_t cursor = 0;

	assert_true(leases_next(l->f->regions, &cursor, see, ret));
	assert_false(leases_next(l->f->regions, &cursor, see, ret));
}

static void test_listed(void **state)
{
	struct lab l = lab_new(state);
	struct leased x = lease(&l, 1);
	struct dray_dbus_lease seen;
	dray_handle grant;
	struct token *t;

	see_first(&l, &seen);
	assert_string_equal(seen.state, "waiting");
	assert_string_equal(seen.access, "r");
	assert_int_equal(seen.pieces, 3);
	assert_int_equal(seen.bytes, 24);
	grant = acquire(&l, &x);
	see_first(&l, &seen);
	assert_string_equal(seen.state, "held");
	t = dray_handles_get(&l.f->regions->leases, x.id);
	/* metrics look at no lease */
	UNTOUCHED_BEGIN(t->lease);
	assert_int_equal(leases_totals(l.f->regions).holders, 1);
	UNTOUCHED_END(t->lease);
	leases_expire(l.f->regions, INT64_MAX);
	see_first(&l, &seen);
	assert_string_equal(seen.state, "expired");
	assert_int_equal(seen.left_ns, 0);
	fake_answer_all();
	grant_fenced(l.f->regions, PEER, grant);
	assert_int_equal(leases_totals(l.f->regions).ended[DMSG_LEASE_OUTCOME_EXPIRED], 1);
	lab_end(&l);
}

/* Leases that have ended are not looked at for the one that a peer asks for. */
static void test_one_dead_of_many(void **state)
{
	struct lab l = lab_new(state);
	struct regions *r = l.f->regions;
	struct leased first, unknown;
	dray_handle grant;

	for (unsigned k = 0; k < 64; k++) {
		struct leased x = lease(&l, 1);

		if (!k)
			first = x;
		grant = acquire(&l, &x);
		grant_release(r, PEER, grant, PMSG_RELEASE_HOW_USED);
		fake_answer_all();
	}
	unknown = first;
	unknown.t.token_id = grant;
	for (unsigned k = 0; k < 64; k++)
		if (r->dead[k].token != first.id)
			UNTOUCHED_BEGIN(r->dead[k].token);
	assert_int_equal(acquire_as(&l, &first, PEER, &grant), DRAY_E_TOKEN_USED);
	assert_int_equal(acquire_as(&l, &unknown, PEER, &grant), DRAY_E_TOKEN_INVALID);
	first.t.capability[0]++;
	assert_int_equal(acquire_as(&l, &first, PEER, &grant), DRAY_E_TOKEN_INVALID);
	for (unsigned k = 0; k < 64; k++)
		UNTOUCHED_END(r->dead[k].token);
	lab_end(&l);
}

static int setup(void **state)
{
	lease_up = fixture_up;
	lease_up.lease_ended = up_ended;
	return fixture_setup_with(state, &lease_up);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_used),
		T(test_used_here),
		T(test_expired),
		T(test_renewed),
		T(test_ended_by_owner),
		T(test_peer_lost),
		T(test_holder_gone_once),
		T(test_declined),
		T(test_session_gone),
		T(test_ends_alone),
		T(test_grants_of_another_owner),
		T(test_expire_in_turns),
		T(test_region_ends_in_turns),
		T(test_session_ends_in_turns),
		T(test_refusals),
		T(test_listed),
		T(test_session_of_holder_lost),
		T(test_ends_with_region_or_tokens),
		T(test_unasked),
		T(test_one_dead_of_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
