/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of transfers by deadline; x->deadline_pos is the place of x in it. */
#ifndef DRAY_AGENT_DATA_TRANSFER_DEADLINES_H
#define DRAY_AGENT_DATA_TRANSFER_DEADLINES_H

#include "agent/data/transfer/core.h"

#define DEADLINE_NONE UINT32_MAX

struct deadlines {
	struct xfer **heap;
	uint32_t n, cap;
};

int deadlines_add(struct deadlines *d, struct xfer *x); /* 0 or -ENOMEM */
void deadlines_del(struct deadlines *d, struct xfer *x);

/* The earliest, or NULL. */
static inline struct xfer *deadlines_first(const struct deadlines *d)
{
	return d->n ? d->heap[0] : NULL;
}

void deadlines_deinit(struct deadlines *d);

#endif
