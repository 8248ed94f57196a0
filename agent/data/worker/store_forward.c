/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUTs whose objects go to another agent. Their bytes come here first, as for any PUT. Then that agent is asked to keep the objects, as a
 * PUT with replicas asks (store_replicas.c), and nothing stays here. If the client has not named it, the control thread knows which agent is
 * preferred, and what that does not take stays here, as after any other PUT.
 */
#include <errno.h>
#include <string.h>

#include "agent/config/store_space.h"
#include "agent/data/worker/store_batch.h"
#include "agent/model/store_ask.h"
#include "lib/addr.h"

bool forward_wanted(const struct dmsg_store_put *m)
{
	const char *local = STORE_PUT_AT_LOCAL;

	return m->agent.n && (m->agent.n != strlen(local) || memcmp(m->agent.p, local, m->agent.n));
}

static bool is_segment(struct dray_str at)
{
	char text[257];

	if (at.n >= sizeof(text))
		return false;
	memcpy(text, at.p, at.n);
	text[at.n] = '\0';
	return strlen(text) == at.n && dray_endpoint_valid(text);
}

int forward_check(const struct store_member *member, bool lends, const struct dmsg_store_put *m,
		  struct dray_err *reterr)
{
	if (!forward_wanted(m))
		return 0;
	if (!is_segment(m->agent))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"the agent of a PUT is neither HOST:PORT nor " STORE_PUT_AT_LOCAL);
	if (m->replicas == 2)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "a PUT at another agent has one copy: leave replicas out");
	if (!*store_member_space(member))
		return dray_err_set(reterr, -EPERM, DRAY_E_DENIED,
				    "objects of a name space without a name stay at this agent: "
				    "use one of store.spaces");
	if (!store_asks(member) || !lends)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this agent puts no objects at others: set %s",
				    lends ? "store.peers" : "store.lend");
	return 0;
}

uint32_t forward_unasked(const struct wsession *s, const struct batch *b)
{
	return s->worker->draining        ? DRAY_E_DRAINING :
	       dray_now().ns >= b->end_ns ? DRAY_E_DEADLINE :
					    DRAY_E_BUSY;
}

static bool is_there(enum dmsg_store_status status)
{
	return status == DMSG_STORE_STATUS_OK || status == DMSG_STORE_STATUS_EXISTS;
}

/* What becomes of a key, which is here and held. */
static void key_end(struct core *c, struct batch *b, uint32_t i, enum dmsg_store_status status)
{
	struct dmsg_store_result *r = &b->results[i];
	bool there = is_there(status);

	r->status = (uint16_t)status;
	if (there)
		r->tier = DMSG_STORE_TIER_AGENT;
	if (status == DMSG_STORE_STATUS_BUSY)
		batch_busy(c, r);
	core_count(c->counters,
		   there ? DRAY_METRIC_STORE_FORWARDED_TOTAL :
			   DRAY_METRIC_STORE_FORWARD_FAILED_TOTAL,
		   1);
	store_forward_end(&b->gets[i], there ? STORE_FORWARD_THERE : STORE_FORWARD_DROPPED);
}

/* The agent that it goes to is this one, or has not taken it. */
static void key_stays(struct core *c, struct batch *b, uint32_t i)
{
	b->results[i].status = DMSG_STORE_STATUS_OK;
	batch_count_put(c, b->results[i].length);
	store_forward_end(&b->gets[i], STORE_FORWARD_HERE);
}

/* The answer is not known. */
static bool is_open(const struct store_asked *v)
{
	return v->status == DMSG_STORE_STATUS_NOT_FOUND || v->status == DMSG_STORE_STATUS_NOT_TRIED;
}

uint32_t forward_end(struct core *c, struct batch *b, const struct store_ask *k, uint32_t code)
{
	bool open = false;

	bool here = k && k->here;

	b->agents_ns = k && !here ? dray_now().ns : 0;
	for (uint32_t i = 0; k && !here && i < k->n; i++) {
		const struct store_asked *v = &k->v[i];

		/* it was stored, and has an answer that counts */
		if (b->gets[v->item].object && (b->prefers ? is_there(v->status) : !is_open(v)))
			key_end(c, b, v->item, v->status);
	}
	for (uint32_t i = 0; i < b->n; i++) {
		if (!b->gets[i].object)
			continue;
		if (here || b->prefers) {
			key_stays(c, b, i);
			core_count(c->counters, DRAY_METRIC_STORE_FORWARD_FALLBACKS_TOTAL, !here);
			continue;
		}
		open = true;
		key_end(c, b, i, DMSG_STORE_STATUS_NOT_TRIED);
	}
	return open ? code : 0;
}
