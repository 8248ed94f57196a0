/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/tcp/tcp.h"
#include "lib/assert.h"

void tcp_trailing_init(struct tcp_requester *p)
{
	struct tcp_channel *ch = p->ch;

	channel_init(&p->trailing.ch, &transport_tcp, DMSG_CLASS_BULK, ch->peer->link);
	p->trailing.ch.owner = ch;
	p->trailing.ch.trailing = true;
}

void tcp_trailing_deinit(struct tcp_requester *p)
{
	channel_deinit(&p->trailing.ch);
}

/* Bytes of the slice's segments from `seg` on that follow each other without a gap, at most `max`. */
static uint64_t run_bytes(const struct slice *s, unsigned seg, uint64_t max, unsigned *ret_end)
{
	uint64_t end = s->remote[seg].offset, begin = end;

	for (; seg < s->n_remote && s->remote[seg].offset == end; seg++) {
		dray_assert(s->remote[seg].length <= max - (end - begin));
		end += s->remote[seg].length;
	}
	*ret_end = seg;
	return end - begin;
}

/* Sets the next part. */
static void next_part(struct tcp_requester *p)
{
	struct tcp_trailing *u = &p->trailing;
	struct tcp_frame *f = p->rx;
	const struct pmsg_seg *seg = NULL;

	if (!f->slice) {
		f->slice = sched_next(p->s.tcp->c, &u->ch, TCP_CHECKED_MAX);
		u->seg = 0;
		u->done = 0;
	}
	if (f->slice)
		seg = &f->slice->remote[u->seg];
	dray_assert(!seg || (seg->offset >= u->at && seg->offset - u->at <= u->left));
	p->s.sink = !seg || seg->offset > u->at;
	u->part = !seg      ? u->left :
		  p->s.sink ? seg->offset - u->at :
			      run_bytes(f->slice, u->seg, u->left, &u->end);
	u->at += u->part;
	u->left -= u->part;
	p->s.payload_left = u->part;
}

void tcp_trailing_begin(struct tcp_requester *p, uint64_t bytes)
{
	p->trailing.active = true;
	p->trailing.at = 0;
	p->trailing.left = bytes;
	/* what comes next is not the head of a frame: little of it is to go through the receive buffer */
	p->s.bulky = true;
	p->in_flight += bytes - p->rx->bytes;
	p->rx->bytes = bytes;
	next_part(p);
}

uint64_t tcp_trailing_done(const struct tcp_requester *p)
{
	return p->trailing.done + (p->trailing.part - p->s.payload_left);
}

void tcp_trailing_complete(struct tcp_requester *p)
{
	struct core *c = p->s.tcp->c;
	struct tcp_trailing *u = &p->trailing;
	struct tcp_frame *f = p->rx;

	if (!p->s.sink && f->slice) {
		u->done += u->part;
		/* the end of a transfer may close this stream */
		u->seg = u->end;
		if (u->seg == f->slice->n_remote)
			xfer_slice_done(c, dray_take(f->slice), 0, NULL);
		if (p->s.state != TCP_OPEN)
			return;
	}
	if (u->left) {
		next_part(p);
		return;
	}
	p->s.sink = false;
	u->active = false;
	p->rx = NULL;
	tcp_frame_end(p, f);
	/* it had no memory for a slice */
	tcp_trailing_end(p, DRAY_E_NO_MEMORY);
}

void tcp_trailing_end(struct tcp_requester *p, uint32_t code)
{
	struct xfer *x;

	while ((x = channel_first(&p->trailing.ch)))
		xfer_stop(p->s.tcp->c, x, code, NULL, true);
}
