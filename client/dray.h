/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: the client side of dray. A handle (struct dray) is a session with this node's agent.
 * With it an engine registers memory as regions, exports tokens for ranges of them, imports tokens
 * of other engines, and lets the agent move bytes between its own regions and the imported ranges.
 *
 * Rules for all functions, unless their comment says otherwise:
 *
 * Thread:    any thread may call any function of a handle at any time, apart from
 *            dray_disconnect(), which must be the last call. Each completion and each event is
 *            taken by one thread. A function that does not block waits for other threads for
 *            some microseconds at most, since none of them holds the handle while it sleeps. The
 *            library starts no threads, installs no signal handlers, prints nothing, raises no
 *            SIGPIPE, and never ends the process.
 * Fork:      a child must not use an inherited handle. All functions return -DRAY_E_OUT_OF_ORDER
 *            there, except dray_store_keep(), and dray_disconnect(), which frees the child's copy
 *            and does not affect the parent.
 * Errors:    0 is success; a negative result is a negated enum dray_error. dray_last_error() has
 *            the text of the last failure in the calling thread. Output arguments (ret_...) are
 *            written only on success.
 * Blocking:  only functions marked "Blocks" block, and at most for the time they name. Meanwhile
 *            they run the event loop: completions and events of other requests are queued, and
 *            callbacks run. Signals do not interrupt them.
 * Ownership: arguments stay the caller's. The library copies what it needs longer, and duplicates
 *            descriptors. All its descriptors are close-on-exec. What a result points to is valid
 *            until the next call of the same thread.
 * Structs:   set unused fields to zero; zero is the default of every field.
 * Units:     lengths and offsets are in bytes; times are in milliseconds if the name ends in _ms.
 *
 * Functions that send a request to the agent share these errors ("requests" below):
 * -DRAY_E_BUSY: 4096 requests are waiting to be sent; take completions first.
 * -DRAY_E_TIMEOUT: the agent has not answered in time. It may still carry the request out.
 * -DRAY_E_AGENT_RESTARTED, -DRAY_E_SESSION_CLOSED: the session was lost. With patience_ms, the
 *     result can also be the code of the last attempt to reconnect.
 * -DRAY_E_NO_MEMORY: this process or the agent has no memory left.
 *
 * scripts/c-reference makes the manual pages of client/man from these comments. The first sentence
 * is the heading. The labels Returns, Blocks, Thread, Ownership and Errors begin paragraphs, and
 * Example is the last one. Errors names what it includes: requests, functions, and requests of the
 * data protocol, whose errors the schema lists, without the codes named there; then it lists the
 * function's own. A comment in the line of a member belongs to it, one above it to the next.
 */
#ifndef DRAY_H
#define DRAY_H

#include <stddef.h>
#include <stdint.h>

#include "dray_errors.h" /* enum dray_error */

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DRAY_API __attribute__((visibility("default")))
#else
#define DRAY_API
#endif

/* --- errors --- */

/*
 * Returns the meaning of an error. Takes a code of enum dray_error or its negation, as functions
 * return it and completions and events contain it.
 *
 * Returns: static text, never NULL; "unknown" for a code that is newer than this library.
 */
DRAY_API const char *dray_strerror(int error);

/*
 * Returns the stable name of an error, such as peer_lost. Takes the code or its negation. Logs and
 * other languages have the same names.
 *
 * Returns: static text, never NULL; "unknown" for a code that is newer than this library.
 */
DRAY_API const char *dray_strerrorname(int error);

/*
 * Returns what to do about an error. Takes the code or its negation.
 *
 * Returns: static text, never NULL; "unknown" for a code that is newer than this library.
 */
DRAY_API const char *dray_strerrorfix(int error);

/* --- checksums --- */

/*
 * Returns the checksum of bytes. It is the CRC-32C (Castagnoli) of RFC 3720, computed by the fastest
 * way that the processor has. The checksum of bytes in several parts comes from one call for each,
 * in their order, with the result of the call before; the first call has 0.
 *
 * Returns: the checksum of all bytes so far; for no bytes what it was before.
 *
 * Example:
 *     uint32_t sum = dray_checksum(0, header, header_bytes);
 *
 *     sum = dray_checksum(sum, body, body_bytes);
 */
DRAY_API uint32_t dray_checksum(uint32_t before, const void *data, size_t length);

/* --- session --- */

struct dray;

/*
 * Handle of a region. It is valid for one struct dray, also after the agent restarts. An id of 0 is
 * no handle. The ids of regions, remotes, leases, mailboxes and requests differ, so that one that is used in
 * the place of another is refused with -DRAY_E_INVALID.
 */
typedef struct {
	uint64_t id; /* 0: none */
} dray_region;

/*
 * Handle of a remote: an imported range of another engine's region. It is valid for one struct
 * dray, and never the same as the handle of a region.
 */
typedef struct {
	uint64_t id; /* 0: none */
} dray_remote;

/* Handle of a lease. It is valid for one struct dray, until the lease ends. */
typedef struct {
	uint64_t id; /* 0: none */
} dray_lease;

/*
 * Handle of a mailbox: a name that this client has opened at the agent. It is valid for one struct
 * dray, also after the agent restarts.
 */
typedef struct {
	uint64_t id; /* 0: none */
} dray_mailbox;

/* Flags of struct dray_options. */
enum dray_option_flag {
	DRAY_OPTION_NOTIFICATIONS = 1, /* deliver the group's notifications to this handle */
	DRAY_OPTION_NO_RING = 2,       /* submit by message only; no ring, no arena */
	DRAY_OPTION_NO_RECONNECT = 4,  /* once lost, the session stays closed */
	/*
	 * Try again while there is no agent, or it is draining: dray_connect() for connect_ms,
	 * dray_connect_start() for reconnect_for_ms.
	 */
	DRAY_OPTION_WAIT = 8,
	DRAY_OPTION_NO_SPIN = 16, /* sleep at once, whatever spin_us is */
	/*
	 * Deliver DRAY_EVENT_SEGMENT to this handle. If the agent is too old, the session works
	 * without, and segments of struct dray_info is 0. Each reconnect requests it again.
	 */
	DRAY_OPTION_SEGMENTS = 32,
	/* The field gpu is set. Programs that were built before it was added do not have it. */
	DRAY_OPTION_GPU = 64
};

/* Options of a session. A field that is zero has its default. */
struct dray_options {
	const char *socket; /* path; default $DRAY_SOCKET, else /run/dray/dray.sock */
	/*
	 * Sessions of one uid with the same group can use each other's regions and remotes, and
	 * receive the same notifications. Up to 64 bytes; default: a group of its own.
	 */
	const char *group;
	const char *name;   /* up to 64 bytes, shown by drayctl(1) */
	unsigned int flags; /* enum dray_option_flag */
	/*
	 * Submissions that can be queued, a power of two to 4096; default 256. Twice as many
	 * transfers can be in flight.
	 */
	unsigned int ring_entries;
	/*
	 * Memory for the operation lists and payloads of transfers in flight, and for requests to the
	 * store and their answers, up to 16 MiB; default 4 MiB. An operation takes 24 bytes.
	 */
	uint64_t arena_bytes;
	/*
	 * Longest spin on the ring, or for an answer of the store, before sleeping, in microseconds; the
	 * library spins less while spinning finds nothing. Default: $DRAY_SPIN, else 20 and in rare
	 * trials 100, or 0 if this process has less than two whole CPUs (affinity, cpuset, CPU limit),
	 * because spinning would keep the agent from running. The CPUs are checked for each session, and
	 * only for the default.
	 */
	unsigned int spin_us;
	unsigned int connect_ms; /* timeout of dray_connect() and each reconnect; default 5000 */
	unsigned int request_ms; /* timeout of requests that block; default 30000 */
	unsigned int reconnect_min_ms; /* first pause between attempts, doubling; default 10 */
	unsigned int reconnect_max_ms; /* longest pause; default 1000 */
	unsigned int reconnect_for_ms; /* stop reconnecting after this time; default: never */
	/*
	 * Events queued before the library stops reading the socket, so that the agent, and those who
	 * notify this client, are held back; default 4096. While a request other than a transfer by
	 * the ring awaits its answer the library reads on. At twice this number each further event takes the place of the
	 * oldest one of the type that has the most, and DRAY_EVENT_DROPPED tells.
	 */
	unsigned int events_max;
	/*
	 * How long a transfer waits for the agent's answer after its deadline has passed, default
	 * 80; and how long a transfer, or a PUT or GET of the store, waits for proof that its memory
	 * is free after the agent was lost, default 1000: a killed agent is dead only some time after
	 * the end of its session. Then it is unconfirmed.
	 */
	unsigned int confirm_ms;
	/*
	 * How long requests other than transfers wait for a lost session. If it has been lost for
	 * longer when an attempt to reconnect fails, they end with the code of the attempt. A new
	 * request starts an attempt at once. Default: they wait without limit.
	 */
	unsigned int patience_ms;
	/*
	 * With DRAY_OPTION_GPU: the GPU on which this handle will have regions, by UUID (GPU-...) or
	 * PCI address. The agent starts it when the session opens, so that the first region does not
	 * wait for that. Up to 64 bytes. A GPU that the agent does not use has no effect here.
	 */
	const char *gpu;
};

/*
 * Opens a session with the agent of this node. options may be NULL. If the agent grants no ring or
 * arena, the session works without them, and dray_get_info() shows why.
 *
 * Blocks: for up to connect_ms.
 *
 * Ownership: the caller closes the session with dray_disconnect(). On failure there is no handle,
 * and the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_PEER_UNREACHABLE: there is no agent.
 * -DRAY_E_TIMEOUT: the agent does not answer.
 * -DRAY_E_DENIED, -DRAY_E_QUOTA, -DRAY_E_DRAINING, -DRAY_E_VERSION: the kernel or the agent refused
 *     the connection.
 * -DRAY_E_INVALID, -DRAY_E_TOO_LARGE, -DRAY_E_UNSUPPORTED: an option or $DRAY_SPIN is invalid, or a
 *     flag is unknown.
 * -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS: this process has no memory or descriptors left.
 *
 * Example:
 *     struct dray_options options = { .group = "engine-0", .connect_ms = 2000 };
 *     struct dray *d;
 *     char why[256];
 *
 *     if (dray_connect(&options, &d, why, sizeof(why)))
 *             errx(1, "%s", why);
 */
DRAY_API int dray_connect(const struct dray_options *options, struct dray **ret, char *why,
			  size_t why_size);

/*
 * Makes a handle and starts to connect. Connecting goes on in dray_process() and in functions that
 * block. DRAY_EVENT_CONNECTED tells the success, DRAY_EVENT_CLOSED the failure. With
 * DRAY_OPTION_WAIT the library tries again until the agent is started, for reconnect_for_ms.
 * Requests other than transfers wait for the session.
 *
 * Ownership: the caller frees the handle with dray_disconnect(). On failure there is no handle, and
 * the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_INVALID, -DRAY_E_TOO_LARGE, -DRAY_E_UNSUPPORTED: an option or $DRAY_SPIN is invalid, or a
 *     flag is unknown.
 * -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS: this process has no memory or descriptors left.
 */
