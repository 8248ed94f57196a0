/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUTs with replicas = 2, and those whose objects go to another agent: when the objects are here, the control thread asks another agent to
 * keep them, and the answer to the client waits for that. Meanwhile the batch is a fetch, so that its deadline, TRANSFER_CANCEL, and the end
 * of its session end the wait as they end that of a GET. Whatever becomes of copies, the PUT itself has succeeded.
 */
#include <stdlib.h>

#include "agent/data/worker/store_pending.h"
#include "agent/data/worker/store_reading.h"
#include "agent/data/worker/store_wanted.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

struct store_ask *replicas_ask(struct wsession *s, const struct batch *b,
			       const struct store_key *keys, struct dray_str at)
{
	return b->forwards || (b->copies && store_asks(b->member)) ?
		       wanted_replicas(s, b, keys, at) :
		       NULL;
}

/* Leaves out what was not stored after all. False: nothing is left. */
static bool any_stored(const struct batch *b, struct store_ask *k)
{
	bool any = false;

	for (uint32_t i = 0; i < k->n; i++)
		if (batch_asks_for(b, k->v[i].item))
			any = true;
		else
			k->v[i].status = DMSG_STORE_STATUS_NOT_TRIED;
	return any;
}

bool replicas_begin(struct wsession *s, struct batch *b)
{
	int64_t now = dray_now().ns;
	struct fetch *f;

	if (!b->replicas || s->dead || s->worker->draining || now >= b->end_ns ||
	    s->requests >= s->xs.shared->requests_max || !any_stored(b, b->replicas))
		return false;
	if (idset_add(&s->ids, b->call.request_id) < 0)
		return false;
	f = fetch_alloc(s, b, NULL, 0);
	if (!f) {
		idset_del(&s->ids, b->call.request_id);
		return false;
	}
	b->copied_ns = now;
	fetch_enter(f);
	fetch_send(f, dray_take(b->replicas));
	return true;
}

void replicas_told(struct fetch *f, struct store_ask *k, uint32_t code)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;

	if (b->forwards)
		code = forward_end(&s->worker->core, b, k, code ? code : DRAY_E_DEADLINE);
	else
		/* the objects are here, whatever becomes of their copies */
		code = 0;
	for (uint32_t i = 0; b->copies && k && i < k->n; i++)
		b->copies[k->v[i].item] = 1 + (k->v[i].status == DMSG_STORE_STATUS_OK);
	if (k)
		owner_charge(s->xs.owner, (uint64_t)k->n * KEY_WORK);
	ask_end(s->worker, k);
	idset_del(&s->ids, b->call.request_id);
	b->end(s, b, code, NULL);
	fetch_free(f);
}
