/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: the client side of dray. A handle (struct dray) is a session with this node's agent. With
 * it an engine registers memory as regions, exports tokens for ranges of them, imports tokens
 * of other engines, and lets the agent move bytes between its own regions and the imported ranges.
 *
 * Rules for all functions, unless their comment says otherwise:
 *
 * Thread:    any thread may call any function of a handle at any time, apart from
 *            dray_disconnect(), which must be the last call. Each completion and each event is taken
 *            by one thread. A function that does not block waits for other threads for some
 *            microseconds at most, since none of them holds the handle while it sleeps. The
 *            library starts no threads, installs no signal handlers, prints nothing, raises no
 *            SIGPIPE, and never ends the process.
 * Fork:      a child must not use an inherited handle. All functions return -DRAY_E_OUT_OF_ORDER
 *            there, except dray_disconnect(), which frees the child's copy and does not affect the
 *            parent.
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

/*
 * Meaning of a code, its stable name, and what to do. Takes the code or its negation. Static text,
 * never NULL. Any thread.
 */
DRAY_API const char *dray_strerror(int error);
DRAY_API const char *dray_strerrorname(int error);
DRAY_API const char *dray_strerrorfix(int error);

/* --- session --- */

struct dray;

/*
 * Handles of regions and remotes, valid for one struct dray, also after the agent restarts. An id of
 * 0 is no handle. The ids of regions, remotes and requests differ, so that one that is used in the
 * place of another is refused with -DRAY_E_INVALID.
 */
typedef struct {
	uint64_t id;
} dray_region;

typedef struct {
	uint64_t id;
} dray_remote;

enum dray_option_flag {
	DRAY_OPTION_NOTIFICATIONS = 1, /* deliver the group's notifications to this handle */
	DRAY_OPTION_NO_RING = 2,       /* submit by message only; no ring, no arena */
	DRAY_OPTION_NO_RECONNECT = 4,  /* once lost, the session stays closed */
	DRAY_OPTION_WAIT = 8,          /* dray_connect() waits until the agent is started */
	DRAY_OPTION_NO_SPIN = 16,      /* sleep at once, whatever spin_us is */
	DRAY_OPTION_SEGMENTS = 32      /* deliver DRAY_EVENT_SEGMENT to this handle */
};

struct dray_options {
	const char *socket;        /* path; default $DRAY_SOCKET, else /run/dray/dray.sock */
	const char *group;         /* up to 64 bytes; default: a group of its own */
	const char *name;          /* up to 64 bytes, shown by drayctl */
	unsigned int flags;        /* enum dray_option_flag */
	unsigned int ring_entries; /* submissions queued, power of two to 4096; default 256 */
	uint64_t arena_bytes;      /* for operation lists in flight, up to 16 MiB; default 4 MiB */
	unsigned int spin_us; /* spin before sleeping; default $DRAY_SPIN, else 20, in rare trials
			       * 100, or 0 if this process has less than two CPUs */
	unsigned int connect_ms; /* timeout of dray_connect() and each reconnect; default 5000 */
	unsigned int request_ms; /* timeout of requests that block; default 30000 */
	unsigned int reconnect_min_ms; /* first pause between attempts, doubling; default 10 */
	unsigned int reconnect_max_ms; /* longest pause; default 1000 */
	unsigned int reconnect_for_ms; /* stop reconnecting after this time; default: never */
	unsigned int events_max;       /* events queued before reading stops; default 4096 */
	/*
	 * How long a transfer waits for the agent's answer after its deadline has passed, or for
	 * proof that its memory is free after the agent was lost; then it is unconfirmed.
	 * Default 80.
	 */
	unsigned int confirm_ms;
	/*
	 * How long requests other than transfers wait for a lost session. If it has been lost for
	 * longer when an attempt to reconnect fails, they end with the code of the attempt. A new
	 * request starts an attempt at once. Default: they wait without limit.
	 */
	unsigned int patience_ms;
};

/*
 * Opens a session. options may be NULL. Blocks for up to connect_ms. If the agent grants no ring or
 * arena, the session works without them, as dray_get_info() shows. On failure the text is in why
 * (of why_size bytes, may be NULL). -DRAY_E_PEER_UNREACHABLE: there is no agent. -DRAY_E_DENIED,
 * -DRAY_E_QUOTA, -DRAY_E_DRAINING, -DRAY_E_VERSION: the kernel or the agent refused the connection.
 * -DRAY_E_TIMEOUT.
 */
