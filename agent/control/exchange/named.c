/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/named.h"

#include <stdlib.h>

#include "agent/control/exchange/lookup.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

static void on_named(void *arg, uint32_t i, const char *segment, int64_t until_ms)
{
	struct question *q = arg;
	const struct lender *d = lender_at(q->x, segment);
	struct named *named = &q->named[i];

	if (!d || named->n == NAMED_MAX)
		return;
	named->lenders[named->n] = (uint16_t)(d - q->x->lenders);
	named->until_ms[named->n++] = until_ms;
}

static void on_unknown(void *arg, uint32_t i)
{
	struct question *q = arg;

	q->named[i].all = true;
}

static void on_found(void *arg)
{
	struct question *q = arg;

	q->find = NULL;
	lookups_send(q->x, q);
}

bool named_ask(struct exchange *x, struct question *q)
{
	static const struct directory_found found = { .named = on_named,
						      .unknown = on_unknown,
						      .done = on_found };
	const struct store_ask *a = q->ask;
	dray_auto_free struct store_key *keys = NULL;

	if (!x->deps.directory)
		return false;
	keys = malloc(a->n_asked * sizeof(*keys));
	q->named = calloc(a->n_asked, sizeof(*q->named));
	if (keys && q->named) {
		for (uint32_t i = 0; i < a->n_asked; i++)
			keys[i] = (struct store_key){ a->v[i].key, a->v[i].n_key };
		q->find = directory_find(x->deps.directory, a->space, keys, a->n_asked, &found, q);
	}
	if (q->find)
		return true;
	free(dray_take(q->named));
	return false;
}
