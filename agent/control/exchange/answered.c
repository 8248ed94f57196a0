/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/answered.h"

#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/asker.h"
#include "agent/control/exchange/source.h"
#include "agent/model/store_ask.h"
#include "lib/time.h"

#define ACCURACY_US 1000
/* A lease that ends sooner is not shared. */
#define SHARED_LEAST_NS (20 * DRAY_NS_PER_MS)

static bool has_kept(struct exchange *x, const struct store_ask *a, const struct store_asked *k)
{
	dray_map_for_each_of(&x->kept, k->key, k->n_key, v, struct store_asked, by_key)
		if (v->of == a)
			return true;
	return false;
}

/* GETs of other sessions of the owner find what an EXISTS has found: each key once, because those of one key are in one chain. */
static void keep(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; a->lease_ms && i < a->n; i++) {
		struct store_asked *k = &a->v[i];

		if (k->status || has_kept(x, a, k))
			continue;
		k->of = a;
		dray_map_add(&x->kept, &k->by_key, k->key, k->n_key);
	}
}

/* An EXISTS keeps what was found until then. */
static void lease_watch(struct exchange *x, struct store_ask *a)
{
	int64_t end_ns = 0;

	if (!a->lease_ms || !a->n_sources)
		return;
	for (uint32_t i = 0; i < a->n_sources; i++)
		end_ns = dray_max(end_ns, a->sources[i].end_ns);
	timers_set(&x->leases, &a->over, end_ns);
}

static void lapsed(struct dray_heap_node *node, int64_t now)
{
	struct store_ask *a = dray_container_of(node, struct store_ask, over);

	worker_post(a->asker->x->deps.pool->workers[a->worker],
		    &(struct command){ .type = COMMAND_STORE_LAPSED,
				       .session = a->session,
				       .number = a->number });
}

void answered_add(struct exchange *x, struct store_ask *a)
{
	dray_list_add(&x->asks, &a->link);
	keep(x, a);
	lease_watch(x, a);
	lenders_direct(x, &a->direct);
	worker_post(
		x->deps.pool->workers[a->worker],
		&(struct command){ .type = COMMAND_STORE_ASKED, .session = a->session, .ask = a });
}

void answered_free(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		dray_map_del(&x->kept, &a->v[i].by_key);
	if (a->asker) {
		*asker_lookups(x, a->asker) -= a->lookups;
		a->asker->lookups -= a->lookups;
		a->asker->keeping -= a->keeping;
		x->keeping -= a->keeping;
		asker_put(x, a->asker);
		timers_set(&x->leases, &a->over, INT64_MAX);
		x->n_keeping -= a->lease_ms != 0;
	}
	dray_list_del(&a->link);
	store_ask_free(a);
}

/*
 * What an EXISTS of another session of the owner has found, and leases long enough. NULL: none has. A source with keys is for one ask,
 * which its owner can fence.
 */
static const struct store_asked *kept_find(struct exchange *x, const struct store_ask *a,
					   const struct store_asked *k, int64_t now)
{
	dray_map_for_each_of(&x->kept, k->key, k->n_key, v, struct store_asked, by_key) {
		const struct store_source *s = &v->of->sources[v->source];

		if (s->lease && !s->borrowed && v->of->asker == a->asker &&
		    !strcmp(v->of->space, a->space) && s->end_ns - now > SHARED_LEAST_NS)
			return v;
	}
	return NULL;
}

/* The source of the ask with this lease; a new one if it has none. */
static uint32_t source_share(struct store_ask *a, const struct store_source *from)
{
	uint32_t i = 0;

	while (i < a->n_sources && a->sources[i].lease != from->lease)
		i++;
	if (i < a->n_sources)
		return i;
	a->sources[a->n_sources++] = (struct store_source){ .view = from->view,
							    .lease = from->lease,
							    .end_ns = from->end_ns };
	from->lease->uses++;
	return i;
}

bool answered_share(struct exchange *x, struct store_ask *a)
{
	const struct store_asked *found[DMSG_STORE_KEYS_MAX];
	int64_t now = dray_now().ns;
	struct store_source *s;

	if (a->lease_ms || a->again || !x->kept.n)
		return false;
	for (uint32_t i = 0; i < a->n_asked; i++) {
		found[i] = kept_find(x, a, &a->v[i], now);
		if (!found[i])
			return false;
	}
	s = realloc(a->sources, (a->n_sources + a->n_asked) * sizeof(struct store_source));
	if (!s)
		return false;
	a->sources = s;
	for (uint32_t i = 0; i < a->n_asked; i++) {
		const struct store_asked *f = found[i];
		struct store_asked *k = &a->v[i];

		k->source = source_share(a, &f->of->sources[f->source]);
		k->status = DMSG_STORE_STATUS_OK;
		k->offset = f->offset;
		k->length = f->length;
		k->crc = f->crc;
		k->cost_us = f->cost_us;
	}
	return true;
}

int answered_init(struct exchange *x)
{
	dray_list_init(&x->asks);
	dray_map_init(&x->kept);
	return timers_init(&x->leases, x->deps.event, ACCURACY_US, SD_EVENT_PRIORITY_NORMAL,
			   lapsed);
}

void answered_deinit(struct exchange *x)
{
	dray_list_for_each(&x->asks, a, struct store_ask, link) {
		sources_drop(x, a);
		answered_free(x, a);
	}
	dray_map_deinit(&x->kept);
	timers_deinit(&x->leases);
}
