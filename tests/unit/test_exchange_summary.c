/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Summaries of stores: the exchanges of two agents, with their stores, whose messages the test carries. The owner has objects; the reader asks
 * it, and a second agent that makes no summaries.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/store_ask.h"
#include "agent/store/internal.h"
#include "schema/gen/errors.h"
#include "tests/unit/exchange_peers.h"
#include "tests/unit/fake_pool.h"

#define MIB (1ull << 20)
/* Peers of the reader: the owner, and another agent; and the reader, as the owner knows it. */
#define OWNER ((dray_handle)1)
#define OTHER ((dray_handle)2)
#define READER ((dray_handle)3)
#define KEYS_OF_TEST 1200
#define WIRE_MAX 65536

static const char *const spaces[] = { "kv=t:1" };
static char first[] = "10.0.0.1:1", second[] = "10.0.0.2:1";
static char *segments[] = { first, second };

struct side {
	struct owner_account account;
	struct dray_config cfg;
	struct store *store;
	struct store_user *user;
	struct store_member *member;
	struct exchange *x;
};

/* A request that has no answer yet, in wire form. */
struct request {
	struct dray_list link;
	bool to_reader;
	dray_handle peer;
	uint16_t type;
	peer_reply_fn fn;
	void *arg;
	size_t n;
	uint8_t wire[WIRE_MAX];
};

static char no_agent[] = "";

static struct rig {
	sd_event *event;
	struct budgets budgets;
	struct worker_pool pool;
	struct rails *rails;
	struct side owner, reader;
	struct dray_list requests; /* about summaries */
	struct store_ask *answered;
	uint32_t code; /* of the last answer to such a request */
	bool replied;
	unsigned watches, parts, wholes; /* requests so far; parts that begin a filter */
	/* lookups at the owner and at the other agent: the last one, and its number of keys */
	struct {
		peer_reply_fn fn;
		void *arg;
		uint32_t n;
	} lookups[2];
} rig;

static bool is_reader(const struct peers *p)
{
	return p == (void *)&rig.reader;
}

dray_handle peers_at(struct peers *p, const char *segment, uint64_t features)
{
	return segment == segments[0] ? OWNER : OTHER;
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	struct request *r;
	int n;

	if (type == PMSG_STORE_LOOKUP) {
		struct dray_err err = DRAY_ERR_NULL;
		struct store_key keys[512];
		unsigned i = peer == OTHER;

		assert_true(is_reader(p));
		rig.lookups[i].fn = fn;
		rig.lookups[i].arg = arg;
		rig.lookups[i].n =
			(uint32_t)store_keys_split(keys, 512, body->store_lookup.keys, &err);
		return 0;
	}
	r = calloc(1, sizeof(*r));
	assert_non_null(r);
	n = pmsg_body_encode(type, r->wire, sizeof(r->wire), 1, body);
	assert_true(n > 0);
	r->n = (size_t)n;
	r->to_reader = !is_reader(p);
	r->peer = peer;
	r->type = type;
	r->fn = fn;
	r->arg = arg;
	rig.watches += type == PMSG_STORE_WATCH;
	rig.parts += type == PMSG_STORE_SUMMARY;
	dray_list_add(&rig.requests, &r->link);
	return 0;
}

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	if (type == PMSG_STORE_RELEASE)
		return;
	assert_true(type == PMSG_STORE_WATCH_REPLY || type == PMSG_STORE_SUMMARY_REPLY);
	rig.replied = true;
	rig.code = 0;
}

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	rig.replied = true;
	rig.code = code;
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

static void count_nothing(struct owner_account *a)
{
}

static void side_make(struct side *s)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_config cfg = {
		.bytes = 16 * MIB,
		.segment_size = 2 * MIB,
		.policy = POLICY_LRU,
		.evict = true,
		.asks = s == &rig.reader,
		.lend = s == &rig.owner,
		.retry_ms = 1,
		.spaces = spaces,
		.n_spaces = 1,
		.keep = count_nothing,
		.release = count_nothing,
	};

	budget_account_init(&s->account.budget, &rig.budgets, "t", 1);
	s->cfg.store.put_at = no_agent;
	s->cfg.store.summaries = true;
	s->cfg.store.lend = s == &rig.owner;
	if (s == &rig.reader)
		s->cfg.store.peers = (struct dray_strv){ segments, 2 };
	cfg.disk.event = rig.event;
	assert_int_equal(store_new(&s->store, &cfg, &err), 0);
	s->user = store_user_new(s->store, &s->account, &err);
	s->member = store_join(s->user, (struct dray_str){ "kv", 2 }, &err);
	assert_non_null(s->member);
	assert_int_equal(exchange_new(&s->x,
				      &(struct exchange_deps){ .event = rig.event,
							       .cfg = &s->cfg,
							       .pool = &rig.pool,
							       .peers = (void *)s,
							       .store = s->store,
							       .up = &upcalls,
							       .rails = &rig.rails },
				      &err),
			 0);
}

