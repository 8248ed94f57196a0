/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of PUTs with replicas at other agents. One of store.peers is asked to keep a copy of an object: that which has the highest hash
 * with its key, so that objects spread over all, and a second PUT of a key finds the copy of the first one. If that agent does not keep
 * it, the next one is asked; then the object has no copy.
 *
 * Objects of a PUT at another agent are offered to that one alone.
 *
 * An offer is one message to one agent. It waits for store.peer_timeout, and for its bytes at a least rate. An agent that has not answered
 * in time is left alone for a while, so that it does not delay every PUT.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/answered.h"
#include "agent/control/exchange/lookup.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"
#include "lib/hash.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define ACCURACY_US 1000
/* Bytes of objects of one offer: a part of what this agent lends. */
#define OFFER_PART 8
#define LEAST_RATE (32ull << 20)
/* How long an agent is not asked that has not answered in time. */
#define PAUSE_NS (2 * DRAY_NS_PER_SEC)

/* Of a key, while copies are placed. At the end those with an agent of their own have its answer, and others are ok or lost. */
#define KEY_OPEN DMSG_STORE_STATUS_NOT_FOUND
#define KEY_OFFERED DMSG_STORE_STATUS_NOT_TRIED

struct placing {
	struct dray_list link; /* in x->placings */
	struct exchange *x;
	struct store_ask *ask;
	/* the agents that may be asked; one for objects that go to that alone */
	uint32_t first, end;
	struct dray_list offers;
	bool late; /* of one agent alone: it has not answered in time, and is not asked for the rest */
	struct dray_heap_node limit;
};

struct offer {
	struct dray_list link;   /* in placing->offers, or x->vain_offers */
	struct placing *placing; /* NULL: nobody needs the answer */
	struct lender *lender;
	dray_handle peer;
	uint32_t n;
	uint16_t keys[KEYS_MAX]; /* of the ask */
};

static void placing_end(struct placing *p)
{
	struct exchange *x = p->x;
	struct store_ask *a = p->ask;
	const struct lender *first = &x->lenders[p->first];

	dray_list_for_each(&p->offers, o, struct offer, link) {
		/* asked, but not answered; keys that are not stored here were not asked */
		for (uint32_t i = 0; i < o->n; i++)
			a->v[o->keys[i]].status = KEY_OPEN;
		o->placing = NULL;
		dray_list_move(&x->vain_offers, &o->link);
	}
	timers_set(&x->placing_limits, &p->limit, INT64_MAX);
	x->n_placings--;
	dray_list_del(&p->link);
	free(p);
	a->placing = NULL;
	put_at_ended(x, a, first);
	answered_add(x, a);
}

static void overdue(struct dray_heap_node *node, int64_t now)
{
	placing_end(dray_container_of(node, struct placing, limit));
}

void replicate_stop(struct store_ask *a)
{
	placing_end(a->placing);
}

/* This peer does not keep it. why: what an object has that goes to it alone. */
static void key_failed(const struct placing *p, struct store_asked *k, dray_handle peer,
		       enum dmsg_store_status why)
{
	k->status = p->ask->at ? why : k->avoid ? DMSG_STORE_STATUS_LOST : KEY_OPEN;
	k->avoid = peer;
}

/* An agent that was late delays copies, and objects that may stay here, no second time. One that a client names is asked nevertheless. */
static bool is_late(const struct placing *p, const struct lender *d)
{
	return (!p->ask->at || !*p->ask->at) && lender_is_late(d);
}

/* Marks the agents that may be asked. Agents that the directory alone names come and go, and are not. */
static void find_keepers(const struct placing *p)
{
	const uint64_t features = PMSG_FEATURE_STORE | PMSG_FEATURE_KEEP;
	struct exchange *x = p->x;

	for (uint32_t i = p->first; i < p->end; i++) {
		struct lender *d = &x->lenders[i];

		d->keeper = is_late(p, d) ? 0 : peers_at(x->deps.peers, d->at, features);
		d->keep_seed = dray_hash(0, d->at, strlen(d->at));
	}
}

/* The agent that is to keep the key, as its `source`; the end of the agents: none. */
static void choose(const struct placing *p, struct store_asked *k)
{
	const struct exchange *x = p->x;
	uint64_t highest = 0;

	k->source = p->end;
	for (uint32_t i = p->first; i < p->end; i++) {
		const struct lender *d = &x->lenders[i];
		uint64_t rank;

		if (!d->keeper || d->keeper == k->avoid)
			continue;
		rank = dray_hash(d->keep_seed, k->key, k->n_key);
		if (k->source < p->end && rank <= highest)
			continue;
		highest = rank;
		k->source = i;
	}
}

