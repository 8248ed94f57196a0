/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane of one worker: what transfers, the scheduler and transports share. Everything here
 * belongs to the worker's thread alone, except the counters, which the control thread and other workers read, and slices that another
 * worker receives.
 *
 * A transfer (xfer) is cut into slices. A channel is where slices of one kind go: the local copier, or
 * the streams to one peer for one class. Each session has a flow on each channel it uses; a channel
 * serves its flows by deficit round robin, one slice at a time. Transports pull: when a channel has
 * capacity it calls sched_next(); when a slice has ended, wherever it went, xfer_slice_done().
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "agent/data/transfer/loop.h"
#include "agent/model/counters.h"
#include "agent/model/message.h"
#include "agent/model/quota.h"
#include "agent/model/seal.h"
#include "agent/model/transfer.h"
#include "agent/model/view.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"
#include "schema/gen/metrics.h"
#include "schema/gen/peer.h"

#define SLICE_SEGS_MAX PMSG_SEGS_MAX

struct core;
struct delegates;
struct workshare;
struct gpu_worker;
struct stage;
struct stage_buffer;
struct window_buffer;
struct peer_link;
struct rail_keys;
struct xfer;
struct xfer_owner;
struct xfer_reading;
struct flow;
struct transport_ops;

/* What a transfer uses an object for. */
enum xfer_role { XFER_LOCAL, XFER_REMOTE, XFER_TARGET, XFER_WAIT, XFER_SET, XFER_ROLES };

/* A published object in this worker: the view, and how many transfers and slices hold it. */
struct object {
	struct object *next;
	const struct object_view *view;
	dray_handle handle; /* 0: slot empty */
	uint32_t users;
	struct dray_list xfers[XFER_ROLES]; /* the transfers among them, by role; struct xfer */
	uint32_t drop_code;                 /* not 0: being dropped; what its users end with */
	bool open;   /* all its memory is open, and so are the devices that it is on */
	bool pinned; /* regions of host memory: GPUs reach it */
	enum drop_mode drop_mode;
	bool no_window; /* remotes: its owner does not stage it */
	/* remotes: where the bytes come without being asked for; NULL: they are read */
	struct channel *trailing;
	/* regions, remotes: how RDMA devices name it; NULL: they do not. One reference */
	struct rail_keys *keys;
	/*
	 * Regions: likewise, for queue pairs to engines with Mooncake. NULL: devices are not asked or not done yet; without rails: none has
	 * registered it.
	 */
	struct rail_keys *engine_keys;
};

/* The view of an object of this kind. */
static inline const struct region_view *object_region(const struct object *region)
{
	return (const struct region_view *)region->view;
}

static inline const struct remote_view *object_remote(const struct object *remote)
{
	return (const struct remote_view *)remote->view;
}

/* A word in a region: waited for before, or set after a transfer. */
struct xfer_word {
	uint32_t *p; /* NULL: none */
	struct object *region;
	uint32_t value;
};

/* Where the next slice of a transfer begins. */
struct xfer_cursor {
	uint32_t op;     /* index */
	uint64_t offset; /* bytes of that operation already handed out */
};

enum delegation_state {
	DELEGATED_NOT,
	DELEGATED_GIVEN, /* the helper has not looked at it */
	DELEGATED_TAKEN,
	DELEGATED_HELD,     /* the helper may be writing to its memory */
	DELEGATED_RECALLED, /* the helper leaves its memory alone */
};

/*
 * A slice that another worker, a helper, receives (delegate.h). Meanwhile the helper has `link`, `id`, `posted_ns`, `retried` and `counted` of
 * the slice, and `code`, `detail`, `faulted` and `next` of this; both change the state; what the slice names stays as it is. The rest is the worker's.
 */
struct delegation {
	_Atomic uint32_t state; /* enum delegation_state */
	uint32_t code;
	const char *detail;
	bool faulted;       /* its memory here */
	struct slice *next; /* in a mailbox */
	struct dray_list link;
	struct xfer *xfer; /* NULL: it was recalled */
	int64_t given_ns;
	dray_handle peer;
	uint64_t grant;
	uint8_t from, to; /* its worker, and the helper */
};

