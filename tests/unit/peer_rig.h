/* SPDX-License-Identifier: Apache-2.0 */
/* Several agents' peer modules in one process, on one event loop, over real sockets and real TLS. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "agent/model/ranges.h"
#include "tests/unit/peer_fake.h"

/* --- running -------------------------------------------------------------------------------------- */

static inline struct rig *rig_started(struct rig *rig)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (rig_try_start(rig, &err) < 0)
		fail_msg("%s", err.msg);
	return rig;
}

static inline struct rig *rig_start(sd_event *event, uint8_t n, uint64_t incarnation)
{
	return rig_started(rig_new(event, n, incarnation));
}

/* Gives an agent that is not started short limits. */
static inline struct rig *rig_prompt(struct rig *rig)
{
	rig->cfg.peer.heartbeat_limit = 200 * MS;
	rig->cfg.peer.connect_timeout = 1000 * MS;
	rig->cfg.peer.fence_timeout = 150 * MS;
	rig->cfg.transfer.slice_timeout = 300 * MS;
	return rig;
}

static inline struct rig *rig_start_prompt(sd_event *event, uint8_t n, uint64_t incarnation)
{
	return rig_started(rig_prompt(rig_new(event, n, incarnation)));
}

static inline int64_t rig_now(void)
{
	return dray_now().ns;
}

static inline void rig_turn(sd_event *event)
{
	assert_true(sd_event_run(event, 5000) >= 0);
}

/*
 * Limits in ms for an event that must come, even on a machine that pauses: for the loop, and for an
 * import.
 */
#define RIG_LIMIT 30000
/* The client that imports. */
static const struct peer_client rig_client = { "tenant=default uid=1000" };
#define RIG_DEADLINE 20000

#define rig_until_at_most(event, ms, cond)                     \
	({                                                     \
		int64_t end_ = rig_now() + (ms)*MS;            \
		bool holds_;                                   \
		while (!(holds_ = (cond)) && rig_now() < end_) \
			rig_turn(event);                       \
		holds_;                                        \
	})

/* Runs the loop until cond holds. */
#define rig_until(event, cond) rig_until_at_most(event, RIG_LIMIT, cond)
#define rig_for(event, ms) ((void)rig_until_at_most(event, ms, false))

/*
 * A machine that pauses delays everything. So a test with an upper bound on time gets several
 * tries, and fails only if the bound is missed in all of them.
 */
static bool rig_late;

#define rig_in_time(cond) ((void)(rig_late |= !(cond)))

static inline void rig_try(void **state)
{
	CMUnitTestFunction body = (CMUnitTestFunction)*state;

	rig_late = true;
	for (unsigned k = 0; k < 5 && rig_late; k++) {
		rig_late = false;
		*state = NULL;
		body(state);
	}
	assert_false(rig_late);
}

#define rig_timed_test(f)                                                      \
	{                                                                      \
		.name = #f, .test_func = rig_try, .initial_state = (void *)(f) \
	}

/* --- imports -------------------------------------------------------------------------------------- */

struct rig_import {
	unsigned done;
	struct dray_err err;
	dray_handle peer;
	uint64_t grant, length, id;
	uint16_t access;
	unsigned n_keys;
	int64_t at_ns;
	/* of a lease */
	uint32_t n_ranges, expiry_ms;
};

static inline void rig_imported(void *arg, const struct dray_err *err, dray_handle peer,
				const struct pmsg_import_reply *reply,
				const struct peer_lease *lease)
{
	struct rig_import *i = arg;

	i->done++;
	i->err = *err;
	i->peer = peer;
	if (reply) {
		i->grant = reply->grant;
		i->length = reply->length;
		i->access = reply->access;
		i->n_keys = reply->rails.n;
	}
	if (lease) {
		i->n_ranges = lease->ranges->n;
		i->expiry_ms = lease->expiry_ms;
	}
	i->at_ns = rig_now();
}

static inline struct pmsg_token rig_token(const struct rig *owner)
{
	struct pmsg_token t = { .version = 1,
				.incarnation = owner->incarnation,
				.token_id = TOKEN_GOOD,
				.region = 3,
				.length = 4096 };

	memcpy(t.agent_id, owner->agent_id, sizeof(t.agent_id));
	return t;
}

static inline int rig_use_token(struct rig *rig, const struct pmsg_token *t, bool is_lease,
				const char *segment, int ms, struct rig_import *i)
{
	int r;

	memset(i, 0, sizeof(*i));
	r = peer_import(rig->peers, t, is_lease, segment, &rig_client, ms * MS, rig_imported, i,
			&i->id, &i->err);
	assert_int_equal(i->done, 0);
	return r;
}

static inline int rig_import_token(struct rig *rig, const struct pmsg_token *t, const char *segment,
				   int ms, struct rig_import *i)
{
	return rig_use_token(rig, t, false, segment, ms, i);
}

static inline void rig_start_import(struct rig *rig, struct rig *owner, struct rig_import *i)
{
	struct pmsg_token t = rig_token(owner);

	if (rig_import_token(rig, &t, peers_segment(owner->peers), RIG_DEADLINE, i) < 0)
		fail_msg("%s", i->err.msg);
}

