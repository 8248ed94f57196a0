/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How slices end without a completion: the queue pair is lost, or the transfer stops.
 *
 * Ending a slice can end its transfer, which can stop others. So slices first move from all queues to a
 * list, and end when the queues are consistent again.
 */
#include "agent/data/transport/rdma/rdma.h"

void rdma_queue_lose(struct rdma_queue *p, uint32_t code)
{
	struct rdma *r = p->rdma;
	uint64_t in_flight = p->partial && p->at.begun;

	p->lost = true;
	p->loss = code;
	dray_list_move(&p->ch->lost, &p->link);
	/* Further completions are ignored, because all its slices are posted again. */
	r->rails[p->qp.path.rail].signalled -= p->signalled;
	p->signalled = 0;
	r->rails[p->qp.path.rail].in_flight -= p->in_flight;
	for (uint32_t i = p->head; i != p->tail; i++)
		in_flight += rdma_entry_at(p, i)->slice != NULL;
	rdma_count(&p->qp, failovers, in_flight);
	rdma_count(&p->qp, queue_pairs, UINT32_MAX); /* one less */
	core_count(r->c->counters, DRAY_METRIC_RDMA_FAILOVERS_TOTAL, in_flight);
	core_count(r->c->counters, DRAY_METRIC_RDMA_QUEUE_PAIRS_LOST_TOTAL, 1);
	core_count_down(r->c->counters, DRAY_METRIC_RDMA_QUEUE_PAIRS, 1);
	rdma_event(r, RDMA_QP_LOST, p->peer->link->peer, p->qp.id, code, NULL);
}

/* Posts the slice again, or ends it. */
static void slice_return(struct rdma_channel *ch, struct slice *s, bool begun,
			 struct dray_list *over)
{
	s->retried |= begun;
	if (!slice_wanted(s))
		dray_list_add(over, &s->link);
	else if (window_is_void(ch->peer, s))
		window_restart(ch, s);
	else
		dray_list_add(&ch->ch.retry, &s->link);
}

/* Slices of a lost queue pair that are not posted again. */
struct ends {
	struct dray_list over;    /* their transfers are stopping */
	struct dray_list refused; /* by an engine */
	struct dray_list unknown; /* an engine may still carry them out */
};

/* first: it is the oldest one whose end is not known, which is the one that a refusal is about. */
static void slice_leave(struct rdma_queue *p, struct slice *s, bool begun, bool first,
			struct ends *ends)
{
	bool refusal = p->loss == IBV_WC_REM_ACCESS_ERR || p->loss == IBV_WC_REM_INV_REQ_ERR ||
		       p->loss == IBV_WC_REM_OP_ERR;

	if (!p->peer->engine || !begun || !slice_wanted(s))
		slice_return(p->ch, s, begun, &ends->over);
	else if (refusal && first)
		dray_list_add(&ends->refused, &s->link);
	else if (!refusal && s->xfer->direction == DMSG_DIRECTION_WRITE)
		dray_list_add(&ends->unknown, &s->link);
	else
		slice_return(p->ch, s, true, &ends->over);
}

void rdma_queue_dead(struct rdma_queue *p)
{
	struct ends ends = { DRAY_LIST_INIT(ends.over), DRAY_LIST_INIT(ends.refused),
			     DRAY_LIST_INIT(ends.unknown) };
	struct rdma_channel *ch = p->ch;
	struct rdma_peer *peer = p->peer;
	struct rdma *r = p->rdma;
	bool begun = p->at.begun, first = true;
	struct slice *s = rdma_partial_take(p);

	while (p->head != p->tail) {
		struct rdma_entry e = *rdma_entry_at(p, p->head++);
		bool last = e.slice || e.remote; /* of its slice */

		if (e.slice)
			slice_leave(p, e.slice, true, first, &ends);
		first &= !last;
		rdma_entry_release(r->c, &e);
	}
	if (s)
		slice_leave(p, s, begun, first, &ends);
	rdma_queue_free(p);
	ch->bereft = true;
	if (ch->unreachable && !peer->down)
		rdma_channel_give_up(ch);
	else
		rdma_channel_review(ch);
	if (!dray_list_empty(&ch->ch.retry))
		rdma_pull_later(ch);
	xfer_slices_end(r->c, &ends.over, 0);
	xfer_slices_end(r->c, &ends.refused, DRAY_E_REVOKED);
	xfer_slices_end(r->c, &ends.unknown, DRAY_E_PEER_LOST);
}

/* Ends the slice while the device continues. The entry keeps everything that the device uses. */
static void detach(struct rdma_entry *e, struct slice *s, struct dray_list *over)
{
	if (!e->remote) {
		e->remote = s->xfer->remote;
		object_hold(e->remote);
	}
	/* Another slice's bytes in these buffers would go to the peer or be overwritten. */
	e->staged = s->staged;
	s->staged = NULL;
	e->window = s->window;
	s->window = NULL;
	e->slice = NULL;
	dray_list_add(over, &s->link);
}

