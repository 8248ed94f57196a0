/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/session/dedup.h"

#include <stdlib.h>
#include <string.h>

struct dedup_key {
	uint8_t agent_id[16];
	uint64_t incarnation, id;
};

struct dedup_entry {
	struct dray_map_node node;
	struct dedup_key key;
};

static struct dedup_key key_of(const uint8_t agent_id[16], uint64_t incarnation, uint64_t id)
{
	struct dedup_key key = { .incarnation = incarnation, .id = id };

	memcpy(key.agent_id, agent_id, sizeof(key.agent_id));
	return key;
}

bool dedup_has(const struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id)
{
	struct dedup_key key = key_of(agent_id, incarnation, id);

	return dray_map_find(&d->by_key, &key, sizeof(key));
}

void dedup_add(struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id)
{
	struct dedup_entry *oldest;

	if (!d->entries) {
		d->entries = calloc(DEDUP_ENTRIES, sizeof(*d->entries));
		if (!d->entries)
			return;
		dray_map_init(&d->by_key);
	}
	oldest = &d->entries[d->next];
	d->next = (d->next + 1) % DEDUP_ENTRIES;
	dray_map_del(&d->by_key, &oldest->node);
	oldest->key = key_of(agent_id, incarnation, id);
	dray_map_add(&d->by_key, &oldest->node, &oldest->key, sizeof(oldest->key));
}

void dedup_deinit(struct dedup *d)
{
	dray_map_deinit(&d->by_key);
	free(d->entries);
	*d = (struct dedup){ .entries = NULL };
}
