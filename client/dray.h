/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: an engine's side of dray. A handle (struct dray) is a session with the agent of this
 * node. Through it the engine registers memory as regions, hands out tokens for ranges of them,
 * imports the tokens of others, and has the agent move bytes between its regions and theirs.
 *
 * What holds for every function here, unless it says otherwise:
 *
 * Thread:    one handle, one thread at a time. Different handles are independent. The library
 *            starts no thread, installs no signal handler, keeps no global state, prints nothing,
 *            raises no SIGPIPE, and never ends the process.
 * Fork:      a child must not use a handle it inherited: every function answers
 *            -DRAY_E_OUT_OF_ORDER there, except dray_disconnect(), which frees the child's copy and
 *            leaves the parent's alone.
 * Errors:    0 is success, below 0 is a negated code of enum dray_error. dray_last_error() has the
 *            sentence that goes with the last failure on a handle. Output arguments (ret_...) are
 *            written on success only.
 * Blocking:  functions do not block, except those marked "Blocks", and those for no longer than
 *            the time they say. They drive the engine meanwhile: completions and events of others
 *            pile up in their queues, and callbacks run. A signal does not cut them short.
 * Ownership: what is passed in stays the caller's and is copied where it is needed longer,
 *            descriptors included. All descriptors that the library makes are close-on-exec.
 * Structs:   zero everything that is not set: zero means the default in every field.
 * Units:     lengths and offsets in bytes, times in milliseconds where the name ends in _ms.
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
 * What a code means, its stable name, and what to do about it. Takes the code or its negation.
 * Static text, never NULL; any thread.
 */
DRAY_API const char *dray_strerror(int error);
DRAY_API const char *dray_strerrorname(int error);
DRAY_API const char *dray_strerrorfix(int error);

/* --- session -------------------------------------------------------------------------------- */

struct dray;

/*
 * A region or a remote as this handle knows it. 0 is never one. Stable across restarts of the
 * agent.
 */
typedef uint64_t dray_region;
typedef uint64_t dray_remote;

enum dray_option_flag {
	DRAY_OPTION_NOTIFICATIONS = 1, /* deliver the group's notifications to this handle */
	DRAY_OPTION_NO_RING = 2,       /* submit by message only; no ring, no arena */
	DRAY_OPTION_NO_RECONNECT = 4,  /* once lost, the session stays closed */
	DRAY_OPTION_WAIT = 8,          /* dray_connect() waits for an agent that is not there yet */
	DRAY_OPTION_NO_SPIN = 16,      /* always sleep at once, whatever spin_us says */
	DRAY_OPTION_SEGMENTS = 32      /* deliver DRAY_EVENT_SEGMENT to this handle */
};

struct dray_options {
	const char *socket;        /* path; default $DRAY_SOCKET, else /run/dray/dray.sock */
	const char *group;         /* up to 64 bytes; default: a group of its own */
	const char *name;          /* up to 64 bytes, shown by drayctl */
	unsigned int flags;        /* enum dray_option_flag */
	unsigned int ring_entries; /* submissions queued, power of two to 4096; default 256 */
	uint64_t arena_bytes; /* room for operation lists in flight, to 16 MiB; default 4 MiB */
	unsigned int spin_us; /* spin this long before sleeping; default $DRAY_SPIN, else 20, or 0
			       * where this process has less than two CPUs */
	unsigned int connect_ms; /* limit of dray_connect() and of each reconnect; default 5000 */
	unsigned int request_ms; /* limit of requests that block; default 30000 */
	unsigned int reconnect_min_ms; /* first pause between attempts, doubling; default 10 */
	unsigned int reconnect_max_ms; /* longest pause; default 1000 */
	unsigned int reconnect_for_ms; /* give up after this long; default: never */
	unsigned int events_max;       /* events held before reading stops; default 4096 */
};

/*
 * Opens a session. options may be NULL. Blocks for up to connect_ms. Where the agent grants no ring
 * or arena the session works without; dray_get_info() tells. On failure *ret is left alone, and why
 * (of why_size bytes, may be NULL) holds the sentence. No agent there: -DRAY_E_PEER_UNREACHABLE;
 * the kernel or the agent refuses us: -DRAY_E_DENIED, -DRAY_E_QUOTA, -DRAY_E_DRAINING,
 * -DRAY_E_VERSION; -DRAY_E_TIMEOUT.
 */
