/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder alone. */
#pragma once

#include <sys/socket.h>

#include "agent/config/tenant.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mailbox/mailbox.h"
#include "agent/control/region/region.h"
#include "agent/control/session/session.h"
#include "agent/control/socket/acceptor.h"
#include "agent/control/socket/unix_listener.h"
#include "agent/data/data.h"
#include "agent/process/turn_work.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"

#define NAME_BYTES 65

/* The last notifications that peers delivered here, so that a repeated notification is delivered once. */
#define DEDUP_ENTRIES 4096

struct dedup {
	struct dedup_entry
		*entries; /* a ring: a new entry replaces the oldest; NULL before the first */
	uint32_t next;    /* place of the next entry */
	struct dray_map by_key;
};

/* Segment changes that are still to be sent to some session; see segment_events.c. */
struct segment_changes {
	struct dray_list list;   /* oldest first */
	struct dray_map by_name; /* struct change, by segment */
	uint64_t last;           /* number of the latest change */
};

#define DATA_SOCKETS_MAX (TENANTS_MAX + 1)

/* A listening socket. */
struct data_socket {
	struct sessions *owner;
	char tenant[TENANT_BYTES];
	struct unix_listener listener;
	struct acceptor acceptor;
};

struct sessions {
	struct sessions_deps deps;
	struct data_socket sockets[DATA_SOCKETS_MAX];
	unsigned n_sockets;
	struct dray_list pending_clients; /* oldest first */
	uint32_t n_pending_clients;

	struct dray_handles table, groups, remotes;
	struct dray_map remotes_of_peers; /* struct remote, by peer and grant */
	struct dray_map remote_sources;   /* struct remote_source, not of lost ones */
	struct dray_list rekeys;          /* rekey.c */
	sd_event_source *rekey_timer;
	struct dedup dedup;
	struct segment_changes segment_changes;
	uint64_t notify_id;            /* the last one used */
	struct sessions_totals totals; /* without those of now */

	bool draining, stopping;
	void (*stopped)(void *arg);
	void *stopped_arg;
	sd_event_source *stopped_source;
	sd_event_source *reaper;         /* closes sessions that are doomed */
	struct dray_list leaving;        /* closed ones whose remotes are being released */
	struct dray_list ending_sources; /* struct remote_source with remotes that are to end */
	struct turn_work remote_ends;    /* of the remotes of both */
};

/* The sessions of one owner that named the same group. Freed with its last member. */
struct client_group {
	dray_handle handle;
	const struct owner *owner; /* which the members keep */
	char name[NAME_BYTES];     /* empty: the group of one session alone */
	struct dray_list members;
	struct quota quota;
	uint32_t n_regions;
	uint64_t bytes;
};

struct session {
	struct dray_list group_link;
	struct sessions *owner;
	dray_handle handle;
	struct client_group *group;
	struct owner *uid_owner;
	struct ucred who; /* as the kernel reports the client; pid 0 across PID namespaces */
	char name[NAME_BYTES];
	unsigned worker;
	bool notifications;     /* subscribed at HELLO */
	bool segments;          /* subscribed to segment changes at HELLO */
	bool early;             /* its client knows of regions that are used early */
	bool segments_sent;     /* some are in flight: EVENT_SENT follows */
	uint64_t segments_seen; /* number of the last change that was sent */
	uint32_t message_max;   /* bytes of one message that its socket takes */
	int64_t opened_ns;
	struct session_shared shared;
	struct ring_memory ring; /* arena NULL before RING_OPEN */
	sd_event_source *pidfd_source;
	struct dray_map regions; /* struct session_region, by handle */
	struct dray_list remotes, imports;
	struct dray_list unreleased; /* remotes of a closed session; the others are on `remotes` */
	struct dray_list leaving;    /* in owner->leaving while there are some */
	struct dray_list held;       /* struct held_request */
	uint32_t held_bytes;
	struct gpu_announcement *gpu; /* the GPU of HELLO; NULL: none */
	struct mailbox_owner mailboxes;
	uint32_t n_regions, n_extents, n_remotes, tokens; /* n_remotes: with imports */
	struct lease_counts leases;
	uint64_t bytes;
	bool closing, worker_gone;
	bool doomed;            /* closing follows */
	int fd;                 /* its socket, once the worker is gone; else -1 */
	struct packet *goodbye; /* the last message to the client; NULL: none */
	struct dray_log_limit log;
};

/* A region of a session, with what it counts against the quotas. */
struct session_region {
	struct dray_map_node node; /* in session->regions */
	struct session *session;
	dray_handle handle;
	uint32_t extents;
	uint64_t bytes;
	bool adding; /* request_id is of the REGION_ADD to answer */
	bool early;  /* that is answered, and its memory is being opened */
	bool removing;
	bool replies; /* request_id is of the REGION_REMOVE to answer */
	uint64_t request_id;
	struct dray_list held; /* struct held_request, of the group's sessions */
};

