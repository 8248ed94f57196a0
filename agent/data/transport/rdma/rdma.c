/* SPDX-License-Identifier: Apache-2.0 */
/* Transport `rdma`: operations, peers, rails, messages, and the order of work in a turn. */
#include "agent/data/transport/rdma/rdma.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/ballast.h"

void rdma_event(struct rdma *r, enum rdma_event type, dray_handle peer, uint64_t id, uint32_t code,
		void *arg)
{
	r->c->up->event(r->c, &(struct event){ .type = EVENT_TRANSPORT,
					       .message = { .transport = DMSG_TRANSPORT_RDMA,
							    .type = type,
							    .peer = peer,
							    .id = id,
							    .code = code,
							    .arg = arg } });
}

static int rdma_init(struct core *c, void **ret_state)
{
	struct rdma *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->c = c;
	r->timer_ns = INT64_MAX;
	dray_list_init(&r->peer_list);
	dray_list_init(&r->pulling[0]);
	dray_list_init(&r->pulling[1]);
	dray_list_init(&r->copies);
	dray_list_init(&r->copied);
	dray_handles_init(&r->queues, DRAY_HANDLES_MAX, 0);
	for (unsigned i = 0; i < RAILS_MAX; i++)
		r->rails[i] = (struct rdma_rail){ .source.fd = -1, .rdma = r };
	*ret_state = r;
	return 0;
}

static struct rdma_peer *find(const struct dray_slots *slots, dray_handle peer)
{
	struct rdma_peer *p = dray_slots_get(slots, peer);

	return p && p->link->peer == peer ? p : NULL;
}

struct rdma_peer *rdma_peer_get(struct rdma *r, dray_handle peer)
{
	struct rdma_peer *p = find(&r->peers, peer);

	return p ? p : find(&r->engines, peer);
}

/* Handles of peers and engines are of two tables. */
static struct dray_slots *slots_of(struct rdma_peer *peer)
{
	return peer->engine ? &peer->rdma->engines : &peer->rdma->peers;
}

static void peer_new(struct rdma *r, struct peer_link *link, bool engine)
{
	struct rdma_peer *peer = dray_calloc_sure(1, sizeof(*peer));

	peer->rdma = r;
	peer->link = link;
	peer->engine = engine;
	dray_assert(!dray_slots_get(slots_of(peer), link->peer));
	dray_slots_set(slots_of(peer), link->peer, peer);
	dray_list_init(&peer->windows);
	for (unsigned k = 0; k < 2; k++) {
		struct rdma_channel *ch = &peer->channels[k];

		stage_channel_init(&ch->ch, &transport_rdma, (enum dmsg_class)k, link, ch,
				   &peer->staged, &ch->pull_link, &r->pulling[k]);
		stage_channel_init(&ch->win, &transport_rdma, (enum dmsg_class)k, link, ch,
				   &peer->staged, &ch->pull_link, &r->pulling[k]);
		ch->ch.has_way = ch->win.has_way = rdma_has_way;
		ch->win.direct.gpu_path = DMSG_GPU_PATH_STAGED;
		ch->peer = peer;
		dray_list_init(&ch->queues);
		dray_list_init(&ch->lost);
		dray_list_init(&ch->parked);
		dray_list_init(&ch->parked_flows);
		dray_list_init(&ch->requested);
	}
	dray_list_add(&r->peer_list, &peer->peers_link);
}

static void rdma_peer_up(struct core *c, void *state, struct peer_link *link)
{
	peer_new(state, link, false);
}

static void peer_free(struct rdma_peer *peer)
{
	for (unsigned k = 0; k < 2; k++) {
		stage_channel_deinit(&peer->channels[k].ch);
		stage_channel_deinit(&peer->channels[k].win);
	}
	dray_list_for_each(&peer->windows, w, struct rdma_window, link)
		window_free(w);
	dray_list_del(&peer->peers_link);
	dray_slots_set(slots_of(peer), peer->link->peer, NULL);
	free(peer->paths);
	free(peer);
}

