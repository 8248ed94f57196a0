/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes of transfers: direct, staged here, through the owner's window, both, or not by RDMA. A transfer
 * whose route is gone moves to another one, or to another transport.
 */
#include "agent/data/transport/rdma/rdma.h"

#define NO_ROUTE "no RDMA path to the peer is left, and no other transport fits: check the rails"
/* An engine with Mooncake is reached by RDMA alone, and without staging. */
#define NO_ENGINE                                                                             \
	"no queue pair to Mooncake's engine can be made, or no rail reaches it: see drayctl " \
	"paths"
#define NO_USED_DEVICE                                                                           \
	"no rail reaches the devices of Mooncake's engine that are used, which are not all, "    \
	"because it has more than 16 or too many buffers: register its memory in larger ranges " \
	"there, or reach its first devices"
#define NO_MEMORY                                                                           \
	"no RDMA device of this agent has registered the memory, and nothing else reaches " \
	"Mooncake's engine: see drayctl regions"
#define NO_GPU_MEMORY                                                                             \
	"no RDMA device of this agent can register this device memory, and nothing else reaches " \
	"Mooncake's engine: use host memory"

static const struct rail_keys *window_keys(const struct rdma_peer *peer, const struct xfer *x)
{
	return peer->window && !x->remote->no_window ? peer->window->keys : NULL;
}

enum rdma_fallback rdma_route_check(const struct rdma_peer *peer, const struct xfer *x,
				    unsigned route)
{
	const struct rail_keys *local = route & RDMA_ROUTE_STAGED ? peer->rdma->staging :
					peer->engine              ? x->local->engine_keys :
								    x->local->keys;
	/* to an engine, where there is no other way, transfers wait for the registration */
	bool pending = peer->engine && !local;
	const struct rail_keys *remote = route & RDMA_ROUTE_WINDOWED ? window_keys(peer, x) :
								       x->remote->keys;
	/* of several reasons the one nearest to success */
	enum rdma_fallback why = RDMA_FALLBACK_PATHS;

	for (uint32_t i = 0; i < peer->paths->n; i++) {
		const struct rdma_pair *p = &peer->paths->v[i];
		enum rdma_fallback w = RDMA_FALLBACK_NONE;

		if (!pending && !rail_keys_have(local, p->rail))
			w = RDMA_FALLBACK_LOCAL;
		else if (!rail_keys_have(remote, p->to_rail))
			w = RDMA_FALLBACK_REMOTE;
		else if (peer->channels[x->class].unreachable ||
			 peer->paths->unreachable[x->class] >> p->rail & 1)
			w = RDMA_FALLBACK_UNREACHABLE;
		if (!w)
			return w;
		why = dray_max(why, w);
	}
	return why;
}

static bool may_stage(struct core *c, const struct rdma *r, const struct xfer *x)
{
	return r->staging && stage_reaches(c, object_region(x->local));
}

/* Chooses the direct route if possible, else the one with least staging. */
static enum rdma_fallback choose_route(const struct rdma_peer *peer, const struct xfer *x,
				       bool may_stage, unsigned *ret_route)
{
	enum rdma_fallback why = RDMA_FALLBACK_NONE;

	for (unsigned route = 0; route <= (RDMA_ROUTE_STAGED | RDMA_ROUTE_WINDOWED); route++) {
		enum rdma_fallback w;

		if ((route & RDMA_ROUTE_STAGED && !may_stage) ||
		    (route & RDMA_ROUTE_WINDOWED && !window_keys(peer, x)))
			continue;
		w = rdma_route_check(peer, x, route);
		*ret_route = route;
		if (!w)
			return w;
		/* Reports why the routes without a window failed. */
		if (!(route & RDMA_ROUTE_WINDOWED))
			why = w;
	}
	return why;
}

static struct channel *channel_by(struct rdma_channel *ch, unsigned route)
{
	struct stage_channel *p = route & RDMA_ROUTE_WINDOWED ? &ch->win : &ch->ch;

	return route & RDMA_ROUTE_STAGED ? &p->staged : &p->direct;
}

static const char *engine_refusal(const struct rdma_peer *peer, const struct xfer *x,
				  uint32_t *ret_code)
{
	bool unregistered = peer->paths && rdma_route_check(peer, x, 0) == RDMA_FALLBACK_LOCAL;

	*ret_code = DRAY_E_PEER_UNREACHABLE;
	if (!unregistered)
		return peer->link->partial && peer->paths && !peer->paths->n ? NO_USED_DEVICE :
									       NO_ENGINE;
	if (object_region(x->local)->memory == REGION_HOST)
		return NO_MEMORY;
	*ret_code = DRAY_E_UNSUPPORTED;
	return NO_GPU_MEMORY;
}

const char *rdma_refusal(struct core *c, void *state, const struct xfer *x, uint32_t *ret_code)
{
	const struct remote_view *remote = object_remote(x->remote);
	struct rdma_peer *peer = remote->is_local ? NULL : rdma_peer_get(state, remote->peer);

	return peer && peer->engine ? engine_refusal(peer, x, ret_code) : NULL;
}