/* A request that waits until its region is open, is lost, or is being removed. */
struct held_request {
	struct dray_list link, region_link;
	struct session *session;
	struct packet *packet;
};

enum remote_state {
	REMOTE_LIVE,
	REMOTE_LOST,      /* being dropped, or dropped: the handle keeps lost_code */
	REMOTE_RELEASING, /* by a request, or with its session */
};

struct remote_key {
	dray_handle peer;
	uint64_t grant;
};

/* A peer, or an engine with Mooncake, whose remotes exist here. */
struct remote_source_key {
	dray_handle handle;
	uint64_t is_engine;
};

struct remote_source {
	struct dray_map_node node; /* in sessions->remote_sources unless it is lost */
	struct remote_source_key key;
	struct dray_list remotes;
	struct dray_list ending;      /* remotes that are to be lost, or retired */
	struct dray_list ending_link; /* in sessions->ending_sources */
	bool lost;                    /* else it drains */
	uint32_t code;
	char why[DRAY_ERR_MSG_MAX];
};

struct remote {
	struct dray_list link; /* on session->remotes, or unreleased */
	struct dray_list source_link;
	struct remote_source *source; /* NULL: of this agent, or its workers have released it */
	struct dray_map_node index;   /* in sessions->remotes_of_peers; not for local ones */
	struct remote_key key;
	struct session *session;
	enum remote_state state;
	struct remote_view view;
	uint64_t token_id;  /* of a local remote */
	bool is_lease;      /* it holds a lease, whose ranges are in the view; one reference */
	bool used;          /* its session has released it while it was live */
	uint32_t lost_code; /* in REMOTE_LOST */
	bool dropping;      /* the workers have not released it yet */
	bool retired;       /* transfers in flight may finish before it is dropped */
	bool fenced;        /* the owner waits for our acknowledgement */
	bool owner_gone;    /* the owner is lost, or knows that it is released */
	bool replies;       /* request_id is of the REMOTE_RELEASE to answer */
	uint64_t request_id;
	struct dray_list keys; /* that workers and work requests may use: rekey.c */
	/* of an engine with Mooncake: one reference each, which remotes of the engine share; else NULL */
	struct mooncake_buffers *buffers; /* those of the view */
	struct rail_keys *engine_keys;    /* over RDMA */
	uint32_t n_buffers;               /* that are counted for the owner */
};

/* An import or acquisition that waits for the owner's answer. */
struct pending_import {
	struct dray_list link;
	struct session *session;
	uint64_t request_id;
	bool is_lease, is_mooncake;
	uint64_t id; /* of peer_import() or mooncake_import() */
	char label[DMSG_LABEL_MAX + 1];
};

/* One message of a client. */
struct request {
	uint64_t id;
	union dmsg_body m;
	int *fds; /* closed afterwards, except those set to -1 */
	unsigned n_fds;
};

/* rekey.c: `held` is the list of a remote's keys. */

/* Reads records of pmsg_rail. The keys belong to `held`. NULL: there are none, or no memory. */
struct rail_keys *remote_keys_hold(struct dray_list *held, const struct dray_vec *rails,
				   uint64_t length);
/* Empties `held`: answers the peer's REKEY when nothing uses its keys any more. */
void remote_keys_end(struct sessions *ss, struct dray_list *held, dray_handle peer,
		     uint64_t request_id);
void remote_keys_forget(struct dray_list *held);
void rekeys_free(struct sessions *ss);

/* session.c */
int session_open(struct sessions *ss, struct owner *o, const struct ucred *who,
		 const struct dmsg_hello *hello, struct session **ret, struct dray_err *reterr);
/* Hands the session to its worker. fd: the connection, consumed. */
void session_start(struct session *s, int fd);
/* Frees a session that no worker knows. */
void session_discard(struct session *s);
/* Begins to end it. message: sent to the client at the end, as an ERROR with `code`; NULL: none. */
void session_close(struct session *s, uint32_t code, const char *message, const char *why);
/* There is no memory for a reply: closes the session, but not inside the call, which the caller may not expect. */
void session_doom(struct session *s);
/* Frees a closing session after all its parts have ended. */
void session_check(struct session *s);
struct session *session_get(struct sessions *ss, dray_handle handle);

/* Logs a line about the session within limits.log_lines_per_session, and those of its uid. */
#define session_log(s, level, ...)                                                             \
	do {                                                                                   \
		uint32_t more_;                                                                \
		if (session_may_log(s, &more_)) {                                              \
			owner_log((s)->uid_owner, level, "session", __VA_ARGS__);              \
			if (more_)                                                             \
				owner_log((s)->uid_owner, level, "session",                    \
					  "%u more lines about this session session=%" PRIu64, \
					  more_, (s)->handle);                                 \
		}                                                                              \
	} while (0)
bool session_may_log(struct session *s, uint32_t *ret_dropped);
/* The next session that is not closing; start with *cursor = 0. */
struct session *session_next(struct sessions *ss, uint32_t *cursor);
static inline struct region_owner session_owner(struct session *s)
{
	return (struct region_owner){ s->handle, s->shared.group, &s->tokens, &s->leases,
				      s->uid_owner };
}

