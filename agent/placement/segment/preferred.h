/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which segment engines are to prefer, and why each candidate won or lost. Highest first: segment.preferred,
 * MOONCAKE_PREFERRED_SEGMENT, a hint whose segment is not known to be dead, a ready segment on this node, none.
 * The first two are somebody's word and stand whatever state the segment is in. What was found on this node before
 * a restart stands, unverified, until something is ready or it turns out dead. Pure.
 */
#ifndef DRAY_AGENT_PLACEMENT_SEGMENT_PREFERRED_H
#define DRAY_AGENT_PLACEMENT_SEGMENT_PREFERRED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "schema/gen/data.h"

#define PREFERRED_REASON_BYTES 240
#define PREFERRED_ABOUT_BYTES 160

/* What is known of a segment. */
struct preferred_segment {
	const char *name;
	const char *reason; /* of its state */
	const char *where;  /* why it is on this node, or is not */
	enum dmsg_segment_state state;
	bool verified; /* a probe has confirmed the state since the agent's start */
	bool answers;  /* it is ready, or has had no time to fail */
	bool local;
	bool located;   /* that is certain */
	bool loopback;  /* nobody else could reach it by that name */
	bool agent;     /* a dray agent: it moves bytes and owns none */
	bool mentioned; /* somebody speaks of it now */
	bool configured, listed, listens;
	uint64_t capacity;
};

struct preferred_hint {
	const char *segment;
	char about[PREFERRED_ABOUT_BYTES]; /* "scope llama-70b, by client, score 5" */
};

struct preferred_facts {
	const char *explicit_name, *environment; /* NULL: unset; may be local, self, own */
	const struct preferred_hint *hints;      /* strongest first */
	size_t n_hints;
	const struct preferred_segment *segments; /* by name */
	size_t n_segments;
	const char *last;       /* the preferred segment of before; "" for none */
	const char *remembered; /* what was found on this node before; "" for none */
};

struct candidate {
	const char *name;                      /* of the facts; "" where a word has found none */
	const struct preferred_segment *known; /* NULL: nothing is known of it */
	enum dmsg_preference preference;
	bool chosen;
	char reason[PREFERRED_REASON_BYTES];
};

/* All of them, best first; at most one is chosen. *ret is the caller's to free. 0 or -ENOMEM. */
int preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n);

#endif
