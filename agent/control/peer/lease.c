/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases between agents.
 *
 * The owner answers ACQUIRE for many leases at once: for each it sends LEASE_RANGES and LEASE_GRANTED, and at the end ACQUIRE_REPLY with the
 * codes. It sends the same LEASE_GRANTED unasked for a lease that its client grants at once. So at the importer both arrive as an offer.
 * An ACQUIRE that was sent before such a LEASE_GRANTED arrived is answered with that grant.
 * An acquisition takes the offer of its token. Without one it joins the next ACQUIRE, which is sent once in a turn of the loop. A peer has at
 * most ACQUIRES_MAX to answer, so that one that answers none costs bounded memory: acquisitions beyond them wait, and expire, unsent.
 *
 * An offer is a grant that no remote uses: a fence of it is acknowledged here.
 */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"

/* Leases in one ACQUIRE, and ranges in one LEASE_RANGES; within the limits of the protocol. */
#define ACQUIRE_MAX 512
#define RANGES_MAX 1000
/* ACQUIREs that a peer has not answered. */
#define ACQUIRES_MAX 16

/* An acquisition that is answered so often with a grant that is gone fails: this agent may have declined them all. */
#define TRIES 4

#define CAPABILITY_BYTES 16

struct offer {
	struct dray_map_node by_token, by_grant;
	uint64_t token_id;
	struct pmsg_import_reply reply; /* rails: owned */
	uint8_t capability[CAPABILITY_BYTES];
	int64_t expiry_ns;
	struct ranges *ranges;
};

/* The imports of a pending ACQUIRE. Those that have ended meanwhile are not found by their ids. */
struct acquisition {
	uint32_t n;
	dray_handle imports[];
};

/* --- the importer --- */

void offers_init(struct lease_offers *o)
{
	*o = (struct lease_offers){ 0 };
	dray_map_init(&o->by_token);
	dray_map_init(&o->by_grant);
}

/* For an offer that is not kept. NULL is allowed. */
static void offer_free(struct offer *x)
{
	if (!x)
		return;
	ranges_unref(x->ranges);
	free((void *)(uintptr_t)x->reply.rails.p);
	free(x);
}

static void offer_remove(struct lease_offers *o, struct offer *x)
{
	dray_map_del(&o->by_token, &x->by_token);
	dray_map_del(&o->by_grant, &x->by_grant);
	o->ranges -= x->ranges->n;
}

/* Forgets the offer; the grant is left to the caller. */
static void offer_forget(struct lease_offers *o, struct offer *x)
{
	offer_remove(o, x);
	offer_free(x);
}

void offers_free(struct lease_offers *o)
{
	dray_map_for_each(&o->by_token, x, struct offer, by_token)
		offer_forget(o, x);
	dray_map_deinit(&o->by_token);
	dray_map_deinit(&o->by_grant);
	free(o->wire);
	offers_init(o);
}

static struct offer *offer_of_grant(struct peer *peer, uint64_t grant)
{
	return dray_map_entry(dray_map_find(&peer->offers.by_grant, &grant, sizeof(grant)),
			      struct offer, by_grant);
}

/* The offer for this token; grant: only this one, 0: any. */
static struct offer *offer_find(struct peer *peer, const struct pmsg_token *token, uint64_t grant)
{
	dray_map_for_each_of(&peer->offers.by_token, &token->token_id, sizeof(token->token_id), x,
			     struct offer, by_token)
		if ((!grant || x->reply.grant == grant) &&
		    !CRYPTO_memcmp(x->capability, token->capability, CAPABILITY_BYTES))
			return x;
	return NULL;
}

static void decline(struct peer *peer, uint64_t grant)
{
	peer_release(peer->p, peer->handle, grant, PMSG_RELEASE_HOW_DECLINED);
}

void offers_decline(struct peer *peer)
{
	dray_map_for_each(&peer->offers.by_token, x, struct offer, by_token) {
		uint64_t grant = x->reply.grant;

		offer_forget(&peer->offers, x);
		decline(peer, grant);
	}
}