/* Frees a peer that is down when its last queue pair is gone and all copy requests are answered. */
static void peer_free_if_done(struct rdma_peer *peer)
{
	struct rdma *r = peer->rdma;
	dray_handle handle = peer->link->peer;
	bool engine = peer->engine;

	for (unsigned k = 0; k < 2; k++)
		if (!dray_list_empty(&peer->channels[k].queues) ||
		    !dray_list_empty(&peer->channels[k].lost))
			return;
	if (!peer->down || peer->unanswered)
		return;
	peer_free(peer);
	if (engine)
		rdma_event(r, RDMA_ENGINE_GONE, handle, 0, 0, NULL);
	else
		r->c->up->peer_gone(r->c, handle);
}

static void peer_down(struct rdma_peer *peer, uint32_t code)
{
	struct dray_list over = DRAY_LIST_INIT(over);

	peer->down = true;
	for (unsigned k = 0; k < 2; k++) {
		dray_list_for_each(&peer->channels[k].queues, p, struct rdma_queue, link)
			rdma_queue_lose(p, RDMA_LOSS_PEER);
		rdma_channel_take(&peer->channels[k], NULL, true, &over);
	}
	/*
	 * The worker has stopped all its transfers, which ended slices that were neither posted nor being
	 * copied.
	 */
	xfer_slices_end(peer->rdma->c, &over, code);
	peer_free_if_done(peer);
}

static void rdma_peer_down(struct core *c, void *state, dray_handle handle, uint32_t code)
{
	struct rdma_peer *peer = rdma_peer_get(state, handle);

	if (peer)
		peer_down(peer, code);
	else
		c->up->peer_gone(c, handle);
}

static void rdma_deinit(struct core *c, void *state)
{
	struct rdma *r = state;
	struct rdma_queue *p;
	uint32_t cursor = 0;

	while ((p = dray_handles_next(&r->queues, &cursor, NULL)))
		rdma_queue_free(p);
	dray_list_for_each(&r->peer_list, peer, struct rdma_peer, peers_link)
		peer_free(peer);
	for (unsigned i = 0; i < RAILS_MAX; i++)
		rdma_rail_down(r, i);
	dray_handles_deinit(&r->queues);
	rail_keys_unref(r->staging);
	free(r->list);
	dray_slots_deinit(&r->peers);
	dray_slots_deinit(&r->engines);
	free(r);
}

void rdma_queue_request(struct rdma_channel *ch)
{
	if (ch->queue_requested || !dray_list_empty(&ch->queues))
		return;
	ch->queue_requested = true;
	rdma_event(ch->peer->rdma, RDMA_WANTED, ch->peer->link->peer, 0, 0, NULL);
}

static void pull(struct rdma *r, enum dmsg_class class)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct rdma_channel *ch;

	dray_list_splice(&now, &r->pulling[class]);
	while ((ch = dray_list_pop(&now, struct rdma_channel, pull_link))) {
		rdma_channel_pull(ch);
	}
}

static bool poll_rails(struct rdma *r)
{
	bool some = false;

	for (uint64_t left = r->rails_up; left; left &= left - 1) {
		struct rdma_rail *rail = &r->rails[__builtin_ctzll(left)];

		if (rail->signalled)
			some |= rdma_rail_poll(rail);
	}
	return some;
}

static bool rdma_progress(struct core *c, void *state)
{
	struct rdma *r = state;
	bool some = poll_rails(r);

	/* A software device has finished already: its completions need no further turn. */
	if (!dray_list_empty(&r->pulling[DMSG_CLASS_LATENCY])) {
		pull(r, DMSG_CLASS_LATENCY);
		some |= poll_rails(r);
	}
	if (!dray_list_empty(&r->pulling[DMSG_CLASS_BULK]))
		pull(r, DMSG_CLASS_BULK);
	if (!dray_list_empty(&r->copied)) {
		rdma_copies_progress(r);
		some = true;
	}
	return some;
}

static bool rdma_announce(struct core *c, void *state)
{
	struct rdma *r = state;
	bool work = !dray_list_empty(&r->pulling[0]) || !dray_list_empty(&r->pulling[1]) ||
		    !dray_list_empty(&r->copied);

	for (uint64_t left = r->rails_up; left; left &= left - 1)
		work |= rdma_rail_arm(&r->rails[__builtin_ctzll(left)]);
	return work;
}