DRAY_API int dray_connect(const struct dray_options *options, struct dray **ret, char *why,
			  size_t why_size);

/*
 * Makes a handle and starts to connect, which goes on in dray_process() and functions that block. Does
 * not block. DRAY_EVENT_CONNECTED tells the success, DRAY_EVENT_CLOSED the failure. With
 * DRAY_OPTION_WAIT the library tries again until the agent is started, for reconnect_for_ms.
 * Requests other than transfers wait for the session. -DRAY_E_INVALID, -DRAY_E_TOO_LARGE: the
 * options are invalid. -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS.
 */
DRAY_API int dray_connect_start(const struct dray_options *options, struct dray **ret, char *why,
				size_t why_size);

/*
 * Closes the session and frees everything, also the mappings of pools. The agent stops all work of
 * the session, but this function does not wait for it: to reuse the memory, call
 * dray_region_remove() first. d may be NULL. Not from a callback.
 */
DRAY_API void dray_disconnect(struct dray *d);

/*
 * Text of this thread's last failed call, or of the last loss of the session if that came later. Valid
 * until the next call of this thread.
 */
DRAY_API const char *dray_last_error(const struct dray *d);

struct dray_info {
	int connected;    /* 1: session open, regions registered */
	uint64_t session; /* as in drayctl sessions */
	uint64_t incarnation;
	uint8_t agent_id[16];
	const char *segment;
	const char *version;
	unsigned int ring_entries; /* 0: no ring */
	uint64_t arena_bytes;      /* 0: no arena */
	size_t in_flight;          /* requests that have not ended */
	size_t completions;        /* that can be taken */
	size_t events;             /* that can be taken */
	int segments; /* 1: DRAY_EVENT_SEGMENT is delivered; 0: not requested, or agent too old */
	uint64_t spin_ns;     /* longest spin before sleeping; 0: none */
	uint64_t waits_spun;  /* waits that ended while spinning */
	uint64_t waits_slept; /* other waits, each with at least one system call */
};

/* Describes the session and the agent; while not connected, the last ones. */
DRAY_API int dray_get_info(const struct dray *d, struct dray_info *ret);

/* --- event loop --- */

/*
 * A descriptor for poll(2) or epoll(7), readable when dray_process() has work: replies, completions
 * of the ring, or a reconnect that is due. It belongs to the handle and never changes. After the
 * first call every completion wakes it, which costs time: do not call this function without need.
 */
DRAY_API int dray_fd(struct dray *d);

/*
 * Runs the event loop: receives messages and completions, reconnects when due, runs callbacks.
 * Blocks until a completion or event can be taken or a callback was run, for up to timeout_ms (0:
 * does not block; -1: no limit). Returns their number; 0 on timeout; -DRAY_E_SESSION_CLOSED when
 * the session is closed for good and nothing is left to take. On return the descriptor is armed:
 * take all completions and events, then poll it.
 */
DRAY_API int dray_process(struct dray *d, int timeout_ms);

/*
 * For threads that spin: takes completions off the ring without a system call, and handles
 * everything else now and then. Returns as dray_process(). The descriptor is not armed afterwards:
 * call dray_process() before sleeping on it.
 */
DRAY_API int dray_poll(struct dray *d);

enum dray_request {
	DRAY_REQUEST_TRANSFER = 1,
	DRAY_REQUEST_REGION_ADD,
	DRAY_REQUEST_REGION_REMOVE,
	DRAY_REQUEST_EXPORT,
	DRAY_REQUEST_REVOKE,
	DRAY_REQUEST_IMPORT,
	DRAY_REQUEST_RELEASE,
	DRAY_REQUEST_NOTIFY,
	DRAY_REQUEST_HINT_GET,
	DRAY_REQUEST_HINT_PUT,
	DRAY_REQUEST_SEGMENT_GET,
	DRAY_REQUEST_ENV_GET
};

enum dray_transport {
	DRAY_TRANSPORT_NONE = 0,  /* no byte was moved */
	DRAY_TRANSPORT_LOCAL = 1, /* copy within this node's agent */
	DRAY_TRANSPORT_TCP = 2,
	DRAY_TRANSPORT_RDMA = 3,
	DRAY_TRANSPORT_GPU = 4 /* copy by a GPU within this node's agent */
};

struct dray_token;
struct dray_hint;
struct dray_segment;
struct dray_env;

