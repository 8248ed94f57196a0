/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/policy/internal.h"
#include "lib/assert.h"

static const struct policy_ops *const kinds[POLICY_KIND_N] = {
	[POLICY_LRU] = &policy_lru,     [POLICY_S3FIFO] = &policy_s3fifo,
	[POLICY_GDSF] = &policy_gdsf,   [POLICY_SCORE] = &policy_score,
	[POLICY_MERIT] = &policy_merit, [POLICY_VALUE] = &policy_value,
};

const char *policy_name(enum policy_kind kind)
{
	return kinds[kind]->name;
}

int policy_new(struct policy **ret, enum policy_kind kind, struct policy *below)
{
	const struct policy_ops *ops = kinds[kind];
	struct policy *p = calloc(1, ops->bytes);
	int r;

	if (!p)
		return -ENOMEM;
	p->ops = ops;
	p->below = below;
	r = ops->init ? ops->init(p) : 0;
	if (r < 0) {
		policy_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void policy_free(struct policy *p)
{
	if (!p)
		return;
	if (p->ops->deinit)
		p->ops->deinit(p);
	dray_heap_deinit(&p->heap);
	free(p);
}

/* Room for one more here. all: then in both tiers. */
static int reserve(struct policy *p, uint32_t all)
{
	return p->ops->reserve ? p->ops->reserve(p, p->n + 1, all) : 0;
}

int policy_add(struct policy *p, struct policy_entry *e, uint64_t bytes, float cost, uint32_t tag)
{
	int r = reserve(p, (p->below ? p->below->n : 0) + p->n + 1);

	if (r < 0)
		return r;
	*e = (struct policy_entry){ .cost = cost, .tag = tag, .uses = 1 };
	policy_set_bytes(e, bytes);
	p->n++;
	if (p->ops->add)
		p->ops->add(p, e);
	p->ops->enter(p, e, false);
	return 0;
}

static void depart(struct policy *p, struct policy_entry *e, bool evicted)
{
	if (!e->held)
		p->ops->leave(p, e);
	if (p->ops->depart)
		p->ops->depart(p, e, evicted);
	p->n--;
}

int policy_move(struct policy *from, struct policy *to, struct policy_entry *e, bool evicted)
{
	int r = reserve(to, from->n + to->n);

	dray_assert(!e->held);
	if (r < 0)
		return r;
	depart(from, e, evicted);
	to->n++;
	if (to->ops->arrive)
		to->ops->arrive(to, e);
	to->ops->enter(to, e, false);
	return 0;
}

void policy_use(struct policy *p, struct policy_entry *e)
{
	policy_count_uses(e, 1);
	e->used_since = true;
	p->ops->use(p, e);
}

void policy_hold(struct policy *p, struct policy_entry *e)
{
	dray_assert(!e->held);
	p->ops->leave(p, e);
	e->held = true;
	e->used_since = false;
}

void policy_release(struct policy *p, struct policy_entry *e)
{
	dray_assert(e->held);
	e->held = false;
	p->ops->enter(p, e, false);
}

void policy_return(struct policy *p, struct policy_entry *e)
{
	dray_assert(e->held);
	e->held = false;
	p->ops->enter(p, e, !e->used_since);
}

struct policy_entry *policy_victim(struct policy *p)
{
	return p->ops->victim(p);
}

void policy_remove(struct policy *p, struct policy_entry *e, bool evicted)
{
	depart(p, e, evicted);
	if (p->ops->removed)
		p->ops->removed(p, e, evicted);
}

void policy_count_uses(struct policy_entry *e, uint32_t n)
{
	e->uses = (uint16_t)dray_min(e->uses + (uint64_t)n, (uint64_t)UINT16_MAX);
}

uint32_t policy_spread(uint32_t tag)
{
	uint32_t h = (tag ^ tag >> 16) * 0x85ebca6bu;

	h = (h ^ h >> 13) * 0xc2b2ae35u;
	return h ^ h >> 16;
}

double policy_worth(const struct policy_entry *e)
{
	return e->uses * (double)e->cost / (double)policy_bytes(e);
}

/* Numbers of IEEE 754 have the order of their bits if they are not negative, and the reverse order if they are. */
static int64_t ordered(double v)
{
	int64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return bits < 0 ? bits ^ INT64_MAX : bits;
}

static double number(int64_t key)
{
	int64_t bits = key < 0 ? key ^ INT64_MAX : key;
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

int policy_heap_reserve(struct policy *p, uint32_t n, uint32_t all)
{
	return dray_heap_reserve(&p->heap, n);
}

void policy_heap_set(struct policy *p, struct policy_entry *e, double key)
{
	dray_assert(dray_heap_set(&p->heap, &e->node, ordered(key)) == 0);
}

double policy_heap_key(const struct policy_entry *e)
{
	return number(e->node.key);
}

void policy_heap_leave(struct policy *p, struct policy_entry *e)
{
	dray_heap_del(&p->heap, &e->node);
}

struct policy_entry *policy_heap_victim(struct policy *p)
{
	struct dray_heap_node *first = dray_heap_first(&p->heap);

	return first ? dray_container_of(first, struct policy_entry, node) : NULL;
}
