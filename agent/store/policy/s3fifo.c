/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3-FIFO (Yang et al., SOSP 2023). New objects enter a small queue of a tenth of the bytes. Those used twice there move
 * on to the main queue, the others are evicted, and their names remembered: an object that comes back enters the main
 * queue at once. In the main queue an object gets another round for each use, three at most.
 */
#include "agent/store/policy/ghost.h"
#include "agent/store/policy/internal.h"

#define SMALL_SHARE 10
#define USED_MAX 3
#define USED_TO_MOVE 2

enum { SMALL, MAIN, QUEUES };

struct s3fifo {
	struct policy base;
	struct dray_list queues[QUEUES];
	uint64_t bytes[QUEUES]; /* of the candidates in each */
	struct ghost ghost;
};

static struct s3fifo *of(struct policy *p)
{
	return (struct s3fifo *)p;
}

static int init(struct policy *p)
{
	dray_list_init(&of(p)->queues[SMALL]);
	dray_list_init(&of(p)->queues[MAIN]);
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
	return 0;
}

static void add(struct policy *p, struct policy_entry *e)
{
	uint16_t uses;

	e->queue = ghost_take(ghost_of(p), e->tag, &uses) ? MAIN : SMALL;
}

static void enter(struct policy *p, struct policy_entry *e, bool first)
{
	policy_list_add(&of(p)->queues[e->queue], &e->link, first);
	of(p)->bytes[e->queue] += policy_bytes(e);
}

static void leave(struct policy *p, struct policy_entry *e)
{
	dray_list_del(&e->link);
	of(p)->bytes[e->queue] -= policy_bytes(e);
}

static void use(struct policy *p, struct policy_entry *e)
{
	if (e->used < USED_MAX)
		e->used++;
}

static void move_to_main(struct policy *p, struct policy_entry *e)
{
	leave(p, e);
	e->queue = MAIN;
	enter(p, e, false);
}

static struct policy_entry *first_of(struct policy *p, int queue)
{
	return dray_list_first(&of(p)->queues[queue], struct policy_entry, link);
}

/* moves: left for the search. NULL also if there are none left. */
static struct policy_entry *victim_of_small(struct policy *p, unsigned *moves)
{
	struct policy_entry *e;

	while ((e = first_of(p, SMALL)) && e->used >= USED_TO_MOVE) {
		if (!*moves)
			return NULL;
		--*moves;
		e->used = 0;
		move_to_main(p, e);
	}
	return e;
}

static struct policy_entry *victim_of_main(struct policy *p, unsigned moves)
{
	struct policy_entry *e;

	while ((e = first_of(p, MAIN)) && e->used && moves) {
		moves--;
		e->used--;
		move_to_main(p, e);
	}
	return e;
}

static struct policy_entry *victim(struct policy *p)
{
	const uint64_t *bytes = of(p)->bytes;
	unsigned moves = POLICY_MOVED_AT_ONCE;
	struct policy_entry *e = NULL;

	if (bytes[SMALL] > (bytes[SMALL] + bytes[MAIN]) / SMALL_SHARE || !first_of(p, MAIN))
		e = victim_of_small(p, &moves);
	return e ? e : victim_of_main(p, moves);
}

static void removed(struct policy *p, struct policy_entry *e, bool evicted)
{
	if (evicted && e->queue == SMALL)
		ghost_put(ghost_of(p), e->tag, e->uses);
}

const struct policy_ops policy_s3fifo = {
	.name = "s3fifo",
	.bytes = sizeof(struct s3fifo),
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
