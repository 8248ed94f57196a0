/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last notifications that peers delivered here, so that one that comes again is not delivered
 * twice.
 */
#ifndef DRAY_AGENT_CONTROL_SESSION_DEDUP_H
#define DRAY_AGENT_CONTROL_SESSION_DEDUP_H

#include <stdbool.h>
#include <stdint.h>

#define DEDUP_ENTRIES 4096

struct dedup_entry;

/* Memory is taken with the first entry. */
struct dedup {
	struct dedup_entry *entries; /* ring, the oldest is forgotten first */
	uint32_t *buckets;
	uint32_t added;
};

bool dedup_has(const struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation,
	       uint64_t id);

/* Without memory nothing is remembered. */
void dedup_add(struct dedup *d, const uint8_t agent_id[16], uint64_t incarnation, uint64_t id);
void dedup_deinit(struct dedup *d);

#endif
