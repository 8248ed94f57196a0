/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/session/dedup.h"

#include <stdlib.h>
#include <string.h>

#include "lib/wire.h"

#define NONE UINT32_MAX

struct dedup_entry {
	uint8_t agent_id[16];
	uint64_t incarnation, id;
	uint32_t next; /* in its bucket, NONE: last */
};

static uint32_t bucket_of(const uint8_t *agent_id, uint64_t incarnation, uint64_t id)
{
	uint64_t h = dray_le_get64(agent_id) ^ dray_le_get64(agent_id + 8) ^ incarnation;

	h = (h ^ id) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(h >> 32) % DEDUP_ENTRIES;
}

static bool is(const struct dedup_entry *e, const uint8_t *agent_id, uint64_t incarnation,
	       uint64_t id)
{
	return e->id == id && e->incarnation == incarnation && !memcmp(e->agent_id, agent_id, 16);
}

bool dedup_has(const struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id)
{
	if (!d->entries)
		return false;
	for (uint32_t i = d->buckets[bucket_of(agent_id, incarnation, id)]; i != NONE;
	     i = d->entries[i].next)
		if (is(&d->entries[i], agent_id, incarnation, id))
			return true;
	return false;
}

static bool dedup_alloc(struct dedup *d)
{
	if (d->entries)
		return true;
	d->entries = calloc(DEDUP_ENTRIES, sizeof(*d->entries));
	d->buckets = calloc(DEDUP_ENTRIES, sizeof(*d->buckets));
	if (!d->entries || !d->buckets) {
		dedup_deinit(d);
		return false;
	}
	memset(d->buckets, 0xff, DEDUP_ENTRIES * sizeof(*d->buckets));
	return true;
}

static void forget(struct dedup *d, uint32_t at)
{
	const struct dedup_entry *e = &d->entries[at];
	uint32_t *i = &d->buckets[bucket_of(e->agent_id, e->incarnation, e->id)];

	while (*i != at)
		i = &d->entries[*i].next;
	*i = e->next;
}

void dedup_add(struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id)
{
	uint32_t at = d->added % DEDUP_ENTRIES;
	uint32_t *bucket;

	if (!dedup_alloc(d))
		return;
	if (d->added >= DEDUP_ENTRIES)
		forget(d, at);
	bucket = &d->buckets[bucket_of(agent_id, incarnation, id)];
	d->entries[at] =
		(struct dedup_entry){ .incarnation = incarnation, .id = id, .next = *bucket };
	memcpy(d->entries[at].agent_id, agent_id, 16);
	*bucket = at;
	/* past the first round only the remainder counts */
	if (++d->added == 2 * DEDUP_ENTRIES)
		d->added = DEDUP_ENTRIES;
}

void dedup_deinit(struct dedup *d)
{
	free(d->entries);
	free(d->buckets);
	*d = (struct dedup){ .entries = NULL };
}
