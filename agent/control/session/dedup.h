/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last notifications that peers delivered here, so that one that comes again is not delivered
 * twice.
 */
#ifndef DRAY_AGENT_CONTROL_SESSION_DEDUP_H
#define DRAY_AGENT_CONTROL_SESSION_DEDUP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/map.h"

#define DEDUP_ENTRIES 4096

struct dedup_entry;

/* A zeroed one is empty. It takes memory with its first entry. */
struct dedup {
	struct dedup_entry *entries; /* ring, the oldest is forgotten first */
	uint32_t next;               /* place of the next one */
	struct dray_map by_key;
};

bool dedup_has(const struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation,
	       uint64_t id);

/* Without memory nothing is remembered. */
void dedup_add(struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id);
void dedup_deinit(struct dedup *d);

#endif
