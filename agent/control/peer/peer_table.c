/* SPDX-License-Identifier: Apache-2.0 */
/* Peers by handle and by agent id. Several peers may have one id: attempts, claims, and the peer that is up. */
#include <string.h>

#include "agent/control/peer/internal.h"

void peer_table_add(struct peers *p, struct peer *peer)
{
	dray_list_add(&p->all, &peer->all_link);
	dray_map_add(&p->by_id, &peer->by_id, peer->agent_id, sizeof(peer->agent_id));
}

void peer_table_del(struct peer *peer)
{
	struct peers *p = peer->p;

	/* the workers keep the peer under its index until they release the link */
	dray_handles_retire(&p->handles, peer->handle);
	dray_map_del(&p->by_id, &peer->by_id);
	dray_list_del(&peer->all_link);
	dray_list_add(&p->closed, &peer->all_link);
}

void peer_table_set_id(struct peer *peer, const uint8_t agent_id[16])
{
	dray_map_del(&peer->p->by_id, &peer->by_id);
	memcpy(peer->agent_id, agent_id, sizeof(peer->agent_id));
	dray_map_add(&peer->p->by_id, &peer->by_id, peer->agent_id, sizeof(peer->agent_id));
}

struct peer *peer_get(struct peers *p, dray_handle handle)
{
	return dray_handles_get(&p->handles, handle);
}

struct peer *peer_get_up(struct peers *p, dray_handle handle)
{
	struct peer *peer = peer_get(p, handle);

	return peer && peer_fsm_is_up(&peer->fsm) ? peer : NULL;
}

struct peer *peer_find_up(struct peers *p, const uint8_t agent_id[16], const struct peer *except)
{
	peers_for_each_of(p, agent_id,
			  peer) if (peer != except && peer_fsm_is_up(&peer->fsm)) return peer;
	return NULL;
}

struct peer *peer_find_attempt(struct peers *p, const uint8_t agent_id[16], const char *segment)
{
	peers_for_each_of(p, agent_id, peer) if (peer->fsm.initiator && !peer->any_agent &&
						 !peer_fsm_is_up(&peer->fsm) &&
						 !strcmp(peer->segment, segment)) return peer;
	return NULL;
}
