/* SPDX-License-Identifier: Apache-2.0 */
/* Segments as the agent knows them, and waiting for the state of one. */
#ifndef DRAY_CTL_VERBS_SEGMENTS_H
#define DRAY_CTL_VERBS_SEGMENTS_H

#include "ctl/interrupt.h"
#include "ctl/bus/list.h"

extern const struct ctl_list ctl_list_segments, ctl_list_candidates, ctl_list_hints,
	ctl_list_variables;

#define CTL_SEGMENT_LOCAL "local"         /* any on this node */
#define CTL_SEGMENT_PREFERRED "preferred" /* the preferred one, once a probe has confirmed it */

struct ctl_segment_goal {
	const char *segment; /* host:port, or one of the words above */
	const char *state;
	bool running; /* and the agent is */
};

struct ctl_segment_look {
	bool reached, interrupted;
	char segment[300]; /* which one it is */
	char why[400];     /* not yet */
};

/* Is it so at this moment? 0 or -1. */
int ctl_segment_look(struct ctl_bus *b, const struct ctl_segment_goal *goal,
		     struct ctl_segment_look *l, struct ctl_err *reterr);

/*
 * Until it is so, until ends_ns (0: for ever), or until the agent is gone, which is no error. in: as with
 * ctl_interrupt_wait(); NULL: signals end the process as ever. 0, or -1 for an agent that cannot tell.
 */
int ctl_segment_wait(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in,
		     const struct ctl_segment_goal *goal, int64_t ends_ns,
		     struct ctl_segment_look *l, struct ctl_err *reterr);

#endif