DRAY_API int dray_connect(const struct dray_options *options, struct dray **ret, char *why,
			  size_t why_size);

/*
 * Ends the session and frees everything, mappings of pools included. The agent stops all work of
 * this session at once; this does not wait for it: where the memory is to be used again,
 * dray_region_remove() first. NULL is allowed. Not from a callback.
 */
DRAY_API void dray_disconnect(struct dray *d);

/*
 * Sentence for the last failed call, or for the last loss of the session. The handle's, until the
 * next call.
 */
DRAY_API const char *dray_last_error(const struct dray *d);

struct dray_info {
	int connected;    /* 1: session open, regions registered */
	uint64_t session; /* as in drayctl sessions */
	uint64_t incarnation;
	uint8_t agent_id[16];
	const char *segment; /* these two: the handle's, until the next call */
	const char *version;
	unsigned int ring_entries; /* 0: no ring */
	uint64_t arena_bytes;      /* 0: no arena */
	size_t in_flight;          /* requests that have not ended */
	size_t completions;        /* ended, not yet taken */
	size_t events;             /* not yet taken */
	int segments; /* 1: DRAY_EVENT_SEGMENT is delivered; 0: not asked for, or by an old agent */
	uint64_t spin_ns;     /* longest spin before sleeping; 0: none */
	uint64_t waits_spun;  /* waits of this handle that ended while it spun */
	uint64_t waits_slept; /* those that did not, each with a system call at least */
};

/* What is known of the session and the agent. While not connected: of the last one. */
DRAY_API int dray_get_info(const struct dray *d, struct dray_info *ret);

/* --- driving it ----------------------------------------------------------------------------- */

/*
 * One descriptor for poll(2) or epoll(7) that is readable when dray_process() has something to do,
 * be it replies, completions of the ring, or a reconnect that is due. The handle's; the same for
 * its whole life. From the first call on, completions wake it: a program that has no use for it does
 * better without.
 */
DRAY_API int dray_fd(struct dray *d);

/*
 * Drives the session: takes what came, reconnects when that is due, runs callbacks. Blocks until a
 * completion or event can be taken or a callback was run, for up to timeout_ms (0: not at all, -1:
 * for ever). Returns how many of these there are, 0 on time-out, or -DRAY_E_SESSION_CLOSED once the
 * session is closed for good and nothing is left to take. On return the descriptor is armed: take
 * what there is, then poll it.
 */
DRAY_API int dray_process(struct dray *d, int timeout_ms);

/*
 * For a thread that spins: takes completions off the ring without a system call (but now and then
 * looks at everything else too). Returns as dray_process(). Afterwards the descriptor is not armed:
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
	DRAY_REQUEST_NOTIFY
};

enum dray_transport {
	DRAY_TRANSPORT_NONE = 0,  /* no byte was moved */
	DRAY_TRANSPORT_LOCAL = 1, /* copy within this node's agent */
	DRAY_TRANSPORT_TCP = 2,
	DRAY_TRANSPORT_RDMA = 3,
	DRAY_TRANSPORT_GPU = 4 /* copy by a GPU within this node's agent */
};

struct dray_token;

/* How a request ended. */
struct dray_completion {
	uint64_t id;
	void *arg; /* from the request */
	enum dray_request request;
	int status;             /* 0, or a negated enum dray_error */
	unsigned int transport; /* transfers: enum dray_transport, or a newer one */
	uint64_t bytes;         /* transfers: moved; all of them if status is 0. Revoke: tokens. */
	uint64_t duration_ns;   /* transfers: from acceptance to end, by the agent's clock */
	uint64_t handle;        /* region or remote, for requests that make one */
	/* These two are valid until the next call on the handle. */
	const struct dray_token *token; /* export */
	const char *message;            /* empty if status is 0 */
};

/* Takes the oldest completion. 1, or 0 if there is none. */
DRAY_API int dray_next_completion(struct dray *d, struct dray_completion *ret);

