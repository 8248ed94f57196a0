/* SPDX-License-Identifier: Apache-2.0 */
/*
 * (uses + clock) x cost / bytes. The clock of an object is CLOCK_MAX at a use, and falls by one with each DECAY uses and
 * additions of any objects, so only the last RECENT of these have a clock above 0. A ring has them in order: each event
 * advances it, and re-orders the objects whose clock falls then.
 */
#include "agent/store/policy/internal.h"

#define CLOCK_MAX 15
#define DECAY 64
#define RECENT (CLOCK_MAX * DECAY)

struct score {
	struct policy base;
	uint32_t now; /* the place of the last event in the ring */
	struct policy_entry *recent[RECENT];
};

static struct score *of(struct policy *p)
{
	return (struct score *)p;
}

/* node.own: the place in the ring, from 1; 0: none. */
static uint32_t clock_of(struct score *s, const struct policy_entry *e)
{
	return e->node.own ? CLOCK_MAX - (s->now + RECENT - (e->node.own - 1)) % RECENT / DECAY : 0;
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	double uses = e->uses + clock_of(of(p), e);

	policy_heap_set(p, e, uses * (double)e->cost / (double)policy_bytes(e));
}

static void forget(struct score *s, struct policy_entry *e)
{
	if (e->node.own)
		s->recent[e->node.own - 1] = NULL;
	e->node.own = 0;
}

static void order(struct policy *p, struct policy_entry *e)
{
	if (e && !e->held)
		enter(p, e, false);
}

static void advance(struct policy *p, struct policy_entry *e)
{
	struct score *s = of(p);
	struct policy_entry *last;

	s->now = (s->now + 1) % RECENT;
	last = s->recent[s->now];
	if (last)
		forget(s, last);
	if (last != e)
		order(p, last);
	forget(s, e);
	s->recent[s->now] = e;
	e->node.own = s->now + 1;
	for (uint32_t age = DECAY; age < RECENT; age += DECAY)
		order(p, s->recent[(s->now + RECENT - age) % RECENT]);
}

static void use(struct policy *p, struct policy_entry *e)
{
	advance(p, e);
	order(p, e);
}

static void depart(struct policy *p, struct policy_entry *e, bool evicted)
{
	forget(of(p), e);
}

const struct policy_ops policy_score = {
	.name = "score",
	.bytes = sizeof(struct score),
	.reserve = policy_heap_reserve,
	.add = advance,
	.use = use,
	.enter = enter,
	.leave = policy_heap_leave,
	.victim = policy_heap_victim,
	.depart = depart,
};
