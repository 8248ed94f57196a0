/* SPDX-License-Identifier: Apache-2.0 */
/* Leases between agents: acquisition in batches, grants that come unasked, and owners that break the protocol. */
#include "tests/unit/peer_rig.h"
#include "tests/unit/untouched.h"

#define MANY 64
#define OWNER 7
#define OWNER_INCARNATION 70

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

static struct ranges *ranges_of(uint32_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint8_t *wire = calloc(n, DMSG_RANGE_SIZE);
	struct ranges *r;

	assert_non_null(wire);
	for (uint32_t i = 0; i < n; i++)
		dmsg_range_put(wire + (size_t)i * DMSG_RANGE_SIZE,
			       &(struct dmsg_range){ i * 200ull, 100, 0, 1 });
	assert_int_equal(ranges_new(&r, wire, n, 1 << 20, &err), 0);
	free(wire);
	return r;
}

static void acquire(struct rig *rig, const struct pmsg_token *t, const char *segment,
		    struct rig_import *i)
{
	assert_int_equal(rig_use_token(rig, t, true, segment, RIG_DEADLINE, i), 0);
}

static void expect_lease(sd_event *e, struct rig_import *i, uint32_t n_ranges)
{
	assert_true(rig_until(e, i->done));
	if (i->err.code)
		fail_msg("acquire: %s", i->err.msg);
	assert_int_equal(i->n_ranges, n_ranges);
	assert_in_range(i->expiry_ms, 1, 5000);
}

struct renewal {
	bool done;
	uint32_t code, ms;
};

static void renewed(void *arg, uint32_t code, const union pmsg_body *reply)
{
	*(struct renewal *)arg =
		(struct renewal){ true, code, reply ? reply->lease_renew_reply.expiry_ms : 0 };
}

/* Two agents that are connected; b grants leases with n ranges. */
static struct rig *pair(sd_event *e, struct rig **ret_b, uint32_t n)
{
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	b->ranges = ranges_of(n);
	*ret_b = b;
	return a;
}

/* b, as a knows it. */
static struct peer *b_of(struct rig *a, struct rig *b)
{
	return peer_find_up(a->peers, b->agent_id, NULL);
}

static void pair_end(struct rig *a, struct rig *b)
{
	ranges_unref((struct ranges *)(uintptr_t)b->ranges);
	rig_kill(a);
	rig_kill(b);
}

static void test_acquire(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 4096);
	struct pmsg_token t = rig_token(b), bad = t;
	struct rig_import one, two;
	dray_handle peer = b->link->peer;

	bad.token_id = TOKEN_GOOD + 99;
	acquire(a, &t, peers_segment(b->peers), &one);
	acquire(a, &bad, peers_segment(b->peers), &two);
	expect_lease(e, &one, 4096);
	assert_int_equal(one.length, 1 << 20);
	assert_true(rig_until(e, two.done));
	assert_int_equal(two.err.code, DRAY_E_TOKEN_INVALID);
	assert_int_equal(b->leases_acquired, 1);
	peer_release(a->peers, one.peer, one.grant, PMSG_RELEASE_HOW_USED);
	assert_true(rig_until(e, b->released));
	assert_int_equal(b->released_grant, one.grant);
	assert_int_equal(b->released_how, PMSG_RELEASE_HOW_USED);
	/* the same for a lease whose grant is fenced */
	acquire(a, &t, peers_segment(b->peers), &one);
	expect_lease(e, &one, 4096);
	a->answer_fences = true;
	peers_fence(b->peers, peer, one.grant, DRAY_E_REVOKED);
	assert_true(rig_until(e, b->fenced));
	assert_int_equal(a->fences_seen, 1);
	pair_end(a, b);
}

/* The first acquisition also connects. */
static void test_acquire_connects(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	struct rig_import i[MANY];

	b->ranges = ranges_of(3);
	for (unsigned k = 0; k < MANY; k++)
		acquire(a, &t, peers_segment(b->peers), &i[k]);
	for (unsigned k = 0; k < MANY; k++)
		expect_lease(e, &i[k], 3);
	assert_int_equal(b->leases_acquired, MANY);
	assert_int_equal(a->ups, 1);
	pair_end(a, b);
}