static int set_up(void **state)
{
	memset(&rig, 0, sizeof(rig));
	exchange_peers_reset();
	dray_list_init(&rig.requests);
	assert_true(sd_event_new(&rig.event) >= 0);
	for (unsigned i = 0; i < RESOURCE_N; i++)
		rig.budgets.of[i].max = rig.budgets.of[i].owner_max = 12 * MIB;
	rig.pool.n = 1;
	side_make(&rig.owner);
	side_make(&rig.reader);
	return 0;
}

static void side_free(struct side *s)
{
	s->x = exchange_free(s->x);
	store_user_free(s->user);
	assert_true(store_free(s->store));
}

static int tear_down(void **state)
{
	side_free(&rig.reader);
	side_free(&rig.owner);
	dray_list_for_each(&rig.requests, r, struct request, link) {
		dray_list_del(&r->link);
		free(r);
	}
	sd_event_unref(rig.event);
	return 0;
}

/* --- the messages ------------------------------------------------------------------------------------- */

static void deliver(struct request *r)
{
	struct dray_err err = DRAY_ERR_NULL;
	union pmsg_body body;

	assert_int_equal(pmsg_body_decode(r->type, r->wire + PMSG_HEADER_SIZE,
					  r->n - PMSG_HEADER_SIZE, &body, &err),
			 0);
	rig.replied = false;
	if (r->type == PMSG_STORE_SUMMARY) {
		rig.wholes += body.store_summary.bytes.n && !body.store_summary.offset;
		exchange_summary(rig.reader.x, OWNER, 1, &body.store_summary);
	} else if (r->peer == OWNER) {
		exchange_watch(rig.owner.x, READER, 1);
	} else {
		/* it does not know them */
		peers_refuse(NULL, OTHER, 1, DRAY_E_UNKNOWN_TYPE, "");
	}
	assert_true(rig.replied);
}

/* Carries the oldest request, and its answer or this error. */
static void carry_one(uint32_t code)
{
	struct request *r = dray_list_pop(&rig.requests, struct request, link);
	static const union pmsg_body reply;

	assert_non_null(r);
	if (!code)
		deliver(r);
	code = code ? code : rig.code;
	r->fn(r->arg, code, code ? NULL : &reply);
	free(r);
}

static void carry(void)
{
	while (!dray_list_empty(&rig.requests))
		carry_one(0);
}

static struct exchange_totals at_reader(void)
{
	return exchange_totals(rig.reader.x);
}

/* Runs the owner until it has sent something. */
static void until_request(void)
{
	while (dray_list_empty(&rig.requests))
		assert_true(sd_event_run(rig.event, UINT64_MAX) >= 0);
}

/* Runs both agents until the reader has a summary of the owner, or until it has none. */
static void until_summary(bool whole)
{
	for (carry(); at_reader().summaries != whole; carry())
		assert_true(sd_event_run(rig.event, UINT64_MAX) >= 0);
}

/* --- keys ------------------------------------------------------------------------------------------------- */

/* Key number n, with so many bytes. */
static struct store_key long_key(unsigned n, unsigned bytes)
{
	static char text[KEYS_OF_TEST][256];

	snprintf(text[n], sizeof(text[n]), "%0*u", (int)bytes, n);
	return (struct store_key){ (const uint8_t *)text[n], bytes };
}

static unsigned key_bytes = 4;

static struct store_key key_of(unsigned n)
{
	return long_key(n, key_bytes);
}

