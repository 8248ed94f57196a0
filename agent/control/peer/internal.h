/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Ownership: struct peers owns everything. An incoming connection owns its accepted socket until its HELLO is
 * valid; then a peer takes the connection over. A peer is one agent over one control connection: after a loss
 * its handle is dead, and the next connection to the same agent is a new peer. It stays in memory until the
 * workers have released its link. Only the defer source frees peers, so a callback never loses its peer.
 */
#pragma once

#include "agent/control/peer/conn.h"
#include "agent/control/peer/fsm.h"
#include "agent/control/peer/peer.h"
#include "agent/control/peer/reach.h"
#include "agent/control/peer/stream_table.h"
#include "agent/control/peer/timers.h"
#include "agent/control/socket/acceptor.h"
#include "agent/data/data.h"
#include "agent/model/peer_link.h"
#include "lib/idset.h"
#include "lib/list.h"
#include "lib/log.h"
#include "lib/map.h"
#include "schema/gen/errors.h"

#define AREA "peer"
#define SEGMENT_MAX 256 /* as in HELLO */
/* Longest heartbeat interval: of the configuration, and of what a peer may announce. */
#define HEARTBEAT_MS_MAX 60000u
#define NONCE_SIZE 16

/* Bytes of one message that is accepted from a connection before its HELLO. */
#define INCOMING_MESSAGE_MAX 4096

struct peers {
	struct peers_deps deps;
	const struct dray_config *cfg;
	struct tls *tls;
	struct dray_handles handles; /* of peers that are not closed */
	struct dray_handles imports;
	struct dray_map by_id;      /* struct peer by agent id, not closed */
	struct dray_list all;       /* not closed */
	struct dray_list closed;    /* wait for their workers */
	struct dray_list released;  /* wait for the defer source, which frees them */
	struct dray_list acquirers; /* have unsent imports of leases */
	struct dray_list attempts;  /* accept any agent id, and were not up yet */
	struct dray_map by_segment; /* struct peer that we connect to, not closed */
	struct dray_map by_reached; /* struct peer by `reached`, not closed */
	struct timers timers;       /* of peers that are not closed */
	struct tcp_listeners listeners;
	struct dray_list incoming; /* oldest first */
	uint32_t n_incoming;
	struct dray_list denied; /* denied.c */
	uint32_t n_denied;
	struct dray_list kept_segments; /* to stay connected to */
	struct dray_map kept_by_segment;
	unsigned n_probes;     /* of ours, in progress; checks too */
	unsigned n_checks;     /* of other agents, that are being answered */
	struct dray_list lent; /* check_answer.c */
	unsigned n_lent;
	sd_event_source *defer;
	char segment[SEGMENT_MAX + 1];
	struct peers_totals totals; /* without those of now */
	struct reaches reaches;
	struct dray_log_limits log; /* by agent, and by address before it is known */
	bool draining, stopping;
	int64_t drain_end_ns;
	void (*stop_done)(void *arg);
	void *stop_arg;
};

struct check_answer;
struct peer;
struct pending_request;
struct post;

/* The time by which a request or an import of a peer must end. */
struct peer_timeout {
	struct dray_list link; /* in peer->timeouts */
	int64_t end_ns;
	void (*expired)(struct peer *peer, struct peer_timeout *t); /* ends it */
};

/* One kind of request that this agent sends to peers. */
struct request_kind {
	uint16_t type; /* of its message */
	/* The peer counts as lost if it refuses the request, or if there is no memory to send it. */
	bool vital;
	/* The peer counts as lost, for this reason, if it does not reply in time. NULL: the request alone fails. */
	const char *unanswered;
	/* Runs once. err->code 0: m is the reply. The peer may be closed; r is freed afterwards. */
	void (*done)(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		     const union pmsg_body *m);
};

/* A request of ours that waits for its reply. */
struct pending_request {
	struct dray_list link;      /* in peer->requests */
	struct dray_map_node by_id; /* in peer->requests_by_id */
	struct peer *peer;
	struct peer_timeout timeout;
	uint64_t id;
	const struct request_kind *kind;
	union {
		struct import *import;
		struct acquisition *acquisition; /* lease.c */
		struct post *post;
		uint64_t grant;
		uint64_t stream_id;
		struct {
			peer_reply_fn fn;
			void *arg;
		};
	};
};

