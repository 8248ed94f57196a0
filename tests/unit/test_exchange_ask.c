/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking other agents for keys, against agents that answer as the test says: the first that has an object, answers that are late,
 * malformed or of a lost agent, and leases that are given back. Then the verification of what came.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "agent/control/directory/directory.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"
#include "agent/store/internal.h"
#include "schema/gen/errors.h"
#include "tests/unit/exchange_peers.h"
#include "tests/unit/fake_pool.h"
#include "tests/unit/store_rig.h"

#define A ((dray_handle)1)
#define B ((dray_handle)2)
#define KEYS 700

static const char *const spaces[] = { "kv=t:1" };
static char first[] = "10.0.0.1:1", second[] = "10.0.0.2:1", third[] = "10.0.0.3:1";
static char *segments[] = { first, second, third };

static char no_agent[] = "";

static struct rig {
	struct store_rig s;
	struct dray_config cfg;
	struct worker_pool pool;
	struct store_member *member;
	struct exchange *x;
	struct store_ask *answered; /* by COMMAND_STORE_ASKED */
	uint64_t lapsed;            /* by COMMAND_STORE_LAPSED */
	struct rails *rails;
	unsigned n_fenced, n_acked;
	struct command fenced; /* the last COMMAND_STORE_FENCED */
	uint64_t acked;
	uint32_t lease_ms, flags; /* of the last lookup */
	struct request {
		dray_handle peer;
		uint32_t n;
		bool test; /* of an agent that was late */
		peer_reply_fn fn;
		void *arg;
	} requests[256];
	unsigned n_requests, n_released;
	uint64_t released[8];
	dray_handle clogged; /* this peer takes no requests */
	/* of the directory */
	const struct directory_found *found; /* of the last question */
	void *found_arg;
	uint32_t n_find;
	bool silent; /* it cannot be asked */
	unsigned n_cancelled, n_named, n_forgotten;
	int64_t forgotten; /* the end of the entry */
} rig;

/* Only their addresses count. */
static char directory, find;

struct directory_find *directory_find(struct directory *d, const char *space,
				      const struct store_key *keys, uint32_t n,
				      const struct directory_found *found, void *arg)
{
	assert_ptr_equal(d, &directory);
	assert_string_equal(space, "kv");
	rig.found = found;
	rig.found_arg = arg;
	rig.n_find = n;
	return rig.silent ? NULL : (void *)&find;
}

void directory_find_cancel(struct directory_find *f)
{
	rig.n_cancelled += f != NULL;
}

void directory_forget(struct directory *d, const char *space, struct store_key key,
		      int64_t until_ms)
{
	rig.n_forgotten++;
	rig.forgotten = until_ms;
}

dray_handle peers_at(struct peers *p, const char *segment, uint64_t features)
{
	assert_true(features & PMSG_FEATURE_STORE);
	/* the third one is not connected; the second one has another address, too */
	return segment == segments[0]         ? A :
	       segment == segments[1]         ? B :
	       !strcmp(segment, "10.9.9.9:2") ? B :
						0;
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_key keys[512];
	int n = store_keys_split(keys, 512, body->store_lookup.keys, &err);

	assert_int_equal(type, PMSG_STORE_LOOKUP);
	assert_true(n > 0 && body->store_lookup.keys.n <= 60000);
	if (peer == rig.clogged)
		return -EBUSY;
	rig.lease_ms = body->store_lookup.lease_ms;
	rig.flags = body->store_lookup.flags;
	rig.requests[rig.n_requests++] =
		(struct request){ peer, (uint32_t)n, !body->store_lookup.space.n, fn, arg };
	return 0;
}

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	assert_int_equal(type, PMSG_STORE_RELEASE);
	rig.released[rig.n_released++] = body->store_release.grant;
}

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	fail();
}

void peers_fence(struct peers *p, dray_handle peer, dray_handle grant, uint32_t code)
{
	fail();
}

void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant)
{
	rig.n_acked++;
	rig.acked = grant;
}

static void segment_added(struct rails *rails, const struct region_view *view, bool lends)
{
	assert_false(lends);
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

void worker_post(struct worker *w, const struct command *cmd)
{
	if (cmd->type == COMMAND_STORE_FENCED) {
		rig.n_fenced++;
		rig.fenced = *cmd;
		return;
	}
	if (cmd->type == COMMAND_STORE_LAPSED) {
		rig.lapsed = cmd->number;
		return;
	}
	assert_int_equal(cmd->type, COMMAND_STORE_ASKED);
	assert_null(rig.answered);
	rig.answered = cmd->ask;
}

static void start(struct directory *d)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(exchange_new(&rig.x,
				      &(struct exchange_deps){ .event = rig.s.event,
							       .cfg = &rig.cfg,
							       .pool = &rig.pool,
							       .store = rig.s.store,
							       .up = &upcalls,
							       .rails = &rig.rails,
							       .directory = d },
				      &err),
			 0);
}

static void make(bool keep)
{
	struct store_config cfg = store_rig_config(spaces, 1);

	memset(&rig, 0, sizeof(rig));
	exchange_peers_reset();
	rig.cfg.store.put_at = no_agent;
	rig.cfg.store.peers = (struct dray_strv){ segments, 3 };
	rig.pool.n = 1;
	cfg.asks = exchange_asks(&rig.cfg);
	cfg.keep_copies = keep;
	store_rig_make(&rig.s, cfg);
	store_rig_user(&rig.s);
	rig.member = store_rig_join(&rig.s, "kv");
	assert_true(store_asks(rig.member));
	start(NULL);
}

static int set_up(void **state)
{
	make(true);
	return 0;
}

static int set_up_without_copies(void **state)
{
	make(false);
	return 0;
}

static int tear_down(void **state)
{
	rig.x = exchange_free(rig.x);
	store_rig_end(&rig.s);
	return 0;
}

static struct store_ask *ask_new(uint32_t n, uint32_t uid, int64_t end_ns)
{
	static uint8_t text[KEYS][100];
	static uint64_t number;
	struct store_ask *a = calloc(1, sizeof(*a) + n * sizeof(a->v[0]));

