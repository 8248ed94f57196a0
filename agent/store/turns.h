/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that an owner wants to be read from disk take turns. A batch has so many bytes in a turn as the disk reads in DISK_TURN_MS, and
 * what is beyond that waits for the next turn, so that a batch that comes later waits for a part of those before it, not for all of
 * them. A batch that comes when the turn has read so much already begins with the next one: no batch waits forever.
 */
#pragma once

#include <stdint.h>

#include "lib/list.h"

struct store_member;

#define DISK_TURN_MS 50u
/* Of these that a batch can have before it; what is beyond them shares the last one. */
#define TURNS_MAX 64u

struct turns {
	struct dray_list lists[TURNS_MAX]; /* by turn, modulo */
	uint64_t now;                      /* the turn that is being read */
	uint64_t taken;                    /* bytes that it has read */
	uint32_t n;
};

/* What a batch has in its last turn; zeroed before its first object. */
struct turns_share {
	struct store_member *member; /* whose owner reads; NULL: that of its first object */
	uint64_t turn, bytes;
	uint32_t n; /* turns so far: requests to the disk */
};

void turns_init(struct turns *t);
/* budget: bytes of a batch in a turn. True: the batch has begun a further turn. */
bool turns_add(struct turns *t, struct turns_share *s, struct dray_list *link, uint64_t bytes,
	       uint64_t budget);
/* The next one; NULL: there is none. */
struct dray_list *turns_first(struct turns *t);
/* Removes it. */
void turns_take(struct turns *t, struct dray_list *link, uint64_t bytes);