DRAY_API int dray_connect_start(const struct dray_options *options, struct dray **ret, char *why,
				size_t why_size);

/*
 * Closes the session and frees everything that belongs to the handle, also the mappings of pools.
 * The agent stops all work of the session, but this function does not wait for it: to reuse the
 * memory, call dray_region_remove() first. d may be NULL.
 *
 * Thread: no other thread may use the handle during this call or after it. Not from a callback.
 */
DRAY_API void dray_disconnect(struct dray *d);

/*
 * Returns the text of this thread's last failed call, or of the last loss of the session if that
 * came later. The text names the object and the reason; dray_strerrorfix() has the next step.
 *
 * Returns: a string that is valid until the next call of this thread, never NULL.
 *
 * Example:
 *     int error = dray_region_add_memory(d, &memory, DRAY_WRITE, &region);
 *
 *     if (error)
 *             fprintf(stderr, "%s: %s. %s\n", dray_strerrorname(error),
 *                     dray_last_error(d), dray_strerrorfix(error));
 */
DRAY_API const char *dray_last_error(const struct dray *d);

/* State of a session and identity of its agent. */
struct dray_info {
	int connected;             /* 1: session open, regions registered */
	uint64_t session;          /* as in drayctl sessions */
	uint64_t incarnation;      /* of the agent: new at each start */
	uint8_t agent_id[16];      /* of the agent: stays the same */
	const char *segment;       /* address of the agent for other agents */
	const char *version;       /* of the agent */
	unsigned int ring_entries; /* 0: no ring */
	uint64_t arena_bytes;      /* 0: no arena */
	size_t in_flight;          /* requests that have not ended */
	size_t completions;        /* that can be taken */
	size_t events;             /* that can be taken */
	int segments; /* 1: DRAY_EVENT_SEGMENT is delivered; 0: not requested, or agent too old */
	uint64_t spin_ns;     /* longest spin before sleeping; 0: none */
	uint64_t waits_spun;  /* waits that ended while spinning */
	uint64_t waits_slept; /* other waits, each with at least one system call */
	uint64_t losses;      /* losses of the session, and failed attempts to open one */
	/* why the session has no ring; empty: it has one, or none was wanted */
	const char *no_ring;
};

/*
 * Describes the session and its agent. While not connected, it describes the last session and its
 * agent.
 *
 * Errors:
 */
DRAY_API int dray_get_info(const struct dray *d, struct dray_info *ret);

/* --- event loop --- */

/*
 * Returns a descriptor that is readable when dray_process() has work. Work is a reply, a completion
 * of the ring, or a reconnect that is due. The descriptor works with poll(2) and epoll(7). Call
 * dray_process() with 0, take all completions and events, then poll the descriptor.
 *
 * After the first call every completion wakes the descriptor, which costs time: a program that
 * waits only in dray_wait() or dray_process() does not call this function.
 *
 * Returns: the descriptor, or a negated error.
 *
 * Ownership: the descriptor belongs to the handle and never changes.
 *
 * Errors:
 *
 * Example:
 *     struct pollfd p = { dray_fd(d), POLLIN, 0 };
 *     struct dray_completion c;
 *     struct dray_event e;
 *
 *     while (dray_process(d, 0) >= 0) {
 *             while (dray_next_completion(d, &c) == 1)
 *                     request_done(c.arg, c.status);
 *             while (dray_next_event(d, &e) == 1)
 *                     handle(&e);
 *             poll(&p, 1, -1);
 *     }
 */
DRAY_API int dray_fd(struct dray *d);

/*
 * Runs the event loop. It receives messages and completions, reconnects when due, and runs
 * callbacks. On return the descriptor of dray_fd() is armed: take all completions by
 * dray_next_completion() and all events by dray_next_event(), then poll it.
 *
 * Returns: the number of completions and events that can be taken, plus the callbacks that were
 * run; 0 on timeout; or a negated error.
 *
 * Blocks: until a completion or an event can be taken or a callback was run, for up to timeout_ms
 * (0: does not block; -1: no limit).
 *
 * Errors:
 * -DRAY_E_SESSION_CLOSED: the session is closed for good and nothing is left to take.
 */
DRAY_API int dray_process(struct dray *d, int timeout_ms);

/*
 * Takes completions off the ring without a system call. For threads that spin; it handles
 * everything else now and then. The descriptor of dray_fd() is not armed afterwards: call
 * dray_process() before sleeping on it.
 *
 * Returns: as dray_process().
 *
 * Errors: dray_process()
 */
DRAY_API int dray_poll(struct dray *d);

/* Kind of the request that a completion answers. */
enum dray_request {
	DRAY_REQUEST_TRANSFER = 1,  /* dray_submit() */
	DRAY_REQUEST_REGION_ADD,    /* dray_region_add_start() */
	DRAY_REQUEST_REGION_REMOVE, /* dray_region_remove_start() */
	DRAY_REQUEST_EXPORT,        /* dray_region_export_start() */
	DRAY_REQUEST_REVOKE,        /* dray_region_revoke_start() */
	DRAY_REQUEST_IMPORT,        /* dray_remote_import_start() */
	DRAY_REQUEST_RELEASE,       /* dray_remote_release_start() */
	DRAY_REQUEST_NOTIFY,        /* dray_notify_start() */
	DRAY_REQUEST_HINT_GET,      /* dray_hint_get_start() */
	DRAY_REQUEST_HINT_PUT,      /* dray_hint_put_start() */
	DRAY_REQUEST_SEGMENT_GET,   /* dray_segment_get_start() */
	DRAY_REQUEST_ENV_GET,       /* dray_env_get_start() */
	DRAY_REQUEST_LEASE,         /* dray_region_lease_start() */
	DRAY_REQUEST_LEASE_ACQUIRE, /* dray_lease_acquire_start() */
	DRAY_REQUEST_LEASE_RENEW,   /* dray_lease_renew_start() */
	DRAY_REQUEST_LEASE_END,     /* dray_lease_end_start() */
	DRAY_REQUEST_MAILBOX_OPEN,  /* dray_mailbox_open_start() */
	DRAY_REQUEST_MAILBOX_CLOSE, /* dray_mailbox_close_start() */
	DRAY_REQUEST_POST,          /* dray_post_start() */
	DRAY_REQUEST_STORE,         /* dray_store_start() */
	DRAY_REQUEST_STORE_RELEASE  /* dray_store_release_start() */
};

/* Way that the bytes of a transfer took. */
enum dray_transport {
	DRAY_TRANSPORT_NONE = 0,  /* no byte was moved */
	DRAY_TRANSPORT_LOCAL = 1, /* copy by a CPU within this node's agent */
	DRAY_TRANSPORT_TCP = 2,   /* TCP streams to the owner's agent */
	DRAY_TRANSPORT_RDMA = 3,  /* RDMA between the memories of both engines */
	DRAY_TRANSPORT_GPU = 4    /* copy by a GPU within this node's agent */
};

struct dray_token;
struct dray_hint;
struct dray_segment;
struct dray_env;
struct dray_store_results;

/* Tells how a request ended. Its pointers are valid until the next call of the same thread. */
struct dray_completion {
	uint64_t id;               /* of the request */
	void *arg;                 /* from the request */
	enum dray_request request; /* kind of the request */
	int status;                /* 0, or a negated enum dray_error */
	unsigned int transport;    /* transfers: enum dray_transport, or a newer one */
	/* transfers: bytes moved, all if status is 0; revoke: tokens; leases: granted holders */
	uint64_t bytes;
	uint64_t duration_ns;   /* transfers: from acceptance to the end, by the agent's clock */
	dray_region region;     /* the new region, and the one of a request about a region */
	dray_remote remote;     /* the new remote, and the one of a request about a remote */
	dray_lease lease;       /* the new lease, and the one of a request about a lease */
	unsigned int expiry_ms; /* of a lease that was acquired or renewed: until it expires */
	const char *message;    /* reason of the failure; empty if status is 0 */
	const struct dray_token *token;     /* only of an export or a new lease */
	const struct dray_hint *hint;       /* only of dray_hint_get_start() */
	const struct dray_segment *segment; /* only of dray_segment_get_start() */
	const struct dray_env *env;         /* only of dray_env_get_start() */
	dray_mailbox mailbox; /* the new mailbox, and the one of a request about a mailbox */
	const struct dray_store_results *store; /* of dray_store_start(), also with a status */
};

/*
 * Takes the oldest completion. Completions of transfers with a callback are not among them.
 *
 * Returns: 1; 0 if there is none; or a negated error.
 *
 * Errors:
 */
DRAY_API int dray_next_completion(struct dray *d, struct dray_completion *ret);

/*
 * Waits for a request and takes its completion. If the request is a transfer with a callback, that
 * is run too.
 *
 * Returns: 0 with the completion, which has the status of the request; or a negated error.
 *
 * Blocks: until the request ends, for up to timeout_ms (-1: no limit).
 *
 * Errors:
 * -DRAY_E_TIMEOUT: the request has not ended; its completion will follow.
 * -DRAY_E_NOT_FOUND: the request is unknown, or its completion was taken.
 */
DRAY_API int dray_wait(struct dray *d, uint64_t id, int timeout_ms, struct dray_completion *ret);

/* Kind of an event, and the fields of struct dray_event that it has. */
enum dray_event_type {
	/*
	 * A notification for a region of this group: tag, payload, length, region, agent_region,
	 * agent_id, incarnation, id. The bytes of its transfer are in place. agent_id, incarnation
	 * and id identify the notification; each is delivered at most once.
	 */
	DRAY_EVENT_NOTIFICATION = 1,
	/*
	 * A remote is unusable: remote, code (-DRAY_E_REVOKED or -DRAY_E_PEER_LOST), message. The
	 * agent has released it; dray_remote_release() frees the handle.
	 */
	DRAY_EVENT_REMOTE_LOST = 2,
	DRAY_EVENT_DRAINING = 3, /* no new work; work in flight is stopped after deadline_ms */
	/*
	 * The session is lost. code is -DRAY_E_AGENT_RESTARTED (the agent died),
	 * -DRAY_E_SESSION_CLOSED (the agent closed it; message has the reason) or
	 * -DRAY_E_PROTOCOL. All requests in flight end with that code, or with
	 * -DRAY_E_UNCONFIRMED, and remotes and tokens are void. Requests to the store that the
	 * agent has not taken are sent again in the next session, and releases of leases of the
	 * store end with 0. The library reconnects, unless DRAY_OPTION_NO_RECONNECT is set.
	 */
	DRAY_EVENT_LOST = 4,
	/*
	 * There is a new session. Regions are registered again with the same dray_region, and
	 * mailboxes opened again with the same dray_mailbox; tokens must be exported and imported
	 * again. restarted: 1 if the agent has another incarnation.
	 */
	DRAY_EVENT_RESTORED = 5,
	/*
	 * A region could not be registered again, or GPU memory not be opened: region, code, message;
	 * remove the region.
	 */
	DRAY_EVENT_REGION_LOST = 6,
	/* The library stops connecting: code, message. */
	DRAY_EVENT_CLOSED = 7,
	/*
	 * The state of a segment, or the preferred segment, changed: segment, segment_old,
	 * segment_state, segment_flags; message has the reason. An empty segment with
	 * DRAY_SEGMENT_PREFERRED: there is no preferred segment any more. Only with
	 * DRAY_OPTION_SEGMENTS. For a slow reader, only the last change of each segment is
	 * delivered. Changes may be missed before DRAY_EVENT_RESTORED: call dray_segment_get()
	 * then.
	 */
	DRAY_EVENT_SEGMENT = 8,
	DRAY_EVENT_CONNECTED = 9, /* the first session, after dray_connect_start() */
	/*
	 * A transfer, or a PUT or GET of the store, that ended with -DRAY_E_UNCONFIRMED: id. Its
	 * memory is free now. code: how it ended, 0 or a negated enum dray_error; message.
	 */
	DRAY_EVENT_CONFIRMED = 10,
	/*
	 * A lease has ended: lease, outcome, acquired. It comes once for each lease, when no holder can
	 * access the ranges by it any more. With DRAY_LEASE_AGENT_LOST code has the reason of the loss.
	 */
	DRAY_EVENT_LEASE_ENDED = 11,
	/*
	 * A letter for a mailbox: mailbox, payload, length, and the sender: agent_id, incarnation,
	 * uid, gid. mailbox is none if it was closed meanwhile.
	 */
	DRAY_EVENT_LETTER = 12,
	/* A mailbox could not be opened again: mailbox, code, message; close the mailbox. */
	DRAY_EVENT_MAILBOX_LOST = 13,
	/*
	 * Events were dropped, because too many were not taken (dray_options.events_max): id is how
	 * many, and tag their type. They were the oldest of the type. This event comes before all others.
	 */
	DRAY_EVENT_DROPPED = 14
};