	assert_non_null(a);
	a->number = ++number;
	snprintf(a->space, sizeof(a->space), "kv");
	a->tenant = "t";
	a->uid = uid;
	a->end_ns = end_ns;
	a->n = a->n_asked = n;
	for (uint32_t i = 0; i < n; i++)
		a->v[i] = (struct store_asked){ .key = text[i],
						.n_key = sizeof(text[i]),
						.status = DMSG_STORE_STATUS_NOT_FOUND };
	return a;
}

static struct store_ask *ask_for(uint32_t n, uint32_t uid, int64_t end_ns)
{
	struct store_ask *a = ask_new(n, uid, end_ns);

	exchange_ask(rig.x, a);
	return a;
}

static void ask(uint32_t n)
{
	ask_for(n, 1, INT64_MAX);
}

/* Answers request r: what[i] is F for found, N, B, C, L. */
static void answer_with(unsigned r, uint64_t grant, const char *what, const struct pmsg_rail *rails,
			uint32_t n)
{
	uint8_t wire[512 * PMSG_STORE_FOUND_SIZE], keys[8 * PMSG_RAIL_SIZE];
	union pmsg_body m = { .store_lookup_reply = { .grant = grant,
						      .lease_ms = 1000,
						      .found = { wire, (uint32_t)strlen(what) },
						      .rails = { keys, n } } };

	for (uint32_t i = 0; i < n; i++)
		pmsg_rail_put(keys + (size_t)i * PMSG_RAIL_SIZE, &rails[i]);

	for (uint32_t i = 0; what[i]; i++) {
		const char *codes = "FNBCL";
		struct pmsg_store_found f = { .answer = (uint32_t)(strchr(codes, what[i]) - codes) +
							1 };

		if (what[i] == 'F') {
			f.offset = 4096 * (i + 1);
			f.length = 100;
		}
		pmsg_store_found_put(wire + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
	}
	rig.requests[r].fn(rig.requests[r].arg, 0, &m);
}

/* An answer with so many bytes, which count; F is an object of 100, a, b, c one of 1, 2, 3. */
static void answer_bytes(unsigned r, uint64_t grant, const char *what, uint32_t n)
{
	uint8_t wire[8 * PMSG_STORE_FOUND_SIZE], bytes[1024];
	union pmsg_body m = { .store_lookup_reply = { .grant = grant,
						      .lease_ms = 1000,
						      .found = { wire, (uint32_t)strlen(what) },
						      .bytes = { bytes, n } } };

	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)i;
	for (uint32_t i = 0; what[i]; i++) {
		struct pmsg_store_found f = { .answer = PMSG_STORE_ANSWER_NOT_FOUND, .crc = i };

		if (what[i] == 'F')
			f.length = 100;
		else if (what[i] != 'N')
			f.length = (uint64_t)(what[i] - 'a') + 1;
		if (f.length)
			f.answer = PMSG_STORE_ANSWER_FOUND;
		if (what[i] == 'N')
			f.length = 7; /* says nothing */
		pmsg_store_found_put(wire + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
	}
	rig.requests[r].fn(rig.requests[r].arg, 0, &m);
}

static void answer(unsigned r, uint64_t grant, const char *what)
{
	answer_with(r, grant, what, NULL, 0);
}

static void end(void)
{
	exchange_ask_end(rig.x, rig.answered);
	rig.answered = NULL;
}

static void test_first_answer_counts(void **state)
{
	ask(4);
	assert_int_equal(rig.n_requests, 2);
	answer(1, 20, "FNBN");
	assert_null(rig.answered);
	answer(0, 10, "FFNC");
	assert_non_null(rig.answered);
	assert_int_equal(rig.answered->n_sources, 2);
	assert_int_equal(rig.answered->sources[0].view.peer, B);
	assert_int_equal(rig.answered->sources[0].view.grant, 20);
	assert_int_equal(rig.answered->sources[0].view.o.length, 4096 + 100);
	assert_int_equal(rig.answered->v[0].source, 0);
	assert_int_equal(rig.answered->v[1].source, 1);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[2].status, DMSG_STORE_STATUS_BUSY);
	assert_int_equal(rig.answered->v[3].status, DMSG_STORE_STATUS_CORRUPT);
	assert_int_equal(rig.n_released, 0);
	end();
	assert_int_equal(rig.n_released, 2);
}

/* Workers may ask the agents that are connected, unless one of them does not read its messages now: then they would miss what it has. */
static void test_agents_for_workers(void **state)
{
	ask(1);
	answer(0, 10, "F");
	answer(1, 20, "N");
	assert_int_equal(rig.answered->direct.n, 2);
	end();
	exchange_unready = segments[2];
	ask(1);
	answer(2, 11, "F");
	answer(3, 21, "N");
	assert_int_equal(rig.answered->direct.n, 0);
	end();
	exchange_unready = NULL;
}

/* --- keys: object i lies at 4096 * (i + 1) and has 100 bytes --- */

static const struct pmsg_rail some_keys[] = {
	{ .rail = 0, .rkey = 1, .base = 0x1000, .offset = 4096, .length = 8192 + 100 },
	/* in two pieces */
	{ .rail = 1, .rkey = 2, .base = 0x9000, .offset = 8192 + 50, .length = 50 },
	{ .rail = 1, .rkey = 3, .base = 0x5000, .offset = 4096, .length = 4096 + 50 },
	/* not the second object */
	{ .rail = 2, .rkey = 4, .base = 0x1000, .offset = 4096, .length = 100 },
	/* beyond all addresses */
	{ .rail = 3, .rkey = 5, .base = UINT64_MAX - 5, .offset = 0, .length = 65536 },
	{ .rail = 64, .rkey = 6, .base = 0x1000, .offset = 0, .length = 65536 },
};

