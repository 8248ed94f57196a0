/* SPDX-License-Identifier: Apache-2.0 */
/* The session module's insides, shared by the files of this folder. */
#ifndef DRAY_AGENT_CONTROL_SESSION_INTERNAL_H
#define DRAY_AGENT_CONTROL_SESSION_INTERNAL_H

#include <sys/types.h>

#include "agent/control/socket/acceptor.h"
#include "agent/control/region/extents.h"
#include "agent/control/session/dedup.h"
#include "agent/control/session/session.h"
#include "agent/control/socket/unix_listener.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"

#define NAME_BYTES 65
#define IMPORT_TIMEOUT_NS (10 * DRAY_NS_PER_SEC)

/* Who is on the other end of a connection, by the kernel's word. */
struct credentials {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* 0 across PID namespaces */
};

/* Sorted by nothing, searched from the front: these lists are short. */
struct id_list {
	uint32_t *ids;
	size_t n;
};

/* Changes of segments that some session has yet to be sent; see segment_events.c. */
struct segment_changes {
	struct dray_list list;   /* oldest first */
	struct dray_map by_name; /* struct change, by segment */
	uint32_t n;
	uint64_t last; /* number of the youngest there ever was */
};

struct sessions {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions;
	struct peers *peers;
	uint8_t agent_id[16];
	uint64_t incarnation;
	void (*keys)(void *arg, dray_handle peer, uint64_t grant, uint64_t length,
		     const struct dray_vec *rails);
	void (*closed)(void *arg, dray_handle session, const char *name, const char *why);
	const struct placement_upcalls *placement;
	void *arg; /* of all of them */

	/* listener.c */
	struct unix_listener listener;
	struct acceptor acceptor;
	struct id_list allow_uids, allow_gids;
	struct dray_list strangers; /* oldest first */
	uint32_t n_strangers;

	struct dray_handles table, groups, remotes;
	struct dray_list group_list;
	struct quota quota; /* of the agent */
	uint32_t n_regions;
	struct dray_map remotes_of_peers; /* struct remote, by peer and grant */
	struct dedup dedup;
	struct segment_changes segment_changes;
	uint64_t notify_id; /* last given out */
	uint64_t opened, refused, notified, notify_refused;

	bool draining, stopping;
	uint32_t drain_ms;
	void (*stopped)(void *arg);
	void *stopped_arg;
	sd_event_source *stopped_source;
};

/* Sessions of one uid that named the same group. Freed with its last member. */
struct client_group {
	struct dray_list link; /* on sessions->group_list */
	struct sessions *owner;
	dray_handle handle;
	uid_t uid;
	char name[NAME_BYTES]; /* empty: of one session alone */
	struct dray_list members;
	uint32_t n_members;
	struct quota quota;
	uint32_t n_regions;
	uint64_t bytes;
};

struct session {
	struct dray_list group_link;
	struct sessions *owner;
	dray_handle handle;
	struct client_group *group;
	struct credentials who;
	char name[NAME_BYTES];
	unsigned worker;
	bool notifications;     /* asked for at HELLO */
	bool segments;          /* likewise */
	bool segments_sent;     /* some are on their way: EVENT_SENT comes */
	uint64_t segments_seen; /* number of the last change that was sent */
	uint32_t message_max;   /* what its socket takes */
	int64_t opened_ns;
	struct session_shared shared;
	struct ring_memory ring; /* arena NULL: RING_OPEN has not come */
	sd_event_source *pidfd_source;
	struct dray_list regions, remotes, imports;
	uint32_t n_regions, n_extents, n_remotes, tokens; /* n_remotes: and imports */
	uint64_t bytes;
	bool closing, worker_gone;
};

/* A region as its session's quotas know it. */
struct session_region {
	struct dray_list link;
	struct session *session;
	dray_handle handle;
	uint32_t extents;
	uint64_t bytes;
	bool adding; /* the REGION_ADD with this id is owed its answer */
	bool removing;
	bool reply_due; /* to the REGION_REMOVE with this id */
	uint64_t request_id;
};

enum remote_state {
	REMOTE_LIVE,
	REMOTE_LOST,      /* being dropped, or dropped: a handle that knows why */
	REMOTE_RELEASING, /* by request, or with its session */
	REMOTE_STATE_N
};

struct remote_key {
	dray_handle peer;
	uint64_t grant;
};

