/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/fsm.h"

#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define TO(s) (1u << PEER_STATE_##s)

/* The states that may follow each state. */
static const uint32_t peer_next[PEER_STATE_N] = {
	[PEER_STATE_IDLE] = TO(CONNECTING) | TO(HELLO) | TO(CLOSED),
	[PEER_STATE_CONNECTING] = TO(HANDSHAKING) | TO(BACKOFF) | TO(CLOSED),
	[PEER_STATE_HANDSHAKING] = TO(HELLO) | TO(BACKOFF) | TO(CLOSED),
	[PEER_STATE_HELLO] = TO(CLAIM) | TO(READY) | TO(BACKOFF) | TO(CLOSED),
	[PEER_STATE_CLAIM] = TO(HELLO) | TO(BACKOFF) | TO(CLOSED),
	[PEER_STATE_READY] = TO(DRAINING) | TO(CLOSED),
	[PEER_STATE_DRAINING] = TO(READY) | TO(CLOSED),
	[PEER_STATE_BACKOFF] = TO(CONNECTING) | TO(CLOSED),
	[PEER_STATE_CLOSED] = 0,
};

#define PEER_NAME_STATE_(name, text) [PEER_STATE_##name] = text,
#define PEER_NAME_EVENT_(name, text) [PEER_EVENT_##name] = text,
static const char *const state_names[PEER_STATE_N] = { PEER_STATES(PEER_NAME_STATE_) };
static const char *const event_names[PEER_EVENT_N] = { PEER_EVENTS(PEER_NAME_EVENT_) };

const char *peer_state_name(enum peer_state s)
{
	return state_names[s];
}

const char *peer_event_name(enum peer_event e)
{
	return event_names[e];
}

void peer_fsm_init(struct peer_fsm *f, const struct peer_fsm_ops *ops,
		   const struct dray_config *cfg, bool initiator, int64_t now)
{
	*f = (struct peer_fsm){
		.ops = ops,
		.cfg = cfg,
		.state = PEER_STATE_IDLE,
		.initiator = initiator,
		.since_ns = now,
		.heard_ns = now,
		.sent_ns = now,
		.used_ns = now,
		.timer_ns = INT64_MAX,
	};
}

/* The one writer of f->state. */
static void set_state(struct peer_fsm *f, enum peer_state next, enum peer_event event, int64_t now)
{
	enum peer_state old = f->state;

	dray_assert(peer_next[old] & 1u << next);
	f->state = next;
	f->since_ns = now;
	f->ops->changed(f, old, event);
}

static void go_closed(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	bool was_up = peer_fsm_is_up(f);

	set_state(f, PEER_STATE_CLOSED, event, now);
	f->ops->closed(f, was_up);
}

static void go_failed(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	if (!f->initiator || !f->ops->needed(f)) {
		go_closed(f, event, now);
		return;
	}
	f->failures++;
	f->retry_ns = now + backoff_spread(backoff_pause(f->failures, f->cfg->peer.backoff_min,
							 f->cfg->peer.backoff_max));
	set_state(f, PEER_STATE_BACKOFF, event, now);
	f->ops->drop(f);
}

static void go_connecting(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	struct dray_err why = DRAY_ERR_NULL;

	f->attempt_end_ns = now + f->cfg->peer.connect_timeout;
	set_state(f, PEER_STATE_CONNECTING, event, now);
	if (f->ops->dial(f, &why) < 0) {
		f->why = why;
		go_failed(f, PEER_EVENT_FAILED, now);
	}
}

static void go_ready(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	f->failures = 0;
	f->heard_ns = f->sent_ns = f->used_ns = f->busy_ns = now;
	f->why = DRAY_ERR_NULL;
	set_state(f, PEER_STATE_READY, event, now);
	if (f->ops->up(f, &f->why) < 0)
		go_closed(f, PEER_EVENT_FAILED, now);
}

static void step_idle(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	if (event == PEER_EVENT_DIAL) {
		go_connecting(f, event, now);
	} else if (event == PEER_EVENT_ACCEPTED) {
		f->attempt_end_ns = now + f->cfg->peer.connect_timeout;
		set_state(f, PEER_STATE_HELLO, event, now);
	}
}

static void step_attempt(struct peer_fsm *f, enum peer_event event, int64_t now,
			 const struct dray_err *why)
{
	/* the event that each state of an attempt waits for */
	static const struct {
		enum peer_state from;
		enum peer_event event;
		enum peer_state to;
	} steps[] = {
		{ PEER_STATE_CONNECTING, PEER_EVENT_CONNECTED, PEER_STATE_HANDSHAKING },
		{ PEER_STATE_HANDSHAKING, PEER_EVENT_SECURED, PEER_STATE_HELLO },
		{ PEER_STATE_HELLO, PEER_EVENT_RIVAL, PEER_STATE_CLAIM },
		{ PEER_STATE_CLAIM, PEER_EVENT_CLEARED, PEER_STATE_HELLO },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(steps); i++) {
		if (steps[i].from == f->state && steps[i].event == event) {
			set_state(f, steps[i].to, event, now);
			return;
		}
	}
	if (event == PEER_EVENT_AGREED && f->state == PEER_STATE_HELLO) {
		go_ready(f, event, now);
	} else if (event == PEER_EVENT_FAILED) {
		f->why = *why;
		go_failed(f, event, now);
	} else if (event == PEER_EVENT_TIMER && now >= f->attempt_end_ns) {
		f->why =
			dray_err_of(DRAY_E_PEER_UNREACHABLE, f->state == PEER_STATE_CONNECTING ?
								     "no answer in time" :
								     "the handshake took too long");
		go_failed(f, event, now);
	} else if (event == PEER_EVENT_UNNEEDED && f->initiator && !f->ops->needed(f)) {
		/* an attempt that the peer began continues, because the peer needs this agent */
		f->why = dray_err_of(DRAY_OK, "not needed any more");
		go_closed(f, event, now);
	}
}

