/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Summaries of what other agents' stores have: who is not asked for a key. An agent of which there is no summary, or not all of it yet, is
 * asked for all keys.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/internal.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static void forget(struct summary *s)
{
	filter_deinit(&s->filter);
	s->whole = false;
	s->got = 0;
}

/* The peer refuses it, or is lost: there is no summary then. */
static void watched(void *arg, uint32_t code, const union pmsg_body *reply)
{
}

void summary_want(struct exchange *x, struct lender *d, dray_handle peer)
{
	static const union pmsg_body m = { .store_watch = { .version = 1 } };
	struct summary *s = &d->summary;

	if (!x->summaries || s->peer == peer)
		return;
	forget(s);
	s->peer = peers_request(x->deps.peers, peer, PMSG_STORE_WATCH, &m, watched, NULL) < 0 ?
			  0 :
			  peer;
}

/* False: no memory. */
static bool digests_of(struct exchange *x, const struct store_ask *a, struct filter_digest *ret)
{
	for (uint32_t k = 0; k < a->n_asked; k++) {
		struct store_key key = { a->v[k].key, a->v[k].n_key };

		if (!digest_of(&x->names, a->space, key, &ret[k]))
			return false;
	}
	return true;
}

uint64_t *summaries_maybe(struct exchange *x, const struct store_ask *a)
{
	dray_auto_free struct filter_digest *digests = NULL;
	dray_auto_free uint64_t *maybe = NULL;
	bool any = false;

	for (uint32_t i = 0; x->summaries && i < x->n_lenders; i++)
		any |= x->lenders[i].summary.whole;
	if (any) {
		digests = malloc(a->n_asked * sizeof(*digests));
		maybe = malloc(a->n_asked * sizeof(*maybe));
	}
	if (!digests || !maybe || !digests_of(x, a, digests))
		return NULL;
	memset(maybe, 0xff, a->n_asked * sizeof(*maybe));
	/* all keys in one filter, then in the next, which takes less time than the other order */
	for (uint32_t i = 0; i < x->n_lenders; i++) {
		const struct summary *s = &x->lenders[i].summary;

		if (s->whole)
			x->n_skipped += filter_sift(&s->filter, digests, a->n_asked, maybe,
						    UINT64_C(1) << i);
	}
	return dray_take(maybe);
}

static struct summary *summary_of(struct exchange *x, dray_handle peer)
{
	for (uint32_t i = 0; i < x->n_lenders; i++)
		if (x->lenders[i].summary.peer == peer)
			return &x->lenders[i].summary;
	return NULL;
}

/* The next bytes of the filter. 0, or an error code. */
static uint32_t take_bytes(struct summary *s, const struct pmsg_store_summary *m)
{
	if (!m->offset) {
		forget(s);
		if (!filter_bits_valid(m->bits))
			return DRAY_E_INVALID;
		if (filter_init(&s->filter, m->bits, m->generation) < 0)
			return DRAY_E_NO_MEMORY;
		s->generation = m->generation;
	}
	if (m->generation != s->generation || m->bits != s->filter.bits || m->offset != s->got ||
	    m->bytes.n > s->filter.bits / 8 - s->got)
		return DRAY_E_INVALID;
	memcpy(s->filter.bytes + s->got, m->bytes.p, m->bytes.n);
	s->got += m->bytes.n;
	s->whole = s->got == s->filter.bits / 8;
	return 0;
}

/* Objects that have come. 0, or an error code. */
static uint32_t take_objects(struct summary *s, const struct pmsg_store_summary *m)
{
	if (!s->whole || m->generation != s->generation)
		return DRAY_E_INVALID;
	for (uint32_t i = 0; i < m->digests.n; i++) {
		struct pmsg_store_digest d;

		pmsg_store_digest_get(m->digests.p + (size_t)i * PMSG_STORE_DIGEST_SIZE, &d);
		filter_add(&s->filter, (struct filter_digest){ d.a, d.b });
	}
	return 0;
}

static uint32_t take(struct summary *s, const struct pmsg_store_summary *m)
{
	uint32_t code = 0;

	if (!m->bits) {
		forget(s);
		return 0;
	}
	if (m->bytes.n)
		code = take_bytes(s, m);
	return code ? code : m->digests.n ? take_objects(s, m) : 0;
}

void exchange_summary(struct exchange *x, dray_handle peer, uint64_t request_id,
		      const struct pmsg_store_summary *m)
{
	struct summary *s = summary_of(x, peer);
	uint32_t code = s ? take(s, m) : DRAY_E_INVALID;

	if (!code) {
		peers_send(x->deps.peers, peer, PMSG_STORE_SUMMARY_REPLY, request_id, NULL);
		return;
	}
	/* it sends no more, and is asked for all keys */
	if (s)
		forget(s);
	peers_refuse(x->deps.peers, peer, request_id, code,
		     code == DRAY_E_NO_MEMORY ? "no memory for the summary" :
						"that is no part of a summary that was asked for");
}

void summaries_peer_gone(struct exchange *x, dray_handle peer)
{
	struct summary *s = summary_of(x, peer);

	if (!s)
		return;
	forget(s);
	s->peer = 0;
}

int summaries_init(struct exchange *x)
{
	const struct dray_config *cfg = x->deps.cfg;
	int r;

	if (!cfg->store.summaries || x->deps.directory)
		return 0;
	r = names_init(&x->names, "");
	if (r < 0)
		return r;
	x->summaries = true;
	return cfg->store.lend ? summarizer_new(x) : 0;
}

void summaries_deinit(struct exchange *x)
{
	for (uint32_t i = 0; i < x->n_lenders; i++)
		forget(&x->lenders[i].summary);
	x->summarizer = summarizer_free(x->summarizer);
	names_deinit(&x->names);
}
