/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: other agents, their control connections, and the listener for both control connections and
 * data streams. Control thread only; nothing blocks. Callbacks never run inside the call that set them up.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_PEER_H
#define DRAY_AGENT_CONTROL_PEER_PEER_H

#include <systemd/sd-event.h>

#include "agent/control/region/region.h"
#include "agent/data/data.h"
#include "lib/err.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/peer.h"

struct nd_links;
struct peers;

/* What peers ask of the parts above them. */
struct peers_upcalls {
	/*
	 * The owner fences a grant that we imported: stop using it and call peers_fence_ack() once nothing of
	 * ours can touch it any more. code: revoked.
	 */
	void (*fenced)(void *arg, dray_handle peer, uint64_t grant, uint32_t code);
	/* The peer is lost; every import from it is void. code: peer_lost, incarnation (it was restarted), ... */
	void (*lost)(void *arg, dray_handle peer, uint32_t code, const char *why);
	/* The peer drains: nothing new can be asked of it, what is in flight may finish. */
	void (*draining)(void *arg, dray_handle peer);
	/* A notification for the group that owns `region`. Returns an error code, 0 when queued. */
	uint32_t (*notification)(void *arg, dray_handle region, const uint8_t agent_id[16],
				 uint64_t incarnation, uint64_t id, uint64_t tag,
				 const uint8_t *payload, uint32_t length);
	/* The control connection stands. features: those that both sides have. */
	void (*up)(void *arg, dray_handle peer, uint64_t features);
	/*
	 * It is over: queue pairs that serve the peer die. True: peers_quiet() is called when they have;
	 * false: there are none. Before that the peer can still reach what it was granted.
	 */
	bool (*down)(void *arg, dray_handle peer);
	/* The peer's rails, as wire records. */
	void (*ports)(void *arg, dray_handle peer, const struct dray_vec *ports);
	/* Keys of a grant that we hold, as wire records. */
	void (*keys)(void *arg, dray_handle peer, uint64_t grant, const struct dray_vec *rails);
	/* Keys for a grant that we give, as wire records into buf. Returns how many. */
	unsigned (*grant_keys)(void *arg, dray_handle peer, dray_handle grant, uint8_t *buf,
			       unsigned max);
	/* Requests of the peer; answered by peers_qp_connect_reply/_refuse() and peers_qp_close_reply(). */
	void (*qp_connect)(void *arg, dray_handle peer, uint64_t request_id,
			   const struct pmsg_qp_connect *m);
	void (*qp_close)(void *arg, dray_handle peer, uint64_t request_id, uint64_t qp);
	/* What the peer says of its window for us. */
	void (*window)(void *arg, dray_handle peer, const struct pmsg_window *m);
	/* A request of the peer; answered by peers_stage_reply() or _refuse(). */
	void (*stage)(void *arg, dray_handle peer, uint64_t request_id, const struct pmsg_stage *m);
	/* The peer has become ready, or is not any more; not to be answered by a call of this module. */
	void (*changed)(void *arg, dray_handle peer, const char *segment, const char *before,
			const char *after, const char *why);
};

struct peers_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions;
	const uint8_t *agent_id; /* 16 bytes */
	uint64_t incarnation;
	const struct peers_upcalls *up;
	void *arg;
	const int *listen_fds; /* passed by systemd (name "peer"); consumed */
	unsigned n_listen_fds;
};

/*
 * Opens the listeners (peer.listen), loads the key. Errors name the key or file. A listener beyond loopback
 * without a key and without peer.allow_insecure is refused with a sentence that says both ways out.
 */
int peers_new(struct peers **ret, const struct peers_deps *deps, struct dray_err *reterr);

/* Says bye, closes all. Workers must still run: `drained` once every peer_gone has come (see peers_stop). */
struct peers *peers_free(struct peers *p);

/* Advertised segment, "" without a listener. Owned by p. */
const char *peers_segment(struct peers *p);

/* Interfaces or addresses have changed: what is advertised follows, unless it is configured. */
void peers_links_changed(struct peers *p, const struct nd_links *links);

/* Result of an import. err: code 0 and the rest set, or the error alone. rails: its keys, as wire records. */
typedef void (*peer_import_fn)(void *arg, const struct dray_err *err, dray_handle peer,
			       uint64_t grant, uint64_t length, uint16_t access,
			       const struct dray_vec *rails);

/*
 * Asks the owner of a token for a grant; connects first where needed (simultaneous callers share one connection).
 * Ends exactly once by fn within timeout_ns, unless cancelled. The token's segment and ids are its own words;
 * the connection proves the id. 0 with an id, or an error at once.
 */
int peer_import(struct peers *p, const struct pmsg_token *token, const char *segment,
		int64_t timeout_ns, peer_import_fn fn, void *arg, uint64_t *ret_id,
		struct dray_err *reterr);

