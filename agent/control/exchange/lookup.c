/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/lookup.h"

#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/answer.h"
#include "agent/control/exchange/asker.h"
#include "agent/control/exchange/source.h"
#include "agent/model/store_ask.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/*
 * No answer came, and none will. What nobody is known to have is not found then; what somebody had a moment ago may still be there.
 */
static void unanswered(const struct question *q, const struct lender *d, dray_handle peer,
		       uint32_t first, uint32_t end)
{
	/* an agent that wants copies of its objects has them */
	if (q->ask->again || q->ask->from)
		question_refuse(q, d, peer, first, end);
}

static void lookup_free(struct lookup *l)
{
	dray_list_del(&l->link);
	asker_put(l->x, l->asker);
	free(l);
}

static void on_reply(void *arg, uint32_t code, const union pmsg_body *reply)
{
	const struct pmsg_store_lookup_reply *m = reply ? &reply->store_lookup_reply : NULL;
	struct lookup *l = arg;
	struct question *q = l->question;
	struct exchange *x = l->x;
	bool answers = !code && m && answer_is_whole(l, m);

	lender_judge(l->lender, l->sent_ns, l->test, code);
	if (q && (code == DRAY_E_BUSY || code == DRAY_E_NO_MEMORY))
		question_refuse(q, l->lender, 0, l->first, l->end);
	if (q && code == DRAY_E_TIMEOUT)
		unanswered(q, l->lender, l->peer, l->first, l->end);
	if (!(q && answers && answer_take(l, m))) {
		asker_unhold(x, l->asker, l->lender);
		if (m && m->grant)
			source_release(x, l->peer, m->grant);
	}
	lookup_free(l);
	if (q && (!q->missing || dray_list_empty(&q->lookups)))
		question_end(x, q);
}

/* How many keys from `first` fit into one message. */
static uint32_t keys_that_fit(const struct store_ask *a, uint32_t first)
{
	uint32_t n = 0, bytes = 0;

	for (; first + n < a->n_asked && n < KEYS_MAX; n++) {
		bytes += 1 + a->v[first + n].n_key;
		if (bytes > KEYS_BYTES)
			break;
	}
	return n;
}

uint32_t lookups_needed(const struct store_ask *a)
{
	uint32_t n = 0;

	for (uint32_t first = 0; first < a->n_asked; first += keys_that_fit(a, first))
		n++;
	return n;
}

/* NULL: it was not sent. q NULL: nobody waits for the answer. */
static struct lookup *lookup_send(struct exchange *x, struct lender *d, dray_handle peer,
				  struct asker *o, struct question *q,
				  const struct pmsg_store_lookup *m)
{
	struct lookup *l = malloc(sizeof(*l));

	if (!l)
		return NULL;
	*l = (struct lookup){ .x = x,
			      .question = q,
			      .lender = d,
			      .asker = o,
			      .peer = peer,
			      .sent_ns = dray_now().ns,
			      .test = !q };
	o->uses++;
	dray_list_add(q ? &q->lookups : &x->vain, &l->link);
	if (peers_request(x->deps.peers, peer, PMSG_STORE_LOOKUP,
			  &(union pmsg_body){ .store_lookup = *m }, on_reply, l) < 0) {
		lookup_free(l);
		return NULL;
	}
	asker_hold(x, o, d);
	return l;
}

/* Fills one message with the keys from l->first on for which the agent is asked. */
static void message_fill(const struct question *q, struct lookup *l, const struct lender *d,
			 uint8_t *keys, uint32_t *ret_bytes)
{
	const struct store_ask *a = q->ask;
	uint32_t bytes = 0;

	for (l->n = 0, l->end = l->first; l->end < a->n_asked && l->n < KEYS_MAX; l->end++) {
		const struct store_asked *k = &a->v[l->end];

		if (!question_asks(q, l->end, d))
			continue;
		if (bytes + 1 + k->n_key > KEYS_BYTES)
			break;
		bytes = store_asked_put(k, keys, bytes);
		l->n++;
	}
	*ret_bytes = bytes;
}

static void ask_peer(struct exchange *x, struct question *q, struct lender *d, dray_handle peer)
{
	struct store_ask *a = q->ask;
	const char *tenant = a->asker->owner.tenant;
	uint8_t keys[KEYS_BYTES];
	struct pmsg_store_lookup m = { .uid = a->uid,
				       .lease_ms = question_lease_ms(q),
				       .space = { a->space, (uint32_t)strlen(a->space) },
				       .tenant = { tenant, (uint32_t)strlen(tenant) },
				       .keys = { keys, 0 },
				       .flags = a->lease_ms ? PMSG_STORE_LOOKUP_FLAG_HOLD :
							      PMSG_STORE_LOOKUP_FLAG_BYTES };

	for (struct lookup part = { .end = 0 }; part.end < a->n_asked;) {
		struct lookup *l;

		part.first = part.end;
		message_fill(q, &part, d, keys, &m.keys.n);
		if (!part.n)
			return;
		l = lookup_send(x, d, peer, a->asker, q, &m);
		/* its connection is clogged, or there is no memory */
		if (!l) {
			question_refuse(q, d, peer, part.first, a->n_asked);
			return;
		}
		l->first = part.first;
		l->end = part.end;
		l->n = part.n;
	}
}

/* Is the agent in time again? It refuses a name space without a name at once, whatever its store does. */
static void test_peer(struct exchange *x, struct question *q, struct lender *d, dray_handle peer)
{
	uint8_t keys[1 + UINT8_MAX];
	struct pmsg_store_lookup m = { .uid = q->ask->uid,
				       .keys = { keys, store_asked_put(q->ask->v, keys, 0) } };

	lookup_send(x, d, peer, q->ask->asker, NULL, &m);
}

static bool is_asked_any(const struct question *q, const struct lender *d)
{
	for (uint32_t i = 0; i < q->ask->n_asked; i++)
		if (question_asks(q, i, d))
			return true;
	return false;
}

/* Only the agent that wants its objects to be kept here. */
static void ask_from(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;
	struct lender *d = lender_from(x);

	if (asker_may_ask_at(x, a->asker, d, q->messages))
		ask_peer(x, q, d, a->from);
	else
		question_refuse(q, d, 0, 0, a->n_asked);
	if (dray_list_empty(&q->lookups))
		question_end(x, q);
}

void lookups_send(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;
	int64_t now = dray_now().ns;

	if (a->from) {
		ask_from(x, q);
		return;
	}
	/* constant from here on: answers have the keys that were asked for */
	q->maybe = summaries_maybe(x, a);
	for (uint32_t i = 0; i < x->n_lenders; i++) {
		struct lender *d = &x->lenders[i];
		dray_handle peer = d->at ? peers_at(x->deps.peers, d->at, PMSG_FEATURE_STORE) : 0;

		if (peer)
			summary_want(x, d, peer);
		if (!peer || !is_asked_any(q, d))
			continue;
		if (d->away) {
			unanswered(q, d, peer, 0, a->n_asked);
			if (now < d->next_ns)
				continue;
			d->next_ns = now + d->pause_ns;
			test_peer(x, q, d, peer);
		} else if (asker_may_ask_at(x, a->asker, d, q->messages)) {
			ask_peer(x, q, d, peer);
		} else {
			question_refuse(q, d, peer, 0, a->n_asked);
		}
	}
	if (dray_list_empty(&q->lookups))
		question_end(x, q);
}

void lookups_free(struct dray_list *lookups)
{
	dray_list_for_each(lookups, l, struct lookup, link)
		lookup_free(l);
}
