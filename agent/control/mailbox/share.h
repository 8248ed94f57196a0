/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each user of a limited store holds of it, so that the store can be divided fairly (dynamic thresholds). Users are
 * agents and uids that send to one mailbox, and uids that own mailboxes. A user exists while it holds something.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "agent/config/tenant.h"
#include "lib/handle.h"
#include "lib/map.h"
#include "lib/share.h"

/* No padding: it is compared as bytes. */
struct share_key {
	dray_handle mailbox; /* 0: the memory of all letters */
	uint8_t agent_id[16];
	uint32_t uid;
	uint32_t one_uid;          /* 0: all uids of the agent */
	char tenant[TENANT_BYTES]; /* filled up with zeros; of owners: senders are of the mailbox's tenant */
};

struct share {
	struct dray_map_node node;
	struct share_key key;
	uint64_t held;
};

struct shares {
	struct dray_map by_key;
};

void shares_init(struct shares *s);
/* Everything must have been put back. */
void shares_deinit(struct shares *s);

static inline struct share_key share_of_agent(dray_handle mailbox, const uint8_t agent_id[16])
{
	struct share_key key = { .mailbox = mailbox };

	memcpy(key.agent_id, agent_id, sizeof(key.agent_id));
	return key;
}

static inline struct share_key share_of_sender(dray_handle mailbox, const uint8_t agent_id[16],
					       uint32_t uid)
{
	struct share_key key = share_of_agent(mailbox, agent_id);

	key.uid = uid;
	key.one_uid = 1;
	return key;
}

static inline struct share_key share_of_owner(const char *tenant, uint32_t uid)
{
	struct share_key key = { .uid = uid, .one_uid = 1 };

	memcpy(key.tenant, tenant, strlen(tenant));
	return key;
}

uint64_t share_held(const struct shares *s, struct share_key key);

/* NULL: no memory. */
struct share *share_take(struct shares *s, struct share_key key, uint64_t n);
/* share may be NULL. */
void share_put(struct shares *s, struct share *share, uint64_t n);
