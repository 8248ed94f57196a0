/* SPDX-License-Identifier: Apache-2.0 */
/* Peers by agent id. Ids are random, so that their first byte spreads them well enough. */
#include <string.h>

#include "agent/control/peer/internal.h"

struct dray_list *table_bucket(struct peers *p, const uint8_t agent_id[16])
{
	return &p->buckets[agent_id[0]];
}

void table_add(struct peers *p, struct peer *peer)
{
	dray_list_add(&p->all, &peer->all_link);
	dray_list_add(table_bucket(p, peer->agent_id), &peer->bucket_link);
}

void table_del(struct peer *peer)
{
	struct peers *p = peer->p;

	dray_handles_del(&p->handles, peer->handle);
	peer->handle = 0;
	dray_list_del(&peer->bucket_link);
	dray_list_del(&peer->all_link);
	dray_list_add(&p->closed, &peer->all_link);
}

void table_name(struct peer *peer, const uint8_t agent_id[16])
{
	memcpy(peer->agent_id, agent_id, sizeof(peer->agent_id));
	dray_list_del(&peer->bucket_link);
	dray_list_add(table_bucket(peer->p, agent_id), &peer->bucket_link);
}

struct peer *table_get(struct peers *p, dray_handle handle)
{
	return dray_handles_get(&p->handles, handle);
}

struct peer *table_find_up(struct peers *p, const uint8_t agent_id[16], const struct peer * not )
{
	dray_list_for_each(table_bucket(p, agent_id), peer, struct peer, bucket_link)
		if (peer != not &&peer_fsm_is_up(&peer->fsm) &&
		    !memcmp(peer->agent_id, agent_id, sizeof(peer->agent_id)))
			return peer;
	return NULL;
}

struct peer *table_find_attempt(struct peers *p, const uint8_t agent_id[16], const char *segment)
{
	dray_list_for_each(table_bucket(p, agent_id), peer, struct peer, bucket_link)
		if (peer->fsm.initiator && !peer->any_agent && !peer_fsm_is_up(&peer->fsm) &&
		    !memcmp(peer->agent_id, agent_id, sizeof(peer->agent_id)) &&
		    !strcmp(peer->segment, segment))
			return peer;
	return NULL;
}
