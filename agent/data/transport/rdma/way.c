/* SPDX-License-Identifier: Apache-2.0 */
/* Which way a transfer goes: straight, staged here, through the owner's window, both; or not by RDMA, and why. */
#include "agent/data/transport/rdma/internal.h"

static const struct rail_keys *window_keys(const struct rdma_peer *peer, const struct xfer *x)
{
	return peer->window && !x->remote->no_window ? peer->window->keys : NULL;
}

enum rdma_fallback rdma_judge(const struct rdma_peer *peer, const struct xfer *x, unsigned way)
{
	const struct rail_keys *local = way & RDMA_WAY_STAGED ? peer->rdma->staging :
								x->local->keys;
	const struct rail_keys *remote = way & RDMA_WAY_WINDOWED ? window_keys(peer, x) :
								   x->remote->keys;
	/* of several reasons the one that was nearest to success */
	enum rdma_fallback why = RDMA_FALLBACK_PATHS;

	for (uint32_t i = 0; i < peer->paths->n; i++) {
		const struct rdma_pair *p = &peer->paths->v[i];

		if (!rail_keys_have(local, p->rail))
			why = why == RDMA_FALLBACK_REMOTE ? why : RDMA_FALLBACK_LOCAL;
		else if (!rail_keys_have(remote, p->to_rail))
			why = RDMA_FALLBACK_REMOTE;
		else
			return peer->channels[x->class].unreachable ? RDMA_FALLBACK_UNREACHABLE :
								      RDMA_FALLBACK_NONE;
	}
	return why;
}

static bool may_stage(struct core *c, const struct rdma *r, const struct xfer *x)
{
	const struct region_view *local = (const struct region_view *)x->local->view;

	return local->memory == REGION_GPU && r->staging && stage_is_up(c) &&
	       gpu_is_up(c, local->gpu);
}

/* Straight if that can be, else with what is staged least. */
static enum rdma_fallback choose_way(const struct rdma_peer *peer, const struct xfer *x,
				     bool may_stage, unsigned *ret_way)
{
	enum rdma_fallback why = RDMA_FALLBACK_NONE;

	for (unsigned way = 0; way <= (RDMA_WAY_STAGED | RDMA_WAY_WINDOWED); way++) {
		enum rdma_fallback w;

		if ((way & RDMA_WAY_STAGED && !may_stage) ||
		    (way & RDMA_WAY_WINDOWED && !window_keys(peer, x)))
			continue;
		w = rdma_judge(peer, x, way);
		*ret_way = way;
		if (!w)
			return w;
		/* what would be staged here could go, were it not for the owner */
		if (!(way & RDMA_WAY_WINDOWED))
			why = w;
	}
	return why;
}

static struct channel *channel_by(struct rdma_channel *ch, unsigned way)
{
	if (way & RDMA_WAY_WINDOWED)
		return way & RDMA_WAY_STAGED ? &ch->win.staging.ch : &ch->win.ch;
	return way ? &ch->staging.ch : &ch->ch;
}

struct channel *rdma_channel(struct core *c, void *state, const struct xfer *x)
{
	const struct remote_view *remote = (const struct remote_view *)x->remote->view;
	struct rdma_peer *peer = remote->is_local ? NULL : rdma_peer_get(state, remote->peer);
	struct rdma_channel *ch;
	enum rdma_fallback why;
	unsigned way = 0;

	if (!peer || peer->down)
		return NULL;
	ch = &peer->channels[x->class];
	/* both agents have registered it: which rails reach each other is being found out */
	if (!peer->paths) {
		way = x->local->keys ? 0 : RDMA_WAY_STAGED;
		if (!x->remote->keys || (way && !may_stage(c, state, x)))
			return NULL;
		return channel_by(ch, way);
	}
	why = choose_way(peer, x, may_stage(c, state, x), &way);
	if (why != peer->fallback) {
		peer->fallback = why;
		rdma_tell(state, RDMA_FALLBACK, remote->peer, 0, why);
	}
	if (why)
		return NULL;
	rdma_want(ch);
	return channel_by(ch, way);
}