/* Outcome of a lease. */
enum dray_lease_outcome {
	DRAY_LEASE_USED = 1,    /* every holder has released it */
	DRAY_LEASE_EXPIRED = 2, /* its time passed without a renewal */
	DRAY_LEASE_ENDED = 3, /* ended by its owner, with its region, or by a drain of its agent */
	DRAY_LEASE_PEER_LOST = 4, /* a holder, or a holder's agent or host, is lost */
	DRAY_LEASE_AGENT_LOST = 5 /* this client's own session or agent is lost */
};

/*
 * An event of a session. enum dray_event_type says which fields each type has. Pointers are valid
 * until this thread's next dray_next_event().
 */
struct dray_event {
	enum dray_event_type type; /* what happened */
	int code;                  /* negated enum dray_error */
	int restarted;             /* 1: the agent has another incarnation */
	unsigned int deadline_ms;  /* time until work in flight is stopped */
	dray_region region;        /* none if another session of the group registered the region */
	dray_remote remote;        /* the remote that is lost */
	dray_lease lease;          /* the lease that has ended */
	unsigned int outcome;      /* of the lease: enum dray_lease_outcome, or a newer one */
	unsigned int acquired;     /* holders that had acquired the lease */
	uint64_t agent_region;     /* the agent's handle of the region, valid in the whole group */
	uint64_t tag;              /* of the notification; type of what was dropped */
	uint8_t agent_id[16];      /* agent of the sender of the notification or letter */
	uint64_t incarnation;      /* of that agent */
	uint64_t id; /* of the notification at that agent, or of the transfer; number of dropped events */
	const void *payload;                     /* of the notification or letter */
	size_t length;                           /* of the payload */
	const char *message;                     /* the reason, as a text */
	const char *segment;                     /* "" if there is none */
	unsigned int segment_old, segment_state; /* enum dray_segment_state, or a newer one */
	unsigned int segment_flags;              /* enum dray_segment_flag */
	dray_mailbox mailbox;                    /* of the letter, or the one that is lost */
	uint32_t uid, gid; /* of the sender of the letter, as its agent's kernel reports */
};

/*
 * Takes the oldest event. A program that waits only for requests takes the events now and then too, or lets them be dropped.
 *
 * Returns: 1; 0 if there is none; or a negated error.
 *
 * Errors:
 */
DRAY_API int dray_next_event(struct dray *d, struct dray_event *ret);

/* --- memory --- */

/* Flags of dray_memory_alloc(). */
enum dray_memory_flag {
	DRAY_MEMORY_HUGE = 1 /* use huge pages of the default size, or fail */
};

/* Memory that can be registered: a sealed memfd, mapped and populated. */
struct dray_memory {
	void *address;   /* of the mapping */
	uint64_t length; /* as requested, rounded up to whole pages */
	int fd;          /* the memfd */
};

/*
 * Allocates memory that can be registered. It creates a memfd of `bytes`, rounded up to whole
 * pages, seals its size, maps it and touches every page. Needs no handle. dray_region_add_memory()
 * registers the memory.
 *
 * Blocks: about 0.3 s for each GiB.
 *
 * Ownership: the caller frees the memory with dray_memory_free().
 *
 * Errors:
 * -DRAY_E_INVALID: the size is 0 or too large, or a flag is unknown.
 * -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS, -DRAY_E_IO: the kernel refused; for huge pages, there may not
 *     be enough of them.
 */
DRAY_API int dray_memory_alloc(uint64_t bytes, unsigned int flags, struct dray_memory *ret);

/*
 * Touches every page of a range of a memfd. The memfd has F_SEAL_SHRINK, and dray_region_add() with
 * DRAY_REGION_NO_POPULATE can then register it without touching its pages again. Needs no handle.
 *
 * Blocks: about 0.3 s for each new GiB.
 *
 * Ownership: on failure the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_REGION_KIND, -DRAY_E_REGION_UNSEALED, -DRAY_E_REGION_TOO_SMALL: the descriptor is not a
 *     memfd, lacks the seal, or has fewer bytes.
 * -DRAY_E_NO_MEMORY, -DRAY_E_IO: the kernel refused.
 */
DRAY_API int dray_memory_populate(int fd, uint64_t offset, uint64_t length, char *why,
				  size_t why_size);

/*
 * Unmaps and closes memory of dray_memory_alloc(), and resets *m. May be called twice, and with
 * NULL. Regions of the memory exist until they are removed.
 */
DRAY_API void dray_memory_free(struct dray_memory *m);

/* --- regions --- */

/* What transfers and importers may do with memory. */
enum dray_access {
	DRAY_READ = 1, /* may be the source of transfers */
	DRAY_WRITE = 2 /* may be the destination */
};

/* Kind of the memory of an extent. */
enum dray_kind {
	DRAY_KIND_MEMFD = 1,    /* a memfd with F_SEAL_SHRINK */
	DRAY_KIND_DMABUF = 2,   /* a device's memory, only for RDMA */
	DRAY_KIND_CUDA_IPC = 3, /* a legacy CUDA IPC handle (memory of cudaMalloc) */
	DRAY_KIND_CUDA_VMM = 4  /* an allocation of cuMemCreate, exported as a descriptor */
};

#define DRAY_CUDA_IPC_BYTES 64

/* A piece of a file or of an allocation on a GPU. dray_cuda_describe() makes those of a GPU. */
struct dray_extent {
	enum dray_kind kind; /* of the memory */
	int fd;              /* stays the caller's */
	uint64_t offset;     /* in the file, or from the allocation's base; any alignment */
	uint64_t length;     /* at least 1 */
	const void *handle;  /* cuda_ipc, instead of fd: DRAY_CUDA_IPC_BYTES bytes; copied */
	uint64_t allocation; /* cuda_vmm: bytes of all of it; 0: the agent finds out, which is slower */
};

/* Flags of struct dray_region_spec. */
enum dray_region_flag {
	DRAY_REGION_HUGE = 1,        /* pools: use huge pages, or fail */
	DRAY_REGION_NO_POPULATE = 2, /* every page was touched already; holes are an error */
	DRAY_REGION_WAIT = 4         /* GPU memory: succeed only when all of it is open, or fail */
};

/*
 * Describes a region to register. It consists either of extents, in the order of their offsets in
 * the region, or of pool_bytes of the agent's memory.
 */
struct dray_region_spec {
	const char *name;                  /* up to 64 bytes, shown by drayctl(1) */
	unsigned int access;               /* enum dray_access */
	unsigned int flags;                /* enum dray_region_flag */
	const struct dray_extent *extents; /* such as one for each layer of a KV cache */
	size_t extents_n; /* up to 1024, of up to 250 descriptors and 256 handles, all different */
	uint64_t pool_bytes; /* instead of extents */
	const char *device;  /* GPU by UUID or PCI address; for kinds cuda_ipc and cuda_vmm */
};

/*
 * Registers memory as a region. First it touches every page of a memfd, so that the pages are
 * charged to the caller and not to the agent, unless DRAY_REGION_NO_POPULATE is set.
 *
 * Memory of kinds cuda_ipc and cuda_vmm is opened in the background. The region can be used at once:
 * a transfer waits for the allocations that it touches, and an export for all of them. If one cannot
 * be opened, the region's transfers fail, and DRAY_EVENT_REGION_LOST has the reason. With
 * DRAY_REGION_WAIT the call waits, and has the reason as its error.
 *
 * Blocks: 0.3 s for each new GiB, and for up to request_ms.
 *
 * Ownership: the descriptors stay the caller's. The library keeps duplicates of them, and copies of
 * the handles, to register the region again after a restart of the agent.
 *
 * Errors: requests, REGION_ADD
 * -DRAY_E_UNSUPPORTED: the agent or a device cannot use this kind, or a flag is unknown. Kinds
 *     cuda_ipc and cuda_vmm need an agent of data protocol 1.2.
 * -DRAY_E_TOO_LARGE: too many extents, or a name is too long.
 * -DRAY_E_IO: the kernel refused.
 *
 * Example:
 *     struct dray_extent layers[LAYERS];
 *     struct dray_region_spec spec = { .name = "kv", .access = DRAY_READ | DRAY_WRITE,
 *                                      .extents = layers, .extents_n = LAYERS };
 *
 *     for (int i = 0; i < LAYERS; i++)
 *             layers[i] = (struct dray_extent){ .kind = DRAY_KIND_MEMFD, .fd = memfd[i],
 *                                               .length = layer_bytes };
 *     if (dray_region_add(d, &spec, &region))
 *             errx(1, "%s", dray_last_error(d));
 */
DRAY_API int dray_region_add(struct dray *d, const struct dray_region_spec *spec, dray_region *ret);

/*
 * Registers a whole struct dray_memory as a region of one extent. access is of enum dray_access.
 *
 * Blocks: for up to request_ms.
 *
 * Ownership: the memory stays the caller's, who frees it after dray_region_remove().
 *
 * Errors: dray_region_add()
 */
DRAY_API int dray_region_add_memory(struct dray *d, const struct dray_memory *m,
				    unsigned int access, dray_region *ret);

/*
 * Registers a pool: memory of the agent, mapped here. Every page of it is touched, because
 * transfers need pages that exist. flags is 0 or DRAY_REGION_HUGE. dray_region_map() returns its
 * address. When the agent restarts, the memory stays at the same address and belongs to this
 * process from then on.
 *
 * Blocks: 0.3 s for each GiB, and for up to request_ms.
 *
 * Ownership: the mapping belongs to the handle until dray_region_remove().
 *
 * Errors: dray_region_add()
 */
