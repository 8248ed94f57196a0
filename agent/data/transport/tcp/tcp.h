/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `tcp`: one struct tcp for each worker. Only its own files and tests use more than
 * transport_tcp.
 *
 * A stream carries requests one way and answers the other. The agent that connected it is the requester
 * (request.c): it makes frames WRITE and READ from slices. The agent that accepted it serves (serve.c): it
 * checks frames against grants and answers them in order. Both share the receiving code (stream.c): payload
 * goes from the socket straight to its place, in the same system call as the head of the next frame. Frames
 * that are too small for that arrive many at once in a receive buffer.
 *
 * Callbacks of the loop only note that a socket is ready and queue its stream. The work is done in
 * progress(), after the worker has read its commands. So the worker knows a grant before it looks at a
 * frame that names the grant.
 *
 * Bytes of GPU memory pass through staging buffers (stage.h) on both sides: stage/channel.c gathers slices
 * ahead of the streams and scatters what was read, serve.c does the same with frames. The end of a
 * copy only queues its channel or stream, too.
 *
 * Nothing is freed in the middle of a turn: closed streams are freed at the start of the next one.
 */
#pragma once

#include "agent/data/transfer/delegate.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/stage/channel.h"
#include "agent/model/peer_link.h"
#include "lib/cleanup.h"

/* Size of a stream's buffer, which the stream borrows from the worker's pool only while bytes are in it. */
#define TCP_BUFFER 65536u
/* The longest frame head: header and segments; or a whole frame find. */
#define TCP_HEAD_MAX (PMSG_FRAME_SIZE + PMSG_SEGS_MAX * PMSG_SEG_SIZE)
_Static_assert(PMSG_FRAME_SIZE + PMSG_FIND_MAX <= TCP_HEAD_MAX,
	       "a whole frame find fits where the longest head does");
/* IOV_MAX: ranges of one system call. */
#define TCP_IOV 1024
/* tcp.slices_in_flight is at most this; a power of two. */
#define TCP_FRAMES_MAX 64u
/* Bytes of one turn, and the bytes that a system call counts for. */
#define TCP_TURN_BYTES (1 << 20)
/* Bytes of a bulk turn within this time after the last latency transfer, or a small request that came alone. */
#define TCP_TURN_BYTES_SHORT (256 << 10)
#define TCP_TURN_SHORT_NS DRAY_NS_PER_SEC
/* A system call near the end of a turn moves at least this much. */
#define TCP_CALL_MIN (64 << 10)
#define TCP_CALL_COST 4096
/* The most bytes of a slice whose checksum is computed when they have come: they are in the cache then, and those of the last one delay the end. */
#define TCP_CHECKED_MAX (256 << 10)

extern const struct transport_ops transport_tcp;

struct tcp;
struct tcp_peer;
struct tcp_stream;

/* Bytes left of this turn. */
struct tcp_budget {
	int64_t left;
};

/* How the requester or the server handles what tcp_stream_receive() takes in. */
struct tcp_side {
	/*
	 * A frame may start at p. Returns its bytes up to the payload and sets s->payload_left (and
	 * s->sink). Returns 0 if more bytes or a later turn are needed; -EPROTO ends the stream.
	 */
	int (*head)(struct tcp_stream *s, const uint8_t *p, size_t n);
	/*
	 * No further frame can be taken in now. If payload_left: its payload has no place now and s->sink
	 * is not set.
	 */
	bool (*blocked)(const struct tcp_stream *s);
	/* Sets the places of the next payload bytes, at most payload_left. Returns the number of iovecs. */
	unsigned (*gather)(struct tcp_stream *s, struct iovec *iov, unsigned max,
			   uint64_t *ret_bytes);
	/* n more bytes of the payload are in place. */
	void (*advance)(struct tcp_stream *s, uint64_t n);
	/* True until release(): the places of gather() may be written to. False: no longer, and s->sink is set. May be NULL. */
	bool (*hold)(struct tcp_stream *s);
	void (*release)(struct tcp_stream *s);
	/* The payload's place faulted: sets s->sink. */
	void (*fault)(struct tcp_stream *s);
	/* The last byte of payload is in place or discarded. Sets payload_left again if there is more. */
	void (*complete)(struct tcp_stream *s);
	/* The connection ended or broke; closes the stream. */
	void (*broken)(struct tcp_stream *s);
	/* The socket is ready, or the previous turn ended before the work did. */
	void (*step)(struct tcp_stream *s, struct tcp_budget *b);
	/* True if step() has something to do without a further event. */
	bool (*wants)(const struct tcp_stream *s);
	void (*tick)(struct tcp_stream *s);
	/* It is about to be freed. May be NULL. */
	void (*freed)(struct tcp_stream *s);
};

