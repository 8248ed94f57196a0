/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a batch that other agents are asked for, as an ask. */
#pragma once

#include "agent/data/worker/store_batch.h"

/* The key was not found here. */
static inline bool wanted_key(const struct dmsg_store_result *r)
{
	return r->status == DMSG_STORE_STATUS_NOT_FOUND;
}

bool wanted_any(const struct batch *b);
/*
 * The keys that the batch has not found: first those that are asked for, then those that the session holds, which it takes over. NULL:
 * there are none, or no memory.
 */
struct store_ask *wanted_ask(struct wsession *s, const struct batch *b,
			     const struct store_key *keys);
/*
 * The keys of a PUT that is to have copies at another agent, without those that it does not store; or of one whose objects go to the agent
 * `at`. NULL: likewise.
 */
struct store_ask *wanted_replicas(const struct wsession *s, const struct batch *b,
				  const struct store_key *keys, struct dray_str at);
/* The keys of this ask whose source was lost. NULL: likewise. */
struct store_ask *wanted_again(const struct wsession *s, const struct store_ask *before);
