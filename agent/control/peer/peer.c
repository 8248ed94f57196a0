/* SPDX-License-Identifier: Apache-2.0 */
/* One peer: its state machine on the event loop, and its places in the tables. */
#include "agent/control/peer/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "agent/state/identity.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/time.h"

/* After the sockets: a reply that has arrived must not time out. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 5)
/* Bytes of a line about a change of state. */
#define STATE_LINE_MAX 800

int64_t peers_now(struct peers *p)
{
	uint64_t usec;

	dray_assert(sd_event_now(p->deps.event, CLOCK_MONOTONIC, &usec) >= 0);
	return (int64_t)usec * 1000;
}

struct peer *peer_get(struct peers *p, dray_handle handle)
{
	return dray_handles_get(&p->handles, handle);
}

struct peer *peer_get_up(struct peers *p, dray_handle handle)
{
	struct peer *peer = peer_get(p, handle);

	return peer && peer_fsm_is_up(&peer->fsm) ? peer : NULL;
}

struct peer *peer_find_up(struct peers *p, const uint8_t agent_id[16], const struct peer *except)
{
	peers_for_each_of(p, agent_id, peer)
		if (peer != except && peer_fsm_is_up(&peer->fsm))
			return peer;
	return NULL;
}

void peer_set_agent_id(struct peer *peer, const uint8_t agent_id[16])
{
	dray_map_del(&peer->p->by_id, &peer->by_id);
	memcpy(peer->agent_id, agent_id, sizeof(peer->agent_id));
	dray_map_add(&peer->p->by_id, &peer->by_id, peer->agent_id, sizeof(peer->agent_id));
}

static struct peer *peer_of(struct peer_fsm *f)
{
	return dray_container_of(f, struct peer, fsm);
}

static void on_changed(struct peer_fsm *f, enum peer_state old, enum peer_event event)
{
	struct peer *peer = peer_of(f);
	const struct peers_deps *d = &peer->p->deps;
	bool visible = f->state == PEER_STATE_READY || old == PEER_STATE_READY ||
		       old == PEER_STATE_DRAINING;
	char id[IDENTITY_TEXT_BYTES], line[STATE_LINE_MAX];

	/* eight digits tell agents apart; `drayctl peers` shows the whole id */
	snprintf(line, sizeof(line), "%s -> %s (%s)%s%s agent=%.8s incarnation=%llu segment=%s",
		 peer_state_name(old), peer_state_name(f->state), peer_event_name(event),
		 *f->why.msg ? ": " : "", f->why.msg, identity_show(peer->agent_id, id),
		 (unsigned long long)peer->incarnation, *peer->segment ? peer->segment : "none");
	if (visible)
		log_of_agent(peer->p, peer->agent_id, DRAY_LOG_INFO, AREA, "%s", line);
	else
		log_debug(AREA, "%s", line);
	if (visible && d->up->changed)
		d->up->changed(d->arg, peer->handle, peer->segment, peer_state_name(old),
			       peer_state_name(f->state),
			       *f->why.msg ? f->why.msg : peer_event_name(event));
}

static int on_dial(struct peer_fsm *f, struct dray_err *reterr)
{
	struct peer *peer = peer_of(f);
	struct peers *p = peer->p;
	int r;

	peer->hello_sent = peer->peer_ready = peer->known = peer->proved = false;
	r = conn_dial(&peer->conn, p->deps.event, p->tls, &peer->addr, &peer_conn_ops, peer,
		      reterr);
	if (r == -ECONNREFUSED) {
		imports_refused(peer);
		posts_refused(peer);
	}
	return r;
}

void peer_announce_drain(struct peer *peer)
{
	struct peers *p = peer->p;
	int64_t left_ms = (p->drain_end_ns - peers_now(p)) / DRAY_NS_PER_MS;
	union pmsg_body m = { .draining = { (uint32_t)dray_max(left_ms, (int64_t)0) } };

	peer_send(peer, PMSG_DRAINING, 0, &m);
}

static int on_up(struct peer_fsm *f, struct dray_err *reterr)
{
	struct peer *peer = peer_of(f);
	struct peers *p = peer->p;
	int r;

	peer->conn->message_max = PMSG_MESSAGE_MAX;
	dray_list_del(&peer->attempts_link);
	r = link_up(peer, reterr);
	if (r < 0)
		return r;
	if (p->draining)
		peer_announce_drain(peer);
	denied_clear(p, peer);
	p->deps.up->up(*p->deps.rails, peer->handle, peer->features);
	imports_ready(peer);
	posts_run(peer);
	incoming_retry(p, peer);
	return 0;
}

static void on_drop(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);

	peer->conn = conn_free(peer->conn);
}

void peer_say_bye(struct peer *peer)
{
	uint32_t code = (uint32_t)peer->fsm.why.code;

	/* ok: an orderly end, after which the peer may repeat its pending requests */
	if (code == DRAY_E_SESSION_CLOSED)
		code = peer->p->draining ? DRAY_OK : DRAY_E_PEER_LOST;
	peer_send(peer, PMSG_BYE, 0, &(union pmsg_body){ .bye = { code } });
}