/* Copies the rails of an offer, which are replaced. */
static int set_rails(struct offer *x, const struct dray_vec *rails)
{
	size_t bytes = (size_t)rails->n * PMSG_RAIL_SIZE;
	uint8_t *p = malloc(bytes + 1);

	if (!p)
		return -ENOMEM;
	if (bytes)
		memcpy(p, rails->p, bytes);
	free((void *)(uintptr_t)x->reply.rails.p);
	x->reply.rails = (struct dray_vec){ p, rails->n };
	return 0;
}

bool offer_fenced(struct peer *peer, uint64_t grant)
{
	struct offer *x = offer_of_grant(peer, grant);

	if (!x)
		return false;
	offer_forget(&peer->offers, x);
	idset_del(&peer->grants, grant);
	return true;
}

bool offer_keys(struct peer *peer, const struct pmsg_keys *m)
{
	struct offer *x = offer_of_grant(peer, m->grant);

	if (!x)
		return false;
	/* without memory, the former keys must not be used */
	if (set_rails(x, &m->rails) < 0)
		x->reply.rails.n = 0;
	return true;
}

void lease_handle_ranges(struct peer *peer, const struct pmsg_lease_ranges *m)
{
	struct lease_offers *o = &peer->offers;
	uint8_t *wire;

	if (!m->ranges.n || (o->n && o->grant != m->grant) ||
	    m->ranges.n > DMSG_LEASE_RANGES_MAX - o->n) {
		peer_protocol_error(peer,
				    dray_err_of(DRAY_E_PROTOCOL,
						"ranges of grant %" PRIx64
						" that are too many, or not followed by the grant",
						m->grant));
		return;
	}
	wire = realloc(o->wire, (size_t)(o->n + m->ranges.n) * PMSG_RANGE_SIZE);
	if (!wire) {
		conn_fail(peer->conn,
			  dray_err_of(DRAY_E_NO_MEMORY, "no memory for a lease of the peer"));
		return;
	}
	memcpy(wire + (size_t)o->n * PMSG_RANGE_SIZE, m->ranges.p,
	       (size_t)m->ranges.n * PMSG_RANGE_SIZE);
	o->wire = wire;
	o->grant = m->grant;
	o->n += m->ranges.n;
}

/* The offer of a LEASE_GRANTED. NULL with reterr. */
static struct offer *offer_new(struct peer *peer, const struct pmsg_lease_granted *m,
			       struct dray_err *reterr)
{
	struct lease_offers *o = &peer->offers;
	struct offer *x = calloc(1, sizeof(*x));
	int ret = x ? set_rails(x, &m->rails) : -ENOMEM;

	if (ret < 0)
		dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "no memory for a lease of the peer");
	else if (!m->grant || !o->n || o->grant != m->grant || o->n != m->ranges)
		ret = dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				   "the ranges of lease %" PRIx64 " did not precede it", m->grant);
	else
		ret = ranges_new(&x->ranges, o->wire, o->n, m->length, reterr);
	/* the owner has checked them */
	if (ret < 0 && reterr->code != DRAY_E_NO_MEMORY)
		reterr->code = DRAY_E_PROTOCOL;
	if (ret < 0) {
		offer_free(x);
		return NULL;
	}
	x->token_id = m->token_id;
	x->reply.grant = m->grant;
	x->reply.length = m->length;
	x->reply.access = m->access;
	x->expiry_ns = peers_now(peer->p) + m->expiry_ms * DRAY_NS_PER_MS;
	memcpy(x->capability, m->capability, CAPABILITY_BYTES);
	return x;
}