static bool is_asked(const struct placing *p, const struct lender *d)
{
	dray_list_for_each(&p->offers, o, const struct offer, link)
		if (o->lender == d)
			return true;
	return false;
}

static void on_reply(void *arg, uint32_t code, const union pmsg_body *reply);

/* What fits into one offer. Returns the bytes of the keys; *ret_bytes: of the objects. */
static uint32_t offer_fill(struct offer *o, uint8_t *keys, uint64_t *ret_bytes)
{
	struct exchange *x = o->placing->x;
	struct store_ask *a = o->placing->ask;
	uint64_t most = (uint64_t)x->deps.cfg->limits.store_bytes / OFFER_PART;
	uint32_t n = 0, lender = (uint32_t)(o->lender - x->lenders);

	*ret_bytes = 0;
	for (uint32_t i = 0; i < a->n && o->n < KEYS_MAX; i++) {
		struct store_asked *k = &a->v[i];

		if (k->status != KEY_OPEN || k->source != lender)
			continue;
		if (n + 1 + k->n_key > KEYS_BYTES || (o->n && *ret_bytes + k->length > most))
			break;
		n = store_asked_put(k, keys, n);
		*ret_bytes += k->length;
		o->keys[o->n++] = (uint16_t)i;
	}
	return n;
}

/* 0, or -errno: it was not sent. */
static int offer_send(struct offer *o, const uint8_t *keys, uint32_t n, uint64_t bytes)
{
	struct exchange *x = o->placing->x;
	const struct store_ask *a = o->placing->ask;
	int64_t time_ns =
		x->deps.cfg->store.peer_timeout +
		(int64_t)(bytes * (DRAY_NS_PER_SEC / DRAY_NS_PER_MS) / LEAST_RATE) * DRAY_NS_PER_MS;
	const char *tenant = a->tenant;
	struct pmsg_store_keep m = {
		.uid = a->uid,
		.deadline_ms = (uint32_t)(time_ns / DRAY_NS_PER_MS) + 1,
		.space = { a->space, (uint32_t)strlen(a->space) },
		.tenant = { tenant, (uint32_t)strlen(tenant) },
		.keys = { keys, n },
	};

	return peers_request(x->deps.peers, o->peer, PMSG_STORE_KEEP,
			     &(union pmsg_body){ .store_keep = m }, on_reply, o);
}

/* The agent cannot be asked for what it was chosen for. False: there was nothing. */
static bool chosen_failed(const struct placing *p, const struct lender *d)
{
	bool any = false;

	for (uint32_t i = 0; i < p->ask->n; i++) {
		struct store_asked *k = &p->ask->v[i];

		if (k->status != KEY_OPEN || &p->x->lenders[k->source] != d)
			continue;
		key_failed(p, k, d->keeper, DMSG_STORE_STATUS_BUSY);
		any = true;
	}
	return any;
}

/* Offers the agent what it is to keep. False: nothing. */
static bool offer(struct placing *p, struct lender *d)
{
	uint8_t keys[KEYS_BYTES];
	struct offer *o = malloc(sizeof(*o));
	uint64_t bytes;
	uint32_t n;

	if (!o)
		return chosen_failed(p, d);
	o->placing = p;
	o->lender = d;
	o->peer = d->keeper;
	o->n = 0;
	dray_list_init(&o->link);
	n = offer_fill(o, keys, &bytes);
	if (!o->n) {
		free(o);
		return false;
	}
	if (offer_send(o, keys, n, bytes) < 0) {
		for (uint32_t i = 0; i < o->n; i++)
			key_failed(p, &p->ask->v[o->keys[i]], o->peer, DMSG_STORE_STATUS_BUSY);
		free(o);
		return true;
	}
	for (uint32_t i = 0; i < o->n; i++)
		p->ask->v[o->keys[i]].status = KEY_OFFERED;
	dray_list_add(&p->offers, &o->link);
	return true;
}

/* All its keys that are open have this. */
static void open_end(struct store_ask *a, enum dmsg_store_status status)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->v[i].status == KEY_OPEN)
			a->v[i].status = status;
}

/* The only agent cannot be asked for what is open. */
static void open_failed(const struct placing *p)
{
	const struct lender *d = &p->x->lenders[p->first];

	if (p->late || is_late(p, d))
		open_end(p->ask, DMSG_STORE_STATUS_UNREACHABLE);
	else if (!d->keeper)
		open_end(p->ask, put_at_why_not(p->x, d));
}

