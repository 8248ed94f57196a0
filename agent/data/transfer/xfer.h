/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a transfer: accepted, cut into slices, ended exactly once. */
#ifndef DRAY_AGENT_DATA_TRANSFER_XFER_H
#define DRAY_AGENT_DATA_TRANSFER_XFER_H

#include "agent/data/transfer/core.h"
#include "agent/data/transfer/ops_store.h"
#include "agent/model/quota.h"
#include "lib/err.h"

struct records;

void xfer_session_init(struct xfer_session *s, dray_handle handle, struct session_shared *shared);

/* Its transfers must have ended. Frees its flows. */
void xfer_session_deinit(struct xfer_session *s);

int xfers_init(struct core *c, uint32_t max);
void xfers_deinit(struct core *c);
/* Once: memory of OPS_PINNED_BYTES that GPUs reach, for long lists that they read; borrowed until xfers_deinit(). */
void xfers_pinned(struct core *c, void *base);

/*
 * Checks and starts a transfer. 0: accepted, up->xfer_ended will run exactly once (possibly from inside).
 * Otherwise nothing was started and reterr says why.
 */
int xfer_start(struct core *c, struct xfer_session *s, const struct xfer_request *r,
	       struct dray_err *reterr);

/* Stops it: no new slices; those in flight are called home. urgent: memory goes away now. Idempotent. */
void xfer_stop(struct core *c, struct xfer *x, uint32_t code, const char *detail, bool urgent);

/*
 * The transport is done with a slice and lets go of it. code 0: all its bytes are in place. PEER_LOST
 * and the like end the transfer with that code. The slice is freed.
 */
void xfer_slice_done(struct core *c, struct slice *s, uint32_t code, const char *detail);

/* The same for every slice of the list, with `code`; 0: with the code of its transfer, which is stopping. */
void xfer_slices_end(struct core *c, struct dray_list *slices, uint32_t code);

/*
 * Another transport takes the running transfer over; `slices` are all that the one it was with has of it,
 * dead on both ends. False: none can, and nothing has changed.
 */
bool xfer_move(struct core *c, struct xfer *x, struct dray_list *slices);

/* Answer to up->notify. Unknown handles (ended meanwhile) are ignored. */
void xfer_notified(struct core *c, dray_handle handle, uint32_t code);

/* Calls transfers that pass their deadline or wait word; returns when to call again at the latest (ns, INT64_MAX: never). */
int64_t xfers_tick(struct core *c);

/* What became of the last transfers. */
const struct records *xfers_records(const struct core *c);

/* Runs fn on every transfer; fn may stop it. */
void xfers_each(struct core *c, void (*fn)(struct core *c, struct xfer *x, void *arg), void *arg);

#endif
