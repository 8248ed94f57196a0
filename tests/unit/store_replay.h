/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a policy saves on a trace: a miss computes the object and puts it into the store. There are one or two tiers, as in agent/store: of
 * two, the lower one has all objects, and those that are only there are in the policy for it.
 */
#pragma once

#include "agent/store/policy/policy.h"
#include "tests/unit/store_traces.h"

struct store_replay {
	double saved, total; /* cost of what was found, and of all requests */
	size_t hits, evictions;
};

/* capacity: of all objects. upper: the capacity of the upper tier, below that; 0: there is one. Exits without memory. */
struct store_replay store_replay(const struct store_trace *t, enum policy_kind kind,
				 uint64_t capacity, uint64_t upper);
