/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GreedyDual-Size-Frequency (Cherkasova, 1998). The value of an object is set at each use: what the last victim was
 * worth, plus uses x cost / bytes. So objects that are not used fall behind as the values of victims rise.
 */
#include "agent/store/policy/internal.h"

struct gdsf {
	struct policy base;
	double floor; /* the highest value of a victim */
};

static double value(struct policy *p, const struct policy_entry *e)
{
	return ((struct gdsf *)p)->floor + policy_worth(e);
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	policy_heap_set(p, e, first ? policy_heap_key(e) : value(p, e));
}

static void use(struct policy *p, struct policy_entry *e)
{
	if (!e->held)
		policy_heap_set(p, e, value(p, e));
}

static void depart(struct policy *p, struct policy_entry *e, bool evicted)
{
	double worth = policy_heap_key(e);

	if (evicted && worth > ((struct gdsf *)p)->floor)
		((struct gdsf *)p)->floor = worth;
}

const struct policy_ops policy_gdsf = {
	.name = "gdsf",
	.bytes = sizeof(struct gdsf),
	.reserve = policy_heap_reserve,
	.use = use,
	.enter = enter,
	.leave = policy_heap_leave,
	.victim = policy_heap_victim,
	.depart = depart,
};
