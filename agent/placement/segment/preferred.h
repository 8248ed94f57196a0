/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks the segments that engines may prefer, with a reason for each. In this order: segment.preferred,
 * MOONCAKE_PREFERRED_SEGMENT, a hint whose segment is not known to be dead, a ready segment on this node, none. The first
 * two count whatever the state of the segment. The segment that was detected before a restart counts, unverified, until
 * another one is ready or it turns out to be dead. Pure.
 *
 * For PUTs of a name space the segments are agents with stores: store.put_at, a hint for the name space whose agent takes objects, this
 * agent.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "schema/gen/data.h"

#define PREFERRED_REASON_BYTES 240
#define PREFERRED_ABOUT_BYTES 192

/* Facts about a segment. */
struct preferred_segment {
	const char *name;
	const char *reason; /* of its state */
	const char *where;  /* why it is on this node, or is not */
	enum dmsg_segment_state state;
	bool verified; /* the state was confirmed since the agent's start */
	bool answers;  /* it is ready, or has not failed often enough yet */
	bool local;
	bool located;   /* `local` is certain */
	bool loopback;  /* other nodes cannot reach it by that name */
	bool agent;     /* a dray agent, which moves bytes and owns none */
	bool mentioned; /* a source other than hints mentions it now */
	bool hinted;    /* a hint of any scope and owner names it */
	bool configured, listed, listens;
	uint64_t capacity;
};

struct preferred_hint {
	const char *segment;
	char about[PREFERRED_ABOUT_BYTES]; /* "scope llama-70b, by explicit, score 5" */
};

struct preferred_facts {
	bool stores;             /* for PUTs; the segments are all agents that may be chosen */
	const char *explicit_by; /* the key of the configuration that has explicit_name */
	const char *explicit_name, *environment; /* NULL: unset; may be local, self, own */
	const struct preferred_hint *hints;      /* strongest first */
	size_t n_hints;
	const struct preferred_segment *segments; /* by name */
	size_t n_segments;
	const char *last;       /* the preferred segment of the last decision; "" none */
	const char *remembered; /* detected on this node before; "" none */
};

struct candidate {
	const char *
		name; /* borrowed from the facts; "": a word for this node's own segment without one */
	const struct preferred_segment *known; /* NULL: the segment is not known */
	enum dmsg_preference preference;
	bool chosen;
	char reason[PREFERRED_REASON_BYTES];
};

/* All candidates, best first; at most one is chosen. The caller frees *ret. 0 or -ENOMEM. */
int preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n);