DRAY_API int dray_region_add_pool(struct dray *d, uint64_t bytes, unsigned int access,
				  unsigned int flags, dray_region *ret);

/*
 * Returns the address of a pool. It does not change when the agent restarts.
 *
 * Ownership: mapping and *ret_fd (ret_fd may be NULL) belong to the handle until the region is
 * removed.
 *
 * Errors:
 * -DRAY_E_REGION_KIND: the region is not a pool.
 * -DRAY_E_NOT_FOUND, -DRAY_E_INVALID: there is no such region, or the handle is not of a region.
 */
DRAY_API int dray_region_map(struct dray *d, dray_region region, void **ret_address,
			     uint64_t *ret_length, int *ret_fd);

/* State of a region. */
struct dray_region_info {
	uint64_t length;     /* 0: of a borrowed region */
	unsigned int access; /* enum dray_access */
	int lost;            /* 0, or the negated code of the reason why it is not registered */
	uint64_t agent_region; /* the agent's handle, valid in the whole group; 0: not registered now */
};

/*
 * Describes a region.
 *
 * Errors:
 * -DRAY_E_NOT_FOUND, -DRAY_E_INVALID: there is no such region, or the handle is not of a region.
 */
DRAY_API int dray_region_get_info(struct dray *d, dray_region region, struct dray_region_info *ret);

/*
 * Ends a region. Success proves that no byte of the memory is read or written any more: its
 * transfers have ended with cancelled, its tokens are revoked, and a pool is unmapped. The handle
 * is invalid from the call on. Of a borrowed region it ends only the loan.
 *
 * If the session is lost meanwhile, the proof is that the agent has died, which the reconnect
 * shows; otherwise the result is the code of the loss.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, REGION_REMOVE
 * -DRAY_E_TIMEOUT: there is no proof yet.
 */
DRAY_API int dray_region_remove(struct dray *d, dray_region region);

/* A range of a region for other engines. */
struct dray_export {
	uint64_t offset;      /* in the region */
	uint64_t length;      /* 0: to the end */
	unsigned int access;  /* enum dray_access; 0: what the region allows */
	int single_use;       /* 1: can be imported once */
	unsigned int ttl_ms;  /* 0: until revoked */
	uint8_t audience[16]; /* agent id of the only importer; zero: any */
};

#define DRAY_TOKEN_MAX 256
#define DRAY_TOKEN_TEXT_MAX 352

/*
 * A token: the right of another engine to access a range of a region. Every holder can use it until
 * it expires or is revoked, so it passes only over trusted channels. The struct can be copied.
 */
struct dray_token {
	uint64_t id;                    /* exporter only */
	uint64_t epoch;                 /* exporter only; the session that made it */
	uint32_t length;                /* of the binary form */
	uint8_t data[DRAY_TOKEN_MAX];   /* binary form */
	char text[DRAY_TOKEN_TEXT_MAX]; /* text form: "dray1:...", or "mooncake://HOST:PORT" */
};

/*
 * Exports a range of a region as a token. what may be NULL: the whole region, with the access of
 * the region. The loss of the session voids its tokens.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, REGION_EXPORT
 * -DRAY_E_RANGE: the range is empty, or passes the end of the region.
 * -DRAY_E_DENIED: the access exceeds the region's.
 *
 * Example:
 *     struct dray_export what = { .offset = block * BLOCK, .length = BLOCK,
 *                                 .access = DRAY_READ, .ttl_ms = 60000 };
 *     struct dray_token token;
 *
 *     if (dray_region_export(d, region, &what, &token))
 *             errx(1, "%s", dray_last_error(d));
 *     send_to_other_engine(token.text);
 */
DRAY_API int dray_region_export(struct dray *d, dray_region region, const struct dray_export *what,
				struct dray_token *ret);

/*
 * Exports a range also to engines that have Mooncake linked in: until the token is revoked, it is a
 * buffer of the agent's Mooncake segment. address: where these engines expect the start of the range,
 * usually its address in this process. They read and write it as the access of the export allows. They
 * have no identity: the agent admits them by their addresses alone (mooncake.allow). what: as of
 * dray_region_export(), but without ttl_ms, audience and single_use. The token works for other agents as
 * usual.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, REGION_EXPORT
 * -DRAY_E_INVALID: address is 0, or the range overlaps with another buffer of the segment.
 * -DRAY_E_UNSUPPORTED: the agent does not speak Mooncake's protocol (mooncake.listen), or is too old.
 * -DRAY_E_REGION_KIND: the region is not host memory.
 */
DRAY_API int dray_region_export_mooncake(struct dray *d, dray_region region,
					 const struct dray_export *what, uint64_t address,
					 struct dray_token *ret);

/*
 * Revokes a token, or with NULL all tokens of a region. Success proves that no importer can access
 * the range by it any more. token is the struct that the export made: its text and bytes do not
 * say which token of the region it is.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, REGION_REVOKE
 * -DRAY_E_NOT_FOUND: there is no such region or token, the token was parsed, or it is of an
 *     earlier session and void.
 */
DRAY_API int dray_region_revoke(struct dray *d, dray_region region, const struct dray_token *token);

/*
 * Parses the text form of a token, a terminated string. It checks only the form. Needs no handle.
 * mooncake://HOST:PORT is the token of a segment of an engine that has Mooncake linked in. If the agent
 * has a metadata server (mooncake.metadata), any name of a segment there may follow mooncake://.
 *
 * Errors:
 * -DRAY_E_TOKEN_INVALID: this is not a token.
 */
DRAY_API int dray_token_parse(const char *text, struct dray_token *ret);

/*
 * Makes a token of its binary form. It checks only the form. Needs no handle.
 *
 * Errors:
 * -DRAY_E_TOKEN_INVALID: this is not a token.
 */
DRAY_API int dray_token_from_bytes(const void *bytes, size_t length, struct dray_token *ret);

/* --- remotes --- */

/*
 * Imports a token, so that its range is usable as a remote. timeout_ms limits the agent's attempts
 * to reach the owner's agent. With 0 the agent tries for 10 s, but an address that refuses the
 * connection, which is usual after the owner's end, fails at once; a caller that waits for an owner
 * to start gives a limit.
 *
 * The remote of a token mooncake://HOST:PORT has all registered memory of that engine: its offsets are
 * the engine's addresses, and operations must lie in buffers that the engine had registered when it was
 * imported. The agent tries such an engine once. It needs mooncake.import and mooncake.allow.
 *
 * Blocks: for up to timeout_ms plus request_ms.
 *
 * Errors: requests, REMOTE_IMPORT
 * -DRAY_E_INCARNATION: the owner's agent was restarted after the export.
 */
DRAY_API int dray_remote_import(struct dray *d, const struct dray_token *token,
				unsigned int timeout_ms, dray_remote *ret);

/*
 * Releases a remote. On success its transfers have ended. Of a borrowed remote it ends only the
 * loan.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, REMOTE_RELEASE
 */
DRAY_API int dray_remote_release(struct dray *d, dray_remote remote);

/* State of a remote. */
struct dray_remote_info {
	uint64_t length;        /* of the range */
	unsigned int access;    /* granted: enum dray_access */
	unsigned int transport; /* best path at the time of import: enum dray_transport */
	int lost;               /* 0, or the negated code of the reason why it is unusable */
	uint64_t agent_remote;  /* the agent's handle, valid in the whole group */
};

/*
 * Describes a remote. It is lost if it was revoked, if its owner is lost, or if this node's agent
 * was restarted.
 *
 * Errors:
 * -DRAY_E_NOT_FOUND, -DRAY_E_INVALID: there is no such remote, or the handle is not of a remote.
 */
DRAY_API int dray_remote_get_info(struct dray *d, dray_remote remote, struct dray_remote_info *ret);

/*
 * Makes a handle for a region of another session of the group. A scheduler can so use the regions
 * of its workers. The other session passes agent_region of dray_region_get_info().
 * dray_region_remove() then ends only the loan. A restart of the agent voids it.
 *
 * Errors:
 * -DRAY_E_INVALID: 0 is not a region.
 * -DRAY_E_SESSION_CLOSED: there is no session now.
 * -DRAY_E_NO_MEMORY
 */
DRAY_API int dray_region_borrow(struct dray *d, uint64_t agent_region, dray_region *ret);

/*
 * Makes a handle for a remote of another session of the group. The other session passes
 * agent_remote of dray_remote_get_info(). dray_remote_release() then ends only the loan. A restart
 * of the agent voids it.
 *
 * Errors:
 * -DRAY_E_INVALID: 0 is not a remote.
 * -DRAY_E_SESSION_CLOSED: there is no session now.
 * -DRAY_E_NO_MEMORY
 */
DRAY_API int dray_remote_borrow(struct dray *d, uint64_t agent_remote, dray_remote *ret);

/* --- leases --- */

/*
 * A lease lets other engines read or write some ranges of a region for a limited time, such as the
 * blocks of one request. It registers nothing, and its end fences these ranges alone. Its token
 * travels like that of an export. A known number of holders acquire it; when all of them have
 * released it, it is used. Then, or when it ends otherwise, its owner gets one
 * DRAY_EVENT_LEASE_ENDED. Until then the owner must not use the ranges for anything else.
 */

/* Pieces of a region at equal distances, such as the pieces of a block in every layer. */
struct dray_range {
	uint64_t offset; /* of the first piece, in the region */
	uint64_t length; /* of each piece, at least 1 */
	uint64_t stride; /* from the start of a piece to the next; at least length, unless count is 1 */
	uint64_t count; /* pieces, at least 1 */
};

#define DRAY_LEASE_RANGES_MAX 4096
#define DRAY_LEASE_LABEL_MAX 64

/* Describes a lease. */
struct dray_lease_spec {
	const struct dray_range *ranges; /* in any order; they may overlap */
	size_t ranges_n;                 /* 1 to DRAY_LEASE_RANGES_MAX */
	unsigned int access;             /* enum dray_access; 0: what the region allows */
	unsigned int holders;            /* how many acquire it, up to 1024; 0: 1 */
	unsigned int expiry_ms;          /* 0: 30000 */
	uint8_t audience[16];            /* agent id of the only holders' agent; zero: any */
	/*
	 * 1: grant it to the audience's agent now, if that is connected. A client there acquires it
	 * without a message between the agents then.
	 */
	int grant;
};

/*
 * Leases ranges of a region. ret_token gets the token that holders acquire it with.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, LEASE
 * -DRAY_E_RANGE: a range passes the end of the region.
 * -DRAY_E_INVALID: there are no ranges, one is empty, or the pieces of one overlap; or the ranges
 *     have more than 16 different combinations of stride, count and first stride.
 * -DRAY_E_TOO_LARGE: there are more than DRAY_LEASE_RANGES_MAX ranges.
 * -DRAY_E_QUOTA: the session has too many leases, or ranges of leases.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol before 1.4).
 *
 * Example:
 *     struct dray_range r = { .offset = block * BLOCK, .length = BLOCK,
 *                             .stride = LAYER, .count = LAYERS };
 *     struct dray_lease_spec what = { .ranges = &r, .ranges_n = 1, .access = DRAY_READ };
 *     struct dray_token token;
 *     dray_lease lease;
 *
 *     if (dray_region_lease(d, region, &what, &lease, &token))
 *             errx(1, "%s", dray_last_error(d));
 *     send_to_other_engine(token.text);
 */
