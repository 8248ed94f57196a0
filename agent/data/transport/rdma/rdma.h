/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of transport `rdma`; seen by rdma*.c alone. One struct rdma for each worker.
 *
 * A slice is posted on one queue pair as work requests (rdma_post.c): one for each piece that is contiguous
 * at the peer, gathered from pieces here. Work requests go out in lists, a doorbell for each; only the
 * last of a list asks for a completion, which stands for all before it, since those of a reliable
 * connection complete in order (rdma_complete.c). What is in flight on a queue pair that is lost waits
 * until both its ends are dead, then goes out again on another (rdma_stop.c).
 *
 * GPU memory that is registered is memory like other. Where it is not, its bytes pass through staging buffers, which
 * are (stage_post.h). Memory of the peer's that none of its devices knows is reached by a window (rdma_window.h).
 * A device may use such a buffer for longer than its slice lives: then the entry keeps it.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_RDMA_RDMA_H
#define DRAY_AGENT_DATA_TRANSPORT_RDMA_RDMA_H

#include <infiniband/verbs.h>

#include "agent/model/keys.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/xfer.h"
#include "agent/model/peer_link.h"
#include "agent/model/rdma_message.h"
#include "agent/data/transport/stage/channel.h"
#include "agent/data/transfer/transport.h"
#include "lib/cleanup.h"
#include "lib/handle.h"

/* Work requests in one list. */
#define RDMA_LIST 64u
#define RDMA_INLINE 1024u
/* Further slices join a list until it has so much payload. */
#define RDMA_LIST_BYTES (64u << 10)
/* Payload in flight on one queue pair, in slices of the largest size. */
#define RDMA_WINDOW_SLICES 4
/* Slices by which a rail on another NUMA node counts as busier than it is. */
#define RDMA_FAR_SLICES 4

extern const struct transport_ops transport_rdma;

struct rdma_channel;
struct rdma_peer;
struct rdma_window;

struct window_buffer {
	struct dray_list link; /* on window->free */
	struct rdma_window *window;
	uint64_t offset;       /* in the whole window */
	struct slice *slice;   /* waits for the answer; NULL: nobody does */
	struct object *remote; /* held until the answer */
	struct rdma_ask ask;
};

/* This worker's share. */
struct rdma_window {
	struct dray_list link; /* on peer->windows */
	struct rdma_peer *peer;
	uint64_t id, offset, length;
	struct rail_keys *keys; /* NULL: no rail reaches it now */
	uint64_t unit;          /* bytes of a buffer */
	uint32_t n, n_free;
	struct dray_list free;
	struct window_buffer v[];
};

/* Of one channel of transport rdma. */
struct window_channel {
	struct channel ch;            /* transfers from and to memory that devices know */
	struct stage_channel staging; /* and those whose local memory is staged */
	bool staged_next;
	struct dray_list restart;   /* slices without a buffer, that have had one */
	struct dray_list requested; /* the owner is copying for them */
};

/* Work requests posted one after the other: a whole slice, or a part of one. */
struct rdma_entry {
	struct slice *slice;    /* ends with this entry; NULL: a part, or nobody waits any more */
	struct rail_keys *keys; /* of the local region or of staging memory, held */
	struct stage_buffer *staged;  /* of a slice that was left behind: the device may use it */
	struct window_buffer *window; /* likewise */
	struct object *
		remote; /* held where the slice was left behind: its owner must not think us done */
	uint64_t bytes;
	int64_t posted_ns;
	uint32_t requests;
	bool signalled; /* the last one asks for a completion */
	bool cut;       /* the slice was not posted to its end: its transfer stops */
};

/* Where the next work request of a slice begins. */
struct rdma_cursor {
	uint32_t li, ri; /* pieces */
	uint64_t lo, ro; /* bytes of them that are done */
	bool begun;      /* something of it was posted */
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
	bool reading; /* Soft-RoCE has reads in flight: nothing else goes out */
	struct rdma_entry *q;
	uint32_t mask, head, tail;
	uint32_t used;             /* work requests in flight */
	uint32_t signalled;        /* entries that will be completed */
	uint64_t in_flight;        /* bytes */
	struct slice *partial;     /* begun, and for lack of room not posted to its end */
	struct rdma_cursor at;     /* in it */
	struct rail_keys *keys[2]; /* its local and remote keys, held */
	struct pmsg_seg windowed;  /* its place in the peer's window */
};

struct rdma_channel {
	struct channel ch; /* first */
	struct rdma_peer *peer;
	struct stage_channel
		staging; /* transfers whose local region is GPU memory that is not registered */
	struct window_channel win;  /* transfers that pass through the peer's window */
	unsigned next;              /* queue pairs are offered slices of all kinds by turns */
	struct dray_list pull_link; /* on rdma->pulling[class] while it may have something to post */
	struct dray_list queues, lost;
	struct dray_list retry; /* slices to go out before new ones */
	bool requested;         /* said, and not answered by a queue pair or UNREACHABLE */
	bool unreachable;       /* no queue pair can be had now */
	bool moving; /* transfers are to go elsewhere, once what they have under way has come back */
};