/*
 * Waits for one request and takes its completion; its status is in there. Blocks for up to
 * timeout_ms (-1: for ever). -DRAY_E_TIMEOUT: it has not ended, and its completion is still to
 * come. -DRAY_E_NOT_FOUND: unknown, or its completion was taken already.
 */
DRAY_API int dray_wait(struct dray *d, uint64_t id, int timeout_ms, struct dray_completion *ret);

enum dray_event_type {
	DRAY_EVENT_NOTIFICATION = 1, /* tag, payload, region, sender */
	DRAY_EVENT_REMOTE_LOST = 2,  /* remote, code, message: release it */
	DRAY_EVENT_DRAINING = 3,     /* no new work; what there is ends after deadline_ms */
	/*
	 * The session is gone: code is -DRAY_E_AGENT_RESTARTED (the agent died),
	 * -DRAY_E_SESSION_CLOSED (it closed us, the message says why) or -DRAY_E_PROTOCOL.
	 * Everything in flight has ended with that code; remotes and tokens are void. Unless told
	 * not to, the library now reconnects.
	 */
	DRAY_EVENT_LOST = 4,
	/*
	 * It is back. Regions are registered again under the same dray_region; tokens must be
	 * exported and imported anew. restarted: 1 where the agent is another incarnation.
	 */
	DRAY_EVENT_RESTORED = 5,
	/* A region could not be registered again: region, code, message. Remove it. */
	DRAY_EVENT_REGION_LOST = 6,
	/* The library has given up reconnecting: code, message. */
	DRAY_EVENT_CLOSED = 7,
	/*
	 * A segment has another state, or another one is preferred: segment, segment_old,
	 * segment_state, segment_flags, and the message says why. An empty segment with
	 * DRAY_SEGMENT_PREFERRED: none is preferred any more. With DRAY_OPTION_SEGMENTS only. What
	 * was not taken in time is merged: the last change of each segment comes. After
	 * DRAY_EVENT_RESTORED ask with dray_segment_get(), changes may have been missed.
	 */
	DRAY_EVENT_SEGMENT = 8
};

struct dray_event {
	enum dray_event_type type;
	int code; /* negated enum dray_error */
	int restarted;
	unsigned int deadline_ms;
	dray_region region; /* ours; 0 where another session of the group registered it */
	dray_remote remote;
	uint64_t agent_region; /* the region as the agent and the whole group know it */
	uint64_t tag;
	uint8_t agent_id[16]; /* sender of a notification, and which of its notifications */
	uint64_t incarnation;
	uint64_t id;
	const void *payload; /* these: valid until the next dray_next_event() on the handle */
	size_t length;
	const char *message;
	const char *segment;                     /* and this; "" where there is none */
	unsigned int segment_old, segment_state; /* enum dray_segment_state, or a newer one */
	unsigned int segment_flags;              /* enum dray_segment_flag */
};

/* Takes the oldest event. 1, or 0 if there is none. */
DRAY_API int dray_next_event(struct dray *d, struct dray_event *ret);

/* --- memory --------------------------------------------------------------------------------- */

enum dray_memory_flag {
	DRAY_MEMORY_HUGE = 1 /* huge pages of the default size, or fail */
};

/* Memory that can be registered: a sealed memfd, mapped and populated. */
struct dray_memory {
	void *address;
	uint64_t length; /* as asked, rounded up to whole pages */
	int fd;
};

/*
 * Makes such memory. It is the caller's, until dray_memory_free(). Needs no handle; any thread.
 * Takes about 0.3 s for each GiB. -DRAY_E_NO_MEMORY, -DRAY_E_NO_FDS, -DRAY_E_INVALID, -DRAY_E_IO.
 */
DRAY_API int dray_memory_alloc(uint64_t bytes, unsigned int flags, struct dray_memory *ret);

/*
 * Unmaps, closes, and resets *m. Harmless when done twice. Regions made of it live on until
 * removed.
 */
DRAY_API void dray_memory_free(struct dray_memory *m);

/* --- regions -------------------------------------------------------------------------------- */

