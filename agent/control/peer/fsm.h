/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of one peer as a pure state machine: it reads no clock and does no I/O. Time comes in with each
 * event, effects go out through ops. agent/control/peer/peer.c runs it on the event loop, its unit test in
 * virtual time.
 *
 *   IDLE -> CONNECTING -> HANDSHAKING -> HELLO -> READY <-> DRAINING -> CLOSED     we connect
 *   IDLE -> HELLO -> READY                                                        the peer connected
 *
 * CLAIM stands beside HELLO: another connection of the same agent id is still up, and must be shown
 * dead before this one takes its place. An attempt of ours that fails goes to BACKOFF and from there to
 * CONNECTING again while somebody wants the peer. CLOSED is the end: what comes after is a new peer.
 *
 * A side that is up rests when nothing has been under way for some time, and tells the other. While both
 * rest, heartbeats are rare and silence is borne longer; a side that has work again says so at once, hears
 * from the other at once, and bears no more silence from then on than ever.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_FSM_H
#define DRAY_AGENT_CONTROL_PEER_FSM_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"

#define PEER_STATES(X)                \
	X(IDLE, "idle")               \
	X(CONNECTING, "connecting")   \
	X(HANDSHAKING, "handshaking") \
	X(HELLO, "hello")             \
	X(CLAIM, "claim")             \
	X(READY, "ready")             \
	X(DRAINING, "draining")       \
	X(BACKOFF, "backoff")         \
	X(CLOSED, "closed")

#define PEER_EVENTS(X)                                                                          \
	X(DIAL, "dial")           /* connect to it */                                           \
	X(ACCEPTED, "accepted")   /* it connected, and its HELLO is in order */                 \
	X(CONNECTED, "connected") /* TCP */                                                     \
	X(SECURED, "secured")     /* TLS */                                                     \
	X(RIVAL, "rival")         /* the same agent id is up on another connection */           \
	X(CLEARED, "cleared")     /* and that one is gone */                                    \
	X(AGREED, "agreed")       /* READY was sent or received */                              \
	X(FAILED, "failed")       /* the connection failed: try again where that makes sense */ \
	X(REFUSED, "refused")     /* trying again would not help */                             \
	X(DRAINS, "drains")       /* the peer said that it drains */                            \
	X(RESUMED, "resumed")     /* and takes new work again */                                \
	X(HEARTBEAT, "heartbeat") /* it came; f->peer_rest_ns is what it said */                \
	X(USED, "used")           /* a transfer or request begins */                            \
	X(UNWANTED, "unwanted")   /* nobody waits for it any more */                            \
	X(CLOSE, "close")         /* our decision */                                            \
	X(TIMER, "timer")

#define PEER_ENUM_STATE_(name, text) PEER_STATE_##name,
#define PEER_ENUM_EVENT_(name, text) PEER_EVENT_##name,
enum peer_state { PEER_STATES(PEER_ENUM_STATE_) PEER_STATE_N };
enum peer_event { PEER_EVENTS(PEER_ENUM_EVENT_) PEER_EVENT_N };

struct peer_fsm;

struct peer_fsm_ops {
	/* The state changed from `old`; runs before the effects of the new state. */
	void (*changed)(struct peer_fsm *f, enum peer_state old, enum peer_event event);
	/* Start to connect. Below 0: failed at once, f->code and f->why say why. */
	int (*dial)(struct peer_fsm *f);
	/* READY: the peer may be used. Below 0 as with dial. */
	int (*up)(struct peer_fsm *f);
	/* The attempt is over: drop its connection. */
	void (*drop)(struct peer_fsm *f);
	/* CLOSED, connection and all; was_up: it had been READY. */
	void (*closed)(struct peer_fsm *f, bool was_up);
	/* Send one, which says whether f->rests. */
	void (*heartbeat)(struct peer_fsm *f);
	/* Somebody waits for it to become READY. */
	bool (*wanted)(struct peer_fsm *f);
	/* It holds grants of ours, or we of it. */
	bool (*in_use)(struct peer_fsm *f);
	/* Transfers or requests are under way, or have been since the last call. */
	bool (*busy)(struct peer_fsm *f);
};

struct peer_fsm_config {
	int64_t connect_timeout_ns;
	int64_t backoff_min_ns, backoff_max_ns;
	int64_t heartbeat_ns;      /* what we promise the peer */
	int64_t rest_heartbeat_ns; /* and while both sides rest; not below heartbeat_ns */
	int64_t rest_after_ns;     /* without work */
	int64_t idle_ns;
};

struct peer_fsm {
	const struct peer_fsm_ops *ops;
	const struct peer_fsm_config *cfg;
	enum peer_state state;
	bool initiator;
	int64_t since_ns;
	int64_t attempt_end_ns;    /* limit of CONNECTING to CLAIM together */
	int64_t retry_ns;          /* end of BACKOFF */
	int64_t heard_ns, sent_ns; /* last message in and out; kept by the owner */
	int64_t used_ns;           /* last time it was in use */
	int64_t busy_ns;           /* last time something was under way */
	int64_t silence_ns;        /* limit of silence; set by the owner before READY */
	int64_t peer_rest_ns; /* the peer rests, and promised this; 0: it does not. The owner's */
	bool rests;           /* nothing is under way on this side */
	bool slow;            /* neither on the other */
	int64_t timer_ns;     /* when TIMER is due; INT64_MAX: never */
	unsigned failures;    /* attempts in a row */
	uint32_t code;        /* why it is in this state */
	char why[DRAY_ERR_MSG_MAX];
};

void peer_fsm_init(struct peer_fsm *f, const struct peer_fsm_ops *ops,
		   const struct peer_fsm_config *cfg, bool initiator, int64_t now);

/*
 * code and why: the reason, for FAILED, REFUSED, DRAINS and CLOSE; why may be f->why itself. 0, or -EPROTO
 * where the event has no meaning in this state: nothing happens then.
 * f->timer_ns is up to date afterwards.
 */
int peer_step(struct peer_fsm *f, enum peer_event event, int64_t now, uint32_t code,
	      const char *why);

/* The peer can be sent requests. */
static inline bool peer_fsm_is_up(const struct peer_fsm *f)
{
	return f->state == PEER_STATE_READY || f->state == PEER_STATE_DRAINING;
}

/* Between the start of an attempt and READY. */
static inline bool peer_fsm_is_attempt(const struct peer_fsm *f)
{
	return f->state >= PEER_STATE_CONNECTING && f->state <= PEER_STATE_CLAIM;
}

const char *peer_state_name(enum peer_state s);
const char *peer_event_name(enum peer_event e);

#endif