/* How a request ended. */
struct dray_completion {
	uint64_t id;
	void *arg; /* from the request */
	enum dray_request request;
	int status;             /* 0, or a negated enum dray_error */
	unsigned int transport; /* transfers: enum dray_transport, or a newer one */
	uint64_t bytes;         /* transfers: bytes moved, all if status is 0; revoke: tokens */
	uint64_t duration_ns;   /* transfers: from acceptance to the end, by the agent's clock */
	dray_region region;     /* the new region, and the one of a request about a region */
	dray_remote remote;     /* likewise */
	const char *message;    /* empty if status is 0 */
	/* answers to these requests alone */
	const struct dray_token *token;
	const struct dray_hint *hint;
	const struct dray_segment *segment;
	const struct dray_env *env;
};

/* Takes the oldest completion. Returns 1, or 0 if there is none. */
DRAY_API int dray_next_completion(struct dray *d, struct dray_completion *ret);

/*
 * Waits for a request and takes its completion, which has the status. Blocks for up to timeout_ms
 * (-1: no limit). -DRAY_E_TIMEOUT: the request has not ended; its completion will follow.
 * -DRAY_E_NOT_FOUND: the request is unknown, or its completion was taken.
 */
DRAY_API int dray_wait(struct dray *d, uint64_t id, int timeout_ms, struct dray_completion *ret);

enum dray_event_type {
	DRAY_EVENT_NOTIFICATION = 1, /* tag, payload, region, sender */
	DRAY_EVENT_REMOTE_LOST = 2,  /* remote, code, message; the agent has released it */
	DRAY_EVENT_DRAINING = 3,     /* no new work; work in flight is stopped after deadline_ms */
	/*
	 * The session is lost. code is -DRAY_E_AGENT_RESTARTED (the agent died),
	 * -DRAY_E_SESSION_CLOSED (the agent closed it; message has the reason) or
	 * -DRAY_E_PROTOCOL. All requests in flight end with that code, or with
	 * -DRAY_E_UNCONFIRMED, and remotes and tokens are void. The library reconnects, unless DRAY_OPTION_NO_RECONNECT is set.
	 */
	DRAY_EVENT_LOST = 4,
	/*
	 * There is a new session. Regions are registered again with the same dray_region; tokens
	 * must be exported and imported again. restarted: 1 if the agent has another incarnation.
	 */
	DRAY_EVENT_RESTORED = 5,
	/* A region could not be registered again: region, code, message; remove the region. */
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
	 * A transfer that ended with -DRAY_E_UNCONFIRMED: id. Its memory is free now. code: how it
	 * ended, 0 or a negated enum dray_error; message.
	 */
	DRAY_EVENT_CONFIRMED = 10
};

struct dray_event {
	enum dray_event_type type;
	int code; /* negated enum dray_error */
	int restarted;
	unsigned int deadline_ms;
	dray_region region; /* none if another session of the group registered the region */
	dray_remote remote;
	uint64_t agent_region; /* the agent's handle of the region, valid in the whole group */
	uint64_t tag;
	uint8_t agent_id[16]; /* agent that sent the notification */
	uint64_t incarnation; /* of that agent */
	uint64_t id;          /* of the notification at that agent, or of the transfer */
	const void *payload;  /* pointers are valid until this thread's next dray_next_event() */
	size_t length;
	const char *message;
	const char *segment;                     /* "" if there is none */
	unsigned int segment_old, segment_state; /* enum dray_segment_state, or a newer one */
	unsigned int segment_flags;              /* enum dray_segment_flag */
};

/* Takes the oldest event. Returns 1, or 0 if there is none. */
DRAY_API int dray_next_event(struct dray *d, struct dray_event *ret);

/* --- memory --- */

enum dray_memory_flag {
	DRAY_MEMORY_HUGE = 1 /* use huge pages of the default size, or fail */
};

/* Memory that can be registered: a sealed memfd, mapped and populated. */
struct dray_memory {
	void *address;
	uint64_t length; /* as requested, rounded up to whole pages */
	int fd;
};

/*
 * Allocates memory, which the caller frees with dray_memory_free(). Needs no handle; any thread.
 * Takes about 0.3 s for each GiB. -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS, -DRAY_E_INVALID, -DRAY_E_IO.
 */
DRAY_API int dray_memory_alloc(uint64_t bytes, unsigned int flags, struct dray_memory *ret);

/*
 * Touches every page of a range of a memfd with F_SEAL_SHRINK, so that it can be registered with
 * DRAY_REGION_NO_POPULATE. Blocks: 0.3 s for each new GiB. Needs no handle; any thread. The text of
 * an error is in why (of why_size bytes, may be NULL). Errors of dray_region_add().
 */