enum dray_access {
	DRAY_READ = 1, /* may be the source of transfers */
	DRAY_WRITE = 2 /* may be the destination */
};

enum dray_kind {
	DRAY_KIND_MEMFD = 1,    /* a memfd with F_SEAL_SHRINK */
	DRAY_KIND_DMABUF = 2,   /* a device's memory, for RDMA alone */
	DRAY_KIND_CUDA_IPC = 3, /* a legacy CUDA IPC handle (memory of cudaMalloc) */
	DRAY_KIND_CUDA_VMM = 4  /* an allocation of cuMemCreate, exported as a descriptor */
};

#define DRAY_CUDA_IPC_BYTES 64

struct dray_extent {
	enum dray_kind kind;
	int fd;
	uint64_t offset; /* in the file, or from the allocation's base; any alignment */
	uint64_t length;
	const void *handle; /* cuda_ipc, in place of fd: DRAY_CUDA_IPC_BYTES bytes; copied */
	uint64_t allocation; /* cuda_vmm: bytes of all of it, or 0: the agent finds out, which takes longer */
};

enum dray_region_flag {
	DRAY_REGION_HUGE = 1, /* pools: huge pages, or fail */
	DRAY_REGION_NO_POPULATE =
		2 /* every page has been touched already; holes are an error then */
};

/*
 * Either extents, in the order of their offsets in the region, or pool_bytes: memory that the agent
 * owns.
 */
struct dray_region_spec {
	const char *name;    /* up to 64 bytes, shown by drayctl */
	unsigned int access; /* enum dray_access */
	unsigned int flags;  /* enum dray_region_flag */
	const struct dray_extent *extents;
	size_t extents_n; /* up to 1024, of up to 250 descriptors and 256 handles, all different */
	uint64_t pool_bytes;
	const char *device; /* GPU by UUID or PCI address; kinds cuda_ipc and cuda_vmm need it */
};

/*
 * Registers memory. Touches every page of a memfd first (0.3 s for each GiB never touched before),
 * so that it is charged to the caller and not to the agent. The library keeps duplicates of the
 * descriptors and copies of the handles, to register the region again after the agent was
 * restarted. Blocks for up to request_ms. Errors: those of REGION_ADD; -DRAY_E_UNSUPPORTED too
 * where the agent is of a data protocol before 1.2 and a kind is cuda_ipc or cuda_vmm.
 */
DRAY_API int dray_region_add(struct dray *d, const struct dray_region_spec *spec, dray_region *ret);

/* The whole of a struct dray_memory, as one extent. */
DRAY_API int dray_region_add_memory(struct dray *d, const struct dray_memory *m,
				    unsigned int access, dray_region *ret);

/* A pool of the agent's memory, mapped here. flags: DRAY_REGION_HUGE. */
DRAY_API int dray_region_add_pool(struct dray *d, uint64_t bytes, unsigned int access,
				  unsigned int flags, dray_region *ret);

/*
 * Where a pool is mapped; the mapping is the handle's until the region is removed. After a restart
 * of the agent it is the same memory at the same address. *ret_fd (may be NULL) is borrowed.
 * -DRAY_E_REGION_KIND for regions that are no pool.
 */
DRAY_API int dray_region_map(struct dray *d, dray_region region, void **ret_address,
			     uint64_t *ret_length, int *ret_fd);

/*
 * Takes memory back. On success no byte of it is read or written any more by anybody: transfers
 * that used it have ended with cancelled, its tokens are revoked, pools are unmapped. The handle is
 * unknown from the call on. Blocks for up to request_ms; -DRAY_E_TIMEOUT means no proof yet. Where
 * the session is lost meanwhile the proof is that the agent has died, seen at the reconnect;
 * without it the code of the loss is returned.
 */
DRAY_API int dray_region_remove(struct dray *d, dray_region region);

/* A range of a region for others. */
struct dray_export {
	uint64_t offset;
	uint64_t length;      /* 0: to the end */
	unsigned int access;  /* enum dray_access; 0: what the region allows */
	int single_use;       /* 1: good for one import */
	unsigned int ttl_ms;  /* 0: until revoked */
	uint8_t audience[16]; /* agent id of the only importer; zero: anybody */
};

