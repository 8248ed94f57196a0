/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/ghost.h"

#include <stdlib.h>

#include "agent/store/policy/internal.h"

#define WAYS 4
#define SLOTS_MIN 256

static struct ghost_slot *set_of(const struct ghost *g, uint32_t tag)
{
	return &g->slots[policy_spread(tag) & (g->n_slots - WAYS)];
}

/* The slot of the tag, an empty one, or the oldest one. */
static struct ghost_slot *slot_for(const struct ghost *g, uint32_t tag)
{
	struct ghost_slot *set = set_of(g, tag), *best = set;

	for (unsigned i = 0; i < WAYS; i++) {
		if (set[i].when && set[i].tag == tag)
			return &set[i];
		if (!set[i].when || (best->when && g->clock - set[i].when > g->clock - best->when))
			best = &set[i];
	}
	return best;
}

void ghost_reserve(struct ghost *g, uint32_t n)
{
	struct ghost larger = { .n_slots = g->n_slots ? g->n_slots : SLOTS_MIN, .clock = g->clock };

	if (g->slots && n <= g->n_slots)
		return;
	while (larger.n_slots < n)
		larger.n_slots *= 2;
	larger.slots = calloc(larger.n_slots, sizeof(struct ghost_slot));
	if (!larger.slots)
		return;
	for (uint32_t i = 0; i < g->n_slots; i++)
		if (g->slots[i].when)
			*slot_for(&larger, g->slots[i].tag) = g->slots[i];
	free(g->slots);
	*g = larger;
}

void ghost_deinit(struct ghost *g)
{
	free(g->slots);
	*g = (struct ghost){ .slots = NULL };
}

void ghost_put(struct ghost *g, uint32_t tag, uint32_t uses)
{
	if (!g->slots)
		return;
	g->clock = g->clock == UINT32_MAX ? 1 : g->clock + 1;
	*slot_for(g, tag) = (struct ghost_slot){ tag, g->clock, uses };
}

bool ghost_take(struct ghost *g, uint32_t tag, uint32_t *ret_uses)
{
	struct ghost_slot *s = g->slots ? slot_for(g, tag) : NULL;

	if (!s || !s->when || s->tag != tag)
		return false;
	*ret_uses = s->uses;
	s->when = 0;
	return true;
}