DRAY_API int dray_memory_populate(int fd, uint64_t offset, uint64_t length, char *why,
				  size_t why_size);

/*
 * Unmaps and closes the memory, and resets *m. May be called twice. Regions of the memory exist
 * until they are removed.
 */
DRAY_API void dray_memory_free(struct dray_memory *m);

/* --- regions --- */

enum dray_access {
	DRAY_READ = 1, /* may be the source of transfers */
	DRAY_WRITE = 2 /* may be the destination */
};

enum dray_kind {
	DRAY_KIND_MEMFD = 1,    /* a memfd with F_SEAL_SHRINK */
	DRAY_KIND_DMABUF = 2,   /* a device's memory, only for RDMA */
	DRAY_KIND_CUDA_IPC = 3, /* a legacy CUDA IPC handle (memory of cudaMalloc) */
	DRAY_KIND_CUDA_VMM = 4  /* an allocation of cuMemCreate, exported as a descriptor */
};

#define DRAY_CUDA_IPC_BYTES 64

struct dray_extent {
	enum dray_kind kind;
	int fd;
	uint64_t offset; /* in the file, or from the allocation's base; any alignment */
	uint64_t length;
	const void *handle; /* cuda_ipc, instead of fd: DRAY_CUDA_IPC_BYTES bytes; copied */
	uint64_t allocation; /* cuda_vmm: bytes of all of it; 0: the agent finds out, which is slower */
};

enum dray_region_flag {
	DRAY_REGION_HUGE = 1,       /* pools: use huge pages, or fail */
	DRAY_REGION_NO_POPULATE = 2 /* every page was touched already; holes are an error */
};

/*
 * Either extents, in the order of their offsets in the region, or pool_bytes of the agent's memory.
 */
struct dray_region_spec {
	const char *name;    /* up to 64 bytes, shown by drayctl */
	unsigned int access; /* enum dray_access */
	unsigned int flags;  /* enum dray_region_flag */
	const struct dray_extent *extents;
	size_t extents_n; /* up to 1024, of up to 250 descriptors and 256 handles, all different */
	uint64_t pool_bytes;
	const char *device; /* GPU by UUID or PCI address; for kinds cuda_ipc and cuda_vmm */
};

/*
 * Registers memory. First touches every page of a memfd (0.3 s for each new GiB), so that the pages
 * are charged to the caller and not to the agent. The library keeps duplicates of the descriptors
 * and copies of the handles, to register the region again after a restart of the agent. Blocks for
 * up to request_ms. Errors: those of REGION_ADD, and -DRAY_E_UNSUPPORTED for kinds cuda_ipc and
 * cuda_vmm with an agent of a data protocol before 1.2.
 */
DRAY_API int dray_region_add(struct dray *d, const struct dray_region_spec *spec, dray_region *ret);

/* Registers a whole struct dray_memory as one extent. */
DRAY_API int dray_region_add_memory(struct dray *d, const struct dray_memory *m,
				    unsigned int access, dray_region *ret);

/*
 * Allocates a pool of the agent's memory, maps it and touches every page: transfers need pages that
 * exist. flags: DRAY_REGION_HUGE.
 */
DRAY_API int dray_region_add_pool(struct dray *d, uint64_t bytes, unsigned int access,
				  unsigned int flags, dray_region *ret);

/*
 * Address of a pool. The mapping belongs to the handle, until the region is removed, and does not
 * change when the agent restarts. *ret_fd (may be NULL) is borrowed. -DRAY_E_REGION_KIND: the
 * region is not a pool.
 */
DRAY_API int dray_region_map(struct dray *d, dray_region region, void **ret_address,
			     uint64_t *ret_length, int *ret_fd);

struct dray_region_info {
	uint64_t length;     /* 0: of a borrowed region */
	unsigned int access; /* enum dray_access */
	int lost;            /* 0, or the negated code of the reason why it is not registered */
	uint64_t agent_region; /* the agent's handle, valid in the whole group; 0: not registered now */
};

DRAY_API int dray_region_get_info(struct dray *d, dray_region region, struct dray_region_info *ret);

/*
 * Ends a region. Success proves that no byte of the memory is read or written any more: transfers
 * have ended with cancelled, tokens are revoked, pools are unmapped. The handle is invalid from the
 * call on. Blocks for up to request_ms; -DRAY_E_TIMEOUT: there is no proof yet. If the session is
 * lost meanwhile, the proof is that the agent has died, which the reconnect shows; otherwise the
 * result is the code of the loss.
 */
