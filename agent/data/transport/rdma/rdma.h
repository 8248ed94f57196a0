/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `rdma`: one struct rdma for each worker. Only its own files and tests use more than
 * transport_rdma and slice_release_buffers().
 *
 * A slice is posted on one queue pair as work requests (post.c): one for each piece that is contiguous at
 * the peer, gathered from pieces here. Work requests are posted in lists, with one doorbell each. Only the
 * last request of a list asks for a completion, which stands for all before it, because requests of a
 * reliable connection complete in order (complete.c). Slices in flight on a lost queue pair wait until both
 * its ends are destroyed, then they are posted on another one (stop.c).
 *
 * Registered GPU memory is used like host memory. Bytes of other GPU memory pass through staging buffers,
 * which are registered (stage/channel.h). Memory of the peer that its devices do not know is reached
 * through a window (window.c). If a device may use such a buffer for longer than its slice lives, the entry
 * keeps the buffer.
 *
 * An engine with Mooncake is a peer whose memory only RDMA reaches, directly. Nothing makes it destroy its end of a queue pair. So
 * when one is lost, a WRITE that was posted ends with peer_lost, unless the engine has refused an earlier request: its device
 * carries out none behind that.
 */
#pragma once

#include <infiniband/verbs.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/stage/channel.h"
#include "agent/model/keys.h"
#include "agent/model/peer_link.h"
#include "agent/model/rdma_message.h"
#include "lib/cleanup.h"
#include "lib/handle.h"

/* Work requests of one list, at most. */
#define RDMA_LIST 64u
#define RDMA_INLINE 1024u
/* Payload of a list after which it takes no further slice. */
#define RDMA_LIST_BYTES (64u << 10)
/* Payload in flight on one queue pair, in slices of transfer.slice_size. */
#define RDMA_QUEUE_SLICES 4
/* Load that is added to a rail on another NUMA node, in slices. */
#define RDMA_FAR_SLICES 4

extern const struct transport_ops transport_rdma;

struct rdma_channel;
struct rdma_peer;
struct rdma_window;

struct window_buffer {
	struct dray_list link; /* on window->free */
	struct rdma_window *window;
	uint64_t offset;       /* in the peer's window */
	struct slice *slice;   /* waits for the answer; NULL: it has ended */
	struct object *remote; /* held until the answer */
	struct rdma_stage_request ask;
};

/* This worker's share of a window. */
struct rdma_window {
	struct dray_list link; /* on peer->windows */
	struct rdma_peer *peer;
	uint64_t id, offset, length;
	struct rail_keys *keys; /* NULL: no rail reaches it */
	uint64_t unit;          /* bytes of a buffer */
	uint32_t n, n_free;
	struct dray_list free;
	struct window_buffer v[];
};

/* Consecutive work requests: a whole slice or a part of one. */
struct rdma_entry {
	struct slice *slice; /* ends with this entry; NULL: a part, or the slice has ended */
	/* Of the local region or of staging memory, and of the memory at the peer; held. REKEY is answered after the last of them. */
	struct rail_keys *keys[2];
	struct stage_buffer *staged;  /* of a slice that ended early: the device may still use it */
	struct window_buffer *window; /* likewise */
	struct object *remote;        /* held if the slice ended early */
	uint64_t bytes;
	int64_t posted_ns;
	int64_t limit_ns; /* its end is waited for: this late at most; 0: it is not */
	uint32_t requests;
	bool signalled; /* the last request asks for a completion */
	bool cut;       /* the slice was not posted completely: its transfer stops */
};

/* Where the next work request of a slice begins. */
struct rdma_cursor {
	uint32_t li, ri; /* pieces */
	uint64_t lo, ro; /* bytes of the current ones that are done */
	bool begun;      /* a part was posted */
	bool flushed;
};

/* A queue pair in use. q is a ring of entries, oldest at head. */
struct rdma_queue {
	struct rdma_qp qp;
	struct rdma *rdma;
	struct rdma_peer *peer;
	struct rdma_channel *ch;
	struct dray_list link; /* on channel->queues, or channel->lost */
	dray_handle handle;    /* in rdma->queues: wr_id */
	bool lost;
	bool quiet;    /* its end here is destroyed: no device writes here for it any more */
	uint32_t loss; /* why: enum ibv_wc_status or enum rdma_loss */
	bool reading;  /* Soft-RoCE has reads in flight: nothing else is posted */
	bool awaited;  /* in this pull: a slice waits for it, and comes first */
	struct rdma_entry *q;
	uint32_t mask, head, tail;
	uint32_t used;             /* work requests in flight */
	uint32_t signalled;        /* entries that ask for a completion */
	uint64_t in_flight;        /* bytes */
	struct slice *partial;     /* partly posted, waits for room */
	struct rdma_cursor at;     /* in `partial` */
	struct rail_keys *keys[2]; /* its local and remote keys, held */
	int64_t limit_ns;          /* of its entries to come */
	struct pmsg_seg windowed;  /* the place of `partial` in the peer's window */
};

