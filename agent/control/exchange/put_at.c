/* SPDX-License-Identifier: Apache-2.0 */
/* PUTs whose objects go to one agent alone (replicate.c offers them to it): which agent that is, and what its answers mean for the client. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/segment_rules.h"
#include "agent/config/store_space.h"
#include "agent/config/words.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/store_ask.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Between two lines of the log about objects that a preferred agent has not taken. */
#define LOG_PAUSE_NS (60 * DRAY_NS_PER_SEC)

/* Of objects that were to go to the agent `at`. */
static void fell_back(struct exchange *x, const char *at, uint64_t n, const char *why)
{
	int64_t now = dray_now().ns;

	x->n_fell_back += n;
	if (x->fell_back_ns && now - x->fell_back_ns < LOG_PAUSE_NS)
		return;
	log_warning(
		"store",
		"objects that were to go to %s stayed here: %s; the next line about such objects "
		"follows in a minute at the earliest keys=%" PRIu64,
		at, why, x->n_fell_back);
	x->fell_back_ns = now;
	x->n_fell_back = 0;
}

/* It was stored here. Else it is not_tried: the second one of a key in the batch. */
static bool is_stored(const struct store_asked *k)
{
	return k->status != DMSG_STORE_STATUS_NOT_TRIED;
}

static uint64_t n_stored(const struct store_ask *a)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < a->n; i++)
		n += is_stored(&a->v[i]);
	return n;
}

/* store.peers may have this agent, by another of its addresses. */
static bool is_self(const struct exchange *x, const char *segment)
{
	return !strcmp(segment, peers_segment(x->deps.peers)) ||
	       peers_segment_leads_here(x->deps.peers, segment);
}

bool put_at_find(struct exchange *x, const struct store_ask *a, struct lender **ret)
{
	const char *put_at = x->deps.cfg->store.put_at, *at = a->at;
	char preferred[SEGMENT_NAME_BYTES];

	*ret = NULL;
	if (!*at && *put_at) {
		at = put_at;
	} else if (!*at) {
		x->deps.preferred(x->deps.arg, a->space, a->tenant, a->uid, preferred,
				  sizeof(preferred));
		at = preferred;
	}
	if (!*at || !strcmp(at, STORE_PUT_AT_LOCAL) || is_self(x, at))
		return true;
	*ret = lender_called(x, at);
	if (!*ret && !*a->at)
		fell_back(x, at, n_stored(a), "it is none of store.peers");
	return false;
}

static const char *reason(enum dmsg_store_status status)
{
	switch (status) {
	case DMSG_STORE_STATUS_UNREACHABLE:
		return "it is not connected, or has not answered in time";
	case DMSG_STORE_STATUS_DENIED:
		return "it lends nothing, or its store.spaces do not have the owner";
	case DMSG_STORE_STATUS_UNSUPPORTED:
		return "its version takes no objects";
	case DMSG_STORE_STATUS_TOO_LARGE:
		return "it has less room for the owner than an object needs";
	case DMSG_STORE_STATUS_CORRUPT:
		return "it has received wrong bytes";
	case DMSG_STORE_STATUS_BUSY:
		return "it is full, or one of the agents drains";
	case DMSG_STORE_STATUS_LOST:
		return "its answer makes no sense";
	case DMSG_STORE_STATUS_OK:
	case DMSG_STORE_STATUS_EXISTS:
	case DMSG_STORE_STATUS_NOT_FOUND:
	case DMSG_STORE_STATUS_NOT_TRIED:
		break;
	}
	return "the PUT has not waited for its answer";
}

void put_at_ended(struct exchange *x, const struct store_ask *a, const struct lender *d)
{
	uint64_t n = 0, of[DMSG_STORE_STATUS_UNSUPPORTED + 1] = { 0 };
	enum dmsg_store_status most = DMSG_STORE_STATUS_OK;

	if (!a->at || *a->at)
		return;
	for (uint32_t i = 0; i < a->n; i++) {
		enum dmsg_store_status status = a->v[i].status;

		if (status == DMSG_STORE_STATUS_OK || status == DMSG_STORE_STATUS_EXISTS ||
		    !is_stored(&a->v[i]))
			continue;
		n++;
		if (++of[status] > of[most])
			most = status;
	}
	if (n)
		fell_back(x, d->at, n, reason(most));
}

