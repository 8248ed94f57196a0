/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of large READs that other workers receive. What limits a READ is the thread that copies its bytes out of the socket; with the
 * streams of several workers, several threads copy at the same time. Helpers are workers whose own sessions ask for nothing.
 *
 * A slice goes to the worker with the fewest bytes on the way, which is the one that is done first. A helper without an open stream
 * opens one and gives the slice back, so the first READ to a peer goes on without it.
 */
#include "agent/data/transport/tcp/tcp.h"

/* Bytes of a READ, at least: less is in place before a helper has woken up. */
#define LARGE_READ (2 << 20)
/* Whole slices on the way to each worker, at least: while one is received the next ones come. */
#define AHEAD 4
/* A helper that has given a slice back gets none for this time, in which its streams can open. */
#define AGAIN_NS (10 * (int64_t)DRAY_NS_PER_MS)
/* A helper that has not looked at a slice for this time has no processor. */
#define TAKE_BACK_NS (2 * (int64_t)DRAY_NS_PER_MS)

static bool is_large_read(const struct xfer *x)
{
	return x->direction == DMSG_DIRECTION_READ && x->bytes >= LARGE_READ;
}

/* The helper with the fewest bytes on the way. -1: nobody helps. *ret_n: how many could. */
static int best_helper(const struct tcp_channel *ch, unsigned *ret_n)
{
	const struct core *c = tcp_of(ch)->c;
	unsigned n = workshare_workers(c->workshare), most = workshare_helpers(c->workshare);
	int best = -1;

	*ret_n = 0;
	for (unsigned k = 1; k < n && *ret_n < most; k++) {
		unsigned i = (c->index + k) % n;

		if (ch->helpers.again_ns[i] > c->now_ns || !delegate_is_free(c, i))
			continue;
		(*ret_n)++;
		if (best < 0 || delegate_bytes(c, i) < delegate_bytes(c, (unsigned)best))
			best = (int)i;
	}
	return best;
}

/* Bytes of READs on the way to this worker. */
static uint64_t own_bytes(struct tcp_channel *ch)
{
	uint64_t bytes = 0;

	dray_list_for_each(&ch->streams, p, struct tcp_requester, s.peer_link)
		for (uint32_t i = p->head; i != p->tail; i++) {
			const struct tcp_frame *f = tcp_frame_at(p, i);

			bytes += f->kind == PMSG_FRAME_KIND_READ && !f->ended ? f->bytes : 0;
		}
	return bytes;
}

/* Bytes on the way to each worker, at most: together as many as without helpers, so that a long way stays full. */
static uint64_t most_bytes(const struct core *c, unsigned helpers)
{
	uint64_t slices = (uint64_t)c->cfg.tcp_streams * c->cfg.tcp_slices_in_flight;

	return dray_max(slices / (helpers + 1), (uint64_t)AHEAD) * c->cfg.slice_size;
}

static void give(struct tcp_channel *ch, struct slice *s, unsigned helper)
{
	struct tcp *t = tcp_of(ch);

	dray_list_move(&t->helped, &ch->helpers.link);
	dray_list_add(&ch->helpers.slices, &s->delegated.link);
	t->helped_ns = dray_min(t->helped_ns, t->c->now_ns + TAKE_BACK_NS);
	delegate_give(t->c, helper, s);
}

/* A staged slice of a large READ that can be sent, or NULL. */
static struct slice *first_staged(const struct tcp_channel *ch)
{
	dray_list_for_each(&ch->ch.ready, s, struct slice, link)
		if (is_large_read(s->xfer))
			return s;
	return NULL;
}

/* The bytes come into the slice's buffer, and this worker scatters them. Buffers limit how much is on the way. */
static void feed_staged(struct tcp_channel *ch)
{
	struct core *c = tcp_of(ch)->c;
	struct slice *s;
	unsigned n;
	int helper;

	while ((s = first_staged(ch)) && (helper = best_helper(ch, &n)) >= 0 &&
	       delegate_bytes(c, (unsigned)helper) < dray_min(own_bytes(ch), most_bytes(c, n))) {
		dray_list_del(&s->link);
		give(ch, s, (unsigned)helper);
		stage_channel_fill(c, &ch->ch);
	}
}

static void feed_direct(struct tcp_channel *ch, struct dray_list *aside)
{
	struct core *c = tcp_of(ch)->c;
	struct xfer *x;
	unsigned n;
	int helper;

	while (dray_list_empty(&ch->ch.retry) && (x = channel_first(&ch->ch.direct)) &&
	       is_large_read(x) && (helper = best_helper(ch, &n)) >= 0) {
		uint64_t own = own_bytes(ch), most = most_bytes(c, n);
		struct slice *s;

		if (delegate_bytes(c, (unsigned)helper) < dray_min(own, most)) {
			s = sched_next(c, &ch->ch.direct, ch->ch.max);
			if (!s)
				return;
			/* another transfer than the one that was looked at may have its turn */
			if (is_large_read(s->xfer))
				give(ch, s, (unsigned)helper);
			else
				dray_list_add(&ch->ch.retry, &s->link);
		} else if (own >= most) {
			sched_set_aside(x, aside);
		} else {
			return;
		}
	}
}