static int64_t queue_tick(struct rdma_queue *p)
{
	const struct core *c = p->rdma->c;
	int64_t limit;

	if (p->lost || p->head == p->tail)
		return INT64_MAX;
	limit = rdma_entry_at(p, p->head)->posted_ns + c->cfg.slice_timeout_ns;
	for (uint32_t i = p->head; i != p->tail; i++) {
		const struct rdma_entry *e = rdma_entry_at(p, i);

		if (e->limit_ns)
			limit = dray_min(limit, e->limit_ns);
	}
	if (c->now_ns < limit)
		return limit;
	rdma_queue_lose(p, RDMA_LOSS_TIMEOUT);
	return INT64_MAX;
}

static int64_t rdma_tick(struct core *c, void *state)
{
	struct rdma *r = state;
	struct rdma_queue *p;
	uint32_t cursor = 0;

	if (c->now_ns < r->timer_ns)
		return r->timer_ns;
	r->timer_ns = INT64_MAX;
	while ((p = dray_handles_next(&r->queues, &cursor, NULL)))
		rdma_timer(r, queue_tick(p));
	return r->timer_ns;
}

static struct rdma_queue *queue_find(struct rdma_peer *peer, uint64_t id)
{
	for (unsigned k = 0; peer && k < 2; k++) {
		dray_list_for_each(&peer->channels[k].queues, p, struct rdma_queue, link)
			if (p->qp.id == id)
				return p;
		dray_list_for_each(&peer->channels[k].lost, lost, struct rdma_queue, link)
			if (lost->qp.id == id)
				return lost;
	}
	return NULL;
}

static void handle_paths(struct rdma_peer *peer, struct rdma_paths *paths)
{
	if (!peer) {
		free(paths);
		return;
	}
	free(peer->paths);
	peer->paths = paths;
	rdma_peer_changed(peer);
}

static void handle_staging(struct rdma *r, struct rail_keys *keys)
{
	rail_keys_unref(r->staging);
	r->staging = keys;
	dray_list_for_each(&r->peer_list, peer, struct rdma_peer, peers_link)
		if (peer->paths)
			rdma_peer_changed(peer);
}

/* The keys that transfers to engines wait for, or the news that there are none. */
static void handle_engine_keys(struct rdma *r, dray_handle region, struct rail_keys *keys)
{
	struct object *o = object_find(r->c, OBJECT_REGION, region);
	struct rail_keys *former = o ? o->engine_keys : keys;

	if (o)
		o->engine_keys = keys;
	rail_keys_unref(former);
	dray_list_for_each(&r->peer_list, peer, struct rdma_peer, peers_link)
		if (peer->engine && !peer->down && peer->paths)
			rdma_peer_changed(peer);
}

static void handle_qp(struct rdma *r, dray_handle handle, struct rdma_qp *qp)
{
	struct rdma_peer *peer = rdma_peer_get(r, handle);

	if (!peer || peer->down || rdma_queue_new(peer, qp) < 0) {
		rdma_event(r, RDMA_QP_LOST, handle, qp->id, RDMA_LOSS_UNUSED, NULL);
	} else {
		peer->channels[qp->class].queue_requested = false;
		peer->channels[qp->class].unreachable = false;
		if (peer->paths)
			peer->paths->unreachable[qp->class] &= ~(1ull << qp->path.rail);
		core_count(r->c->counters, DRAY_METRIC_RDMA_QUEUE_PAIRS, 1);
	}
	free(qp);
}

static void handle_path_unreachable(struct rdma_peer *peer, uint64_t id)
{
	for (unsigned k = 0; k < 2; k++) {
		struct rdma_channel *ch = &peer->channels[k];

		for (uint32_t i = 0; i < peer->paths->n; i++) {
			uint32_t rail = peer->paths->v[i].rail;

			if (id != rdma_path_id(rail, (enum dmsg_class)k))
				continue;
			peer->paths->unreachable[k] |= 1ull << rail;
			ch->moving = true;
			rdma_channel_review(ch);
		}
	}
}

