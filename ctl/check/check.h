/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: what agents find: on the ways to each other (--peer), with trial transfers between them, and about the directory of the store. */
#pragma once

#include "ctl/ctl.h"
#include "netdetect/doctor/doctor.h"

/* Adds findings in their order. 0; or -1 with c->failure, for example without an agent. */
int ctl_check_peer(struct ctl *c, const char *segment, struct nd_findings *f);
/* directory.c: adds a finding about store.directory, or none without an agent that has one. False: no memory. */
bool ctl_check_directory(struct ctl *c, struct nd_findings *f);