struct rdma_channel {
	struct stage_channel ch; /* first: the direct channel is that of registered local memory */
	struct stage_channel
		win; /* the same for transfers through the peer's window; retry: without a buffer */
	unsigned kind; /* of the last slice taken: direct, staged, windowed; each has an equal share of the turns */
	struct rdma_peer *peer;
	struct dray_list pull_link; /* on rdma->pulling[class] while it may have slices to post */
	struct dray_list queues, lost;
	/* slices without buffers whose memory no queue pair reaches, and the flows of their sessions: until rdma_channel_unpark() */
	struct dray_list parked, parked_flows;
	struct dray_list
		requested; /* slices whose copy between window and memory was requested from the owner */
	bool queue_requested; /* ends with a queue pair or UNREACHABLE */
	bool unreachable; /* no queue pair works, and transfers do not wait for one that is being made */
	bool moving; /* transfers move to another route, as soon as all their slices are back */
	bool bereft; /* a queue pair is gone: slices with buffers may wait for a new one */
};

struct rdma_peer {
	struct rdma *rdma;
	struct peer_link *link;
	struct dray_list peers_link;
	struct rdma_channel channels[2]; /* by class */
	struct stage_account staged;     /* of its staging buffers */
	struct rdma_window *window;      /* the current one; NULL: none */
	struct dray_list windows;        /* the current one, and former ones in use */
	uint32_t unanswered;             /* copy requests without an answer */
	struct rdma_paths *paths;        /* NULL: not known yet */
	enum rdma_fallback fallback;     /* last reported */
	bool engine;                     /* with Mooncake */
	bool down;
};

struct rdma_rail {
	struct loop_source source; /* fd -1: not up */
	struct rdma *rdma;
	const struct rdma_cq *cq;
	uint32_t signalled; /* completions to come; 0: no need to poll */
	uint64_t in_flight; /* bytes, on all its queue pairs */
	unsigned unacked;   /* events */
	bool armed;
};

/* A list of work requests being built, for one queue pair. */
struct rdma_list {
	struct rdma_queue *queue; /* that the requests are for */
	uint32_t n;               /* requests */
	uint32_t inlines;         /* requests that carry their bytes */
	bool reads;               /* some are reads */
	uint64_t bytes;
	uint32_t n_open; /* requests and bytes that belong to no entry yet */
	uint64_t bytes_open;
	struct ibv_send_wr wr[RDMA_LIST];
	struct ibv_sge sge[RDMA_LIST][RDMA_SGES];
	uint8_t inlined[RDMA_LIST][RDMA_INLINE];
};

struct rdma {
	struct core *c;
	struct dray_slots peers, engines; /* struct rdma_peer */
	struct dray_list peer_list;
	struct dray_handles queues;
	struct rdma_rail rails[RAILS_MAX];
	uint64_t rails_up;               /* bit set */
	struct dray_list pulling[2];     /* by class */
	int64_t timer_ns;                /* next time that tick() has work */
	struct rdma_list *list;          /* allocated with the first rail */
	struct rail_keys *staging;       /* of the worker's staging memory; NULL: not registered */
	struct dray_list copies, copied; /* window_serve.c: in flight; round ended */
};

/* Routes of a transfer; both may apply. */
#define RDMA_ROUTE_STAGED 1u   /* local memory is staged */
#define RDMA_ROUTE_WINDOWED 2u /* through the peer's window */

/* rdma.c */
static inline unsigned rdma_route(const struct rdma_channel *ch, const struct xfer *x)
{
	bool staged = x->channel == &ch->ch.staged || x->channel == &ch->win.staged;

	return (staged ? RDMA_ROUTE_STAGED : 0) |
	       (stage_channel_has(&ch->win, x) ? RDMA_ROUTE_WINDOWED : 0);
}

/* The slice's buffer is in a window that the owner has replaced. */
static inline bool window_is_void(const struct rdma_peer *peer, const struct slice *s)
{
	return s->window && s->window->window != peer->window;
}

static inline bool rdma_channel_has_work(const struct rdma_channel *ch)
{
	return stage_channel_has_work(&ch->ch) || stage_channel_has_work(&ch->win);
}

static inline void rdma_pull_later(struct rdma_channel *ch)
{
	stage_channel_pull_later(&ch->ch);
}

static inline void rdma_timer(struct rdma *r, int64_t when_ns)
{
	r->timer_ns = dray_min(r->timer_ns, when_ns);
}

struct rdma_peer *rdma_peer_get(struct rdma *r, dray_handle peer);
/* Requests a queue pair from the control thread if there is none. */
void rdma_queue_request(struct rdma_channel *ch);
/* Reports to the control thread. */
void rdma_event(struct rdma *r, enum rdma_event type, dray_handle peer, uint64_t id, uint32_t code,
		void *arg);

/* Adds to a counter of the queue pair's path and to that of its rail. */
#define rdma_count(qp, counter, n)                                                                 \
	do {                                                                                       \
		atomic_fetch_add_explicit(&(qp)->path_counters->counter, n, memory_order_relaxed); \
		atomic_fetch_add_explicit(&(qp)->rail_counters->counter, n, memory_order_relaxed); \
	} while (0)

