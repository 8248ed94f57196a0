/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importing side of transports to peers: the slices for one peer and class. Slices whose local memory the transport
 * reaches are sent as they are. Slices of other GPU memory get a staging buffer first: a WRITE is gathered into it, a
 * few slices ahead of the transport; a READ's answer is received into it and then scattered. So network and GPU do not
 * wait for each other while there are buffers. The transport treats a staged slice like any other; a retry is sent from
 * the same buffer.
 *
 * A slice that waits for a copy is on no stream and no queue pair, so their loss does not affect it. Worker
 * thread only.
 */
#pragma once

#include "agent/data/transfer/sched.h"
#include "agent/data/transport/stage/stage.h"

/* First member of the transport's channel. */
struct stage_channel {
	struct channel direct;  /* transfers whose local memory the transport reaches */
	struct channel staged;  /* transfers whose slices pass through buffers */
	struct dray_list retry; /* slices to send before new ones; the transport takes them */
	struct dray_list
		unstaged; /* slices without a buffer that another transport handed over, or without a way */
	struct dray_list copying; /* being gathered (WRITE) or scattered (READ) */
	struct dray_list copied;  /* their copies have ended, to be collected */
	struct dray_list ready;   /* to be sent: gathered WRITEs, and READs with a buffer */
	bool staged_next;         /* slices of both channels alternate */
	uint64_t max;             /* limit for a slice's bytes; 0: the configured size */
	struct stage_waiter waiter;
	struct stage_account *account; /* of the peer */
	/*
	 * NULL, or: the transport can send the slice, if not now. Others get no buffer: they stay on `unstaged`, and their sessions go on the
	 * list `aside`, which is that of the transport's look at the channel (sched_set_aside()).
	 */
	bool (*has_way)(const struct stage_channel *p, const struct slice *s);
	struct dray_list *aside;
	/* the transport's link, and the list for it: on this list the channel's slices are taken in the next turn */
	struct dray_list *pull_link, *pulling;
};

/* owner: the transport's channel, which begins with a struct stage_channel. */
void stage_channel_init(struct stage_channel *p, const struct transport_ops *ops,
			enum dmsg_class class, struct peer_link *link, void *owner,
			struct stage_account *account, struct dray_list *pull_link,
			struct dray_list *pulling);
/* The operation kick() of these transports. */
void stage_channel_kick(struct core *c, void *state, struct channel *ch);
/* The channel has no slices. */
void stage_channel_deinit(struct stage_channel *p);

static inline void stage_channel_pull_later(struct stage_channel *p)
{
	if (dray_list_empty(p->pull_link))
		dray_list_add(p->pulling, p->pull_link);
}

/* Slices wait to be sent, or for a buffer. */
static inline bool stage_channel_has_work(const struct stage_channel *p)
{
	return !dray_list_empty(&p->retry) || !dray_list_empty(&p->ready) ||
	       !dray_list_empty(&p->unstaged) || channel_pending(&p->direct) ||
	       channel_pending(&p->staged);
}

/* The transfer's slices use this channel. */
static inline bool stage_channel_has(const struct stage_channel *p, const struct xfer *x)
{
	return x->channel == &p->direct || x->channel == &p->staged;
}

/* Moves slices on whose copies have ended: READs end, WRITEs can be sent. */
void stage_channel_collect(struct core *c, struct stage_channel *p);
/* Gives buffers to further slices, as many as the transport will need next. */
void stage_channel_fill(struct core *c, struct stage_channel *p);
/* A staged slice that can be sent, or NULL. */
static inline struct slice *stage_channel_take(struct stage_channel *p)
{
	return dray_list_pop(&p->ready, struct slice, link);
}

/* A new slice to send, or NULL: staged and other slices in turn. */
struct slice *stage_channel_next(struct core *c, struct stage_channel *p);
/* All bytes of a READ are in its buffer: scatters them, then ends the slice. */
void stage_channel_scatter(struct core *c, struct slice *s);
/* The buffer's bytes are those of another slice from now on. Without a buffer nothing happens. */
static inline void stage_channel_move_buffer(struct slice *from, struct slice *to)
{
	to->staged = dray_take(from->staged);
	if (to->staged)
		to->staged->holder = to;
}

/* Takes slices of x (NULL: all) that were not handed out and need not be sent; urgent: also those being copied. */
void stage_channel_stop(struct core *c, struct stage_channel *p, const struct xfer *x, bool urgent,
			struct dray_list *over);

/* Memory that the slice is sent from or received into: its buffer if it has one. */
static inline const struct iovec *slice_memory(const struct slice *s, struct iovec *ret_staged,
					       unsigned *ret_n)
{
	*ret_n = s->n_local;
	if (!s->staged)
		return s->local;
	*ret_n = 1;
	*ret_staged = (struct iovec){ s->staged->base, s->bytes };
	return ret_staged;
}

/* Moves slices of x (NULL: all) from one list to another. */
static inline void slices_take(struct dray_list *from, const struct xfer *x, struct dray_list *to)
{
	dray_list_for_each(from, s, struct slice, link)
		if (!x || s->xfer == x)
			dray_list_move(to, &s->link);
}
