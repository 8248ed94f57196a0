/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importing side of windows, for remotes whose memory (of a GPU) the owner's devices do not know. The
 * owner has given this agent registered memory, a window, which is cut into buffers here. A WRITE goes by
 * RDMA into a buffer and is flushed there; then the owner is asked to scatter it. For a READ the owner
 * first gathers into the buffer, which is then read. In between, the slice is handled like any other, with
 * the buffer as its remote. Its local memory may be staged, too.
 *
 * A buffer is in use until no device can access it and the owner has answered. A request to the owner
 * cannot be recalled, so the slice waits for the answer. In an urgent stop only the buffer waits, and it
 * holds the remote, so that this agent does not report the remote as unused while the owner still copies.
 */
#include <stdlib.h>

#include "agent/data/transport/rdma/rdma.h"
#include "lib/assert.h"

/* Enough buffers for a pipeline, even if slices are long. More do not make it faster. */
#define BUFFERS_MIN 4
#define BUFFERS_MAX 32
#define WINDOW_SHRANK "the window of the remote's owner became smaller: submit the transfer again"

static struct core *core_of(const struct rdma_channel *ch)
{
	return ch->peer->rdma->c;
}

/* Bulk leaves some buffers to latency. */
static bool may_take_buffer(const struct rdma_peer *peer, enum dmsg_class class)
{
	const struct rdma_window *w = peer->window;

	return w && w->keys && w->n_free > (class == DMSG_CLASS_LATENCY ? 0 : w->n / BUFFERS_MIN);
}

static void buffer_take(struct rdma_peer *peer, struct slice *s)
{
	struct rdma_window *w = peer->window;

	s->window = dray_list_pop(&w->free, struct window_buffer, link);
	dray_assert(s->window);
	w->n_free--;
}

void window_free(struct rdma_window *w)
{
	dray_list_del(&w->link);
	rail_keys_unref(w->keys);
	free(w);
}

void window_put(struct core *c, struct window_buffer *b)
{
	struct rdma_window *w = b->window;
	struct rdma_peer *peer = w->peer;

	dray_list_add_front(&w->free, &b->link);
	w->n_free++;
	if (peer->window != w && w->n_free == w->n)
		window_free(w);
	for (unsigned k = 0; k < 2; k++)
		if (stage_channel_has_work(&peer->channels[k].win))
			rdma_pull_later(&peer->channels[k]);
}

void slice_window_put(struct core *c, struct slice *s)
{
	if (s->window)
		window_put(c, s->window);
	s->window = NULL;
}

void slice_release_buffers(struct core *c, struct slice *s)
{
	if (s->staged)
		stage_put(c, s->staged);
	s->staged = NULL;
	slice_window_put(c, s);
}

void window_request_copy(struct rdma_channel *ch, struct slice *s)
{
	const struct remote_view *remote = object_remote(s->xfer->remote);
	struct window_buffer *b = s->window;
	struct rdma_stage_request *a = &b->ask;
	struct core *c = core_of(ch);
	bool write = s->xfer->direction == DMSG_DIRECTION_WRITE;

	a->peer = ch->peer->link->peer;
	a->worker = c->index;
	a->m = (struct pmsg_stage){
		.window = b->window->id,
		.offset = b->offset,
		.length = s->bytes,
		.grant = remote->grant,
		.kind = write ? PMSG_STAGE_KIND_SCATTER : PMSG_STAGE_KIND_GATHER,
		.class = (uint8_t)ch->ch.direct.class,
		.segs = { .p = a->segs, .n = s->n_remote },
	};
	for (unsigned i = 0; i < s->n_remote; i++)
		pmsg_seg_put(a->segs + i * PMSG_SEG_SIZE, &s->remote[i]);
	b->slice = s;
	b->remote = s->xfer->remote;
	object_hold(b->remote);
	dray_list_add(&ch->requested, &s->link);
	ch->peer->unanswered++;
	rdma_event(ch->peer->rdma, RDMA_STAGE, a->peer, 0, 0, a);
}

void window_restart(struct rdma_channel *ch, struct slice *s)
{
	slice_window_put(core_of(ch), s);
	dray_list_add(&ch->win.retry, &s->link);
	ch->moving = true;
	rdma_pull_later(ch);
}

static void answered(struct rdma_channel *ch, struct slice *s, const struct rdma_window *w,
		     uint32_t code)
{
	struct core *c = core_of(ch);
	struct xfer *x = s->xfer;

	/* Only the owner knows why its memory has no keys: it does not stage memory of this kind. */
	if (code == DRAY_E_UNSUPPORTED)
		x->remote->no_window = true;
	if (!slice_wanted(s))
		xfer_slice_done(c, s, x->code, NULL);
	else if (code == DRAY_E_UNSUPPORTED || (code == DRAY_E_NOT_FOUND && w != ch->peer->window))
		window_restart(ch, s);
	else if (code)
		xfer_slice_done(c, s, code, XFER_REFUSED_DETAIL);
	else if (x->direction == DMSG_DIRECTION_WRITE)
		xfer_slice_done(c, s, 0, NULL);
	else if (window_is_void(ch->peer, s))
		window_restart(ch, s);
	else
		dray_list_add(&ch->ch.retry, &s->link);
}

