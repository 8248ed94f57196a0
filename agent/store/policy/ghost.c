/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/ghost.h"

#include <stdlib.h>
#include <string.h>

#include "agent/store/policy/internal.h"
#include "lib/cleanup.h"

#define WAYS 4
#define SLOTS_MIN 256u
#define SLOTS_MAX (1u << 31)

static struct ghost_slot *set_of(const struct ghost *g, uint32_t tag)
{
	uint32_t at = policy_spread(tag) & (g->room - WAYS);

	return &g->slots[at < g->n_slots ? at : at - g->room / 2];
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

/* Room for twice as many sets. The first ones are empty; a further one is set when it is divided off. */
static bool double_room(struct ghost *g)
{
	uint32_t room = dray_max(g->room * 2, SLOTS_MIN);
	struct ghost_slot *slots;

	if (g->room == SLOTS_MAX)
		return false;
	slots = realloc(g->slots, room * sizeof(struct ghost_slot));
	if (!slots)
		return false;
	if (!g->room) {
		memset(slots, 0, room * sizeof(struct ghost_slot));
		g->n_slots = room;
	}
	g->slots = slots;
	g->room = room;
	return true;
}

/* The set that comes next gets what is its own of the set that has it until now. */
static void divide(struct ghost *g)
{
	struct ghost_slot *from = &g->slots[g->n_slots - g->room / 2], *to = &g->slots[g->n_slots];

	memset(to, 0, WAYS * sizeof(struct ghost_slot));
	for (unsigned i = 0; i < WAYS; i++)
		if (from[i].when && policy_spread(from[i].tag) & g->room / 2) {
			to[i] = from[i];
			from[i].when = 0;
		}
	g->n_slots += WAYS;
}

void ghost_reserve(struct ghost *g, uint32_t n)
{
	if (!g->slots && !double_room(g))
		return;
	/* a set for each new object, so that few objects come until all sets are divided */
	do {
		if (g->n_slots == g->room && (n <= g->room || !double_room(g)))
			return;
		divide(g);
	} while (g->n_slots < n);
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
