/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two policies on trial: which one would have saved more of late? A trial simulates both, in a capacity that is as small
 * a share of the real one as the sample that it takes of all keys (as Waldspurger et al. do, ATC 2017). A sample is all
 * keys with a low hash; it is halved when it has more than TRIAL_OBJECTS objects.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/store/policy/policy.h"
#include "lib/map.h"

#define TRIAL_OBJECTS 8192
#define TRIAL_PARTIES 2

struct trial {
	uint64_t capacity; /* of the whole; without limit until the owner sets it */
	uint64_t sample;   /* of 2^32 keys */
	uint64_t requests; /* in the sample, since the savings were halved */
	struct dray_map objects;
	struct trial_party {
		struct policy *policy;
		uint64_t bytes;
		double saved; /* cost of lately found objects */
	} parties[TRIAL_PARTIES];
	unsigned leader;
};

/* The first one leads at the beginning. 0 or -ENOMEM; after both, trial_deinit() is called. */
int trial_init(struct trial *t, enum policy_kind first, enum policy_kind second);
void trial_deinit(struct trial *t);

/* An object was added or used. Without memory the trial misses it. */
void trial_request(struct trial *t, uint64_t bytes, float cost, uint32_t tag);

/* An object was removed by its owner. */
void trial_remove(struct trial *t, uint32_t tag);

/* The party that saved more: 0 or 1. */
static inline unsigned trial_leader(const struct trial *t)
{
	return t->leader;
}