static void test_cancelled(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 3);
	struct pmsg_token t = rig_token(b);
	struct rig_import gone, stays;

	/* before it is sent */
	acquire(a, &t, peers_segment(b->peers), &gone);
	peer_import_cancel(a->peers, gone.id);
	acquire(a, &t, peers_segment(b->peers), &stays);
	expect_lease(e, &stays, 3);
	assert_int_equal(b->leases_acquired, 1);
	/* while the answer is on its way */
	acquire(a, &t, peers_segment(b->peers), &gone);
	assert_true(rig_until(e, dray_list_empty(&peer_get(a->peers, stays.peer)->unsent)));
	peer_import_cancel(a->peers, gone.id);
	assert_true(rig_until(e, b->released));
	assert_int_equal(b->released_how, PMSG_RELEASE_HOW_DECLINED);
	assert_int_equal(gone.done, 0);
	pair_end(a, b);
}

static void test_granted_unasked(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 3);
	struct pmsg_token t = rig_token(b), other;
	dray_handle peer = b->link->peer;
	struct rig_import i;
	uint64_t grant;

	memcpy(t.audience, a->agent_id, sizeof(t.audience));
	t.capability[3] = 9;
	assert_int_equal(peers_lease_grant(b->peers, &t, 2), 2);
	assert_int_equal(b->leases_acquired, 2);
	grant = b->next_grant;
	/* a fence of an offer needs no answer of the module above; this waits until the offers are there */
	peers_fence(b->peers, peer, grant, DRAY_E_REVOKED);
	assert_true(rig_until(e, b->fenced));
	assert_int_equal(a->fences_seen, 0);
	/* another capability does not take it */
	other = t;
	other.capability[3]++;
	acquire(a, &other, peers_segment(b->peers), &i);
	expect_lease(e, &i, 3);
	assert_int_equal(b->leases_acquired, 3);
	/* the right one does, without the owner */
	acquire(a, &t, peers_segment(b->peers), &i);
	expect_lease(e, &i, 3);
	assert_int_equal(i.grant, grant - 1);
	assert_int_equal(b->leases_acquired, 3);
	/* there is no further offer */
	acquire(a, &t, peers_segment(b->peers), &i);
	expect_lease(e, &i, 3);
	assert_int_equal(b->leases_acquired, 4);
	/* a request that crosses the grant is answered with it */
	acquire(a, &t, peers_segment(b->peers), &i);
	assert_true(rig_until(e, dray_list_empty(&b_of(a, b)->unsent)));
	assert_int_equal(peers_lease_grant(b->peers, &t, 1), 1);
	b->unasked_grant = b->next_grant;
	expect_lease(e, &i, 3);
	assert_int_equal(i.grant, b->next_grant);
	assert_int_equal(b->leases_acquired, 5);
	/* to an agent that is not connected */
	memset(t.audience, 5, sizeof(t.audience));
	assert_int_equal(peers_lease_grant(b->peers, &t, 2), 0);
	pair_end(a, b);
}

/* Grants that no client takes are limited. */
static void test_too_many_unasked(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 10);
	struct pmsg_token t = rig_token(b);

	a->cfg.limits.lease_ranges_per_session = 25;
	memcpy(t.audience, a->agent_id, sizeof(t.audience));
	assert_int_equal(peers_lease_grant(b->peers, &t, 3), 3);
	assert_true(rig_until(e, b->released));
	assert_int_equal(b->released_how, PMSG_RELEASE_HOW_DECLINED);
	assert_int_equal(b->released_grant, b->next_grant);
	a->cfg.limits.lease_ranges_per_session = 1000;
	a->cfg.limits.grants_per_peer = 2;
	assert_int_equal(peers_lease_grant(b->peers, &t, 1), 1);
	assert_true(rig_until(e, b->released == 2));
	pair_end(a, b);
}

/* A draining owner gets the grants back that no client has. */
static void test_draining(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 3);
	struct pmsg_token t = rig_token(b);

	memcpy(t.audience, a->agent_id, sizeof(t.audience));
	assert_int_equal(peers_lease_grant(b->peers, &t, 2), 2);
	peers_drain(b->peers, 1000);
	assert_true(rig_until(e, b->released == 2));
	assert_int_equal(b->released_how, PMSG_RELEASE_HOW_DECLINED);
	assert_int_equal(peers_lease_grant(b->peers, &t, 1), 0);
	pair_end(a, b);
}