static void test_keys(void **state)
{
	const struct store_source *s;

	ask(2);
	answer_with(0, 10, "FF", some_keys, DRAY_ARRAY_SIZE(some_keys));
	s = &rig.answered->sources[0];
	assert_int_equal(s->keys->rails, 3);
	assert_int_equal(rail_keys_find(s->keys, 1, 8192 + 70)->key, 2);
	assert_true(exchange_has(rig.x, A, 10));
	assert_false(exchange_has(rig.x, B, 10));
	assert_false(exchange_has(rig.x, A, 11));
	end();
	assert_false(exchange_has(rig.x, A, 10));
	assert_int_equal(rig.n_acked, 0);
	assert_int_equal(rig.released[0], 10);
	/* those of an object that another agent has lent before are not needed */
	answer(1, 0, "NN");
	ask(2);
	answer(3, 20, "NF");
	answer_with(2, 30, "FF", some_keys + 3, 1);
	assert_null(rig.answered->sources[0].keys);
	assert_int_equal(rig.answered->sources[1].keys->rails, 4);
	assert_false(exchange_has(rig.x, B, 20));
	end();
}

/* The fence of what a worker has is acknowledged when the worker has ended its use, instead of a release. */
static void test_fence(void **state)
{
	ask(1);
	answer_with(0, 10, "F", some_keys, 1);
	answer(1, 0, "N");
	exchange_fence(rig.x, A, 10);
	assert_int_equal(rig.n_fenced, 1);
	assert_int_equal(rig.fenced.handle, A);
	assert_int_equal(rig.fenced.id, 10);
	assert_int_equal(rig.fenced.number, rig.answered->number);
	assert_int_equal(rig.fenced.session, rig.answered->session);
	assert_int_equal(rig.n_acked, 0);
	exchange_source_end(rig.x, rig.answered, 0);
	assert_int_equal(rig.n_acked, 1);
	assert_int_equal(rig.acked, 10);
	end();
	assert_int_equal(rig.n_released + rig.n_acked, 1);
}

/* Before the worker has the answer. */
static void test_fence_before_the_answer(void **state)
{
	ask(2);
	answer_with(1, 20, "FN", some_keys, 1);
	assert_null(rig.answered);
	exchange_fence(rig.x, B, 20);
	assert_int_equal(rig.n_fenced, 0);
	answer(0, 0, "NN");
	assert_int_equal(rig.answered->sources[0].end_ns, 0);
	end();
	assert_int_equal(rig.acked, 20);
	/* the agent ends with one */
	ask(1);
	answer_with(2, 30, "F", some_keys, 1);
	exchange_fence(rig.x, A, 30);
}

/* All is found: the others are not awaited, and what they lend is given back. */
static void test_leases_in_vain(void **state)
{
	ask(2);
	answer(0, 10, "FF");
	assert_non_null(rig.answered);
	end();
	answer(1, 20, "FF");
	assert_int_equal(rig.n_released, 2);
	assert_int_equal(rig.released[1], 20);
	/* the second lends only what the first has lent */
	ask(2);
	answer(2, 30, "FN");
	answer(3, 40, "FN");
	assert_int_equal(rig.n_released, 3);
	assert_int_equal(rig.released[2], 40);
	end();
}

static void test_answers_that_are_wrong(void **state)
{
	struct pmsg_store_found wild = { .answer = PMSG_STORE_ANSWER_FOUND,
					 .offset = UINT64_MAX - 5,
					 .length = 100 };
	uint8_t wire[PMSG_STORE_FOUND_SIZE];
	union pmsg_body m = { .store_lookup_reply = { .grant = 7, .found = { wire, 1 } } };

	/* too few answers, and a lost agent */
	ask(2);
	answer(0, 10, "F");
	assert_int_equal(rig.released[0], 10);
	rig.requests[1].fn(rig.requests[1].arg, DRAY_E_PEER_LOST, NULL);
	assert_int_equal(rig.answered->n_sources, 0);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
	/* an object beyond all addresses */
	ask(1);
	pmsg_store_found_put(wire, &wild);
	rig.requests[2].fn(rig.requests[2].arg, 0, &m);
	answer(3, 0, "N");
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
	/* it ends with questions and answers in flight */
	ask(1);
}

