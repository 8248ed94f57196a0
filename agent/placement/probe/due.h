/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of things that are due at some time; each embeds a node, which knows its place. */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_DUE_H
#define DRAY_AGENT_PLACEMENT_PROBE_DUE_H

#include <stddef.h>
#include <stdint.h>

#define DUE_NONE UINT32_MAX

struct due_node {
	int64_t at_ns;
	uint32_t pos; /* DUE_NONE: in no heap */
};

struct due {
	struct due_node **heap;
	uint32_t n, cap;
};

/* Room for so many: due_set() never fails then. 0 or -ENOMEM. */
int due_reserve(struct due *d, uint32_t n);
void due_deinit(struct due *d);

/* Adds it, or moves it. */
void due_set(struct due *d, struct due_node *node, int64_t at_ns);
/* Harmless where it is in no heap. */
void due_del(struct due *d, struct due_node *node);

/* The earliest, or NULL. */
static inline struct due_node *due_first(const struct due *d)
{
	return d->n ? d->heap[0] : NULL;
}

#endif
