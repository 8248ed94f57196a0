/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lending side. A loan is what one lookup of a peer found. Peers together hold half of the store at most, and each of them
 * half of what the others leave, so that none keeps the others from reading. The store lends half of an owner's memory at most.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/internal.h"
#include "agent/model/budget.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* Loans of one peer, also those that are being looked up or end. */
#define LOANS_MAX 64
#define LEASE_MAX_MS 10000u
/* Leases end by so much later, so that several of them end in one turn. */
#define ACCURACY_US 10000
/* After the peers. */
#define EXPIRY_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 5)

/* Keys of one answer, and bytes of objects; the limits of the protocol. */
#define RAIL_KEYS_MAX 1020
#define BYTES_MAX 16384u

struct borrower {
	struct dray_map_node by_peer;
	dray_handle peer;
	struct dray_list loans;
	uint32_t n;
	uint64_t bytes;
	bool asked; /* since the last exchange_in_use() */
	bool gone;  /* freed with its last loan */
};

struct loan {
	struct dray_list link; /* in borrower->loans */
	struct exchange *x;
	struct borrower *borrower;
	uint64_t request_id;
	uint32_t n, lease_ms;
	bool wants_bytes; /* rather than a lease */
	bool hold;        /* it is looked up once more before it is read */
	uint64_t bytes;
	struct store_loan *objects;
	struct grant_view grant; /* o.handle 0: the lookup is not answered yet */
	struct ranges *ranges;
	struct dray_heap_node expiry; /* of the lease, and of the lookup before */
	bool ending;
	bool exposed; /* the peer has keys */
	bool dropped,
		fenced; /* ending: no worker serves it any more, and the peer does not use its keys */
};

static struct borrower *borrower_find(struct exchange *x, dray_handle peer)
{
	return dray_map_entry(dray_map_find(&x->borrowers, &peer, sizeof(peer)), struct borrower,
			      by_peer);
}

static struct borrower *borrower_get(struct exchange *x, dray_handle peer)
{
	struct borrower *b = borrower_find(x, peer);

	if (b)
		return b;
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->peer = peer;
	dray_list_init(&b->loans);
	dray_map_add(&x->borrowers, &b->by_peer, &b->peer, sizeof(b->peer));
	return b;
}

static void borrower_check(struct exchange *x, struct borrower *b)
{
	if (!b->gone || b->n)
		return;
	dray_map_del(&x->borrowers, &b->by_peer);
	free(b);
}

static void count(struct loan *l, uint64_t bytes)
{
	l->borrower->bytes += bytes - l->bytes;
	l->bytes = bytes;
}

/* No worker serves it. */
static void loan_free(struct loan *l)
{
	struct borrower *b = l->borrower;
	struct exchange *x = l->x;

	if (l->objects)
		store_loan_end(l->objects);
	if (l->grant.o.handle)
		dray_handles_del(&x->grants, l->grant.o.handle);
	timers_set(&x->expiry, &l->expiry, INT64_MAX);
	ranges_unref(l->ranges);
	dray_list_del(&l->link);
	count(l, 0);
	x->n_loans--;
	b->n--;
	free(l);
	borrower_check(x, b);
}

static void loan_check(struct loan *l)
{
	if (l->dropped && l->fenced)
		loan_free(l);
}

static void dropped(void *arg)
{
	struct loan *l = arg;

	l->dropped = true;
	loan_check(l);
}

/* fenced: the peer does not use it any more. May free it. */
static void loan_end(struct loan *l, bool fenced)
{
	struct exchange *x = l->x;

	l->fenced |= fenced || !l->exposed;
	if (l->ending) {
		loan_check(l);
		return;
	}
	l->ending = true;
	timers_set(&x->expiry, &l->expiry, INT64_MAX);
	/* it counts until the store has let go of the objects: ready() follows */
	if (!l->grant.o.handle) {
		store_loan_stop(l->objects);
		return;
	}
	pool_drop(x->deps.pool, OBJECT_GRANT, l->grant.o.handle, DRAY_E_REVOKED, false, dropped, l);
	/* a peer that is gone has queue pairs until exchange_peer_quiet() */
	if (!l->fenced && !l->borrower->gone)
		peers_fence(x->deps.peers, l->borrower->peer, l->grant.o.handle, DRAY_E_REVOKED);
}

