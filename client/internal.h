/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle (struct dray) and the functions that the files of libdray share.
 *
 * handle.c    options, dray_connect(), dray_disconnect()
 * session.c   connecting, HELLO, the ring, registering regions again; the loss of a session
 * send.c      requests into messages
 * receive.c   replies and events from the agent
 * request.c   the states of a request, from its start to its completion
 * engine.c    the event loop: epoll, spinning, sleeping, timers
 * split.c     transfers with more operations than one submission takes
 * transfer.c  submission by ring, arena or message; completions; cancelling
 * proof.c     deadlines of transfers, and proof that memory is free
 * region.c    regions and pools; extents.c: the extents of a new region
 * remote.c    imported tokens and notifications; token.c: exported tokens
 * lease.c     leases of regions, and their renewal by holders
 * mailbox.c   mailboxes and letters
 * store.c     the store of the agent
 * placement.c hints, the preferred segment, the launcher's environment
 * memory.c    memory that can be registered
 * thread.c    the lock of a handle, sleeping threads, results that belong to a thread
 *
 * Names with external linkage begin with dc_, because test programs also link the agent.
 *
 * dc_session_break() only marks the session as lost: it can be called from any depth, also while
 * callers hold pointers to requests. dc_session_settle() carries the loss out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/arena.h"
#include "client/dray.h"
#include "client/proof.h"
#include "client/request.h"
#include "client/ring.h"
#include "client/split.h"
#include "client/thread.h"
#include "lib/err.h"
#include "lib/handle.h"
#include "lib/linger.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/seqpacket.h"
#include "lib/time.h"

#define NAME_MAX_BYTES 64
#define HANDLES_MAX (16384 / DRAY_CUDA_IPC_BYTES) /* of one region; the schema limits the bytes */
#define REGIONS_MAX (1U << 16)
#define REMOTES_MAX (1U << 20)
#define LEASES_MAX (1U << 20)
#define MAILBOXES_MAX (1U << 16)

/* The minor versions of the data protocol that brought flags of HELLO and requests. */
#define SEGMENTS_MINOR 1
#define PLACEMENT_MINOR 1
#define GPU_MINOR 2
#define AGENT_PIDFD_MINOR 3
#define LEASE_MINOR 4
#define MAILBOX_MINOR 4
#define STORE_MINOR 4
#define MOONCAKE_MINOR 4

enum session_state {
	SESSION_DOWN,    /* the next attempt starts at retry_at */
	SESSION_HELLO,   /* waits for the reply to HELLO */
	SESSION_RING,    /* waits for the reply to RING_OPEN */
	SESSION_RESTORE, /* regions are being registered again */
	SESSION_READY,
	SESSION_CLOSED /* there will be no further attempt */
};

enum region_state {
	REGION_ADDING, /* the first REGION_ADD is pending */
	REGION_LIVE,   /* registered, or to be registered again with the next session */
	REGION_BROKEN, /* could not be opened, or registered again */
	REGION_REMOVING
};

struct region {
	dray_region handle;
	uint64_t agent; /* the agent's handle in this session; 0: not registered */
	enum region_state state;
	int code; /* why the region is broken */
	bool borrowed, is_pool;
	bool waits; /* DRAY_REGION_WAIT */
	uint16_t access, flags;
	uint64_t length;
	char name[NAME_MAX_BYTES];
	uint32_t name_n;
	int *fds;
	uint32_t fds_n;
	uint8_t *extents; /* records in wire form */
	uint32_t extents_n;
	char device[NAME_MAX_BYTES];
	uint32_t device_n;
	uint8_t *handles; /* CUDA IPC handles, back to back */
	uint32_t handles_n;
	uint8_t *allocations; /* one record in wire form for each descriptor */
	bool has_sizes;       /* at least one allocation has a size */
	bool needs_gpu;       /* has kinds that agents know since data protocol 1.2 */
	void *map;            /* pools */
	uint64_t map_bytes;
};

struct remote {
	dray_remote handle;
	uint64_t agent; /* the agent's handle; 0 once the session is lost */
	int lost;
	bool borrowed, releasing;
	uint64_t length;
	uint32_t access, transport;
};