void lease_handle_granted(struct peer *peer, const struct pmsg_lease_granted *m)
{
	const struct dray_config *cfg = peer->p->cfg;
	struct dray_err err = DRAY_ERR_NULL;
	struct lease_offers *o = &peer->offers;
	struct offer *x = offer_new(peer, m, &err);
	int ret = x ? idset_add(&peer->grants, m->grant) : 0;

	o->n = 0;
	if (!x || ret < 0) {
		if (ret < 0)
			err = dray_err_of(ret == -EEXIST ? DRAY_E_PROTOCOL : DRAY_E_NO_MEMORY,
					  ret == -EEXIST ? "grant %" PRIx64 " was given twice" :
							   "no memory for grant %" PRIx64,
					  m->grant);
		offer_free(x);
		peer_protocol_error(peer, err);
		return;
	}
	o->ranges += x->ranges->n;
	dray_map_add(&o->by_token, &x->by_token, &x->token_id, sizeof(x->token_id));
	dray_map_add(&o->by_grant, &x->by_grant, &x->reply.grant, sizeof(x->reply.grant));
	if (o->by_token.n > (uint64_t)cfg->limits.grants_per_peer ||
	    o->ranges > (uint64_t)cfg->limits.lease_ranges_per_session) {
		offer_forget(o, x);
		decline(peer, m->grant);
	}
}

/* The import gets the lease, and the offer ends. */
static void take(struct import *i, struct offer *x)
{
	struct peer *peer = i->peer;
	uint64_t left_ms = dray_span(x->expiry_ns - peers_now(peer->p)) / DRAY_NS_PER_MS;
	struct peer_lease lease = { x->ranges, (uint32_t)left_ms };
	struct lease_offers *o = &peer->offers;

	/* not an offer any more when the callback runs */
	offer_remove(o, x);
	import_succeed(i, &x->reply, &lease);
	offer_free(x);
}

static void result_handle(struct peer *peer, struct import *i, const struct pmsg_lease_result *r)
{
	struct offer *x = r->code ? NULL : offer_of_grant(peer, r->grant);
	int code = known_code(r->code, DRAY_E_PROTOCOL);

	if (!i && x) {
		/* the import was cancelled or timed out */
		offer_forget(&peer->offers, x);
		decline(peer, r->grant);
		return;
	}
	if (!i)
		return;
	i->asked = false;
	if (r->code)
		import_fail(i, dray_err_of(code, "%s %s", dray_error_doc((uint32_t)code),
					   dray_error_fix((uint32_t)code)));
	else if (x && offer_find(peer, &i->token, r->grant))
		take(i, x);
	else if (x)
		import_fail(i, dray_err_of(DRAY_E_PROTOCOL, "the owner granted another lease"));
	else if (i->tries++ < TRIES)
		acquire_soon(i); /* another import of the same token had taken that grant */
	else
		import_fail(
			i,
			dray_err_of(
				DRAY_E_QUOTA,
				"this agent returns the grants of the lease's owner: raise "
				"limits.lease_ranges_per_session or limits.grants_per_peer here"));
}

static void send_soon(struct peer *peer)
{
	dray_list_move(&peer->p->acquirers, &peer->acquirers_link);
	peers_wake(peer->p);
}

static void acquire_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
			 const union pmsg_body *m)
{
	struct acquisition *a dray_auto_free = r->acquisition;
	struct peers *p = peer->p;

	peer->n_acquires--;
	if (err->code && peer->fsm.state == PEER_STATE_CLOSED)
		return; /* imports_end() follows */
	if (!dray_list_empty(&peer->unsent))
		send_soon(peer);
	if (!err->code && m->acquire_reply.results.n != a->n) {
		peer_protocol_error(peer,
				    dray_err_of(DRAY_E_PROTOCOL,
						"ACQUIRE for %" PRIu32
						" leases was answered with %" PRIu32 " results",
						a->n, m->acquire_reply.results.n));
		return;
	}
	for (uint32_t k = 0; k < a->n; k++) {
		struct import *i = dray_handles_get(&p->imports, a->imports[k]);
		struct pmsg_lease_result result;

		if (i && i->peer != peer)
			i = NULL;
		if (err->code) {
			if (i)
				import_fail(i, *err);
			continue;
		}
		pmsg_lease_result_get(
			m->acquire_reply.results.p + (size_t)k * PMSG_LEASE_RESULT_SIZE, &result);
		result_handle(peer, i, &result);
	}
}

