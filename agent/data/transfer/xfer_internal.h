/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by xfer*.c. */
#ifndef DRAY_AGENT_DATA_TRANSFER_XFER_INTERNAL_H
#define DRAY_AGENT_DATA_TRANSFER_XFER_INTERNAL_H

#include "agent/data/transfer/ops_store.h"
#include "agent/model/record.h"
#include "agent/data/transfer/xfer.h"

struct xfers {
	struct dray_handles table;
	struct dray_heap deadlines; /* struct xfer, by deadline */
	struct ops_store ops;
	struct dray_list free;    /* struct xfer, by flow_link */
	struct dray_list waiting; /* by wait_link */
	int64_t word_ns;          /* when the last word came that one waited for */
	int64_t shared_ns; /* when the last list of operations was shared with other workers */
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

/*
 * Picks the best transport that reaches the remote now and hands the transfer to it. Where none does, the transfer ends
 * and says why.
 */
void xfer_go(struct core *c, struct xfer *x);

/* So many more of its bytes are in place, by one slice. */
static inline void xfer_moved(struct core *c, struct xfer *x, uint64_t bytes)
{
	x->bytes_done += bytes;
	shared_count(&x->session->shared->bytes_moved, bytes);
	core_count(c->counters, DRAY_METRIC_SLICES_TOTAL, 1);
}

/* It has ended: what its client asked for on that occasion, the news, the books. */
void xfer_settle(struct core *c, struct xfer *x);

/* Nobody finds it any more. */
void xfer_unlink(struct xfers *xs, struct xfer *x);
void xfer_free(struct xfers *xs, struct xfer *x);

/* Memory of this session's is not there: it is counted, and the session will end. */
void xfer_memory_fault(struct core *c, dray_handle session);

#endif