struct rdma_peer {
	struct rdma *rdma;
	struct peer_link *link;
	struct dray_list peers_link;
	struct rdma_channel channels[2]; /* by class */
	struct stage_account staged;     /* its staging buffers */
	struct rdma_window *window;      /* that it gave us; NULL: none */
	struct dray_list windows;    /* that one, and those that were before it and are in use */
	uint32_t unanswered;         /* that are not answered */
	struct rdma_paths *paths;    /* NULL: never told */
	enum rdma_fallback fallback; /* last said */
	bool down;
	uint32_t down_code;
};

struct rdma_rail {
	struct loop_source source; /* fd -1: not up */
	struct rdma *rdma;
	const struct rdma_cq *cq;
	uint32_t signalled; /* completions that will come, so that it is worth looking */
	uint64_t in_flight; /* bytes, on all its queue pairs */
	unsigned unacked;   /* events */
	bool armed;
};

/* A list of work requests under construction, for one queue pair. */
struct rdma_list {
	struct rdma_queue *post; /* of those that are in it */
	uint32_t n;              /* requests */
	uint32_t inlines;        /* of them, those that carry their bytes */
	bool reads;              /* some of them */
	uint64_t bytes;
	uint32_t n_open; /* requests, and bytes, that belong to no entry yet */
	uint64_t bytes_open;
	struct ibv_send_wr wr[RDMA_LIST];
	struct ibv_sge sge[RDMA_LIST][RDMA_SGES];
	uint8_t inlined[RDMA_LIST][RDMA_INLINE];
};

struct rdma {
	struct core *c;
	struct rdma_peer **peers; /* by index of the handle */
	uint32_t n_peers;
	struct dray_list peer_list;
	struct dray_handles queues;
	struct rdma_rail rails[RAILS_MAX];
	uint64_t rails_up;               /* set of them */
	struct dray_list pulling[2];     /* by class */
	int64_t timer_ns;                /* when tick() has something to do */
	struct rdma_list *list;          /* made with the first rail */
	struct rail_keys *staging;       /* of the worker's staging memory; NULL: not registered */
	struct dray_list copies, copied; /* rdma_copy.c: under way, and those whose round is done */
};

/* How a transfer goes; both may be. */
#define RDMA_ROUTE_STAGED 1u   /* its local memory is staged */
#define RDMA_ROUTE_WINDOWED 2u /* it passes through the peer's window */

/* rdma.c */
/* The transfer's slices go out here. */
static inline bool rdma_channel_has(const struct rdma_channel *ch, const struct xfer *x)
{
	return x->channel == &ch->ch || x->channel == &ch->staging.ch ||
	       x->channel == &ch->win.ch || x->channel == &ch->win.staging.ch;
}

static inline unsigned rdma_route(const struct rdma_channel *ch, const struct xfer *x)
{
	return (x->channel == &ch->staging.ch || x->channel == &ch->win.staging.ch ?
			RDMA_ROUTE_STAGED :
			0) |
	       (x->channel == &ch->win.ch || x->channel == &ch->win.staging.ch ?
			RDMA_ROUTE_WINDOWED :
			0);
}

/* Its buffer lies in a window that the owner has given another for. */
static inline bool window_is_void(const struct rdma_peer *peer, const struct slice *s)
{
	return s->window && s->window->window != peer->window;
}

static inline bool window_channel_has_work(const struct window_channel *wc)
{
	return !dray_list_empty(&wc->restart) || channel_pending(&wc->ch) ||
	       stage_channel_has_work(&wc->staging);
}

static inline bool rdma_channel_has_work(const struct rdma_channel *ch)
{
	return !dray_list_empty(&ch->retry) || channel_pending(&ch->ch) ||
	       stage_channel_has_work(&ch->staging) || window_channel_has_work(&ch->win);
}

/* How devices know the memory that the slice is sent from or received into. */
static inline struct rail_keys *rdma_local_keys(const struct rdma *r, const struct slice *s)
{
	return s->staged ? r->staging : s->xfer->local->keys;
}

/* And what they are of the memory there. */
static inline struct rail_keys *rdma_remote_keys(const struct slice *s)
{
	return s->window ? s->window->window->keys : s->xfer->remote->keys;
}

static inline void rdma_timer(struct rdma *r, int64_t when_ns)
{
	r->timer_ns = dray_min(r->timer_ns, when_ns);
}

