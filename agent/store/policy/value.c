/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy merit, except while LRU would save more: on requests for what was used last, counting uses is of no use. Both
 * orders of all objects are kept, so that a victim can be taken from either, and a trial tells which one.
 */
#include "agent/store/policy/internal.h"
#include "agent/store/policy/trial.h"

enum { MERIT, LRU };

struct value {
	struct policy base;
	struct policy *merit;
	struct dray_list recency; /* the one used longest ago first */
	struct trial trial;
	uint64_t bytes; /* of all objects */
};

static struct value *of(struct policy *p)
{
	return (struct value *)p;
}

static int init(struct policy *p)
{
	int r;

	dray_list_init(&of(p)->recency);
	r = policy_new(&of(p)->merit, POLICY_MERIT);
	return r < 0 ? r : trial_init(&of(p)->trial, POLICY_MERIT, POLICY_LRU);
}

static void deinit(struct policy *p)
{
	policy_free(of(p)->merit);
	trial_deinit(&of(p)->trial);
}

static int reserve(struct policy *p, uint32_t n)
{
	return policy_merit.reserve(of(p)->merit, n);
}

static void add(struct policy *p, struct policy_entry *e)
{
	of(p)->bytes += policy_bytes(e);
	of(p)->trial.capacity = dray_max(of(p)->trial.capacity, of(p)->bytes);
	policy_merit.add(of(p)->merit, e);
	trial_request(&of(p)->trial, policy_bytes(e), e->cost, e->tag);
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
	trial_request(&of(p)->trial, policy_bytes(e), e->cost, e->tag);
}

static struct policy_entry *victim(struct policy *p)
{
	of(p)->trial.capacity = of(p)->bytes;
	if (trial_leader(&of(p)->trial) == LRU)
		return dray_list_first(&of(p)->recency, struct policy_entry, recency);
	return policy_merit.victim(of(p)->merit);
}

static void removed(struct policy *p, struct policy_entry *e, bool evicted)
{
	of(p)->bytes -= policy_bytes(e);
	policy_merit.removed(of(p)->merit, e, evicted);
	if (!evicted)
		trial_remove(&of(p)->trial, e->tag);
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
	.removed = removed,
};