void exchange_prefer(struct exchange *x)
{
	const char *at = x->deps.cfg->store.put_at;

	store_prefer(x->deps.store, !*at                           ? STORE_PREFERS_HINTS :
				    strcmp(at, STORE_PUT_AT_LOCAL) ? STORE_PREFERS_AGENT :
								     STORE_PREFERS_ITSELF);
}

void exchange_hinted(struct exchange *x, const char *space, bool on)
{
	store_hinted(x->deps.store, space, on);
}

static const char *fault_of(const struct exchange *x, const struct lender *d)
{
	if (!x->deps.cfg->store.lend)
		return "this agent lends nothing: set store.lend";
	if (lender_is_late(d))
		return reason(DMSG_STORE_STATUS_UNREACHABLE);
	return peers_at(x->deps.peers, d->at, PMSG_FEATURE_STORE | PMSG_FEATURE_KEEP) ?
		       NULL :
		       reason(put_at_why_not(x, d));
}

unsigned exchange_stores(const struct exchange *x, struct exchange_store ret[EXCHANGE_STORES_MAX])
{
	const char *own = peers_segment(x->deps.peers);
	unsigned n = 0;

	_Static_assert(STORE_PEERS_MAX < EXCHANGE_STORES_MAX, "and this agent");
	if (*own)
		ret[n++] = (struct exchange_store){ .segment = own, .own = true };
	for (size_t i = 0; i < x->deps.cfg->store.peers.n; i++)
		if (!is_self(x, x->lenders[i].at))
			ret[n++] = (struct exchange_store){ .segment = x->lenders[i].at,
							    .fault = fault_of(x, &x->lenders[i]) };
	return n;
}

enum dmsg_store_status put_at_why_not(const struct exchange *x, const struct lender *d)
{
	if (!peers_is_up_at(x->deps.peers, d->at))
		return DMSG_STORE_STATUS_UNREACHABLE;
	return peers_at(x->deps.peers, d->at, 0) ? DMSG_STORE_STATUS_UNSUPPORTED :
						   DMSG_STORE_STATUS_BUSY;
}

enum dmsg_store_status put_at_status(uint32_t answer, uint32_t code)
{
	static const enum dmsg_store_status statuses[] = {
		[PMSG_STORE_KEPT_KEPT] = DMSG_STORE_STATUS_OK,
		[PMSG_STORE_KEPT_EXISTS] = DMSG_STORE_STATUS_EXISTS,
		[PMSG_STORE_KEPT_NOT_FOUND] = DMSG_STORE_STATUS_BUSY,
		[PMSG_STORE_KEPT_BUSY] = DMSG_STORE_STATUS_BUSY,
		[PMSG_STORE_KEPT_TOO_LARGE] = DMSG_STORE_STATUS_TOO_LARGE,
		[PMSG_STORE_KEPT_CORRUPT] = DMSG_STORE_STATUS_CORRUPT,
		[PMSG_STORE_KEPT_LOST] = DMSG_STORE_STATUS_BUSY,
	};

	if (!code)
		return answer && answer < DRAY_ARRAY_SIZE(statuses) ? statuses[answer] :
								      DMSG_STORE_STATUS_LOST;
	switch (code) {
	case DRAY_E_TIMEOUT:
	case DRAY_E_PEER_LOST:
		return DMSG_STORE_STATUS_UNREACHABLE;
	case DRAY_E_DENIED:
		return DMSG_STORE_STATUS_DENIED;
	case DRAY_E_UNSUPPORTED:
		return DMSG_STORE_STATUS_UNSUPPORTED;
	default:
		return DMSG_STORE_STATUS_BUSY;
	}
}
