/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/idset.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/hash.h"
#include "lib/random.h"

/* A set without a seed gets one when an id takes that many steps. */
#define STEPS_MAX 32

/* Kept out of the code for sets without a seed, which are nearly all. */
static uint32_t __attribute__((cold)) seeded_place(const struct idset *m, uint64_t id)
{
	return (uint32_t)dray_hash(m->seed, &id, sizeof(id)) & m->mask;
}

/* One product gives the ids of a counter places of their own, in an order that processors predict. */
static inline uint32_t place(const struct idset *m, uint64_t id)
{
	return m->seed ? seeded_place(m, id) :
			 (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 32) & m->mask;
}

/* The slot of this id, or the free one where it belongs. */
static inline struct idset_slot *walk(const struct idset *m, uint64_t id, uint32_t *ret_steps)
{
	uint32_t home = place(m, id), i = home;

	while (m->slots[i].used && m->slots[i].id != id)
		i = (i + 1) & m->mask;
	*ret_steps = (i - home) & m->mask;
	return &m->slots[i];
}

/* Moves all to slots of that number. False: no memory, nothing has changed. */
static bool __attribute__((cold)) move(struct idset *m, uint32_t mask, uint64_t seed)
{
	struct idset moved = { .mask = mask, .n = m->n, .seed = seed };
	uint32_t steps;

	moved.slots = calloc((size_t)mask + 1, sizeof(*m->slots));
	if (!moved.slots)
		return false;
	for (uint32_t i = 0; m->slots && i <= m->mask; i++)
		if (m->slots[i].used)
			*walk(&moved, m->slots[i].id, &steps) = m->slots[i];
	free(m->slots);
	*m = moved;
	return true;
}

/* Without memory for it, the set stays slow. */
static inline bool add_seed(struct idset *m, uint32_t steps)
{
	return steps > STEPS_MAX && !m->seed && move(m, m->mask, dray_random() | 1);
}

static inline struct idset_slot *find(struct idset *m, uint64_t id)
{
	uint32_t steps;
	struct idset_slot *s = walk(m, id, &steps);

	return add_seed(m, steps) ? walk(m, id, &steps) : s;
}

bool idset_has(struct idset *m, uint64_t id)
{
	return m->slots && find(m, id)->used;
}

int idset_add(struct idset *m, uint64_t id)
{
	struct idset_slot *s = m->slots ? find(m, id) : NULL;

	if (s && s->used)
		return -EEXIST;
	if (!s || (m->n + 1) * 2 > m->mask) {
		if (!move(m, s ? m->mask * 2 + 1 : 15, m->seed))
			return -ENOMEM;
		s = find(m, id);
	}
	*s = (struct idset_slot){ id, true };
	m->n++;
	return 0;
}

bool idset_del(struct idset *m, uint64_t id)
{
	struct idset_slot *s = m->slots ? find(m, id) : NULL;
	uint32_t hole, i;

	if (!s || !s->used)
		return false;
	/* close the gap, so that no later entry of the run is cut off from its place */
	hole = (uint32_t)(s - m->slots);
	for (i = (hole + 1) & m->mask; m->slots[i].used; i = (i + 1) & m->mask) {
		uint32_t home = place(m, m->slots[i].id);

		if (((i - home) & m->mask) >= ((i - hole) & m->mask)) {
			m->slots[hole] = m->slots[i];
			hole = i;
		}
	}
	m->slots[hole].used = false;
	m->n--;
	add_seed(m, (i - (uint32_t)(s - m->slots)) & m->mask);
	return true;
}

void idset_deinit(struct idset *m)
{
	free(m->slots);
	*m = (struct idset){ 0 };
}
