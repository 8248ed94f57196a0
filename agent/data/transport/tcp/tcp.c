/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `tcp`: operations, peers, and the order of work in a turn.
 *
 * A turn serves the latency class, then bulk. Each class has a budget of bytes, which bounds how long
 * sockets, rings and commands of the worker wait. A latency transfer waits for three turns that have begun:
 * its sender's, its owner's, and its sender's again for the answer. So bulk has a smaller budget while
 * there are latency transfers, and no system call moves more than the rest of the budget. The owner does the same
 * for small requests that come alone: their session waits for each of them, beside the bulk of others.
 */
#include "agent/data/transport/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/ballast.h"

/*
 * The kernel's limit for buffer sizes that are set by hand; the kernel cuts larger ones silently.
 * UINT64_MAX: unknown.
 */
static uint64_t buffer_max(const char *path)
{
	dray_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[32] = "";

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return UINT64_MAX;
	return strtoull(text, NULL, 10);
}

static int tcp_init(struct core *c, void **ret_state)
{
	struct tcp *t = calloc(1, sizeof(*t));
	uint64_t bytes = c->cfg.tcp_buffer;

	if (!t)
		return -ENOMEM;
	t->c = c;
	t->timer_ns = t->helped_ns = INT64_MAX;
	dray_list_init(&t->peer_list);
	dray_list_init(&t->helped);
	dray_list_init(&t->streams);
	dray_list_init(&t->serving);
	dray_list_init(&t->parked);
	dray_list_init(&t->closed);
	for (unsigned i = 0; i < 2; i++) {
		dray_list_init(&t->ready[i]);
		dray_list_init(&t->pulling[i]);
	}
	/*
	 * A size set by hand turns autotuning off and is cut to net.core.*mem_max, which is by default far
	 * below what autotuning reaches. A size above that limit is therefore not set.
	 */
	t->set_send_buffer = bytes && bytes <= buffer_max("/proc/sys/net/core/wmem_max");
	t->set_receive_buffer = bytes && bytes <= buffer_max("/proc/sys/net/core/rmem_max");
	*ret_state = t;
	return 0;
}

struct tcp_peer *tcp_peer_get(const struct tcp *t, dray_handle peer)
{
	struct tcp_peer *p = dray_slots_get(&t->peers, peer);

	return p && p->link->peer == peer ? p : NULL;
}

static void tcp_peer_up(struct core *c, void *state, struct peer_link *link)
{
	struct tcp *t = state;
	struct tcp_peer *peer = dray_calloc_sure(1, sizeof(*peer));

	dray_assert(!dray_slots_get(&t->peers, link->peer));
	dray_slots_set(&t->peers, link->peer, peer);
	peer->tcp = t;
	peer->link = link;
	dray_list_init(&peer->adopted);
	for (unsigned k = 0; k < 2; k++) {
		struct tcp_channel *ch = &peer->channels[k];

		stage_channel_init(&ch->ch, &transport_tcp, (enum dmsg_class)k, link, ch,
				   &peer->staged[STAGE_OWN], &ch->pull_link, &t->pulling[k]);
		ch->peer = peer;
		ch->ch.direct.checked_max = TCP_CHECKED_MAX;
		dray_list_init(&ch->helpers.link);
		dray_list_init(&ch->helpers.slices);
		dray_list_init(&ch->streams);
		dray_list_init(&ch->lost);
	}
	dray_list_add(&t->peer_list, &peer->peers_link);
}

static void peer_free(struct tcp_peer *peer)
{
	for (unsigned i = 0; i < 2; i++) {
		dray_list_del(&peer->channels[i].helpers.link);
		stage_channel_deinit(&peer->channels[i].ch);
	}
	dray_list_del(&peer->peers_link);
	dray_slots_set(&peer->tcp->peers, peer->link->peer, NULL);
	free(peer);
}

static void tcp_peer_down(struct core *c, void *state, dray_handle handle, uint32_t code)
{
	struct tcp *t = state;
	struct tcp_peer *peer = tcp_peer_get(t, handle);

	if (peer) {
		peer->down = true;
		for (unsigned i = 0; i < 2; i++)
			tcp_channel_close(&peer->channels[i], code);
		dray_list_for_each(&peer->adopted, s, struct tcp_stream, peer_link)
			tcp_serve_close(s, false, false);
		/* The worker has stopped its transfers. Their slices and frames have ended, so all buffers are back. */
		for (unsigned i = 0; i < STAGE_USE_N; i++)
			dray_assert(!peer->staged[i].held[0] && !peer->staged[i].held[1]);
		peer_free(peer);
	}
	c->up->peer_gone(c, handle);
}

