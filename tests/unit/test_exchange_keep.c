/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies for PUTs with replicas: what this agent takes from peers that want their objects to be kept, and whom it asks to keep its own,
 * against peers that refuse, are late, say nonsense, or ask for too much.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/cm.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/store_ask.h"
#include "agent/model/store_keep.h"
#include "lib/time.h"
#include "schema/gen/errors.h"
#include "tests/unit/exchange_peers.h"
#include "tests/unit/fake_pool.h"
#include "tests/unit/store_rig.h"

#define A ((dray_handle)1)
#define B ((dray_handle)2)
#define KEYS_OF_TEST 700

static const char *const spaces[] = { "kv=t:1", "wide=t:*" };
static char first[] = "10.0.0.1:1", second[] = "10.0.0.2:1", third[] = "10.0.0.3:1";
static char *segments[] = { first, second, third };

static char no_agent[] = "";

static struct rig {
	struct store_rig s;
	struct dray_config cfg;
	struct worker_pool pool;
	struct exchange *x;
	struct rails *rails;
	unsigned accounts, released; /* references to accounts */
	/* what the worker has got */
	struct store_keep *keeps[800];
	unsigned n_keeps;
	struct store_ask *answered;
	/* what peers have got */
	unsigned n_refused, n_replies;
	uint32_t refused;
	uint32_t answers[512], n_answers;
	uint64_t replied;
	struct request {
		dray_handle peer;
		uint32_t n, deadline_ms;
		peer_reply_fn fn;
		void *arg;
	} requests[64];
	unsigned n_requests;
	bool old; /* peers do not have the feature */
	dray_handle clogged, lost;
} rig;

dray_handle peers_at(struct peers *p, const char *segment, uint64_t features)
{
	dray_handle peer = segment == segments[0] ? A : segment == segments[1] ? B : 0;

	if (segment == exchange_unready || peer == rig.lost ||
	    (rig.old && features & PMSG_FEATURE_KEEP))
		return 0;
	return peer;
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	const struct pmsg_store_keep *m = &body->store_keep;
	struct dray_err err = DRAY_ERR_NULL;
	struct store_key keys[512];
	int n = store_keys_split(keys, 512, m->keys, &err);

	assert_int_equal(type, PMSG_STORE_KEEP);
	assert_true(n > 0 && m->keys.n <= 60000);
	assert_int_equal(m->uid, 1);
	assert_memory_equal(m->space.p, "kv", 2);
	assert_memory_equal(m->tenant.p, "t", 1);
	if (peer == rig.clogged)
		return -EBUSY;
	rig.requests[rig.n_requests++] =
		(struct request){ peer, (uint32_t)n, m->deadline_ms, fn, arg };
	return 0;
}

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	const struct dray_vec *v = &body->store_keep_reply.answers;

	assert_int_equal(type, PMSG_STORE_KEEP_REPLY);
	rig.n_replies++;
	rig.replied = request_id;
	rig.n_answers = v->n;
	for (uint32_t i = 0; i < v->n; i++) {
		struct pmsg_store_keep_answer a;

		pmsg_store_keep_answer_get(v->p + (size_t)i * PMSG_STORE_KEEP_ANSWER_SIZE, &a);
		rig.answers[i] = a.answer;
	}
}

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	assert_true(*why);
	rig.n_refused++;
	rig.refused = code;
}

void peers_fence(struct peers *p, dray_handle peer, dray_handle grant, uint32_t code)
{
	fail();
}

void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant)
{
	fail();
}

void worker_post(struct worker *w, const struct command *cmd)
{
	if (cmd->type == COMMAND_STORE_KEEP) {
		rig.keeps[rig.n_keeps++] = cmd->keep;
		return;
	}
	assert_int_equal(cmd->type, COMMAND_STORE_ASKED);
	assert_null(rig.answered);
	rig.answered = cmd->ask;
}

static void segment_added(struct rails *rails, const struct region_view *view, bool lends)
{
}

static void segment_removed(struct rails *rails, dray_handle segment, void (*done)(void *arg),
			    void *arg)
{
	done(arg);
}

static const struct exchange_upcalls upcalls = {
	.segment_added = segment_added,
	.segment_removed = segment_removed,
};