#define DRAY_TOKEN_MAX 256
#define DRAY_TOKEN_TEXT_MAX 352

/*
 * Whoever holds a token may use it until it expires or is revoked. Plain memory: copy it as you
 * like.
 */
struct dray_token {
	uint64_t id;    /* exporter only */
	uint64_t epoch; /* exporter only; which session made it */
	uint32_t length;
	uint8_t data[DRAY_TOKEN_MAX];   /* binary form */
	char text[DRAY_TOKEN_TEXT_MAX]; /* "dray1:..." */
};

/* Makes a token. export may be NULL: the whole region. Blocks for up to request_ms. */
DRAY_API int dray_region_export(struct dray *d, dray_region region, const struct dray_export *what,
				struct dray_token *ret);

/*
 * Takes a token back (NULL: all of the region's). On success no importer can touch the range
 * through it any more. Blocks for up to request_ms. -DRAY_E_NOT_FOUND also for tokens of an earlier
 * session, which are void.
 */
DRAY_API int dray_region_revoke(struct dray *d, dray_region region, const struct dray_token *token);

/* Text form (a terminated string) or binary form to struct. -DRAY_E_TOKEN_INVALID. Any thread. */
DRAY_API int dray_token_parse(const char *text, struct dray_token *ret);
DRAY_API int dray_token_from_bytes(const void *bytes, size_t length, struct dray_token *ret);

/* --- remotes -------------------------------------------------------------------------------- */

/*
 * Makes an exported range usable here. timeout_ms: how long the agent tries to reach the owner (0:
 * its default). Blocks for up to that plus request_ms.
 */
DRAY_API int dray_remote_import(struct dray *d, const struct dray_token *token,
				unsigned int timeout_ms, dray_remote *ret);

/* Forgets a remote; transfers that used it have ended. Blocks for up to request_ms. */
DRAY_API int dray_remote_release(struct dray *d, dray_remote remote);

struct dray_remote_info {
	uint64_t length;
	unsigned int access;    /* granted */
	unsigned int transport; /* best path at the time of import */
	int lost;               /* 0, or the negated code why it is of no use any more */
	uint64_t agent_remote;  /* as the agent and the whole group know it */
};

DRAY_API int dray_remote_get_info(struct dray *d, dray_remote remote, struct dray_remote_info *ret);

/*
 * Sessions of one group may use each other's regions and remotes, say a scheduler those of its
 * workers. The agent's number of one, passed to another session of the group, is made usable there
 * by _borrow. It is given back by dray_region_remove() or dray_remote_release(), which end nothing
 * but the loan. A restart of the agent makes the loan void.
 */
DRAY_API int dray_region_agent_handle(struct dray *d, dray_region region, uint64_t *ret);
DRAY_API int dray_region_borrow(struct dray *d, uint64_t agent_region, dray_region *ret);
DRAY_API int dray_remote_borrow(struct dray *d, uint64_t agent_remote, dray_remote *ret);

/* --- transfers ------------------------------------------------------------------------------ */

enum dray_direction {
	DRAY_DIRECTION_WRITE = 1, /* local region to remote */
	DRAY_DIRECTION_READ = 2   /* remote to local region */
};

enum dray_priority { DRAY_PRIORITY_BULK = 0, DRAY_PRIORITY_LATENCY = 1 };

#define DRAY_OPS_MAX 65536
#define DRAY_NOTIFY_MAX 4096

struct dray_op {
	uint64_t local;  /* offset in the local region */
	uint64_t remote; /* offset in the remote */
	uint64_t length; /* at least 1 */
};

/* A 32-bit word in a region, at an offset that is a multiple of 4. No word: region 0. */
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
	size_t count;              /* 1 to DRAY_OPS_MAX */
	unsigned int deadline_ms;  /* 0: the agent's default */
	struct dray_word wait;     /* start when it holds the value */
	struct dray_word set;      /* stored when all bytes are in place, before the completion */
	int notify; /* 1: then deliver tag and payload to the group that owns the remote */
	uint64_t tag;
	const void *payload; /* up to DRAY_NOTIFY_MAX bytes, copied */
	size_t payload_length;
	void *arg; /* comes back in the completion */
	/*
	 * Instead of a completion to take: called once, from inside dray_process() or a function
	 * that blocks. May submit. What *c points to lasts until the next call on the handle.
	 */
	void (*done)(struct dray *d, const struct dray_completion *c);
};