struct remote {
	struct dray_list link;      /* on session->remotes */
	struct dray_map_node index; /* on sessions->remotes_of_peers; not for local ones */
	struct remote_key key;
	struct session *session;
	enum remote_state state;
	struct remote_view view;
	uint64_t token_id;  /* local: what it was made from */
	uint32_t lost_code; /* once lost */
	bool dropping;      /* workers have not answered */
	bool retired;       /* being dropped once what is in flight has finished */
	bool fenced;        /* the owner waits for our acknowledgement */
	bool owner_gone;    /* nobody to release it to */
	bool reply_due;     /* to the REMOTE_RELEASE with this id */
	uint64_t request_id;
};

/* One message of a client. */
struct request {
	uint64_t id;
	const uint8_t *body;
	size_t length;
	int *fds; /* closed afterwards, but for those set to -1 */
	unsigned n_fds;
};

/* session.c */
int session_open(struct sessions *ss, const struct credentials *who, const struct dmsg_hello *hello,
		 struct session **ret, struct dray_err *reterr);
/* Hands it to its worker. fd: the connection, consumed. */
void session_start(struct session *s, int fd);
/* Frees one that no worker has heard of. */
void session_discard(struct session *s);
/*
 * Begins to end it. code: what its transfers end with. message: sent to the client first; NULL:
 * nothing is.
 */
void session_close(struct session *s, uint32_t code, const char *message, const char *why);
/* Frees a closing session once nothing of it is left. */
void session_check(struct session *s);
struct session *session_get(struct sessions *ss, dray_handle handle);
static inline struct region_owner session_owner(struct session *s)
{
	return (struct region_owner){ s->handle, s->shared.group, &s->tokens };
}

/* group.c */
struct client_group *group_join(struct sessions *ss, uid_t uid, const char *name,
				struct dray_err *reterr);
void group_leave(struct session *s);
void quota_init(struct quota *q, int64_t max);

/* listener.c, admission.c */
int listener_open(struct sessions *ss, int fd, struct dray_err *reterr);
void listener_close(struct sessions *ss);
int admission_load(struct sessions *ss, struct dray_err *reterr);
int admission_check(struct sessions *ss, int fd, struct credentials *ret, struct dray_err *reterr);

/* stranger.c: connections before their HELLO. */
void session_stranger_add(struct sessions *ss, int fd);
void strangers_close(struct sessions *ss);

/* reply.c: nothing is sent to a closing session. fds are consumed and set to -1. */
void session_send(struct session *s, uint64_t request_id, const uint8_t *message, int length,
		  int *fds, unsigned n_fds);
void session_send_error(struct session *s, uint64_t request_id, uint32_t code, const char *message);
void session_fail(struct session *s, uint64_t request_id, int ret, const struct dray_err *err);
/* The code and text that stand for ret where err has none. */
void error_fold(struct dray_err *err, int ret);
/* As much of UTF-8 text as fits, in whole characters. */
struct dray_str text_fit(struct dray_str s, uint32_t max);

/*
 * Handlers: 0: answered, or it will be; below 0: the dispatcher answers with reterr.
 */
int request_region_add(struct session *s, struct request *rq, struct dray_err *reterr);
int request_region_remove(struct session *s, struct request *rq, struct dray_err *reterr);
int request_region_export(struct session *s, struct request *rq, struct dray_err *reterr);
int request_region_revoke(struct session *s, struct request *rq, struct dray_err *reterr);
int request_remote_import(struct session *s, struct request *rq, struct dray_err *reterr);
int request_remote_release(struct session *s, struct request *rq, struct dray_err *reterr);
int request_notify(struct session *s, struct request *rq, struct dray_err *reterr);
int request_ring_open(struct session *s, struct request *rq, struct dray_err *reterr);
int request_hint_get(struct session *s, struct request *rq, struct dray_err *reterr);
int request_hint_put(struct session *s, struct request *rq, struct dray_err *reterr);
int request_segment_get(struct session *s, struct request *rq, struct dray_err *reterr);
int request_env_get(struct session *s, struct request *rq, struct dray_err *reterr);

/* request_region.c: all of them, urgently. */
void session_regions_close(struct session *s);

/* segment_events.c */
void segment_changes_init(struct segment_changes *x);
void segment_changes_deinit(struct segment_changes *x);
/* A new session hears of what changes from now on. */
void session_segments_start(struct session *s);
/* One that ends keeps nothing waiting. */
void session_segments_close(struct session *s);

/* ring.c */
void session_ring_close(struct session *s);

/* remote.c */
void session_remotes_close(struct session *s);
/* A remote that this session's group may use, NULL with reterr. */
struct remote *remote_get(struct session *s, dray_handle handle, struct dray_err *reterr);
struct remote *remote_find(struct sessions *ss, dray_handle handle);

#endif
