/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which peers an exchange finds: those of the program's peers_at(), and what it is called itself ("10.0.0.9:1"). For one source file of a
 * program: in the library of the tests it would be linked beside the real functions.
 */
#pragma once

#include "agent/control/peer/peer.h"
#include "schema/gen/peer.h"

/* A peer at this segment is connected, and does not read; NULL: there is none. */
static const char *exchange_unready;

/* Before each test. */
static inline void exchange_peers_reset(void)
{
	exchange_unready = NULL;
}

bool peers_is_up_at(struct peers *p, const char *segment)
{
	return segment == exchange_unready || peers_at(p, segment, PMSG_FEATURE_STORE);
}

const char *peers_segment(struct peers *p)
{
	return "10.0.0.9:1";
}
