/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/asker.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/model/budget.h"
#include "agent/model/store_ask.h"

/* Lookups at one agent, with those whose leases last; as many as it allows. */
#define LOOKUPS_MAX 64
/* Lookups of EXISTS with their leases, of all owners: half of all, so that they never keep GETs waiting. */
#define KEEPING_MAX (LOOKUPS_MAX / 2)

struct asker *asker_get(struct exchange *x, const struct store_ask *a)
{
	struct asker *o = calloc(1, sizeof(*o) + lenders_max(x) * sizeof(o->held[0]));
	struct dray_map_node *known;

	if (!o)
		return NULL;
	snprintf(o->owner.tenant, sizeof(o->owner.tenant), "%s", a->tenant);
	o->owner.uid = a->uid;
	o->owner.from = a->from;
	known = dray_map_find(&x->askers, &o->owner, sizeof(o->owner));
	if (known) {
		free(o);
		return dray_map_entry(known, struct asker, by_owner);
	}
	o->x = x;
	dray_list_init(&o->link);
	dray_list_init(&o->waiting);
	dray_map_add(&x->askers, &o->by_owner, &o->owner, sizeof(o->owner));
	return o;
}

void asker_check(struct exchange *x, struct asker *o)
{
	if (o->uses)
		return;
	dray_map_del(&x->askers, &o->by_owner);
	free(o);
}

void asker_put(struct exchange *x, struct asker *o)
{
	o->uses--;
	asker_check(x, o);
}

/* The owner has `own` of all lookups. */
static bool may_have(uint32_t own, uint32_t all, uint32_t more)
{
	return !own || own + more <= budget_share(LOOKUPS_MAX, all - own, 0);
}

uint32_t *asker_lookups(struct exchange *x, const struct asker *o)
{
	return o->owner.from ? &x->keep_lookups : &x->lookups;
}

bool asker_may_ask(struct exchange *x, const struct asker *o, uint32_t messages)
{
	return may_have(o->lookups, *asker_lookups(x, o), messages);
}

bool asker_may_keep(const struct exchange *x, const struct asker *o, uint32_t messages)
{
	uint32_t own = o->keeping;

	return !own || own + messages <= budget_share(KEEPING_MAX, x->keeping - own, 0);
}

bool asker_may_ask_at(const struct exchange *x, const struct asker *o, const struct lender *d,
		      uint32_t messages)
{
	return may_have(o->held[d - x->lenders], d->held, messages);
}

void asker_hold(struct exchange *x, struct asker *o, struct lender *d)
{
	d->held++;
	o->held[d - x->lenders]++;
}

void asker_unhold(struct exchange *x, struct asker *o, struct lender *d)
{
	d->held--;
	o->held[d - x->lenders]--;
}
