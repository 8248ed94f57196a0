/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Who owns what: struct peers owns everything. A stranger owns the connection of an accepted socket
 * until its HELLO is in order; then a peer takes the connection over. A peer is one agent over one
 * control connection: after a loss, its handle is dead, and the next connection to the same agent is a
 * new peer. It stays in memory until the workers have let go of its link. Peers are freed from the
 * defer source alone, so that a callback never loses the peer under its feet.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_INTERNAL_H
#define DRAY_AGENT_CONTROL_PEER_INTERNAL_H

#include "agent/control/peer/conn.h"
#include "agent/control/peer/listener.h"
#include "agent/control/peer/peer.h"
#include "agent/control/peer/fsm.h"
#include "agent/control/peer/stream_table.h"
#include "agent/model/peer_link.h"
#include "lib/idset.h"
#include "lib/map.h"
#include "lib/list.h"

#define AREA "peer"
#define SEGMENT_MAX 256 /* as in HELLO */
/* The longest interval of heartbeats that a peer is believed; of the configuration's, too. */
#define HEARTBEAT_MS_MAX 60000u
#define NONCE_SIZE 16

/* What a connection that has not shown its HELLO yet may send in one message. */
#define STRANGER_MESSAGE_MAX 4096

struct peers {
	struct peers_deps deps;
	sd_event *event;
	const struct dray_config *cfg;
	struct tls *tls;
	struct peer_fsm_config fsm_cfg;
	struct dray_handles handles; /* of peers that are not closed */
	struct dray_handles imports;
	struct dray_map by_id;   /* struct peer, by agent id, not closed */
	struct dray_list all;    /* not closed */
	struct dray_list closed; /* wait for their workers, then for the defer source */
	struct dray_list listeners;
	struct dray_list strangers; /* oldest first */
	uint32_t n_strangers;
	struct dray_list late_fences; /* for peers that are gone already */
	struct dray_list wants;       /* segments to stay connected to */
	unsigned n_probes;            /* of ours, under way */
	sd_event_source *stranger_timer, *defer;
	char segment[SEGMENT_MAX + 1];
	uint64_t lost_total, strangers_refused;
	bool changed; /* up->changed is due */
	bool draining, stopping;
	int64_t drain_end_ns;
	void (*stop_done)(void *arg);
	void *stop_arg;
};

enum request_type {
	REQUEST_IMPORT,
	REQUEST_NOTIFY,
	REQUEST_FENCE,
	REQUEST_RESET,
	REQUEST_PROBE,
	REQUEST_QP_CONNECT,
	REQUEST_QP_CLOSE,
	REQUEST_STAGE,
};

/* A request of ours that waits for its answer. */
struct request {
	struct dray_list link;
	uint64_t id;
	int64_t end_ns;
	enum request_type type;
	union {
		struct import *import;
		uint64_t grant;
		uint64_t stream_id;
		struct {
			peer_notify_fn notify_fn;
			void *notify_arg;
		};
		struct {
			peer_qp_fn qp_fn;
			void *qp_arg;
		};
		struct {
			peer_stage_fn stage_fn;
			void *stage_arg;
		};
	};
};

/* A FENCE of the peer that waits for peers_fence_ack(). */
struct fence {
	struct dray_list link;
	uint64_t grant, request_id;
};

struct late_fence {
	struct dray_list link;
	dray_handle peer, grant;
};

/* One call of peer_import(). */
struct import {
	struct dray_list link; /* in peer->imports */
	struct peers *p;
	struct peer *peer;
	char segment[PMSG_TOKEN_SEGMENT_MAX + 1];
	dray_handle id;
	struct pmsg_token token;
	struct request *request; /* NULL until it is sent */
	int64_t end_ns;
	peer_import_fn fn;
	void *arg;
};

