/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of the importing side whose local memory is a GPU's, for transports that reach a peer. Each gets a staging
 * buffer before it goes out: a WRITE is gathered into it some slices ahead of the transport, a READ's answer is received into
 * it and then scattered. Neither the network nor the GPU waits for the other, as long as there are buffers. To
 * the transport such a slice is one like others, in memory of ours; one that is sent again is sent from its buffer.
 *
 * A slice that waits for a copy is on no stream and no queue pair, and so survives all of them. Worker thread only.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_STAGE_CHANNEL_H
#define DRAY_AGENT_DATA_TRANSPORT_STAGE_CHANNEL_H

#include "agent/data/transfer/sched.h"
#include "agent/data/transport/stage/stage.h"

/* Of one peer and class; embedded in the transport's channel. */
struct stage_channel {
	struct channel ch;         /* first: transfers whose slices pass through buffers */
	struct dray_list unstaged; /* slices without a buffer, taken over from another transport */
	struct dray_list copying;  /* being gathered (WRITE) or scattered (READ) */
	struct dray_list copied;   /* their copies are done, nobody has looked at them yet */
	struct dray_list staged; /* to go out: WRITEs that are gathered, READs that have a buffer */
	struct stage_waiter waiter;
	struct stage_account *account; /* of the peer */
	uint64_t max; /* bytes of a slice, besides what a buffer takes; 0: as many */
	/* There is something for stage_channel_fill() to do. Only notes it. */
	void (*ready)(struct core *c, struct stage_channel *p);
};

void stage_channel_init(struct stage_channel *p, const struct transport_ops *ops,
			enum dmsg_class class, struct peer_link *link,
			struct stage_account *account,
			void (*ready)(struct core *c, struct stage_channel *p));
/* It has no slices any more. */
void stage_channel_deinit(struct stage_channel *p);

/* Slices wait to go out, or to get a buffer first. */
static inline bool stage_channel_has_work(const struct stage_channel *p)
{
	return !dray_list_empty(&p->staged) || !dray_list_empty(&p->unstaged) ||
	       channel_pending(&p->ch);
}

/* Ends what has been copied and is over by that. */
void stage_channel_collect(struct core *c, struct stage_channel *p);
/* Has further slices get a buffer, as many as the transport will want next. */
void stage_channel_fill(struct core *c, struct stage_channel *p);
/* One to be sent, or NULL. */
struct slice *stage_channel_next(struct stage_channel *p);
/* All bytes of a READ are in its buffer: ends it once they are in place. */
void stage_channel_scatter(struct core *c, struct stage_channel *p, struct slice *s);
/* Takes slices of x (NULL: all) that were not taken and need not be sent any more; urgent: those being copied too. */
void stage_channel_stop(struct core *c, struct stage_channel *p, const struct xfer *x, bool urgent,
			struct dray_list *over);

/* Where the slice's bytes are sent from or received into: its buffer where it has one. */
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

/* Moves slices of x (NULL: all). */
static inline void slices_take(struct dray_list *from, const struct xfer *x, struct dray_list *to)
{
	dray_list_for_each(from, s, struct slice, link)
		if (!x || s->xfer == x) {
			dray_list_del(&s->link);
			dray_list_add(to, &s->link);
		}
}

#endif