static void put_key(struct store_key key)
{
	struct store_object *o;
	int r;

	/* the first segment comes from another thread */
	while ((r = (int)store_put_begin(rig.owner.member, key, 64, 0, &(struct store_effort){ 0 },
					 &o)) == DMSG_STORE_STATUS_BUSY)
		assert_true(sd_event_run(rig.event, 1000) >= 0);
	assert_int_equal(r, 0);
	assert_int_equal(store_put_end(o, true), 0);
}

static void put(unsigned n)
{
	put_key(key_of(n));
}

/*
 * A GET of keys [from, to) at the reader: how many the owner and the other agent are asked for; -1: not at all. Both say that they have none.
 */
static void get(unsigned from, unsigned to, int at_owner, int at_other)
{
	struct store_ask *a = calloc(1, sizeof(*a) + (to - from) * sizeof(a->v[0]));
	int asked[2] = { at_owner, at_other };

	assert_non_null(a);
	snprintf(a->space, sizeof(a->space), "kv");
	a->tenant = "t";
	a->uid = 1;
	a->end_ns = INT64_MAX;
	for (unsigned i = from; i < to; i++)
		a->v[a->n++] = (struct store_asked){ .key = key_of(i).p,
						     .n_key = key_of(i).n,
						     .status = DMSG_STORE_STATUS_NOT_FOUND };
	a->n_asked = a->n;
	exchange_ask(rig.reader.x, a);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t wire[32 * PMSG_STORE_FOUND_SIZE];
		union pmsg_body m = { .store_lookup_reply = {
					      .found = { wire, rig.lookups[i].n } } };

		assert_int_equal(rig.lookups[i].fn ? (int)rig.lookups[i].n : -1, asked[i]);
		for (uint32_t k = 0; k < rig.lookups[i].n; k++)
			pmsg_store_found_put(wire + (size_t)k * PMSG_STORE_FOUND_SIZE,
					     &(struct pmsg_store_found){
						     .answer = PMSG_STORE_ANSWER_NOT_FOUND });
		if (rig.lookups[i].fn)
			rig.lookups[i].fn(rig.lookups[i].arg, 0, &m);
		rig.lookups[i].fn = NULL;
		rig.lookups[i].n = 0;
	}
	assert_ptr_equal(rig.answered, a);
	for (uint32_t i = 0; i < a->n; i++)
		assert_int_equal(a->v[i].status, DMSG_STORE_STATUS_NOT_FOUND);
	exchange_ask_end(rig.reader.x, a);
	rig.answered = NULL;
}

/* --- tests ------------------------------------------------------------------------------------------------ */

/* The first GET asks for all; those after it only for what the owner may have. Objects that come are known at once. */
static void test_keys_that_an_agent_has(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		put(i);
	get(0, 10, 10, 10);
	assert_int_equal(rig.watches, 2);
	until_summary(true);
	assert_int_equal(at_reader().summary_bytes, FILTER_BITS_MIN / 8);
	get(0, 10, 3, 10);
	assert_int_equal(at_reader().summary_skipped, 7);
	get(3, 10, -1, 7);
	assert_int_equal(rig.watches, 2);
	put(5);
	until_request();
	carry();
	get(3, 10, 1, 7);
	/* what has gone is asked for in vain, until there is a new filter */
	store_remove(rig.owner.member, (struct store_key[]){ key_of(0) }, 1,
		     (struct dmsg_store_result[1]){});
	get(0, 2, 2, 2);
	assert_int_equal(rig.wholes, 1);
}

/* An agent that is lost is asked for all keys when it is there again, until its summary is. */
static void test_agent_is_lost(void **state)
{
	put(0);
	get(0, 2, 2, 2);
	until_summary(true);
	get(0, 2, 1, 2);
	exchange_peer_gone(rig.reader.x, OWNER, true);
	exchange_peer_gone(rig.owner.x, READER, true);
	assert_int_equal(at_reader().summaries, 0);
	assert_int_equal(at_reader().summary_bytes, 0);
	/* nobody wants it: it takes no memory */
	assert_int_equal(exchange_totals(rig.owner.x).summary_bytes, 0);
	get(0, 2, 2, 2);
	assert_int_equal(rig.watches, 3);
}

/* The reader is lost while a message to it has no answer, which comes later. */
static void test_reader_is_lost(void **state)
{
	put(0);
	get(0, 1, 1, 1);
	carry_one(0);
	carry_one(0);
	until_request();
	exchange_peer_gone(rig.owner.x, READER, true);
	carry_one(DRAY_E_PEER_LOST);
	assert_true(dray_list_empty(&rig.requests));
	assert_int_equal(exchange_totals(rig.owner.x).summary_bytes, 0);
}