struct peer {
	struct peers *p;
	struct dray_list all_link;
	struct dray_map_node by_id; /* of peers->by_id */
	dray_handle handle;         /* 0 once closed */
	struct peer_fsm fsm;
	struct conn *conn;
	sd_event_source *timer;
	int64_t timer_ns;     /* armed for; INT64_MAX: off */
	int64_t due_ns;       /* no request or import ends before */
	uint8_t agent_id[16]; /* expected, proved once `known` */
	uint64_t incarnation; /* of a known peer */
	bool known;
	bool hello_sent;   /* on this connection */
	bool peer_ready;   /* we connected, and READY has come */
	bool left;         /* said BYE in good order */
	bool any_agent;    /* agent_id is whatever HELLO shows */
	unsigned wants;    /* that are for it */
	uint64_t features; /* that both sides have */
	uint8_t nonce[NONCE_SIZE], peer_nonce[NONCE_SIZE];
	char segment[SEGMENT_MAX + 1];
	struct dray_addr addr; /* that we connect to, or that it connected from */
	uint32_t peer_heartbeat_ms;
	uint64_t next_request, heartbeats;
	uint64_t started; /* of the link's, when last looked at */
	struct dray_list imports;
	struct dray_list requests; /* oldest first */
	struct dray_list fences;
	struct idset grants; /* that we hold of it */
	struct stream_table streams;
	struct peer_link *link; /* NULL before READY and after the workers let go */
};

/* A connection that was accepted and not yet understood. */
struct stranger {
	struct dray_list link;
	struct peers *p;
	int fd; /* -1 once conn has it */
	sd_event_source *io;
	struct conn *conn; /* TLS */
	int64_t end_ns;
	struct dray_addr from;
	bool spoke; /* sent at least one byte */
	bool held;  /* a whole stream hello, kept until its peer is READY */
	uint8_t nonce[NONCE_SIZE];
	uint8_t hello[PMSG_STREAM_HELLO_SIZE];
	size_t n_hello;
};

/* --- peer.c ---------------------------------------------------------------------------------- */

/* Monotonic time of this turn of the loop. */
int64_t peers_now(struct peers *p);
/* Runs the defer source soon. */
void peers_wake(struct peers *p);
/* A peer in state IDLE. agent_id: expected. Errors: quota, no_memory. */
int peer_new(struct peer **ret, struct peers *p, const uint8_t agent_id[16], bool initiator,
	     struct dray_err *reterr);