/* A lease ends, or a lookup has waited for as long as an agent does: the peer waits for it no longer, and cannot release it. */
static void expired(struct dray_heap_node *node, int64_t now)
{
	struct loan *l = dray_container_of(node, struct loan, expiry);
	struct peers *peers = l->x->deps.peers;
	dray_handle peer = l->borrower->peer;
	uint64_t id = l->request_id;
	bool answered = l->grant.o.handle;

	loan_end(l, false);
	if (!answered)
		peers_refuse(peers, peer, id, DRAY_E_BUSY,
			     "the objects were not read from disk in time");
}

/*
 * What the loan may have now. What workers send the peer behind answers counts as lent to others. What is held may have half of that,
 * because it counts again when it is read.
 */
static uint64_t room_of(void *arg)
{
	struct loan *l = arg;
	const struct exchange *x = l->x;
	struct borrower *b = l->borrower;
	uint64_t most = (uint64_t)x->deps.cfg->limits.store_bytes / 2;
	uint64_t lent = store_lent_bytes(x->deps.store);
	uint64_t share, others;

	/* other lookups of the peer may have found more, too */
	dray_list_for_each(&b->loans, of_peer, struct loan, link)
		if (of_peer->objects)
			count(of_peer, store_loan_bytes(of_peer->objects));
	others = b->bytes - l->bytes;
	share = budget_share(most, lent - dray_min(lent, b->bytes), 0) / (l->hold ? 2 : 1);
	return share > others ? share - others : 0;
}

static enum pmsg_store_answer answer_of(enum dmsg_store_status s)
{
	static const enum pmsg_store_answer answers[] = {
		[DMSG_STORE_STATUS_OK] = PMSG_STORE_ANSWER_FOUND,
		[DMSG_STORE_STATUS_NOT_FOUND] = PMSG_STORE_ANSWER_NOT_FOUND,
		[DMSG_STORE_STATUS_CORRUPT] = PMSG_STORE_ANSWER_CORRUPT,
		[DMSG_STORE_STATUS_LOST] = PMSG_STORE_ANSWER_LOST,
		/* it would be busy for ever */
		[DMSG_STORE_STATUS_TOO_LARGE] = PMSG_STORE_ANSWER_NOT_FOUND,
	};

	/* the others mean that it cannot be read into memory now */
	return s < DRAY_ARRAY_SIZE(answers) && answers[s] ? answers[s] : PMSG_STORE_ANSWER_BUSY;
}

/* Writes the answers to the keys, and what the grant covers. Returns how many are found. */
static uint32_t describe(const struct loan *l, uint8_t *found, uint8_t *ranges)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		struct store_loan_key k = store_loan_key(l->objects, i);
		struct pmsg_store_found f = { .answer = answer_of(k.status),
					      .crc = k.crc,
					      .offset = k.offset,
					      .length = k.bytes,
					      .cost_us = k.cost_us };
		struct dmsg_range r = { .offset = k.offset, .length = k.bytes, .count = 1 };

		pmsg_store_found_put(found + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
		if (!k.status)
			dmsg_range_put(ranges + (size_t)n++ * DMSG_RANGE_SIZE, &r);
	}
	return n;
}

/* Lets the peer read these ranges. 0, or -errno with reterr. */
static int grant(struct loan *l, const uint8_t *ranges, uint32_t n, struct dray_err *reterr)
{
	struct exchange *x = l->x;
	struct object_view *o = &l->grant.o;
	int r = ranges_new(&l->ranges, ranges, n, x->region->o.length, reterr);

	if (r < 0)
		return r;
	if (timers_reserve(&x->expiry, x->n_loans) < 0 ||
	    dray_handles_add(&x->grants, l, &o->handle) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a lease");
	o->kind = OBJECT_GRANT;
	o->length = x->region->o.length;
	o->access = DMSG_ACCESS_READ;
	l->grant.peer = l->borrower->peer;
	l->grant.region = x->region->o.handle;
	l->grant.ranges = l->ranges;
	timers_set(&x->expiry, &l->expiry, dray_now().ns + l->lease_ms * DRAY_NS_PER_MS);
	pool_publish(x->deps.pool, o);
	return 0;
}

/* The parts of segments that hold what was found, from its first byte to its last. Their number; 0: a segment has no name yet. */
static uint32_t find_parts(const struct loan *l, struct memory_part *parts)
{
	uint32_t n = 0, at = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		struct store_loan_key k = store_loan_key(l->objects, i);

		if (k.status)
			continue;
		if (!k.segment)
			return 0;
		/* objects that were put together lie in one segment */
		if (!n || parts[at].segment != k.segment)
			for (at = 0; at < n && parts[at].segment != k.segment; at++)
				;
		if (at == n)
			parts[n++] = (struct memory_part){ k.segment, k.offset, k.offset };
		parts[at].from = dray_min(parts[at].from, k.offset);
		parts[at].to = dray_max(parts[at].to, k.offset + k.bytes);
	}
	return n;
}