/* A FENCE of the peer that waits for peers_fence_ack(). */
struct fence {
	struct dray_map_node by_grant; /* in peer->fences */
	uint64_t grant, request_id;
};

/* Leases that the peer has granted, which no client here has yet: see lease.c. */
struct lease_offers {
	struct dray_map by_token, by_grant;
	uint64_t ranges; /* of all of them */
	/* LEASE_RANGES that wait for their LEASE_GRANTED, as wire records */
	uint64_t grant;
	uint8_t *wire;
	uint32_t n;
};

/* One call of peer_import(). */
struct import {
	struct dray_list link;   /* in peer->imports */
	struct dray_list unsent; /* of a lease, in peer->unsent: part of the next ACQUIRE */
	struct peer_timeout timeout;
	struct peers *p;
	struct peer *peer;
	char segment[PMSG_TOKEN_SEGMENT_MAX + 1];
	bool is_lease;
	bool asked;    /* of a lease: an ACQUIRE for it is pending */
	uint8_t tries; /* of a lease: answers with a grant that was not there any more */
	bool no_wait;  /* fails when the owner's address refuses the connection */
	bool former;   /* the owner's id is connected from elsewhere, with a later incarnation */
	struct peer_client client;
	dray_handle id;
	struct pmsg_token token;
	struct pending_request *request; /* NULL until it is sent */
	peer_import_fn fn;
	void *arg;
};

struct peer {
	struct peers *p;
	struct dray_list all_link;
	struct dray_map_node by_id; /* in peers->by_id */
	struct dray_map_node by_segment, by_reached;
	struct dray_list acquirers_link, attempts_link;
	dray_handle handle; /* unknown to the table once closed */
	struct peer_fsm fsm;
	struct conn *conn;
	struct dray_heap_node due; /* in peers->timers */
	struct dray_list timeouts; /* of requests and imports */
	int64_t next_timeout_ns;   /* none of them ends before */
	uint8_t agent_id[16];      /* expected, proved once `known` */
	uint64_t incarnation;      /* of a known peer */
	bool known;
	bool proved;       /* the other side of this attempt has proved the key */
	bool hello_sent;   /* on this connection */
	bool peer_ready;   /* we connected, and READY has arrived */
	bool left;         /* it sent BYE */
	bool any_agent;    /* accepts any agent id in HELLO */
	bool leads_here;   /* we connected, and this agent itself answered */
	unsigned n_kept;   /* kept segments that use this peer */
	uint64_t features; /* that both sides have */
	uint8_t nonce[NONCE_SIZE], peer_nonce[NONCE_SIZE];
	char segment[SEGMENT_MAX + 1];
	char reached[SEGMENT_MAX +
		     1]; /* where an attempt of ours found this agent, which had connected to us */
	struct dray_addr addr; /* that we connect to, or that it connected from */
	uint64_t next_request, heartbeats;
	uint64_t started; /* transfers that the link had started at the last check */
	struct dray_list imports, posts;
	struct dray_list requests; /* oldest first */
	struct dray_map requests_by_id;
	struct dray_map fences;
	struct idset grants;     /* that we hold from it */
	struct dray_list unsent; /* imports of leases that the next ACQUIRE carries */
	unsigned n_acquires;     /* in requests */
	struct lease_offers offers;
	struct stream_table streams;
	struct peer_link *link; /* NULL before READY and after the workers released it */
};

/* An accepted connection that is not identified yet: a control connection before HELLO, or a data stream. */
struct incoming {
	struct dray_list link;
	struct peers *p;
	int fd; /* -1 once conn owns it */
	sd_event_source *io, *timer;
	struct conn *conn; /* TLS */
	struct dray_addr from;
	bool has_sent;               /* at least one byte */
	struct check_answer *answer; /* to its CHECK, or NULL */
	bool held; /* has sent a whole stream hello and waits until its peer is READY */
	uint8_t nonce[NONCE_SIZE];
	uint8_t hello[PMSG_STREAM_HELLO_SIZE];
	size_t n_hello;
};

