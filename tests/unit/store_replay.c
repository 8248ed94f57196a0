/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_replay.h"

#include <stdlib.h>

#include "lib/assert.h"

struct tier {
	struct policy *policy;
	uint64_t bytes, capacity;
};

struct replay {
	const struct store_trace *trace;
	struct policy_entry *entries;
	struct tier **in;        /* of each object; NULL: it is in none */
	struct tier top, bottom; /* bottom: without a policy if there is one tier */
	struct store_replay result;
};

/* Also of what is in the top one. */
static uint64_t bytes_at_bottom(const struct replay *r)
{
	return r->top.bytes + r->bottom.bytes;
}

static struct policy_entry *victim(const struct tier *t)
{
	struct policy_entry *e = policy_victim(t->policy);

	dray_assert(e);
	return e;
}

static void move(struct replay *r, struct policy_entry *e, struct tier *to)
{
	struct tier **in = &r->in[e - r->entries];

	dray_assert(policy_move((*in)->policy, to->policy, e, to == &r->bottom) == 0);
	(*in)->bytes -= policy_bytes(e);
	to->bytes += policy_bytes(e);
	*in = to;
}

static void evict(struct replay *r, struct tier *from)
{
	struct policy_entry *e = victim(from);

	policy_remove(from->policy, e, true);
	r->in[e - r->entries] = NULL;
	from->bytes -= policy_bytes(e);
	r->result.evictions++;
}

static void make_room(struct replay *r, uint64_t bytes)
{
	while (r->top.bytes + bytes > r->top.capacity)
		if (r->bottom.policy)
			move(r, victim(&r->top), &r->bottom);
		else
			evict(r, &r->top);
}

static void put(struct replay *r, uint32_t i)
{
	const struct store_trace_object *o = &r->trace->objects[i];

	if (o->bytes > r->top.capacity)
		return;
	make_room(r, o->bytes);
	while (r->bottom.policy && bytes_at_bottom(r) + o->bytes > r->bottom.capacity)
		evict(r, &r->bottom);
	dray_assert(policy_add(r->top.policy, &r->entries[i], o->bytes, o->cost, i) == 0);
	r->in[i] = &r->top;
	r->top.bytes += o->bytes;
}

static void request(struct replay *r, uint32_t i)
{
	const struct store_trace_object *o = &r->trace->objects[i];

	r->result.total += (double)o->cost;
	if (!r->in[i]) {
		put(r, i);
		return;
	}
	r->result.saved += (double)o->cost;
	r->result.hits++;
	if (r->in[i] == &r->bottom) {
		make_room(r, o->bytes);
		move(r, &r->entries[i], &r->top);
	}
	policy_use(r->top.policy, &r->entries[i]);
}

struct store_replay store_replay(const struct store_trace *trace, enum policy_kind kind,
				 uint64_t capacity, uint64_t upper)
{
	struct replay r = { .trace = trace,
			    .top.capacity = upper ? upper : capacity,
			    .bottom.capacity = capacity };

	r.entries = calloc(trace->n_objects, sizeof(*r.entries));
	r.in = calloc(trace->n_objects, sizeof(*r.in));
	dray_assert(r.entries && r.in);
	dray_assert(!upper || policy_new(&r.bottom.policy, kind, NULL) == 0);
	dray_assert(policy_new(&r.top.policy, kind, r.bottom.policy) == 0);
	for (size_t i = 0; i < trace->n_requests; i++)
		request(&r, trace->requests[i]);
	policy_free(r.top.policy);
	policy_free(r.bottom.policy);
	free(r.entries);
	free(r.in);
	return r.result;
}