enum tcp_stream_state {
	TCP_CONNECTING, /* until the socket is connected */
	TCP_GREETING,   /* hello sent, welcome awaited */
	TCP_OPEN,
	TCP_CLOSED, /* the descriptor is closed */
};

struct tcp_stream {
	struct loop_source source;
	struct tcp *tcp;
	struct tcp_peer *peer;
	const struct tcp_side *side;
	struct dray_list link;       /* on tcp->streams or tcp->closed */
	struct dray_list ready_link; /* on tcp->ready[class] or tcp->parked */
	struct dray_list peer_link;  /* on channel->streams, channel->lost, or peer->adopted */
	uint64_t id;
	int fd;
	enum dmsg_class class;
	enum tcp_stream_state state;
	unsigned buffers; /* that it may borrow from the pool */
	bool readable, writable, hup;
	bool sink;  /* the payload is discarded */
	bool bulky; /* the last frame had much payload: the next one's payload stays in the socket */
	bool incomplete; /* the receive buffer holds no whole head */
	bool parked;     /* on tcp->parked until the next turn */
	uint8_t *in;     /* receive buffer: bytes [in_rd, in_wr) wait */
	uint32_t in_rd, in_wr;
	uint64_t payload_left;
	bool follows;      /* the current frame came with the end of the last one's payload */
	bool filling;      /* counts in core.filling */
	bool marked;       /* fewer than WAKE_BYTES do not wake the worker (SO_RCVLOWAT) */
	int64_t series_ns; /* when such a frame of a large WRITE was received last; 0: never */
	int64_t moved_ns;  /* last progress in either direction, or when the stream became busy */
	struct seal *seals[2]; /* by enum seal_side; NULL before the first frame find */
};

/* A frame of the requester, from its queueing to its answer. */
struct tcp_frame {
	/* NULL: its slice has ended, or it is a question; with bytes behind its answer: the slice that they go to now */
	struct slice *slice;
	struct seek *seek; /* the question; NULL: it is none */
	uint64_t id;
	uint64_t bytes; /* payload in either direction, or behind an answer */
	uint32_t head_at;
	uint16_t head_bytes;
	uint8_t kind;
	bool ended; /* answered, or it will not be sent */
};

/* Attempts that failed since the last answered frame. */
struct tcp_fails {
	uint32_t n;
	int64_t since_ns;
};

/* Slices of the channel that other workers have. */
struct tcp_helpers {
	struct dray_list link; /* on tcp->helped while there are some, and for a while afterwards */
	struct dray_list slices;         /* the oldest first; by delegated.link */
	int64_t again_ns[WORKSHARE_MAX]; /* the worker gets none before */
};

struct tcp_channel {
	struct stage_channel ch; /* first */
	struct tcp_peer *peer;
	struct dray_list pull_link; /* on tcp->pulling[class] while streams may take slices */
	struct dray_list streams;   /* requesters: connecting and open */
	struct dray_list lost;      /* requesters: broken, the owner's end not known to be closed */
	uint32_t n_streams, n_open;
	struct tcp_fails refused, lacking; /* the path or the peer; this agent lacked something */
	int64_t connect_ns;                /* earliest next attempt */
	struct tcp_helpers helpers;
};

/* Room for the heads of a batch. A slice joins it while the longest head still fits. */
#define TCP_HEADS (2 * TCP_HEAD_MAX)

/*
 * Bytes that follow an answer: those of a transfer, which takes its slices from `ch`, and gaps between them, which are discarded. They are
 * received in parts, each some segments of a slice without a gap between them, or a gap.
 */
struct tcp_trailing {
	struct channel ch;
	uint64_t at, left;   /* where the next part begins, and the bytes from there on */
	uint64_t part, done; /* bytes of this part, and those of its slice before it */
	unsigned seg, end;   /* of the slice: the first segment of this part, and that behind it */
	bool active;
};

/*
 * A stream that this agent connected. q is a ring: frames [head, sent) wait for answers, frames [sent,
 * tail) are being sent; sent_of bytes of the first of them have been sent.
 */
struct tcp_requester {
	struct tcp_stream s; /* first */
	struct tcp_channel *ch;
	uint32_t head, sent, tail;
	uint64_t sent_of;
	uint64_t in_flight;   /* payload bytes in q */
	bool useful;          /* a frame was answered */
	struct tcp_frame *rx; /* its READ_DATA or FOUND is being received, or what follows that */
	struct tcp_trailing trailing;
	struct dray_list waiting; /* lost: WRITEs that the owner may still receive */
	int64_t connect_by_ns;
	uint8_t hello_mac[32];
	uint32_t heads_used;
	struct tcp_frame q[TCP_FRAMES_MAX]; /* from here on not cleared for each stream */
	uint8_t heads[TCP_HEADS];
};

