/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/fsm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
		   const struct peer_fsm_config *cfg, bool initiator, int64_t now)
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

void peer_fsm_set_reason(struct peer_fsm *f, uint32_t code, const char *why)
{
	f->code = code;
	if (why != f->why)
		snprintf(f->why, sizeof(f->why), "%s", why ? why : "");
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
	f->retry_ns = now + backoff_spread(backoff_pause(f->failures, f->cfg->backoff_min_ns,
							 f->cfg->backoff_max_ns));
	set_state(f, PEER_STATE_BACKOFF, event, now);
	f->ops->drop(f);
}

static void go_connecting(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	f->attempt_end_ns = now + f->cfg->connect_timeout_ns;
	set_state(f, PEER_STATE_CONNECTING, event, now);
	if (f->ops->dial(f) < 0)
		go_failed(f, PEER_EVENT_FAILED, now);
}

static void go_ready(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	f->failures = 0;
	f->heard_ns = f->sent_ns = f->used_ns = f->busy_ns = now;
	peer_fsm_set_reason(f, DRAY_OK, "");
	set_state(f, PEER_STATE_READY, event, now);
	if (f->ops->up(f) < 0)
		go_closed(f, PEER_EVENT_FAILED, now);
}

static int step_idle(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	if (event == PEER_EVENT_DIAL) {
		go_connecting(f, event, now);
		return 0;
	}
	if (event == PEER_EVENT_ACCEPTED) {
		f->attempt_end_ns = now + f->cfg->connect_timeout_ns;
		set_state(f, PEER_STATE_HELLO, event, now);
		return 0;
	}
	return -EPROTO;
}

static int step_attempt(struct peer_fsm *f, enum peer_event event, int64_t now, uint32_t code,
			const char *why)
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
			return 0;
		}
	}
	if (event == PEER_EVENT_AGREED && f->state == PEER_STATE_HELLO) {
		go_ready(f, event, now);
	} else if (event == PEER_EVENT_FAILED) {
		peer_fsm_set_reason(f, code, why);
		go_failed(f, event, now);
	} else if (event == PEER_EVENT_TIMER) {
		if (now < f->attempt_end_ns)
			return 0;
		peer_fsm_set_reason(f, DRAY_E_PEER_UNREACHABLE,
				    f->state == PEER_STATE_CONNECTING ?
					    "no answer in time" :
					    "the handshake took too long");
		go_failed(f, event, now);
	} else if (event == PEER_EVENT_UNNEEDED) {
		/* an attempt that the peer began goes on, because the peer needs us */
		if (f->initiator && !f->ops->needed(f)) {
			peer_fsm_set_reason(f, DRAY_OK, "not needed any more");
			go_closed(f, event, now);
		}
	} else {
		return -EPROTO;
	}
	return 0;
}

/* While both sides rest, the heartbeats of all peers are sent together, so that an idle agent wakes up rarely. */
static int64_t heartbeat_due(const struct peer_fsm *f)
{
	int64_t rest = f->cfg->rest_heartbeat_ns;

	return f->slow ? (f->sent_ns / rest + 1) * rest : f->sent_ns + f->cfg->heartbeat_ns;
}

static int64_t silence_limit(const struct peer_fsm *f)
{
	return f->slow ? dray_max(f->silence_ns, 3 * f->peer_rest_ns) : f->silence_ns;
}

static void send_heartbeat(struct peer_fsm *f, int64_t now)
{
	f->sent_ns = now;
	f->ops->heartbeat(f);
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
	if (now - f->timer_ns > f->cfg->heartbeat_ns)
		f->heard_ns = dray_max(f->heard_ns, now - silence_limit(f) + f->cfg->heartbeat_ns);

	if (now - f->heard_ns >= silence_limit(f)) {
		peer_fsm_set_reason(f, DRAY_E_PEER_LOST, "");
		snprintf(f->why, sizeof(f->why), "silent for %lld ms",
			 (long long)((now - f->heard_ns) / 1000000));
		go_closed(f, PEER_EVENT_TIMER, now);
		return;
	}
	if (f->ops->in_use(f))
		f->used_ns = now;
	/* the side that connected closes an idle connection; the other may keep it open without grants */
	if (f->initiator && now - f->used_ns >= f->cfg->idle_ns) {
		peer_fsm_set_reason(f, DRAY_OK, "not in use");
		go_closed(f, PEER_EVENT_TIMER, now);
		return;
	}
	if (f->ops->busy(f))
		up_used(f, now);
	else if (!f->rests && now - f->busy_ns >= f->cfg->rest_after_ns)
		set_rests(f, true, now);
	if (now >= heartbeat_due(f))
		send_heartbeat(f, now);
}

static int step_up(struct peer_fsm *f, enum peer_event event, int64_t now, uint32_t code,
		   const char *why)
{
	if (event == PEER_EVENT_TIMER) {
		up_timer(f, now);
	} else if (event == PEER_EVENT_HEARTBEAT) {
		if (settle_pace(f, now))
			send_heartbeat(f, now);
	} else if (event == PEER_EVENT_USED) {
		up_used(f, now);
	} else if (event == PEER_EVENT_FAILED) {
		peer_fsm_set_reason(f, code, why);
		go_closed(f, event, now);
	} else if (event == PEER_EVENT_DRAINS) {
		peer_fsm_set_reason(f, code, why);
		if (f->state != PEER_STATE_DRAINING)
			set_state(f, PEER_STATE_DRAINING, event, now);
	} else if (event == PEER_EVENT_RESUMED) {
		if (f->state == PEER_STATE_DRAINING) {
			peer_fsm_set_reason(f, DRAY_OK, "");
			set_state(f, PEER_STATE_READY, event, now);
		}
	} else if (event != PEER_EVENT_UNNEEDED) {
		return -EPROTO;
	}
	return 0;
}

static int step_backoff(struct peer_fsm *f, enum peer_event event, int64_t now)
{
	if (event == PEER_EVENT_UNNEEDED || (event == PEER_EVENT_TIMER && now >= f->retry_ns)) {
		if (!f->ops->needed(f))
			go_closed(f, event, now);
		else if (event == PEER_EVENT_TIMER)
			go_connecting(f, event, now);
		return 0;
	}
	return event == PEER_EVENT_TIMER ? 0 : -EPROTO;
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
	return f->initiator ? dray_min(t, f->used_ns + f->cfg->idle_ns) : t;
}

int peer_step(struct peer_fsm *f, enum peer_event event, int64_t now, uint32_t code,
	      const char *why)
{
	int r = 0;

	if (f->state == PEER_STATE_CLOSED)
		return -EPROTO;
	if (event == PEER_EVENT_CLOSE || event == PEER_EVENT_REFUSED) {
		peer_fsm_set_reason(f, code, why);
		go_closed(f, event, now);
	} else if (f->state == PEER_STATE_IDLE) {
		r = step_idle(f, event, now);
	} else if (f->state == PEER_STATE_BACKOFF) {
		r = step_backoff(f, event, now);
	} else if (peer_fsm_is_up(f)) {
		r = step_up(f, event, now, code, why);
	} else {
		r = step_attempt(f, event, now, code, why);
	}
	f->timer_ns = next_timer(f);
	return r;
}
