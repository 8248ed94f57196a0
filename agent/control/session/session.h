/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions on the data socket: admission by kernel credentials, HELLO, groups, quotas, and every request other than
 * transfers, which the session's worker carries out. Control thread only.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/config/tenant.h"
#include "agent/control/owner/owner.h"
#include "agent/control/peer/peer.h"
#include "agent/control/region/region.h"
#include "agent/data/data.h"
#include "schema/gen/dbus.h"

struct hints;
struct mailboxes;
struct mooncake_client;
struct segments;
struct sessions;

/* Bytes of each text of an environment. */
#define PLACEMENT_ENV_MAX ((DMSG_ENV_GET_REPLY_BODY_MAX - DMSG_ENV_GET_REPLY_MIN) / 2)

struct passed_data_socket {
	char tenant[TENANT_BYTES];
	int fd;
};

struct sessions_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct owners *owners;
	struct regions *regions;
	struct peers *peers;
	struct mailboxes *mailboxes;
	struct mooncake_client *mooncake; /* NULL: without mooncake.import */
	struct gpus *gpus;                /* NULL: none */
	const uint8_t *agent_id;
	uint64_t incarnation;
	/* Opens a pidfd of this process for a client that wants one; -errno: the client gets none. */
	int (*open_pidfd)(void);
	int listen_fd; /* passed by systemd (name "data"), or -1: data.socket is bound */
	/* Passed by systemd for further tenants; borrowed, but their descriptors are consumed. */
	const struct passed_data_socket *passed;
	unsigned n_passed;
	struct hints *hints;
	struct segments *segments;
	/* A session has begun to end. */
	void (*closed)(void *arg, dray_handle session, const struct owner *owner, const char *name,
		       const char *why);
	/*
	 * The environment for a launcher. profiles: terminated, separated by commas, "": env.profiles; DRAY_E_INVALID: an
	 * unknown profile. The results are lines NAME=VALUE and NAME: reason, each with a newline, allocated for the
	 * caller; NULL: no line. If either has more than PLACEMENT_ENV_MAX bytes, the client gets DRAY_E_TOO_LARGE. 0, or
	 * -errno with reterr. Does not block.
	 */
	int (*env_get)(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		       struct dray_err *reterr);
	void *arg; /* of both callbacks */
};

/* The listeners are open when it returns. Passed descriptors are consumed, also on errors. */
int sessions_new(struct sessions **ret, const struct sessions_deps *deps, struct dray_err *reterr);

/*
 * After sessions_stop() is done. Before that, memory that workers may still use stays allocated until the process
 * ends.
 */
struct sessions *sessions_free(struct sessions *s);

/* Events of workers. Packets and the descriptor are consumed. */
void sessions_handle_request(struct sessions *s, dray_handle session, struct packet *packet);
void sessions_handle_eof(struct sessions *s, dray_handle session, uint32_t code,
			 struct packet *goodbye);
void sessions_handle_gone(struct sessions *s, dray_handle session, int fd);
void sessions_handle_refused(struct sessions *s, dray_handle session, uint32_t code, int fd);
void sessions_handle_fds(struct sessions *s, dray_handle session, struct packet *packet);
void sessions_handle_fault(struct sessions *s, dray_handle session);
/* False: as many lines about this session, or its uid, were logged in this second as is allowed, or it has ended. */
bool sessions_may_log(struct sessions *s, dray_handle session, uint32_t *ret_dropped);
/* EVENT_NOTIFY: delivers, then sends COMMAND_NOTIFIED to that worker. The packet is consumed. */
void sessions_handle_notify(struct sessions *s, unsigned worker, uint64_t transfer,
			    dray_handle remote, uint64_t tag, struct packet *packet);

/* Upcalls of peers and regions. */
void sessions_remote_fenced(struct sessions *s, dray_handle peer, uint64_t grant, uint32_t code);
/* Keys of an imported remote, as records of pmsg_rail. */
void sessions_remote_keys(struct sessions *s, dray_handle peer, uint64_t grant,
			  const struct dray_vec *rails);
/* The owner ends the keys of the remote; answers its REKEY when they are not in use any more. */
void sessions_remote_rekey(struct sessions *s, dray_handle peer, uint64_t grant,
			   uint64_t request_id);
void sessions_peer_lost(struct sessions *s, dray_handle peer, uint32_t code, const char *why);
void sessions_peer_draining(struct sessions *s, dray_handle peer);
/* An engine with Mooncake is lost, which the remotes of some sessions belong to. */
void sessions_engine_lost(struct sessions *s, dray_handle engine, uint32_t code, const char *why);
void sessions_lease_ended(struct sessions *s, dray_handle session,
			  const struct dmsg_lease_ended *m);
void sessions_revoke_local(struct sessions *s, dray_handle remote, uint32_t code, bool urgent);
/* To the group that owns m->region. Returns an error code, 0 when queued. */
uint32_t sessions_deliver(struct sessions *s, const struct dmsg_notification *m);

/*
 * A segment changed its state, or the preferred segment changed: an event for every session that subscribed at HELLO.
 * Text is copied; a reason is cut to 256 bytes. Changes that a client has not read yet are merged, so that it gets
 * the last change of each segment, in the order of these changes. They are stored once for all clients, for up to
 * limits.segments segments; then the oldest is dropped. of_clients: only sessions whose owner's hints name the segment.
 */
void sessions_segment_changed(struct sessions *s, const struct dmsg_segment_changed *m,
			      bool of_clients);
/* Upcalls of mailboxes. */
void sessions_send_letter(struct sessions *s, dray_handle session, struct packet *packet);
void sessions_mailbox_closed(struct sessions *s, dray_handle session, uint64_t request_id);
/* The flags of a segment in messages to clients. */
uint32_t segment_flags(const struct dray_dbus_segment *s);
/* EVENT_SENT: the client has room for more segment changes or letters. */
void sessions_handle_sent(struct sessions *s, dray_handle session, enum packet_report what);

/* Announces the drain to every client; then new sessions, regions, imports and transfers are refused. */
void sessions_drain(struct sessions *s, uint32_t deadline_ms);
void sessions_resume(struct sessions *s);
/* Ends a session as if its client had died, but sends the client the reason. -ENOENT if it is unknown. */
int sessions_close(struct sessions *s, dray_handle session, const char *why);
/* Closes the listener and all sessions; done(arg) after the last has ended, not inside the call. */
void sessions_stop(struct sessions *s, void (*done)(void *arg), void *arg);

void sessions_each(struct sessions *s, void (*fn)(void *arg, const struct dray_dbus_session *s),
		   void *arg);

struct sessions_totals {
	uint64_t open, remotes;                             /* now */
	uint64_t opened, refused, notified, notify_refused; /* since the start */
};
struct sessions_totals sessions_totals(struct sessions *s);

/* Worker that serves the session; -1 if unknown. */
int session_worker(struct sessions *s, dray_handle session);