/* Bytes that come with the answer: of the objects that were found, in a row. */
static void test_bytes(void **state)
{
	const struct store_source *s;

	ask(5);
	assert_int_equal(rig.flags, PMSG_STORE_LOOKUP_FLAG_BYTES);
	answer_bytes(0, 0, "NcNaN", 4);
	answer_bytes(1, 0, "aFNbN", 103);
	assert_int_equal(rig.answered->n_sources, 2);
	s = rig.answered->sources;
	assert_int_equal(s[0].bytes[3], 3);
	assert_int_equal(rig.answered->v[1].source, 0);
	assert_int_equal(rig.answered->v[1].offset, 0);
	assert_int_equal(rig.answered->v[1].length, 3);
	assert_int_equal(rig.answered->v[3].source, 0);
	assert_int_equal(rig.answered->v[3].offset, 3);
	assert_int_equal(rig.answered->v[0].source, 1);
	assert_int_equal(rig.answered->v[0].offset, 0);
	assert_int_equal(s[1].bytes[102], 102);
	assert_int_equal(rig.answered->v[2].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
	/* they need no lease: neither a release, nor a place among those that the agent allows */
	assert_int_equal(rig.n_released, 0);
	assert_int_equal(rig.x->lenders[0].held + rig.x->lenders[1].held, 0);
	/* others have it, too */
	ask(1);
	answer(2, 20, "F");
	answer_bytes(3, 0, "F", 100);
	assert_int_equal(rig.answered->n_sources, 1);
	assert_null(rig.answered->sources[0].bytes);
	end();
}

static void test_many_keys(void **state)
{
	char found[KEYS + 1];

	ask(KEYS);
	assert_int_equal(rig.n_requests, 4);
	assert_int_equal(rig.requests[0].n + rig.requests[1].n, KEYS);
	for (unsigned r = 0; r < 2; r++) {
		memset(found, 'F', sizeof(found));
		found[rig.requests[r].n] = '\0';
		answer(r, 10 + r, found);
	}
	assert_non_null(rig.answered);
	assert_int_equal(rig.answered->n_sources, 2);
	assert_int_equal(rig.answered->v[KEYS - 1].source, 1);
	end();
}

static void refuse(unsigned r, uint32_t code)
{
	rig.requests[r].fn(rig.requests[r].arg, code, NULL);
}

/* --- the directory ----------------------------------------------------------------------------------- */

static int set_up_with_directory(void **state)
{
	make(true);
	rig.x->deps.directory = (struct directory *)&directory;
	return 0;
}

static void named(uint32_t i, const char *segment)
{
	rig.found->named(rig.found_arg, i, segment, 1000 + rig.n_named++);
}

/* Each agent is asked for the keys that the directory names it for, and only for those. */
static void test_named_agents(void **state)
{
	ask(4);
	assert_int_equal(rig.n_find, 4);
	assert_int_equal(rig.n_requests, 0);
	named(0, first);
	named(1, first);
	named(1, "10.9.9.9:2");
	named(1, third);
	/* an agent that is not in store.peers is never asked */
	named(3, "10.0.0.9:1");
	rig.found->done(rig.found_arg);
	assert_int_equal(rig.n_requests, 2);
	assert_int_equal(rig.requests[0].peer, A);
	assert_int_equal(rig.requests[0].n, 2);
	assert_int_equal(rig.requests[1].peer, B);
	assert_int_equal(rig.requests[1].n, 1);
	/* an entry that is wrong is corrected */
	answer(1, 0, "N");
	assert_int_equal(rig.n_forgotten, 1);
	assert_int_equal(rig.forgotten, 1002);
	answer(0, 10, "FF");
	assert_non_null(rig.answered);
	assert_int_equal(rig.answered->v[0].offset, 4096);
	assert_int_equal(rig.answered->v[1].offset, 2 * 4096);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[2].status, DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(rig.answered->v[3].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
	assert_int_equal(rig.n_forgotten, 1);
	assert_int_equal(rig.n_cancelled, 0);
}

/* The keys of memory must reach all that such an agent has found. */
static void test_keys_of_named_agent(void **state)
{
	ask(3);
	named(0, first);
	named(2, first);
	rig.found->done(rig.found_arg);
	answer_with(0, 10, "FF", some_keys, DRAY_ARRAY_SIZE(some_keys));
	assert_int_equal(rig.answered->v[2].offset, 2 * 4096);
	assert_int_equal(rig.answered->sources[0].keys->rails, 3);
	end();
}

/* Devices know the memory for what is read from other agents, also if the directory alone names these. */
static void test_memory_for_named_agents(void **state)
{
	static char network[] = "10.0.0.0/8", *networks[] = { network };
	static char server[] = "redis://10.0.0.4";

	rig.cfg.store.peers.n = 0;
	rig.cfg.store.directory = server;
	for (unsigned i = 0; i < 2; i++) {
		rig.x = exchange_free(rig.x);
		store_follow(rig.s.store, &(struct store_follower){ 0 });
		rig.cfg.store.directory_agents = (struct dray_strv){ networks, i };
		start((struct directory *)&directory);
		assert_int_equal(rig.s.store->follower.added != NULL, i);
	}
}

/* What the directory does not say is asked of all, and their answers correct nothing. */
static void test_unknown_keys(void **state)
{
	ask(3);
	named(0, second);
	rig.found->unknown(rig.found_arg, 2);
	rig.found->done(rig.found_arg);
	assert_int_equal(rig.n_requests, 2);
	assert_int_equal(rig.requests[0].n, 1);
	assert_int_equal(rig.requests[1].n, 2);
	answer(0, 0, "N");
	assert_int_equal(rig.n_forgotten, 0);
	answer(1, 20, "NF");
	assert_int_equal(rig.n_forgotten, 1);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(rig.answered->v[2].status, DMSG_STORE_STATUS_OK);
	end();
}

/* Nobody is named: the answer comes without a message to an agent. */
static void test_nobody_is_named(void **state)
{
	ask(2);
	rig.found->done(rig.found_arg);
	assert_int_equal(rig.n_requests, 0);
	assert_non_null(rig.answered);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
}

static void test_silent_directory(void **state)
{
	rig.silent = true;
	ask(2);
	assert_int_equal(rig.n_requests, 2);
	assert_int_equal(rig.requests[0].n, 2);
	answer(0, 0, "NN");
	answer(1, 20, "FF");
	assert_int_equal(rig.n_forgotten, 0);
	end();
}

/* The end of a question ends that to the directory, and so does the end of the agent. */
static void test_find_is_cancelled(void **state)
{
	struct store_ask *a = ask_for(2, 1, INT64_MAX);

	exchange_ask_stop(rig.x, a);
	assert_int_equal(rig.n_cancelled, 1);
	assert_ptr_equal(rig.answered, a);
	end();
	ask(2);
	rig.x = exchange_free(rig.x);
	assert_int_equal(rig.n_cancelled, 2);
}

/* An agent that is busy makes only those keys busy that it was asked for. */
static void test_named_agent_is_busy(void **state)
{
	ask(3);
	named(1, first);
	named(2, second);
	rig.found->done(rig.found_arg);
	refuse(0, DRAY_E_BUSY);
	answer(1, 20, "F");
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_BUSY);
	assert_int_equal(rig.answered->v[2].status, DMSG_STORE_STATUS_OK);
	end();
}

/* Messages to an agent have its keys alone, also where these fill several. */
static void test_many_named_keys(void **state)
{
	char found[KEYS + 1];

	ask(KEYS);
	for (uint32_t i = 0; i < KEYS; i++)
		named(i, i % 10 ? first : second);
	rig.found->done(rig.found_arg);
	assert_int_equal(rig.n_requests, 3);
	assert_int_equal(rig.requests[0].n + rig.requests[1].n, KEYS - KEYS / 10);
	assert_int_equal(rig.requests[2].n, KEYS / 10);
	for (unsigned r = 0; r < 3; r++) {
		memset(found, 'F', sizeof(found));
		found[rig.requests[r].n] = '\0';
		answer(r, 10 + r, found);
	}
	assert_non_null(rig.answered);
	for (uint32_t i = 0; i < KEYS; i++)
		assert_int_equal(rig.answered->v[i].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[10].source, 2);
	assert_int_equal(rig.answered->v[10].offset, 2 * 4096);
	assert_int_equal(rig.answered->v[11].offset, 10 * 4096);
	end();
}

/* A refusal is no miss, unless another agent has the object. */
static void test_refusals(void **state)
{
	ask(3);
	refuse(0, DRAY_E_BUSY);
	answer(1, 20, "FNN");
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_BUSY);
	end();
	ask(2);
	answer(2, 30, "FN");
	refuse(3, DRAY_E_NO_MEMORY);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_BUSY);
	end();
	ask(1);
	refuse(4, DRAY_E_DENIED);
	refuse(5, DRAY_E_DRAINING);
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
}