/* fn will not run; a grant that arrives later is released. */
void peer_import_cancel(struct peers *p, uint64_t id);

/* We are done with a grant: nothing of ours uses it. */
void peer_release(struct peers *p, dray_handle peer, uint64_t grant);

/* Answer to up->fenced. */
void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant);

/* For the region module: send FENCE; grant_fenced() follows on its acknowledgement, time-out (the peer is then lost) or loss. */
void peers_fence(struct peers *p, dray_handle peer, dray_handle grant, uint32_t code);

/* Sends a notification; fn runs exactly once (code 0 when the owner queued it). id: unique for this incarnation. */
typedef void (*peer_notify_fn)(void *arg, uint32_t code);
int peer_notify(struct peers *p, dray_handle peer, uint64_t grant, uint64_t id, uint64_t tag,
		const uint8_t *payload, uint32_t length, peer_notify_fn fn, void *arg,
		struct dray_err *reterr);

/* Of the upcall `down`. */
void peers_quiet(struct peers *p, dray_handle peer);

/* To a peer that is up; otherwise nothing happens. */
void peers_send_ports(struct peers *p, dray_handle peer, const struct dray_vec *ports);
void peers_send_keys(struct peers *p, dray_handle peer, uint64_t grant,
		     const struct dray_vec *rails);
void peers_send_window(struct peers *p, dray_handle peer, const struct pmsg_window *m);

/*
 * Ask for the other end of a queue pair, or for its end. fn runs exactly once, not inside the call: code 0
 * with the answer (of a connect), or an error. A peer that leaves a close unanswered is lost. 0 or -errno.
 */
typedef void (*peer_qp_fn)(void *arg, uint32_t code, const struct pmsg_qp_connect_reply *m);
int peers_qp_connect(struct peers *p, dray_handle peer, const struct pmsg_qp_connect *m,
		     peer_qp_fn fn, void *arg);
int peers_qp_close(struct peers *p, dray_handle peer, uint64_t qp, peer_qp_fn fn, void *arg);

void peers_qp_connect_reply(struct peers *p, dray_handle peer, uint64_t request_id,
			    const struct pmsg_qp_connect_reply *m);
void peers_qp_close_reply(struct peers *p, dray_handle peer, uint64_t request_id);

/*
 * Asks the owner for a copy between its window for us and a range that it granted. fn runs exactly once, not inside the
 * call: code 0 when it is made. A peer that leaves this unanswered is lost, since nothing else tells what it still
 * copies. 0 or -errno.
 */
typedef void (*peer_stage_fn)(void *arg, uint32_t code);
int peers_stage(struct peers *p, dray_handle peer, const struct pmsg_stage *m, peer_stage_fn fn,
		void *arg);
void peers_stage_reply(struct peers *p, dray_handle peer, uint64_t request_id);

/* A request of the peer's for which there is no reply ends with this error. why: what to do, in words. */
void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why);

/* From workers. */
void peers_handle_used(struct peers *p, dray_handle peer);
void peers_handle_stream_lost(struct peers *p, dray_handle peer, uint64_t stream_id);
void peers_handle_stream_closed(struct peers *p, dray_handle peer, uint64_t stream_id);

/* Tells peers that we drain; refuses new imports by peers. */
void peers_drain(struct peers *p, uint32_t deadline_ms);
void peers_resume(struct peers *p);

/* Closes listeners and connections (BYE), ends every pending call; done(arg) once the workers let go of every link. */
void peers_stop(struct peers *p, void (*done)(void *arg), void *arg);

struct peer_info {
	dray_handle peer;
	uint8_t agent_id[16];
	bool known; /* agent_id and incarnation are proved */
	uint64_t incarnation;
	const char *segment, *state, *reason;
	int64_t since_ns, heard_ns; /* ages */
	bool initiator;
	uint32_t grants, imports, streams;
};

void peers_each(struct peers *p, void (*fn)(void *arg, const struct peer_info *info), void *arg);
/* Of a peer that is connected, else "". */
const char *peers_segment_of(struct peers *p, dray_handle peer);
uint32_t peers_count(struct peers *p, uint32_t *ret_ready);
/* Adds to counts[] (PEER_STATE_N of them, see peer_fsm.h) the peers in each state. */
void peers_states(struct peers *p, uint32_t *counts);
/* Listeners that are open. */
unsigned peers_listeners(struct peers *p);
/*
 * Keeps connected to whoever answers at these numeric segments, and no more to those of an earlier call that are
 * not among them. 0, or -ENOMEM with some of them taken up.
 */
int peers_want(struct peers *p, const char *const *segments, unsigned n);
/* Of a segment that is wanted: is it connected, and takes work? Writes to reason why, or why not. */
bool peers_segment_ready(struct peers *p, const char *segment, char *reason, size_t n);
uint64_t peers_lost_total(struct peers *p);
uint64_t peers_strangers_refused(struct peers *p);

#endif
