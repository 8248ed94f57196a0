/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/trial.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/store/policy/internal.h"

#define ALL_KEYS (1ull << 32)
#define WINDOW_MIN 1024
#define WINDOW_OBJECTS 4 /* requests for each object until the savings are halved */
#define LEAD 1.005       /* a party takes the lead if it saved so much more than the leader */

struct trial_object {
	struct dray_map_node by_tag;
	uint32_t tag;
	struct policy_entry entries[TRIAL_PARTIES];
	bool in[TRIAL_PARTIES];
};

int trial_init(struct trial *t, enum policy_kind first, enum policy_kind second)
{
	int r;

	*t = (struct trial){ .capacity = INT64_MAX, .sample = ALL_KEYS };
	dray_map_init(&t->objects);
	r = policy_new(&t->parties[0].policy, first, NULL);
	return r < 0 ? r : policy_new(&t->parties[1].policy, second, NULL);
}

void trial_deinit(struct trial *t)
{
	dray_map_for_each(&t->objects, o, struct trial_object, by_tag) {
		dray_map_del(&t->objects, &o->by_tag);
		free(o);
	}
	dray_map_deinit(&t->objects);
	for (unsigned i = 0; i < TRIAL_PARTIES; i++)
		policy_free(t->parties[i].policy);
}

static bool sampled(const struct trial *t, uint32_t tag)
{
	return policy_spread(tag) < t->sample;
}

static struct trial_object *find(struct trial *t, uint32_t tag)
{
	return dray_map_entry(dray_map_find(&t->objects, &tag, sizeof(tag)), struct trial_object,
			      by_tag);
}

static void take_out(struct trial *t, struct trial_object *o, unsigned i, bool evicted)
{
	if (!o->in[i])
		return;
	o->in[i] = false;
	t->parties[i].bytes -= policy_bytes(&o->entries[i]);
	policy_remove(t->parties[i].policy, &o->entries[i], evicted);
}

static void drop_if_out(struct trial *t, struct trial_object *o)
{
	for (unsigned i = 0; i < TRIAL_PARTIES; i++)
		if (o->in[i])
			return;
	dray_map_del(&t->objects, &o->by_tag);
	free(o);
}

static void take_out_of_all(struct trial *t, struct trial_object *o)
{
	for (unsigned i = 0; i < TRIAL_PARTIES; i++)
		take_out(t, o, i, false);
	drop_if_out(t, o);
}

static uint64_t room(const struct trial *t)
{
	return (uint64_t)((double)t->capacity * ((double)t->sample / ALL_KEYS));
}

/* Not the object for which room is made: it is not in. */
static void make_room(struct trial *t, unsigned i, uint64_t bytes)
{
	struct trial_party *party = &t->parties[i];
	struct policy_entry *e;

	while (party->bytes + bytes > room(t) && (e = policy_victim(party->policy))) {
		struct trial_object *o = dray_container_of(e - i, struct trial_object, entries);

		take_out(t, o, i, true);
		drop_if_out(t, o);
	}
}

static void put(struct trial *t, struct trial_object *o, unsigned i, uint64_t bytes, float cost)
{
	struct trial_party *party = &t->parties[i];

	if (bytes > room(t))
		return;
	make_room(t, i, bytes);
	if (policy_add(party->policy, &o->entries[i], bytes, cost, o->tag) < 0)
		return;
	party->bytes += bytes;
	o->in[i] = true;
}

static void request_of(struct trial *t, struct trial_object *o, unsigned i, uint64_t bytes,
		       float cost)
{
	if (o->in[i]) {
		t->parties[i].saved += (double)cost;
		policy_use(t->parties[i].policy, &o->entries[i]);
	} else {
		put(t, o, i, bytes, cost);
	}
}

static void halve_sample(struct trial *t)
{
	t->sample /= 2;
	dray_map_for_each(&t->objects, o, struct trial_object, by_tag)
		if (!sampled(t, o->tag))
			take_out_of_all(t, o);
}

static void judge(struct trial *t)
{
	struct trial_party *parties = t->parties;
	unsigned other = !t->leader;

	if (parties[other].saved > parties[t->leader].saved * LEAD)
		t->leader = other;
	if (++t->requests < WINDOW_MIN + WINDOW_OBJECTS * t->objects.n)
		return;
	t->requests = 0;
	for (unsigned i = 0; i < TRIAL_PARTIES; i++)
		parties[i].saved /= 2;
}

static struct trial_object *find_or_make(struct trial *t, uint32_t tag)
{
	struct trial_object *o = find(t, tag);

	if (o)
		return o;
	o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->tag = tag;
	dray_map_add(&t->objects, &o->by_tag, &o->tag, sizeof(o->tag));
	return o;
}

void trial_request(struct trial *t, uint64_t bytes, float cost, uint32_t tag)
{
	struct trial_object *o = sampled(t, tag) ? find_or_make(t, tag) : NULL;

	if (!o)
		return;
	for (unsigned i = 0; i < TRIAL_PARTIES; i++)
		request_of(t, o, i, bytes, cost);
	drop_if_out(t, o);
	judge(t);
	if (t->objects.n > TRIAL_OBJECTS)
		halve_sample(t);
}

void trial_remove(struct trial *t, uint32_t tag)
{
	struct trial_object *o = find(t, tag);

	if (o)
		take_out_of_all(t, o);
}
