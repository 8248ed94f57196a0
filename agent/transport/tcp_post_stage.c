/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of the importing side whose local memory is a GPU's. Each gets a staging buffer before it goes out: a WRITE is
 * gathered into it some slices ahead of the streams, a READ's answer is received into it and then scattered.
 * Neither the network nor the GPU waits for the other, as long as there are buffers. To the streams such a slice is one like
 * others, in memory of ours; one that is sent again is sent from its buffer.
 *
 * A slice that waits for a copy is on no stream, and so survives all of them.
 */
#include "agent/transfer/xfer.h"
#include "agent/transport/tcp.h"

/* WRITEs of a channel that are gathered, or being gathered, before a stream has room. */
#define AHEAD 4

static void buffer_ready(struct core *c, struct stage_waiter *w)
{
	struct tcp_channel *ch = dray_container_of(w, struct tcp_channel, waiter);

	(void)c;
	tcp_channel_pull_later(tcp_of(ch), ch);
}

void tcp_post_stage_init(struct tcp_channel *ch)
{
	dray_list_init(&ch->unstaged);
	dray_list_init(&ch->copying);
	dray_list_init(&ch->copied);
	dray_list_init(&ch->staged);
	dray_list_init(&ch->waiter.link);
	ch->waiter.ready = buffer_ready;
}

static void copy_done(struct core *c, struct stage_buffer *b)
{
	struct slice *s = b->holder;
	struct tcp_channel *ch = dray_container_of(s->xfer->channel, struct tcp_channel, staged_ch);

	(void)c;
	dray_list_del(&s->link);
	dray_list_add(&ch->copied, &s->link);
	tcp_channel_pull_later(tcp_of(ch), ch);
}

static void copy(struct tcp_channel *ch, struct slice *s, bool to_gpu)
{
	const struct region_view *local = (const struct region_view *)s->xfer->local->view;

	dray_list_add(&ch->copying, &s->link);
	stage_copy(tcp_of(ch)->c, s->staged, local->gpu, to_gpu, copy_done);
}

static void start(struct tcp_channel *ch, struct slice *s, struct stage_buffer *b)
{
	s->staged = b;
	b->holder = s;
	for (unsigned i = 0; i < s->n_local; i++)
		b->ranges[i] = s->local[i];
	b->n_ranges = s->n_local;
	b->bytes = s->bytes;
	if (s->xfer->direction == DMSG_DIRECTION_WRITE)
		copy(ch, s, false);
	else
		dray_list_add(&ch->staged, &s->link);
}

/* Ending a slice can end its transfer, and that others of this channel: so one at a time. */
static void collect(struct tcp_channel *ch)
{
	struct core *c = tcp_of(ch)->c;
	struct slice *s;

	while ((s = dray_list_first(&ch->copied, struct slice, link))) {
		uint32_t code = s->staged->code;

		dray_list_del(&s->link);
		if (code)
			xfer_slice_done(c, s, code, NULL);
		else if (s->xfer->direction == DMSG_DIRECTION_READ)
			xfer_slice_done(c, s, 0, NULL);
		else if (slice_wanted(s))
			dray_list_add(&ch->staged, &s->link);
		else
			xfer_slice_done(c, s, s->xfer->code, NULL);
	}
}

static unsigned count_ahead(const struct tcp_channel *ch)
{
	unsigned n = 0;

	dray_list_for_each(&ch->staged, s, struct slice, link)
		n++;
	dray_list_for_each(&ch->copying, s, struct slice, link)
		n += s->xfer->direction == DMSG_DIRECTION_WRITE;
	return n;
}

/* The next slice that has no buffer; of one that fits in none, what does. */
static struct slice *next_unstaged(struct tcp_channel *ch)
{
	struct core *c = tcp_of(ch)->c;
	struct slice *s;

	s = dray_list_first(&ch->unstaged, struct slice, link);
	if (!s)
		return sched_next(c, &ch->staged_ch, stage_unit(c));
	if (s->bytes > stage_unit(c)) {
		struct slice *rest = sched_split(c, s, stage_unit(c));

		if (!rest)
			return NULL;
		dray_list_add_front(&ch->unstaged, &rest->link);
	}
	dray_list_del(&s->link);
	return s;
}

void tcp_post_stage_ahead(struct tcp_channel *ch)
{
	struct core *c = tcp_of(ch)->c;

	collect(ch);
	if (!ch->n_open)
		return;
	for (unsigned n = count_ahead(ch);
	     n < AHEAD && (!dray_list_empty(&ch->unstaged) || channel_pending(&ch->staged_ch));
	     n++) {
		struct stage_buffer *b =
			stage_get(c, STAGE_OWN, ch->ch.class, &ch->peer->staged[STAGE_OWN]);
		struct slice *s;

		if (!b) {
			stage_wait(c, &ch->waiter, STAGE_OWN, ch->ch.class);
			return;
		}
		s = next_unstaged(ch);
		if (!s) {
			stage_put(c, b);
			return;
		}
		start(ch, s, b);
	}
}

struct slice *tcp_post_stage_take(struct tcp_channel *ch)
{
	struct slice *s = dray_list_first(&ch->staged, struct slice, link);

	if (s)
		dray_list_del(&s->link);
	return s;
}

void tcp_post_stage_spread(struct tcp_channel *ch, struct slice *s)
{
	copy(ch, s, true);
}

void tcp_post_stage_stop(struct tcp_channel *ch, const struct xfer *x, bool urgent,
			 struct dray_list *over)
{
	tcp_take_those_of(&ch->unstaged, x, over);
	tcp_take_those_of(&ch->staged, x, over);
	if (!urgent)
		return;
	dray_list_for_each(&ch->copying, s, struct slice, link)
		if (!x || s->xfer == x)
			stage_finish(tcp_of(ch)->c, s->staged);
	tcp_take_those_of(&ch->copied, x, over);
	if (!x)
		stage_unwait(&ch->waiter);
}