/* The reply to a request has the type of the request with this bit. */
#define TYPE_REPLY 0x8000

/* An error code of a peer, or `otherwise` if this agent does not know the code. */
static inline int known_code(uint32_t code, int otherwise)
{
	return code && code < DRAY_ERROR_N ? (int)code : otherwise;
}

/* peers.c */

/* The limit of log lines about a thing: what it is, and its name. */
struct peers_log peers_log_about(struct peers *p, const char *what, const char *name);
/* Runs the defer source soon. */
void peers_wake(struct peers *p);
/* True if a key, or peer.allow_insecure, permits to listen and connect beyond loopback. */
bool peers_beyond_loopback(const struct peers *p);
/* 0, or -EPERM with reterr: this address is not permitted. listen: to listen there, not to connect. */
int peers_check_key(const struct peers *p, const struct dray_addr *addr, bool listen,
		    struct dray_err *reterr);

/* 0, or -EBUSY or -ENOMEM with reterr: the agent may not connect to this segment for a client of that owner now. */
int peers_may_reach(struct peers *p, const struct peer_client *client, const char *segment,
		    struct dray_err *reterr);
/*
 * What a client of that owner is told when the agent (what: "owner", "agent") at the peer's segment was not reached. Clients must not
 * find out through this agent what listens where: before the key is proved all causes look the same, and the log has the one.
 */
struct dray_err peer_unreached(struct peer *peer, const char *what,
			       const struct peer_client *client, uint32_t code);

/* peer.c */

/* Monotonic time of this turn of the loop. */
int64_t peers_now(struct peers *p);
/* NULL if the handle is unknown; closed peers have none. */
struct peer *peer_get(struct peers *p, dray_handle handle);
/* The same, but NULL if the peer cannot be sent messages. */
struct peer *peer_get_up(struct peers *p, dray_handle handle);
/* A peer of this id that is up, other than `except`. */
struct peer *peer_find_up(struct peers *p, const uint8_t agent_id[16], const struct peer *except);
/* Several peers may have one agent id: attempts, claims, and the peer that is up. */
#define peers_for_each_of(p, agent_id, it) \
	dray_map_for_each_of(&(p)->by_id, agent_id, 16, it, struct peer, by_id)
static inline bool peer_is(const struct peer *peer, const uint8_t agent_id[16])
{
	return !memcmp(peer->agent_id, agent_id, sizeof(peer->agent_id));
}
void peer_set_agent_id(struct peer *peer, const uint8_t agent_id[16]);
/* A peer in state IDLE. agent_id: expected. Errors: quota, no_memory. */
int peer_new(struct peer **ret, struct peers *p, const uint8_t agent_id[16], bool initiator,
	     struct dray_err *reterr);
/* The same, to connect to this segment by PEER_EVENT_DIAL. */
int peer_new_to(struct peer **ret, struct peers *p, const uint8_t agent_id[16], const char *segment,
		struct dray_err *reterr);
/* The same; the peer accepts any agent id. */
int peer_new_to_any(struct peer **ret, struct peers *p, const char *segment,
		    struct dray_err *reterr);
/* An attempt of ours at this segment has found this agent. */
void peer_set_reached(struct peer *peer, const char *segment);
struct peer *peer_free(struct peer *peer);
/* Steps the state machine and arms the timer. */
void peer_event(struct peer *peer, enum peer_event event);
/* The timer of all peers. 0 or -errno. */
int peers_start_timers(struct peers *p);
/* The same for events with a reason. */
void peer_event_why(struct peer *peer, enum peer_event event, struct dray_err why);
/* A transfer or a request begins. */
void peer_use(struct peer *peer);
void peer_add_timeout(struct peer *peer, struct peer_timeout *t);
void peer_announce_drain(struct peer *peer);
void peer_say_bye(struct peer *peer);

/* hello.c */

