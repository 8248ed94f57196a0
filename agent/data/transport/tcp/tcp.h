/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of transport `tcp`; seen by tcp*.c alone. One struct tcp for each worker.
 *
 * A stream carries requests one way and answers the other. Who connected it posts (tcp_post.c): frames
 * WRITE and READ go out, made from slices. Who accepted it serves (tcp_serve.c): frames are checked
 * against grants and answered in their order. Both sides share how bytes come in (tcp_stream.c): payload
 * goes from the socket straight to where it belongs, together with the head of the next frame in the same
 * system call; frames too small for that to pay arrive many at once in a staging buffer.
 *
 * Callbacks of the loop only note that a socket is ready and queue its stream; the work is done in
 * progress(), after the worker has looked at its commands: a grant that the control thread has
 * published before a peer can name it is known by then.
 *
 * Bytes of GPU memory pass through staging buffers (stage.h) on both sides: stage_post.c gathers slices ahead of
 * the streams and scatters what was read, tcp_serve_stage.c does so with frames. The end of a copy only
 * queues its channel or stream, too.
 *
 * Nothing is freed in the middle of a turn: closed streams wait on the closed for the next one.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_TCP_TCP_H
#define DRAY_AGENT_DATA_TRANSPORT_TCP_TCP_H

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/model/peer_link.h"
#include "agent/data/transport/stage/channel.h"
#include "agent/data/transfer/transport.h"
#include "lib/cleanup.h"

/* Staging buffer of a stream, borrowed from the worker's pool only while bytes are in it. */
#define TCP_BUFFER 65536u
/* The longest frame head: header and segments. */
#define TCP_HEAD_MAX (PMSG_FRAME_SIZE + PMSG_SEGS_MAX * PMSG_SEG_SIZE)
/* IOV_MAX: what one system call takes. */
#define TCP_IOV 1024
/* tcp.slices_in_flight is at most this; a power of two. */
#define TCP_WINDOW_MAX 64u
/* One turn's work, bytes, and what a system call counts for in it. */
#define TCP_TURN_BYTES (1 << 20)
/* The same of bulk while there are latency transfers, and for how long after the last of them. */
#define TCP_TURN_BYTES_SHORT (256 << 10)
#define TCP_TURN_SHORT_NS DRAY_NS_PER_SEC
/* A turn that is nearly over makes no smaller calls than this. */
#define TCP_CALL_MIN (64 << 10)
#define TCP_CALL_COST 4096

extern const struct transport_ops transport_tcp;

struct tcp;
struct tcp_peer;
struct tcp_stream;

/* What is left of this turn. */
struct tcp_budget {
	int64_t left;
};

/* How a side handles what tcp_stream_receive() brings in. */
struct tcp_side {
	/*
	 * A frame may start at p. Returns its bytes up to the payload, with s->payload_left (and s->sink) set; 0
	 * where more bytes or a later turn are needed; -EPROTO ends the stream.
	 */
	int (*head)(struct tcp_stream *s, const uint8_t *p, size_t n);
	/* No further frame can be taken in now; or, where payload_left, its payload has no place now and s->sink is not set. */
	bool (*blocked)(const struct tcp_stream *s);
	/* Where the next payload bytes belong; at most payload_left. Returns the number of iovecs. */
	unsigned (*gather)(struct tcp_stream *s, struct iovec *iov, unsigned max,
			   uint64_t *ret_bytes);
	/* n more bytes of the payload are in place. */
	void (*advance)(struct tcp_stream *s, uint64_t n);
	/* The payload's place faulted: sets s->sink. */
	void (*fault)(struct tcp_stream *s);
	/* The last byte of payload is in place, or thrown away. */
	void (*complete)(struct tcp_stream *s);
	/* The connection ended or broke; closes the stream. */
	void (*broken)(struct tcp_stream *s);
	/* The socket is ready, or the turn before stopped short. */
	void (*step)(struct tcp_stream *s, struct tcp_budget *b);
	/* True if step() has something to do without a further event. */
	bool (*wants)(const struct tcp_stream *s);
	void (*tick)(struct tcp_stream *s);
};

enum tcp_stream_state {
	TCP_CONNECTING, /* until the socket is connected */
	TCP_GREETING,   /* hello sent, welcome awaited */
	TCP_OPEN,
	TCP_CLOSED, /* no descriptor any more */
	TCP_STREAM_STATE_N
};