/* An agent that was late is not waited for; one lookup in a while shows that it is in time again. */
static void test_late_agent(void **state)
{
	struct lender *a = &rig.x->lenders[0];

	ask(1);
	ask_for(1, 1, INT64_MAX);
	refuse(0, DRAY_E_TIMEOUT);
	answer(1, 0, "N");
	end();
	assert_int_equal(a->pause_ns, 500 * DRAY_NS_PER_MS);
	/* it was on its way when the agent was late: no further pause */
	refuse(2, DRAY_E_TIMEOUT);
	answer(3, 0, "N");
	end();
	assert_int_equal(a->pause_ns, 500 * DRAY_NS_PER_MS);
	/* the next question tests it with what it answers at once, and does not wait for that */
	ask(KEYS);
	assert_int_equal(rig.n_requests, 7);
	assert_int_equal(rig.requests[4].peer, A);
	assert_true(rig.requests[4].test);
	assert_int_equal(rig.requests[4].n, 1);
	assert_int_equal(rig.requests[5].peer, B);
	refuse(5, DRAY_E_TIMEOUT);
	refuse(6, DRAY_E_PEER_LOST);
	assert_non_null(rig.answered);
	end();
	/* the test is late, too; then both are away, and nothing is waited for */
	refuse(4, DRAY_E_TIMEOUT);
	assert_int_equal(a->pause_ns, DRAY_NS_PER_SEC);
	assert_true(a->next_ns > dray_now().ns);
	ask(1);
	assert_non_null(rig.answered);
	end();
	assert_int_equal(rig.n_requests, 8);
	assert_int_equal(rig.requests[7].peer, B);
	a->next_ns = 0;
	ask(1);
	end();
	assert_int_equal(rig.n_requests, 9);
	assert_int_equal(rig.requests[8].peer, A);
	/* it is asked again; the next pause is shorter only after an answer of its store */
	refuse(8, DRAY_E_DENIED);
	assert_int_equal(a->pause_ns, DRAY_NS_PER_SEC);
	ask(1);
	assert_null(rig.answered);
	assert_false(rig.requests[9].test);
	answer(9, 60, "F");
	assert_non_null(rig.answered);
	end();
	assert_int_equal(a->pause_ns, 0);
}

/* Some lookups take long, because their objects do. The agent is away only until it answers the next question's test. */
static void test_slow_lookups(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		unsigned r = rig.n_requests;

		ask(1);
		refuse(r, DRAY_E_TIMEOUT);
		answer(r + 1, 0, "N");
		end();
		ask(1);
		assert_int_equal(rig.requests[r + 2].peer, A);
		assert_true(rig.requests[r + 2].test);
		answer(r + 3, 0, "N");
		end();
		refuse(r + 2, DRAY_E_DENIED);
		ask_for(1, 2, INT64_MAX);
		assert_int_equal(rig.requests[r + 4].peer, A);
		assert_false(rig.requests[r + 4].test);
		answer(r + 4, 10, "F");
		end();
		answer(r + 5, 0, "N");
	}
}