static void test_renew(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 3);
	struct pmsg_token t = rig_token(b);
	struct rig_import i;
	struct renewal answer = { 0 };

	acquire(a, &t, peers_segment(b->peers), &i);
	expect_lease(e, &i, 3);
	assert_int_equal(peers_request(a->peers, i.peer, PMSG_LEASE_RENEW,
				       &(union pmsg_body){ .lease_renew = { .grant = i.grant,
									    .expiry_ms = 700 } },
				       renewed, &answer),
			 0);
	assert_true(rig_until(e, answer.done));
	assert_int_equal(answer.code, 0);
	assert_int_equal(answer.ms, 701);
	answer = (struct renewal){ 0 };
	assert_int_equal(peers_request(a->peers, i.peer, PMSG_LEASE_RENEW,
				       &(union pmsg_body){ .lease_renew = { .grant = 4711 } },
				       renewed, &answer),
			 0);
	assert_true(rig_until(e, answer.done));
	assert_int_equal(answer.code, DRAY_E_REVOKED);
	pair_end(a, b);
}

/* An agent that reads too slowly gets no more lookups. */
static void test_lookups_clogged(void **state)
{
	static uint8_t keys[60000];
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b, *a = pair(e, &b, 3);
	struct pmsg_token t = rig_token(b);
	union pmsg_body m = { .store_lookup = { .space = { "kv", 2 },
						.keys = { keys, sizeof(keys) } } };
	struct renewal answer = { 0 };
	struct rig_import i;
	unsigned n = 0;
	int r;

	acquire(a, &t, peers_segment(b->peers), &i);
	expect_lease(e, &i, 3);
	while ((r = peers_request(a->peers, i.peer, PMSG_STORE_LOOKUP, &m, renewed, &answer)) == 0)
		n++;
	assert_int_equal(r, -EBUSY);
	assert_int_equal(n, CONN_OUT_SOFT / sizeof(keys) + 1);
	pair_end(a, b);
}

/* --- owners whose messages the test chooses ------------------------------------------------------- */

static struct pmsg_token owner_token(void)
{
	struct pmsg_token t = { .version = 1,
				.incarnation = OWNER_INCARNATION,
				.token_id = TOKEN_GOOD,
				.region = 3,
				.length = 4096,
				.capability = { 1 } };

	t.agent_id[15] = OWNER;
	return t;
}

static void owner_join(struct puppet *p, struct rig *to, uint64_t features)
{
	struct pmsg_hello h = puppet_hello(OWNER, OWNER_INCARNATION);
	uint8_t buf[512];

	puppet_dial(p, to);
	h.features = features;
	conn_send(p->conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
	assert_true(rig_until(to->event, puppet_got(p, PMSG_READY)));
}

static unsigned count(const struct puppet *p, uint16_t type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < p->n; i++)
		n += p->types[i] == type;
	return n;
}

static void say_ranges(struct puppet *p, uint64_t grant, uint32_t n, uint64_t offset)
{
	uint8_t wire[16 * PMSG_RANGE_SIZE];

	for (uint32_t i = 0; i < n; i++)
		pmsg_range_put(wire + i * PMSG_RANGE_SIZE,
			       &(struct pmsg_range){ offset + i * 200, 100, 0, 1 });
	puppet_say(p, lease_ranges, 0, { .grant = grant, .ranges = { wire, n } });
}

static void say_granted(struct puppet *p, uint64_t grant, uint32_t ranges)
{
	puppet_say(p, lease_granted, 0,
		   { .grant = grant,
		     .token_id = TOKEN_GOOD,
		     .length = 1 << 20,
		     .access = DMSG_ACCESS_READ,
		     .ranges = ranges,
		     .expiry_ms = 1000,
		     .capability = { 1 } });
}

static void say_results(struct puppet *p, const struct pmsg_lease_result *v, uint32_t n)
{
	uint8_t wire[MANY * PMSG_LEASE_RESULT_SIZE];

	for (uint32_t i = 0; i < n; i++)
		pmsg_lease_result_put(wire + i * PMSG_LEASE_RESULT_SIZE, &v[i]);
	puppet_say(p, acquire_reply, puppet_id_of(p, PMSG_ACQUIRE), { .results = { wire, n } });
}

