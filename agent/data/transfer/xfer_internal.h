/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by xfer*.c. */
#pragma once

#include "agent/data/transfer/ops_read.h"
#include "agent/data/transfer/ops_store.h"
#include "agent/data/transfer/xfer.h"

struct xfers {
	struct dray_handles table;
	struct dray_heap deadlines; /* struct xfer, by deadline */
	struct dray_list overdue;   /* the same beyond it, in order */
	struct ops_store ops;
	struct dray_list free; /* struct xfer, by flow_link */
	int64_t shared_ns;     /* when the last list of operations was shared with other workers */
	uint32_t n_free;
	uint64_t n_records; /* since the start; `records` holds the last RECORDS_MAX */
	struct transfer_record records[RECORDS_MAX];
};

/* The operations of a list that are checked so far. */
struct ops_checked {
	struct ops_bounds bounds; /* and where the last one ended */
	struct ops_seen seen;
	uint32_t n; /* after merging */
};

/* How far a list of operations is read. */
struct ops_progress {
	struct ops_checked checked;
	uint32_t i;      /* read */
	uint32_t ranged; /* merged ones that are looked up in the ranges of a lease */
	uint32_t steps;  /* that the search may still take */
};

/* The list of session->read. */
struct xfer_reading {
	struct xfer_request request;
	struct ops_progress progress;
};

/*
 * ops_load.c: copies, checks and merges the operations into x->ops, which has room for all of them; about `most` of them in one call.
 * *p is zeroed before the first call. 1: all are read, and x->bytes, n_ops and longest are set; 0: call again; -ERANGE or
 * -EFAULT with reterr.
 */
int ops_load(struct core *c, struct xfer *x, const struct xfer_request *r, struct ops_progress *p,
	     uint32_t most, struct dray_err *reterr);

/*
 * Gives the transfer to the best transport that reaches the remote now, or to the one that has it. If no transport does, the transfer ends
 * with the reason.
 */
void xfer_go(struct core *c, struct xfer *x);

/* NULL: none. */
static inline struct object *xfer_object(const struct xfer *x, enum xfer_role role)
{
	struct object *const of[XFER_ROLES] = { x->local, x->remote, x->target, x->wait.region,
						x->set.region };

	return of[role];
}

/* Runs fn on each transfer that uses the object in the role; fn may stop it. The caller holds the object. */
void xfers_each_of(struct core *c, struct object *o, enum xfer_role role,
		   void (*fn)(struct core *c, struct xfer *x, struct object *o));

/* From here on the transfer counts as accepted. */
static inline void xfer_accept(struct core *c)
{
	core_count(c->counters, DRAY_METRIC_TRANSFERS_ACCEPTED_TOTAL, 1);
	core_count(c->counters, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
}

/* session->read is refused. */
void xfer_refuse(struct core *c, struct xfer *x, const struct dray_err *err);

/* It no longer counts as waiting for its word. */
void xfer_wait_over(struct xfer *x);
/* Its operations no longer count at its owner. */
void xfer_ops_over(struct xfer *x);

/* Counts bytes of a transfer on GPU memory for each of its devices. */
void xfer_gpus_moved(struct core *c, const struct xfer *x, uint64_t bytes);

/* A slice of that many bytes is in place. */
static inline void xfer_moved(struct core *c, struct xfer *x, uint64_t bytes)
{
	x->bytes_done += bytes;
	shared_count(&x->session->shared->bytes_moved, bytes);
	core_count(c->counters, DRAY_METRIC_SLICES_TOTAL, 1);
	if (x->gpu_path)
		xfer_gpus_moved(c, x, bytes);
}

/* The transfer has ended: stores the set word, tells the client, counts and records. */
void xfer_settle(struct core *c, struct xfer *x);

/* Takes the transfer out of the table, the heap and its lists. */
void xfer_unlink(struct xfers *xs, struct xfer *x);
void xfer_free(struct xfers *xs, struct xfer *x);