/* Steps the machine and arms the timer. */
void peer_event(struct peer *peer, enum peer_event event, uint32_t code, const char *why);
/* A transfer or a request begins. */
void peer_use(struct peer *peer);
void peer_close(struct peer *peer, uint32_t code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A request or import of the peer ends at that time at the latest. */
void peer_due(struct peer *peer, int64_t end_ns);
const char *peer_show(const struct peer *peer, char buf[64]);

/* --- peer_table.c ---------------------------------------------------------------------------- */

void table_add(struct peers *p, struct peer *peer);
void table_del(struct peer *peer);
/* Closed peers have no handle. NULL if unknown. */
struct peer *table_get(struct peers *p, dray_handle handle);
/* The peer of this id that is up, other than `not`. */
struct peer *table_find_up(struct peers *p, const uint8_t agent_id[16], const struct peer *except);
/* One that we try to reach at this segment. */
struct peer *table_find_attempt(struct peers *p, const uint8_t agent_id[16], const char *segment);
/* The agent id of one that had none yet. */
void table_name(struct peer *peer, const uint8_t agent_id[16]);
#define table_for_each_of(p, agent_id, it) \
	dray_map_for_each_of(&(p)->by_id, agent_id, 16, it, struct peer, by_id)

/* --- peer_hello.c ---------------------------------------------------------------------------- */

extern const struct conn_ops peer_conn_ops;
void hello_send(struct peers *p, struct conn *c, const uint8_t nonce[NONCE_SIZE]);
/* Takes the stranger's connection over where its HELLO is in order, else refuses it. Consumes the stranger. */
void hello_accept(struct stranger *s, const struct pmsg_header *h, const uint8_t *body);
/* Decides what becomes of a connection whose HELLO is known, now or once its rival is gone. */
void hello_settle(struct peer *peer);
/* `peer` is not up any more, or has answered a probe: those that claim its place are told. */
void hello_rival_gone(struct peers *p, const uint8_t agent_id[16]);
void hello_rival_alive(struct peer *rival);
/* What the loss of this peer is called: incarnation, where a later one claims its place, else code. */
uint32_t hello_loss_code(const struct peer *peer, uint32_t code);

/* --- peer_message.c -------------------------------------------------------------------------- */

/* A message of a peer that is up. */
void message_handle(struct peer *peer, const struct pmsg_header *h, const uint8_t *body);
void peer_send(struct peer *peer, const uint8_t *buf, int n);
void send_release(struct peer *peer, uint64_t grant);
void send_error(struct conn *c, uint64_t request_id, uint32_t code, const char *text);
/* The connection breaks the protocol: the peer is told why, and lost. */
void peer_protocol_error(struct peer *peer, uint32_t code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* --- peer_request.c -------------------------------------------------------------------------- */

/* A new request with id peer->next_request + 1, at the end of the list. timeout_ns < 0: none. NULL: no memory. */
struct request *request_new(struct peer *peer, enum request_type type, int64_t timeout_ns);
/* Takes it out of the list; the caller frees it. NULL if there is none. */
struct request *request_take(struct peer *peer, uint64_t id);
int64_t requests_next_end(const struct peer *peer);
/* Ends what is overdue; may close the peer. */
void requests_expire(struct peer *peer, int64_t now);
/* The peer is closed: every request ends with code. */
void requests_end(struct peer *peer, uint32_t code);
/* Without a word to anybody. */
void requests_free(struct peer *peer);

/* --- peer_rails.c --- */

void rails_handle_connect_reply(struct peer *peer, struct request *r,
				const struct pmsg_qp_connect_reply *m);

/* --- peer_import.c --------------------------------------------------------------------------- */

/* The peer is READY: imports that wait for its agent id move to it and are sent. */
void imports_ready(struct peer *peer);
/* Those of `from` that the incarnation of `to` can serve move to it; imports_run() sends them. */
void imports_adopt(struct peer *to, struct peer *from);
void imports_run(struct peer *peer);
int64_t imports_next_end(const struct peer *peer);
void imports_expire(struct peer *peer, int64_t now);
/* The peer is closed: its imports end, or go to another connection where that helps. */
void imports_end(struct peer *peer, uint32_t code, const char *why);
void import_reply(struct peer *peer, struct request *r, const struct pmsg_import_reply *m);
void import_error(struct peer *peer, struct request *r, uint32_t code, const char *why);
bool imports_wanted(const struct peer *peer);
/* Without a word to anybody. */
void imports_free(struct peer *peer);

/* Where a segment of a token or of the configuration is reached. 0 or -errno with reterr. */
int segment_addr(const struct peers *p, const char *segment, struct dray_addr *ret,
		 struct dray_err *reterr);

/* --- peer_probe.c ---------------------------------------------------------------------------- */

/* Answers PROBE and ends the connection. Consumes the stranger. */
void probe_answer(struct stranger *s, uint64_t request_id);

/* --- peer_want.c ----------------------------------------------------------------------------- */

/* Wants for `from` are for `to` from now on. */
void wants_adopt(struct peer *to, struct peer *from);
/* The peer is closed. */
void wants_lost(struct peer *peer, bool was_up, const char *why);
void wants_free(struct peers *p);

/* --- peer_fence.c ---------------------------------------------------------------------------- */

void fence_handle(struct peer *peer, uint64_t request_id, const struct pmsg_fence *m);
/* Answers the fence of this grant that waits. False if there is none. */
bool fence_answer(struct peer *peer, uint64_t grant);
void fences_clear(struct peer *peer);
void fence_acked(struct peer *peer, struct request *r);
void late_fences_run(struct peers *p);

/* --- peer_link.c ----------------------------------------------------------------------------- */

/* READY: key, link, workers. 0 or -errno with reterr. */
int link_up(struct peer *peer, struct dray_err *reterr);
/* The peer is closed: the workers are told to let go. */
void link_down(struct peer *peer, dray_handle handle, uint32_t code);

/* --- stream.c -------------------------------------------------------------------------------- */

/* A whole stream hello has come. Consumes the stranger, or holds it until its peer is READY. */
void stream_handle_hello(struct stranger *s);
void stream_handle_reset(struct peer *peer, uint64_t request_id, uint64_t stream_id);
void stream_reset_done(struct peer *peer, uint64_t stream_id);

/* --- stranger.c ------------------------------------------------------------------------------ */

/* Takes an accepted socket. */
void stranger_add(struct peers *p, int fd, const struct dray_addr *from);
struct stranger *stranger_free(struct stranger *s);
/* Counts and logs why it was sent away, then frees it. */
void stranger_refuse(struct stranger *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Frees the one that is missed least. False if there is none. */
bool strangers_evict(struct peers *p);
/* Stream hellos that wait for this peer are looked at again. */
void strangers_retry(struct peers *p, const struct peer *ready);
int strangers_init(struct peers *p);
void strangers_deinit(struct peers *p);

#endif
