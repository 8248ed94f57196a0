/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/exchange_peers.h"

#include "agent/control/peer/peer.h"
#include "schema/gen/peer.h"

const char *exchange_unready;

void exchange_peers_reset(void)
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
