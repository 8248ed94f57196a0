/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agents that are asked. Those of store.peers are known from the start. The directory may name others: an agent whose address is in
 * store.directory_agents is connected to when it is named first, and forgotten when it has not been named for a while. An agent that has
 * not answered in time is not waited for until it answers again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/network.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/store_ask.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define FORGET_NS (10 * 60 * DRAY_NS_PER_SEC)
/* A place is not taken from an agent that was named so lately: questions may still mean it. */
#define KEEP_NS (60 * DRAY_NS_PER_SEC)
/* How long an agent is not waited for, which has not answered in time. */
#define PAUSE_MIN_NS (500 * DRAY_NS_PER_MS)
#define PAUSE_MAX_NS (10 * DRAY_NS_PER_SEC)

uint32_t lenders_max(const struct exchange *x)
{
	return (uint32_t)x->deps.cfg->store.peers.n + EXCHANGE_NAMED_MAX + 1;
}

struct lender *lender_from(const struct exchange *x)
{
	return &x->lenders[lenders_max(x) - 1];
}

static void add(struct exchange *x, struct lender *d, const struct dray_addr *a)
{
	dray_addr_show(a, d->segment, sizeof(d->segment));
	dray_map_add(&x->by_segment, &d->by_segment, d->segment, strlen(d->segment));
}

/* It is neither asked nor lends anything. */
static bool is_idle(const struct lender *d, int64_t since_ns)
{
	return d->is_named && !d->held && d->named_ns < since_ns;
}

static void forget(struct exchange *x, struct lender *d)
{
	dray_map_del(&x->by_segment, &d->by_segment);
	/* it has no summary, since there is a directory */
	*d = (struct lender){ .at = NULL };
}

/* A free place, if necessary that of the agent that was named longest ago. */
static struct lender *place_find(struct exchange *x, int64_t now)
{
	struct lender *oldest = NULL;

	for (uint32_t i = (uint32_t)x->deps.cfg->store.peers.n; i < x->n_lenders; i++) {
		struct lender *d = &x->lenders[i];

		if (is_idle(d, now - FORGET_NS))
			forget(x, d);
		if (!*d->segment)
			return d;
		if (is_idle(d, now - KEEP_NS) && (!oldest || d->named_ns < oldest->named_ns))
			oldest = d;
	}
	if (x->n_lenders < lenders_max(x) - 1)
		return &x->lenders[x->n_lenders++];
	if (oldest)
		forget(x, oldest);
	return oldest;
}

static struct lender *lender_new(struct exchange *x, const struct dray_addr *a)
{
	struct lender *d = place_find(x, dray_now().ns);

	if (!d)
		return NULL;
	d->is_named = true;
	d->at = d->segment;
	add(x, d, a);
	x->deps.named(x->deps.arg);
	return d;
}

/* One of store.peers, which the directory may know by another of its addresses. */
static struct lender *peer_at(struct exchange *x, const char *segment)
{
	dray_handle peer = peers_at(x->deps.peers, segment, PMSG_FEATURE_STORE);

	for (size_t i = 0; peer && i < x->deps.cfg->store.peers.n; i++)
		if (peers_at(x->deps.peers, x->lenders[i].at, PMSG_FEATURE_STORE) == peer)
			return &x->lenders[i];
	return NULL;
}

struct lender *lender_at(struct exchange *x, const char *segment)
{
	struct lender *d = dray_map_entry(dray_map_find(&x->by_segment, segment, strlen(segment)),
					  struct lender, by_segment);
	struct dray_addr a;

	if (!d)
		d = peer_at(x, segment);
	if (!d && dray_addr_parse(segment, &a) == 0 && dray_endpoint_valid(segment) &&
	    networks_have(&x->deps.cfg->store.directory_agents, &a))
		d = lender_new(x, &a);
	if (d)
		d->named_ns = dray_now().ns;
	return d;
}

struct lender *lender_called(struct exchange *x, const char *segment)
{
	for (size_t i = 0; i < x->deps.cfg->store.peers.n; i++)
		if (!strcmp(x->lenders[i].at, segment))
			return &x->lenders[i];
	return peer_at(x, segment);
}

void lender_judge(struct lender *d, int64_t sent_ns, bool test, uint32_t code)
{
	int64_t now = dray_now().ns;

	if (code == DRAY_E_PEER_LOST)
		return;
	if (code != DRAY_E_TIMEOUT) {
		d->away = false;
		/* the answer to a test says nothing of its store */
		if (!test)
			d->pause_ns = 0;
		return;
	}
	/* one pause for all lookups that were on their way together */
	if (sent_ns < d->late_ns)
		return;
	d->away = true;
	d->late_ns = now;
	/* at first the next question tests it, because it may be that these objects took long */
	d->next_ns = now + d->pause_ns;
	d->pause_ns = dray_max(2 * d->pause_ns, PAUSE_MIN_NS);
	d->pause_ns = dray_min(d->pause_ns, PAUSE_MAX_NS);
}

bool lender_is_late(const struct lender *d)
{
	int64_t now = dray_now().ns;

	return now < d->keep_ns || (d->away && now < d->next_ns);
}

void lenders_direct(const struct exchange *x, struct store_direct *ret)
{
	ret->n = 0;
	if (x->deps.directory || x->summaries)
		return;
	for (uint32_t i = 0; i < x->n_lenders; i++) {
		const struct lender *d = &x->lenders[i];
		dray_handle peer = d->at ? peers_at(x->deps.peers, d->at, PMSG_FEATURE_STORE) : 0;

		/* when it connects, workers ask for these again */
		if (!peer && !(d->at && peers_is_up_at(x->deps.peers, d->at)))
			continue;
		if (!peer || d->away || ret->n == STORE_DIRECT_MAX ||
		    peers_at(x->deps.peers, d->at, PMSG_FEATURE_STORE | PMSG_FEATURE_FIND) !=
			    peer) {
			ret->n = 0;
			return;
		}
		ret->peers[ret->n++] = peer;
		/* if several agents have the object, each of them sends all of it: so only one is asked like this */
		ret->trails = ret->n == 1 &&
			      peers_at(x->deps.peers, d->at,
				       PMSG_FEATURE_STORE | PMSG_FEATURE_TRAILING) == peer;
	}
}

unsigned exchange_named(const struct exchange *x, const char *ret[EXCHANGE_NAMED_MAX])
{
	unsigned n = 0;

	for (uint32_t i = 0; x && i < x->n_lenders; i++)
		if (x->lenders[i].is_named)
			ret[n++] = x->lenders[i].segment;
	return n;
}

int lenders_init(struct exchange *x)
{
	const struct dray_strv *peers = &x->deps.cfg->store.peers;

	dray_map_init(&x->by_segment);
	x->lenders = calloc(lenders_max(x), sizeof(struct lender));
	if (!x->lenders)
		return -ENOMEM;
	for (size_t i = 0; i < peers->n; i++) {
		struct lender *d = &x->lenders[x->n_lenders++];
		struct dray_addr a;

		d->at = peers->v[i];
		/* the configuration has been checked */
		if (dray_addr_parse(d->at, &a) == 0)
			add(x, d, &a);
	}
	return 0;
}

void lenders_deinit(struct exchange *x)
{
	dray_map_deinit(&x->by_segment);
	free(x->lenders);
}