/*
 * Starts a transfer; *ret_id (may be NULL) names it. It ends exactly once, with one completion. No
 * order is kept between operations or transfers; overlapping destinations are undefined. The
 * library picks the way: the ring, the arena for many operations, or a message. -DRAY_E_BUSY:
 * nothing was started, too much is in flight; take completions, then submit again (when nothing of
 * ours is in flight, when dray_fd() is readable). -DRAY_E_SESSION_CLOSED while not connected. What
 * the agent itself refuses is told by the completion.
 */
DRAY_API int dray_submit(struct dray *d, const struct dray_transfer *t, uint64_t *ret_id);

/*
 * Starts up to n transfers with one doorbell. Returns how many were started, from the first on,
 * with their ids in ids (may be NULL); or the error of the first, where none was.
 */
DRAY_API int dray_submit_many(struct dray *d, const struct dray_transfer *t, size_t n,
			      uint64_t *ids);

/*
 * dray_submit() and dray_wait() in one; returns the status of the end. Blocks: for the connection
 * and for room to submit up to request_ms, then until the end. A deadline_ms of 0 is request_ms
 * here. t->done is not called. ret may be NULL. -DRAY_E_TIMEOUT: the agent kept neither deadline
 * nor, for request_ms more, us informed; the transfer may still be under way.
 */
DRAY_API int dray_run(struct dray *d, const struct dray_transfer *t, struct dray_completion *ret);

/*
 * Asks the agent to stop a transfer. Its completion tells when it has stopped: with cancelled, or
 * as it ended just before. -DRAY_E_NOT_FOUND: it has ended already.
 */
DRAY_API int dray_cancel(struct dray *d, uint64_t id);

/*
 * Delivers a notification without a transfer. On success it is queued at every session of the
 * owner's group that reads notifications. Blocks for up to request_ms.
 */
DRAY_API int dray_notify(struct dray *d, dray_remote remote, uint64_t tag, const void *payload,
			 size_t length);

/* --- GPU memory ------------------------------------------------------------------------------ */

/*
 * For engines whose memory lies on NVIDIA GPUs. These functions use the driver, libcuda.so.1, that
 * the engine has loaded; libdray is not linked with it. No context is made, and the caller's
 * current context stays as it is. Errors of all of them: -DRAY_E_UNSUPPORTED where there is no
 * driver, where it is too old, or where memory cannot be shared as it was allocated: the sentence
 * says which setting makes it so. -DRAY_E_GPU_LOST, -DRAY_E_NO_MEMORY and -DRAY_E_IO for what the
 * driver answers.
 */

/* Memory on a GPU as the engine knows it: a device pointer; a tensor's data_ptr and bytes. */
struct dray_cuda_range {
	uint64_t address;
	uint64_t length; /* at least 1 */
};

/* The same as others can open it. */
struct dray_cuda_extents {
	char device[48]; /* UUID of the GPU */
	const struct dray_extent *extents;
	size_t extents_n;
	void *own; /* the library's */
};

/*
 * Finds the allocations that the ranges, all of one GPU, lie in, and describes each range in turn
 * by one or more extents whose offsets count from the base of an allocation. Each allocation is
 * shared once, whole. kinds: those to try for each, in this order, kinds_n of them; NULL:
 *
 * cuda_vmm: memory of cuMemCreate() made with a POSIX descriptor handle. A range over several such
 *           allocations, as PyTorch's expandable segments are, becomes several extents.
 * cuda_ipc: memory of cudaMalloc(). The agent needs to be in a PID namespace where the process id
 *           of the owner is not its own: two containers with a process 1 each do not get along.
 *
 * dmabuf is tried only where it is named. Such memory is reached by RDMA alone; one region cannot
 * mix it with the other kinds. What is shared of memory of cuMemCreate() is then the range itself,
 * rounded to pages, else the allocation.
 *
 * The descriptors and handles in *ret are the caller's until dray_cuda_extents_free(); they keep
 * the memory allocated. why (of why_size bytes, may be NULL) gets the sentence. Needs no handle; any
 * thread; blocks for some microseconds an allocation. -DRAY_E_INVALID: no GPU memory, or it ends
 * before the range does. -DRAY_E_GPU_DEVICE: ranges on different GPUs. -DRAY_E_FD_LIMIT,
 * -DRAY_E_TOO_LARGE: more of them than one region takes.
 */