void peer_set_reached(struct peer *peer, const char *segment)
{
	struct dray_map *m = &peer->p->by_reached;

	dray_map_del(m, &peer->by_reached);
	snprintf(peer->reached, sizeof(peer->reached), "%s", segment);
	dray_map_add(m, &peer->by_reached, peer->reached, strlen(peer->reached));
}

/* No event and no message finds the peer any more. */
static void leave_tables(struct peer *peer)
{
	struct peers *p = peer->p;

	dray_map_del(&p->by_id, &peer->by_id);
	dray_map_del(&p->by_segment, &peer->by_segment);
	dray_map_del(&p->by_reached, &peer->by_reached);
	dray_list_del(&peer->acquirers_link);
	dray_list_del(&peer->attempts_link);
	timers_set(&p->timers, &peer->due, INT64_MAX);
}

/* Removes the peer from the tables. The defer source frees it after the workers have released its link. */
static void retire(struct peer *peer)
{
	struct peers *p = peer->p;

	/* the workers keep the peer under its index until they release the link */
	dray_handles_retire(&p->handles, peer->handle);
	leave_tables(peer);
	dray_list_move(peer->link ? &p->closed : &p->released, &peer->all_link);
	fences_clear(peer);
	offers_free(&peer->offers);
	peers_wake(p);
}

static void on_closed(struct peer_fsm *f, bool was_up)
{
	struct peer *peer = peer_of(f);
	struct peers *p = peer->p;
	const struct peers_deps *d = &p->deps;
	dray_handle handle = peer->handle;
	uint32_t code = hello_loss_code(peer);
	bool quiet;

	if (was_up && !peer->left)
		peer_say_bye(peer);
	peer->conn = conn_free(peer->conn);
	retire(peer);
	if (was_up) {
		p->totals.lost += f->why.code != DRAY_OK && f->why.code != DRAY_E_SESSION_CLOSED;
		/* its grants end once its queue pairs cannot reach our memory any more */
		quiet = !d->up->down(*d->rails, handle);
		if (quiet)
			grants_peer_gone(d->regions, handle);
		d->up->store_gone(*d->exchange, handle, quiet);
		d->up->lost(*d->sessions, handle, code, f->why.msg);
		link_down(peer, handle, code);
		requests_end(peer, code);
		hello_rival_gone(p, peer->agent_id);
	}
	imports_end(peer, code);
	posts_end(peer, code);
	kept_segments_lost(peer, was_up);
}

static void on_heartbeat(struct peer_fsm *f, int64_t rest_ns)
{
	struct peer *peer = peer_of(f);
	union pmsg_body m = { .heartbeat = { .sequence = ++peer->heartbeats,
					     .rest_ms = (uint32_t)(rest_ns / DRAY_NS_PER_MS) } };

	peer_send(peer, PMSG_HEARTBEAT, 0, &m);
	/* many peers are due at once: each would have a turn of the loop of its own */
	conn_flush(peer->conn);
}

static bool on_needed(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);

	return peer->n_kept || !dray_list_empty(&peer->imports) || !dray_list_empty(&peer->posts);
}

static bool on_in_use(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);
	const struct peers_deps *d = &peer->p->deps;

	return on_needed(f) || peer->grants.n || !dray_list_empty(&peer->requests) ||
	       grants_count(peer->p->deps.regions, peer->handle) ||
	       d->up->store_in_use(*d->exchange, peer->handle);
}

static bool on_busy(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	uint64_t started = atomic_load(&peer->link->started);
	bool busy = started != peer->started || started != atomic_load(&peer->link->ended);

	peer->started = started;
	return busy || !dray_list_empty(&peer->requests);
}

static const struct peer_fsm_ops fsm_ops = {
	.changed = on_changed,
	.dial = on_dial,
	.up = on_up,
	.drop = on_drop,
	.closed = on_closed,
	.heartbeat = on_heartbeat,
	.needed = on_needed,
	.in_use = on_in_use,
	.busy = on_busy,
};

static void peer_arm(struct peer *peer)
{
	if (peer->fsm.state != PEER_STATE_CLOSED)
		timers_set(&peer->p->timers, &peer->due,
			   dray_min(peer->fsm.timer_ns, peer->next_timeout_ns));
}

void peer_add_timeout(struct peer *peer, struct peer_timeout *t)
{
	dray_list_add(&peer->timeouts, &t->link);
	peer->next_timeout_ns = dray_min(peer->next_timeout_ns, t->end_ns);
	peer_arm(peer);
}

/* Ends the overdue requests and imports; may close the peer. */
static void expire(struct peer *peer, int64_t now)
{
	struct dray_list due = DRAY_LIST_INIT(due);
	struct peer_timeout *t;

	peer->next_timeout_ns = INT64_MAX;
	dray_list_for_each(&peer->timeouts, one, struct peer_timeout, link) {
		if (one->end_ns <= now)
			dray_list_move(&due, &one->link);
		else
			peer->next_timeout_ns = dray_min(peer->next_timeout_ns, one->end_ns);
	}
	/* a callback may end any of them, which takes it out of its list, and add others */
	while ((t = dray_list_pop(&due, struct peer_timeout, link)))
		t->expired(peer, t);
}