extern const struct conn_ops peer_conn_ops;
struct pmsg_agent_info hello_agent_info(const struct peers *p);
/* Feature bits of this agent. */
uint64_t hello_features(const struct peers *p);
/* Sends HELLO with a new nonce. False: the connection has failed. */
bool hello_send(struct peers *p, struct conn *c, uint8_t nonce[NONCE_SIZE]);
/* 0, or -EPROTO with reterr: this agent's major version is not in [min, max]. */
int hello_check_version(unsigned min, unsigned max, struct dray_err *reterr);
/* A valid HELLO turns the incoming connection into a peer; otherwise it is refused. Consumes it. */
void hello_accept(struct incoming *in, const struct pmsg_header *h, const uint8_t *body);
/* Decides about a connection whose HELLO is known, now or after its rival has ended. */
void hello_settle(struct peer *peer);
/* `rival` is not up any more: connections that claim its place continue. */
void hello_rival_gone(struct peers *p, const uint8_t agent_id[16]);
/* Code for the loss of this peer: its reason, or incarnation if a later incarnation claims its place. */
uint32_t hello_loss_code(const struct peer *peer);

/* message.c */

/* A message of a peer that is up. */
void message_handle(struct peer *peer, const struct pmsg_header *h, const uint8_t *body);
/* body may be NULL for messages without fields. */
void peer_send(struct peer *peer, uint16_t type, uint64_t request_id, const union pmsg_body *body);
void peer_send_error(struct peer *peer, uint64_t request_id, struct dray_err err);
/* The peer broke the protocol: sends it the error, then counts it as lost. */
void peer_protocol_error(struct peer *peer, struct dray_err err);

/* request.c */

/*
 * Sends a request. timeout_ns < 0: none. what: its fields for kind->done. NULL: no memory; then the loss of a vital
 * request's peer follows.
 */
struct pending_request *request_send(struct peer *peer, const struct request_kind *kind,
				     int64_t timeout_ns, struct pending_request what,
				     const union pmsg_body *body);
/* A reply of the peer, an error reply. */
void request_replied(struct peer *peer, uint64_t id, uint16_t type, const union pmsg_body *m);
void request_refused(struct peer *peer, uint64_t id, const struct dray_err *err);
/* A pending request of this kind, or NULL. */
struct pending_request *request_find(struct peer *peer, const struct request_kind *kind);
/* Forgets a request without a timeout; calls no callback. */
void request_free(struct pending_request *r);
/* The peer is closed: every request ends with code. */
void requests_end(struct peer *peer, uint32_t code);
/* Calls no callback. */
void requests_free(struct peer *peer);

/* import.c */

/* The peer is READY: imports that wait for its agent id move to it and are sent. */
void imports_ready(struct peer *peer);
/* Moves the imports of `from` that the incarnation of `to` can serve; imports_run() sends them. */
void imports_adopt(struct peer *to, struct peer *from);
void imports_run(struct peer *peer);
/* The peer's address refuses the connection: imports without a limit of their own end soon. Runs no callback. */
void imports_refused(struct peer *peer);
/* The peer is closed: its imports end, or move to another connection where that helps. */
void imports_end(struct peer *peer, uint32_t code);
/* Calls no callback. */
void imports_free(struct peer *peer);

/* Ends the import. */
void import_fail(struct import *i, struct dray_err err);
void import_succeed(struct import *i, const struct pmsg_import_reply *reply,
		    const struct peer_lease *lease);

/* lease.c */

void offers_init(struct lease_offers *o);
void offers_free(struct lease_offers *o);
/* A lease import of a peer that is up waits for the next ACQUIRE. */
void acquire_soon(struct import *i);
/* For each peer: ends the imports whose leases are granted already, and sends an ACQUIRE for the others. */
void acquires_send(struct peers *p);
void acquire_handle(struct peer *peer, uint64_t request_id, const struct pmsg_acquire *m);
void lease_handle_ranges(struct peer *peer, const struct pmsg_lease_ranges *m);
void lease_handle_granted(struct peer *peer, const struct pmsg_lease_granted *m);
void lease_handle_renew(struct peer *peer, uint64_t request_id, const struct pmsg_lease_renew *m);
/* The peer drains: it gets the grants back that no client here has. */
void offers_decline(struct peer *peer);
/* The grant is of a lease that no client here has: forgets it (fenced), or takes its new keys. False: it is not. */
bool offer_fenced(struct peer *peer, uint64_t grant);
bool offer_keys(struct peer *peer, const struct pmsg_keys *m);

/* post.c */