DRAY_API int dray_region_lease(struct dray *d, dray_region region,
			       const struct dray_lease_spec *what, dray_lease *ret,
			       struct dray_token *ret_token);

/*
 * Ends a lease. Success proves that no holder can access its ranges by it any more.
 * DRAY_EVENT_LEASE_ENDED comes before. It succeeds, too, if the lease has ended by itself meanwhile.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests
 * -DRAY_E_NOT_FOUND: there is no such lease, or DRAY_EVENT_LEASE_ENDED is queued or was taken.
 * -DRAY_E_INVALID: the handle is not one of a lease.
 */
DRAY_API int dray_lease_end(struct dray *d, dray_lease lease);

/*
 * Acquires the lease of a token as a remote. Its offsets are those of the owner's region, and
 * transfers outside of the lease's ranges end with -DRAY_E_RANGE before a byte moves. Acquisitions
 * from one agent that are started together share messages. dray_remote_release() tells the owner
 * that this holder has used the lease. When the lease ends otherwise, DRAY_EVENT_REMOTE_LOST
 * follows, and transfers end with -DRAY_E_REVOKED. timeout_ms is as in dray_remote_import().
 *
 * label says what the lease is for, such as the id of an engine's request. drayctl and the agent's log
 * show it with the transfers of the remote. It has up to DRAY_LEASE_LABEL_MAX bytes of UTF-8 without
 * control characters; NULL: none.
 *
 * Blocks: for up to timeout_ms plus request_ms.
 *
 * Errors: requests, LEASE_ACQUIRE
 * -DRAY_E_TOO_LARGE: the label is too long.
 * -DRAY_E_INVALID: the label is not UTF-8 without control characters.
 * -DRAY_E_INCARNATION: the owner's agent was restarted.
 * -DRAY_E_TOKEN_USED: the lease has all its holders.
 * -DRAY_E_UNSUPPORTED: an agent is too old for leases.
 */
DRAY_API int dray_lease_acquire(struct dray *d, const struct dray_token *token, const char *label,
				unsigned int timeout_ms, dray_remote *ret);

/*
 * Renews the lease of a remote. It expires in ms, or after the expiry_ms that the owner gave if
 * that is less or ms is 0. The time never becomes shorter. ret_ms (may be NULL) gets the time.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, LEASE_RENEW
 * -DRAY_E_INVALID: the remote is not of a lease.
 * -DRAY_E_REVOKED: the lease has ended.
 */
DRAY_API int dray_lease_renew(struct dray *d, dray_remote remote, unsigned int ms,
			      unsigned int *ret_ms);

/* --- transfers --- */

/* Direction of a transfer. */
enum dray_direction {
	DRAY_DIRECTION_WRITE = 1, /* local region to remote */
	DRAY_DIRECTION_READ = 2   /* remote to local region */
};

/* Class of a transfer. Each class has data streams and queue pairs of its own. */
enum dray_priority {
	DRAY_PRIORITY_BULK = 0,   /* the usual class */
	DRAY_PRIORITY_LATENCY = 1 /* for small, urgent transfers */
};

/* One copy of a transfer. Any alignment. */
struct dray_op {
	uint64_t local;  /* offset in the local region */
	uint64_t remote; /* offset in the remote */
	uint64_t length; /* at least 1 */
};

/* A 32-bit word in a region, for which a transfer waits, or which it sets. */
struct dray_word {
	dray_region region; /* none: no word */
	uint64_t offset;    /* in the region, a multiple of 4 */
	uint32_t value;     /* to wait for, or to store */
};

#define DRAY_NOTIFY_MAX 4096

/*
 * A batch of operations in one direction between one local region and one remote. Operations and
 * transfers have no order; overlapping destinations are undefined.
 */
struct dray_transfer {
	dray_region local;             /* region of this group */
	dray_remote remote;            /* imported range */
	enum dray_direction direction; /* of all operations */
	enum dray_priority priority;   /* class */
	/*
	 * The operations, copied before dray_submit() returns. A list that is longer than one
	 * submission takes is submitted in parts.
	 */
	const struct dray_op *ops;
	size_t count; /* of operations, at least 1 */
	/* Time until the transfer is stopped with deadline. 0: the agent's default. */
	unsigned int deadline_ms;
	struct dray_word wait; /* the transfer starts when the word has this value */
	struct dray_word set;  /* stored when all bytes are in place, before the completion */
	int notify;            /* 1: deliver tag and payload to the group that owns the remote */
	uint64_t tag;          /* of the notification */
	const void *payload;   /* up to DRAY_NOTIFY_MAX bytes, copied */
	size_t payload_length; /* of the payload */
	void *arg;             /* repeated in the completion */
	/*
	 * Called once with the completion, which then cannot be taken: from dray_process() or a
	 * function that blocks, in the thread that called it. Callbacks of a handle run one after
	 * the other. May submit.
	 */
	void (*done)(struct dray *d, const struct dray_completion *c);
};

/*
 * Starts a transfer. It ends exactly once, with one completion, and *ret_id (ret_id may be NULL) is
 * its id. The library submits by the ring, with the arena for several operations, or by a message.
 * A list that is longer than that takes is copied, and submitted in parts.
 *
 * A transfer that failed may have moved some of its bytes. After its completion it no longer
 * accesses the local memory, unless the status is -DRAY_E_UNCONFIRMED: the agent did not answer
 * within the deadline, or was lost and is not proven dead. The memory is then still lent to the
 * agent; see dray_lent() and DRAY_EVENT_CONFIRMED. After -DRAY_E_PEER_LOST and
 * -DRAY_E_AGENT_RESTARTED a transfer may have been carried out. A WRITE to an engine with Mooncake
 * may be carried out even after another error.
 *
 * A refusal of the agent is in the completion: range, denied, quota, busy, draining, deadline,
 * cancelled, revoked, peer_lost, region_fault, notify_refused (the bytes are in place),
 * agent_restarted, session_closed, unconfirmed.
 *
 * Errors:
 * -DRAY_E_BUSY: nothing was started, because too much is in flight; take completions, then submit
 *     again (if nothing of this handle is in flight, when dray_fd() is readable).
 * -DRAY_E_SESSION_CLOSED: not connected; the library reconnects, unless that is disabled.
 * -DRAY_E_NOT_FOUND: there is no such region or remote.
 * -DRAY_E_REVOKED, -DRAY_E_PEER_LOST, -DRAY_E_AGENT_RESTARTED: the remote is lost.
 * -DRAY_E_INVALID, -DRAY_E_TOO_LARGE: a field is invalid, a handle is of another kind, or the
 *     payload is over its limit.
 * -DRAY_E_NO_MEMORY
 *
 * Example:
 *     struct dray_op ops[2] = { { 0, 4 * BLOCK, BLOCK }, { BLOCK, 9 * BLOCK, BLOCK } };
 *     struct dray_transfer t = { .local = region, .remote = remote, .ops = ops, .count = 2,
 *                                .direction = DRAY_DIRECTION_READ, .deadline_ms = 2000 };
 *     uint64_t id;
 *
 *     if (dray_submit(d, &t, &id))
 *             errx(1, "%s", dray_last_error(d));
 */
DRAY_API int dray_submit(struct dray *d, const struct dray_transfer *t, uint64_t *ret_id);

/*
 * Starts up to n transfers, in order, with one doorbell. Their ids are in ids (may be NULL), which
 * has room for n.
 *
 * Returns: how many were started; or the error of the first one if none was.
 *
 * Errors: dray_submit()
 */
DRAY_API int dray_submit_many(struct dray *d, const struct dray_transfer *t, size_t n,
			      uint64_t *ids);

/*
 * Starts a transfer and waits for its end. A deadline_ms of 0 is request_ms here. t->done is not
 * called. ret may be NULL.
 *
 * Returns: the status of the transfer; or the error if it was not started.
 *
 * Blocks: for up to request_ms until the transfer is submitted, then until it ends.
 *
 * Errors: dray_submit()
 * -DRAY_E_TIMEOUT: the agent has not reported the end within the deadline and request_ms; the
 *     transfer may still be in flight.
 */
DRAY_API int dray_run(struct dray *d, const struct dray_transfer *t, struct dray_completion *ret);

/*
 * Stops a transfer of dray_submit(), or the copy of a PUT or GET of the store. Its completion follows when it has stopped: with
 * cancelled, or with another status if it ended before.
 *
 * Errors:
 * -DRAY_E_NOT_FOUND: there is no such transfer or batch, or it has ended.
 * -DRAY_E_NO_MEMORY
 */
DRAY_API int dray_cancel(struct dray *d, uint64_t id);

/*
 * Tells whether the memory of a transfer without an answer, or of a PUT or GET of the store, is
 * still lent. An agent that is stopped, such as by a debugger, goes on where it was when it is
 * continued; and the end of the socket does
 * not prove that an agent is dead, because a dying process closes its sockets before its queue
 * pairs. Proof is the agent's answer, the death of its process, or that the agent itself had closed
 * the session. An agent before data protocol 1.3 does not identify its process; then the next
 * session proves it, when another process has taken the agent's place.
 *
 * DRAY_EVENT_CONFIRMED tells when the memory becomes free.
 *
 * Returns: 1 if the request has ended with -DRAY_E_UNCONFIRMED and its memory is still lent: the
 * agent may go on reading and writing it. 0 if it is free. Or a negated error.
 *
 * Errors:
 */
DRAY_API int dray_lent(struct dray *d, uint64_t id);

/*
 * Delivers a notification without a transfer. On success it is queued for every session of the
 * owner's group that reads notifications. payload has up to DRAY_NOTIFY_MAX bytes.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, NOTIFY
 * -DRAY_E_TOO_LARGE: the payload is over its limit.
 * -DRAY_E_NOTIFY_REFUSED: no session of the owner reads notifications, or not fast enough.
 */
DRAY_API int dray_notify(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
			 size_t length);

/* --- mailboxes --- */

#define DRAY_MAILBOX_NAME_MAX 128

/*
 * Opens a mailbox: a name at this node's agent. Clients of this agent, and of agents that hold the
 * same key, can post letters to it without a token: they need to know the agent's segment and the
 * name. So an engine announces itself to another one before either has a token of the other. Each
 * letter is a DRAY_EVENT_LETTER.
 *
 * The name has 1 to DRAY_MAILBOX_NAME_MAX bytes of UTF-8 without control characters, and no other
 * mailbox of the agent has it. The mailbox ends with the session, and the library opens it again
 * with the next one. When a session ends, the names of its mailboxes stay reserved for the same
 * user for some time, so that nobody else takes them while a program restarts.
 *
 * capacity is the number of letters that wait at the agent until this client reads them; 0 is the
 * agent's limit. The clients of one agent fill at most half of a mailbox, and one user of an agent
 * a third, so that others get through.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, MAILBOX_OPEN
 * -DRAY_E_EXISTS: another session has the name, or it is reserved for another user; the text says
 *     who.
 * -DRAY_E_INVALID: there is no name, or it is not UTF-8 without control characters.
 * -DRAY_E_TOO_LARGE: the name is too long.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol before 1.4).
 */