static inline struct rdma_entry *rdma_entry_at(struct rdma_queue *p, uint32_t i)
{
	return &p->q[i & p->mask];
}

/* route.c */
/* Checks whether the transfer can take this route over the peer's paths. */
enum rdma_fallback rdma_route_check(const struct rdma_peer *peer, const struct xfer *x,
				    unsigned route);
struct channel *rdma_channel(struct core *c, void *state, const struct xfer *x);
/* Why it cannot go to its engine with Mooncake; NULL: its peer is none. */
const char *rdma_refusal(struct core *c, void *state, const struct xfer *x, uint32_t *ret_code);

/* post.c */
/* Posts the channel's slices as far as its queue pairs have room. */
void rdma_channel_pull(struct rdma_channel *ch);
/* A queue pair, keys or the slices that wait for these have changed: looks at all slices again. */
void rdma_channel_unpark(struct rdma_channel *ch);
/* There is a queue pair for the slice, once it has the buffers that its route needs. */
bool rdma_has_way(const struct stage_channel *p, const struct slice *s);
/* The slice begins again, without buffers. */
void rdma_slice_restart(struct rdma_channel *ch, struct slice *s);
/* Adds a queue pair for the peer; qp is copied. 0 or -ENOMEM. */
int rdma_queue_new(struct rdma_peer *peer, const struct rdma_qp *qp);
void rdma_queue_free(struct rdma_queue *p);
/* Ends the posting of the partial slice; returns it, or NULL. */
struct slice *rdma_partial_take(struct rdma_queue *p);

/* complete.c */
/* Polls the rail's completion queue, a bounded number of times. True: there were completions. */
bool rdma_rail_poll(struct rdma_rail *rail);
int rdma_rail_up(struct rdma *r, uint32_t number, const struct rdma_cq *cq);
void rdma_rail_down(struct rdma *r, uint32_t number);
/* Asks for an event if completions are expected. True: some came meanwhile. */
bool rdma_rail_arm(struct rdma_rail *rail);
/* Releases what an entry holds; the caller takes its slice. */
void rdma_entry_release(struct core *c, struct rdma_entry *e);

/* stop.c */
/* Stops using the queue pair. Slices in flight wait for QP_DEAD. */
void rdma_queue_lose(struct rdma_queue *p, uint32_t code);
/* Both its ends are destroyed: frees it, its slices are posted again or end. */
void rdma_queue_dead(struct rdma_queue *p);
/* The end here of the lost queue pair is destroyed. */
void rdma_queue_quiet(struct rdma_queue *p);
/*
 * Takes the slices of x (NULL: all) that are not on a queue pair and need not continue; urgent: also those that wait for a
 * copy here or at the owner.
 */
void rdma_channel_take(struct rdma_channel *ch, const struct xfer *x, bool urgent,
		       struct dray_list *over);
/* The operation stop(). */
void rdma_channel_stop(struct core *c, void *state, struct xfer *x, bool urgent);
/* The operations hasten() and keys(). */
void rdma_hasten(struct core *c, void *state, const struct object *remote, int64_t ns);
void rdma_keys_changed(struct core *c, void *state, const struct object *o);
/* No queue pair can be made: waiting transfers move to another transport, or end. */
void rdma_channel_give_up(struct rdma_channel *ch);
/*
 * Its paths, its window or the staging memory changed: checks the route of its transfers again, and
 * requests queue pairs.
 */
void rdma_peer_changed(struct rdma_peer *peer);
/* The same for transfers of this channel that could not move because slices were in flight, or whose keys have changed. */
void rdma_channel_review(struct rdma_channel *ch);

/* window.c */
/* Takes the channel's next slices while there are buffers. Returns one to post, or NULL. */
struct slice *window_channel_next(struct rdma_channel *ch);
/* Requests from the owner the copy between the slice's buffer, which holds a WRITE's bytes, and the remote. */
void window_request_copy(struct rdma_channel *ch, struct slice *s);
/* The slice begins again, with another buffer or by another transport. */
void window_restart(struct rdma_channel *ch, struct slice *s);
/* Nothing uses the buffer any more. */
void window_put(struct core *c, struct window_buffer *b);
/* The same for the slice's buffer, if it has one. */
void slice_window_put(struct core *c, struct slice *s);
/* The slice ends: gives back its buffers, here and at the peer. */
void slice_release_buffers(struct core *c, struct slice *s);
/* Takes over a share of the peer's window, which is consumed. */
void window_take_share(struct rdma_peer *peer, struct rdma_share *share);
void window_answered(struct rdma_peer *peer, struct rdma_stage_request *ask, uint32_t code);
void window_free(struct rdma_window *w);

/* window_serve.c */
/* Begins the copy; RDMA_COPIED answers it, possibly inside the call. */
void rdma_copy_start(struct rdma *r, struct rdma_copy *copy);
/* Continues the copies whose round has ended. */
void rdma_copies_progress(struct rdma *r);
/* The operation drop(): ends copies that use the object. */
void rdma_copies_drop(struct core *c, void *state, struct object *o);