/* data_socket.c. 0, or -errno with reterr; data_sockets_close() follows either. */
int data_sockets_open(struct sessions *ss, struct dray_err *reterr);
void data_sockets_close(struct sessions *ss);

/* pending_client.c: connections before their HELLO. */
/* fd: consumed. */
void pending_client_new(struct sessions *ss, const char *tenant, int fd);
/* Clients of the owner may be read again. */
void pending_clients_go_on(struct sessions *ss, const struct owner *o);
void pending_clients_close(struct sessions *ss);

/* reply.c: nothing is sent to a closing session. */

/* m may be NULL for messages without fields. */
void session_send(struct session *s, uint64_t request_id, uint16_t type, const union dmsg_body *m);
/* fds are consumed and set to -1. */
void session_send_fds(struct session *s, uint64_t request_id, uint16_t type,
		      const union dmsg_body *m, int *fds, unsigned n_fds);
/* Hands a packet to the session's worker. */
void session_post(struct session *s, uint64_t request_id, struct packet *p);
void session_send_error(struct session *s, uint64_t request_id, uint32_t code, const char *message);
/* Sends the error. If err is empty, code and text follow from ret. */
void session_fail(struct session *s, uint64_t request_id, int ret, const struct dray_err *err);
void error_fold(struct dray_err *err, int ret);
/* Copies and terminates text of less than size bytes. */
void text_copy(char *to, size_t size, struct dray_str from);
/* As much of UTF-8 text as fits, in whole characters. */
struct dray_str text_fit(struct dray_str s, uint32_t max);

/* request.c */
/* Requests go on that have waited for a region, whose list this is. Empties it. */
void requests_go_on(struct dray_list *held);
/* Frees what the session still holds. */
void requests_forget(struct session *s);

/* A handler of a request. 0: answered now or later; below 0: the dispatcher answers with reterr. */
typedef int request_fn(struct session *s, struct request *rq, struct dray_err *reterr);
request_fn request_region_add, request_region_remove, request_region_export, request_region_revoke,
	request_remote_import, request_remote_release, request_notify, request_ring_open,
	request_hint_get, request_hint_put, request_segment_get, request_env_get, request_lease,
	request_lease_acquire, request_lease_renew, request_lease_end, request_mailbox_open,
	request_mailbox_close, request_post;

/* request_region.c: removes all regions, urgently. */
void session_regions_close(struct session *s);

/* segment_events.c */
void segment_changes_deinit(struct segment_changes *x);
/* Frees the changes that every session was sent. */
void segment_changes_trim(struct sessions *ss);
/* The changes that were in flight to this client have been sent: the next ones follow. */
void segment_changes_sent(struct session *s);

/* ring.c: after the workers have released the ring. */
void session_ring_close(struct session *s);

/* remote.c */

/* NULL with reterr. */
struct remote *remote_new(struct session *s, struct dray_err *reterr);
/* For a remote that no worker knows. */
void remote_free(struct remote *r);
/* NULL with reterr: the session may have no more remotes, or there is no memory. Counts as a remote until it is uncounted. */
struct pending_import *pending_import_new(struct session *s, uint64_t request_id,
					  struct dray_err *reterr);
/* Its place is free, or for the remote that it becomes. */
void pending_import_uncount(struct pending_import *i);
/* expiry_ms: of a lease. */
void remote_reply_imported(const struct remote *r, uint64_t request_id,
			   enum dmsg_transport transport, uint32_t expiry_ms);

/* engine_remote.c: segments of engines with Mooncake. */
bool is_engine_token(struct dray_blob token);
int import_engine(struct session *s, uint64_t request_id, struct dray_blob token,
		  uint32_t timeout_ms, struct dray_err *reterr);

void remote_lose(struct remote *r, uint32_t code, const char *why, bool urgent);
/* The owner drains: transfers in flight may finish, then the grant is released. */
void remote_retire(struct remote *r);

/* remote_source.c: remotes by the peer or engine that they are of. */

/* 0, or -ENOMEM with reterr. */
int remote_join_source(struct remote *r, dray_handle handle, bool is_engine,
		       struct dray_err *reterr);
/* Nothing of the source concerns the remote any more. */
void remote_leave_source(struct remote *r);
/* Ends one remote of a source that is lost or drains. False: there is none. */
bool remote_sources_step(struct sessions *ss);

/* Remotes of closed sessions, and of peers that are lost or drain, that end in one turn of the loop, each with commands to the workers. */
#define REMOTES_PER_TURN 512

/* 0 or -errno. */
int remotes_work_init(struct sessions *ss);
void session_remotes_close(struct session *s);
/* A live remote of this session's group, or NULL with reterr. */
struct remote *remote_get(struct session *s, dray_handle handle, struct dray_err *reterr);
struct remote *remote_find(struct sessions *ss, dray_handle handle);