struct slice {
	struct dray_list link; /* the transport's, while it holds the slice */
	struct xfer *xfer;     /* NULL: the transfer no longer waits for this slice */
	/* buffers that its bytes pass through, here (stage/stage.h) and at the peer (rdma/rdma.h); or NULL */
	struct stage_buffer *staged;
	struct window_buffer *window;
	uint64_t id; /* unique in this worker */
	uint64_t at; /* where it begins in the bytes of its transfer, in the order of its operations */
	uint64_t bytes;
	int64_t posted_ns;
	/* transport gpu's, while it waits for its end, and why the driver refused a copy (DRAY_E_INTERNAL) */
	uint32_t end_code;
	const char *refused;
	bool counted; /* arrived() of its transfer has seen it */
	bool retried; /* some of it was sent before, on a stream or queue pair that is dead */
	struct delegation delegated;
	/* for transports that walk operations (transport.h): where it begins, and how many it touches; no lists */
	struct xfer_cursor from;
	uint32_t n_ops;
	uint16_t n_local;  /* iovecs */
	uint16_t n_remote; /* segments */
	struct iovec local[SLICE_SEGS_MAX];
	struct pmsg_seg remote[SLICE_SEGS_MAX]; /* offsets in the remote range */
};

struct channel {
	const struct transport_ops *ops;
	struct peer_link *link; /* NULL: this agent's own regions */
	void *owner;            /* the transport's: what the channel is a part of */
	enum dmsg_class class;
	uint8_t gpu_path; /* enum dmsg_gpu_path of all on it; none: as the transfer's memory says */
	/* its bytes follow an answer, whether there is a slice for them or not: the session's limit of slices does not hold here */
	bool trailing;
	uint64_t checked_max; /* bytes of slices of transfers with arrived(), at most; 0: as of others */
	struct dray_list flows; /* with something to send, in round-robin order */
	struct dray_list all;   /* every flow on it */
};

struct xfer_op {
	uint64_t local, remote, length;
};

/* A session as transfers know it; embedded in the worker's own. */
struct xfer_session {
	dray_handle handle, group;
	struct session_shared *shared; /* quotas */
	struct xfer_owner *owner;      /* owner.h */
	struct dray_list xfers;
	struct dray_map by_request; /* struct xfer */
	struct xfer *read; /* the one whose long list of operations is being read; NULL: none */
	struct xfer_reading *reading; /* of that one; NULL: there was none yet */
	struct dray_list flows;
	struct dray_list waiting;      /* for their words; struct xfer */
	struct dray_list waiting_link; /* on owner->waiting while there are some */
	uint32_t n_waiting;
	uint32_t slices[2]; /* in flight, by class */
	uint32_t ops;       /* in flight */
};

#define XFER_OPS_INLINE 4