DRAY_API int dray_cuda_describe(const struct dray_cuda_range *ranges, size_t ranges_n,
				const enum dray_kind *kinds, size_t kinds_n,
				struct dray_cuda_extents *ret, char *why, size_t why_size);

/* Closes and frees, and resets *e. Harmless when done twice. Regions made of it live on. */
DRAY_API void dray_cuda_extents_free(struct dray_cuda_extents *e);

/*
 * dray_cuda_describe() and dray_region_add() in one: the ranges in their order are the region.
 * spec has name and access; its extents, device and pool_bytes are not looked at. The memory must
 * stay allocated until the region is removed. Blocks as dray_region_add(); errors of both.
 */
DRAY_API int dray_cuda_region_add(struct dray *d, const struct dray_region_spec *spec,
				  const struct dray_cuda_range *ranges, size_t ranges_n,
				  const enum dray_kind *kinds, size_t kinds_n, dray_region *ret);

/*
 * Words that a transfer waits for or sets, and that streams of a GPU write and wait for too, so
 * that no CPU waits between them: a region of host memory that the GPUs of this process reach.
 */
struct dray_cuda_words;

/*
 * Makes `count` words, all 0 (at least 1, up to 65536). A CUDA context must be current on this
 * thread. Blocks as dray_region_add(). They are the caller's until dray_cuda_words_free().
 */
DRAY_API int dray_cuda_words_new(struct dray *d, unsigned int count, struct dray_cuda_words **ret);

/*
 * Removes their region, which blocks as dray_region_remove(), and frees them in any case. No stream
 * uses them any more. After dray_disconnect() pass NULL for d. NULL for w is allowed.
 */
DRAY_API void dray_cuda_words_free(struct dray *d, struct dray_cuda_words *w);

/* Word `index` for wait or set of a transfer; region 0 where there is no such word. */
DRAY_API struct dray_word dray_cuda_word(const struct dray_cuda_words *w, unsigned int index,
					 uint32_t value);

/* The words themselves, for the CPU. Load and store them atomically. */
DRAY_API uint32_t *dray_cuda_words_memory(const struct dray_cuda_words *w);

enum dray_cuda_wait {
	DRAY_CUDA_WAIT_GEQ = 0, /* (int32_t)(word - value) >= 0: for counters */
	DRAY_CUDA_WAIT_EQ = 1
};

/*
 * Puts into a stream (a CUstream or cudaStream_t; NULL: the default stream of the current context)
 * that it writes the word once all work before it is done and visible: what a transfer waits for.
 * A transfer starts when its word holds exactly its value: write no other before that. Or that work
 * after it waits for the word: what a transfer sets, if it succeeds, when the bytes are visible to
 * the GPU. Does not block. Any thread that may use the stream. why as above.
 */
DRAY_API int dray_cuda_stream_write(const struct dray_cuda_words *w, void *stream,
				    unsigned int index, uint32_t value, char *why, size_t why_size);
DRAY_API int dray_cuda_stream_wait(const struct dray_cuda_words *w, void *stream,
				   unsigned int index, uint32_t value, enum dray_cuda_wait wait,
				   char *why, size_t why_size);

/* --- placement ------------------------------------------------------------------------------ */

enum dray_segment_state {
	DRAY_SEGMENT_UNKNOWN = 0, /* not probed */
	DRAY_SEGMENT_PROBING = 1, /* being probed; it has not answered yet */
	DRAY_SEGMENT_READY = 2,   /* it answers */
	DRAY_SEGMENT_LOST = 3     /* it does not answer any more */
};