DRAY_API int dray_region_remove(struct dray *d, dray_region region);

/* A range of a region for other engines. */
struct dray_export {
	uint64_t offset;
	uint64_t length;      /* 0: to the end */
	unsigned int access;  /* enum dray_access; 0: what the region allows */
	int single_use;       /* 1: can be imported once */
	unsigned int ttl_ms;  /* 0: until revoked */
	uint8_t audience[16]; /* agent id of the only importer; zero: any */
};

#define DRAY_TOKEN_MAX 256
#define DRAY_TOKEN_TEXT_MAX 352

/* Every holder of a token can use it until it expires or is revoked. The struct can be copied. */
struct dray_token {
	uint64_t id;    /* exporter only */
	uint64_t epoch; /* exporter only; the session that made it */
	uint32_t length;
	uint8_t data[DRAY_TOKEN_MAX];   /* binary form */
	char text[DRAY_TOKEN_TEXT_MAX]; /* "dray1:..." */
};

/* Exports a range as a token. what may be NULL: the whole region. Blocks for up to request_ms. */
DRAY_API int dray_region_export(struct dray *d, dray_region region, const struct dray_export *what,
				struct dray_token *ret);

/*
 * Revokes a token (NULL: all tokens of the region). Success proves that no importer can access the
 * range by it any more. Blocks for up to request_ms. -DRAY_E_NOT_FOUND also for tokens of an
 * earlier session, which are void.
 */
DRAY_API int dray_region_revoke(struct dray *d, dray_region region, const struct dray_token *token);

/*
 * Parses the text form (a terminated string) or the binary form. -DRAY_E_TOKEN_INVALID. Any thread.
 */
DRAY_API int dray_token_parse(const char *text, struct dray_token *ret);
DRAY_API int dray_token_from_bytes(const void *bytes, size_t length, struct dray_token *ret);

/* --- remotes --- */

/*
 * Imports a token: the range is usable as a remote. timeout_ms limits the agent's attempts to reach
 * the owner. 0: its default, and an address that refuses the connection fails at once. Blocks for up to timeout_ms plus request_ms.
 */
DRAY_API int dray_remote_import(struct dray *d, const struct dray_token *token,
				unsigned int timeout_ms, dray_remote *ret);

/* Releases a remote. On success its transfers have ended. Blocks for up to request_ms. */
DRAY_API int dray_remote_release(struct dray *d, dray_remote remote);

struct dray_remote_info {
	uint64_t length;
	unsigned int access;    /* granted */
	unsigned int transport; /* best path at the time of import */
	int lost;               /* 0, or the negated code of the reason why it is unusable */
	uint64_t agent_remote;  /* the agent's handle, valid in the whole group */
};

DRAY_API int dray_remote_get_info(struct dray *d, dray_remote remote, struct dray_remote_info *ret);

/*
 * Sessions of one group can use each other's regions and remotes, such as a scheduler those of its
 * workers. The other session passes the agent's handle, which _get_info() tells, and _borrow makes a
 * handle of it here.
 * dray_region_remove() and dray_remote_release() then end only the loan. A restart of the agent
 * voids the loan.
 */
DRAY_API int dray_region_borrow(struct dray *d, uint64_t agent_region, dray_region *ret);
DRAY_API int dray_remote_borrow(struct dray *d, uint64_t agent_remote, dray_remote *ret);

/* --- transfers --- */

enum dray_direction {
	DRAY_DIRECTION_WRITE = 1, /* local region to remote */
	DRAY_DIRECTION_READ = 2   /* remote to local region */
};

enum dray_priority { DRAY_PRIORITY_BULK = 0, DRAY_PRIORITY_LATENCY = 1 };

#define DRAY_NOTIFY_MAX 4096

struct dray_op {
	uint64_t local;  /* offset in the local region */
	uint64_t remote; /* offset in the remote */
	uint64_t length; /* at least 1 */
};

/* A 32-bit word in a region, at an offset that is a multiple of 4. No region: no word. */
struct dray_word {
	dray_region region;
	uint64_t offset;
	uint32_t value;
};