/* Workers report a transfer that starts while this side rests. A transfer that started meanwhile ends the rest. */
static void follow_rest(struct peer *peer)
{
	struct peer_fsm *f = &peer->fsm;

	if (!peer_fsm_is_up(f) || atomic_load(&peer->link->rests) == f->rests)
		return;
	atomic_store(&peer->link->rests, f->rests);
	if (f->rests && on_busy(f))
		peer_use(peer);
}

static void step(struct peer *peer, enum peer_event event, const struct dray_err *why)
{
	peer_step(&peer->fsm, event, peers_now(peer->p), why);
	follow_rest(peer);
	peer_arm(peer);
}

void peer_event(struct peer *peer, enum peer_event event)
{
	step(peer, event, NULL);
}

void peer_event_why(struct peer *peer, enum peer_event event, struct dray_err why)
{
	step(peer, event, &why);
}

void peer_use(struct peer *peer)
{
	if (peer->fsm.rests)
		peer_event(peer, PEER_EVENT_USED);
}

static void handle_due(struct dray_heap_node *node, int64_t now)
{
	struct peer *peer = dray_container_of(node, struct peer, due);

	if (now >= peer->fsm.timer_ns)
		peer_event(peer, PEER_EVENT_TIMER);
	if (now >= peer->next_timeout_ns)
		expire(peer, now);
	peer_arm(peer);
}

int peers_start_timers(struct peers *p)
{
	int64_t accuracy_us = dray_min(p->cfg->peer.heartbeat / 16000, (int64_t)50000);

	return timers_init(&p->timers, p->deps.event, (uint64_t)accuracy_us, TIMER_PRIORITY,
			   handle_due);
}

struct peer *peer_free(struct peer *peer)
{
	dray_list_del(&peer->all_link);
	leave_tables(peer);
	if (peer->handle) {
		dray_handles_retire(&peer->p->handles, peer->handle);
		dray_handles_reuse(&peer->p->handles, peer->handle);
	}
	fences_clear(peer);
	offers_free(&peer->offers);
	conn_free(peer->conn);
	idset_deinit(&peer->grants);
	dray_map_deinit(&peer->requests_by_id);
	stream_table_deinit(&peer->streams);
	/* a link that workers have not released stays allocated: they may be reading it, and the process ends */
	free(peer);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct peer *, peer_free);

int peer_new(struct peer **ret, struct peers *p, const uint8_t agent_id[16], bool initiator,
	     struct dray_err *reterr)
{
	dray_auto(peer_free) struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a peer");
	peer->p = p;
	peer->next_timeout_ns = INT64_MAX;
	dray_list_init(&peer->all_link);
	dray_list_init(&peer->acquirers_link);
	dray_list_init(&peer->attempts_link);
	dray_list_init(&peer->imports);
	dray_list_init(&peer->posts);
	dray_list_init(&peer->requests);
	dray_map_init(&peer->requests_by_id);
	dray_list_init(&peer->timeouts);
	dray_map_init(&peer->fences);
	dray_list_init(&peer->unsent);
	offers_init(&peer->offers);
	peer_fsm_init(&peer->fsm, &fsm_ops, p->cfg, initiator, peers_now(p));
	if (dray_handles_add(&p->handles, peer, &peer->handle) < 0)
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_QUOTA,
			"the agent has %lld peers, as many as limits.peers allows; raise it",
			(long long)p->cfg->limits.peers);
	if (timers_reserve(&p->timers, p->handles.count) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a peer");
	dray_list_add(&p->all, &peer->all_link);
	peer_set_agent_id(peer, agent_id);
	*ret = dray_take(peer);
	return 0;
}

int peer_new_to(struct peer **ret, struct peers *p, const uint8_t agent_id[16], const char *segment,
		struct dray_err *reterr)
{
	struct dray_addr addr;
	int r;

	if (!dray_endpoint_valid(segment))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
			"segment \"%s\" is not an address and port that other hosts can use; export the region again",
			segment);
	r = segment_parse(segment, &addr);
	if (r < 0)
		return dray_err_set(
			reterr, r, DRAY_E_PEER_UNREACHABLE,
			"segment %s is a name, and names are not resolved: set peer.advertise at that agent to an address",
			segment);
	r = peers_check_key(p, &addr, false, reterr);
	if (r == 0)
		r = peer_new(ret, p, agent_id, true, reterr);
	if (r < 0)
		return r;
	(*ret)->addr = addr;
	snprintf((*ret)->segment, sizeof((*ret)->segment), "%s", segment);
	dray_map_add(&p->by_segment, &(*ret)->by_segment, (*ret)->segment, strlen((*ret)->segment));
	return 0;
}

int peer_new_to_any(struct peer **ret, struct peers *p, const char *segment,
		    struct dray_err *reterr)
{
	static const uint8_t any_id[16];
	int r = peer_new_to(ret, p, any_id, segment, reterr);

	if (r < 0)
		return r;
	(*ret)->any_agent = true;
	dray_list_add(&p->attempts, &(*ret)->attempts_link);
	return 0;
}