/* Ends what is not a slice. */
static void tcp_peer_forget(struct tcp_peer *peer)
{
	for (unsigned i = 0; i < 2; i++)
		tcp_channel_close(&peer->channels[i], DRAY_E_PEER_LOST);
	dray_list_for_each(&peer->adopted, s, struct tcp_stream, peer_link)
		tcp_serve_forget(s);
}

static void tcp_deinit(struct core *c, void *state)
{
	struct tcp *t = state;

	/* The worker has ended all sessions, so no slice is left, and upcalls no longer matter. */
	dray_list_for_each(&t->peer_list, peer, struct tcp_peer, peers_link)
		tcp_peer_forget(peer);
	dray_list_for_each(&t->streams, s, struct tcp_stream, link) {
		tcp_stream_close(s, false);
		tcp_stream_free_later(s);
	}
	dray_list_for_each(&t->peer_list, peer, struct tcp_peer, peers_link)
		peer_free(peer);
	tcp_free_closed(t);
	dray_slots_deinit(&t->peers);
	free(t->pool);
	free(t);
}

static struct channel *tcp_channel(struct core *c, void *state, const struct xfer *x)
{
	const struct remote_view *remote = object_remote(x->remote);
	const struct region_view *local = object_region(x->local);
	struct tcp_peer *peer = remote->is_local ? NULL : tcp_peer_get(state, remote->peer);
	struct stage_channel *ch;

	if (!peer || peer->down)
		return NULL;
	if (x->remote->trailing)
		return x->remote->trailing;
	ch = &peer->channels[x->class].ch;
	if (local->memory == REGION_HOST)
		return &ch->direct;
	return stage_reaches(c, local) ? &ch->staged : NULL;
}

static void tcp_adopt(struct core *c, void *state, struct channel *ch, struct slice *s)
{
	struct tcp_channel *to = ch->owner;

	/* The other transport forgets the peer first. */
	if (s->staged)
		stage_charge(s->staged, &to->peer->staged[STAGE_OWN]);
	dray_list_add(ch == &to->ch.staged && !s->staged ? &to->ch.unstaged : &to->ch.retry,
		      &s->link);
	tcp_channel_pull_later(to);
}

/* Gives slices to streams that have room. A channel whose streams take none now leaves the list. */
static void pull(struct tcp *t, unsigned class, struct tcp_budget *b)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct tcp_channel *ch;

	dray_list_splice(&now, &t->pulling[class]);
	while ((ch = dray_list_pop(&now, struct tcp_channel, pull_link))) {
		if (b->left <= 0 || tcp_channel_pull(ch, b))
			stage_channel_pull_later(&ch->ch);
	}
}

static void work(struct tcp *t, unsigned class, struct tcp_budget *b)
{
	struct tcp_stream *s;
	int64_t before;

	pull(t, class, b);
	while (b->left > 0 &&
	       (s = dray_list_pop(&t->ready[class], struct tcp_stream, ready_link))) {
		before = b->left;
		s->side->step(s, b);
		/* A step without bytes counts too: every turn must end. */
		if (b->left == before)
			b->left -= TCP_CALL_COST;
		tcp_stream_requeue(s);
		if (!dray_list_empty(&t->pulling[class]))
			pull(t, class, b);
	}
}

static int64_t turn_bytes(struct tcp *t, enum dmsg_class class)
{
	if (class == DMSG_CLASS_LATENCY &&
	    (!dray_list_empty(&t->ready[class]) || !dray_list_empty(&t->pulling[class])))
		tcp_turns_short(t);
	return class == DMSG_CLASS_BULK && t->c->now_ns < t->short_ns ? TCP_TURN_BYTES_SHORT :
									TCP_TURN_BYTES;
}

