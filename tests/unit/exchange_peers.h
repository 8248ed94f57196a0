/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which peers an exchange finds: those of the program's peers_at(), and what it is called itself ("10.0.0.9:1"). For one source file of a
 * program: in the library of the tests it would be linked beside the real functions.
 */
#pragma once

#include <string.h>

#include "agent/control/peer/peer.h"
#include "schema/gen/peer.h"

/* A peer at this segment is connected, and does not read; NULL: there is none. */
static const char *exchange_unready;

/* This agent itself has answered there. */
static const char *exchange_self;

/* Before each test. */
static inline void exchange_peers_reset(void)
{
	exchange_self = NULL;
	exchange_unready = NULL;
}

bool peers_is_up_at(struct peers *p, const char *segment)
{
	return segment == exchange_unready || peers_at(p, segment, PMSG_FEATURE_STORE);
}

bool peers_segment_leads_here(struct peers *p, const char *segment)
{
	return exchange_self && !strcmp(segment, exchange_self);
}

const char *peers_segment(struct peers *p)
{
	return "10.0.0.9:1";
}
