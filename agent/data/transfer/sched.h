/* SPDX-License-Identifier: Apache-2.0 */
/* Flows, deficit round robin, and slices. */
#ifndef DRAY_AGENT_DATA_TRANSFER_SCHED_H
#define DRAY_AGENT_DATA_TRANSFER_SCHED_H

#include "agent/data/transfer/core.h"

void channel_init(struct channel *ch, const struct transport_ops *ops, enum dmsg_class class,
		  struct peer_link *link);

/* Before the channel goes: forgets its flows. Its transfers must have left it (ended or stopped). */
void channel_deinit(struct channel *ch);

/* True while some flow on it has a slice to hand out. */
static inline bool channel_pending(const struct channel *ch)
{
	return !dray_list_empty(&ch->flows);
}

/*
 * The next slice of at most max_bytes (0: the configured slice size, which is also the round robin's quantum) for this channel, or NULL: nothing
 * to send, sessions at their limit, or no slice free. The transport now holds it and ends it with
 * xfer_slice_done() exactly once.
 */
struct slice *sched_next(struct core *c, struct channel *ch, uint64_t max_bytes);

/*
 * Cuts a slice, which is a list of pieces, down to its first bytes, fewer than it has. Returns the rest, a slice
 * like any other of the same transfer, or NULL: none is free, and nothing is cut.
 */
struct slice *sched_split(struct core *c, struct slice *s, uint64_t bytes);

/* For xfer.c: it goes by that channel of transport `index` from now on. */
void sched_assign(struct xfer *x, unsigned index, struct channel *ch);

/* For xfer.c: the transfer's slices can go out from now on; and: it hands out no more. */
int sched_enqueue(struct core *c, struct xfer *x);
void sched_dequeue(struct xfer *x);

/* For xfer.c: the slice is over; its session may send more. */
void sched_slice_free(struct core *c, struct slice *s);
void sched_session_deinit(struct xfer_session *s);
void sched_deinit(struct core *c);

/* True where the slice's transfer still wants it (not stopping). Otherwise it need not be sent. */
static inline bool slice_wanted(const struct slice *s)
{
	return s->xfer && s->xfer->state == XFER_RUNNING;
}

#endif
