/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of one peer as a pure state machine: it reads no clock and does no I/O. Each event carries the time;
 * effects leave through ops. peer.c runs it on the event loop, its unit test in virtual time.
 *
 *   IDLE -> CONNECTING -> HANDSHAKING -> HELLO -> READY <-> DRAINING -> CLOSED     we connect
 *   IDLE -> HELLO -> READY                                                        the peer connected
 *
 * CLAIM is beside HELLO: another connection of the same agent id is still up, and must be proved dead before this
 * connection replaces it. After a failed attempt of ours the state is BACKOFF, then CONNECTING again while the peer
 * is needed. CLOSED is final: the next connection is a new peer.
 *
 * A side rests when no transfer or request has been in progress for some time, and announces that to the other side. While both
 * rest, heartbeats are rare and the limit of silence is longer. A side that has work again says so at once, the other
 * answers at once, and the usual limit of silence applies again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/config.h"

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

#define PEER_EVENTS(X)                                                                       \
	X(DIAL, "dial")           /* connect to the peer, without waiting for a back-off */  \
	X(ACCEPTED, "accepted")   /* the peer connected, and its HELLO is valid */           \
	X(CONNECTED, "connected") /* TCP */                                                  \
	X(SECURED, "secured")     /* TLS */                                                  \
	X(RIVAL, "rival")         /* the same agent id is up on another connection */        \
	X(CLEARED, "cleared")     /* that connection has ended */                            \
	X(AGREED, "agreed")       /* READY was sent or received */                           \
	X(FAILED, "failed")       /* the connection failed; retry if the peer is needed */   \
	X(REFUSED, "refused")     /* a retry would not help */                               \
	X(DRAINS, "drains")       /* the peer announced that it drains */                    \
	X(RESUMED, "resumed")     /* the peer accepts new work again */                      \
	X(HEARTBEAT, "heartbeat") /* of the peer; f->peer_rest_ns is set from it */          \
	X(USED, "used")           /* a transfer or request begins */                         \
	X(UNNEEDED, "unneeded")   /* no import or kept segment may need the peer any more */ \
	X(CLOSE, "close")         /* our decision */                                         \
	X(TIMER, "timer")

#define PEER_ENUM_STATE_(name, text) PEER_STATE_##name,
#define PEER_ENUM_EVENT_(name, text) PEER_EVENT_##name,
enum peer_state { PEER_STATES(PEER_ENUM_STATE_) PEER_STATE_N };
enum peer_event { PEER_EVENTS(PEER_ENUM_EVENT_) PEER_EVENT_N };

struct peer_fsm;

struct peer_fsm_ops {
	/* The state changed from `old`; runs before the effects of the new state. */
	void (*changed)(struct peer_fsm *f, enum peer_state old, enum peer_event event);
	/* Start to connect. Below 0: failed at once, with reterr. */
	int (*dial)(struct peer_fsm *f, struct dray_err *reterr);
	/* READY: the peer may be used. Below 0 as with dial. */
	int (*up)(struct peer_fsm *f, struct dray_err *reterr);
	/* The attempt ended: close its connection. */
	void (*drop)(struct peer_fsm *f);
	/* The peer is CLOSED; was_up: it had been READY. */
	void (*closed)(struct peer_fsm *f, bool was_up);
	/* Send a heartbeat. rest_ns: the interval while this side rests, 0 while it does not rest. */
	void (*heartbeat)(struct peer_fsm *f, int64_t rest_ns);
	/* An import or a kept segment waits for READY. */
	bool (*needed)(struct peer_fsm *f);
	/* One side holds grants of the other, or the peer is needed. */
	bool (*in_use)(struct peer_fsm *f);
	/* Transfers or requests are in progress, or have been since the last call. */
	bool (*busy)(struct peer_fsm *f);
};

struct peer_fsm {
	const struct peer_fsm_ops *ops;
	const struct dray_config *cfg;
	enum peer_state state;
	bool initiator;
	int64_t since_ns;
	int64_t attempt_end_ns;    /* deadline of CONNECTING to CLAIM together */
	int64_t retry_ns;          /* end of BACKOFF */
	int64_t heard_ns, sent_ns; /* last message in and out; set by the owner */
	int64_t used_ns;           /* last time that the peer was in use */
	int64_t busy_ns;           /* last time that a transfer or request was in progress */
	int64_t silence_ns;        /* limit of silence; set by the owner before READY */
	int64_t peer_rest_ns; /* heartbeat interval of the resting peer, 0: it does not rest; set by the owner */
	bool rests;          /* this side rests */
	bool slow;           /* both sides rest */
	int64_t timer_ns;    /* when TIMER is due; INT64_MAX: never */
	unsigned failures;   /* consecutive failed attempts */
	struct dray_err why; /* the reason for the state */
};

void peer_fsm_init(struct peer_fsm *f, const struct peer_fsm_ops *ops,
		   const struct dray_config *cfg, bool initiator, int64_t now);

/* why: the reason, for FAILED, REFUSED, DRAINS and CLOSE. An event that the state does not expect is ignored. */
void peer_step(struct peer_fsm *f, enum peer_event event, int64_t now, const struct dray_err *why);

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
