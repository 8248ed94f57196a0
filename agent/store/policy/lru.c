/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/internal.h"

struct lru {
	struct policy base;
	struct dray_list order; /* the one used longest ago first */
};

static int init(struct policy *p)
{
	dray_list_init(&((struct lru *)p)->order);
	return 0;
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	policy_list_add(&((struct lru *)p)->order, &e->link, first);
}

static void leave(struct policy *p, struct policy_entry *e)
{
	dray_list_del(&e->link);
}

static void use(struct policy *p, struct policy_entry *e)
{
	if (!e->held)
		dray_list_move(&((struct lru *)p)->order, &e->link);
}

static struct policy_entry *victim(struct policy *p)
{
	return dray_list_first(&((struct lru *)p)->order, struct policy_entry, link);
}

const struct policy_ops policy_lru = {
	.name = "lru",
	.bytes = sizeof(struct lru),
	.init = init,
	.use = use,
	.enter = enter,
	.leave = leave,
	.victim = victim,
};