/* What the reader has is not known after a timeout: all comes again. */
static void test_no_answer(void **state)
{
	put(0);
	get(0, 1, 1, 1);
	until_summary(true);
	put(1);
	until_request();
	carry_one(DRAY_E_TIMEOUT);
	assert_int_equal(rig.wholes, 1);
	carry();
	assert_int_equal(rig.wholes, 2);
	get(0, 3, 2, 3);
}

/* The reader has refused a part: it gets no more, and asks for all keys. */
static void test_refused(void **state)
{
	put(0);
	get(0, 1, 1, 1);
	until_summary(true);
	put(1);
	until_request();
	exchange_summary(rig.reader.x, OWNER, 1, &(struct pmsg_store_summary){ .bits = 0 });
	assert_int_equal(rig.code, 0);
	assert_int_equal(at_reader().summaries, 0);
	carry_one(0);
	assert_int_equal(rig.code, DRAY_E_INVALID);
	assert_int_equal(exchange_totals(rig.owner.x).summary_bytes, 0);
	get(0, 3, 3, 3);
	assert_true(dray_list_empty(&rig.requests));
}

/* Parts that are wrong leave no summary. */
static void test_wrong_parts(void **state)
{
	static uint8_t bytes[32768];
	static const struct pmsg_store_summary good = { .generation = 7,
							.bits = FILTER_BITS_MIN,
							.bytes = { bytes, FILTER_BITS_MIN / 16 } };
	const uint64_t wrong_bits[] = { FILTER_BITS_MIN / 2, FILTER_BITS_MIN + 1,
					2 * FILTER_BITS_MAX, UINT64_C(1) << 63 };
	struct pmsg_store_summary m;

	/* nobody has asked for it */
	exchange_summary(rig.reader.x, OWNER, 1, &good);
	assert_int_equal(rig.code, DRAY_E_INVALID);
	get(0, 1, 1, 1);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(wrong_bits); i++) {
		m = good;
		m.bits = wrong_bits[i];
		exchange_summary(rig.reader.x, OWNER, 1, &m);
		assert_int_equal(rig.code, DRAY_E_INVALID);
	}
	for (unsigned i = 0; i < 6; i++) {
		uint8_t digest[PMSG_STORE_DIGEST_SIZE] = { 0 };

		exchange_summary(rig.reader.x, OWNER, 1, &good);
		assert_int_equal(rig.code, 0);
		m = good;
		m.offset = m.bytes.n;
		m.generation += i == 0;
		m.bits *= i == 1 ? 2 : 1;
		m.offset += i == 2;
		m.bytes.n += i == 3;
		if (i == 4)
			m.bytes.n = 0;
		if (i >= 4)
			m.digests = (struct dray_vec){ digest, 1 };
		exchange_summary(rig.reader.x, OWNER, 1, &m);
		/* the last one is right: it has the rest, and an object */
		assert_int_equal(rig.code, i == 5 ? 0 : DRAY_E_INVALID);
		assert_int_equal(at_reader().summaries, i == 5);
		assert_int_equal(at_reader().summary_bytes, i == 5 ? FILTER_BITS_MIN / 8 : 0);
	}
	m = (struct pmsg_store_summary){ .generation = 7, .bits = FILTER_BITS_MIN };
	exchange_summary(rig.reader.x, OWNER, 1, &m);
	assert_int_equal(at_reader().summaries, 1);
	m.generation = 8;
	m.digests = (struct dray_vec){ bytes, 1 };
	exchange_summary(rig.reader.x, OWNER, 1, &m);
	assert_int_equal(rig.code, DRAY_E_INVALID);
	assert_int_equal(at_reader().summaries, 0);
}

/* More changes than are kept: the reader asks for all keys until there is a new filter. */
static void test_lost_changes(void **state)
{
	put(0);
	get(0, 1, 1, 1);
	until_summary(true);
	get(1, 2, -1, 1);
	for (unsigned i = 1; i < KEYS_OF_TEST; i++)
		put_key(long_key(i, 250));
	until_summary(false);
	assert_int_equal(exchange_totals(rig.owner.x).summary_bytes, 0);
	get(1, 2, 1, 1);
	assert_int_equal(rig.watches, 2);
}

