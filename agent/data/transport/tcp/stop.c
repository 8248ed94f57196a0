/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a requester's slices end without an answer: the transfer stops, the owner's end of a broken stream is
 * known to be closed, or the peer is lost.
 *
 * Ending a slice can end its transfer, which can stop others. So slices first move from all queues to a
 * list of the caller, and end when the streams are consistent again.
 */
#include "agent/data/transport/tcp/tcp.h"

/* Takes the slices that may end now from an open stream. True: the others need the stream to be closed. */
static bool stop_on(struct tcp_requester *p, const struct xfer *x, bool urgent,
		    struct dray_list *over)
{
	bool tear = false;

	for (uint32_t i = p->head; i != p->tail; i++) {
		struct tcp_frame *f = tcp_frame_at(p, i);
		struct slice *s = f->slice;
		bool is_sent = i - p->head < p->sent - p->head;

		if (!s || s->xfer != x)
			continue;
		if (!is_sent && (i != p->sent || !p->sent_of)) {
			tcp_frame_end(p, f);
			dray_list_add(over, &s->link);
		} else if (f->kind != PMSG_FRAME_KIND_WRITE) {
			/* The answer, or what follows it, is discarded; the frame keeps its place until it has come. */
			f->slice = NULL;
			if (p->rx == f)
				p->s.sink = true;
			dray_list_add(over, &s->link);
		} else if (urgent && is_sent) {
			f->slice = NULL;
			dray_list_add(over, &s->link);
		} else if (urgent) {
			tear = true;
		} else {
			/* From now on its acknowledgement must come within the slice timeout. */
			s->posted_ns = p->s.tcp->c->now_ns;
			tcp_timer(p->s.tcp, s->posted_ns + p->s.tcp->c->cfg.slice_timeout_ns);
		}
	}
	return tear;
}

/*
 * Takes the slices that may end now from the open streams. Returns the first stream that must be closed for the others: when it has
 * been, the streams are looked at again, because its end may have ended other transfers and closed other streams. NULL: there is none.
 */
static struct tcp_requester *stop_until_torn(struct tcp_channel *ch, const struct xfer *x,
					     bool urgent, struct dray_list *over)
{
	dray_list_for_each(&ch->streams, p, struct tcp_requester, s.peer_link) {
		if (p->s.state != TCP_OPEN)
			continue;
		if (stop_on(p, x, urgent, over))
			return p;
		if (p->sent == p->tail)
			tcp_channel_pull_later(ch);
	}
	return NULL;
}

void tcp_channel_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct tcp_channel *ch = x->channel->owner;
	struct dray_list over = DRAY_LIST_INIT(over);
	struct tcp_requester *torn;

	tcp_helpers_stop(ch, x, DRAY_E_CANCELLED);
	stage_channel_stop(c, &ch->ch, x, urgent, &over);
	while ((torn = stop_until_torn(ch, x, urgent, &over)))
		tcp_requester_lose(&torn->s);
	/* A closed stream touches no memory here; only the remote side's state is unknown. */
	if (urgent)
		dray_list_for_each(&ch->lost, p, struct tcp_requester, s.peer_link)
			slices_take(&p->waiting, x, &over);
	xfer_slices_end(c, &over, 0);
}

bool tcp_channel_dead(struct tcp_channel *ch, uint64_t stream_id)
{
	struct dray_list over = DRAY_LIST_INIT(over);

	dray_list_for_each(&ch->lost, p, struct tcp_requester, s.peer_link) {
		if (p->s.id != stream_id)
			continue;
		dray_list_for_each(&p->waiting, s, struct slice, link)
			dray_list_move(slice_wanted(s) ? &ch->ch.retry : &over, &s->link);
		tcp_stream_free_later(&p->s);
		tcp_channel_pull_later(ch);
		xfer_slices_end(tcp_of(ch)->c, &over, 0);
		return true;
	}
	return false;
}

void tcp_channel_close(struct tcp_channel *ch, uint32_t code)
{
	struct dray_list over = DRAY_LIST_INIT(over), seeks = DRAY_LIST_INIT(seeks);
	struct core *c = tcp_of(ch)->c;

	tcp_helpers_stop(ch, NULL, code);
	stage_channel_stop(c, &ch->ch, NULL, true, &over);
	dray_list_for_each(&ch->lost, p, struct tcp_requester, s.peer_link) {
		dray_list_splice(&over, &p->waiting);
		tcp_stream_free_later(&p->s);
	}
	dray_list_for_each(&ch->streams, p, struct tcp_requester, s.peer_link) {
		tcp_stream_close(&p->s, true);
		for (uint32_t i = p->head; i != p->tail; i++) {
			tcp_frame_take_seek(tcp_frame_at(p, i), &seeks);
			if (tcp_frame_at(p, i)->slice)
				dray_list_add(&over, &tcp_frame_at(p, i)->slice->link);
		}
		tcp_frames_forget(p);
		tcp_stream_free_later(&p->s);
	}
	ch->n_streams = ch->n_open = 0;
	tcp_seeks_end(ch->peer, &seeks, DRAY_E_PEER_LOST);
	xfer_slices_end(c, &over, code);
}