static void handle_dead(struct rdma_queue *p)
{
	struct rdma_peer *peer = p->peer;

	dray_assert(p->lost);
	rdma_queue_dead(p);
	peer_free_if_done(peer);
}

static void handle_share(struct rdma_peer *peer, struct rdma_share *share)
{
	if (peer && !peer->down) {
		window_take_share(peer, share);
		return;
	}
	rail_keys_unref(share->keys);
	free(share);
}

static void handle_answer(struct rdma_peer *peer, struct rdma_stage_request *ask, uint32_t code)
{
	/* a peer with requests stays */
	dray_assert(peer && peer->unanswered);
	window_answered(peer, ask, code);
	peer_free_if_done(peer);
}

static void rdma_handle_message(struct core *c, void *state, const struct transport_message *m)
{
	struct rdma *r = state;
	struct rdma_peer *peer = rdma_peer_get(r, m->peer);
	struct rdma_queue *p;

	switch ((enum rdma_command)m->type) {
	case RDMA_RAIL_UP:
		dray_assert(rdma_rail_up(r, (uint32_t)m->id, m->arg) == 0);
		break;
	case RDMA_RAIL_DOWN:
		rdma_rail_down(r, (uint32_t)m->id);
		rdma_event(r, RDMA_RAIL_GONE, 0, m->id, 0, NULL);
		break;
	case RDMA_PATHS:
		handle_paths(peer, m->arg);
		break;
	case RDMA_QP_UP:
		handle_qp(r, m->peer, m->arg);
		break;
	case RDMA_QP_LOSE:
		p = queue_find(peer, m->id);
		if (p && !p->lost)
			rdma_queue_lose(p, RDMA_LOSS_COMMAND);
		break;
	case RDMA_QP_QUIET:
		p = queue_find(peer, m->id);
		if (p && p->lost)
			rdma_queue_quiet(p);
		break;
	case RDMA_QP_DEAD:
		p = queue_find(peer, m->id);
		if (p)
			handle_dead(p);
		break;
	case RDMA_STAGING:
		handle_staging(r, m->arg);
		break;
	case RDMA_WINDOW:
		handle_share(peer, m->arg);
		break;
	case RDMA_STAGED:
		handle_answer(peer, m->arg, m->code);
		break;
	case RDMA_COPY:
		rdma_copy_start(r, m->arg);
		break;
	case RDMA_PATH_UNREACHABLE:
		if (peer && !peer->down && peer->paths)
			handle_path_unreachable(peer, m->id);
		break;
	case RDMA_UNREACHABLE:
		if (peer && !peer->down)
			rdma_channel_give_up(&peer->channels[m->id]);
		break;
	case RDMA_ENGINE_UP:
		peer_new(r, m->arg, true);
		break;
	case RDMA_ENGINE_DOWN:
		/* its remotes were dropped, so no transfer uses it */
		peer_down(peer, DRAY_E_PEER_LOST);
		break;
	case RDMA_ENGINE_KEYS:
		handle_engine_keys(r, m->id, m->arg);
		break;
	}
}

static bool rdma_reaches(struct core *c, void *state, dray_handle handle)
{
	const struct rdma_peer *peer = rdma_peer_get(state, handle);

	return peer && !peer->down && peer->paths && peer->paths->n;
}

const struct transport_ops transport_rdma = {
	.id = DMSG_TRANSPORT_RDMA,
	.init = rdma_init,
	.deinit = rdma_deinit,
	.channel = rdma_channel,
	.refusal = rdma_refusal,
	.kick = stage_channel_kick,
	.progress = rdma_progress,
	.announce = rdma_announce,
	.stop = rdma_channel_stop,
	.drop = rdma_copies_drop,
	.hasten = rdma_hasten,
	.keys = rdma_keys_changed,
	.tick = rdma_tick,
	.peer_up = rdma_peer_up,
	.peer_down = rdma_peer_down,
	.reaches = rdma_reaches,
	.message = rdma_handle_message,
};