struct lease {
	dray_lease handle;
	uint64_t agent;     /* the agent's handle; 0 once the session is lost */
	struct agent *lost; /* then: whose end proves that the ranges are free */
};

enum mailbox_state {
	MAILBOX_OPENING, /* the first MAILBOX_OPEN is pending */
	MAILBOX_OPEN,    /* open, or to be opened again with the next session */
	MAILBOX_BROKEN,  /* could not be opened again */
	MAILBOX_CLOSING
};

struct mailbox {
	dray_mailbox handle;
	uint64_t agent; /* the agent's handle in this session; 0: not open */
	enum mailbox_state state;
	uint32_t capacity, name_n;
	char name[DRAY_MAILBOX_NAME_MAX];
};

struct event {
	struct dray_list link;
	uint64_t order;
	struct dray_event e;
	uint8_t data[]; /* payload, then the message */
};

#define EVENT_TYPES (DRAY_EVENT_DROPPED + 1)

/* Events that can be taken. */
struct events {
	struct dray_list of[EVENT_TYPES]; /* by type, each in the order in which they came */
	uint32_t n_of[EVENT_TYPES];
	uint64_t dropped[EVENT_TYPES]; /* and not reported yet */
	uint32_t n, dropped_types;     /* in the lists; with a number in `dropped` */
	uint64_t last;                 /* order of the last one */
};

struct dray {
	volatile uint32_t *owner; /* a page of its own, which reads 0 in a forked child */
	int owner_pid;            /* for kernels without MADV_WIPEONFORK; else 0 */
	uint64_t serial;          /* tells this handle from earlier ones at its address */
	struct threads threads;   /* its lock guards everything below */

	/* options */
	struct sockaddr_un address;
	char group[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1], gpu[NAME_MAX_BYTES + 1];
	uint32_t flags, ring_entries, events_max;
	uint64_t arena_wanted;
	int64_t spin_ns; /* longest spin */
	bool spin_fixed; /* set by the caller or the environment: the number of CPUs is ignored */
	int64_t connect_ns, request_ns, retry_min_ns, retry_max_ns, retry_for_ns;

	/* session */
	enum session_state state;
	int epoll_fd, timer_fd, sock;
	bool reading, writing; /* what epoll watches the socket for */
	bool fds_lost;         /* the current message lost its descriptors: our limit is reached */
	uint32_t restoring;    /* REGION_ADDs and MAILBOX_OPENs that are pending */
	int64_t state_until;   /* timeout of the state; READY: INT64_MAX */
	int64_t retry_at, retry_ns, lost_at;
	int64_t patience_ns;  /* of requests that wait for the session; 0: without limit */
	int64_t timer_at;     /* expiry of the timer; INT64_MAX: off */
	uint8_t hello_minor;  /* HELLO has no flags of later minor versions */
	bool hello_again;     /* the agent refused a flag: HELLO is repeated for its version */
	bool closed_by_agent; /* the present loss */
	bool in_background;   /* dray_connect_start(): events tell of the first session too */
	bool ever_ready;
	struct dray_err loss; /* code 0: not broken; the text is of the last loss */
	struct dray_err last_loss;
	uint64_t losses;
	uint64_t epoch; /* counts sessions */
	uint64_t lost_incarnation;
	int lost_code;

	/* from the replies to HELLO and RING_OPEN */
	uint64_t session, incarnation;
	uint8_t minor;
	bool segments;     /* changes of segments are delivered */
	bool store_ring;   /* requests to the store go by the ring, if it has room */
	bool store_at;     /* the agent puts objects at others */
	bool region_early; /* it answers before GPU memory is open, unless asked to wait */
	uint8_t agent_id[16];
	char segment[257], version[65];
	uint32_t ops_inline_max;
	char no_ring[257]; /* why there is no ring; empty: there is, or none is wanted */
	bool arena_alone;  /* RING_OPEN asks for no ring, because the agent has refused one */
	struct ring ring;
	uint8_t *arena_base; /* NULL: no arena */
	uint64_t arena_bytes;
	struct arena arena;

