/* SPDX-License-Identifier: Apache-2.0 */
/* Connects segments, hints, the state database and the launcher's environment with the agent. Control thread only. */
#pragma once

#include "agent/placement/environment/env.h"
#include "agent/placement/hint/hints.h"
#include "agent/placement/segment/segments.h"

struct agent;

/* Opens and reads the state database, and starts the probes. Needs peers. 0 or -errno with reterr. */
int agent_placement_start(struct agent *a, struct dray_err *reterr);
/* Starts the thread that writes the state. 0 or -errno with reterr. */
int agent_placement_work(struct agent *a, struct dray_err *reterr);
/* Writes queued changes, for a limited time. Idempotent. */
void agent_placement_stop(struct agent *a);

/* Something that placement depends on has changed. */
void agent_placement_detected(struct agent *a, const struct nd_scan *scan);
void agent_placement_listeners(void *arg, struct nd_listeners *now);
void agent_placement_reload(struct agent *a);

/* Where PUTs of this owner to the name space go, unless the client says it: a segment; "": here. For struct exchange_deps. */
void agent_store_preferred(void *arg, const char *space, const char *tenant, uint32_t uid,
			   char *ret, size_t n);
/* Tells a new store which name spaces have hints. */
void agent_store_hints(struct agent *a);

/* No profiles: those of env.profiles. The caller ends *ret with env_deinit(). 0, -EINVAL (unknown profile), -ENOMEM. */
int agent_environment(struct agent *a, const struct dray_strv *profiles, struct env *ret,
		      struct dray_err *reterr);
/* For env_get of struct sessions_deps; arg is the agent. */
int agent_environment_lines(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
			    struct dray_err *reterr);
