/* SPDX-License-Identifier: Apache-2.0 */
/* doctor --peer: what the agents find on the ways to each other, and trial transfers between them. */
#pragma once

#include "ctl/ctl.h"
#include "netdetect/doctor/doctor.h"

/* Adds findings in their order. 0; or -1 with c->failure, for example without an agent. */
int ctl_check_peer(struct ctl *c, const char *segment, struct nd_findings *f);