	struct requests requests;
	struct proof proof;
	struct dray_list splits; /* wholes that have not ended */
	struct dray_handles regions, remotes, leases, mailboxes;
	struct dray_list files; /* of store.c, as the next two */
	struct dray_map store_leases;
	void *store_lists; /* of the batch that is being encoded */
	struct events events;

	/* engine */
	struct dray_linger linger;
	uint64_t spun, slept; /* waits that ended while spinning; the others */
	uint32_t turns;
	bool doorbell_rang; /* in the last poll of epoll */
	bool in_callback;
	/*
	 * dray_fd(): an epoll instance that watches the engine's and an eventfd, which is readable
	 * while completions or events that other threads received can be taken. -1: not asked for.
	 */
	int user_fd, ready_fd;
	bool ready_set;       /* ready_fd is readable */
	bool armed;           /* completions of the ring wake dray_fd() */
	uint32_t called_back; /* callbacks that were run */

	uint8_t *out, *in, *in_ring; /* DMSG_MESSAGE_MAX each; in_ring: copies from the arena */
	uint8_t *ops;                /* DMSG_OPS_INLINE_MAX records, before they are encoded */
};

/* error.c */
/* The thread's error, cleared, for a failure of a function of d. */
struct dray_err *dc_error_new(const struct dray *d);
/* Sets the text for dray_last_error(). Returns -code. */
#define dc_fail(d, reason, ...) dray_err_set(dc_error_new(d), -(reason), (reason), __VA_ARGS__)
/* The code of the last dc_fail() of this thread, negated. */
static inline int dc_failed(void)
{
	return -dc_results()->error.code;
}
/* There is no such object: dc_fail() with what the id is instead, if it is of another kind. */
int dc_no_such(const struct dray *d, uint64_t id, enum dmsg_handle_kind kind);
/* The code for an errno value of either sign. */
int dc_code_of_errno(int error);

/* What epoll watches */
enum { ENGINE_SOCKET, ENGINE_DOORBELL, ENGINE_TIMER, ENGINE_AGENT };

/* session.c */
/* Marks the session as lost, by its first reason. Returns -code. */
#define dc_session_break(d, code, ...) dray_err_set(&(d)->loss, -(code), (code), __VA_ARGS__)
#define dc_session_defect(d, ...) dc_session_break((d), DRAY_E_PROTOCOL, __VA_ARGS__)
/* Carries out the loss that dc_session_break() marked. False if there is none. */
bool dc_session_settle(struct dray *d);
void dc_session_tick(struct dray *d, int64_t now);
int64_t dc_session_next_tick(const struct dray *d);
void dc_session_hello_reply(struct dray *d, const struct dmsg_hello_reply *m, struct dray_fds *fds);
void dc_session_ring_refused(struct dray *d, struct dray_str why);
void dc_session_ring_reply(struct dray *d, const struct dmsg_ring_open_reply *m,
			   struct dray_fds *fds);
/* Registers the regions and opens the mailboxes again; the session is ready when all are answered. */
void dc_session_restore(struct dray *d);
/* One of them is answered. */
void dc_session_object_restored(struct dray *d);
/* There is a new request: a lost session whose requests have limited patience is tried at once. */
void dc_session_hurry(struct dray *d);
void dc_session_free(struct dray *d);
/* For dc_engine_wait(). */
bool dc_session_up_or_closed(struct dray *d, const void *arg);
/*
 * Sends n bytes of d->out. 0; -EAGAIN: the socket is full and now watched for room; -EPIPE: the
 * agent has closed, which the engine finds next; another -errno.
 */
int dc_session_send(struct dray *d, size_t n, const int *fds, unsigned n_fds);

static inline bool dc_session_is_up(const struct dray *d)
{
	return d->state == SESSION_READY && !d->loss.code;
}

/* receive.c: takes messages off the socket until it is empty. */
/* to_the_end: the agent is gone, and what it has sent is read however many events that are. */
void dc_receive_all(struct dray *d, bool to_the_end);
/* The message in d->in_ring answers r, whose entry is completed. */
void dc_receive_answer(struct dray *d, struct request *r, size_t n);
/* The agent refuses r without a message. */
void dc_receive_refusal(struct dray *d, struct request *r, uint32_t code);

