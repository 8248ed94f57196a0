/* SPDX-License-Identifier: Apache-2.0 */
/* Flows, deficit round robin, and slices. */
#pragma once

#include "agent/data/transfer/core.h"

void channel_init(struct channel *ch, const struct transport_ops *ops, enum dmsg_class class,
		  struct peer_link *link);

/* Frees the flows of the channel. Its transfers must have ended or stopped. */
void channel_deinit(struct channel *ch);

/* A transfer of which not all is in slices yet. NULL: there is none that may send. */
struct xfer *channel_first(const struct channel *ch);

/* True while a flow of the channel has a slice to send. */
static inline bool channel_pending(const struct channel *ch)
{
	return !dray_list_empty(&ch->flows);
}

/*
 * The next slice for this channel, of at most max_bytes (0: the configured slice size, which is also the quantum of the round
 * robin, and a few bytes more if those are the last ones). NULL: nothing to send, sessions at their limit, or no memory. The
 * transport holds the slice and ends it with xfer_slice_done() exactly once.
 */
struct slice *sched_next(struct core *c, struct channel *ch, uint64_t max_bytes);

/*
 * A slice of the transfer waits in its channel: until sched_go_on() its session gives the channel no new one; those that are staged already
 * stay. The list has flows. Both are for one look at the channel: others may not run in between.
 */
void sched_set_aside(const struct xfer *x, struct dray_list *aside);
void sched_go_on(struct dray_list *aside);
/* The same until sched_unpark(), whatever runs in between, and for transfers that the session submits meanwhile, too. */
void sched_park(const struct xfer *x, struct dray_list *parked);
void sched_unpark(struct core *c, struct dray_list *parked);

/*
 * Splits a slice that is a list of pieces after `bytes`, fewer than it has. Returns the rest as another slice of the same
 * transfer, or NULL: no memory, and nothing was split.
 */
struct slice *sched_split(struct core *c, struct slice *s, uint64_t bytes);

/* Another slice in place of this one, whose transfer waits for the copy instead. NULL: no memory. */
struct slice *sched_copy(struct core *c, const struct slice *s, struct xfer *x);

/*
 * The operations of its transfer are in another order now: the slice, which is the first one, and none of which was sent, begins with
 * the first of them and has as many bytes as before.
 */
void sched_recut(struct slice *s);

/* For xfer.c: assigns the transfer to that channel of transport `index`. */
void sched_assign(struct xfer *x, unsigned index, struct channel *ch);

/* For xfer.c: adds the transfer to its flow (0 or -ENOMEM); takes it out. */
int sched_enqueue(struct core *c, struct xfer *x);
void sched_dequeue(struct xfer *x);

/* For xfer.c: frees the slice; its session may send another. */
void sched_slice_free(struct core *c, struct slice *s);
/* The session of the transfer may send another slice in place of one that is freed later. */
void sched_slice_over(struct core *c, const struct xfer *x);
void sched_session_deinit(struct xfer_session *s);
void sched_deinit(struct core *c);

/* False: the slice's transfer is stopping, and the slice need not be sent. */
static inline bool slice_wanted(const struct slice *s)
{
	return s->xfer && s->xfer->state == XFER_RUNNING;
}
