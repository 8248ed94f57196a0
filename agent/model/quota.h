/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on transfers in flight: of a session, its group, and the agent. Shared by workers and the control thread. */
#ifndef DRAY_AGENT_MODEL_QUOTA_H
#define DRAY_AGENT_MODEL_QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "lib/handle.h"

struct quota {
	_Atomic uint32_t transfers;
	uint32_t transfers_max;
};

/* Made by the control thread, freed by it after EVENT_SESSION_GONE. */
struct session_shared {
	dray_handle session, group;
	struct quota own;
	struct quota *group_quota, *agent_quota;
	uint32_t ops_max;               /* operations in flight */
	uint32_t requests_max;          /* requests other than transfers */
	_Atomic uint32_t notifications; /* queued for it; the worker takes them off */
	_Atomic bool has_ring;
	/* of its transfers; written by its worker alone */
	_Atomic uint64_t transfers_ended, bytes_moved;
};

/* One transfer more, at all three. -EBUSY with reterr: nothing was taken. */
int quotas_take(struct session_shared *s, struct dray_err *reterr);
void quotas_put(struct session_shared *s);

/* Has each of them room for one more now? 0, or -EBUSY with reterr. */
int quotas_check(const struct session_shared *s, struct dray_err *reterr);

/* One writer: a plain add in two relaxed steps is enough, the reader only wants no torn value. */
static inline void shared_count(_Atomic uint64_t *v, uint64_t n)
{
	atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

#endif