/* Moves the posts of `from` to the connection of the agent that answered at its segment; posts_run() sends them. */
void posts_adopt(struct peer *to, struct peer *from);
void posts_run(struct peer *peer);
/* The peer's address refuses the connection: posts without a limit of their own end soon. Runs no callback. */
void posts_refused(struct peer *peer);
/* The peer is closed: its posts end, or move to another connection where that helps. */
void posts_end(struct peer *peer, uint32_t code);
/* Calls no callback. */
void posts_free(struct peer *peer);

/* First bytes of TLS records that a server sends in a handshake. */
#define TLS_ALERT 0x15
#define TLS_HANDSHAKE 0x16

/* probe.c: answers PROBE and ends the connection. Consumes the incoming connection. */
void probe_answer(struct incoming *in, uint64_t request_id);

/* check_answer.c */

/* A CHECK of the agent at the other end. Its answer consumes the connection, possibly at once. */
void check_handle(struct incoming *in, uint64_t request_id, const struct pmsg_check *m);
struct check_answer *check_answer_free(struct check_answer *a);
/* Ends what is lent to other agents soon, or forgets it. */
void lent_end(struct peers *p);
void lent_clear(struct peers *p);

/* kept_segment.c */

/* The peer that a kept segment uses, up or not; NULL: none, or no kept segment. */
struct peer *kept_segment_peer(struct peers *p, const char *segment);
/* Kept segments of `from` use `to` from now on. */
void kept_segments_adopt(struct peer *to, struct peer *from);
/* The peer is closed. */
void kept_segments_lost(struct peer *peer, bool was_up);
void kept_segments_free(struct peers *p);

/* fence.c */

void fence_handle(struct peer *peer, uint64_t request_id, const struct pmsg_fence *m);
/* Acknowledges the pending fence of this grant. False if there is none. */
bool fence_answer(struct peer *peer, uint64_t grant);
void fences_clear(struct peer *peer);

/* link.c */

/* READY: key, link, workers. 0 or -errno with reterr. */
int link_up(struct peer *peer, struct dray_err *reterr);
/* The peer is closed: makes the workers release the link. */
void link_down(struct peer *peer, dray_handle handle, uint32_t code);

/* stream.c */

/* A whole stream hello has arrived. Consumes the connection, or holds it until its peer is READY. */
void stream_handle_hello(struct incoming *in);
void stream_handle_reset(struct peer *peer, uint64_t request_id, uint64_t stream_id);

/* incoming.c */

/* Takes an accepted socket. */
void incoming_add(struct peers *p, int fd, const struct dray_addr *from);
struct incoming *incoming_free(struct incoming *in);
/* Counts and logs the reason, then frees the connection. */
void incoming_refuse(struct incoming *in, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Closes one connection: the oldest that has sent nothing, else the oldest. */
void incoming_evict(struct peers *p);
/* Checks the held stream hellos of this peer again. */
void incoming_retry(struct peers *p, const struct peer *ready);
void incoming_close(struct peers *p);

/* denied.c */

/* The agent at this segment did not prove the key, or refused ours. */
void denied_connect(struct peers *p, const char *segment, const struct dray_err *why);
/* The other end of an accepted connection did not. False if the reason is not in the log. */
bool denied_accept(struct peers *p, const struct dray_addr *from, const struct dray_err *why);
/* This peer has proved the key: its addresses are not denied any more. */
void denied_clear(struct peers *p, const struct peer *proved);
/* As peers_each(). */
void denied_each(struct peers *p, void (*fn)(void *arg, const struct dray_dbus_peer *peer),
		 void *arg);
void denied_free(struct peers *p);

/* segment_listener.c: opens what peer.listen and systemd specify, or the defaults; then sets the segment. */
int segment_listeners_open(struct peers *p, struct dray_err *reterr);

/* advertised.c: the segment that this agent advertises, configured or found from listeners and addresses. */

/* After the listeners are open. Reads the kernel's addresses if needed. 0 or -EINVAL with reterr. */
int advertised_set(struct peers *p, struct dray_err *reterr);
/* Parses an address; "localhost" stands for 127.0.0.1. As dray_addr_parse(). */
int segment_parse(const char *segment, struct dray_addr *ret);
