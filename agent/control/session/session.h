/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions on the data socket: admission by kernel credentials, HELLO, groups, quotas, and every
 * request other than transfers, which the session's worker carries out itself. Control thread
 * only.
 */
#ifndef DRAY_AGENT_CONTROL_SESSION_SESSION_H
#define DRAY_AGENT_CONTROL_SESSION_SESSION_H

#include <systemd/sd-event.h>

#include "agent/control/peer/peer.h"
#include "agent/control/region/region.h"
#include "agent/control/session/placement.h"
#include "agent/data/data.h"

struct sessions;

struct sessions_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions;
	struct peers *peers;
	const uint8_t *agent_id;
	uint64_t incarnation;
	int listen_fd; /* passed by systemd (name "data"), or -1: data.socket is bound */
	/* Keys of a remote that was imported, as wire records. */
	void (*keys)(void *arg, dray_handle peer, uint64_t grant, uint64_t length,
		     const struct dray_vec *rails);
	/* A session has begun to end. */
	void (*closed)(void *arg, dray_handle session, const char *name, const char *why);
	const struct placement_upcalls *placement; /* borrowed */
	void *arg;                                 /* of all of them */
};

/* The listener is open when it returns. listen_fd is consumed, also on errors. */
int sessions_new(struct sessions **ret, const struct sessions_deps *deps, struct dray_err *reterr);

/*
 * After sessions_stop() is done. If it is not, what workers may still look at is left to them and
 * to the end of the process.
 */
struct sessions *sessions_free(struct sessions *s);

/* From workers. The packet of a request is consumed. */
void sessions_handle_request(struct sessions *s, dray_handle session, struct packet *packet);
void sessions_handle_eof(struct sessions *s, dray_handle session, uint32_t code);
void sessions_handle_gone(struct sessions *s, dray_handle session);
void sessions_handle_fault(struct sessions *s, dray_handle session);
/* EVENT_NOTIFY: deliver, then COMMAND_NOTIFIED to that worker. The packet is consumed. */
void sessions_handle_notify(struct sessions *s, unsigned worker, uint64_t transfer,
			    dray_handle remote, uint64_t tag, struct packet *packet);

/* The upcalls of peers and regions that end here. */
void sessions_remote_fenced(struct sessions *s, dray_handle peer, uint64_t grant, uint32_t code);
/* Keys of a remote that was imported, NULL: none; the reference is consumed. */
void sessions_remote_keys(struct sessions *s, dray_handle peer, uint64_t grant,
			  struct rail_keys *keys);
/* Bytes of a remote that was imported, 0 if it is not known. */
uint64_t sessions_remote_length(struct sessions *s, dray_handle peer, uint64_t grant);
void sessions_peer_lost(struct sessions *s, dray_handle peer, uint32_t code, const char *why);
void sessions_peer_draining(struct sessions *s, dray_handle peer);
void sessions_revoke_local(struct sessions *s, dray_handle remote, uint32_t code, bool urgent);
uint32_t sessions_deliver(struct sessions *s, dray_handle region, const uint8_t agent_id[16],
			  uint64_t incarnation, uint64_t id, uint64_t tag, const uint8_t *payload,
			  uint32_t length);

/*
 * A segment has another state, or another one is preferred: told to every session that asked for it
 * at HELLO. Text is copied; a reason is cut to 256 bytes. Changes that a client has not read yet are
 * merged, so that it gets the last of each segment, in the order in which these came; what waits for
 * the slowest client is kept once, for up to limits.segments segments, beyond which the oldest goes.
 */
void sessions_segment_changed(struct sessions *s, const struct dmsg_segment_changed *m);
/* EVENT_SENT: there is room for more of these. */
void sessions_handle_sent(struct sessions *s, dray_handle session);

/* data.allow_uids and data.allow_gids have changed. On error the former lists stay. */
int sessions_reload(struct sessions *s, struct dray_err *reterr);

/* Drain: no new sessions, regions, imports or transfers; every client is told. */
void sessions_drain(struct sessions *s, uint32_t deadline_ms);
void sessions_resume(struct sessions *s);
/* Ends a session as if its client had died, but tells the client why. -ENOENT if it is unknown. */
int sessions_close(struct sessions *s, dray_handle session, const char *why);
/* Closes listener and all sessions; done(arg) when the last is gone, not inside the call. */
void sessions_stop(struct sessions *s, void (*done)(void *arg), void *arg);

struct session_info {
	dray_handle session;
	const char *name, *group;
	uint32_t uid, gid, pid, worker, regions, remotes, tokens;
	bool ring;
	uint64_t transfers, bytes; /* that have ended; moved */
	int64_t age_ns;
};

void sessions_each(struct sessions *s, void (*fn)(void *arg, const struct session_info *info),
		   void *arg);
void sessions_totals(struct sessions *s, uint64_t *ret_open, uint64_t *ret_total,
		     uint64_t *ret_refused, uint64_t *ret_remotes, uint64_t *ret_notified,
		     uint64_t *ret_notify_refused);
/* Worker that serves it; -1 if unknown. */
int session_worker(struct sessions *s, dray_handle session);

#endif
