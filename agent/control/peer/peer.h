/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: other agents, their control connections, and the listener for both control connections and
 * data streams. Control thread only; nothing blocks. Callbacks never run inside the call that set them up.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/control/peer/client.h"
#include "agent/control/peer/fsm.h"
#include "agent/control/peer/tls.h"
#include "agent/control/region/region.h"
#include "agent/data/data.h"
#include "lib/err.h"
#include "lib/log.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"
#include "schema/gen/peer.h"

struct exchange;
struct mailboxes;
struct nd_links;
struct owners;
struct peer_probe_ops;
struct peers;
struct rails;
struct sessions;
struct worker_pool;

/* Events that peers report to the modules above. */
struct peers_upcalls {
	/*
	 * The owner fences a grant that we imported: stop using it, then call peers_fence_ack(). code: revoked.
	 */
	void (*fenced)(struct sessions *sessions, dray_handle peer, uint64_t grant, uint32_t code);
	/* The peer is lost; every import from it is void. code: peer_lost, incarnation (it was restarted), ... */
	void (*lost)(struct sessions *sessions, dray_handle peer, uint32_t code, const char *why);
	/* The peer drains: it refuses new requests; transfers in flight may finish. */
	void (*draining)(struct sessions *sessions, dray_handle peer);
	/* A notification for the group that owns m->region. Returns an error code, 0 when queued. */
	uint32_t (*notification)(struct sessions *sessions, const struct dmsg_notification *m);
	/* The control connection is up. features: those that both sides have. */
	void (*up)(struct rails *rails, dray_handle peer, uint64_t features);
	/*
	 * The control connection is down: queue pairs of the peer are destroyed. True: grants_peer_gone()
	 * follows when they are; false: there are none. Until then the peer can reach what it was granted.
	 */
	bool (*down)(struct rails *rails, dray_handle peer);
	/* No queue pair serves the peer: it reaches what it was granted by a connection alone. */
	bool (*quiet)(struct rails *rails, dray_handle peer);
	/* The peer's rails, as wire records. */
	void (*ports)(struct rails *rails, dray_handle peer, const struct dray_vec *ports);
	/* Keys of a grant that we hold, as wire records. */
	void (*keys)(struct sessions *sessions, dray_handle peer, uint64_t grant,
		     const struct dray_vec *rails);
	/* The owner ends the keys of a grant that we hold; answered by REKEY_REPLY when they are not in use any more. */
	void (*rekey)(struct sessions *sessions, dray_handle peer, uint64_t grant,
		      uint64_t request_id);
	/* Writes the keys of a grant that we gave into buf, as wire records. Returns how many. */
	unsigned (*grant_keys)(struct rails *rails, dray_handle peer, dray_handle grant,
			       uint8_t *buf, unsigned max);
	/* Requests of the peer; answered by peers_send() or peers_refuse(). */
	void (*qp_connect)(struct rails *rails, dray_handle peer, uint64_t request_id,
			   const struct pmsg_qp_connect *m);
	void (*qp_close)(struct rails *rails, dray_handle peer, uint64_t request_id, uint64_t qp);
	/* The peer describes its window for us. */
	void (*window)(struct rails *rails, dray_handle peer, const struct pmsg_window *m);
	/* A request of the peer, answered in the same way. */
	void (*stage)(struct rails *rails, dray_handle peer, uint64_t request_id,
		      const struct pmsg_stage *m);
	/* A request of the peer, answered in the same way; there is a store. */
	void (*store_lookup)(struct exchange *exchange, dray_handle peer, uint64_t request_id,
			     const struct pmsg_store_lookup *m);
	void (*store_keep)(struct exchange *exchange, dray_handle peer, uint64_t request_id,
			   const struct pmsg_store_keep *m);
	void (*store_watch)(struct exchange *exchange, dray_handle peer, uint64_t request_id);
	void (*store_summary)(struct exchange *exchange, dray_handle peer, uint64_t request_id,
			      const struct pmsg_store_summary *m);
	/* The end of what it brought. Here and below, exchange NULL: there is no store. */
	void (*store_release)(struct exchange *exchange, dray_handle peer, uint64_t grant);
	/* The peer looks objects up, or has leases. */
	bool (*store_in_use)(struct exchange *exchange, dray_handle peer);
	/* The control connection is down: what the peer has leased of the store ends. quiet: false if `down` was true. */
	void (*store_gone)(struct exchange *exchange, dray_handle peer, bool quiet);
	/* As grant_fenced(), for a grant of the store. False: it is none. */
	bool (*store_fenced)(struct exchange *exchange, dray_handle peer, dray_handle grant);
	/* The grant is a lease that we have of the peer's store; and as `fenced`, for such a grant. */
	bool (*store_has)(struct exchange *exchange, dray_handle peer, uint64_t grant);
	void (*store_fence)(struct exchange *exchange, dray_handle peer, uint64_t grant);
	/* The peer became ready, or is not ready any more. Must not call this module. */
	void (*changed)(void *arg, dray_handle peer, const char *segment, const char *before,
			const char *after, const char *why);
};