DRAY_API int dray_mailbox_open(struct dray *d, const char *name, unsigned int capacity,
			       dray_mailbox *ret);

/*
 * Closes a mailbox. Its name is free at once. Letters that the mailbox had taken become events
 * before the function returns.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, MAILBOX_CLOSE
 * -DRAY_E_NOT_FOUND: there is no such mailbox.
 */
DRAY_API int dray_mailbox_close(struct dray *d, dray_mailbox mailbox);

/*
 * Sends a letter to a mailbox of any agent. segment is the segment of that agent, or another
 * address (host:port) of its listener; NULL and "" stand for this node's agent. payload has up to
 * DRAY_NOTIFY_MAX bytes. timeout_ms limits the agent's attempts to reach the other one, and the
 * wait for its answer; with 0 that is 10 s, but an address that refuses the connection fails at
 * once.
 *
 * On success the letter is in the queue of the session that owns the mailbox. After
 * -DRAY_E_TIMEOUT, -DRAY_E_PEER_LOST and -DRAY_E_AGENT_RESTARTED it may have been delivered; after
 * any other error it was not. A letter that is posted after the previous post has ended arrives
 * after that letter.
 *
 * The receiver gets the sender's agent, which proves that it holds the key, and the user of its
 * client, as that agent's kernel reports it.
 *
 * Blocks: for up to timeout_ms plus request_ms.
 *
 * Errors: requests, POST
 * -DRAY_E_NOT_FOUND: no mailbox of this name is open at that agent.
 * -DRAY_E_MAILBOX_FULL: the mailbox, or this sender's share of it, is full; post again later.
 * -DRAY_E_DENIED: that agent has no key, and takes letters of its own clients only.
 * -DRAY_E_INVALID: the segment is not an address and port, or a text is not UTF-8.
 * -DRAY_E_TOO_LARGE: the name, the segment or the payload is over its limit.
 * -DRAY_E_UNSUPPORTED: this agent (data protocol before 1.4) or the other one is too old.
 */
DRAY_API int dray_post(struct dray *d, const char *segment, const char *mailbox,
		       const void *payload, size_t length, unsigned int timeout_ms);

/* --- store --- */

#define DRAY_STORE_KEY_MAX 255
#define DRAY_STORE_KEYS_MAX 1024   /* of one batch */
#define DRAY_STORE_RANGES_MAX 4096 /* of all keys of a batch */

/* What a batch does with each of its keys. */
enum dray_store_operation {
	DRAY_STORE_PUT = 1, /* copies the ranges to a new object */
	DRAY_STORE_GET,     /* copies the object to the ranges, from their start */
	DRAY_STORE_EXISTS,  /* tells whether there is an object, and its length; see lease_ms */
	DRAY_STORE_REMOVE,  /* removes the object */
	DRAY_STORE_PIN,     /* keeps it from being evicted, until UNPIN or the end of the session */
	DRAY_STORE_UNPIN,   /* ends a pin of this session, and what EXISTS has leased */
	DRAY_STORE_READ     /* leases the object to be read in place, until dray_store_release() */
};

/* What became of a key. */
enum dray_store_status {
	DRAY_STORE_OK = 0,        /* done */
	DRAY_STORE_EXISTED = 1,   /* PUT: there is an object with this key, which stays as it is */
	DRAY_STORE_NOT_FOUND = 2, /* there is no object with this key */
	DRAY_STORE_BUSY = 3,      /* there is no room now; try again after wait_ms */
	DRAY_STORE_TOO_LARGE = 4, /* larger than the store, the client's shares, or GET's ranges */
	DRAY_STORE_CORRUPT = 5,   /* the stored bytes are damaged */
	DRAY_STORE_LOST = 6,      /* the only holder of the object is gone */
	DRAY_STORE_NOT_TRIED = 7, /* the batch ended before; its status says why */
	/* PUT at another agent: */
	DRAY_STORE_UNREACHABLE = 8, /* it is not connected, or silent; it may have the object */
	DRAY_STORE_DENIED = 9,      /* it may not be asked, has no store, or refuses this user */
	DRAY_STORE_UNSUPPORTED = 10 /* it is too old */
};

/* Where an object was found, or, if it is at another agent, put. */
enum dray_store_tier {
	DRAY_STORE_TIER_NONE = 0,   /* nowhere, or it is not known */
	DRAY_STORE_TIER_MEMORY = 1, /* in the memory of the agent */
	DRAY_STORE_TIER_DISK = 2,   /* on its disk */
	DRAY_STORE_TIER_AGENT = 3   /* at another agent */
};

/*
 * A piece of a value in the client's region. Of values that are blocks of a cache, all blocks can
 * have the same ranges: those of block 0, and the steps between a block and the next one.
 */
struct dray_store_range {
	uint64_t offset; /* start in the region, bytes; block steps are added to it */
	uint64_t length; /* bytes, at least 1 */
	uint64_t step;   /* bytes; without a meaning for block 0 */
};

/* A key of a batch. */
struct dray_store_item {
	const void *key;                       /* its bytes */
	size_t key_length;                     /* 1 to DRAY_STORE_KEY_MAX */
	const struct dray_store_range *ranges; /* PUT and GET: of its value, in order */
	size_t ranges_n;                       /* their number */
	uint32_t cost_us; /* PUT: microseconds to compute it again; 0: unknown */
	uint64_t block;   /* PUT and GET: how many steps are added to each offset */
};

/* A batch: one operation for each of its keys. */
struct dray_store_batch {
	const char *space;        /* name space; NULL or "": the one of the client's own user */
	dray_region region;       /* PUT and GET: of the ranges */
	unsigned int deadline_ms; /* PUT, GET, PIN, READ; 0: the agent's default for transfers */
	unsigned int lease_ms;    /* EXISTS: of what other agents have; 0: they are not asked */
	const struct dray_store_item *items; /* the keys */
	size_t items_n;                      /* 1 to DRAY_STORE_KEYS_MAX */
	unsigned int
		replicas; /* PUT: agents that are to have the objects: 1, 2, or 0: store.replicas */
	const char *at;   /* PUT: the agent that is to have them, see below; NULL or "": this one */
};

/* What became of one key. */
struct dray_store_result {
	unsigned int status;  /* enum dray_store_status, or a newer one */
	unsigned int wait_ms; /* busy */
	uint64_t length;      /* bytes of the object, if it is known */
	const void *data;     /* READ: its bytes */
	uint64_t lease;       /* READ: for dray_store_release() */
	unsigned int tier;    /* enum dray_store_tier, of GET, EXISTS, PIN, READ, and PUT with at */
	unsigned int copies;  /* PUT: agents that have the object, as far as this one knows */
};

/* What became of the keys of a batch. */
struct dray_store_results {
	size_t n;                          /* keys */
	const struct dray_store_result *v; /* one for each item, in their order */
};

/*
 * Stores, fetches or asks for objects of the store of this node's agent, a batch at a time. results
 * has room for one result for each item.
 *
 * An object appears when all its bytes are in place, and never changes: a second PUT of its key is
 * DRAY_STORE_EXISTED. Other users do not see the objects of a name space, unless the agent's
 * configuration names them (store.spaces).
 *
 * A PUT with replicas = 2 ends when one of the agents in store.peers has copies of the objects, or
 * will not have them: copies in the results says which. The status is that of the object here. So
 * does a PUT with replicas = 0 where the agent's configuration says so (store.replicas).
 *
 * A PUT with at = "HOST:PORT" puts the objects at that agent, one of those in store.peers, and not
 * here: it ends when they are there (tier is DRAY_STORE_TIER_AGENT), or will not be, and then no
 * agent keeps them. "local" is this agent. A key that is here already is DRAY_STORE_EXISTED, and
 * stays here.
 *
 * The ranges of PUT and GET belong to the agent until the batch has ended. After
 * -DRAY_E_TIMEOUT the agent may still use them, until the region is removed; after
 * -DRAY_E_UNCONFIRMED (the agent was lost, and is not proven dead) until DRAY_EVENT_CONFIRMED, see
 * dray_lent(). If the copy fails, the keys that it concerned are DRAY_STORE_NOT_TRIED, and the
 * status says why.
 *
 * READ maps the store's memory, which cannot be written to. data stays mapped until its lease is
 * released, or dray_disconnect(), or longer, see dray_store_keep(); its bytes are those of the object until the lease is released or the
 * session ends. Leased and pinned objects count against the user's share of limits.store_held_bytes.
 *
 * For objects that are only on disk, PIN and READ make room in memory for up to deadline_ms; what has none then is
 * DRAY_STORE_BUSY.
 *
 * Blocks: for up to deadline_ms plus request_ms.
 *
 * Errors: requests, STORE_PUT, STORE_READ
 * -DRAY_E_UNSUPPORTED: the agent has no store, is too old, or puts no objects at others.
 * -DRAY_E_INVALID: the operation is unknown, or there are no keys; a key is empty or longer than DRAY_STORE_KEY_MAX, or the keys
 *     have more than 128 KiB, counting one byte more for each; a key of PUT or GET has no range; the name space or at is not UTF-8; at is
 *     not an agent, or comes with replicas = 2; replicas is above 2.
 * -DRAY_E_RANGE: a range is empty, passes the end of the region, or has an offset of more than 64 bits.
 * -DRAY_E_DENIED: the user may not use the name space, or the region does not allow the access.
 * -DRAY_E_NOT_FOUND: there is no such region.
 * -DRAY_E_TOO_LARGE: too many keys or ranges, or the name space or at is too long.
 * -DRAY_E_DEADLINE: the copy of a PUT or GET was not finished within deadline_ms.
 * -DRAY_E_CANCELLED: the region was removed, or an operator stopped the copy.
 * -DRAY_E_REGION_FAULT: memory of the region is gone.
 * -DRAY_E_UNCONFIRMED: the agent was lost during a PUT or GET, and is not proven dead.
 * -DRAY_E_NO_FDS: READ: this process or the agent has no descriptor left.
 */
DRAY_API int dray_store(struct dray *d, enum dray_store_operation operation,
			const struct dray_store_batch *batch, struct dray_store_result *results);

/*
 * Ends leases of READ: their bytes are not read any more. Leases that have ended are ignored.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, STORE_RELEASE
 * -DRAY_E_TOO_LARGE: more than DRAY_STORE_KEYS_MAX leases.
 */
DRAY_API int dray_store_release(struct dray *d, const uint64_t *leases, size_t n);

/*
 * Keeps the memory of an object that was read in place mapped after its release and
 * dray_disconnect(), for a program that cannot prove that nothing refers to it any more. data is that of a result of READ. The
 * mapping, which may have other objects, is *ret_base and *ret_length. Its bytes are those of the
 * object only until the lease ends.
 *
 * Ownership: the caller unmaps it, by munmap(), after dray_disconnect(), or when this function does
 * not find it any more, because its session and its leases have ended.
 *
 * Thread: any thread may call this function, also after the session was lost. So may a forked child, until it calls dray_disconnect().
 *
 * Errors:
 * -DRAY_E_NOT_FOUND: the address is in no memory that this handle has for READ; *ret_base and *ret_length are unchanged.
 */
