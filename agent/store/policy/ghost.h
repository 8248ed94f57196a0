/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is remembered of objects that were evicted: tag and uses. There is room for as many as there were objects at
 * once. It is divided into sets of four by the tag, and the oldest one of a full set is forgotten. Two keys with the
 * same tag are taken for one. It grows by a set at a time, by linear hashing as the index of a name space.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ghost {
	struct ghost_slot {
		uint32_t tag, when, uses; /* when: 0 in an empty slot */
	} * slots;                        /* NULL: nothing is remembered */
	uint32_t room;                    /* for slots, a power of two */
	uint32_t n_slots;                 /* more than half of that */
	uint32_t clock; /* objects remembered so far; starts again from 1 after its end */
};

/* Makes room for n. Without memory for it, objects are forgotten earlier. */
void ghost_reserve(struct ghost *g, uint32_t n);
void ghost_deinit(struct ghost *g);

void ghost_put(struct ghost *g, uint32_t tag, uint32_t uses);

/* True: it was remembered, and is forgotten now. */
bool ghost_take(struct ghost *g, uint32_t tag, uint32_t *ret_uses);