static const struct request_kind acquire_kind = {
	.type = PMSG_ACQUIRE,
	.done = acquire_done,
};

void acquire_soon(struct import *i)
{
	if (dray_list_empty(&i->unsent))
		dray_list_add(&i->peer->unsent, &i->unsent);
	send_soon(i->peer);
}

static bool can_ask(struct import *i)
{
	if (i->peer->features & PMSG_FEATURE_LEASE)
		return true;
	import_fail(
		i,
		dray_err_of(DRAY_E_UNSUPPORTED,
			    "the owner's agent is too old for leases (peer protocol before 1.4); "
			    "upgrade it"));
	return false;
}

static void no_memory(struct peer *peer)
{
	conn_fail(peer->conn,
		  dray_err_of(DRAY_E_NO_MEMORY, "no memory to acquire leases of the peer"));
}

/* Adds the import to the message, or ends it. Returns the number of leases that it adds. */
static uint32_t add(struct import *i, uint8_t *wire, dray_handle *ret_id)
{
	struct offer *x = offer_find(i->peer, &i->token, 0);
	struct pmsg_lease_key key = { .token_id = i->token.token_id,
				      .region = i->token.region,
				      .incarnation = i->token.incarnation };

	if (x) {
		take(i, x);
		return 0;
	}
	if (!can_ask(i))
		return 0;
	memcpy(key.capability, i->token.capability, CAPABILITY_BYTES);
	pmsg_lease_key_put(wire, &key);
	*ret_id = i->id;
	i->asked = true;
	return 1;
}

static void flush_some(struct peer *peer)
{
	uint8_t wire[ACQUIRE_MAX * PMSG_LEASE_KEY_SIZE];
	dray_handle ids[ACQUIRE_MAX];
	union pmsg_body m = { .acquire = { { wire, 0 } } };
	uint32_t *n = &m.acquire.leases.n;
	struct acquisition *a;
	struct import *i;

	while (*n < ACQUIRE_MAX && (i = dray_list_pop(&peer->unsent, struct import, unsent)))
		*n += add(i, wire + (size_t)*n * PMSG_LEASE_KEY_SIZE, &ids[*n]);
	/* a callback may have closed the peer; then its imports have ended */
	if (!*n || !peer_fsm_is_up(&peer->fsm))
		return;
	a = malloc(sizeof(*a) + *n * sizeof(ids[0]));
	if (!a) {
		no_memory(peer);
		return;
	}
	a->n = *n;
	memcpy(a->imports, ids, *n * sizeof(ids[0]));
	if (!request_send(peer, &acquire_kind, -1, (struct pending_request){ .acquisition = a },
			  &m)) {
		free(a);
		no_memory(peer);
		return;
	}
	peer->n_acquires++;
}

/* An ACQUIRE can be sent to the peer, and there is something to acquire. */
static bool has_unsent(const struct peer *peer)
{
	return !dray_list_empty(&peer->unsent) && peer->n_acquires < ACQUIRES_MAX &&
	       peer_fsm_is_up(&peer->fsm) && peer->conn->phase == CONN_OPEN;
}

void acquires_send(struct peers *p)
{
	struct peer *peer;

	/* a callback may close any peer, but none is freed here */
	while ((peer = dray_list_pop(&p->acquirers, struct peer, acquirers_link)))
		while (has_unsent(peer))
			flush_some(peer);
}

/* --- the owner --- */