struct dray_transfer {
	dray_region local;
	dray_remote remote;
	enum dray_direction direction;
	enum dray_priority priority;
	const struct dray_op *ops; /* copied before dray_submit() returns */
	size_t count;              /* at least 1 */
	unsigned int deadline_ms;  /* 0: the agent's default */
	struct dray_word wait;     /* the transfer starts when the word has this value */
	struct dray_word set;      /* stored when all bytes are in place, before the completion */
	int notify; /* 1: deliver tag and payload to the group that owns the remote */
	uint64_t tag;
	const void *payload; /* up to DRAY_NOTIFY_MAX bytes, copied */
	size_t payload_length;
	void *arg; /* repeated in the completion */
	/*
	 * Called once with the completion, which then cannot be taken: from dray_process() or a
	 * function that blocks, in the thread that called it. Callbacks of a handle run one after
	 * the other. May submit.
	 */
	void (*done)(struct dray *d, const struct dray_completion *c);
};

/*
 * Starts a transfer with the id *ret_id (may be NULL). It ends exactly once, with one completion.
 * -DRAY_E_UNCONFIRMED in the completion: the agent did not answer within its deadline, or was lost.
 * The memory is then still lent; see dray_lent() and DRAY_EVENT_CONFIRMED.
 * Operations and transfers have no order; overlapping destinations are undefined. The library
 * submits by the ring, with the arena for several operations, or by a message. A list that is longer
 * than that takes is copied, and submitted in parts. -DRAY_E_BUSY:
 * nothing was started, because too much is in flight; take completions, then submit again (if
 * nothing of this handle is in flight, when dray_fd() is readable). -DRAY_E_SESSION_CLOSED: not
 * connected. A refusal of the agent is in the completion.
 */
DRAY_API int dray_submit(struct dray *d, const struct dray_transfer *t, uint64_t *ret_id);

/*
 * Starts up to n transfers, in order, with one doorbell. Returns how many were started, with their
 * ids in ids (may be NULL); or the error of the first one if none was.
 */
DRAY_API int dray_submit_many(struct dray *d, const struct dray_transfer *t, size_t n,
			      uint64_t *ids);

/*
 * dray_submit() and dray_wait() in one; returns the transfer's status. Blocks for up to request_ms
 * until the transfer is submitted, then until it ends. A deadline_ms of 0 is request_ms here.
 * t->done is not called. ret may be NULL. -DRAY_E_TIMEOUT: the agent has not reported the end
 * within the deadline and request_ms; the transfer may still be in flight.
 */
DRAY_API int dray_run(struct dray *d, const struct dray_transfer *t, struct dray_completion *ret);

/*
 * Stops a transfer. Its completion follows when it has stopped: with cancelled, or with another
 * status if it ended before. -DRAY_E_NOT_FOUND: it has ended already.
 */
DRAY_API int dray_cancel(struct dray *d, uint64_t id);

/*
 * 1 if the transfer has ended with -DRAY_E_UNCONFIRMED, and its memory is still lent: the agent may go
 * on reading and writing it. 0 if it is free: the agent has answered, or its process is proven dead.
 */
DRAY_API int dray_lent(struct dray *d, uint64_t id);

/*
 * Delivers a notification without a transfer. On success it is queued for every session of the
 * owner's group that reads notifications. Blocks for up to request_ms.
 */
DRAY_API int dray_notify(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
			 size_t length);

/* --- GPU memory --- */

/*
 * For memory on NVIDIA GPUs. These functions use the driver, libcuda.so.1, that the engine has
 * loaded; libdray is not linked with it. They create no context and leave the caller's current
 * context unchanged. All of them can return -DRAY_E_UNSUPPORTED: there is no driver, it is too old,
 * or the memory was allocated in a way that cannot be shared; the text names the setting that
 * helps. Errors of the driver are -DRAY_E_GPU_LOST, -DRAY_E_NO_MEMORY and -DRAY_E_IO.
 */

/* Memory on a GPU: a device pointer and bytes, such as a tensor's data_ptr. */
struct dray_cuda_range {
	uint64_t address;
	uint64_t length; /* at least 1 */
};

/* The same memory in a form that other processes can open. */
struct dray_cuda_extents {
	char device[48]; /* UUID of the GPU */
	const struct dray_extent *extents;
	size_t extents_n;
	void *own; /* private to the library */
};