struct rdma_peer *rdma_peer_get(struct rdma *r, dray_handle peer);
void rdma_pull_later(struct rdma_channel *ch);
/* It has something for the peer, and no queue pair: one is to be made. */
void rdma_queue_request(struct rdma_channel *ch);
void rdma_event(struct rdma *r, enum rdma_message type, dray_handle peer, uint64_t id,
		uint32_t code);

static inline void rdma_add(_Atomic uint64_t *v, uint64_t n)
{
	atomic_fetch_add_explicit(v, n, memory_order_relaxed);
}

static inline struct rdma_entry *rdma_entry_at(struct rdma_queue *p, uint32_t i)
{
	return &p->q[i & p->mask];
}

/* rdma_route.c */
/* Can the transfer go over the peer's paths in this way? */
enum rdma_fallback rdma_route_check(const struct rdma_peer *peer, const struct xfer *x,
				    unsigned way);
struct channel *rdma_channel(struct core *c, void *state, const struct xfer *x);

/* rdma_post.c */
/* Posts what the channel has and its queue pairs have room for. */
void rdma_channel_pull(struct rdma_channel *ch);
/* A queue pair for the peer, copied. 0 or -ENOMEM. */
int rdma_queue_new(struct rdma_peer *peer, const struct rdma_qp *qp);
void rdma_queue_free(struct rdma_queue *p);
/* It is not being posted any more; returns the slice, if there was one. */
struct slice *rdma_partial_take(struct rdma_queue *p);

/* rdma_complete.c */
/* Takes completions off the rail's queue, a bounded number. True if there were any. */
bool rdma_rail_poll(struct rdma_rail *rail);
int rdma_rail_up(struct rdma *r, uint32_t number, const struct rdma_cq *cq);
void rdma_rail_down(struct rdma *r, uint32_t number);
/* Asks for an event where completions are awaited. True if some have come meanwhile. */
bool rdma_rail_arm(struct rdma_rail *rail);
/* Lets go of what an entry holds; its slice is the caller's. */
void rdma_entry_release(struct core *c, struct rdma_entry *e);

/* rdma_stop.c */
/* Nothing is posted on it any more; what is in flight waits for QP_DEAD. */
void rdma_queue_lose(struct rdma_queue *p, uint32_t code);
/* Both its ends are dead. Frees it. */
void rdma_queue_dead(struct rdma_queue *p);
void rdma_channel_stop(struct rdma_channel *ch, struct xfer *x, bool urgent);
/* No queue pair can be had: what waits goes to another transport, or ends. */
void rdma_channel_give_up(struct rdma_channel *ch);
/*
 * Its paths, the staging or its window are others now: which of its transfers go here, and by which queue pairs, is asked
 * again.
 */
void rdma_peer_changed(struct rdma_peer *peer);
/* The same for those of this channel that had something under way when they were to go. */
void rdma_channel_review(struct rdma_channel *ch);

/* window.c */
void window_channel_init(struct rdma_channel *ch, enum dmsg_class class, struct peer_link *link,
			 struct stage_account *account);
void window_channel_deinit(struct window_channel *wc);

/* Takes the channel's next slices as far as there are buffers. Returns one to be posted, or NULL. */
struct slice *window_channel_next(struct rdma_channel *ch);
/* Requests from the owner the copy between the slice's buffer, which holds a WRITE's bytes, and the remote. */
void window_request_copy(struct rdma_channel *ch, struct slice *s);
/* It begins anew, with another buffer or by another transport. */
void window_restart(struct rdma_channel *ch, struct slice *s);
/* Nothing uses the buffer any more. */
void window_put(struct core *c, struct window_buffer *b);
/* The same for the slice's buffer, if it has one. */
void slice_window_put(struct core *c, struct slice *s);
/* The slice ends: gives back the buffers that its bytes passed through, here and at the peer. */
void slice_release_buffers(struct core *c, struct slice *s);
/* Takes slices of x that need not go on; urgent: those that wait for an answer too. */
void window_channel_stop(struct rdma_channel *ch, const struct xfer *x, bool urgent,
			 struct dray_list *over);
/* Slices of x that were not posted leave their buffers, and can go by another transport. */
void window_channel_leave(struct core *c, struct dray_list *slices);

/* Consumes it. */
void window_take_share(struct rdma_peer *peer, struct rdma_share *share);
void window_answered(struct rdma_peer *peer, struct rdma_ask *ask, uint32_t code);
/* Without a word to anybody. */
void window_free(struct rdma_window *w);

/* window_serve.c */
/* Begins the copy; RDMA_COPIED answers it, possibly inside the call. */
void rdma_copy_start(struct rdma *r, struct rdma_copy *copy);
/* Continues the copies whose round has ended. */
void rdma_copies_progress(struct rdma *r);
/* Ends copies that use an object which is being dropped. */
void rdma_copies_drop(struct rdma *r, const struct object *o);

#endif
