/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things are to be placed: the wiring of segments, hints, the state database and the launcher's
 * environment. Control thread only.
 */
#ifndef DRAY_AGENT_CONTROL_PLACEMENT_H
#define DRAY_AGENT_CONTROL_PLACEMENT_H

#include "agent/placement/environment/env.h"
#include "agent/placement/hint/hints.h"
#include "agent/placement/segment/segments.h"
#include "agent/control/session/placement.h"

struct agent;

/* Opens the state database, reads it, and begins to probe. Needs peers. 0 or -errno with reterr. */
int agent_placement_start(struct agent *a, struct dray_err *reterr);
/* Begins to write the state, where threads may start. 0 or -errno with reterr. */
int agent_placement_work(struct agent *a, struct dray_err *reterr);
/* The agent is ready: env.file is written from now on. 0 or -errno. */
int agent_placement_ready(struct agent *a);
/* What was queued is written, within limits. Idempotent. */
void agent_placement_stop(struct agent *a);

/* For sessions; arg is the agent. */
extern const struct placement_upcalls agent_placement;

/* News of others. */
void agent_placement_detected(struct agent *a, const struct nd_scan *scan);
void agent_placement_listeners(void *arg, const struct nd_listeners *now);
void agent_placement_reload(struct agent *a);

/* Profiles, none: env.profiles. *ret is the caller's, to env_deinit(). 0, -EINVAL (unknown profile) or -ENOMEM. */
int agent_environment(struct agent *a, const struct dray_strv *profiles, struct env *ret,
		      struct dray_err *reterr);

#endif
