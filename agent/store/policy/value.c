/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy merit, except while LRU would save more: on requests for what was used last, counting uses is of no use. Both
 * orders of all objects are kept, so that a victim can be taken from either, and a trial tells which one.
 *
 * Of two tiers each has a trial. That of the lower one simulates a tier with the objects of both, and sees all requests: an object that is
 * evicted below is lost, while one that is evicted above is still found.
 */
#include "agent/store/policy/internal.h"
#include "agent/store/policy/trial.h"

enum { MERIT, LRU };

struct value {
	struct policy base;
	struct policy *merit;
	struct dray_list recency; /* the one used longest ago first */
	struct trial trial;
	uint64_t bytes; /* of the objects here and, in the lower tier, also of those in the upper one */
};

static struct value *of(struct policy *p)
{
	return (struct value *)p;
}

static int init(struct policy *p)
{
	int r;

	dray_list_init(&of(p)->recency);
	r = policy_new(&of(p)->merit, POLICY_MERIT, p->below ? of(p->below)->merit : NULL);
	return r < 0 ? r : trial_init(&of(p)->trial, POLICY_MERIT, POLICY_LRU);
}

static void deinit(struct policy *p)
{
	policy_free(of(p)->merit);
	trial_deinit(&of(p)->trial);
}

static int reserve(struct policy *p, uint32_t n, uint32_t all)
{
	return policy_merit.reserve(of(p)->merit, n, all);
}

static void grow(struct policy *p, const struct policy_entry *e)
{
	of(p)->bytes += policy_bytes(e);
	of(p)->trial.capacity = dray_max(of(p)->trial.capacity, of(p)->bytes);
}

static void request(struct policy *p, const struct policy_entry *e)
{
	trial_request(&of(p)->trial, policy_bytes(e), e->cost, e->tag);
}

static void add(struct policy *p, struct policy_entry *e)
{
	policy_merit.add(of(p)->merit, e);
	for (struct policy *tier = p; tier; tier = tier->below) {
		grow(tier, e);
		request(tier, e);
	}
}

static void arrive(struct policy *p, struct policy_entry *e)
{
	policy_merit.arrive(of(p)->merit, e);
	if (p->below)
		grow(p, e);
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	policy_list_add(&of(p)->recency, &e->recency, first);
	policy_merit.enter(of(p)->merit, e, first);
}

static void leave(struct policy *p, struct policy_entry *e)
{
	dray_list_del(&e->recency);
	policy_merit.leave(of(p)->merit, e);
}

static void use(struct policy *p, struct policy_entry *e)
{
	if (!e->held)
		dray_list_move(&of(p)->recency, &e->recency);
	policy_merit.use(of(p)->merit, e);
	for (struct policy *tier = p; tier; tier = tier->below)
		request(tier, e);
}

static struct policy_entry *victim(struct policy *p)
{
	of(p)->trial.capacity = of(p)->bytes;
	if (trial_leader(&of(p)->trial) == LRU)
		return dray_list_first(&of(p)->recency, struct policy_entry, recency);
	return policy_merit.victim(of(p)->merit);
}

static void depart(struct policy *p, struct policy_entry *e, bool evicted)
{
	policy_merit.depart(of(p)->merit, e, evicted);
	if (p->below)
		of(p)->bytes -= policy_bytes(e);
}

static void removed(struct policy *p, struct policy_entry *e, bool evicted)
{
	policy_merit.removed(of(p)->merit, e, evicted);
	of(policy_lowest(p))->bytes -= policy_bytes(e);
	for (struct policy *tier = p; tier && !evicted; tier = tier->below)
		trial_remove(&of(tier)->trial, e->tag);
}

const struct policy_ops policy_value = {
	.name = "value",
	.bytes = sizeof(struct value),
	.init = init,
	.deinit = deinit,
	.reserve = reserve,
	.add = add,
	.use = use,
	.enter = enter,
	.leave = leave,
	.victim = victim,
	.arrive = arrive,
	.depart = depart,
	.removed = removed,
};