/* Per transfer; private to xfer.c and sched.c but for the fields named here. */
struct xfer {
	struct dray_list session_link; /* on its session */
	struct dray_map_node by_request;
	struct dray_list flow_link; /* on flow->turns, or on the free list */
	struct dray_heap_node rank; /* in flow->ranks, while slices remain */
	struct dray_list wait_link; /* while it waits for its word, or for bytes that may move */
	bool waits;                 /* counts as waiting for its word */
	bool counts_ops;            /* its operations count at its owner */
	struct xfer_session *session;
	struct flow *flow;
	struct channel *channel;
	struct peer_link *link; /* in use; NULL: all bytes are in place, or it is local */
	dray_handle handle;     /* in core->xfers */
	uint64_t request_id;
	bool from_ring;
	uint8_t transport_index; /* in core->transports */
	uint8_t gpu_path;        /* enum dmsg_gpu_path */
	uint8_t gpu_way;         /* enum dmsg_gpu_way, of its slices so far */
	uint64_t rails;          /* transport rdma: those it has used */
	bool rdma_landed; /* RDMA devices have written to its local region, which is GPU memory */
	enum xfer_state state;
	enum dmsg_direction direction;
	enum dmsg_class class;
	struct object *local, *remote, *target; /* target: region behind a local remote */
	uint64_t target_offset;                 /* start of the remote range in target */
	struct xfer_op *ops;                    /* merged */
	uint32_t n_ops, n_ops_given;
	bool ops_pinned;  /* GPUs reach `ops` */
	bool ops_sorted;  /* by transport gpu, which does it once */
	bool ops_lost;    /* and one that failed may still read them: they are not used again */
	uint64_t longest; /* bytes of the longest of them */
	struct xfer_cursor cursor;
	uint64_t left;               /* bytes that no slice has yet */
	uint32_t slices;             /* in flight */
	uint32_t n_slices, n_resent; /* so far */
	uint64_t bytes, bytes_done;
	struct xfer_word wait, set;
	uint32_t code;           /* how it will end */
	const char *detail;      /* why: a sentence that the worker keeps, or NULL */
	uint64_t cancel_request; /* the TRANSFER_CANCEL that waits for the end, 0: none */
	uint64_t operator_waits; /* the same: id of a COMMAND_CANCEL */
	struct packet *notify;   /* the payload of its notification; NULL: none, or it is out */
	uint64_t notify_tag;
	int64_t accepted_ns, ended_ns;
	bool outlived;                  /* of struct xfer_request */
	bool to_client;                 /* its local memory is the client's */
	bool request_stops;             /* xfer_stop_request() */
	struct dray_heap_node deadline; /* by time in ns */
	struct dray_list overdue;       /* from its deadline to its end */
	/* of struct xfer_request */
	uint64_t (*ready)(const struct xfer *x);
	int (*arrived)(const struct xfer *x, const struct slice *s);
	void (*ended)(struct core *c, struct xfer *x);
	void *ended_arg;
	enum xfer_phase phase;
	int64_t phase_ns[XFER_PHASE_N]; /* spent in each; of the present one, since when */
	/* not cleared for each */
	struct xfer_op ops_inline[XFER_OPS_INLINE];
	struct dray_list uses[XFER_ROLES]; /* on its objects, while it holds them */
};

/* Bytes that no slice has yet, and that may move now. */
static inline uint64_t xfer_ready(const struct xfer *x)
{
	return x->ready ? x->ready(x) - (x->bytes - x->left) : x->left;
}

/* The transfer enters that phase now. */
static inline void xfer_enter(struct xfer *x, enum xfer_phase phase, int64_t now_ns)
{
	for (; x->phase < phase; x->phase++) {
		x->phase_ns[x->phase] = now_ns - x->phase_ns[x->phase];
		x->phase_ns[x->phase + 1] = now_ns;
	}
}

static inline void core_count(struct data_counters *c, enum dray_metric m, uint64_t n)
{
	shared_count(&c->v[m], n);
}

static inline void core_count_down(struct data_counters *c, enum dray_metric m, uint64_t n)
{
	core_count(c, m, (uint64_t)0 - n);
}

/* Bodies of frames find and found at most, without their seals. */
#define FIND_MAX (PMSG_FIND_MAX - SEAL_BYTES)
#define FOUND_MAX (PMSG_FIND_KEYS_MAX * PMSG_STORE_FOUND_SIZE + PMSG_FOUND_BYTES_MAX)
_Static_assert(PMSG_FOUND_SEALED_MAX + PMSG_TRAILING_KEYS_MAX * PMSG_STORE_FOUND_SIZE <= FOUND_MAX,
	       "the answer to a find with a room is no longer");

/* A question to a peer, from its frame find to its end. */
struct seek {
	struct dray_list link; /* the transport's */
	const uint8_t *find;   /* body of the frame */
	size_t n_find;
	enum dmsg_class class; /* of its stream */
	uint64_t room;         /* for bytes that follow the answer; 0: none do */
	uint8_t *found;        /* that of its answer; room for FOUND_MAX and a seal */
	size_t n_found;
	/*
	 * Set before ended(): a transfer on this channel, which begins inside of ended(), takes the bytes that follow the answer. Its
	 * operations are in the order of these bytes.
	 */
	struct channel *trailing;
	/*
	 * It was answered with this code; peer_lost: it was not, and will not be. Returns how many bytes follow the answer; SEEK_BROKEN: the
	 * answer does not tell. What no transfer takes is discarded.
	 */
	uint64_t (*ended)(struct core *c, struct seek *k, uint32_t code);
};
#define SEEK_BROKEN UINT64_MAX