static void stop_on(struct rdma_queue *p, const struct xfer *x, bool urgent, struct dray_list *over)
{
	if (p->partial && p->partial->xfer == x) {
		bool begun = p->at.begun;
		struct slice *s = rdma_partial_take(p);

		if (!begun || p->head == p->tail) {
			dray_list_add(over, &s->link);
		} else {
			struct rdma_entry *e = rdma_entry_at(p, p->tail - 1);

			/* It ends with its last posted part. */
			e->slice = s;
			e->cut = true;
		}
		if (!p->lost)
			rdma_pull_later(p->ch);
	}
	if (!urgent && !(p->quiet && x->direction == DMSG_DIRECTION_READ))
		return;
	for (uint32_t i = p->head; i != p->tail; i++) {
		struct rdma_entry *e = rdma_entry_at(p, i);

		if (e->slice && e->slice->xfer == x)
			detach(e, e->slice, over);
	}
}

/*
 * Ends reads of transfers that are being stopped: no byte of them arrives any more. The peer's end may still read what they have read
 * from, which stays held until the queue pair is dead.
 */
void rdma_queue_quiet(struct rdma_queue *p)
{
	struct dray_list over = DRAY_LIST_INIT(over);

	p->quiet = true;
	for (uint32_t i = p->head; i != p->tail; i++) {
		struct rdma_entry *e = rdma_entry_at(p, i);

		if (e->slice && !slice_wanted(e->slice) &&
		    e->slice->xfer->direction == DMSG_DIRECTION_READ)
			detach(e, e->slice, &over);
	}
	xfer_slices_end(p->rdma->c, &over, 0);
}

static bool uses(const struct rdma_entry *e, const struct object *remote)
{
	return e->remote == remote || (e->slice && e->slice->xfer->remote == remote);
}

/* What was posted of the partial slice is the last entry, and those before it end first. */
static void partial_hasten(struct rdma_queue *p, int64_t limit)
{
	if (!p->at.begun) {
		/* with the keys that are there then */
		dray_list_add_front(&p->ch->ch.retry, &rdma_partial_take(p)->link);
		rdma_pull_later(p->ch);
		return;
	}
	if (p->limit_ns && p->limit_ns <= limit)
		return;
	p->limit_ns = limit;
	if (p->head != p->tail)
		rdma_entry_at(p, p->tail - 1)->limit_ns = limit;
}

static void queue_hasten(struct rdma_queue *p, const struct object *remote, int64_t limit)
{
	if (p->partial && p->partial->xfer->remote == remote)
		partial_hasten(p, limit);
	for (uint32_t i = p->head; i != p->tail; i++) {
		struct rdma_entry *e = rdma_entry_at(p, i);

		if ((!e->limit_ns || e->limit_ns > limit) && uses(e, remote))
			e->limit_ns = limit;
	}
	rdma_timer(p->rdma, limit);
}

/* A queue pair that does not finish in time is lost. */
void rdma_hasten(struct core *c, void *state, const struct object *remote, int64_t ns)
{
	struct rdma_peer *peer = rdma_peer_get(state, object_remote(remote)->peer);
	int64_t limit = c->now_ns + ns;

	for (unsigned k = 0; peer && k < 2; k++)
		dray_list_for_each(&peer->channels[k].queues, p, struct rdma_queue, link)
			queue_hasten(p, remote, limit);
}

void rdma_keys_changed(struct core *c, void *state, const struct object *o)
{
	struct rdma *r = state;

	if (o->view->kind == OBJECT_REMOTE && !o->keys)
		object_hasten(c, o);
	/* Slices that wait for a queue pair whose keys they have would wait for ever. */
	dray_list_for_each(&r->peer_list, peer, struct rdma_peer, peers_link)
		for (unsigned k = 0; k < 2; k++) {
			struct rdma_channel *ch = &peer->channels[k];

			rdma_channel_unpark(ch);
			if (!rdma_channel_has_work(ch))
				continue;
			ch->moving = true;
			rdma_pull_later(ch);
		}
}

void rdma_channel_take(struct rdma_channel *ch, const struct xfer *x, bool urgent,
		       struct dray_list *over)
{
	struct core *c = ch->peer->rdma->c;

	rdma_channel_unpark(ch);
	stage_channel_stop(c, &ch->ch, x, urgent, over);
	stage_channel_stop(c, &ch->win, x, urgent, over);
	if (!urgent)
		return;
	dray_list_for_each(&ch->requested, s, struct slice, link) {
		if (x && s->xfer != x)
			continue;
		s->window->slice = NULL;
		s->window = NULL;
		dray_list_move(over, &s->link);
	}
}

void rdma_channel_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct rdma_channel *ch = x->channel->owner;
	struct dray_list over = DRAY_LIST_INIT(over);

	rdma_channel_take(ch, x, urgent, &over);
	dray_list_for_each(&ch->queues, p, struct rdma_queue, link)
		stop_on(p, x, urgent, &over);
	dray_list_for_each(&ch->lost, l, struct rdma_queue, link)
		stop_on(l, x, urgent, &over);
	xfer_slices_end(c, &over, 0);
	/* others may have waited for a slice of this one that waited for a queue pair, and no completion may come */
	if (rdma_channel_has_work(ch))
		rdma_pull_later(ch);
}