/* The node that a walk of the map comes to last. */
static struct dray_map_node *last(const struct dray_map *m)
{
	struct dray_map_node *found = NULL;

	for (struct dray_map_node *n = NULL; (n = dray_map_next(m, n));)
		found = n;
	assert_non_null(found);
	return found;
}

/* The nodes of other buckets are not looked at until others_done(). Returns their number. */
static unsigned others_untouched(const struct dray_map *m, const struct dray_map_node *except,
				 struct dray_map_node *others[MANY])
{
	unsigned k = 0;

	assert_int_equal(m->n, MANY);
	for (struct dray_map_node *n = NULL; (n = dray_map_next(m, n));)
		if ((n->hash ^ except->hash) & (m->n_buckets - 1))
			others[k++] = n;
	for (unsigned i = 0; i < k; i++)
		UNTOUCHED_BEGIN(*others[i]);
	return k;
}

static void others_done(struct dray_map_node *const *others, unsigned n)
{
	while (n--)
		UNTOUCHED_END(*others[n]);
}

/* The owner with leases is connected. Returns it, as a knows it. */
static struct peer *owner_joined(struct puppet *p, struct rig *a)
{
	struct peer *peer;

	owner_join(p, a, PMSG_FEATURE_TCP | PMSG_FEATURE_LEASE);
	peer = peer_find_up(a->peers, owner_token().agent_id, NULL);
	assert_non_null(peer);
	return peer;
}

/* Offers are many, and so are their fences when the owner's client ends: each is for one of them. */
static void test_one_of_many(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	uint8_t wire[PMSG_RANGE_SIZE];
	struct dray_map_node *one, *others[MANY];
	struct peer *peer;
	struct puppet p;
	uint64_t grant;
	unsigned n;

	peer = owner_joined(&p, a);
	pmsg_range_put(wire, &(struct pmsg_range){ 0, 100, 0, 1 });
	for (uint64_t k = 1; k <= MANY; k++) {
		lease_handle_ranges(peer, &(struct pmsg_lease_ranges){ k, { wire, 1 } });
		lease_handle_granted(peer, &(struct pmsg_lease_granted){ .grant = k,
									 .token_id = k,
									 .length = 1 << 20,
									 .access = DMSG_ACCESS_READ,
									 .ranges = 1,
									 .expiry_ms = 1000 });
	}
	one = last(&peer->offers.by_token);
	/* the token's, which is the same number */
	memcpy(&grant, one->key, sizeof(grant));
	n = others_untouched(&peer->offers.by_token, one, others);
	assert_true(offer_keys(peer, &(struct pmsg_keys){ .grant = grant }));
	assert_true(offer_fenced(peer, grant));
	assert_false(offer_fenced(peer, grant));
	others_done(others, n);
	/* fences of grants that clients have */
	a->answer_fences = false;
	for (uint64_t k = 1; k <= MANY; k++) {
		assert_int_equal(idset_add(&peer->grants, MANY + k), 0);
		fence_handle(peer, k, &(struct pmsg_fence){ .grant = MANY + k });
	}
	one = last(&peer->fences);
	memcpy(&grant, one->key, sizeof(grant));
	n = others_untouched(&peer->fences, one, others);
	assert_true(fence_answer(peer, grant));
	assert_false(fence_answer(peer, grant));
	others_done(others, n);
	puppet_end(&p);
	rig_kill(a);
}

/* Overdue requests. */
#define OVERDUE 8

struct overdue {
	struct peer_timeout *later;
	unsigned n;
};

static void overdue(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct overdue *o = arg;

	assert_int_equal(code, DRAY_E_TIMEOUT);
	if (!o->n++)
		UNTOUCHED_BEGIN(o->later->link);
	if (o->n == OVERDUE)
		UNTOUCHED_END(o->later->link);
}