/* Bytes of the key did not come from there. */
static void test_avoided_agent(void **state)
{
	struct store_ask *a;

	ask(2);
	a = ask_for(2, 1, INT64_MAX);
	a->v[0].avoid = A;
	answer(2, 10, "FF");
	assert_null(rig.answered);
	answer(3, 20, "FN");
	assert_ptr_equal(rig.answered, a);
	assert_int_equal(a->sources[a->v[0].source].view.peer, B);
	assert_int_equal(a->sources[a->v[1].source].view.peer, A);
	end();
	/* nobody else has it */
	a = ask_for(1, 1, INT64_MAX);
	a->v[0].avoid = B;
	answer(5, 30, "F");
	assert_int_equal(rig.n_released, 3);
	assert_int_equal(rig.released[2], 30);
	answer(4, 0, "N");
	assert_int_equal(a->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
}

/* An agent that does not read its messages may have the object: it is busy, unless another agent has it. */
static void test_clogged_agent(void **state)
{
	struct store_ask *a;

	rig.clogged = B;
	ask(2);
	assert_int_equal(rig.n_requests, 1);
	answer(0, 10, "FN");
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_OK);
	assert_int_equal(rig.answered->v[1].status, DMSG_STORE_STATUS_BUSY);
	end();
	assert_int_equal(rig.x->lenders[1].held, 0);
	/* it was silent while one of them was read, too */
	a = ask_new(2, 1, INT64_MAX);
	a->again = true;
	a->v[0].silent = B;
	exchange_ask(rig.x, a);
	answer(1, 0, "NN");
	assert_int_equal(a->v[0].status, DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(a->v[1].status, DMSG_STORE_STATUS_BUSY);
	end();
}

/*
 * What an agent had a moment ago, and was too slow with, is busy. It is gone with the agent, if all say that, or if the agent was
 * silent while it was read and does not answer now.
 */
static void test_asked_again(void **state)
{
	static const struct {
		uint32_t a; /* how the lookup at A ends; 0: A has it */
		bool slow;
		dray_handle silent; /* this agent, while it was read */
		enum dmsg_store_status then;
	} cases[] = {
		{ 0, true, 0, DMSG_STORE_STATUS_BUSY },
		{ 0, true, A, DMSG_STORE_STATUS_BUSY },
		{ 0, false, 0, DMSG_STORE_STATUS_NOT_FOUND },
		{ DRAY_E_PEER_LOST, true, 0, DMSG_STORE_STATUS_NOT_FOUND },
		{ DRAY_E_BUSY, true, A, DMSG_STORE_STATUS_BUSY },
		{ DRAY_E_TIMEOUT, true, A, DMSG_STORE_STATUS_NOT_FOUND },
		/* it is away now */
		{ DRAY_E_TIMEOUT, true, A, DMSG_STORE_STATUS_NOT_FOUND },
		{ DRAY_E_TIMEOUT, true, B, DMSG_STORE_STATUS_BUSY },
		{ DRAY_E_TIMEOUT, true, 0, DMSG_STORE_STATUS_BUSY },
		{ DRAY_E_TIMEOUT, false, 0, DMSG_STORE_STATUS_BUSY },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		struct store_ask *k = ask_new(1, 1, INT64_MAX);
		unsigned at = rig.n_requests;

		k->again = true;
		k->v[0].avoid = A;
		k->v[0].slow = cases[i].slow;
		k->v[0].silent = cases[i].silent;
		exchange_ask(rig.x, k);
		/* an agent that is away is not always tested */
		if (rig.n_requests == at + 1)
			assert_int_equal(rig.requests[at].peer, B);
		else if (cases[i].a)
			rig.requests[at].fn(rig.requests[at].arg, cases[i].a, NULL);
		else
			answer(at, 10, "F");
		answer(rig.n_requests - 1, 0, "N");
		assert_int_equal(rig.answered->v[0].status, cases[i].then);
		end();
	}
}

/* A GET that ends before the answer gives its places back at once, and the leases when they come. */
static void test_stopped(void **state)
{
	struct store_ask *waits, *asks[32];

	for (unsigned i = 0; i < 32; i++)
		asks[i] = ask_for(1, 1, INT64_MAX);
	waits = ask_for(1, 1, INT64_MAX);
	ask_for(1, 1, INT64_MAX);
	assert_int_equal(rig.n_requests, 2 * 32);
	exchange_ask_stop(rig.x, waits);
	assert_ptr_equal(rig.answered, waits);
	end();
	assert_int_equal(rig.n_requests, 2 * 32);
	exchange_ask_stop(rig.x, asks[0]);
	assert_ptr_equal(rig.answered, asks[0]);
	/* its answer is on its way to the worker */
	exchange_ask_stop(rig.x, asks[0]);
	answer(0, 77, "F");
	answer(1, 0, "N");
	assert_int_equal(rig.n_released, 1);
	assert_int_equal(rig.released[0], 77);
	assert_int_equal(rig.n_requests, 2 * 32);
	end();
	/* the next one has its place */
	assert_int_equal(rig.n_requests, 2 * 33);
}

/* What is not read is not leased any more, while the rest is. */
static void test_source_ends(void **state)
{
	ask(2);
	answer(0, 10, "FN");
	answer(1, 20, "NF");
	assert_int_equal(rig.answered->n_sources, 2);
	exchange_source_end(rig.x, rig.answered, 1);
	assert_int_equal(rig.n_released, 1);
	assert_int_equal(rig.released[0], 20);
	assert_int_equal(rig.x->lenders[1].held, 0);
	end();
	assert_int_equal(rig.n_released, 2);
	assert_int_equal(rig.released[1], 10);
	assert_int_equal(rig.x->lenders[0].held, 0);
}

static struct store_ask *look_for(uint32_t lease_ms)
{
	struct store_ask *a = ask_new(1, 1, INT64_MAX);

	a->lease_ms = lease_ms;
	exchange_ask(rig.x, a);
	return a;
}

/* Too few, too many, none, of EXISTS, and with a lease. */
static void test_bytes_that_are_wrong(void **state)
{
	ask(2);
	answer_bytes(0, 0, "Fb", 101);
	answer_bytes(1, 0, "Fb", 103);
	assert_int_equal(rig.answered->n_sources, 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(rig.answered->v[i].status, DMSG_STORE_STATUS_NOT_FOUND);
	end();
	ask(2);
	answer_bytes(2, 0, "NN", 1);
	answer_bytes(3, 30, "Fb", 102);
	assert_int_equal(rig.answered->n_sources, 1);
	assert_non_null(rig.answered->sources[0].bytes);
	assert_int_equal(rig.n_released, 1);
	assert_int_equal(rig.released[0], 30);
	end();
	assert_int_equal(rig.n_released, 1);
	look_for(1000);
	assert_int_equal(rig.flags, PMSG_STORE_LOOKUP_FLAG_HOLD);
	answer_bytes(4, 0, "F", 100);
	answer_bytes(5, 40, "F", 100);
	assert_int_equal(rig.answered->n_sources, 0);
	assert_int_equal(rig.n_released, 2);
	end();
}

/* EXISTS of an owner leave lookups for its GETs. Their leases end with their time. */
static void test_exists(void **state)
{
	struct store_ask *over, *asks[16];

	for (unsigned i = 0; i < 16; i++)
		asks[i] = look_for(1234);
	assert_int_equal(rig.lease_ms, 1234);
	assert_int_equal(rig.flags, PMSG_STORE_LOOKUP_FLAG_HOLD);
	assert_int_equal(rig.n_requests, 2 * 16);
	over = look_for(5);
	assert_ptr_equal(rig.answered, over);
	assert_int_equal(over->v[0].status, DMSG_STORE_STATUS_BUSY);
	end();
	ask(1);
	assert_int_equal(rig.n_requests, 2 * 17);
	assert_int_equal(rig.lease_ms, 10000);
	assert_int_equal(rig.flags, PMSG_STORE_LOOKUP_FLAG_BYTES);
	answer(0, 10, "F");
	assert_ptr_equal(rig.answered, asks[0]);
	rig.answered = NULL;
	/* it counts as long as it is kept */
	over = look_for(5);
	assert_ptr_equal(rig.answered, over);
	end();
	while (!rig.lapsed)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_int_equal(rig.lapsed, asks[0]->number);
	exchange_ask_end(rig.x, asks[0]);
	assert_int_equal(rig.n_released, 1);
	look_for(5);
	assert_null(rig.answered);
	assert_int_equal(rig.n_requests, 2 * 18);
}

/* What an EXISTS has found already is neither asked for nor given back. */
static void test_taken_over(void **state)
{
	struct store_ask *a = ask_new(2, 1, INT64_MAX);

	a->n_asked = 1;
	a->sources = calloc(1, sizeof(a->sources[0]));
	a->sources[0].view.grant = 5;
	a->n_sources = 1;
	a->v[1].status = DMSG_STORE_STATUS_OK;
	exchange_ask(rig.x, a);
	assert_int_equal(rig.requests[0].n, 1);
	answer(0, 10, "F");
	assert_ptr_equal(rig.answered, a);
	assert_int_equal(a->n_sources, 2);
	assert_int_equal(a->v[0].source, 1);
	assert_int_equal(a->v[1].source, 0);
	end();
	assert_int_equal(rig.n_released, 1);
	assert_int_equal(rig.released[0], 10);
}

/* A GET of another session of the owner reads what an EXISTS has leased; the lease ends with the last of both. */
static void test_shared_lease(void **state)
{
	static const uint8_t other[100] = { 1 };
	struct store_ask *a = look_for(10000), *g;

	answer(0, 10, "F");
	assert_ptr_equal(rig.answered, a);
	for (unsigned i = 0; i < 2; i++) {
		rig.answered = NULL;
		g = ask_for(1, 1, INT64_MAX);
		assert_ptr_equal(rig.answered, g);
		assert_int_equal(g->v[0].status, DMSG_STORE_STATUS_OK);
		assert_int_equal(g->v[0].offset, 4096);
		assert_int_equal(g->v[0].length, 100);
		assert_int_equal(g->n_sources, 1);
		assert_int_equal(g->sources[0].view.grant, 10);
		assert_int_equal(g->sources[0].view.peer, A);
		assert_int_equal(rig.n_requests, 2);
		/* the GET first, then the EXISTS first */
		if (!i)
			end();
	}
	assert_int_equal(rig.n_released, 0);
	/* not all of it is leased; and another owner */
	rig.answered = NULL;
	for (unsigned i = 0; i < 2; i++) {
		struct store_ask *more = ask_new(2 - i, 1 + i, INT64_MAX);

		if (!i)
			more->v[1].key = other;
		exchange_ask(rig.x, more);
		assert_null(rig.answered);
		assert_int_equal(rig.n_requests, 2 * (2 + i));
	}
	exchange_ask_end(rig.x, a);
	assert_int_equal(rig.n_released, 0);
	assert_int_equal(rig.x->lenders[0].held, 3);
	exchange_ask_end(rig.x, g);
	assert_int_equal(rig.n_released, 1);
	assert_int_equal(rig.released[0], 10);
	assert_int_equal(rig.x->lenders[0].held, 2);
	ask(1);
	assert_null(rig.answered);
	assert_int_equal(rig.n_requests, 8);
}

static void test_shared_key_of_many_items(void **state)
{
	struct store_ask *a = ask_new(KEYS, 1, INT64_MAX);

	for (unsigned i = 1; i < KEYS; i++)
		a->v[i].key = a->v[0].key;
	a->lease_ms = 10000;
	exchange_ask(rig.x, a);
	for (unsigned r = 0; r < 2; r++) {
		char found[KEYS + 1];

		memset(found, 'F', sizeof(found));
		found[rig.requests[r].n] = '\0';
		answer(r, 10 + r, found);
	}
	assert_ptr_equal(rig.answered, a);
	assert_int_equal(rig.x->kept.n, 1);
	end();
	assert_int_equal(rig.x->kept.n, 0);
}

/* A source that its session does not need any more is not shared; the end of the agent frees what is. */
static void test_shared_lease_ends(void **state)
{
	struct store_ask *a = look_for(10000);

	answer(0, 10, "F");
	assert_ptr_equal(rig.answered, a);
	rig.answered = NULL;
	ask(1);
	assert_non_null(rig.answered);
	exchange_source_end(rig.x, a, 0);
	rig.answered = NULL;
	ask(1);
	assert_null(rig.answered);
	assert_int_equal(rig.n_released, 0);
}

/* One agent has all, and another one is behind with its answers: of these lookups an owner has its share, too. */
static void test_lookups_in_vain(void **state)
{
	for (unsigned i = 0; i < 32; i++) {
		ask(1);
		answer(2 * i, 10, "F");
		end();
		rig.n_released = 0;
	}
	assert_int_equal(rig.n_requests, 2 * 32);
	ask(1);
	assert_int_equal(rig.n_requests, 2 * 32 + 1);
	assert_int_equal(rig.requests[64].peer, A);
	answer(64, 0, "N");
	assert_int_equal(rig.answered->v[0].status, DMSG_STORE_STATUS_BUSY);
	end();
	/* another owner has a share of its own */
	ask_for(1, 2, INT64_MAX);
	assert_int_equal(rig.n_requests, 2 * 32 + 3);
	answer(65, 0, "N");
	answer(66, 0, "N");
	end();
	for (unsigned i = 0; i < 32; i++)
		answer(2 * i + 1, 0, "N");
	assert_int_equal(rig.x->lenders[1].held, 0);
	ask(1);
	assert_int_equal(rig.n_requests, 2 * 32 + 5);
	/* a lease counts until it is given back */
	answer(68, 20, "F");
	assert_int_equal(rig.x->lenders[1].held, 1);
	end();
	assert_int_equal(rig.x->lenders[1].held, 0);
	assert_int_equal(rig.x->lenders[0].held, 1);
}

/* One owner has half of the lookups that an agent allows; its further questions wait, and then are busy. */
static void test_shares(void **state)
{
	struct store_ask *over;

	for (unsigned i = 0; i < 32 + 64; i++)
		ask_for(1, 1, INT64_MAX);
	assert_int_equal(rig.n_requests, 2 * 32);
	over = ask_for(1, 1, INT64_MAX);
	assert_ptr_equal(rig.answered, over);
	assert_int_equal(over->v[0].status, DMSG_STORE_STATUS_BUSY);
	end();
	/* another owner does not wait */
	ask_for(1, 2, INT64_MAX);
	assert_int_equal(rig.n_requests, 2 * 33);
	answer(64, 10, "F");
	/* a lease counts until its end, which lets one question of the first go on as soon as its share allows it */
	end();
	assert_int_equal(rig.n_requests, 2 * 33);
	answer(0, 20, "F");
	answer(1, 0, "N");
	assert_int_equal(rig.n_requests, 2 * 33);
	end();
	assert_int_equal(rig.n_requests, 2 * 34);
	answer(2, 0, "N");
	answer(3, 0, "N");
	end();
	assert_int_equal(rig.n_requests, 2 * 35);
}

/* The deadline of a GET ends its question, also one that waits. */
static void test_deadline(void **state)
{
	ask_for(1, 1, 1);
	while (!rig.answered)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_true(rig.answered->late);
	answer(0, 10, "F");
	assert_int_equal(rig.n_released, 1);
	end();
	for (unsigned i = 0; i < 32; i++)
		ask_for(1, 1, INT64_MAX);
	ask_for(1, 1, 1);
	while (!rig.answered)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_true(rig.answered->late);
	end();
}

/* Two objects came: the second is damaged, and the GET of a third one has ended meanwhile. */
static void arrive(bool keep)
{
	static const struct store_key keys[] = { { (const uint8_t *)"a", 1 },
						 { (const uint8_t *)"b", 1 },
						 { (const uint8_t *)"c", 1 } };
	struct store_arrivals *a = store_arrivals_new(rig.s.store, 3);
	struct store_get gets[3] = { 0 };
	struct dmsg_store_result r[3];
	uint8_t *base = store_region(rig.s.store)->extents[0].base;
	uint64_t at[3], left = 4000;

	for (unsigned i = 0; i < 3; i++) {
		struct store_object *o;

		assert_int_equal(rig_copy_begin(rig.member, keys[i], 5000, 3, &o), 0);
		at[i] = store_object_offset(o);
		memset(base + at[i], 'x', 5000);
		store_arrivals_add(a, o, 7, 7 + (i == 1), &gets[i]);
	}
	assert_false(store_arrivals_clear(a, &left));
	assert_int_equal(left, 0);
	assert_int_equal(base[at[1] + 3999], 0);
	assert_int_equal(base[at[1] + 4000], 'x');
	left = 4000;
	assert_true(store_arrivals_clear(a, &left));
	assert_int_equal(left, 3000);
	store_arrive(a);
	assert_int_equal(store_get_end(&gets[2]), DMSG_STORE_STATUS_OK);
	assert_int_equal(base[at[0]], 'x');
	assert_int_equal(base[at[1]], 0);
	assert_int_equal(base[at[1] + 4999], 0);
	assert_int_equal(store_get_end(&gets[0]), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_get_end(&gets[1]), DMSG_STORE_STATUS_CORRUPT);
	store_exists(rig.member, keys, 3, r);
	assert_int_equal(r[0].status, keep ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(r[1].status, DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(r[2].status, r[0].status);
	/* another agent has the copy: no drain waits for the disk to take it */
	assert_int_equal(store_totals(rig.s.store).unsaved_objects, 0);
	store_arrive(store_arrivals_new(rig.s.store, 1));
}

/* Copies stay what they are for other GETs; a PUT or a PIN makes them objects of this agent. */
static void test_arrivals_stay(void **state)
{
	static const struct store_key first_key = { (const uint8_t *)"a", 1 },
				      third_key = { (const uint8_t *)"c", 1 };
	struct dmsg_store_result r;
	struct store_object *o;

	arrive(true);
	assert_int_equal(rig_copy_begin(rig.member, first_key, 5000, 3, &o),
			 DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(store_totals(rig.s.store).unsaved_objects, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(rig_put_begin(rig.member, first_key, 5000, 3, &o),
				 DMSG_STORE_STATUS_EXISTS);
		assert_int_equal(store_totals(rig.s.store).unsaved_objects, 1);
	}
	store_pin(rig.s.user, rig.member, &third_key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
	assert_int_equal(store_totals(rig.s.store).unsaved_objects, 2);
	assert_int_equal(store_totals(rig.s.store).unsaved_bytes, 10000);
	store_remove(rig.member, &third_key, 1, &r);
	assert_int_equal(store_totals(rig.s.store).unsaved_objects, 1);
}

static void test_arrivals_end(void **state)
{
	arrive(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_first_answer_counts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_agents_for_workers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fence, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fence_before_the_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_leases_in_vain, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_answers_that_are_wrong, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_bytes_that_are_wrong, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_keys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_late_agent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slow_lookups, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_avoided_agent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_clogged_agent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_asked_again, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_stopped, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_source_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_exists, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_taken_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_shared_lease, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_shared_key_of_many_items, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_shared_lease_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lookups_in_vain, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_shares, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_named_agents, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_keys_of_named_agent, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_memory_for_named_agents, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unknown_keys, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_nobody_is_named, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_silent_directory, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_find_is_cancelled, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_named_agent_is_busy, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_many_named_keys, set_up_with_directory,
						tear_down),
		cmocka_unit_test_setup_teardown(test_arrivals_stay, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_arrivals_end, set_up_without_copies,
						tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