void window_answered(struct rdma_peer *peer, struct rdma_stage_request *a, uint32_t code)
{
	struct window_buffer *b = dray_container_of(a, struct window_buffer, ask);
	struct rdma_channel *ch = &peer->channels[a->m.class];
	struct object *remote = b->remote;
	struct core *c = core_of(ch);
	struct slice *s = b->slice;

	peer->unanswered--;
	b->slice = NULL;
	b->remote = NULL;
	rdma_pull_later(ch);
	if (s) {
		dray_list_del(&s->link);
		answered(ch, s, b->window, code);
	} else {
		window_put(c, b);
	}
	object_release(c, remote);
}

static struct slice *take_restart(struct rdma_channel *ch)
{
	dray_list_for_each(&ch->win.retry, s, struct slice, link)
		if (!rdma_route_check(ch->peer, s->xfer, rdma_route(ch, s->xfer)) &&
		    rdma_has_way(&ch->win, s)) {
			dray_list_del(&s->link);
			return s;
		}
	return NULL;
}

struct slice *window_channel_next(struct rdma_channel *ch)
{
	struct core *c = core_of(ch);
	struct slice *s;

	while (may_take_buffer(ch->peer, ch->ch.direct.class)) {
		s = take_restart(ch);
		if (!s)
			s = stage_channel_next(c, &ch->win);
		if (!s)
			return NULL;
		if (rdma_route_check(ch->peer, s->xfer, rdma_route(ch, s->xfer))) {
			/* Its transfer moves to another route when all its slices are back. */
			window_restart(ch, s);
			continue;
		}
		if (s->bytes > ch->peer->window->unit) {
			xfer_slice_done(c, s, DRAY_E_UNSUPPORTED, WINDOW_SHRANK);
			continue;
		}
		if (!rdma_has_way(&ch->win, s)) {
			rdma_slice_restart(ch, s);
			sched_set_aside(s->xfer, ch->win.aside);
			continue;
		}
		buffer_take(ch->peer, s);
		if (s->xfer->direction == DMSG_DIRECTION_WRITE)
			return s;
		window_request_copy(ch, s);
	}
	return NULL;
}

static struct rdma_window *window_new(struct rdma_peer *peer, const struct rdma_share *share)
{
	uint64_t unit = stage_cut(peer->rdma->c, share->length, BUFFERS_MIN);
	struct rdma_window *w;
	uint32_t n;

	if (!unit)
		return NULL;
	n = (uint32_t)dray_min(share->length / unit, (uint64_t)BUFFERS_MAX);
	w = calloc(1, sizeof(*w) + n * sizeof(w->v[0]));
	if (!w)
		return NULL;
	w->peer = peer;
	w->id = share->window;
	w->offset = share->offset;
	w->length = share->length;
	w->unit = unit;
	w->n = w->n_free = n;
	dray_list_init(&w->free);
	for (uint32_t i = 0; i < n; i++) {
		w->v[i].window = w;
		w->v[i].offset = share->offset + i * unit;
		dray_list_add(&w->free, &w->v[i].link);
	}
	dray_list_add(&peer->windows, &w->link);
	return w;
}

/* A former window is freed when its last buffer is back. */
static void replace(struct rdma_peer *peer, struct rdma_window *w)
{
	struct rdma_window *former = peer->window;

	peer->window = w;
	for (unsigned k = 0; k < 2; k++) {
		struct rdma_channel *ch = &peer->channels[k];

		ch->win.max = w ? w->unit : 0;
		dray_list_for_each(&ch->ch.retry, s, struct slice, link) {
			if (!s->window)
				continue;
			dray_list_del(&s->link);
			window_restart(ch, s);
		}
	}
	if (former && former->n_free == former->n)
		window_free(former);
}

void window_take_share(struct rdma_peer *peer, struct rdma_share *share)
{
	struct rdma_window *w = peer->window;

	/* Keys belong to one share: buffers of another one may lie outside it. */
	if (!w || w->id != share->window || w->offset != share->offset ||
	    w->length != share->length)
		replace(peer, share->length ? window_new(peer, share) : NULL);
	w = peer->window;
	if (w) {
		rail_keys_unref(w->keys);
		w->keys = share->keys;
	} else {
		rail_keys_unref(share->keys);
	}
	free(share);
	rdma_peer_changed(peer);
}