/* Requests that are overdue together end without a look at the others for each. */
static void test_overdue_together(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	union pmsg_body m = { .lease_renew = { .grant = 1 } };
	struct renewal later = { 0 };
	struct overdue o = { 0 };
	struct peer *peer;
	struct puppet p;

	peer = owner_joined(&p, a);
	assert_int_equal(
		peers_request(a->peers, peer->handle, PMSG_LEASE_RENEW, &m, renewed, &later), 0);
	o.later = &dray_list_first(&peer->requests, struct pending_request, link)->timeout;
	a->cfg.transfer.slice_timeout = DRAY_NS_PER_MS;
	for (unsigned k = 0; k < OVERDUE; k++)
		assert_int_equal(peers_request(a->peers, peer->handle, PMSG_LEASE_RENEW, &m,
					       overdue, &o),
				 0);
	assert_true(rig_until(e, o.n == OVERDUE));
	assert_int_equal(later.done, 0);
	puppet_end(&p);
	rig_kill(a);
}

/* A reply in another order than that of the requests. */
static void test_reply_of_many(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	union pmsg_body m = { .lease_renew = { .grant = 1 } };
	struct renewal first = { 0 }, last = { 0 };
	struct pending_request *r;
	struct peer *peer;
	struct puppet p;

	peer = owner_joined(&p, a);
	assert_int_equal(
		peers_request(a->peers, peer->handle, PMSG_LEASE_RENEW, &m, renewed, &first), 0);
	r = dray_list_first(&peer->requests, struct pending_request, link);
	assert_int_equal(
		peers_request(a->peers, peer->handle, PMSG_LEASE_RENEW, &m, renewed, &last), 0);
	/* the other requests are not looked at */
	UNTOUCHED_BEGIN(r->id);
	puppet_say(&p, lease_renew_reply, peer->next_request, { 5 });
	assert_true(rig_until(e, last.done));
	UNTOUCHED_END(r->id);
	assert_int_equal(last.ms, 5);
	assert_int_equal(first.done, 0);
	puppet_end(&p);
	rig_kill(a);
}

static unsigned pending(const struct peer *peer)
{
	unsigned n = 0;

	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		n++;
	return n;
}

/* An owner that answers no ACQUIRE: acquisitions that expire leave a bounded number of requests behind. */
static void test_unanswered(void **state)
{
	const struct pmsg_lease_result expired = { .code = DRAY_E_TOKEN_EXPIRED };
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_token t = owner_token();
	struct rig_import i;
	struct peer *peer;
	struct puppet p;
	unsigned sent;

	peer = owner_joined(&p, a);
	for (unsigned k = 0; k < 40; k++) {
		assert_int_equal(rig_use_token(a, &t, true, "127.0.0.1:9", 1, &i), 0);
		assert_true(rig_until(e, i.done));
		assert_int_equal(i.err.code, DRAY_E_TIMEOUT);
		assert_in_range(pending(peer), 1, 16);
	}
	assert_true(dray_list_empty(&peer->unsent));
	sent = pending(peer);
	assert_true(rig_until(e, count(&p, PMSG_ACQUIRE) == sent));
	/* an answer makes room for those that wait */
	acquire(a, &t, "127.0.0.1:9", &i);
	say_results(&p, &expired, 1);
	assert_true(rig_until(e, count(&p, PMSG_ACQUIRE) == sent + 1));
	say_results(&p, &expired, 1);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_TOKEN_EXPIRED);
	puppet_end(&p);
	rig_kill(a);
}

/* All acquisitions of one turn are one message. */
static void test_one_message(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_token t = owner_token();
	struct pmsg_lease_result results[MANY];
	struct rig_import i[MANY];
	struct puppet p;

	owner_join(&p, a, PMSG_FEATURE_TCP | PMSG_FEATURE_LEASE);
	for (unsigned k = 0; k < MANY; k++)
		acquire(a, &t, "127.0.0.1:9", &i[k]);
	assert_true(rig_until(e, puppet_got(&p, PMSG_ACQUIRE)));
	for (unsigned k = 0; k < MANY; k++) {
		say_ranges(&p, 100 + k, 2, 0);
		say_granted(&p, 100 + k, 2);
		results[k] = (struct pmsg_lease_result){ .grant = 100 + k };
	}
	results[5] = (struct pmsg_lease_result){ .code = DRAY_E_TOKEN_EXPIRED };
	say_results(&p, results, MANY);
	for (unsigned k = 0; k < MANY; k++) {
		assert_true(rig_until(e, i[k].done));
		assert_int_equal(i[k].err.code, k == 5 ? DRAY_E_TOKEN_EXPIRED : 0);
		if (k != 5)
			assert_int_equal(i[k].grant, 100 + k);
	}
	assert_int_equal(count(&p, PMSG_ACQUIRE), 1);
	puppet_end(&p);
	rig_kill(a);
}