struct peers_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions;
	struct mailboxes *mailboxes;
	struct owners *owners;   /* NULL: no memory is lent to other agents for checks */
	const uint8_t *agent_id; /* 16 bytes */
	uint64_t incarnation;
	const struct peers_upcalls *up;
	/* set before the first upcall */
	struct sessions *const *sessions;
	struct rails *const *rails;
	struct exchange *const *exchange;
	void *arg;             /* of `changed` */
	const int *listen_fds; /* passed by systemd (name "peer"); consumed */
	unsigned n_listen_fds;
};

/*
 * Opens the listeners (peer.listen), loads the key. Errors name the key or file. A listener beyond loopback
 * needs a key or peer.allow_insecure.
 */
int peers_new(struct peers **ret, const struct peers_deps *deps, struct dray_err *reterr);

/*
 * Reads the key files of a configuration: peer.key_file, and peer.accept_key_file if it exists. ret->n is 0 without a key. The caller
 * wipes *ret. 0, or -errno with reterr.
 */
int peers_read_keys(const struct dray_config *cfg, struct tls_keys *ret, struct dray_err *reterr);
/* Connections that begin later use these keys; the others stay. False: they are the present ones, or none. */
bool peers_use_keys(struct peers *p, const struct tls_keys *keys);
/* Ids of the keys, that of the offered one first; one space between them. Empty without a key. */
#define PEERS_KEYS_BYTES (TLS_KEYS_MAX * TLS_KEY_ID_BYTES)
const char *peers_keys(const struct peers *p, char text[PEERS_KEYS_BYTES]);

/* Sends BYE and closes everything. Workers must still run, see peers_stop(). */
struct peers *peers_free(struct peers *p);

/* Advertised segment, "" without a listener. Owned by p. */
const char *peers_segment(struct peers *p);

/* Interfaces or addresses changed: updates the advertised segment, unless it is configured. */
void peers_links_changed(struct peers *p, const struct nd_links *links);

/* What an acquisition brings besides the fields of an import. Borrowed. */
struct peer_lease {
	struct ranges *ranges;
	uint32_t expiry_ms;
};

/*
 * Result of an import: err->code 0 with the peer and its reply (rails: keys, as wire records), or an error alone. lease: of an
 * acquisition; else NULL.
 */
typedef void (*peer_import_fn)(void *arg, const struct dray_err *err, dray_handle peer,
			       const struct pmsg_import_reply *reply,
			       const struct peer_lease *lease);

/* The limit of an import whose caller gives none. */
#define PEER_IMPORT_TIMEOUT_NS (10 * DRAY_NS_PER_SEC)

/*
 * Requests a grant from the owner of a token; connects first if needed (simultaneous callers share one connection).
 * fn runs exactly once within timeout_ns, unless cancelled. Until then a failed attempt to connect is repeated. timeout_ns 0:
 * within PEER_IMPORT_TIMEOUT_NS, but at once if the owner's address refuses the connection. The segment and the ids are
 * claims of the token; the connection proves the id. client: for whose owner the segments without an agent that has proved the
 * key are bounded. 0 with an id, or an error at once.
 *
 * is_lease: acquires the lease of the token. If its owner has granted it to this agent already, no message is sent; else one message
 * acquires all leases of this owner that were requested in this turn of the loop.
 */
int peer_import(struct peers *p, const struct pmsg_token *token, bool is_lease, const char *segment,
		const struct peer_client *client, int64_t timeout_ns, peer_import_fn fn, void *arg,
		uint64_t *ret_id, struct dray_err *reterr);

/* Grants a lease to the agent that its token has as audience, for up to n holders. Returns for how many: 0 if it is not connected. */
uint32_t peers_lease_grant(struct peers *p, const struct pmsg_token *token, uint32_t n);

/* fn will not run; a grant that arrives later is released. */
void peer_import_cancel(struct peers *p, uint64_t id);

/* Releases a grant that nothing of ours uses any more. */
void peer_release(struct peers *p, dray_handle peer, uint64_t grant, enum pmsg_release_how how);

/* Answers up->fenced. */
void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant);

/*
 * Sends FENCE; grant_fenced(), or up->store_fenced, follows on its acknowledgement, and inside the call if the peer is closed and no
 * queue pair serves it. On timeout the peer is lost. The loss of the peer ends it, too.
 */
void peers_fence(struct peers *p, dray_handle peer, dray_handle grant, uint32_t code);

/* Sends a message to a peer, if it is up. request_id: of the peer's request that it answers, or 0. body: NULL without fields. */
void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body);
/* Answers a request of the peer with an error. why: reason and next step, in words. */
void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why);

/* The peer that is up and known to be reached at this segment, has these features, and reads its messages; 0: there is none. */
dray_handle peers_at(struct peers *p, const char *segment, uint64_t features);
/* Whether an agent that is known to be reached at this segment is connected, also if it does not read its messages now. */
bool peers_is_up_at(struct peers *p, const char *segment);