struct tcp_stream {
	struct loop_source source;
	struct tcp *tcp;
	struct tcp_peer *peer;
	const struct tcp_side *side;
	struct dray_list link;       /* on tcp->streams, or on tcp->closed */
	struct dray_list ready_link; /* on tcp->ready[class] or tcp->parked */
	struct dray_list peer_link;  /* on channel->streams, channel->lost, or peer->adopted */
	uint64_t id;
	int fd;
	enum dmsg_class class;
	enum tcp_stream_state state;
	unsigned buffers; /* its share of the pool */
	bool readable, writable, hup;
	bool sink;       /* the payload is thrown away */
	bool bulky;      /* the frame before had much payload: leave the next one's in the socket */
	bool incomplete; /* what is staged is not a whole head */
	bool parked;     /* on tcp->parked: looked at again in the next turn */
	uint8_t *in;     /* staging: bytes [in_rd, in_wr) wait */
	uint32_t in_rd, in_wr;
	uint64_t payload_left;
	int64_t moved_ns; /* when a byte went either way, or the stream got busy */
};

/* A frame of ours, from the time it is queued until it is answered. */
enum tcp_frame_state { TCP_FRAME_PENDING, TCP_FRAME_ENDED };

struct tcp_frame {
	struct slice *slice; /* NULL: nobody waits for it any more */
	uint64_t id;
	uint64_t bytes; /* payload, whichever way it goes */
	uint32_t head_at;
	uint16_t head_bytes;
	uint8_t kind;
	uint8_t state;
};

struct tcp_channel {
	struct channel ch; /* first */
	struct tcp_peer *peer;
	struct stage_channel staging; /* transfers whose local region is GPU memory */
	bool staged_next;             /* streams are offered slices of both kinds by turns */
	struct dray_list pull_link;   /* on tcp->pulling[class] while a stream may take slices */
	struct dray_list streams;     /* tcp_post: connecting and open */
	struct dray_list lost;        /* tcp_post: broken, the other end not known to be dead */
	struct dray_list retry;       /* slices to go out before new ones */
	uint32_t n_streams, n_open;
	uint32_t fails; /* attempts in a row without an answered frame */
	int64_t failing_since_ns;
	int64_t connect_ns; /* not before */
};

/* Room for the heads of a batch; one more may be added while a longest one fits. */
#define TCP_HEADS (2 * TCP_HEAD_MAX)

/*
 * A stream that we connected. q is a ring: [head, sent) waits for answers, [sent, tail) is being sent, the
 * first of them as far as sent_of bytes.
 */
struct tcp_requester {
	struct tcp_stream s; /* first */
	struct tcp_channel *ch;
	uint32_t head, sent, tail;
	struct tcp_frame q[TCP_WINDOW_MAX];
	uint64_t sent_of;
	uint64_t in_flight;   /* payload bytes in q */
	bool useful;          /* a frame was answered */
	struct tcp_frame *rx; /* whose READ_DATA comes in */
	uint32_t rx_iov;
	uint64_t rx_offset;
	struct dray_list waiting; /* closed: WRITE slices that the owner may still be receiving */
	int64_t connect_by_ns;
	uint8_t hello_mac[32];
	uint32_t heads_used;
	uint8_t heads[TCP_HEADS];
};

struct tcp_peer {
	struct tcp *tcp;
	struct peer_link *link;
	struct dray_list peers_link;
	struct tcp_channel channels[2]; /* by class */
	struct dray_list adopted;       /* tcp_serve */
	struct stage_account staged[STAGE_USE_N];
	bool down;
};

struct tcp {
	struct core *c;
	struct tcp_peer **peers; /* by index of the handle */
	uint32_t n_peers;
	struct dray_list peer_list;
	struct dray_list streams;
	struct dray_list ready[2], pulling[2]; /* by class */
	struct dray_list parked;               /* streams that wait for the next turn */
	struct dray_list holding;              /* tcp_serve with a frame that holds objects */
	struct dray_list staging;              /* tcp_serve with answers that wait for GPUs */
	struct dray_list closed;
	int64_t latency_ns; /* bulk takes short turns until then */
	int64_t timer_ns;   /* when tick() has something to do */
	uint64_t next_stream;
	uint8_t **pool; /* free buffers; the last was used last */
	uint32_t pool_n, pool_cap, pool_size, pool_low;
	bool set_send_buffer, set_receive_buffer;
	struct iovec iov[TCP_IOV];
	uint8_t sink[TCP_BUFFER];
};

/* tcp.c */
static inline void tcp_timer(struct tcp *t, int64_t when_ns)
{
	t->timer_ns = dray_min(t->timer_ns, when_ns);
}

static inline struct tcp *tcp_of(const struct tcp_channel *ch)
{
	return ch->peer->tcp;
}

struct tcp_peer *tcp_peer_get(const struct tcp *t, dray_handle peer);

