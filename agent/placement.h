/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent answers clients that ask about placement. */
#ifndef DRAY_AGENT_PLACEMENT_H
#define DRAY_AGENT_PLACEMENT_H

#include "agent/session/placement.h"

/* arg: struct agent. */
extern const struct placement_upcalls agent_placement;

#endif
