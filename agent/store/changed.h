/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that were put or removed while it was not known what is on disk: what is there of them is older, and unwanted.
 *
 * It is a filter, which also has some keys that did not change: with 100,000 keys that did in a name space, one in 30, and with
 * 1,000,000 three of four. The first name spaces have filters of their own, so that what clients remove elsewhere costs nothing
 * here. Further ones share a filter: its size is bounded, however many owners come.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Name spaces with a filter of their own. */
#define CHANGED_SPACES 64

struct changed_filter {
	uint64_t space;
	bool used;
	uint8_t *bits; /* NULL: there was no memory, so every key counts as changed */
};

/* Zeroed: no key has changed. */
struct changed_keys {
	uint64_t seed;
	struct changed_filter of[CHANGED_SPACES + 1]; /* the last one is shared */
};

/* space: a hash of what identifies the name space. */
void changed_add(struct changed_keys *c, uint64_t space, const void *key, size_t n);
bool changed_has(const struct changed_keys *c, uint64_t space, const void *key, size_t n);
void changed_forget(struct changed_keys *c);
