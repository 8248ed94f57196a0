/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a worker under test that the tests do not depend on: settings, quotas and views. */
#pragma once

#include <stdlib.h>

#include "agent/model/view.h"
#include "agent/data/transfer/core.h"
#include "lib/assert.h"
#include "lib/time.h"
#include "tests/unit/account.h"

static inline struct data_config worker_part_config(int64_t poll_time_ns)
{
	return (struct data_config){ .slice_size = 1 << 20,
				     .slice_timeout_ns = DRAY_NS_PER_SEC,
				     .deadline_ns = 3600 * DRAY_NS_PER_SEC,
				     .slices_per_session = 64,
				     .tcp_streams = 1,
				     .tcp_latency_streams = 1,
				     .tcp_slices_in_flight = 8,
				     .connect_timeout_ns = DRAY_NS_PER_SEC,
				     .backoff_min_ns = DRAY_NS_PER_MS,
				     .backoff_max_ns = DRAY_NS_PER_SEC,
				     .poll_time_ns = poll_time_ns };
}

/* Quotas that no test reaches. */
static inline struct session_shared worker_part_shared(dray_handle session, dray_handle group,
						       struct quota *group_quota)
{
	group_quota->transfers_max = 100000;
	return (struct session_shared){ .session = session,
					.group = group,
					.own = { .transfers_max = 4096 },
					.group_quota = group_quota,
					.account = account_without_limits(),
					.ops_max = 1 << 20,
					.requests_max = 4 };
}

/* A region of host memory with one extent; the caller frees it. */
static inline struct region_view *worker_part_region(dray_handle region, dray_handle session,
						     dray_handle group, uint8_t *base,
						     uint64_t bytes)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(struct extent_view));

	dray_assert(v);
	v->o = (struct object_view){ OBJECT_REGION, region, group, session, bytes, DMSG_ACCESS_ALL };
	v->n_extents = 1;
	v->extents[0] = (struct extent_view){ .length = bytes, .base = base, .node = -1 };
	return v;
}

/* A remote of a whole region of this agent. */
static inline struct remote_view worker_part_remote(dray_handle remote, dray_handle session,
						    dray_handle group, dray_handle region,
						    uint64_t bytes)
{
	return (struct remote_view){
		.o = { OBJECT_REMOTE, remote, group, session, bytes, DMSG_ACCESS_ALL },
		.is_local = true,
		.region = region,
	};
}