struct tcp_peer {
	struct tcp *tcp;
	struct peer_link *link;
	struct dray_list peers_link;
	struct tcp_channel channels[2]; /* by class */
	struct dray_list adopted;       /* struct serve */
	struct stage_account staged[STAGE_USE_N];
	bool down;
};

struct tcp {
	struct core *c;
	struct dray_slots peers; /* struct tcp_peer */
	struct dray_list peer_list;
	struct dray_list streams;
	struct dray_list serving; /* struct serve with frames: those that objects are dropped from */
	struct dray_list ready[2], pulling[2]; /* by class */
	struct dray_list parked;               /* streams to look at again in the next turn */
	struct dray_list closed;
	int64_t short_ns;        /* bulk turns are short until then */
	int64_t timer_ns;        /* next time that tick() has work */
	struct dray_list helped; /* struct tcp_channel: helpers have slices of it */
	int64_t helped_ns;       /* next time to look at these slices */
	uint64_t next_stream;
	uint8_t **pool; /* free buffers, the last used one at the end */
	uint32_t pool_n, pool_cap, pool_size, pool_low;
	bool set_send_buffer, set_receive_buffer;
	struct iovec iov[TCP_IOV];
	uint8_t sink[TCP_BUFFER];
};

/* tcp.c */
struct tcp_peer *tcp_peer_get(const struct tcp *t, dray_handle peer);

static inline void tcp_timer(struct tcp *t, int64_t when_ns)
{
	t->timer_ns = dray_min(t->timer_ns, when_ns);
}

/* Somebody waits for less than a turn. */
static inline void tcp_turns_short(struct tcp *t)
{
	t->short_ns = t->c->now_ns + TCP_TURN_SHORT_NS;
}

/* Tells the control thread about a stream. */
static inline void tcp_event(struct tcp *t, enum event_type type, dray_handle peer, uint64_t stream)
{
	t->c->up->event(t->c, &(struct event){ .type = type, .session = peer, .id = stream });
}

static inline struct tcp *tcp_of(const struct tcp_channel *ch)
{
	return ch->peer->tcp;
}

/* Queues a channel that has slices, so that its streams are offered them in this or the next turn. */
static inline void tcp_channel_pull_later(struct tcp_channel *ch)
{
	if (stage_channel_has_work(&ch->ch))
		stage_channel_pull_later(&ch->ch);
}

/* stream.c */
/* Makes the seals of frames find and found, unless there are some. agent_id: of the side that has connected. False: no memory. */
bool tcp_stream_seals(struct tcp_stream *s, const uint8_t agent_id[16]);
/*
 * Allocates a stream of one side, which is its first member; only the first bytes are zeroed. Reserves its
 * buffers. NULL: no memory.
 */
void *tcp_stream_new(struct tcp *t, struct tcp_peer *peer, const struct tcp_side *side, size_t size,
		     size_t zeroed, unsigned buffers);
/* Sets options of a new socket. Buffer sizes must be set before it connects. */
void tcp_socket_setup(const struct tcp *t, int fd);
/* Registers the fd, which stays the caller's on failure. 0 or -errno. */
int tcp_stream_watch(struct tcp_stream *s, int fd);
/* The stream is open. */
void tcp_stream_opened(struct tcp_stream *s);
/* Closes the descriptor and discards received bytes. reset: at once, without sending what is queued. */
void tcp_stream_close(struct tcp_stream *s, bool reset);
/* The closed stream is freed at the start of the next turn. */
void tcp_stream_free_later(struct tcp_stream *s);
void tcp_free_closed(struct tcp *t);
/* Queues the stream if it has work. */
void tcp_stream_requeue(struct tcp_stream *s);
/* Receives within the budget. False: the stream closed. */
bool tcp_stream_receive(struct tcp_stream *s, struct tcp_budget *b);
void tcp_count_sent(struct tcp_stream *s, uint64_t payload);
/* One sendmsg(), repeated if interrupted. EAGAIN clears s->writable. Returns bytes or -errno. */
ssize_t tcp_stream_send(struct tcp_stream *s, struct iovec *iov, unsigned n, struct tcp_budget *b);

