/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_replay.h"

#include <stdlib.h>

#include "lib/assert.h"

struct tier {
	const struct store_trace *trace;
	struct policy *policy;
	struct policy_entry *entries;
	bool *in;
	uint64_t bytes, capacity;
	struct store_replay result;
};

static void make_room(struct tier *t, uint64_t bytes)
{
	while (t->bytes + bytes > t->capacity) {
		struct policy_entry *e = policy_victim(t->policy);

		dray_assert(e);
		policy_remove(t->policy, e, true);
		t->in[e - t->entries] = false;
		t->bytes -= policy_bytes(e);
		t->result.evictions++;
	}
}

static void put(struct tier *t, uint32_t i)
{
	const struct store_trace_object *o = &t->trace->objects[i];

	if (o->bytes > t->capacity)
		return;
	make_room(t, o->bytes);
	dray_assert(policy_add(t->policy, &t->entries[i], o->bytes, o->cost, i) == 0);
	t->in[i] = true;
	t->bytes += o->bytes;
}

static void request(struct tier *t, uint32_t i)
{
	double cost = (double)t->trace->objects[i].cost;

	t->result.total += cost;
	if (!t->in[i]) {
		put(t, i);
		return;
	}
	t->result.saved += cost;
	t->result.hits++;
	policy_use(t->policy, &t->entries[i]);
}

struct store_replay store_replay(const struct store_trace *trace, enum policy_kind kind,
				 uint64_t capacity)
{
	struct tier t = { .trace = trace, .capacity = capacity };

	t.entries = calloc(trace->n_objects, sizeof(*t.entries));
	t.in = calloc(trace->n_objects, sizeof(*t.in));
	dray_assert(t.entries && t.in && policy_new(&t.policy, kind) == 0);
	for (size_t i = 0; i < trace->n_requests; i++)
		request(&t, trace->requests[i]);
	policy_free(t.policy);
	free(t.entries);
	free(t.in);
	return t.result;
}