/* Writes what the peer needs to read the objects over rails. Returns the number of records. */
static unsigned expose(struct loan *l, uint8_t *rails)
{
	struct memory_part parts[KEYS_MAX];
	uint32_t n = find_parts(l, parts);
	unsigned records = memory_keys(l->x, l->borrower->peer, parts, n, rails, RAIL_KEYS_MAX);

	l->exposed = records;
	return records;
}

/* The bytes of what was found, in a row. False: they are too many, or the peer does not want them. */
static bool gather(const struct loan *l, uint8_t *buf, uint32_t *ret_n)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < l->n && l->wants_bytes; i++) {
		struct store_loan_key k = store_loan_key(l->objects, i);

		if (k.status)
			continue;
		if (k.bytes > BYTES_MAX - n)
			return false;
		memcpy(buf + n, l->x->region->extents[0].base + k.offset, k.bytes);
		n += k.bytes;
	}
	*ret_n = (uint32_t)n;
	return n > 0;
}

static void answer(struct loan *l)
{
	uint8_t found[KEYS_MAX * PMSG_STORE_FOUND_SIZE], ranges[KEYS_MAX * DMSG_RANGE_SIZE];
	uint8_t rails[RAIL_KEYS_MAX * PMSG_RAIL_SIZE], bytes[BYTES_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	uint32_t n = describe(l, found, ranges), n_bytes = 0;
	union pmsg_body m = { .store_lookup_reply = { .found = { found, l->n } } };
	struct peers *peers = l->x->deps.peers;
	dray_handle peer = l->borrower->peer;
	uint64_t id = l->request_id;

	if (n && gather(l, bytes, &n_bytes)) {
		m.store_lookup_reply.bytes = (struct dray_blob){ bytes, n_bytes };
		n = 0;
	}
	if (n && grant(l, ranges, n, &err) < 0) {
		loan_free(l);
		peers_refuse(peers, peer, id, (uint32_t)err.code, err.msg);
		return;
	}
	if (n) {
		m.store_lookup_reply.grant = l->grant.o.handle;
		m.store_lookup_reply.lease_ms = l->lease_ms;
		m.store_lookup_reply.rails = (struct dray_vec){ rails, expose(l, rails) };
	} else {
		loan_free(l);
	}
	/* it may lose the peer, and with it the loan */
	peers_send(peers, peer, PMSG_STORE_LOOKUP_REPLY, id, &m);
}

static void ready(void *arg)
{
	struct loan *l = arg;

	if (l->ending) {
		loan_free(l);
		return;
	}
	count(l, store_loan_bytes(l->objects));
	answer(l);
}

/* 0, or -errno with reterr. */
static int loan_new(struct exchange *x, dray_handle peer, uint64_t request_id,
		    const struct pmsg_store_lookup *m, struct dray_err *reterr)
{
	struct store_asker who = { m->space, m->tenant, m->uid };
	struct store_key keys[KEYS_MAX];
	int n = store_keys_split(keys, KEYS_MAX, m->keys, reterr), r;
	struct borrower *b = n < 0 ? NULL : borrower_get(x, peer);
	struct loan *l;

	if (n < 0)
		return n;
	if (b && b->n >= LOANS_MAX)
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "%u lookups of this peer are being answered, or have leases",
				    b->n);
	l = b ? calloc(1, sizeof(*l)) : NULL;
	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a lookup");
	*l = (struct loan){ .x = x,
			    .borrower = b,
			    .request_id = request_id,
			    .n = (uint32_t)n,
			    .hold = m->flags & PMSG_STORE_LOOKUP_FLAG_HOLD,
			    .lease_ms = m->lease_ms ? dray_min(m->lease_ms, LEASE_MAX_MS) :
						      LEASE_MAX_MS };
	l->wants_bytes = !l->hold && m->flags & PMSG_STORE_LOOKUP_FLAG_BYTES;
	dray_list_add(&b->loans, &l->link);
	b->asked = true;
	b->n++;
	x->n_loans++;
	r = timers_reserve(&x->expiry, x->n_loans);
	if (r < 0)
		dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for a lookup");
	else
		r = store_lend(x->deps.store, &who, keys, l->n, l->hold, room_of, ready, l,
			       &l->objects, reterr);
	if (r < 0) {
		loan_free(l);
		return r;
	}
	count(l, store_loan_bytes(l->objects));
	if (r)
		answer(l);
	else
		timers_set(&x->expiry, &l->expiry,
			   dray_now().ns + store_peer_timeout_ns(x->deps.store));
	return 0;
}