static void test_old_owner(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_token t = owner_token();
	struct rig_import i;
	struct puppet p;

	owner_join(&p, a, PMSG_FEATURE_TCP);
	acquire(a, &t, "127.0.0.1:9", &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_UNSUPPORTED);
	memcpy(t.audience, t.agent_id, sizeof(t.audience));
	assert_int_equal(peers_lease_grant(a->peers, &t, 1), 0);
	puppet_end(&p);
	rig_kill(a);
}

static void wrong_ranges(struct puppet *p)
{
	say_ranges(p, 100, 2, 0);
	say_granted(p, 100, 3);
}

static void no_ranges(struct puppet *p)
{
	say_granted(p, 100, 0);
}

static void ranges_of_another(struct puppet *p)
{
	say_ranges(p, 100, 2, 0);
	say_ranges(p, 101, 2, 0);
}

static void ranges_beyond(struct puppet *p)
{
	say_ranges(p, 100, 2, (1 << 20) - 250);
	say_granted(p, 100, 2);
}

static void too_many_ranges(struct puppet *p)
{
	for (unsigned i = 0; i <= DMSG_LEASE_RANGES_MAX / 16; i++)
		say_ranges(p, 100, 16, 0);
}

static void granted_twice(struct puppet *p)
{
	for (unsigned i = 0; i < 2; i++) {
		say_ranges(p, 100, 1, 0);
		say_granted(p, 100, 1);
	}
}

static void no_results(struct puppet *p)
{
	say_results(p, NULL, 0);
}

static void test_broken_protocol(void **state)
{
	static void (*const wrongs[])(struct puppet * p) = {
		wrong_ranges,    no_ranges,     ranges_of_another, ranges_beyond,
		too_many_ranges, granted_twice, no_results,
	};

	for (size_t k = 0; k < DRAY_ARRAY_SIZE(wrongs); k++) {
		dray_auto(sd_event_unref) sd_event *e = loop();
		struct rig *a = rig_start(e, 1, 10);
		struct pmsg_token t = owner_token();
		struct rig_import i;
		struct puppet p;

		owner_join(&p, a, PMSG_FEATURE_TCP | PMSG_FEATURE_LEASE);
		acquire(a, &t, "127.0.0.1:9", &i);
		assert_true(rig_until(e, puppet_got(&p, PMSG_ACQUIRE)));
		wrongs[k](&p);
		assert_true(rig_until(e, p.failed || puppet_got(&p, PMSG_BYE)));
		assert_int_equal(p.error, DRAY_E_PROTOCOL);
		assert_true(rig_until(e, i.done));
		assert_int_not_equal(i.err.code, 0);
		puppet_end(&p);
		rig_kill(a);
	}
}

/* Answers that refer to a grant that is not there: the request is repeated some times. */
static void test_missing_grant(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_token t = owner_token();
	struct rig_import i;
	struct puppet p;

	owner_join(&p, a, PMSG_FEATURE_TCP | PMSG_FEATURE_LEASE);
	acquire(a, &t, "127.0.0.1:9", &i);
	for (unsigned k = 1; k <= 5; k++) {
		assert_true(rig_until(e, count(&p, PMSG_ACQUIRE) == k));
		assert_int_equal(i.done, 0);
		say_results(&p, &(struct pmsg_lease_result){ .grant = 100 }, 1);
	}
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_QUOTA);
	assert_int_equal(count(&p, PMSG_ACQUIRE), 5);
	puppet_end(&p);
	rig_kill(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_acquire),
		cmocka_unit_test(test_acquire_connects),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_granted_unasked),
		cmocka_unit_test(test_too_many_unasked),
		cmocka_unit_test(test_draining),
		cmocka_unit_test(test_renew),
		cmocka_unit_test(test_lookups_clogged),
		cmocka_unit_test(test_one_of_many),
		cmocka_unit_test(test_overdue_together),
		cmocka_unit_test(test_reply_of_many),
		cmocka_unit_test(test_unanswered),
		cmocka_unit_test(test_one_message),
		cmocka_unit_test(test_old_owner),
		cmocka_unit_test(test_broken_protocol),
		cmocka_unit_test(test_missing_grant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
