/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/idset.h"

#include <errno.h>
#include <stdlib.h>

static uint32_t place(const struct idset *m, uint64_t id)
{
	return (uint32_t)((id * 0x9e3779b97f4a7c15ULL) >> 32) & m->mask;
}

static struct idset_slot *find(struct idset *m, uint64_t id)
{
	if (!m->slots)
		return NULL;
	for (uint32_t i = place(m, id); m->slots[i].used; i = (i + 1) & m->mask)
		if (m->slots[i].id == id)
			return &m->slots[i];
	return NULL;
}

bool idset_has(struct idset *m, uint64_t id)
{
	return find(m, id) != NULL;
}

static void insert(struct idset *m, uint64_t id)
{
	uint32_t i = place(m, id);

	while (m->slots[i].used)
		i = (i + 1) & m->mask;
	m->slots[i] = (struct idset_slot){ id, true };
	m->n++;
}

static int grow(struct idset *m)
{
	struct idset old = *m;
	uint32_t cap = old.slots ? (old.mask + 1) * 2 : 16;

	m->slots = calloc(cap, sizeof(*m->slots));
	if (!m->slots) {
		*m = old;
		return -ENOMEM;
	}
	m->mask = cap - 1;
	m->n = 0;
	for (uint32_t i = 0; old.slots && i <= old.mask; i++)
		if (old.slots[i].used)
			insert(m, old.slots[i].id);
	free(old.slots);
	return 0;
}

int idset_add(struct idset *m, uint64_t id)
{
	if (find(m, id))
		return -EEXIST;
	if (!m->slots || (m->n + 1) * 2 > m->mask) {
		int ret = grow(m);

		if (ret < 0)
			return ret;
	}
	insert(m, id);
	return 0;
}

bool idset_del(struct idset *m, uint64_t id)
{
	struct idset_slot *s = find(m, id);
	uint32_t hole, i;

	if (!s)
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
	return true;
}

void idset_deinit(struct idset *m)
{
	free(m->slots);
	*m = (struct idset){ 0 };
}