/* Imports a token, and waits until that succeeds. */
static inline void rig_connect(struct rig *rig, struct rig *owner, struct rig_import *i)
{
	rig_start_import(rig, owner, i);
	assert_true(rig_until(rig->event, i->done));
	if (i->err.code)
		fail_msg("import: %s: %s", dray_error_name((uint32_t)i->err.code), i->err.msg);
	assert_int_equal(i->done, 1);
}

static inline uint32_t rig_ready(struct rig *rig)
{
	struct peers_totals t = peers_totals(rig->peers);

	return t.states[PEER_STATE_READY] + t.states[PEER_STATE_DRAINING];
}

static inline uint32_t rig_count(struct rig *rig)
{
	return peers_totals(rig->peers).peers;
}

/* --- a peer whose messages the test chooses ------------------------------------------------------- */

struct puppet {
	struct tls *tls;
	struct conn *conn;
	bool secured, failed;
	struct dray_err why;
	uint16_t types[64]; /* types of the messages received */
	uint64_t ids[64];
	unsigned n;
	struct pmsg_hello hello;
	uint32_t error; /* code of the last one */
	uint32_t bye;
};

static inline void puppet_secured(struct conn *c)
{
	struct puppet *p = c->owner;

	p->secured = true;
}

static inline void puppet_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct puppet *p = c->owner;
	struct pmsg_error e;
	struct pmsg_bye b;

	if (h->type == PMSG_HEARTBEAT)
		return;
	assert_true(p->n < 64);
	p->ids[p->n] = h->request_id;
	p->types[p->n++] = h->type;
	if (h->type == PMSG_HELLO)
		assert_int_equal(pmsg_hello_decode(body, h->length, &p->hello, NULL), 0);
	if (h->type == PMSG_ERROR && pmsg_error_decode(body, h->length, &e, NULL) == 0)
		p->error = e.code;
	if (h->type == PMSG_BYE && pmsg_bye_decode(body, h->length, &b, NULL) == 0)
		p->bye = b.code;
}

static inline void puppet_failed(struct conn *c, const struct dray_err *why)
{
	struct puppet *p = c->owner;

	p->failed = true;
	p->why = *why;
}

static const struct conn_ops puppet_ops = {
	.secured = puppet_secured,
	.message = puppet_message,
	.failed = puppet_failed,
};

static inline bool puppet_got(const struct puppet *p, uint16_t type)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->types[i] == type)
			return true;
	return false;
}

static inline uint64_t puppet_id_of(const struct puppet *p, uint16_t type)
{
	for (unsigned i = p->n; i-- > 0;)
		if (p->types[i] == type)
			return p->ids[i];
	return 0;
}

/* Connects by TLS to the agent, and receives its HELLO. */
static inline void puppet_dial(struct puppet *p, struct rig *to)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_addr a;

	memset(p, 0, sizeof(*p));
	assert_int_equal(tls_new(&p->tls, NULL, NULL, &err), 0);
	assert_int_equal(dray_addr_parse(peers_segment(to->peers), &a), 0);
	assert_int_equal(conn_dial(&p->conn, to->event, p->tls, &a, &puppet_ops, p, &err), 0);
	assert_true(rig_until(to->event, puppet_got(p, PMSG_HELLO)));
}

static inline struct pmsg_hello puppet_hello(uint8_t n, uint64_t incarnation)
{
	struct pmsg_hello h = { .major_min = 1,
				.major_max = 1,
				.heartbeat_ms = 50,
				.features = PMSG_FEATURE_TCP,
				.incarnation = incarnation,
				.segment = { "127.0.0.1:9", 11 },
				.version = { "test", 4 } };

	h.agent_id[15] = n;
	return h;
}

static inline void puppet_say_hello(struct puppet *p, uint8_t n, uint64_t incarnation)
{
	struct pmsg_hello h = puppet_hello(n, incarnation);
	uint8_t buf[512];

	conn_send(p->conn, buf, (size_t)pmsg_hello_encode(buf, sizeof(buf), 0, &h));
}

#define puppet_say(p, type, id, ...)                                                  \
	do {                                                                          \
		uint8_t buf_[8192];                                                   \
		struct pmsg_##type m_ = __VA_ARGS__;                                  \
		conn_send((p)->conn, buf_,                                            \
			  (size_t)pmsg_##type##_encode(buf_, sizeof(buf_), id, &m_)); \
	} while (0)

/* Connects, and becomes a peer of the agent. */
static inline void puppet_join(struct puppet *p, struct rig *to, uint8_t n, uint64_t incarnation)
{
	puppet_dial(p, to);
	puppet_say_hello(p, n, incarnation);
	assert_true(rig_until(to->event, puppet_got(p, PMSG_READY)));
}

static inline void puppet_end(struct puppet *p)
{
	conn_free(p->conn);
	tls_free(p->tls);
	memset(p, 0, sizeof(*p));
}
