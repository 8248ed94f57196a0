/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set of 64-bit ids, by open addressing. Unlike lib/map.h it needs no object to embed a node in, and allocates only
 * when it grows, never for an id that replaces another. Clients and peers choose ids: a set whose ids
 * lie close together gets a random seed. Zeroed it is empty.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct idset_slot {
	uint64_t id;
	bool used;
};

struct idset {
	struct idset_slot *slots;
	uint32_t mask, n; /* slots - 1 (0 with slots NULL: none yet), ids */
	uint64_t seed;    /* 0: none yet */
};

/* 0, -EEXIST, -ENOMEM. */
int idset_add(struct idset *m, uint64_t id);
bool idset_has(struct idset *m, uint64_t id);
bool idset_del(struct idset *m, uint64_t id);
void idset_deinit(struct idset *m);