/* Result of a request; code 0: success. reply: NULL on errors. Runs exactly once, not inside the call. */
typedef void (*peer_reply_fn)(void *arg, uint32_t code, const union pmsg_body *reply);

/*
 * Sends QP_CONNECT, QP_CLOSE, REKEY, STAGE, LEASE_RENEW, STORE_LOOKUP, STORE_KEEP, STORE_WATCH, STORE_SUMMARY or NOTIFY. A peer that does not answer a rekey, a close or a stage is lost, because nothing
 * else proves that the other end is closed, or that the copy has stopped. 0 or -errno.
 */
int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg);

/* Sends a notification. Success: the owner has queued it. m->id: unique for this incarnation. */
int peer_notify(struct peers *p, dray_handle peer, const struct pmsg_notify *m, peer_reply_fn fn,
		void *arg, struct dray_err *reterr);

/* A letter for a mailbox of the agent at a segment. */
struct peer_post {
	char segment[257];
	struct pmsg_post m;
	/* Limit for reaching the agent and its answer, as for peer_import(). */
	int64_t timeout_ns;
	/*
	 * Runs exactly once, not inside peer_post(). err->code 0: delivered. own: the segment leads to this agent itself, and
	 * this is the letter. The result is for a request of a session.
	 */
	void (*done)(void *arg, dray_handle session, uint64_t request_id,
		     const struct dray_err *err, const struct pmsg_post *own);
	void *arg;
	dray_handle session;
	uint64_t request_id;
};

/* Everything is copied. 0, or an error at once. */
int peer_post(struct peers *p, const struct peer_post *post, struct dray_err *reterr);

/* Events of workers. */
void peers_handle_used(struct peers *p, dray_handle peer);
void peers_handle_stream_lost(struct peers *p, dray_handle peer, uint64_t stream_id);
void peers_handle_stream_closed(struct peers *p, dray_handle peer, uint64_t stream_id);

/* Announces the drain to peers, and refuses their new imports. */
void peers_drain(struct peers *p, uint32_t deadline_ms);
void peers_resume(struct peers *p);

/* Closes listeners and connections (BYE), ends every pending call; done(arg) once the workers released every link. */
void peers_stop(struct peers *p, void (*done)(void *arg), void *arg);

/* The limit of log lines that a peer can bring about again and again, for log_within(). */
struct peers_log {
	struct dray_log_limit *limit;
	uint32_t burst;
	char about[DRAY_LOG_NAME_BYTES];
};

/* Of an agent; the same if it connects again. */
struct peers_log peers_log_of_agent(struct peers *p, const uint8_t agent_id[16]);
/* Its agent id; zeroes if the handle is unknown. */
const uint8_t *peers_agent_id(struct peers *p, dray_handle peer);

#define log_of_agent(peers, agent_id, level, area, ...)                                   \
	do {                                                                              \
		const struct peers_log log_ = peers_log_of_agent(peers, agent_id);        \
		log_within(log_.limit, log_.burst, log_.about, level, area, __VA_ARGS__); \
	} while (0)
#define log_of_peer(peers, peer, ...) log_of_agent(peers, peers_agent_id(peers, peer), __VA_ARGS__)

/* Peers, then addresses whose agent did not prove the key. Fills every field but transport, rails and queue_pairs. */
void peers_each(struct peers *p, void (*fn)(void *arg, const struct dray_dbus_peer *peer),
		void *arg);
/* The traffic of one peer since it connected. */
struct peer_traffic {
	dray_handle peer;
	const char *segment;
	uint64_t tcp_sent, tcp_received; /* bytes */
	uint64_t moving_ns;              /* of all transfers, added up */
};
/* Up to max connected peers with a segment, those that connected first, each segment once. Returns how many. */
unsigned peers_traffic(struct peers *p, struct peer_traffic *ret, unsigned max);

/* Segment of a connected peer, else "". */
const char *peers_segment_of(struct peers *p, dray_handle peer);

struct peers_totals {
	uint32_t peers;                /* now */
	uint32_t states[PEER_STATE_N]; /* peers in each state */
	uint32_t listeners;            /* that are open */
	uint64_t lost,
		incoming_refused; /* since the start; refused: connections without a valid HELLO */
};
struct peers_totals peers_totals(struct peers *p);

/*
 * Probes of other agents. A probe's connection ends with the answer: it does not become a peer, and neither side
 * counts a loss. Each probe is freed before the peers are.
 */
extern const struct peer_probe_ops peer_probes;

/*
 * Keeps a connection to the agents at these numeric segments, instead of those of an earlier call. 0, or -ENOMEM with
 * some of them added.
 */
int peers_keep_connected(struct peers *p, const char *const *segments, unsigned n);
/* The last connection to a kept segment that has ended led to this agent, and it has none that is up. */
bool peers_segment_leads_here(struct peers *p, const char *segment);
/* True if the agent at a kept segment is connected and accepts work. Writes the reason for either. */
bool peers_segment_ready(struct peers *p, const char *segment, char *reason, size_t n);