/* Offers what is open. May end it. */
static void go_on(struct placing *p)
{
	struct exchange *x = p->x;
	bool more = true;

	find_keepers(p);
	if (p->ask->at)
		open_failed(p);
	while (more) {
		more = false;
		for (uint32_t i = 0; i < p->ask->n; i++)
			if (p->ask->v[i].status == KEY_OPEN)
				choose(p, &p->ask->v[i]);
		for (uint32_t i = p->first; i < p->end; i++) {
			struct lender *d = &x->lenders[i];

			if (d->keeper && !is_asked(p, d))
				more |= offer(p, d);
		}
	}
	if (dray_list_empty(&p->offers))
		placing_end(p);
}

static void take(const struct placing *p, struct store_asked *k, dray_handle peer, uint32_t answer,
		 uint32_t code)
{
	if (p->ask->at) {
		k->status = put_at_status(answer, code);
		return;
	}
	switch (answer) {
	case PMSG_STORE_KEPT_KEPT:
	case PMSG_STORE_KEPT_EXISTS:
		k->status = DMSG_STORE_STATUS_OK;
		break;
	case PMSG_STORE_KEPT_NOT_FOUND:
	case PMSG_STORE_KEPT_LOST:
		/* the object here is gone */
		k->status = DMSG_STORE_STATUS_LOST;
		break;
	default:
		key_failed(p, k, peer, DMSG_STORE_STATUS_LOST);
	}
}

static void on_reply(void *arg, uint32_t code, const union pmsg_body *reply)
{
	dray_auto_free struct offer *o = arg;
	const struct pmsg_store_keep_reply *m = reply ? &reply->store_keep_reply : NULL;
	struct placing *p = o->placing;

	dray_list_del(&o->link);
	if (code == DRAY_E_TIMEOUT)
		o->lender->keep_ns = dray_now().ns + PAUSE_NS;
	if (!p)
		return;
	p->late |= code == DRAY_E_TIMEOUT;
	for (uint32_t i = 0; i < o->n; i++) {
		struct store_asked *k = &p->ask->v[o->keys[i]];
		struct pmsg_store_keep_answer answer = { 0 };

		if (!code && m && m->answers.n == o->n)
			pmsg_store_keep_answer_get(
				m->answers.p + (size_t)i * PMSG_STORE_KEEP_ANSWER_SIZE, &answer);
		take(p, k, o->peer, answer.answer, code);
	}
	go_on(p);
}

/* only: the agent that they go to alone; NULL: copies at any of store.peers. */
static void replicate_begin(struct exchange *x, struct store_ask *a, const struct lender *only)
{
	/* without leases nobody can read what is offered */
	struct placing *p = x->deps.cfg->store.lend ? calloc(1, sizeof(*p)) : NULL;

	if (!p || timers_reserve(&x->placing_limits, x->n_placings + 1) < 0) {
		free(p);
		open_end(a, DMSG_STORE_STATUS_BUSY);
		answered_add(x, a);
		return;
	}
	p->x = x;
	p->ask = a;
	p->first = only ? (uint32_t)(only - x->lenders) : 0;
	p->end = only ? p->first + 1 : (uint32_t)x->deps.cfg->store.peers.n;
	a->placing = p;
	x->n_placings++;
	dray_list_init(&p->offers);
	dray_list_add(&x->placings, &p->link);
	timers_set(&x->placing_limits, &p->limit, a->end_ns);
	go_on(p);
}

void replicate(struct exchange *x, struct store_ask *a)
{
	struct lender *only = NULL;

	if (a->at) {
		a->here = put_at_find(x, a, &only);
		if (!a->here && !only)
			open_end(a, DMSG_STORE_STATUS_DENIED);
	}
	if (a->at && !only)
		answered_add(x, a);
	else
		replicate_begin(x, a, only);
}

static void offers_free(struct dray_list *offers)
{
	dray_list_for_each(offers, o, struct offer, link) {
		dray_list_del(&o->link);
		free(o);
	}
}

int replicate_init(struct exchange *x)
{
	dray_list_init(&x->placings);
	dray_list_init(&x->vain_offers);
	return timers_init(&x->placing_limits, x->deps.event, ACCURACY_US, SD_EVENT_PRIORITY_NORMAL,
			   overdue);
}

void replicate_deinit(struct exchange *x)
{
	dray_list_for_each(&x->placings, p, struct placing, link) {
		offers_free(&p->offers);
		dray_list_del(&p->link);
		answered_free(x, p->ask);
		free(p);
	}
	offers_free(&x->vain_offers);
	timers_deinit(&x->placing_limits);
}