/* No work in this turn, which is usual while transfers use other transports. */
static bool is_idle(const struct tcp *t)
{
	return dray_list_empty(&t->ready[0]) && dray_list_empty(&t->ready[1]) &&
	       dray_list_empty(&t->pulling[0]) && dray_list_empty(&t->pulling[1]) &&
	       dray_list_empty(&t->parked) && dray_list_empty(&t->closed);
}

static bool tcp_progress(struct core *c, void *state)
{
	static const enum dmsg_class order[] = { DMSG_CLASS_LATENCY, DMSG_CLASS_BULK };
	struct tcp *t = state;
	struct tcp_stream *s;
	bool more = false;

	/* Transport gpu's turn, just before this one, has ended copies and found room for others. */
	stage_progress(c);
	if (c->delegates && delegates_wait(c))
		tcp_helpers_progress(t);
	if (is_idle(t))
		return false;
	tcp_free_closed(t);
	while ((s = dray_list_pop(&t->parked, struct tcp_stream, ready_link))) {
		s->parked = false;
		dray_list_add(&t->ready[s->class], &s->ready_link);
	}
	for (unsigned i = 0; i < 2; i++) {
		/* A budget for each class: latency cannot starve bulk. */
		struct tcp_budget b = { turn_bytes(t, order[i]) };

		work(t, order[i], &b);
		more |= !dray_list_empty(&t->ready[order[i]]);
		more |= b.left <= 0 && !dray_list_empty(&t->pulling[order[i]]);
	}
	return more || !dray_list_empty(&t->parked) || stage_wants(c);
}

/* Timeouts may have made work for progress(), which has run in this turn. */
static int64_t next_tick(const struct tcp *t)
{
	for (unsigned i = 0; i < 2; i++)
		if (!dray_list_empty(&t->ready[i]) || !dray_list_empty(&t->pulling[i]))
			return t->c->now_ns;
	return dray_min(t->timer_ns, t->helped_ns);
}

static bool tcp_announce(struct core *c, void *state)
{
	return c->delegates && delegates_wait(c);
}

static int64_t tcp_tick(struct core *c, void *state)
{
	struct tcp *t = state;

	if (c->now_ns >= t->helped_ns)
		tcp_helpers_tick(t);
	if (c->now_ns < t->timer_ns)
		return next_tick(t);
	t->timer_ns = INT64_MAX;
	dray_list_for_each(&t->streams, s, struct tcp_stream, link)
		s->side->tick(s);
	dray_list_for_each(&t->peer_list, peer, struct tcp_peer, peers_link)
		for (unsigned i = 0; i < 2; i++)
			if (stage_channel_has_work(&peer->channels[i].ch)) {
				tcp_connect(&peer->channels[i]);
				stage_channel_pull_later(&peer->channels[i].ch);
			}
	tcp_pool_trim(t);
	return next_tick(t);
}

static void tcp_command(struct core *c, void *state, const struct command *cmd)
{
	struct tcp_peer *peer = tcp_peer_get(state, cmd->session);

	if (cmd->type == COMMAND_STREAM_DEAD) {
		if (peer && !tcp_channel_dead(&peer->channels[0], cmd->id))
			tcp_channel_dead(&peer->channels[1], cmd->id);
		return;
	}
	if (peer && cmd->type == COMMAND_STREAM_ADOPT) {
		tcp_serve_adopt(state, peer, cmd->fd, cmd->id, (enum dmsg_class)cmd->class);
		return;
	}
	if (cmd->type == COMMAND_STREAM_ADOPT)
		dray_close(cmd->fd);
	if (peer)
		dray_list_for_each(&peer->adopted, s, struct tcp_stream, peer_link)
			if (s->id == cmd->id) {
				tcp_serve_close(s, true, true);
				return;
			}
	tcp_event(state, EVENT_STREAM_CLOSED, cmd->session, cmd->id);
}

const struct transport_ops transport_tcp = {
	.id = DMSG_TRANSPORT_TCP,
	.init = tcp_init,
	.deinit = tcp_deinit,
	.channel = tcp_channel,
	.adopt = tcp_adopt,
	.kick = stage_channel_kick,
	.progress = tcp_progress,
	.announce = tcp_announce,
	.stop = tcp_channel_stop,
	.drop = tcp_serve_drop,
	.tick = tcp_tick,
	.peer_up = tcp_peer_up,
	.peer_down = tcp_peer_down,
	.stream = tcp_command,
	.seek = tcp_seek,
};