/* engine.c */
/* Runs the loop until ready() or `until` (0: one poll; INT64_MAX: no limit). True if ready. */
bool dc_engine_wait(struct dray *d, engine_ready_fn ready, const void *arg, int64_t until);
/* Makes the thread that sleeps in epoll look again. */
void dc_engine_wake_poller(struct dray *d);
/* One poll without sleeping, for callers whose program may wait on dray_fd() next. */
void dc_engine_poll(struct dray *d);
int64_t dc_engine_until(int timeout_ms);
/* At the end of a blocking function: makes dray_fd() readable if there is something to take. */
void dc_engine_leave(struct dray *d);
/* Sets the limit for spinning from the options and the CPUs that are available now. */
void dc_engine_limit(struct dray *d);
/* Tells epoll of a change of reading or writing. */
void dc_engine_watch(struct dray *d);
/* Goes on reading the socket, if a full queue of events has stopped that. */
void dc_engine_read(struct dray *d);

/* transfer.c */
/* Submits what fits into one submission. */
int dc_transfer_submit_part(struct dray *d, const struct dray_transfer *t, struct request **ret);
void dc_transfer_take_ring(struct dray *d);
void dc_transfer_ended(struct dray *d, struct request *r);
void dc_transfer_cancel_failed(struct dray *d, struct request *cancel, int status);

/* region.c */
struct region *dc_region_find(struct dray *d, dray_region handle);
/* For callers of the library: not while the region is being added or removed. */
struct region *dc_region_get(struct dray *d, dray_region handle);
/* dc_request_start() for a request about a region that dc_region_get() finds. */
struct request *dc_region_request(struct dray *d, uint16_t type, dray_region region, void *arg,
				  struct region **ret);
struct region *dc_region_find_agent(struct dray *d, uint64_t agent);
void dc_region_free(struct dray *d, struct region *g);
/*
 * The reply to REGION_ADD. Takes the pool's descriptor out of fds. 0, or a negated code; the agent's
 * defects also break the session, as in the other functions for replies.
 */
int dc_region_added(struct dray *d, struct request *r, const struct dmsg_region_add_reply *m,
		    struct dray_fds *fds);
/* A REGION_ADD or REGION_REMOVE has ended. */
void dc_region_ended(struct dray *d, struct request *r, struct dray_str message);
void dc_regions_lost(struct dray *d);
/* A region that was added early cannot be opened: code, below 0. */
void dc_region_lost(struct dray *d, const struct dmsg_region_lost *m, int code);
/* Queues a REGION_ADD for each region of the last session and adds them to d->restoring. */
void dc_regions_restore(struct dray *d);

/* extents.c */
int dc_extents_check(struct dray *d, const struct dray_region_spec *s);
/* Touches the memory of a spec that was checked. Needs no lock. 0, or a negated code. */
int dc_extents_populate(struct dray *d, const struct dray_region_spec *s);
/* Fills g from a spec whose memory is populated. 0, or a negated code. */
int dc_extents_take(struct dray *d, struct region *g, const struct dray_region_spec *s);

/* memory.c */
/* Touches every page of an extent of a memfd. 0, or negative with reterr. */
int dc_memory_populate(int fd, uint64_t offset, uint64_t length, struct dray_err *reterr);

/* token.c */
int dc_token_made(struct dray *d, struct request *r, const struct dmsg_region_export_reply *m);
void dc_token_ended(struct dray *d, struct request *r);

/* The token of an answer, which becomes the one of r. 0, or a negated code. */
int dc_token_take(struct dray *d, struct request *r, struct dray_blob bytes, uint64_t id);

/* lease.c */
int dc_lease_made(struct dray *d, struct request *r, const struct dmsg_lease_reply *m);
/* A LEASE or LEASE_END has ended. */
void dc_lease_request_ended(struct dray *d, struct request *r);
void dc_lease_ended(struct dray *d, const struct dmsg_lease_ended *m);
/* Encodes a LEASE into d->out, as dc_request_go_with() does for others; or LEASE_END. */
int dc_lease_encode(struct dray *d, const struct request *r, const struct region *g);
int dc_lease_encode_end(struct dray *d, const struct request *r);
/* The session is lost: its leases end when there is proof. */
void dc_leases_lost(struct dray *d);
/* There is, about this agent. */
void dc_leases_proven(struct dray *d, const struct agent *a);
void dc_leases_free(struct dray *d);