/* pool.c: buffers of streams. reserve makes room for n more; get never fails within what is reserved. */
int tcp_pool_reserve(struct tcp *t, unsigned n);
void tcp_pool_unreserve(struct tcp *t, unsigned n);
uint8_t *tcp_pool_get(struct tcp *t);
void tcp_pool_put(struct tcp *t, uint8_t *buffer);
/* Gives memory that only a burst needed back to the kernel. */
void tcp_pool_trim(struct tcp *t);

/* connect.c */
/* Opens the streams that the channel lacks, if an attempt is allowed now. */
void tcp_connect(struct tcp_channel *ch);
/* The socket of a stream that is not yet open is ready. */
void tcp_connect_step(struct tcp_requester *p);
void tcp_connect_tick(struct tcp_requester *p);
/* A stream failed to open, or broke before its first answer, for this reason (-errno): sets the time of the next attempt. */
void tcp_connect_failed(struct tcp_channel *ch, int error);

/* request.c */
extern const struct tcp_side tcp_requester_side;
static inline struct tcp_frame *tcp_frame_at(struct tcp_requester *p, uint32_t i)
{
	return &p->q[i % TCP_FRAMES_MAX];
}

/* The frame is answered or will not be sent; the caller takes its slice. */
void tcp_frame_end(struct tcp_requester *p, struct tcp_frame *f);
/* The stream is closed, and its frames' slices are the caller's. */
void tcp_frames_forget(struct tcp_requester *p);
/* The operation seek(). */
bool tcp_seek(struct core *c, void *state, dray_handle peer, struct seek *k);
/* The question of the frame ends, after the stream is in order again: takes it to a list. */
void tcp_frame_take_seek(struct tcp_frame *f, struct dray_list *over);
/* Ends questions that will not be answered. */
void tcp_seeks_end(struct tcp_peer *peer, struct dray_list *over, uint32_t code);
/* Gives slices to streams that have room. True: the budget ended it. */
bool tcp_channel_pull(struct tcp_channel *ch, struct tcp_budget *b);
/* Closes an open stream. Its slices wait for the owner, are sent again, or end. */
void tcp_requester_lose(struct tcp_stream *stream);

/* helpers.c: slices that other workers receive. */
/*
 * Gives slices of large READs to helpers, as many as they should have. Sessions whose READs are enough on the way here as well are set
 * aside (sched_set_aside()).
 */
void tcp_helpers_feed(struct tcp_channel *ch, struct dray_list *aside);
/* Takes slices that helpers have not looked at for some time back. */
void tcp_helpers_tick(struct tcp *t);
/* Ends the slices of x (NULL: all) that helpers have, with this code. */
void tcp_helpers_stop(struct tcp_channel *ch, const struct xfer *x, uint32_t code);
/* Slices that were given to this worker, and those that have come back. */
void tcp_helpers_progress(struct tcp *t);
/* As a helper: returns slices that no stream of the channel has asked for. */
void tcp_helper_return_unsent(struct tcp_channel *ch);

/* trailing.c: bytes that follow the answer to the frame rx. */
void tcp_trailing_init(struct tcp_requester *p);
void tcp_trailing_deinit(struct tcp_requester *p);
/* So many bytes follow, for the transfers that have begun on trailing.ch. */
void tcp_trailing_begin(struct tcp_requester *p, uint64_t bytes);
/* Bytes of the slice that are in place. */
uint64_t tcp_trailing_done(const struct tcp_requester *p);
/* The operation complete() of tcp_side, for a part. */
void tcp_trailing_complete(struct tcp_requester *p);
/* Ends the transfers on trailing.ch that have not got all of their bytes, with this code. */
void tcp_trailing_end(struct tcp_requester *p, uint32_t code);

/* stop.c */
/* The operation stop(). */
void tcp_channel_stop(struct core *c, void *state, struct xfer *x, bool urgent);
/*
 * Both ends of the lost stream are closed: its slices can be sent again. False: the stream is not of this
 * channel.
 */
bool tcp_channel_dead(struct tcp_channel *ch, uint64_t stream_id);
/* Ends every slice and closes every stream. */
void tcp_channel_close(struct tcp_channel *ch, uint32_t code);

/* serve.c */
void tcp_serve_adopt(struct tcp *t, struct tcp_peer *peer, int fd, uint64_t id,
		     enum dmsg_class class);
/* Frees the answers that are not sent yet. */
void tcp_serve_forget(struct tcp_stream *s);
/* Closes an adopted stream. report: to the control thread. */
void tcp_serve_close(struct tcp_stream *s, bool reset, bool report);
/* The operation drop(). */
void tcp_serve_drop(struct core *c, void *state, struct object *o);
