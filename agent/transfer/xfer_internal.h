/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by xfer.c and xfer_prepare.c. */
#ifndef DRAY_AGENT_TRANSFER_XFER_INTERNAL_H
#define DRAY_AGENT_TRANSFER_XFER_INTERNAL_H

#include "agent/transfer/deadlines.h"
#include "agent/transfer/ops_store.h"
#include "agent/transfer/record.h"
#include "agent/transfer/xfer.h"

struct xfers {
	struct dray_handles table;
	struct deadlines deadlines;
	struct ops_store ops;
	struct dray_list free;    /* struct xfer, by flow_link */
	struct dray_list waiting; /* by wait_link */
	uint32_t n_free;
	struct records *records; /* of those that have ended */
};

/* What needs no look at the objects. 0, or -EINVAL with reterr. */
int xfer_request_check(const struct xfer_request *r, struct dray_err *reterr);

/*
 * Fills in everything that can be refused: objects (not held yet), words, merged operations, the
 * notification. On error what was allocated is the transfer's to free.
 */
int xfer_prepare(struct core *c, struct xfer *x, const struct xfer_request *r,
		 struct dray_err *reterr);

/* Memory of this session's is not there: it is counted, and the session will end. */
void xfer_memory_fault(struct core *c, dray_handle session);

#endif