DRAY_API int dray_store_keep(struct dray *d, const void *data, void **ret_base,
			     uint64_t *ret_length);

/* --- GPU memory --- */

/*
 * Functions for NVIDIA GPUs use the driver, libcuda.so.1, that the engine has loaded; libdray is
 * not linked with it. They create no context and leave the caller's current context unchanged.
 */

/* Memory on a GPU: a device pointer and bytes, such as a tensor's data_ptr. */
struct dray_cuda_range {
	uint64_t address; /* device pointer */
	uint64_t length;  /* at least 1 */
};

/* Memory on a GPU in a form that other processes can open. */
struct dray_cuda_extents {
	char device[48];                   /* UUID of the GPU */
	const struct dray_extent *extents; /* of the ranges, in their order */
	size_t extents_n;                  /* number of extents */
	void *own;                         /* private to the library */
};

/* An allocation on a GPU. */
struct dray_cuda_allocation {
	uint64_t address; /* device pointer of its first byte */
	uint64_t length;  /* bytes */
	uint64_t id; /* the driver's number, which no other allocation of this process gets; 0: unknown */
};

/*
 * Finds the allocation on a GPU that has the byte at an address; of memory of cuMemCreate(), the
 * mapping of one allocation. Loads no driver: without one in this process there is no such memory.
 *
 * Needs no handle.
 *
 * Blocks: for some microseconds.
 *
 * Ownership: on failure the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_NOT_FOUND: the address is not memory of a GPU. Managed memory and pinned memory of the
 *     host are not, because CPUs reach them.
 * -DRAY_E_UNSUPPORTED: the driver is too old, or does not report the bounds of the mapping.
 * -DRAY_E_GPU_LOST, -DRAY_E_IO: an error of the driver; the text has its name.
 */
DRAY_API int dray_cuda_find(uint64_t address, struct dray_cuda_allocation *ret, char *why,
			    size_t why_size);

/*
 * Finds the allocations of ranges on one GPU, and describes each range by extents. Their offsets
 * count from the base of an allocation, because another process can open an allocation only as a
 * whole; each allocation is shared once. kinds has kinds_n kinds, which are tried for each
 * allocation in this order; NULL means cuda_vmm, cuda_ipc:
 *
 * cuda_vmm: memory of cuMemCreate() with a POSIX descriptor handle. A range over several such
 * allocations, as in PyTorch's expandable segments (pieces of 20 MiB), becomes several extents. A
 * region can have 250 descriptors, one for each piece: larger tensors need several regions.
 *
 * cuda_ipc: memory of cudaMalloc(). The agent's process id must differ from the owner's: this fails
 * between two containers that both run as process 1.
 *
 * dmabuf: memory that only RDMA can access; the agent needs no CUDA. It is tried only if kinds
 * contains it, and a region cannot mix it with other kinds. For memory of cuMemCreate() it shares
 * the range itself, rounded to pages, for other memory the allocation.
 *
 * Managed memory, memory of stream-ordered pools (cudaMallocAsync()) and memory of cuMemCreate()
 * without a POSIX descriptor handle cannot be shared. In PyTorch, expandable_segments:True in
 * $PYTORCH_CUDA_ALLOC_CONF allocates tensors by cuMemCreate(), and
 * $TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC makes them exportable. If fabric handles work (a node with
 * IMEX channels), PyTorch uses those instead, and expandable segments must be disabled.
 *
 * Needs no handle.
 *
 * Blocks: for some microseconds for each allocation.
 *
 * Ownership: the descriptors and handles in *ret keep the memory allocated until
 * dray_cuda_extents_free(). On failure the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_INVALID: an address is not GPU memory, or a range passes the end of its memory.
 * -DRAY_E_UNSUPPORTED: there is no driver, it is too old, or the memory was allocated in a way that
 *     cannot be shared; the text names the setting that helps.
 * -DRAY_E_GPU_DEVICE: the ranges are on different GPUs.
 * -DRAY_E_FD_LIMIT, -DRAY_E_TOO_LARGE: the ranges need more allocations or extents than a region
 *     can have.
 * -DRAY_E_GPU_LOST, -DRAY_E_NO_MEMORY, -DRAY_E_IO: an error of the driver; the text has its name.
 */
DRAY_API int dray_cuda_describe(const struct dray_cuda_range *ranges, size_t ranges_n,
				const enum dray_kind *kinds, size_t kinds_n,
				struct dray_cuda_extents *ret, char *why, size_t why_size);

/*
 * Closes and frees extents of dray_cuda_describe(), and resets *e. May be called twice. Regions
 * stay.
 */
DRAY_API void dray_cuda_extents_free(struct dray_cuda_extents *e);

/*
 * Allocates memory on a GPU that can be described as cuda_vmm: virtual memory with a POSIX descriptor
 * handle, which RDMA devices reach if the GPU allows it. bytes is rounded up to the granularity of
 * the driver, usually 2 MiB. device is the number of the GPU in this process. The memory is at one
 * address, and only this GPU may use it.
 *
 * Needs no handle.
 *
 * Blocks: for the driver, some milliseconds for each GiB.
 *
 * Ownership: the caller frees the memory with dray_cuda_free(). On failure the text is in why (of
 * why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_INVALID: bytes is 0 or too large.
 * -DRAY_E_UNSUPPORTED: there is no driver, it is too old, or the GPU cannot share virtual memory.
 * -DRAY_E_GPU_LOST, -DRAY_E_NO_MEMORY, -DRAY_E_IO: an error of the driver; the text has its name.
 */
DRAY_API int dray_cuda_alloc(uint64_t bytes, int device, uint64_t *ret, char *why, size_t why_size);

/*
 * Frees memory of dray_cuda_alloc(), with the same bytes and device. An address of 0 is ignored.
 * Regions of the memory must have been removed.
 *
 * Blocks: until the current context's work is done, because kernels may use the memory.
 */
DRAY_API void dray_cuda_free(uint64_t address, uint64_t bytes, int device);

/*
 * dray_cuda_alloc() with the signature that PyTorch's CUDAPluggableAllocator expects; stream is not
 * used. Returns NULL on failure, which PyTorch reports as out of memory.
 *
 * Example:
 *     allocator = torch.cuda.memory.CUDAPluggableAllocator(path_of_libdray, "dray_cuda_torch_alloc", "dray_cuda_torch_free")
 *     with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
 *         cache = torch.zeros(...)
 */
DRAY_API void *dray_cuda_torch_alloc(ptrdiff_t bytes, int device, void *stream);

/* dray_cuda_free() with the signature that PyTorch's CUDAPluggableAllocator expects. */
DRAY_API void dray_cuda_torch_free(void *address, ptrdiff_t bytes, int device, void *stream);

/*
 * Describes and registers memory of a GPU. The region consists of the ranges, in order. The fields
 * extents, device and pool_bytes of spec are ignored.
 *
 * Blocks: for up to request_ms.
 *
 * Ownership: the memory must stay allocated until dray_region_remove() has succeeded.
 *
 * Errors: dray_cuda_describe(), dray_region_add()
 * -DRAY_E_UNSUPPORTED: there is no driver, it is too old, the memory was allocated in a way that
 *     cannot be shared, or the agent cannot use this kind; the text has the reason.
 */
DRAY_API int dray_cuda_region_add(struct dray *d, const struct dray_region_spec *spec,
				  const struct dray_cuda_range *ranges, size_t ranges_n,
				  const enum dray_kind *kinds, size_t kinds_n, dray_region *ret);

/*
 * Words that transfers wait for or set, and that streams of a GPU write or wait for. So no CPU
 * waits between the two. They are a region of host memory that the GPUs of this process can access.
 */
struct dray_cuda_words;

/*
 * Allocates `count` words (1 to 65536), all 0. A CUDA context must be current on this thread.
 *
 * Blocks: for up to request_ms.
 *
 * Ownership: the caller frees the words with dray_cuda_words_free().
 *
 * Errors: dray_region_add()
 * -DRAY_E_INVALID: the number is out of range, or no context is current.
 * -DRAY_E_UNSUPPORTED: there is no driver, or it is too old.
 *
 * Example:
 *     dray_cuda_words_new(d, 2, &words);
 *     compute<<<grid, block, 0, stream>>>(kv);
 *     dray_cuda_stream_write(words, stream, 0, n, why, sizeof(why));
 *     t.wait = dray_cuda_word(words, 0, n);
 *     t.set = dray_cuda_word(words, 1, n);
 *     dray_submit(d, &t, &id);
 *     dray_cuda_stream_wait(words, stream, 1, n, DRAY_CUDA_WAIT_GEQ, why, sizeof(why));
 */
DRAY_API int dray_cuda_words_new(struct dray *d, unsigned int count, struct dray_cuda_words **ret);

/*
 * Removes the region of words, and frees them in any case. No stream may still use them. After
 * dray_disconnect(), pass NULL for d. w may be NULL.
 *
 * Blocks: as dray_region_remove().
 */
DRAY_API void dray_cuda_words_free(struct dray *d, struct dray_cuda_words *w);

/*
 * Returns word `index` for the field wait or set of a transfer.
 *
 * Returns: the word; without a region if there is no such word.
 */
DRAY_API struct dray_word dray_cuda_word(const struct dray_cuda_words *w, unsigned int index,
					 uint32_t value);

/*
 * Returns the words for the CPU, which must load and store them atomically. A transfer that fails
 * does not set its word, and a stream that waits for the word never goes on: the CPU then writes
 * the word.
 *
 * Returns: the address of the first word.
 *
 * Ownership: the memory belongs to the words.
 */
DRAY_API uint32_t *dray_cuda_words_memory(const struct dray_cuda_words *w);

/* Condition of dray_cuda_stream_wait(). */
enum dray_cuda_wait {
	DRAY_CUDA_WAIT_GEQ = 0, /* (int32_t)(word - value) >= 0: for counters */
	DRAY_CUDA_WAIT_EQ = 1   /* word == value */
};

/*
 * Enqueues a write of a word on a stream. stream is a CUstream or cudaStream_t; NULL is the default
 * stream of the current context. The write happens when all earlier work of the stream is done and
 * visible: a transfer can wait for it. A transfer starts when its word has exactly its value, so
 * write no other value before that.
 *
 * Thread: any thread that may use the stream.
 *
 * Ownership: on failure the text is in why (of why_size bytes, may be NULL).
 *
 * Errors:
 * -DRAY_E_RANGE: there is no such word.
 * -DRAY_E_UNSUPPORTED: there is no driver, or it is too old.
 * -DRAY_E_GPU_LOST, -DRAY_E_NO_MEMORY, -DRAY_E_IO: an error of the driver; the text has its name.
 */
DRAY_API int dray_cuda_stream_write(const struct dray_cuda_words *w, void *stream,
				    unsigned int index, uint32_t value, char *why, size_t why_size);

/*
 * Makes later work of a stream wait for a word. stream is a CUstream or cudaStream_t; NULL is the
 * default stream of the current context. A transfer that succeeds sets its word when its bytes are
 * visible to the GPU.
 *
 * Thread: any thread that may use the stream.
 *
 * Ownership: on failure the text is in why (of why_size bytes, may be NULL).
 *
 * Errors: dray_cuda_stream_write()
 * -DRAY_E_INVALID: wait is not a value of enum dray_cuda_wait.
 */
