/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The value of an object is uses x cost / bytes, but one use proves little: most objects that a store is given are never
 * read. So new objects enter a queue of a tenth of the bytes, as in S3-FIFO, and leave it at its end: to a heap by value
 * if they were used meanwhile, else they are evicted. Uses of evicted objects are remembered, and an object that comes
 * back enters the heap at once. Values in the heap age as in GDSF: the value of the last victim is added at each use.
 */
#include "agent/store/policy/ghost.h"
#include "agent/store/policy/internal.h"

#define NEW_SHARE 10

enum { NEW, PROVED, QUEUES };

struct merit {
	struct policy base;
	struct dray_list new;
	uint64_t bytes[QUEUES]; /* of the candidates in each */
	double floor;           /* the highest value of a victim of the heap */
	struct ghost ghost;
};

static struct merit *of(struct policy *p)
{
	return (struct merit *)p;
}

static int init(struct policy *p)
{
	dray_list_init(&of(p)->new);
	return 0;
}

static void deinit(struct policy *p)
{
	ghost_deinit(&of(p)->ghost);
}

static struct ghost *ghost_of(struct policy *p)
{
	return &of(policy_lowest(p))->ghost;
}

static int reserve(struct policy *p, uint32_t n, uint32_t all)
{
	ghost_reserve(ghost_of(p), all);
	return policy_heap_reserve(p, n, all);
}

static void add(struct policy *p, struct policy_entry *e)
{
	uint16_t uses;

	if (!ghost_take(ghost_of(p), e->tag, &uses)) {
		e->queue = NEW;
		return;
	}
	e->queue = PROVED;
	policy_count_uses(e, uses);
}

/* It is new in the heap. */
static void prove(struct policy_entry *e)
{
	e->queue = PROVED;
	e->node = (struct dray_heap_node){ .pos = 0 };
}

static void arrive(struct policy *p, struct policy_entry *e)
{
	if (e->uses > 1)
		prove(e);
}

static double value(struct policy *p, const struct policy_entry *e)
{
	return of(p)->floor + policy_worth(e);
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	of(p)->bytes[e->queue] += policy_bytes(e);
	if (e->queue == PROVED)
		policy_heap_set(p, e, first ? policy_heap_key(e) : value(p, e));
	else
		policy_list_add(&of(p)->new, &e->link, first);
}

static void leave(struct policy *p, struct policy_entry *e)
{
	of(p)->bytes[e->queue] -= policy_bytes(e);
	if (e->queue == PROVED)
		policy_heap_leave(p, e);
	else
		dray_list_del(&e->link);
}

static void use(struct policy *p, struct policy_entry *e)
{
	if (e->queue == PROVED && !e->held)
		policy_heap_set(p, e, value(p, e));
}

/* Of the queue, which loses the objects that were used on the way. NULL: so many were used that the heap has to give one. */
static struct policy_entry *unproved(struct policy *p)
{
	for (unsigned i = 0; i < POLICY_MOVED_AT_ONCE; i++) {
		struct policy_entry *e = dray_list_first(&of(p)->new, struct policy_entry, link);

		if (!e || e->uses == 1)
			return e;
		leave(p, e);
		prove(e);
		enter(p, e, false);
	}
	return NULL;
}

static struct policy_entry *victim(struct policy *p)
{
	const uint64_t *bytes = of(p)->bytes;
	struct policy_entry *e = NULL;

	if (bytes[NEW] > (bytes[NEW] + bytes[PROVED]) / NEW_SHARE || !dray_heap_first(&p->heap))
		e = unproved(p);
	if (!e)
		e = policy_heap_victim(p);
	return e;
}

static void depart(struct policy *p, struct policy_entry *e, bool evicted)
{
	if (evicted && e->queue == PROVED)
		of(p)->floor = dray_max(of(p)->floor, policy_heap_key(e));
}

static void removed(struct policy *p, struct policy_entry *e, bool evicted)
{
	if (evicted)
		ghost_put(ghost_of(p), e->tag, e->uses);
}

const struct policy_ops policy_merit = {
	.name = "merit",
	.bytes = sizeof(struct merit),
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
