/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/policy/ghost.h"

#include <stdlib.h>
#include <string.h>

#include "agent/store/policy/internal.h"
#include "lib/cleanup.h"

#define SETS_MIN 64u
#define SETS_MAX (1u << 29)

static struct ghost_set *set_of(const struct ghost *g, uint32_t tag)
{
	uint32_t at = policy_spread(tag) / GHOST_WAYS & (g->room - 1);

	return &g->sets[at < g->n_sets ? at : at - g->room / 2];
}

/* The place of the tag in its set, of the first one that is empty, or of none: GHOST_WAYS. */
static unsigned way_of(const struct ghost_set *set, uint32_t tag)
{
	unsigned i = 0;

	while (i < GHOST_WAYS && set->uses[i] && set->tags[i] != tag)
		i++;
	return i;
}

static void take_out(struct ghost_set *set, unsigned i)
{
	for (; i + 1 < GHOST_WAYS; i++) {
		set->tags[i] = set->tags[i + 1];
		set->uses[i] = set->uses[i + 1];
	}
	set->uses[i] = 0;
}

/* Room for twice as many sets. The first ones are empty; a further one is set when it is divided off. */
static bool double_room(struct ghost *g)
{
	uint32_t room = dray_max(g->room * 2, SETS_MIN);
	struct ghost_set *sets;

	if (g->room == SETS_MAX)
		return false;
	sets = realloc(g->sets, room * sizeof(struct ghost_set));
	if (!sets)
		return false;
	if (!g->room) {
		memset(sets, 0, room * sizeof(struct ghost_set));
		g->n_sets = room;
	}
	g->sets = sets;
	g->room = room;
	return true;
}

/* The set that comes next gets what is its own of the set that has it until now. */
static void divide(struct ghost *g)
{
	struct ghost_set *from = &g->sets[g->n_sets - g->room / 2], *to = &g->sets[g->n_sets];
	unsigned n = 0;

	memset(to, 0, sizeof(*to));
	for (unsigned i = 0; i < GHOST_WAYS && from->uses[i];)
		if (policy_spread(from->tags[i]) / GHOST_WAYS & g->room / 2) {
			to->tags[n] = from->tags[i];
			to->uses[n++] = from->uses[i];
			take_out(from, i);
		} else {
			i++;
		}
	g->n_sets++;
}

void ghost_reserve(struct ghost *g, uint32_t n)
{
	if (!g->sets && !double_room(g))
		return;
	while (g->n_sets * GHOST_WAYS < n) {
		if (g->n_sets == g->room && !double_room(g))
			return;
		divide(g);
	}
}

void ghost_deinit(struct ghost *g)
{
	free(g->sets);
	*g = (struct ghost){ .sets = NULL };
}

void ghost_put(struct ghost *g, uint32_t tag, uint16_t uses)
{
	struct ghost_set *set;
	unsigned i;

	if (!g->sets)
		return;
	set = set_of(g, tag);
	for (i = dray_min(way_of(set, tag), GHOST_WAYS - 1u); i; i--) {
		set->tags[i] = set->tags[i - 1];
		set->uses[i] = set->uses[i - 1];
	}
	set->tags[0] = tag;
	set->uses[0] = uses;
}

bool ghost_take(struct ghost *g, uint32_t tag, uint16_t *ret_uses)
{
	struct ghost_set *set = g->sets ? set_of(g, tag) : NULL;
	unsigned i = set ? way_of(set, tag) : GHOST_WAYS;

	if (i == GHOST_WAYS || !set->uses[i])
		return false;
	*ret_uses = set->uses[i];
	take_out(set, i);
	return true;
}
