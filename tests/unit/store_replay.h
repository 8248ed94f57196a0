/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy saves on a trace: a miss computes the object and puts it into the store. */
#pragma once

#include "agent/store/policy/policy.h"
#include "tests/unit/store_traces.h"

struct store_replay {
	double saved, total; /* cost of what was found, and of all requests */
	size_t hits, evictions;
};

/* Exits without memory. */
struct store_replay store_replay(const struct store_trace *t, enum policy_kind kind,
				 uint64_t capacity);