static struct owner_account *account(void *arg, const char *tenant, uint32_t uid)
{
	assert_string_equal(tenant, "t");
	rig.accounts++;
	return &rig.s.accounts[uid];
}

static void release(struct owner_account *a)
{
	rig.released++;
}

static const char *hinted = "";

static void preferred(void *arg, const char *space, const char *tenant, uint32_t uid, char *ret,
		      size_t n)
{
	assert_string_equal(space, "kv");
	assert_string_equal(tenant, "t");
	assert_int_equal(uid, 1);
	snprintf(ret, n, "%s", hinted);
}

static int set_up(void **state)
{
	struct store_config cfg = store_rig_config(spaces, 2);
	struct dray_err err = DRAY_ERR_NULL;

	memset(&rig, 0, sizeof(rig));
	exchange_peers_reset();
	rig.cfg.store.put_at = no_agent;
	rig.cfg.store.peers = (struct dray_strv){ segments, 3 };
	rig.cfg.store.lend = true;
	rig.cfg.store.peer_timeout = 300 * DRAY_NS_PER_MS;
	rig.cfg.limits.store_bytes = 16 * MIB;
	rig.pool.n = 2;
	cfg.lend = true;
	store_rig_make(&rig.s, cfg);
	return exchange_new(&rig.x,
			    &(struct exchange_deps){ .event = rig.s.event,
						     .cfg = &rig.cfg,
						     .pool = &rig.pool,
						     .store = rig.s.store,
						     .up = &upcalls,
						     .rails = &rig.rails,
						     .account = account,
						     .release = release,
						     .preferred = preferred },
			    &err);
}

static int tear_down(void **state)
{
	rig.x = exchange_free(rig.x);
	assert_int_equal(rig.accounts, rig.released);
	store_rig_end(&rig.s);
	return 0;
}

/* --- for peers --------------------------------------------------------------------------------------------------- */