/*
 * Finds the allocations of ranges on one GPU, and describes each range by one or more extents whose
 * offsets count from the base of an allocation. Each allocation is shared once, as a whole. kinds:
 * kinds_n kinds to try for each allocation, in this order; NULL:
 *
 * cuda_vmm: memory of cuMemCreate() with a POSIX descriptor handle. A range over several such
 *           allocations, as in PyTorch's expandable segments, becomes several extents.
 * cuda_ipc: memory of cudaMalloc(). The agent's process id must differ from the owner's: this fails
 *           between two containers that both run as process 1.
 *
 * dmabuf is tried only if kinds contains it. Only RDMA can access such memory, and a region cannot
 * mix it with other kinds. For memory of cuMemCreate() it shares the range itself, rounded to
 * pages, for other memory the allocation.
 *
 * The descriptors and handles in *ret keep the memory allocated until dray_cuda_extents_free(). The
 * text of an error is in why (of why_size bytes, may be NULL). Needs no handle; any thread; blocks
 * for some microseconds for each allocation. -DRAY_E_INVALID: not GPU memory, or a range passes the end
 * of its memory. -DRAY_E_GPU_DEVICE: the ranges are on different GPUs. -DRAY_E_FD_LIMIT,
 * -DRAY_E_TOO_LARGE: more allocations than a region can have.
 */
DRAY_API int dray_cuda_describe(const struct dray_cuda_range *ranges, size_t ranges_n,
				const enum dray_kind *kinds, size_t kinds_n,
				struct dray_cuda_extents *ret, char *why, size_t why_size);

/* Closes and frees the extents, and resets *e. May be called twice. Regions made of them stay. */
DRAY_API void dray_cuda_extents_free(struct dray_cuda_extents *e);

/*
 * dray_cuda_describe() and dray_region_add() in one: the region consists of the ranges, in order.
 * The extents, device and pool_bytes of spec are ignored. The memory must stay allocated until the
 * region is removed. Blocks as dray_region_add(); errors of both.
 */
DRAY_API int dray_cuda_region_add(struct dray *d, const struct dray_region_spec *spec,
				  const struct dray_cuda_range *ranges, size_t ranges_n,
				  const enum dray_kind *kinds, size_t kinds_n, dray_region *ret);

/*
 * Words that transfers wait for or set, and that streams of a GPU write or wait for, so that no CPU
 * waits between the two. They are a region of host memory that the GPUs of this process can access.
 */
struct dray_cuda_words;

/*
 * Allocates `count` words (1 to 65536), all 0, which the caller frees with dray_cuda_words_free().
 * A CUDA context must be current on this thread. Blocks as dray_region_add().
 */
DRAY_API int dray_cuda_words_new(struct dray *d, unsigned int count, struct dray_cuda_words **ret);

/*
 * Removes the region of the words, which blocks as dray_region_remove(), and frees them in any
 * case. No stream may still use them. After dray_disconnect(), pass NULL for d. w may be NULL.
 */
DRAY_API void dray_cuda_words_free(struct dray *d, struct dray_cuda_words *w);

/* Word `index` for wait or set of a transfer; without a region if there is no such word. */
DRAY_API struct dray_word dray_cuda_word(const struct dray_cuda_words *w, unsigned int index,
					 uint32_t value);

/* The words for the CPU, which must load and store them atomically. */
DRAY_API uint32_t *dray_cuda_words_memory(const struct dray_cuda_words *w);

enum dray_cuda_wait {
	DRAY_CUDA_WAIT_GEQ = 0, /* (int32_t)(word - value) >= 0: for counters */
	DRAY_CUDA_WAIT_EQ = 1
};

/*
 * For a stream (a CUstream or cudaStream_t; NULL: the default stream of the current context).
 * dray_cuda_stream_write() enqueues a write of the word, which happens when all earlier work of the
 * stream is done and visible: a transfer can wait for it. A transfer starts when its word has
 * exactly its value, so write no other value before that. dray_cuda_stream_wait() makes later work
 * of the stream wait for the word: a transfer that succeeds sets it when its bytes are visible to
 * the GPU. Neither blocks. Any thread that may use the stream. why as above.
 */
DRAY_API int dray_cuda_stream_write(const struct dray_cuda_words *w, void *stream,
				    unsigned int index, uint32_t value, char *why, size_t why_size);
DRAY_API int dray_cuda_stream_wait(const struct dray_cuda_words *w, void *stream,
				   unsigned int index, uint32_t value, enum dray_cuda_wait wait,
				   char *why, size_t why_size);

/* --- placement --- */

enum dray_segment_state {
	DRAY_SEGMENT_UNKNOWN = 0, /* not probed */
	DRAY_SEGMENT_PROBING = 1, /* being probed; has not answered yet */
	DRAY_SEGMENT_READY = 2,   /* answers */
	DRAY_SEGMENT_LOST = 3     /* has stopped answering */
};