/* placement.c: 0, or a negated code. */
int dc_placement_answered(struct dray *d, struct request *r, const union dmsg_body *m);

/* remote.c */
struct remote *dc_remote_find(struct dray *d, dray_remote handle);
int dc_remote_imported(struct dray *d, struct request *r, const struct dmsg_remote_import_reply *m);
int dc_remote_acquired(struct dray *d, struct request *r, const struct dmsg_lease_acquire_reply *m);
/* dc_request_start() for a request about a remote of the caller's. */
struct request *dc_remote_request(struct dray *d, uint16_t type, dray_remote remote, void *arg,
				  struct remote **ret);
void dc_remote_lost(struct dray *d, const struct dmsg_remote_lost *m, int code);
void dc_remote_ended(struct dray *d, struct request *r);
void dc_remotes_lost(struct dray *d, int code);
void dc_remotes_free(struct dray *d);

/* mailbox.c; id: of a dray_mailbox */
struct mailbox *dc_mailbox_find(struct dray *d, uint64_t id);
struct mailbox *dc_mailbox_find_agent(struct dray *d, uint64_t agent);
int dc_mailbox_opened(struct dray *d, struct request *r, const struct dmsg_mailbox_open_reply *m);
/* A MAILBOX_OPEN or MAILBOX_CLOSE has ended. */
void dc_mailbox_ended(struct dray *d, struct request *r, struct dray_str text);
void dc_mailboxes_lost(struct dray *d);
/* Queues a MAILBOX_OPEN for each mailbox of the last session and adds them to d->restoring. */
void dc_mailboxes_restore(struct dray *d);
void dc_mailboxes_free(struct dray *d);

/* store.c */
/* The message of a request to the store, in d->out. Its bytes, or a negated code. */
int dc_store_encode(struct dray *d, const struct request *r, const char **ret_why);
/* Puts n bytes of d->out, the message of r, into the ring. False: by the socket. */
bool dc_store_submit(struct dray *d, struct request *r, size_t n);
/* A PUT or GET of so many bytes is sent, or no longer in flight. */
void dc_copy_sent(struct requests *q, uint64_t bytes, int64_t now);
void dc_copy_ended(struct requests *q, uint64_t bytes, int64_t now);
/* The time in ns until all requests in flight have probably ended, if all are PUTs and GETs; else 0. */
int64_t dc_copies_left(const struct requests *q, int64_t now);
/* The agent takes no entry any more, and the ring is still there: requests that it has not taken wait for the next session, in their order and before those that are queued. */
void dc_store_take_back(struct dray *d);
/* The entry of r is completed. */
void dc_store_completed(struct dray *d, struct request *r, const struct dmsg_cqe *e);
int dc_store_answered(struct dray *d, struct request *r, const union dmsg_body *m,
		      const struct dray_fds *fds);
/* A READ has ended: leases that no caller will see end. */
void dc_store_read_ended(struct dray *d, struct request *r);
void dc_store_init(struct dray *d);
/* Numbers of the agent's memfds are void. What is mapped stays until its leases are released. */
void dc_store_lost(struct dray *d);
void dc_store_free(struct dray *d);

/* event.c: the new event, whose text is copied, or NULL if there is no memory for it. */
struct dray_event *dc_event_add(struct dray *d, enum dray_event_type type, int code,
				struct dray_str text);
void dc_event_notification(struct dray *d, const struct dmsg_notification *m);
void dc_event_segment(struct dray *d, const struct dmsg_segment_changed *m);
void dc_event_letter(struct dray *d, const struct dmsg_letter *m);
void dc_events_init(struct events *q);
void dc_events_free(struct dray *d);
/* Events that can be taken, with those that tell of dropped ones. */
uint32_t dc_events_count(const struct dray *d);
/* The program takes events too slowly to be sent more of them. */
bool dc_events_full(const struct dray *d);