/* Bytes that follow an answer, from where they lie: those of `v` in a row. */
struct trailing {
	const struct iovec *v;
	unsigned n;
	uint64_t bytes;
	/*
	 * Goes on with what the answer still needs, for at most *turn bytes, which are then fewer. True: `found` is complete. NULL: it is so
	 * from the start.
	 */
	bool (*complete)(struct trailing *p, uint8_t *found, uint64_t *turn);
	/* They have been sent, or will not be: frees it. */
	void (*end)(struct trailing *p);
};

/* Functions of the worker that transfers and transports call. */
struct core_upcalls {
	/* The transfer has ended: tell its session, which stays. The xfer is freed afterwards. */
	void (*xfer_ended)(struct core *c, struct xfer *x);
	/* Its operations, which were read after xfer_start(), are refused. The xfer is freed afterwards. */
	void (*xfer_refused)(struct core *c, struct xfer *x, const struct dray_err *err);
	/* What became of it, where it was slow or all are asked for; before or after xfer_ended. */
	void (*xfer_report)(struct core *c, const struct transfer_record *r, bool slow);
	/* Deliver the notification; the answer comes by xfer_notified(). */
	void (*notify)(struct core *c, struct xfer *x);
	/* For the control thread. Transports send DROPPED, SESSION_FAULT, STREAM_LOST, STREAM_CLOSED, PEER_USED and TRANSPORT. */
	void (*event)(struct core *c, const struct event *ev);
	/* One transport is done with a peer that went down: its streams or queue pairs are closed, its slices ended. */
	void (*peer_gone)(struct core *c, dray_handle peer);
	/* The slice ends: the buffers that its bytes passed through (`staged`, `window`) are given back. */
	void (*release_buffers)(struct core *c, struct slice *s);
	/*
	 * Bytes that RDMA devices wrote to the GPU until now are visible to it when this returns; microseconds.
	 * 0, or -EIO: the device is lost or not up.
	 */
	int (*flush_rdma)(struct core *c, unsigned device);
	/*
	 * A peer asks for objects of the store: the body of a frame find. Writes that of a frame found, of FOUND_MAX bytes at most, and says
	 * what follows it (NULL: nothing). An error code, or 0. May be NULL.
	 */
	uint32_t (*find)(struct core *c, struct peer_link *link, const uint8_t *find, size_t n,
			 uint8_t *found, size_t *ret_n, struct trailing **ret_trailing);
};

#define TRANSPORTS_MAX 5

struct core {
	unsigned index; /* of the worker */
	int64_t now_ns; /* read once a turn */
	struct data_config cfg;
	const struct core_upcalls *up;
	struct data_counters *counters;
	struct loop loop;
	_Atomic bool
		commands_late; /* the control thread has some that the worker's ring has no room for */
	struct objects *objects;      /* object.c */
	struct xfers *xfers;          /* xfer.c */
	struct dray_list owners;      /* owner.h */
	struct dray_list free_slices; /* sched.c */
	uint32_t slices_free;
	uint64_t next_slice_id;
	uint32_t awaited; /* descriptors on which a transport waits for an answer to its slices */
	/* streams that receive large payloads which follow each other; and when one of them has received last */
	uint32_t filling;
	int64_t filled_ns;
	int64_t moved_ns; /* when it moved data last, or was asked to */
	/* a channel got work, perhaps of a transport whose part of the turn is over, or a transfer waits */
	bool kicked;
	const struct transport_ops *transports[TRANSPORTS_MAX]; /* best first */
	void *transport_state[TRANSPORTS_MAX];
	unsigned n_transports;
	struct workshare *workshare; /* workers that help each other; NULL: this one works alone */
	struct delegates *delegates; /* slices that workers receive for each other; NULL: none */
	struct gpu_worker *gpu;      /* transport gpu's (agent/data/gpu_queue/gpu_queue.h) */
	struct stage *stage;         /* agent/data/transport/stage/stage.h */
};