static struct channel *engine_channel(struct rdma_peer *peer, const struct xfer *x)
{
	struct rdma_channel *ch = &peer->channels[x->class];

	if (peer->paths && rdma_route_check(peer, x, 0))
		return NULL;
	if (peer->paths)
		rdma_queue_request(ch);
	return &ch->ch.direct;
}

struct channel *rdma_channel(struct core *c, void *state, const struct xfer *x)
{
	const struct remote_view *remote = object_remote(x->remote);
	struct rdma_peer *peer = remote->is_local ? NULL : rdma_peer_get(state, remote->peer);
	struct rdma_channel *ch;
	enum rdma_fallback why;
	unsigned route = 0;

	if (!peer || peer->down)
		return NULL;
	if (peer->engine)
		return engine_channel(peer, x);
	/* memory of the store that is not registered says nothing about regions of clients */
	if (x->ended && (!x->local->keys || !x->remote->keys))
		return NULL;
	ch = &peer->channels[x->class];
	/* Both agents have registered the memory; paths are still being computed. */
	if (!peer->paths) {
		route = x->local->keys ? 0 : RDMA_ROUTE_STAGED;
		if (!x->remote->keys || (route && !may_stage(c, state, x)))
			return NULL;
		return channel_by(ch, route);
	}
	why = choose_route(peer, x, may_stage(c, state, x), &route);
	if (why != peer->fallback) {
		peer->fallback = why;
		rdma_event(state, RDMA_FALLBACK, remote->peer, 0, why, NULL);
	}
	if (why)
		return NULL;
	rdma_queue_request(ch);
	return channel_by(ch, route);
}

static bool channel_has(const struct rdma_channel *ch, const struct xfer *x)
{
	return stage_channel_has(&ch->ch, x) || stage_channel_has(&ch->win, x);
}

static void transfer_move(struct core *c, struct xfer *x, void *arg)
{
	struct dray_list slices = DRAY_LIST_INIT(slices), without = DRAY_LIST_INIT(without);
	uint32_t n = 0, code = DRAY_E_PEER_UNREACHABLE;
	struct rdma_channel *ch = arg;
	const char *why = NO_ROUTE;
	struct stage_channel *p;

	if (!channel_has(ch, x) || x->state != XFER_RUNNING)
		return;
	rdma_channel_unpark(ch);
	slices_take(&ch->ch.retry, x, &slices);
	slices_take(&ch->ch.ready, x, &slices);
	slices_take(&ch->ch.unstaged, x, &without);
	slices_take(&ch->win.unstaged, x, &without);
	slices_take(&ch->win.retry, x, &slices);
	slices_take(&ch->win.ready, x, &slices);
	dray_list_for_each(&slices, s, struct slice, link) {
		slice_window_put(c, s);
		n++;
	}
	dray_list_for_each(&without, u, struct slice, link)
		n++;
	/* Slices in flight on a lost queue pair, or being copied, come back first. */
	if (n == x->slices) {
		dray_list_splice(&slices, &without);
		if (xfer_move(c, x, &slices))
			return;
	}
	p = rdma_route(ch, x) & RDMA_ROUTE_WINDOWED ? &ch->win : &ch->ch;
	dray_list_splice(&p->retry, &slices);
	dray_list_splice(&p->unstaged, &without);
	if (n != x->slices) {
		ch->moving = true;
		return;
	}
	if (ch->peer->engine)
		why = engine_refusal(ch->peer, x, &code);
	xfer_stop(c, x, code, why, false);
}

static void review(struct core *c, struct xfer *x, void *arg)
{
	struct rdma_channel *ch = arg;

	if (channel_has(ch, x) && rdma_route_check(ch->peer, x, rdma_route(ch, x)))
		transfer_move(c, x, ch);
}

void rdma_peer_changed(struct rdma_peer *peer)
{
	/* Without paths no route can be ruled out. */
	for (unsigned k = 0; peer->paths && k < 2; k++)
		xfers_each(peer->rdma->c, review, &peer->channels[k]);
	for (unsigned k = 0; k < 2; k++) {
		struct rdma_channel *ch = &peer->channels[k];

		rdma_channel_unpark(ch);
		if (!rdma_channel_has_work(ch))
			continue;
		rdma_queue_request(ch);
		rdma_pull_later(ch);
	}
}

void rdma_channel_review(struct rdma_channel *ch)
{
	if (!ch->moving || ch->peer->down || !ch->peer->paths)
		return;
	ch->moving = false;
	xfers_each(ch->peer->rdma->c, review, ch);
}

void rdma_channel_give_up(struct rdma_channel *ch)
{
	ch->unreachable = true;
	ch->queue_requested = false;
	if (dray_list_empty(&ch->queues))
		xfers_each(ch->peer->rdma->c, transfer_move, ch);
}
