/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a transfer: accepted, cut into slices, ended exactly once. */
#pragma once

#include "agent/data/transfer/core.h"
#include "agent/data/transfer/ops_store.h"
#include "agent/model/quota.h"
#include "lib/err.h"

/* 0 or -ENOMEM; then only xfer_session_deinit() is allowed. */
int xfer_session_init(struct core *c, struct xfer_session *s, dray_handle handle,
		      struct session_shared *shared);

/* Its transfers must have ended. Frees its flows. */
void xfer_session_deinit(struct xfer_session *s);

int xfers_init(struct core *c, uint32_t max);
void xfers_deinit(struct core *c);
/* Called once: OPS_PINNED_BYTES of memory for long lists that GPUs read; borrowed until xfers_deinit(). */
void xfers_pinned(struct core *c, void *base);

/* Whether a transfer of so many operations could start now with this region, before its operations are known. 0, or -errno with reterr. */
int xfer_check(struct core *c, struct xfer_session *s, dray_handle local, uint16_t access,
	       uint32_t n_ops, struct dray_err *reterr);
/*
 * Checks and starts a transfer. 0: accepted, up->xfer_ended will run exactly once (possibly from inside).
 * Otherwise nothing was started and reterr says why.
 *
 * A list of more than OPS_STEP operations, which lies in the session's arena, is read in steps: the transfer is s->read until
 * xfer_read() has read all of it. Then up->xfer_refused may run in place of up->xfer_ended. Meanwhile only transfers with a
 * function `ended` may start, whose lists are never read in steps.
 */
int xfer_start(struct core *c, struct xfer_session *s, const struct xfer_request *r,
	       struct dray_err *reterr);

/* Reads the next OPS_STEP operations of s->read. */
void xfer_read(struct core *c, struct xfer_session *s);

/* The transfer of the session with this request id that has not ended, or NULL. */
struct xfer *xfer_find(struct xfer_session *s, uint64_t request_id);

/* Its stop waits for devices, although it is outlived: they write to memory of the client. */
bool xfer_awaits_devices(const struct core *c, const struct xfer *x);

/* Stops it: no new slices, and the transport ends those in flight. urgent: its memory goes away now. Idempotent. */
void xfer_stop(struct core *c, struct xfer *x, uint32_t code, const char *detail, bool urgent);
/*
 * The client, an operator or a drain stops the whole request. One that is outlived ends with this code, even if it was being stopped
 * alone; xfer->request_stops tells that from the end of its own.
 */
void xfer_stop_request(struct core *c, struct xfer *x, uint32_t code, const char *detail);
/* The same, urgently, for all transfers of the session, which starts no other. */
void xfer_session_stop(struct core *c, struct xfer_session *s, uint32_t code);

/*
 * The transport is done with the slice, which is freed. code 0: all its bytes are in place. Any other code ends the
 * transfer. A slice of another worker goes back to it.
 */
void xfer_slice_done(struct core *c, struct slice *s, uint32_t code, const char *detail);
/* The same for a slice that was recalled from a helper (delegate.h): it is freed when it comes back. Not code 0. */
void xfer_slice_recalled(struct core *c, struct slice *s, uint32_t code);
/* Sorts its operations, as ops_sort(). None of its slices has moved; what they mean is the caller's business (sched_recut()). */
bool xfer_sort_ops(struct core *c, struct xfer *x, bool local);
/* A GPU copies bytes of the transfer so. NULL: does nothing. */
void xfer_note_gpu_way(struct xfer *x, enum dmsg_gpu_way way);

/* The same for every slice of the list. code 0: each ends with the code of its transfer, which is stopping. */
void xfer_slices_end(struct core *c, struct dray_list *slices, uint32_t code);

/*
 * Moves the running transfer to another transport. `slices` are all that its transport has of it, dead on both ends. False:
 * no transport can take it, and nothing has changed.
 */
bool xfer_move(struct core *c, struct xfer *x, struct dray_list *slices);

/* Answer to up->notify. Unknown handles (ended meanwhile) are ignored. */
void xfer_notified(struct core *c, dray_handle handle, uint32_t code);

/* Handles deadlines and wait words; returns when to call again at the latest (ns, INT64_MAX: never). */
int64_t xfers_tick(struct core *c);

/* The record of the transfer, if it ended now. */
void xfer_describe(struct transfer_record *ret, const struct core *c, const struct xfer *x,
		   int64_t now_ns);

/* Copies the records of the transfers that ended last, at most max, in order of their end. Returns how many. */
uint32_t xfers_records(const struct core *c, struct transfer_record *to, uint32_t max);

/* A device is up: gives transfers that no transport has reached before to one. */
void xfers_retry(struct core *c);
/* The same for those of a region that is open now; if no transport can carry one out, it ends. */
void xfers_opened(struct core *c, dray_handle region);

uint32_t xfers_count(const struct core *c);
/* The transfer with the earliest deadline; NULL: there is no transfer. */
const struct xfer *xfers_first_due(const struct core *c);
/* Runs fn on every transfer; fn may stop it. */
void xfers_each(struct core *c, void (*fn)(struct core *c, struct xfer *x, void *arg), void *arg);

/*
 * Drops the object: new use is refused, and transfers and slices that hold it end with `code`, unless the mode lets them
 * finish. When the last of them has ended EVENT_DROPPED runs, possibly inside this call; for an unknown handle it runs at
 * once. A second call only makes the first one stricter.
 */
void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 enum drop_mode mode);

/* Details of slices that end with an error. */
#define XFER_FAULT_DETAIL "memory of a region is gone: do not punch holes into regions in use"
#define XFER_REFUSED_DETAIL "the agent that owns the remote refused a slice for this reason"

/* A page of this session's memory is missing: counts the fault and ends the session. */
void xfer_memory_fault(struct core *c, dray_handle session);
