/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by xfer*.c. */
#pragma once

#include "agent/data/transfer/ops_store.h"
#include "agent/data/transfer/xfer.h"

struct xfers {
	struct dray_handles table;
	struct dray_heap deadlines; /* struct xfer, by deadline */
	struct ops_store ops;
	struct dray_list free;    /* struct xfer, by flow_link */
	struct dray_list waiting; /* by wait_link */
	int64_t word_ns;          /* when a wait word was last found set */
	int64_t shared_ns; /* when the last list of operations was shared with other workers */
	uint32_t n_free;
	uint64_t n_records; /* since the start; `records` holds the last RECORDS_MAX */
	struct transfer_record records[RECORDS_MAX];
};

/*
 * ops_load.c: copies, checks and merges the operations into x->ops, which has room for all of them. Sets x->bytes, n_ops and
 * longest. 0, -ERANGE or -EFAULT with reterr.
 */
int ops_load(struct core *c, struct xfer *x, const struct xfer_request *r, struct dray_err *reterr);

/*
 * Gives the transfer to the best transport that reaches the remote now. If no transport does, the transfer ends with the
 * reason.
 */
void xfer_go(struct core *c, struct xfer *x);

/* A slice of that many bytes is in place. */
static inline void xfer_moved(struct core *c, struct xfer *x, uint64_t bytes)
{
	x->bytes_done += bytes;
	shared_count(&x->session->shared->bytes_moved, bytes);
	core_count(c->counters, DRAY_METRIC_SLICES_TOTAL, 1);
}

/* The transfer has ended: stores the set word, tells the client, counts and records. */
void xfer_settle(struct core *c, struct xfer *x);

/* Takes the transfer out of the table, the heap and its lists. */
void xfer_unlink(struct xfers *xs, struct xfer *x);
void xfer_free(struct xfers *xs, struct xfer *x);