enum dray_segment_flag {
	DRAY_SEGMENT_UNVERIFIED =
		1, /* known from before the agent's start, and not confirmed yet */
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
	DRAY_HINT_EXPLICIT = 1, /* the administrator */
	DRAY_HINT_ENVIRONMENT = 2,
	DRAY_HINT_DETECTED = 3, /* the agent */
	DRAY_HINT_CLIENT = 4
};

/*
 * For the next four functions. A scope is a model, an instance, a rank, or a key of the caller's
 * own, as UTF-8 of up to 256 bytes; NULL or empty: the whole node. The functions block for up to
 * request_ms, and also work while the agent drains. Values of enums may be newer than this header. -DRAY_E_UNSUPPORTED: the agent is too old (data
 * protocol 1.0). -DRAY_E_TOO_LARGE: a string is too long.
 */

struct dray_hint {
	const char *segment;
	unsigned int source; /* enum dray_hint_source */
	unsigned int state;  /* enum dray_segment_state */
	unsigned int flags;  /* enum dray_segment_flag */
	uint32_t score;      /* higher is better */
	uint64_t left_ms;    /* until the hint expires */
};

/*
 * The effective hint of a scope: the strongest source, then the highest score, then the newest.
 * -DRAY_E_NOT_FOUND: there is none.
 */
DRAY_API int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret);

/*
 * Stores a hint: a segment (host:port) for a scope, for ttl_ms (0: the agent's default). It
 * replaces the hint of clients with this uid for the scope. segment NULL: forgets that hint;
 * -DRAY_E_NOT_FOUND: there was none. -DRAY_E_INVALID: not a segment. -DRAY_E_QUOTA: too many hints.
 */
DRAY_API int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
			   uint64_t ttl_ms);

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
 * The preferred segment, by hints of the scope, then of the whole node. To have none is not an
 * error.
 */
DRAY_API int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret);

/* Terminated strings; the lengths do not count the terminators. */
struct dray_env {
	const char *variables; /* lines of NAME=VALUE, each ended by a newline */
	size_t variables_length;
	const char *notes; /* lines of NAME: REASON for variables that are left out */
	size_t notes_length;
};

/*
 * The environment for launching an engine. profiles: names separated by commas, up to 256 bytes;
 * NULL or empty: those of the agent's configuration. -DRAY_E_INVALID: there is no such profile.
 * -DRAY_E_TOO_LARGE: request fewer profiles.
 */
DRAY_API int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret);

/* --- without blocking --- */

/*
 * Each function starts the request of the function without _start and returns. The completion has
 * arg, the status, and the new handle or token. dray_region_add_start() still populates memfds before
 * it returns. The caller touches the pages of a pool, which dray_region_map() shows. ret_id may be NULL. Requests wait while the session is being reconnected.
 * -DRAY_E_BUSY: 4096 requests are waiting.
 */
DRAY_API int dray_region_add_start(struct dray *d, const struct dray_region_spec *spec, void *arg,
				   uint64_t *ret_id);
DRAY_API int dray_region_remove_start(struct dray *d, dray_region region, void *arg,
				      uint64_t *ret_id);
DRAY_API int dray_region_export_start(struct dray *d, dray_region region,
				      const struct dray_export *what, void *arg, uint64_t *ret_id);
DRAY_API int dray_region_revoke_start(struct dray *d, dray_region region,
				      const struct dray_token *token, void *arg, uint64_t *ret_id);
DRAY_API int dray_remote_import_start(struct dray *d, const struct dray_token *token,
				      unsigned int timeout_ms, void *arg, uint64_t *ret_id);
DRAY_API int dray_remote_release_start(struct dray *d, dray_remote remote, void *arg,
				       uint64_t *ret_id);
DRAY_API int dray_notify_start(struct dray *d, dray_remote remote, uint64_t tag,
			       const void *payload, size_t length, void *arg, uint64_t *ret_id);
DRAY_API int dray_hint_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id);
DRAY_API int dray_hint_put_start(struct dray *d, const char *scope, const char *segment,
				 uint32_t score, uint64_t ttl_ms, void *arg, uint64_t *ret_id);
DRAY_API int dray_segment_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id);
DRAY_API int dray_env_get_start(struct dray *d, const char *profiles, void *arg, uint64_t *ret_id);

#ifdef __cplusplus
}
#endif

#endif
