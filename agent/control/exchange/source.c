/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/source.h"

#include <stdlib.h>

#include "agent/control/exchange/asker.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* A source with keys, which its owner may fence. */
struct borrowed {
	struct dray_map_node by_grant;
	struct {
		dray_handle peer;
		uint64_t grant;
	} key;
	struct store_ask *ask; /* that has the source */
	bool fenced;
};

void source_release(struct exchange *x, dray_handle peer, uint64_t grant)
{
	peers_send(x->deps.peers, peer, PMSG_STORE_RELEASE, 0,
		   &(union pmsg_body){ .store_release = { .grant = grant } });
}

static struct borrowed *borrowed_find(const struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct borrowed b = { .key = { peer, grant } };

	return dray_map_entry(dray_map_find(&x->borrowed, &b.key, sizeof(b.key)), struct borrowed,
			      by_grant);
}

bool source_borrow(struct exchange *x, struct store_source *s, struct store_ask *a)
{
	struct borrowed *b = borrowed_find(x, s->view.peer, s->view.grant) ? NULL :
									     malloc(sizeof(*b));

	if (!b)
		return false;
	*b = (struct borrowed){ .key = { s->view.peer, s->view.grant }, .ask = a };
	dray_map_add(&x->borrowed, &b->by_grant, &b->key, sizeof(b->key));
	s->borrowed = b;
	return true;
}

/* Nothing reads from the source any more: its owner learns that. */
static void give_back(struct exchange *x, struct store_source *s)
{
	struct borrowed *b = dray_take(s->borrowed);

	if (b && b->fenced)
		peers_fence_ack(x->deps.peers, s->view.peer, s->view.grant);
	else
		source_release(x, s->view.peer, s->view.grant);
	if (b)
		dray_map_del(&x->borrowed, &b->by_grant);
	free(b);
}

bool exchange_has(struct exchange *x, dray_handle peer, uint64_t grant)
{
	return x && borrowed_find(x, peer, grant);
}

/* What was found there is not there any more. It may be looked up again, as after the end of a lease. */
static void forget(struct store_ask *a, dray_handle peer, uint64_t grant)
{
	uint32_t i;

	if (ask_find_source(a, peer, grant, &i))
		a->sources[i].end_ns = 0;
}

void exchange_fence(struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct borrowed *b = borrowed_find(x, peer, grant);

	b->fenced = true;
	if (b->ask->question)
		forget(b->ask, peer, grant);
	else
		worker_post(x->deps.pool->workers[b->ask->worker],
			    &(struct command){ .type = COMMAND_STORE_FENCED,
					       .session = b->ask->session,
					       .handle = peer,
					       .id = grant,
					       .number = b->ask->number });
}

static void lease_free(struct exchange *x, struct lease *l)
{
	asker_put(x, l->asker);
	free(l);
}

void exchange_source_end(struct exchange *x, struct store_ask *a, uint32_t source)
{
	struct store_source *s = &a->sources[source];
	struct lease *l = dray_take(s->lease);

	if (!l || --l->uses)
		return;
	give_back(x, s);
	asker_unhold(x, l->asker, l->lender);
	lease_free(x, l);
}

void sources_drop(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n_sources; i++) {
		struct lease *l = a->sources[i].lease;

		if (l && !--l->uses)
			lease_free(x, l);
	}
}

void sources_deinit(struct exchange *x)
{
	dray_map_for_each(&x->borrowed, b, struct borrowed, by_grant) {
		dray_map_del(&x->borrowed, &b->by_grant);
		free(b);
	}
	dray_map_deinit(&x->borrowed);
}
