/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is remembered of objects that were evicted: tag and uses. There is room for as many as there were objects at
 * once. It is divided into sets of four by the tag, and the oldest one of a full set is forgotten. Two keys with the
 * same tag are taken for one. It grows by a set at a time, by linear hashing as the index of a name space.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define GHOST_WAYS 4

struct ghost {
	/* The object remembered last is the first one. */
	struct ghost_set {
		uint32_t tags[GHOST_WAYS];
		uint16_t uses[GHOST_WAYS]; /* 0: none, and none behind it */
	} * sets;                          /* NULL: nothing is remembered */
	uint32_t room;                     /* for sets, a power of two */
	uint32_t n_sets;                   /* more than half of that */
};

/* Makes room for n. Without memory for it, objects are forgotten earlier. */
void ghost_reserve(struct ghost *g, uint32_t n);
void ghost_deinit(struct ghost *g);

/* uses: at least one. */
void ghost_put(struct ghost *g, uint32_t tag, uint16_t uses);

/* True: it was remembered, and is forgotten now. */
bool ghost_take(struct ghost *g, uint32_t tag, uint16_t *ret_uses);