void tcp_helpers_feed(struct tcp_channel *ch, struct dray_list *aside)
{
	if (!tcp_of(ch)->c->delegates || ch->ch.direct.class != DMSG_CLASS_BULK || !ch->n_open)
		return;
	feed_direct(ch, aside);
	feed_staged(ch);
}

/* The slice, on the list of those that helpers have, is sent by this worker's streams instead. */
static void take_back(struct tcp_channel *ch, struct slice *s)
{
	struct core *c = tcp_of(ch)->c;
	struct slice *copy = sched_copy(c, s, s->delegated.xfer);

	if (!copy)
		return;
	if (!delegate_take_back(s)) {
		copy->xfer = NULL;
		sched_slice_free(c, copy);
		return;
	}
	s->delegated.xfer = NULL;
	dray_list_del(&s->delegated.link);
	stage_channel_move_buffer(s, copy);
	dray_list_add(&ch->ch.retry, &copy->link);
	tcp_channel_pull_later(ch);
	ch->helpers.again_ns[s->delegated.to] = c->now_ns + AGAIN_NS;
}

/* Returns when to look again (ns, INT64_MAX: not before the next slice is given). */
static int64_t look_at_slices(struct tcp_channel *ch)
{
	int64_t next = INT64_MAX, now_ns = tcp_of(ch)->c->now_ns;

	dray_list_for_each(&ch->helpers.slices, s, struct slice, delegated.link) {
		int64_t limit = s->delegated.given_ns + TAKE_BACK_NS;

		if (!delegate_is_waiting(s))
			continue;
		if (now_ns < limit) {
			next = dray_min(next, limit);
			continue;
		}
		/* the slice stays this worker's: it has not come back */
		take_back(ch, s);
		/* there was no memory */
		if (delegate_is_waiting(s))
			next = dray_min(next, now_ns + TAKE_BACK_NS);
	}
	return next;
}

void tcp_helpers_tick(struct tcp *t)
{
	t->helped_ns = INT64_MAX;
	dray_list_for_each(&t->helped, ch, struct tcp_channel, helpers.link) {
		if (dray_list_empty(&ch->helpers.slices))
			dray_list_del(&ch->helpers.link);
		t->helped_ns = dray_min(t->helped_ns, look_at_slices(ch));
	}
}

void tcp_helpers_stop(struct tcp_channel *ch, const struct xfer *x, uint32_t code)
{
	struct dray_list over = DRAY_LIST_INIT(over);
	struct slice *s;

	dray_list_for_each(&ch->helpers.slices, i, struct slice, delegated.link)
		if (!x || i->delegated.xfer == x) {
			delegate_recall(i);
			dray_list_move(&over, &i->delegated.link);
		}
	while ((s = dray_list_pop(&over, struct slice, delegated.link))) {
		if (s->staged)
			tcp_of(ch)->c->up->release_buffers(tcp_of(ch)->c, s);
		xfer_slice_recalled(tcp_of(ch)->c, s, code);
	}
}

/* As a helper: a slice for the streams of this worker. */
static void accept_given(struct tcp *t, struct slice *s)
{
	struct tcp_peer *peer = tcp_peer_get(t, s->delegated.peer);
	struct tcp_channel *ch = peer ? &peer->channels[DMSG_CLASS_BULK] : NULL;

	if (ch)
		tcp_connect(ch);
	if (!ch || !ch->n_open) {
		delegate_return(t->c, s, DELEGATE_AGAIN, NULL);
		return;
	}
	dray_list_add(&ch->ch.retry, &s->link);
	tcp_channel_pull_later(ch);
}

static void accept_returned(struct tcp *t, struct slice *s)
{
	struct tcp_peer *peer = tcp_peer_get(t, s->delegated.peer);
	struct tcp_channel *ch = peer ? &peer->channels[DMSG_CLASS_BULK] : NULL;
	uint32_t code = s->delegated.code;

	dray_list_del(&s->delegated.link);
	if (!s->xfer) {
		sched_slice_free(t->c, s);
	} else if (code == DELEGATE_AGAIN) {
		ch->helpers.again_ns[s->delegated.to] = t->c->now_ns + AGAIN_NS;
		dray_list_add(&ch->ch.retry, &s->link);
	} else {
		core_count(t->c->counters, DRAY_METRIC_TCP_HELPED_SLICES_TOTAL, !code);
		if (s->staged && !code)
			stage_channel_scatter(t->c, s);
		else
			xfer_slice_done(t->c, s, code, s->delegated.detail);
	}
	if (ch)
		tcp_channel_pull_later(ch);
}

void tcp_helpers_progress(struct tcp *t)
{
	struct slice *s;

	while ((s = delegate_take(t->c)))
		accept_given(t, s);
	while ((s = delegate_returned(t->c)))
		accept_returned(t, s);
}

void tcp_helper_return_unsent(struct tcp_channel *ch)
{
	dray_list_for_each(&ch->ch.retry, s, struct slice, link)
		if (slice_is_delegated(s)) {
			dray_list_del(&s->link);
			delegate_return(tcp_of(ch)->c, s, DELEGATE_AGAIN, NULL);
		}
}