static int64_t rest_interval(const struct peer_fsm *f)
{
	return dray_max(f->cfg->peer.heartbeat, f->cfg->peer.rest_heartbeat);
}

/* While both sides rest, the heartbeats of all peers are sent together, so that an idle agent wakes up rarely. */
static int64_t heartbeat_due(const struct peer_fsm *f)
{
	int64_t rest = rest_interval(f);

	return f->slow ? (f->sent_ns / rest + 1) * rest : f->sent_ns + f->cfg->peer.heartbeat;
}

static int64_t silence_limit(const struct peer_fsm *f)
{
	return f->slow ? dray_max(f->silence_ns, 3 * f->peer_rest_ns) : f->silence_ns;
}

static void send_heartbeat(struct peer_fsm *f, int64_t now)
{
	f->sent_ns = now;
	f->ops->heartbeat(f, f->rests ? rest_interval(f) : 0);
}

/* One of the sides began or ended to rest. True if that ends the slow pace. */
static bool settle_pace(struct peer_fsm *f, int64_t now)
{
	bool was = f->slow;

	f->slow = f->rests && f->peer_rest_ns;
	if (!was || f->slow)
		return false;
	/* its silence so far was within the interval that it had announced */
	f->heard_ns = now;
	return true;
}

static void set_rests(struct peer_fsm *f, bool rests, int64_t now)
{
	f->rests = rests;
	send_heartbeat(f, now);
	settle_pace(f, now);
}

static void up_used(struct peer_fsm *f, int64_t now)
{
	f->busy_ns = now;
	if (f->rests)
		set_rests(f, false, now);
}

static void up_timer(struct peer_fsm *f, int64_t now)
{
	/*
	 * If the timer is late by more than a heartbeat, this process was stopped or starved, and messages of the
	 * peer may be waiting in the socket: give the peer one more heartbeat interval.
	 */
	if (now - f->timer_ns > f->cfg->peer.heartbeat)
		f->heard_ns =
			dray_max(f->heard_ns, now - silence_limit(f) + f->cfg->peer.heartbeat);

	if (now - f->heard_ns >= silence_limit(f)) {
		f->why = dray_err_of(DRAY_E_PEER_LOST, "silent for %lld ms",
				     (long long)((now - f->heard_ns) / 1000000));
		go_closed(f, PEER_EVENT_TIMER, now);
		return;
	}
	if (f->ops->in_use(f))
		f->used_ns = now;
	/* the side that connected closes an idle connection; the other may keep it open without grants */
	if (f->initiator && now - f->used_ns >= f->cfg->peer.idle_timeout) {
		f->why = dray_err_of(DRAY_OK, "not in use");
		go_closed(f, PEER_EVENT_TIMER, now);
		return;
	}
	if (f->ops->busy(f))
		up_used(f, now);
	else if (!f->rests && now - f->busy_ns >= 3 * f->cfg->peer.heartbeat)
		set_rests(f, true, now);
	if (now >= heartbeat_due(f))
		send_heartbeat(f, now);
}

static void step_up(struct peer_fsm *f, enum peer_event event, int64_t now,
		    const struct dray_err *why)
{
	if (event == PEER_EVENT_TIMER) {
		up_timer(f, now);
	} else if (event == PEER_EVENT_HEARTBEAT) {
		if (settle_pace(f, now))
			send_heartbeat(f, now);
	} else if (event == PEER_EVENT_USED) {
		up_used(f, now);
	} else if (event == PEER_EVENT_FAILED) {
		f->why = *why;
		go_closed(f, event, now);
	} else if (event == PEER_EVENT_DRAINS) {
		f->why = *why;
		if (f->state != PEER_STATE_DRAINING)
			set_state(f, PEER_STATE_DRAINING, event, now);
	} else if (event == PEER_EVENT_RESUMED && f->state == PEER_STATE_DRAINING) {
		f->why = DRAY_ERR_NULL;
		set_state(f, PEER_STATE_READY, event, now);
	}
}

static void step_backoff(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	bool retry = event == PEER_EVENT_DIAL || (event == PEER_EVENT_TIMER && now >= f->retry_ns);

	if ((retry || event == PEER_EVENT_UNNEEDED) && !f->ops->needed(f))
		go_closed(f, event, now);
	else if (retry)
		go_connecting(f, event, now);
}

static int64_t next_timer(const struct peer_fsm *f)
{
	int64_t t;

	if (peer_fsm_is_attempt(f))
		return f->attempt_end_ns;
	if (f->state == PEER_STATE_BACKOFF)
		return f->retry_ns;
	if (!peer_fsm_is_up(f))
		return INT64_MAX;
	t = dray_min(heartbeat_due(f), f->heard_ns + silence_limit(f));
	return f->initiator ? dray_min(t, f->used_ns + f->cfg->peer.idle_timeout) : t;
}

void peer_step(struct peer_fsm *f, enum peer_event event, int64_t now, const struct dray_err *why)
{
	if (f->state == PEER_STATE_CLOSED)
		return;
	if (event == PEER_EVENT_CLOSE || event == PEER_EVENT_REFUSED) {
		f->why = *why;
		go_closed(f, event, now);
	} else if (f->state == PEER_STATE_IDLE) {
		step_idle(f, event, now);
	} else if (f->state == PEER_STATE_BACKOFF) {
		step_backoff(f, event, now);
	} else if (peer_fsm_is_up(f)) {
		step_up(f, event, now, why);
	} else {
		step_attempt(f, event, now, why);
	}
	f->timer_ns = next_timer(f);
}