/* A turn of the listing has room for fewer objects with long keys. None of them is left out. */
static void test_long_keys(void **state)
{
	key_bytes = 250;
	for (unsigned i = 0; i < 300; i++)
		put(i);
	get(0, 1, 1, 1);
	until_summary(true);
	for (unsigned i = 0; i < 300; i += 30)
		get(i, i + 30, 30, 30);
	key_bytes = 4;
}

/* Many objects come between two answers: all comes again, in a filter with room for them or in the old one. */
static void test_many_objects(void **state)
{
	put(0);
	get(0, 1, 1, 1);
	until_summary(true);
	for (unsigned i = 1; i < 1000; i++)
		put(i);
	until_request();
	carry();
	get(990, 1010, 10, 20);
}

/* An agent without summaries refuses, and is asked for all keys. */
static void test_agent_without_summaries(void **state)
{
	exchange_watch(rig.reader.x, OWNER, 1);
	assert_int_equal(rig.code, DRAY_E_UNSUPPORTED);
	get(0, 2, 2, 2);
	carry();
	get(0, 2, 2, 2);
	assert_int_equal(rig.watches, 2);
}

static void test_filter(void **state)
{
	struct filter f;
	unsigned wrong = 0;

	assert_int_equal(filter_bits_for(0), FILTER_BITS_MIN);
	assert_int_equal(filter_bits_for(4096), FILTER_BITS_MIN);
	assert_int_equal(filter_bits_for(4097), 2 * FILTER_BITS_MIN);
	assert_int_equal(filter_bits_for(UINT64_MAX), FILTER_BITS_MAX);
	assert_int_equal(filter_init(&f, filter_bits_for(4096), 5), 0);
	for (uint64_t i = 0; i < 8192; i++) {
		struct filter_digest d = { i * 0x9e3779b97f4a7c15u, i * 0xd1b54a32d192ed03u };

		if (i < 4096)
			filter_add(&f, d);
		else
			wrong += filter_has(&f, d);
	}
	for (uint64_t i = 0; i < 4096; i++)
		assert_true(filter_has(&f, (struct filter_digest){ i * 0x9e3779b97f4a7c15u,
								   i * 0xd1b54a32d192ed03u }));
	assert_true(wrong < 4096 / 50);
	filter_deinit(&f);
}

/* Many objects at once: the same answers, and no other bits are changed. */
static void test_filter_sift(void **state)
{
	struct filter_digest d[100];
	uint64_t sets[100];
	struct filter f;
	uint32_t absent = 0;

	assert_int_equal(filter_init(&f, FILTER_BITS_MIN, 5), 0);
	for (uint64_t i = 0; i < 100; i++) {
		d[i] = (struct filter_digest){ i * 0x9e3779b97f4a7c15u, i * 0xd1b54a32d192ed03u };
		sets[i] = UINT64_MAX;
		if (i % 3 == 0)
			filter_add(&f, d[i]);
	}
	for (uint32_t i = 0; i < 100; i++)
		absent += !filter_has(&f, d[i]);
	assert_in_range(absent, 1, 66);
	assert_int_equal(filter_sift(&f, d, 100, sets, 4), absent);
	for (uint32_t i = 0; i < 100; i++)
		assert_true(sets[i] == (filter_has(&f, d[i]) ? UINT64_MAX : UINT64_MAX - 4));
	filter_deinit(&f);
}

/* All agents have the same digests. */
static void test_digest(void **state)
{
	struct names names;
	struct filter_digest d;

	assert_int_equal(names_init(&names, ""), 0);
	assert_true(digest_of(&names, "kv", (struct store_key){ (const uint8_t *)"k0", 2 }, &d));
	assert_true(d.a == UINT64_C(0x530e797cc5532fa1));
	assert_true(d.b == UINT64_C(0xbeea3fe79d1769c5));
	names_deinit(&names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_keys_that_an_agent_has, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_agent_is_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_reader_is_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_wrong_parts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lost_changes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_keys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_objects, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_agent_without_summaries, set_up, tear_down),
		cmocka_unit_test(test_filter),
		cmocka_unit_test(test_filter_sift),
		cmocka_unit_test(test_digest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