void exchange_lookup(struct exchange *x, dray_handle peer, uint64_t request_id,
		     const struct pmsg_store_lookup *m)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (!x->deps.cfg->store.lend)
		dray_err_set(&err, -EPERM, DRAY_E_DENIED,
			     "its store is not lent: set store.lend there");
	else
		loan_new(x, peer, request_id, m, &err);
	if (err.code)
		peers_refuse(x->deps.peers, peer, request_id, (uint32_t)err.code, err.msg);
}

void exchange_release(struct exchange *x, dray_handle peer, uint64_t handle)
{
	struct loan *l = x ? dray_handles_get(&x->grants, handle) : NULL;

	if (l && l->borrower->peer == peer)
		loan_end(l, true);
}

bool exchange_fenced(struct exchange *x, dray_handle peer, dray_handle grant)
{
	struct loan *l = x ? dray_handles_get(&x->grants, grant) : NULL;

	if (!l || l->borrower->peer != peer)
		return false;
	/* its answer to a fence, which ends what has begun to end */
	if (l->ending)
		loan_end(l, true);
	return true;
}

static bool lies_in(const struct loan *l, dray_handle segment)
{
	for (uint32_t i = 0; i < l->n; i++) {
		struct store_loan_key k = store_loan_key(l->objects, i);

		if (!k.status && k.segment == segment)
			return true;
	}
	return false;
}

void exchange_keys_gone(struct exchange *x, dray_handle segment)
{
	struct loan *l;

	for (uint32_t at = 0; (l = dray_handles_next(&x->grants, &at, NULL));)
		if (l->exposed && !l->ending && lies_in(l, segment))
			loan_end(l, false);
}

bool exchange_in_use(struct exchange *x, dray_handle peer)
{
	struct borrower *b = x ? borrower_find(x, peer) : NULL;
	bool used = b && (b->n || b->asked);

	if (b)
		b->asked = false;
	return used;
}

void exchange_peer_gone(struct exchange *x, dray_handle peer, bool quiet)
{
	struct borrower *b = x ? borrower_find(x, peer) : NULL;

	if (x) {
		summaries_peer_gone(x, peer);
		summarizer_peer_gone(x->summarizer, peer);
	}
	if (!b)
		return;
	b->n++; /* keeps it until the end of the loop */
	b->gone = true;
	dray_list_for_each(&b->loans, l, struct loan, link)
		loan_end(l, quiet);
	b->n--;
	borrower_check(x, b);
}

void exchange_peer_quiet(struct exchange *x, dray_handle peer)
{
	exchange_peer_gone(x, peer, true);
}

int lend_init(struct exchange *x)
{
	const struct region_view *own = store_region(x->deps.store);
	size_t bytes = sizeof(*own) + own->n_extents * sizeof(own->extents[0]);

	dray_map_init(&x->borrowers);
	dray_handles_init(&x->grants, DRAY_HANDLES_MAX, EXCHANGE_HANDLES);
	x->region = malloc(bytes);
	if (!x->region)
		return -ENOMEM;
	memcpy(x->region, own, bytes);
	x->region->o.handle = x->whole;
	x->region->o.access = DMSG_ACCESS_READ;
	pool_publish(x->deps.pool, &x->region->o);
	return timers_init(&x->expiry, x->deps.event, ACCURACY_US, EXPIRY_PRIORITY, expired);
}

void lend_deinit(struct exchange *x)
{
	dray_map_for_each(&x->borrowers, b, struct borrower, by_peer) {
		b->n++;
		b->gone = true;
		dray_list_for_each(&b->loans, l, struct loan, link)
			loan_free(l);
		b->n--;
		borrower_check(x, b);
	}
	dray_map_deinit(&x->borrowers);
	dray_handles_deinit(&x->grants);
	timers_deinit(&x->expiry);
	free(x->region);
}
