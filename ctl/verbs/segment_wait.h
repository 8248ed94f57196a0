/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the state of a segment. */
#ifndef DRAY_CTL_VERBS_SEGMENT_WAIT_H
#define DRAY_CTL_VERBS_SEGMENT_WAIT_H

#include "ctl/ctl.h"

#define CTL_SEGMENT_LOCAL "local"         /* any segment on this node */
#define CTL_SEGMENT_PREFERRED "preferred" /* the preferred one, after a probe has confirmed it */

struct ctl_segment_goal {
	const char *segment; /* host:port, or one of the words above */
	const char *state;
	bool running; /* the agent has to be running as well */
};

/* The progress of a wait for the agent or for a segment. */
struct ctl_wait_state {
	bool reached, interrupted;
	char segment[300]; /* the segment in question */
	char why[400];     /* the missing condition */
};

/*
 * Waits for the goal until ends_ns (0: no limit), or until the agent closes the connection, which is not an error.
 * interruptible: as of ctl_bus_wait(). 0, or -1 if the agent cannot answer.
 */
int ctl_segment_wait(struct ctl *c, bool interruptible, const struct ctl_segment_goal *goal,
		     int64_t ends_ns, struct ctl_wait_state *w);

#endif
