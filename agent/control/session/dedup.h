/* SPDX-License-Identifier: Apache-2.0 */
/* The last notifications that peers delivered here, so that a repeated notification is delivered once. */
#ifndef DRAY_AGENT_CONTROL_SESSION_DEDUP_H
#define DRAY_AGENT_CONTROL_SESSION_DEDUP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/map.h"

#define DEDUP_ENTRIES 4096

struct dedup_entry;

/* Empty if zeroed. Allocates with the first entry. */
struct dedup {
	struct dedup_entry *entries; /* a ring: a new entry replaces the oldest */
	uint32_t next;               /* place of the next entry */
	struct dray_map by_key;
};

bool dedup_has(const struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation,
	       uint64_t id);

/* Without memory the entry is not stored. */
void dedup_add(struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id);
void dedup_deinit(struct dedup *d);

#endif