DRAY_API int dray_cuda_stream_wait(const struct dray_cuda_words *w, void *stream,
				   unsigned int index, uint32_t value, enum dray_cuda_wait wait,
				   char *why, size_t why_size);

/* --- placement --- */

/*
 * A scope is a model, an instance, a rank, or a key of the caller's own, as UTF-8 of up to 256
 * bytes; NULL or empty: the whole node. These functions also work while the agent drains.
 */

/* State of a segment. A newer agent may have more. */
enum dray_segment_state {
	DRAY_SEGMENT_UNKNOWN = 0, /* not probed */
	DRAY_SEGMENT_PROBING = 1, /* being probed; has not answered yet */
	DRAY_SEGMENT_READY = 2,   /* answers */
	DRAY_SEGMENT_LOST = 3     /* has stopped answering */
};

/* Flags of a segment. A newer agent may have more. */
enum dray_segment_flag {
	/* known from before the agent's start, and not confirmed by a probe yet */
	DRAY_SEGMENT_UNVERIFIED = 1,
	DRAY_SEGMENT_NODE_LOCAL = 2, /* on this node */
	DRAY_SEGMENT_PREFERRED = 4   /* the preferred segment */
};

/* Origin of a preferred segment, strongest first. */
enum dray_preference {
	DRAY_PREFERENCE_NONE = 0,        /* there is no preferred segment */
	DRAY_PREFERENCE_EXPLICIT = 1,    /* the agent's configuration */
	DRAY_PREFERENCE_ENVIRONMENT = 2, /* the agent's environment */
	DRAY_PREFERENCE_HINT = 3,        /* a hint */
	DRAY_PREFERENCE_DETECTED = 4     /* a ready segment on this node */
};

/* Source of a hint, strongest first. */
enum dray_hint_source {
	DRAY_HINT_EXPLICIT = 1,    /* the administrator */
	DRAY_HINT_ENVIRONMENT = 2, /* the agent's environment */
	DRAY_HINT_DETECTED = 3,    /* the agent */
	DRAY_HINT_CLIENT = 4       /* dray_hint_put() */
};

/* A remembered placement: for a scope, that segment. */
struct dray_hint {
	const char *segment; /* host:port */
	unsigned int source; /* enum dray_hint_source */
	unsigned int state;  /* enum dray_segment_state */
	unsigned int flags;  /* enum dray_segment_flag */
	uint32_t score;      /* higher is better */
	uint64_t left_ms;    /* until the hint expires */
};

/*
 * Returns the effective hint of a scope. It is the one with the strongest source, then the highest
 * score, then the newest.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, HINT_GET
 * -DRAY_E_NOT_FOUND: there is no hint for the scope.
 * -DRAY_E_INVALID: the scope is not UTF-8.
 * -DRAY_E_TOO_LARGE: the scope is too long.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol 1.0), or keeps no hints.
 */
DRAY_API int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret);

/*
 * Stores a hint: a segment (host:port) for a scope. It replaces the hint of clients with this uid
 * for the scope, expires after ttl_ms (0: the agent's default), and outlives both the client and
 * the agent. segment NULL: forgets that hint.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, HINT_PUT
 * -DRAY_E_NOT_FOUND: there was no hint to forget.
 * -DRAY_E_INVALID: this is not a segment, or a string is not UTF-8. An empty segment is refused,
 *     because it is probably a variable that is not set.
 * -DRAY_E_TOO_LARGE: a string is too long.
 * -DRAY_E_QUOTA: clients of this uid have stored too many hints.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol 1.0), or keeps no hints.
 */
DRAY_API int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
			   uint64_t ttl_ms);

/* The preferred segment, or the reason why there is none. */
struct dray_segment {
	const char *segment;     /* empty: there is none */
	unsigned int preference; /* enum dray_preference */
	unsigned int state;      /* enum dray_segment_state */
	unsigned int flags;      /* enum dray_segment_flag */
	uint64_t capacity;       /* bytes of the segment, from a Mooncake master; 0: unknown */
	uint64_t allocated;      /* bytes in use */
	const char *reason;      /* for this segment, or for none */
};

/*
 * Returns the preferred segment, by hints of the scope, then of the whole node. To have none is not
 * an error.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, SEGMENT_GET
 * -DRAY_E_INVALID: the scope is not UTF-8.
 * -DRAY_E_TOO_LARGE: the scope is too long.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol 1.0).
 *
 * Example:
 *     struct dray_segment s;
 *
 *     if (!dray_segment_get(d, "llama-70b", &s) && *s.segment)
 *             connect_to(s.segment);
 */
DRAY_API int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret);

/* Environment of a launcher. The lengths do not count the terminators of the strings. */
struct dray_env {
	const char *variables;   /* lines of NAME=VALUE, each ended by a newline */
	size_t variables_length; /* of variables */
	const char *notes;       /* lines of NAME: REASON for variables that are left out */
	size_t notes_length;     /* of notes */
};

/*
 * Returns the environment for launching an engine. profiles: names separated by commas, up to 256
 * bytes; NULL or empty: those of the agent's configuration.
 *
 * Blocks: for up to request_ms.
 *
 * Errors: requests, ENV_GET
 * -DRAY_E_INVALID: there is no such profile.
 * -DRAY_E_TOO_LARGE: the text is too long: request fewer profiles.
 * -DRAY_E_UNSUPPORTED: the agent is too old (data protocol 1.0).
 */
DRAY_API int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret);

/* --- without blocking --- */

/*
 * A function that ends in _start starts the request of the function without _start and returns. The
 * completion has arg, the status, and the new handle or the answer; ret_id (may be NULL) gets the
 * id of the request. Requests wait while the session is being reconnected.
 */

/*
 * Starts dray_region_add(). It still touches the pages of memfds before it returns. The caller
 * touches the pages of a pool, which dray_region_map() shows. The completion has the region.
 *
 * Blocks: 0.3 s for each new GiB of memfds, unless DRAY_REGION_NO_POPULATE is set.
 *
 * Errors: dray_region_add() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_add_start(struct dray *d, const struct dray_region_spec *spec, void *arg,
				   uint64_t *ret_id);

/*
 * Starts dray_region_remove(). The handle is invalid from the call on.
 *
 * Errors: dray_region_remove() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_remove_start(struct dray *d, dray_region region, void *arg,
				      uint64_t *ret_id);

/*
 * Starts dray_region_export(). The completion has the token.
 *
 * Errors: dray_region_export() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_export_start(struct dray *d, dray_region region,
				      const struct dray_export *what, void *arg, uint64_t *ret_id);

/*
 * Starts dray_region_export_mooncake(). The completion has the token.
 *
 * Errors: dray_region_export_mooncake() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_export_mooncake_start(struct dray *d, dray_region region,
					       const struct dray_export *what, uint64_t address,
					       void *arg, uint64_t *ret_id);

/*
 * Starts dray_region_revoke(). bytes of the completion is the number of tokens.
 *
 * Errors: dray_region_revoke() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_revoke_start(struct dray *d, dray_region region,
				      const struct dray_token *token, void *arg, uint64_t *ret_id);

/*
 * Starts dray_remote_import(). The completion has the remote.
 *
 * Errors: dray_remote_import()
 */
DRAY_API int dray_remote_import_start(struct dray *d, const struct dray_token *token,
				      unsigned int timeout_ms, void *arg, uint64_t *ret_id);

/*
 * Starts dray_remote_release().
 *
 * Errors: dray_remote_release() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_remote_release_start(struct dray *d, dray_remote remote, void *arg,
				       uint64_t *ret_id);

/*
 * Starts dray_region_lease(). The completion has the lease, the token, and in bytes the number of
 * holders that the lease was granted to.
 *
 * Errors: dray_region_lease() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_region_lease_start(struct dray *d, dray_region region,
				     const struct dray_lease_spec *what, void *arg,
				     uint64_t *ret_id);

/*
 * Starts dray_lease_end().
 *
 * Errors: dray_lease_end() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_lease_end_start(struct dray *d, dray_lease lease, void *arg, uint64_t *ret_id);

/*
 * Starts dray_lease_acquire(). The completion has the remote, and in expiry_ms the time until the
 * lease expires.
 *
 * Errors: dray_lease_acquire()
 */
DRAY_API int dray_lease_acquire_start(struct dray *d, const struct dray_token *token,
				      const char *label, unsigned int timeout_ms, void *arg,
				      uint64_t *ret_id);

/*
 * Starts dray_lease_renew(). expiry_ms of the completion is the time until the lease expires.
 *
 * Errors: dray_lease_renew() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_lease_renew_start(struct dray *d, dray_remote remote, unsigned int ms, void *arg,
				    uint64_t *ret_id);

/*
 * Starts dray_notify().
 *
 * Errors: dray_notify() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_notify_start(struct dray *d, dray_remote remote, uint64_t tag,
			       const void *payload, size_t length, void *arg, uint64_t *ret_id);

/*
 * Starts dray_mailbox_open(). The completion has the mailbox.
 *
 * Errors: dray_mailbox_open() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_mailbox_open_start(struct dray *d, const char *name, unsigned int capacity,
				     void *arg, uint64_t *ret_id);

/*
 * Starts dray_mailbox_close(). Letters that the mailbox had taken become events before the
 * completion.
 *
 * Errors: dray_mailbox_close() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_mailbox_close_start(struct dray *d, dray_mailbox mailbox, void *arg,
				      uint64_t *ret_id);

/*
 * Starts dray_post().
 *
 * Errors: dray_post()
 */
DRAY_API int dray_post_start(struct dray *d, const char *segment, const char *mailbox,
			     const void *payload, size_t length, unsigned int timeout_ms, void *arg,
			     uint64_t *ret_id);

/*
 * Starts dray_store(). The completion has the results, also if it has a status.
 *
 * Errors: dray_store() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_store_start(struct dray *d, enum dray_store_operation operation,
			      const struct dray_store_batch *batch, void *arg, uint64_t *ret_id);

/*
 * Starts dray_store_release(). The completion has the number of leases that ended in bytes.
 *
 * Errors: dray_store_release() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_store_release_start(struct dray *d, const uint64_t *leases, size_t n, void *arg,
				      uint64_t *ret_id);

/*
 * Starts dray_hint_get(). The completion has the hint.
 *
 * Errors: dray_hint_get() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_hint_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id);

/*
 * Starts dray_hint_put().
 *
 * Errors: dray_hint_put() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_hint_put_start(struct dray *d, const char *scope, const char *segment,
				 uint32_t score, uint64_t ttl_ms, void *arg, uint64_t *ret_id);

/*
 * Starts dray_segment_get(). The completion has the segment.
 *
 * Errors: dray_segment_get() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_segment_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id);

/*
 * Starts dray_env_get(). The completion has the environment.
 *
 * Errors: dray_env_get() without -DRAY_E_TIMEOUT
 */
DRAY_API int dray_env_get_start(struct dray *d, const char *profiles, void *arg, uint64_t *ret_id);

#ifdef __cplusplus
}
#endif

#endif