static void send_ranges(struct peer *peer, uint64_t grant, const struct ranges *ranges)
{
	uint8_t wire[RANGES_MAX * PMSG_RANGE_SIZE];
	union pmsg_body m = { .lease_ranges = { grant, { wire, 0 } } };
	uint32_t *n = &m.lease_ranges.ranges.n;

	for (uint32_t i = 0; i < ranges->n; i++) {
		struct dmsg_range r = ranges_get(ranges, i);

		dmsg_range_put(wire + (size_t)(*n)++ * PMSG_RANGE_SIZE, &r);
		if (*n < RANGES_MAX && i + 1 < ranges->n)
			continue;
		peer_send(peer, PMSG_LEASE_RANGES, 0, &m);
		*n = 0;
	}
}

/* Grants a lease to the peer. Sets the grant, or returns the code of the error. */
static uint32_t give(struct peer *peer, const struct pmsg_lease_key *key, bool unasked,
		     uint64_t *ret_grant)
{
	uint8_t rails[PMSG_LEASE_GRANTED_BODY_MAX - PMSG_LEASE_GRANTED_MIN];
	union pmsg_body m = { .lease_granted = { .rails = { .p = rails } } };
	struct pmsg_lease_granted *g = &m.lease_granted;
	struct dray_err err = DRAY_ERR_NULL;
	const struct ranges *ranges;
	struct peers *p = peer->p;
	int ret;

	if (p->draining || p->stopping)
		return DRAY_E_DRAINING;
	if (conn_is_clogged(peer->conn))
		return DRAY_E_BUSY;
	ret = lease_acquire(p->deps.regions, peer->handle, peer->agent_id, key, unasked, g, &ranges,
			    &err);
	if (ret < 0)
		return (uint32_t)err.code;
	*ret_grant = g->grant;
	if (ret)
		return 0;
	if (peer->features & PMSG_FEATURE_RDMA)
		g->rails.n = p->deps.up->grant_keys(*p->deps.rails, peer->handle, g->grant, rails,
						    sizeof(rails) / PMSG_RAIL_SIZE);
	if (g->rails.n)
		grant_expose(p->deps.regions, peer->handle, g->grant);
	send_ranges(peer, g->grant, ranges);
	peer_send(peer, PMSG_LEASE_GRANTED, 0, &m);
	return 0;
}

void acquire_handle(struct peer *peer, uint64_t request_id, const struct pmsg_acquire *m)
{
	uint8_t wire[ACQUIRE_MAX * PMSG_LEASE_RESULT_SIZE];
	union pmsg_body reply = { .acquire_reply = { { wire, m->leases.n } } };

	for (uint32_t k = 0; k < m->leases.n; k++) {
		struct pmsg_lease_result result = { 0 };
		struct pmsg_lease_key key;

		pmsg_lease_key_get(m->leases.p + (size_t)k * PMSG_LEASE_KEY_SIZE, &key);
		result.code = give(peer, &key, false, &result.grant);
		pmsg_lease_result_put(wire + (size_t)k * PMSG_LEASE_RESULT_SIZE, &result);
	}
	peer_send(peer, PMSG_ACQUIRE_REPLY, request_id, &reply);
}

uint32_t peers_lease_grant(struct peers *p, const struct pmsg_token *token, uint32_t n)
{
	struct pmsg_lease_key key = { .token_id = token->token_id,
				      .region = token->region,
				      .incarnation = token->incarnation };
	struct peer *peer = peer_find_up(p, token->audience, NULL);
	uint64_t grant;
	uint32_t given = 0;

	memcpy(key.capability, token->capability, CAPABILITY_BYTES);
	while (peer && peer->features & PMSG_FEATURE_LEASE && given < n &&
	       !give(peer, &key, true, &grant))
		given++;
	return given;
}

void lease_handle_renew(struct peer *peer, uint64_t request_id, const struct pmsg_lease_renew *m)
{
	union pmsg_body reply = { 0 };

	if (lease_renew(peer->p->deps.regions, peer->handle, m->grant, m->expiry_ms,
			&reply.lease_renew_reply.expiry_ms) < 0)
		peer_send_error(peer, request_id,
				dray_err_of(DRAY_E_REVOKED, "the lease has ended"));
	else
		peer_send(peer, PMSG_LEASE_RENEW_REPLY, request_id, &reply);
}
