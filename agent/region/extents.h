/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the extents of a REGION_ADD to mapped memory: every check that a client's descriptors must
 * pass.
 */
#ifndef DRAY_AGENT_REGION_EXTENTS_H
#define DRAY_AGENT_REGION_EXTENTS_H

#include "agent/region/mapping.h"
#include "agent/region/view.h"
#include "lib/handle.h"
#include "schema/gen/data.h"

/* What was mapped: a view without its head, and the mappings it lies in. */
struct extents {
	struct region_view *view; /* length, access, extents and fault_guarded are set */
	struct mapping **maps;    /* one reference each */
	uint32_t n_maps;
};

/*
 * Memfd extents. limit: largest file that is mapped. Errors as REGION_ADD lists; nothing is held
 * then. The descriptors stay the caller's.
 */
int extents_map(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		const int *fds, unsigned n_fds, uint64_t limit, struct extents *ret,
		struct dray_err *reterr);

/* A pool: new memory of the agent. *ret_bytes: what it really takes. */
int extents_map_pool(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		     uint64_t room, struct extents *ret, uint64_t *ret_bytes,
		     struct dray_err *reterr);

void extents_deinit(struct extents *e);

/* Sum of the extents' lengths. `range` where it overflows, `invalid` for an empty one or none. */
int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr);

#endif