static struct dray_str text(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

static void keep_as(dray_handle peer, uint64_t id, uint32_t uid, const char *space,
		    const char *tenant, const char *keys)
{
	rig.refused = 0;
	exchange_keep(rig.x, peer, id,
		      &(struct pmsg_store_keep){
			      .uid = uid,
			      .deadline_ms = 500,
			      .space = text(space),
			      .tenant = text(tenant),
			      .keys = { (const uint8_t *)keys, (uint32_t)strlen(keys) } });
}

static void keep(dray_handle peer, uint64_t id)
{
	keep_as(peer, id, 1, "kv", "t", "\1a\1b\1c\1d\1e\1f\1g\1h");
}

static void test_kept(void **state)
{
	static const enum dmsg_store_status ends[] = {
		DMSG_STORE_STATUS_OK,   DMSG_STORE_STATUS_EXISTS,    DMSG_STORE_STATUS_NOT_FOUND,
		DMSG_STORE_STATUS_BUSY, DMSG_STORE_STATUS_TOO_LARGE, DMSG_STORE_STATUS_CORRUPT,
		DMSG_STORE_STATUS_LOST, DMSG_STORE_STATUS_NOT_TRIED,
	};
	static const uint32_t answers[] = {
		PMSG_STORE_KEPT_KEPT, PMSG_STORE_KEPT_EXISTS,    PMSG_STORE_KEPT_NOT_FOUND,
		PMSG_STORE_KEPT_BUSY, PMSG_STORE_KEPT_TOO_LARGE, PMSG_STORE_KEPT_CORRUPT,
		PMSG_STORE_KEPT_LOST, PMSG_STORE_KEPT_BUSY,
	};
	struct store_keep *k;

	keep(A, 7);
	assert_int_equal(rig.n_keeps, 1);
	k = rig.keeps[0];
	assert_int_equal(k->n, 8);
	assert_int_equal(k->v[7].n_key, 1);
	assert_int_equal(*k->v[7].key, 'h');
	assert_string_equal(k->space, "kv");
	assert_int_equal(k->peer, A);
	assert_ptr_equal(k->shared.account, &rig.s.accounts[1]);
	assert_ptr_equal(k->shared.group_quota, &k->group);
	assert_int_equal(dray_handle_kind(k->shared.session), STORE_KEEP_HANDLES);
	assert_true(k->end_ns > dray_now().ns);
	for (unsigned i = 0; i < 8; i++)
		k->v[i].status = ends[i];
	exchange_kept(rig.x, k);
	assert_int_equal(rig.replied, 7);
	assert_int_equal(rig.n_answers, 8);
	assert_memory_equal(rig.answers, answers, sizeof(answers));
	assert_int_equal(rig.released, 1);
}

/* Nobody gets an account without the right to use the name space. */
static void test_who_may_not(void **state)
{
	keep_as(A, 1, 2, "kv", "t", "\1a");
	assert_int_equal(rig.refused, DRAY_E_DENIED);
	keep_as(A, 1, 1, "kv", "u", "\1a");
	assert_int_equal(rig.refused, DRAY_E_DENIED);
	keep_as(A, 1, 1, "other", "t", "\1a");
	assert_int_equal(rig.refused, DRAY_E_DENIED);
	keep_as(A, 1, 1, "", "t", "\1a");
	assert_int_equal(rig.refused, DRAY_E_DENIED);
	keep_as(A, 1, 1, "kv", "t", "\2a");
	assert_int_equal(rig.refused, DRAY_E_INVALID);
	keep_as(A, 1, 1, "kv", "t", "");
	assert_int_equal(rig.refused, DRAY_E_INVALID);
	rig.cfg.store.lend = false;
	keep_as(A, 1, 1, "kv", "t", "\1a");
	assert_int_equal(rig.refused, DRAY_E_DENIED);
	assert_int_equal(rig.n_refused, 7);
	assert_int_equal(rig.accounts, 0);
	assert_int_equal(rig.n_keeps, 0);
}

static void test_floods(void **state)
{
	const unsigned own = 96; /* of the 192 of a peer */

	for (unsigned i = 0; i < 200; i++)
		keep(A, i + 1);
	assert_int_equal(rig.n_keeps, own);
	assert_int_equal(rig.n_refused, 200 - own);
	assert_int_equal(rig.refused, DRAY_E_BUSY);
	/* there is room for another owner, and for another peer */
	keep_as(A, 300, 0, "wide", "t", "\1a");
	keep(B, 1);
	assert_int_equal(rig.n_keeps, own + 2);
	exchange_kept(rig.x, rig.keeps[0]);
	keep(A, 301);
	keep(A, 302);
	assert_int_equal(rig.n_keeps, own + 3);
	/* many peers leave room for one more, until there are 768 */
	for (dray_handle peer = 3; peer < 12; peer++)
		for (unsigned i = 0; i < 200; i++)
			keep(peer, i + 1);
	assert_in_range(rig.n_keeps, 720, 768);
	keep(12, 1);
	assert_int_equal(rig.refused, 0);
	for (dray_handle peer = 13; peer < 80; peer++)
		keep(peer, 1);
	assert_int_equal(rig.n_keeps, 769);
	assert_int_equal(rig.refused, DRAY_E_BUSY);
}

/* --- at peers ------------------------------------------------------------------------------------------------------- */

static struct store_ask *ask_of(uint32_t n, uint64_t length, int64_t end_ns)
{
	static uint8_t keys[KEYS_OF_TEST][100];
	struct store_ask *a = calloc(1, sizeof(*a) + n * sizeof(a->v[0]));

	assert_non_null(a);
	snprintf(a->space, sizeof(a->space), "kv");
	a->tenant = "t";
	a->uid = 1;
	a->end_ns = end_ns;
	a->n = a->n_asked = n;
	a->replicates = true;
	for (uint32_t i = 0; i < n; i++) {
		snprintf((char *)keys[i], sizeof(keys[i]), "%u", i);
		a->v[i] = (struct store_asked){ .key = keys[i],
						.n_key = sizeof(keys[i]),
						.length = length,
						.status = DMSG_STORE_STATUS_NOT_FOUND };
	}
	return a;
}

static struct store_ask *ask_for(uint32_t n, uint64_t length)
{
	struct store_ask *a = ask_of(n, length, INT64_MAX);

	exchange_ask(rig.x, a);
	return a;
}

/* Answers request r: each key so, and so many answers. */
static void answer_n(unsigned r, uint32_t each, uint32_t n)
{
	uint8_t wire[512 * PMSG_STORE_KEEP_ANSWER_SIZE];
	union pmsg_body m = { .store_keep_reply = { .answers = { wire, n } } };

	for (uint32_t i = 0; i < n; i++)
		pmsg_store_keep_answer_put(wire + (size_t)i * PMSG_STORE_KEEP_ANSWER_SIZE,
					   &(struct pmsg_store_keep_answer){ .answer = each });
	rig.requests[r].fn(rig.requests[r].arg, 0, &m);
}

static void answer(unsigned r, uint32_t each)
{
	answer_n(r, each, rig.requests[r].n);
}

static void refuse(unsigned r, uint32_t code)
{
	rig.requests[r].fn(rig.requests[r].arg, code, NULL);
}

static dray_handle other(dray_handle peer)
{
	return peer == A ? B : A;
}

/* All keys of the ask ended so, and the worker is done with it. */
static void ended(enum dmsg_store_status status)
{
	assert_non_null(rig.answered);
	for (uint32_t i = 0; i < rig.answered->n; i++)
		if (status == DMSG_STORE_STATUS_OK)
			assert_int_equal(rig.answered->v[i].status, DMSG_STORE_STATUS_OK);
		else
			assert_int_not_equal(rig.answered->v[i].status, DMSG_STORE_STATUS_OK);
	exchange_ask_end(rig.x, rig.answered);
	rig.answered = NULL;
}

static void test_keeps(void **state)
{
	ask_for(1, 100);
	assert_int_equal(rig.n_requests, 1);
	assert_in_range(rig.requests[0].deadline_ms, 300, 310);
	answer(0, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
	/* the same one is asked for the same key */
	ask_for(1, 100);
	assert_int_equal(rig.requests[1].peer, rig.requests[0].peer);
	answer(1, PMSG_STORE_KEPT_EXISTS);
	ended(DMSG_STORE_STATUS_OK);
}

static void test_next_agent(void **state)
{
	static const uint32_t codes[] = { DRAY_E_BUSY, DRAY_E_DENIED, DRAY_E_DRAINING,
					  DRAY_E_PEER_LOST, DRAY_E_UNKNOWN_TYPE };
	unsigned r = 0;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(codes); i++, r += 2) {
		ask_for(1, 100);
		refuse(r, codes[i]);
		assert_int_equal(rig.n_requests, r + 2);
		assert_int_equal(rig.requests[r + 1].peer, other(rig.requests[r].peer));
		answer(r + 1, PMSG_STORE_KEPT_KEPT);
		ended(DMSG_STORE_STATUS_OK);
	}
	/* no third one */
	ask_for(1, 100);
	answer(r, PMSG_STORE_KEPT_BUSY);
	answer(r + 1, PMSG_STORE_KEPT_TOO_LARGE);
	ended(DMSG_STORE_STATUS_LOST);
	/* bytes may have been damaged on their way */
	ask_for(1, 100);
	answer(r + 2, PMSG_STORE_KEPT_CORRUPT);
	answer(r + 3, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
	/* nobody can read what is gone here */
	ask_for(1, 100);
	answer(r + 4, PMSG_STORE_KEPT_NOT_FOUND);
	assert_int_equal(rig.n_requests, r + 5);
	ended(DMSG_STORE_STATUS_LOST);
}

static void test_nonsense(void **state)
{
	ask_for(1, 100);
	answer_n(0, PMSG_STORE_KEPT_KEPT, 2);
	answer(1, 1000);
	ended(DMSG_STORE_STATUS_LOST);
	ask_for(1, 100);
	answer_n(2, PMSG_STORE_KEPT_KEPT, 0);
	answer(3, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
}

/* An agent that is late is not asked for a while. */
static void test_late(void **state)
{
	dray_handle late;

	ask_for(1, 100);
	late = rig.requests[0].peer;
	refuse(0, DRAY_E_TIMEOUT);
	answer(1, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
	ask_for(1, 100);
	assert_int_equal(rig.requests[2].peer, other(late));
	refuse(2, DRAY_E_TIMEOUT);
	ended(DMSG_STORE_STATUS_LOST);
	/* nobody is left */
	ask_for(1, 100);
	assert_int_equal(rig.n_requests, 3);
	ended(DMSG_STORE_STATUS_LOST);
}

static void test_nobody(void **state)
{
	rig.old = true;
	ask_for(2, 100);
	ended(DMSG_STORE_STATUS_LOST);
	rig.old = false;
	rig.cfg.store.lend = false;
	ask_for(2, 100);
	ended(DMSG_STORE_STATUS_LOST);
	assert_int_equal(rig.n_requests, 0);
}

static void test_clogged(void **state)
{
	rig.clogged = A;
	ask_for(8, 100);
	assert_int_equal(rig.requests[0].peer, B);
	for (unsigned i = 0; i < rig.n_requests; i++)
		answer(i, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
	rig.lost = B;
	ask_for(8, 100);
	ended(DMSG_STORE_STATUS_LOST);
}

/* Keys that are not stored are not copied. */
static void test_not_tried(void **state)
{
	struct store_ask *a = ask_of(2, 100, INT64_MAX);

	a->v[0].status = DMSG_STORE_STATUS_NOT_TRIED;
	exchange_ask(rig.x, a);
	assert_int_equal(rig.requests[0].n, 1);
	answer(0, PMSG_STORE_KEPT_KEPT);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_TRIED);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_OK);
	exchange_ask_end(rig.x, rig.answered);
}

/* One message to each agent at a time, with a part of what may be leased, and at most as many keys as the protocol allows. */
static void test_parts(void **state)
{
	uint32_t n = 0;

	ask_for(KEYS_OF_TEST, 64);
	for (unsigned i = 0; i < rig.n_requests; i++) {
		n += rig.requests[i].n;
		answer(i, PMSG_STORE_KEPT_KEPT);
	}
	assert_int_equal(n, KEYS_OF_TEST);
	ended(DMSG_STORE_STATUS_OK);
	rig.n_requests = n = 0;
	ask_for(16, MIB);
	assert_true(rig.n_requests <= 2);
	for (unsigned i = 0; i < rig.n_requests; i++) {
		assert_in_range(rig.requests[i].n, 1, 2);
		assert_in_range(rig.requests[i].deadline_ms, 331, 370);
		n += rig.requests[i].n;
		answer(i, PMSG_STORE_KEPT_KEPT);
	}
	assert_int_equal(n, 16);
	ended(DMSG_STORE_STATUS_OK);
	/* one that is larger goes alone, and has more time */
	rig.n_requests = 0;
	ask_for(1, 64 * MIB);
	assert_in_range(rig.requests[0].deadline_ms, 2300, 2310);
	answer(0, PMSG_STORE_KEPT_KEPT);
	ended(DMSG_STORE_STATUS_OK);
}

static void run_once(void)
{
	for (int i = 0; i < 1000 && !rig.answered; i++)
		sd_event_run(rig.s.event, 10000);
}

/* Answers that come later say nothing to anybody. */
static void test_deadline(void **state)
{
	exchange_ask(rig.x, ask_of(1, 100, dray_now().ns + DRAY_NS_PER_MS));
	run_once();
	ended(DMSG_STORE_STATUS_LOST);
	answer(0, PMSG_STORE_KEPT_KEPT);
	assert_null(rig.answered);
	assert_int_equal(rig.n_requests, 1);
}

static void test_stop(void **state)
{
	struct store_ask *a = ask_for(1, 100);

	exchange_ask_stop(rig.x, a);
	ended(DMSG_STORE_STATUS_LOST);
	refuse(0, DRAY_E_PEER_LOST);
	assert_null(rig.answered);
	/* the answer is on its way already */
	a = ask_for(1, 100);
	answer(1, PMSG_STORE_KEPT_KEPT);
	exchange_ask_stop(rig.x, a);
	ended(DMSG_STORE_STATUS_OK);
}

/* Objects that go to one agent alone. */
static struct store_ask *ask_at(const char *at, uint32_t n, uint64_t length)
{
	struct store_ask *a = ask_of(n, length, INT64_MAX);

	a->at = at;
	exchange_ask(rig.x, a);
	return a;
}

/* All keys have this status, and the worker is done with it. */
static void ended_at(enum dmsg_store_status status)
{
	assert_non_null(rig.answered);
	for (uint32_t i = 0; i < rig.answered->n; i++)
		assert_int_equal(rig.answered->v[i].status, status);
	exchange_ask_end(rig.x, rig.answered);
	rig.answered = NULL;
}

static void test_at_answers(void **state)
{
	static const struct {
		uint32_t answer;
		enum dmsg_store_status status;
	} cases[] = {
		{ PMSG_STORE_KEPT_KEPT, DMSG_STORE_STATUS_OK },
		{ PMSG_STORE_KEPT_EXISTS, DMSG_STORE_STATUS_EXISTS },
		{ PMSG_STORE_KEPT_NOT_FOUND, DMSG_STORE_STATUS_BUSY },
		{ PMSG_STORE_KEPT_BUSY, DMSG_STORE_STATUS_BUSY },
		{ PMSG_STORE_KEPT_TOO_LARGE, DMSG_STORE_STATUS_TOO_LARGE },
		{ PMSG_STORE_KEPT_CORRUPT, DMSG_STORE_STATUS_CORRUPT },
		{ PMSG_STORE_KEPT_LOST, DMSG_STORE_STATUS_BUSY },
		{ 0, DMSG_STORE_STATUS_LOST },
		{ 1000, DMSG_STORE_STATUS_LOST },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		ask_at(second, 3, 100);
		assert_int_equal(rig.n_requests, i + 1);
		assert_int_equal(rig.requests[i].peer, B);
		answer(i, cases[i].answer);
		ended_at(cases[i].status);
	}
	/* answers for other keys */
	ask_at(second, 3, 100);
	answer_n(rig.n_requests - 1, PMSG_STORE_KEPT_KEPT, 2);
	ended_at(DMSG_STORE_STATUS_LOST);
}

/* Nobody else is asked, and it is asked again by the next PUT, whatever it has said. */
static void test_at_refuses(void **state)
{
	static const struct {
		uint32_t code;
		enum dmsg_store_status status;
	} cases[] = {
		{ DRAY_E_DENIED, DMSG_STORE_STATUS_DENIED },
		{ DRAY_E_TIMEOUT, DMSG_STORE_STATUS_UNREACHABLE },
		{ DRAY_E_PEER_LOST, DMSG_STORE_STATUS_UNREACHABLE },
		{ DRAY_E_UNSUPPORTED, DMSG_STORE_STATUS_UNSUPPORTED },
		{ DRAY_E_BUSY, DMSG_STORE_STATUS_BUSY },
		{ DRAY_E_DRAINING, DMSG_STORE_STATUS_BUSY },
		{ DRAY_E_NO_MEMORY, DMSG_STORE_STATUS_BUSY },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		ask_at("10.0.0.1:1", 2, 100);
		assert_int_equal(rig.n_requests, i + 1);
		assert_int_equal(rig.requests[i].peer, A);
		refuse(i, cases[i].code);
		ended_at(cases[i].status);
	}
}

static void test_at_nobody(void **state)
{
	/* not connected */
	ask_at(third, 2, 100);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	/* not one that may be asked */
	ask_at("10.0.0.4:1", 2, 100);
	ended_at(DMSG_STORE_STATUS_DENIED);
	rig.old = true;
	ask_at(first, 2, 100);
	ended_at(DMSG_STORE_STATUS_UNSUPPORTED);
	rig.old = false;
	/* it does not read its messages */
	exchange_unready = first;
	ask_at(first, 2, 100);
	ended_at(DMSG_STORE_STATUS_BUSY);
	exchange_unready = NULL;
	rig.clogged = A;
	ask_at(first, 2, 100);
	ended_at(DMSG_STORE_STATUS_BUSY);
	rig.cfg.store.lend = false;
	ask_at(first, 2, 100);
	ended_at(DMSG_STORE_STATUS_BUSY);
	assert_int_equal(rig.n_requests, 0);
}

/* This agent itself. */
static void test_at_here(void **state)
{
	struct exchange_store v[EXCHANGE_STORES_MAX];

	ask_at("10.0.0.9:1", 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	/* by another of its addresses */
	exchange_self = third;
	ask_at(third, 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(rig.n_requests, 0);
	assert_int_equal(exchange_stores(rig.x, v), 3);
}

/* One part after the other. What is not answered at the end has no answer. */
static void test_at_parts(void **state)
{
	unsigned n = 0, i;
	struct store_ask *a = ask_at(first, 16, MIB);

	for (i = 0; n < 8; i++) {
		assert_int_equal(rig.n_requests, i + 1);
		assert_int_equal(rig.requests[i].peer, A);
		n += rig.requests[i].n;
		answer(i, PMSG_STORE_KEPT_KEPT);
	}
	exchange_ask_stop(rig.x, a);
	assert_ptr_equal(rig.answered, a);
	for (i = 0; i < 16; i++)
		if (i < n)
			assert_int_equal(a->v[i].status, DMSG_STORE_STATUS_OK);
		else
			assert_true(a->v[i].status == DMSG_STORE_STATUS_NOT_FOUND ||
				    a->v[i].status == DMSG_STORE_STATUS_NOT_TRIED);
	exchange_ask_end(rig.x, a);
	rig.answered = NULL;
	/* nobody waits for the last one */
	answer(rig.n_requests - 1, PMSG_STORE_KEPT_KEPT);
	assert_null(rig.answered);
}

/* An agent that has not answered in time for one part is not asked for the others, but for the next PUT. */
static void test_at_late(void **state)
{
	ask_at(first, 16, MIB);
	refuse(0, DRAY_E_TIMEOUT);
	assert_int_equal(rig.n_requests, 1);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	ask_at(first, 1, MIB);
	answer(1, PMSG_STORE_KEPT_KEPT);
	ended_at(DMSG_STORE_STATUS_OK);
	/* what was answered before stays as it is */
	ask_at(first, 16, MIB);
	answer(2, PMSG_STORE_KEPT_KEPT);
	refuse(3, DRAY_E_TIMEOUT);
	assert_int_equal(rig.n_requests, 4);
	assert_non_null(rig.answered);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(rig.answered->v[i].status, i < rig.requests[2].n ?
								    DMSG_STORE_STATUS_OK :
								    DMSG_STORE_STATUS_UNREACHABLE);
	exchange_ask_end(rig.x, rig.answered);
	rig.answered = NULL;
}

static void test_preferred(void **state)
{
	static char local[] = "local", self[] = "10.0.0.9:1", unknown[] = "10.0.0.7:1";

	/* none is */
	ask_at("", 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	hinted = "10.0.0.9:1";
	ask_at("", 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	hinted = third;
	ask_at("", 2, 100);
	assert_false(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	/* the configuration counts before it */
	rig.cfg.store.put_at = local;
	ask_at("", 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	/* this agent itself */
	rig.cfg.store.put_at = self;
	ask_at("", 2, 100);
	assert_true(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	rig.cfg.store.put_at = unknown;
	ask_at("", 2, 100);
	assert_false(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_DENIED);
	assert_int_equal(rig.n_requests, 0);
	rig.cfg.store.put_at = second;
	ask_at("", 2, 100);
	assert_int_equal(rig.requests[0].peer, B);
	answer(0, PMSG_STORE_KEPT_KEPT);
	assert_false(rig.answered->here);
	ended_at(DMSG_STORE_STATUS_OK);
	/* one that was late is not asked for a while, unless a client names it */
	ask_at("", 2, 100);
	refuse(1, DRAY_E_TIMEOUT);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	ask_at("", 2, 100);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	assert_int_equal(rig.n_requests, 2);
	ask_at("10.0.0.2:1", 2, 100);
	answer(2, PMSG_STORE_KEPT_KEPT);
	ended_at(DMSG_STORE_STATUS_OK);
}

/* An agent that was late for a lookup is asked to keep objects, though no lookup has tested it since. */
static void test_late_for_a_lookup(void **state)
{
	struct exchange_store v[EXCHANGE_STORES_MAX];

	rig.cfg.store.put_at = second;
	lender_judge(&rig.x->lenders[1], dray_now().ns, false, DRAY_E_TIMEOUT);
	exchange_stores(rig.x, v);
	assert_null(v[2].fault);
	ask_at("", 2, 100);
	assert_int_equal(rig.requests[0].peer, B);
	answer(0, PMSG_STORE_KEPT_KEPT);
	ended_at(DMSG_STORE_STATUS_OK);
	/* a second time at once: there is a pause */
	lender_judge(&rig.x->lenders[1], dray_now().ns, false, DRAY_E_TIMEOUT);
	exchange_stores(rig.x, v);
	assert_non_null(v[2].fault);
}

/* Objects without a status yet, which an agent answers so; those that are not_tried were not stored here. */
static void ask_preferred(unsigned request, const uint32_t *answers, uint32_t n, uint32_t not_tried)
{
	struct store_ask *a = ask_of(n, 100, INT64_MAX);
	uint8_t wire[8 * PMSG_STORE_KEEP_ANSWER_SIZE];
	union pmsg_body m = { .store_keep_reply = { .answers = { wire, n - 1 } } };

	a->at = "";
	a->v[not_tried].status = DMSG_STORE_STATUS_NOT_TRIED;
	exchange_ask(rig.x, a);
	assert_int_equal(rig.requests[request].n, n - 1);
	for (uint32_t i = 0; i < n - 1; i++)
		pmsg_store_keep_answer_put(wire + (size_t)i * PMSG_STORE_KEEP_ANSWER_SIZE,
					   &(struct pmsg_store_keep_answer){ .answer =
										     answers[i] });
	rig.requests[request].fn(rig.requests[request].arg, 0, &m);
	exchange_ask_end(rig.x, rig.answered);
	rig.answered = NULL;
}

/* What stays here is counted without what was not stored, and the log has the reason of most. */
static void test_preferred_fallback(void **state)
{
	static const uint32_t kept[] = { PMSG_STORE_KEPT_KEPT, PMSG_STORE_KEPT_EXISTS };
	static const uint32_t mixed[] = { PMSG_STORE_KEPT_TOO_LARGE, PMSG_STORE_KEPT_TOO_LARGE,
					  PMSG_STORE_KEPT_BUSY };
	int log = memfd_create("log", MFD_CLOEXEC), err = dup(STDERR_FILENO);
	char text[1024] = "";

	assert_true(log >= 0 && err >= 0);
	rig.cfg.store.put_at = first;
	fflush(stderr);
	dup2(log, STDERR_FILENO);
	ask_preferred(0, kept, 3, 1);
	assert_int_equal(lseek(log, 0, SEEK_CUR), 0);
	ask_preferred(1, mixed, 4, 3);
	fflush(stderr);
	dup2(err, STDERR_FILENO);
	assert_true(pread(log, text, sizeof(text) - 1, 0) > 0);
	assert_non_null(strstr(text, "it has less room for the owner"));
	assert_non_null(strstr(text, "keys=3"));
	close(log);
	close(err);
	/* what is not answered at the end stays here */
	exchange_ask_stop(rig.x, ask_at("", 2, 100));
	ended_at(DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(rig.x->n_fell_back, 2);
}

/* The agents that PUTs can go to, with what speaks against them. */
static void test_stores(void **state)
{
	struct exchange_store v[EXCHANGE_STORES_MAX];

	assert_int_equal(exchange_stores(rig.x, v), 4);
	assert_true(v[0].own && !v[0].fault);
	assert_string_equal(v[0].segment, "10.0.0.9:1");
	assert_string_equal(v[1].segment, first);
	assert_null(v[1].fault);
	assert_null(v[2].fault);
	assert_string_equal(v[3].fault, "it is not connected, or has not answered in time");
	ask_at(first, 1, 100);
	refuse(0, DRAY_E_TIMEOUT);
	ended_at(DMSG_STORE_STATUS_UNREACHABLE);
	exchange_stores(rig.x, v);
	assert_non_null(v[1].fault);
	assert_null(v[2].fault);
	rig.old = true;
	exchange_stores(rig.x, v);
	assert_string_equal(v[2].fault, "its version takes no objects");
	rig.cfg.store.lend = false;
	exchange_stores(rig.x, v);
	assert_non_null(strstr(v[2].fault, "store.lend"));
}

/* The agent ends meanwhile. */
static void test_end(void **state)
{
	struct store_ask *a = ask_for(1, 100);

	exchange_ask_stop(rig.x, a);
	assert_ptr_equal(rig.answered, a);
	ask_for(3, 100);
	keep(A, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kept, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_who_may_not, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_floods, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keeps, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_next_agent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nonsense, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_late_for_a_lookup, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nobody, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_clogged, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_tried, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_parts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_stop, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_answers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_refuses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_nobody, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_here, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_parts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_at_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_preferred, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_preferred_fallback, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_stores, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_end, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