enum dray_segment_flag {
	DRAY_SEGMENT_UNVERIFIED = 1, /* known from before the agent's start, not confirmed yet */
	DRAY_SEGMENT_NODE_LOCAL = 2, /* on this node */
	DRAY_SEGMENT_PREFERRED = 4   /* the preferred segment */
};

/* Where a preferred segment comes from, strongest first. */
enum dray_preference {
	DRAY_PREFERENCE_NONE = 0,        /* there is none */
	DRAY_PREFERENCE_EXPLICIT = 1,    /* the agent's configuration */
	DRAY_PREFERENCE_ENVIRONMENT = 2, /* the agent's environment */
	DRAY_PREFERENCE_HINT = 3,        /* a hint */
	DRAY_PREFERENCE_DETECTED = 4     /* a ready segment on this node */
};

/* Who gave a hint, strongest first. */
enum dray_hint_source {
	DRAY_HINT_EXPLICIT = 1, /* the administrator */
	DRAY_HINT_ENVIRONMENT = 2,
	DRAY_HINT_DETECTED = 3, /* the agent */
	DRAY_HINT_CLIENT = 4
};

/*
 * For the four functions that follow. A scope is a model, an instance, a rank, or a key of the
 * caller's own: UTF-8 of up to 256 bytes; NULL or empty: the whole node. They block for up to
 * request_ms, and go on working while the agent drains. Text in *ret is the handle's, until the
 * next call. Numbers of enums may be newer ones. Against an agent older than them, of data protocol
 * 1.0: -DRAY_E_UNSUPPORTED. Text that is too long: -DRAY_E_TOO_LARGE.
 */

struct dray_hint {
	const char *segment;
	unsigned int source; /* enum dray_hint_source */
	unsigned int state;  /* enum dray_segment_state */
	unsigned int flags;  /* enum dray_segment_flag */
	uint32_t score;      /* higher is better */
	uint64_t left_ms;    /* until it expires */
};

/*
 * The hint that counts for a scope: the strongest source, then the highest score, then the
 * youngest. -DRAY_E_NOT_FOUND: there is none.
 */
DRAY_API int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret);

/*
 * Remembers a segment (host:port) for a scope, in the place of what clients of this uid said of it
 * before; for ttl_ms, 0: the agent's default. segment NULL: forgets what they said,
 * -DRAY_E_NOT_FOUND: that was nothing. -DRAY_E_INVALID: no segment. -DRAY_E_QUOTA: too many hints.
 */
DRAY_API int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
			   uint64_t ttl_ms);

struct dray_segment {
	const char *segment;     /* empty: none is preferred */
	unsigned int preference; /* enum dray_preference */
	unsigned int state;      /* enum dray_segment_state */
	unsigned int flags;      /* enum dray_segment_flag */
	uint64_t capacity;       /* its bytes, as a Mooncake master tells; 0: unknown */
	uint64_t allocated;      /* of these, in use */
	const char *reason;      /* why this one, or why none */
};

/*
 * The preferred segment: hints of the scope count, then those of the whole node. That there is none
 * is no error.
 */
DRAY_API int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret);

/* Terminated text; the lengths are those of strlen(). */
struct dray_env {
	const char *variables; /* NAME=VALUE lines, each ended by a newline; values hold none */
	size_t variables_length;
	const char *notes; /* NAME: why it is left out; likewise */
	size_t notes_length;
};

/*
 * The environment that an engine is to be launched with. profiles: names by comma, up to 256 bytes;
 * NULL or empty: those of the agent's configuration. -DRAY_E_INVALID: there is no such profile.
 * -DRAY_E_TOO_LARGE: ask for fewer.
 */
DRAY_API int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret);

/*
 * --- the same without blocking
 * ---------------------------------------------------------------------
 */

/*
 * Each starts what its namesake does and returns. The completion carries arg, the status, and the
 * new handle or token. Populating memory still takes its time inside dray_region_add_start().
 * ret_id may be NULL. While the session is being reconnected requests wait for it. -DRAY_E_BUSY at
 * 4096 requests that wait.
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

#ifdef __cplusplus
}
#endif

#endif