static inline bool tcp_channel_has_work(const struct tcp_channel *ch)
{
	return !dray_list_empty(&ch->retry) || channel_pending(&ch->ch) ||
	       stage_channel_has_work(&ch->staging);
}

/* The transfer's slices go out here. */
static inline bool tcp_channel_has(const struct tcp_channel *ch, const struct xfer *x)
{
	return x->channel == &ch->ch || x->channel == &ch->staging.ch;
}

/* Streams of this channel may take slices: they will be offered some. */
static inline void tcp_channel_pull_later(struct tcp *t, struct tcp_channel *ch)
{
	if (dray_list_empty(&ch->pull_link))
		dray_list_add(&t->pulling[ch->ch.class], &ch->pull_link);
}

/* tcp_stream.c */
void tcp_stream_init(struct tcp_stream *s, struct tcp *t, struct tcp_peer *peer,
		     const struct tcp_side *side);
/* Options of a fresh socket. Buffers must be set before it connects. */
void tcp_socket_setup(const struct tcp *t, int fd);
/* Registers the fd, which stays the caller's on failure. 0 or -errno. */
int tcp_stream_watch(struct tcp_stream *s, int fd);
/* From now on the stream counts as open. */
void tcp_stream_opened(struct tcp_stream *s);
/* Closes the descriptor; reset: at once, with what was not sent yet thrown away. Staged bytes are gone. */
void tcp_stream_close(struct tcp_stream *s, bool reset);
/* The closed stream is freed before the next turn. */
void tcp_stream_free_later(struct tcp_stream *s);
void tcp_free_closed(struct tcp *t);
/* Queues the stream if it has something to do. */
void tcp_stream_requeue(struct tcp_stream *s);
/* Takes in what has come, within the budget. False if the stream closed. */
bool tcp_stream_receive(struct tcp_stream *s, struct tcp_budget *b);
void tcp_count_sent(struct tcp_stream *s, uint64_t payload);
/* sendmsg until it is not interrupted; EAGAIN clears s->writable. Bytes, or -errno. */
ssize_t tcp_stream_send(struct tcp_stream *s, struct iovec *iov, unsigned n, struct tcp_budget *b);

/* tcp_pool.c: staging buffers. reserve makes room for so many more borrowers; get never fails within that. */
int tcp_pool_reserve(struct tcp *t, unsigned n);
void tcp_pool_unreserve(struct tcp *t, unsigned n);
uint8_t *tcp_pool_get(struct tcp *t);
void tcp_pool_put(struct tcp *t, uint8_t *buffer);
/* Gives the memory of buffers that were used in a burst back to the kernel. */
void tcp_pool_trim(struct tcp *t);

/* tcp_connect.c */
/* Opens what streams the channel lacks and may have now. */
void tcp_connect(struct tcp_channel *ch);
/* The socket of a stream that is not open yet is ready. */
void tcp_connect_step(struct tcp_requester *p);
void tcp_connect_tick(struct tcp_requester *p);
/* A stream failed to open, or broke before it was of any use: next attempt later. */
void tcp_connect_failed(struct tcp_channel *ch);

/* tcp_post.c */
extern const struct tcp_side tcp_requester_side;
static inline struct tcp_frame *tcp_frame_at(struct tcp_requester *p, uint32_t i)
{
	return &p->q[i % TCP_WINDOW_MAX];
}

/* The frame is answered, or will not be sent; its slice is the caller's. */
void tcp_frame_end(struct tcp_requester *p, struct tcp_frame *f);
/* Gives slices to streams that can take some. True if the budget ended it. */
bool tcp_channel_pull(struct tcp_channel *ch, struct tcp_budget *b);
/* Closes an open stream; its slices wait, go out again, or end. */
void tcp_requester_lose(struct tcp_requester *p);

/* tcp_stop.c */
void tcp_channel_stop(struct tcp_channel *ch, struct xfer *x, bool urgent);
/* Both ends of the lost stream are dead. False if it is not of this channel. */
bool tcp_channel_dead(struct tcp_channel *ch, uint64_t stream_id);
/* Ends every slice and closes every stream. */
void tcp_channel_close(struct tcp_channel *ch, uint32_t code);

/* tcp_serve.c */
void tcp_serve_adopt(struct tcp *t, struct tcp_peer *peer, int fd, uint64_t id,
		     enum dmsg_class class);
/* Closes an adopted stream; tell: the control thread hears of it. */
void tcp_serve_close(struct tcp_stream *s, bool reset, bool tell);
void tcp_serve_drop(struct tcp *t, struct object *o);

#endif
