/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of a stream: serve.c takes frames and ends them, serve_send.c sends answers.
 *
 * Answers leave in the order of their frames. Accesses to memory have no order among frames: a WRITE may land before the payload of an
 * earlier READ is read from memory.
 */
#pragma once

#include "agent/data/transport/stage/grant.h"
#include "agent/data/transport/tcp/tcp.h"

/* Frames in the queue, at most; a power of two. */
#define SERVE_QUEUE 32u
/* READ answers up to this size are copied; above, to send from its place costs less than the copy. */
#define SERVE_SMALL_READ 16384
/* Those up to this size are sent several at once. Larger ones take no fewer system calls so, and a tenth more processor time. */
#define SERVE_JOINED_READ (256 << 10)

struct serve;

/* A frame, from its head to its answer. */
struct serve_frame {
	struct serve *serve;
	uint64_t slice, length; /* length: a READ's payload */
	uint32_t status;
	uint32_t copies; /* in flight */
	uint8_t kind;    /* of the answer */
	bool host;       /* on host memory: it has no chunks */
	bool taken;      /* no further payload will be received, or read from its memory */
	uint8_t *base; /* the payload of a larger READ that is one range of host memory; else NULL */
	struct granted held;       /* while their memory may be accessed */
	struct dray_list chunks;   /* struct stage_buffer, in order: being copied or to be sent */
	uint8_t *found;            /* payload of a frame found, of `length` bytes; else NULL */
	struct trailing *trailing; /* bytes that follow it; NULL: none */
	int64_t trailing_ns;       /* the stream is closed unless they have been sent by then */
};

struct serve {
	struct tcp_stream s; /* first */
	uint8_t grant_waits; /* turns in which the next frame's grant was unknown */
	int64_t grace_ns;    /* not 0: deadline of the answer that is being sent */
	uint8_t *out;        /* output buffer: bytes [out_rd, out_wr) wait */
	uint32_t out_rd, out_wr;
	uint32_t q_head, q_tail;
	struct dray_list serving_link; /* in tcp->serving; may be there for a while without a frame */
	struct serve_frame *rx;        /* the current frame, until `taken` */
	struct grant_walk at;          /* its next bytes, in segs */
	struct stage_buffer *chunk;    /* its payload is received into this */
	uint64_t chunk_at;             /* bytes of it that were received */
	uint64_t chunks_left;          /* bytes of the current frame without a buffer */
	/*
	 * READs or a FIND at the front of the queue, whose answers' heads are the last ones in `out` or were sent. If there are
	 * several, all have a `base`.
	 */
	uint32_t n_sending;
	uint64_t sending_left; /* bytes of the first one's payload not yet sent */
	uint64_t sent_of;      /* bytes sent of its first chunk */
	struct stage_waiter waiter;
	bool progressed; /* a copy has ended, a buffer is free, or a frame has failed */
	uint64_t find;   /* number of the last frame find */
	uint32_t founds; /* frames found in the queue that have a payload, or get it */
	/* the last frame in the queue, whose answer is not complete; NULL: there is none. Nothing else is taken in meanwhile */
	struct serve_frame *finding;
	size_t n_found; /* bytes of its payload, before it is sealed */

	struct pmsg_seg segs[PMSG_SEGS_MAX]; /* from here on not cleared for each stream */
	struct serve_frame q[SERVE_QUEUE];
};

static inline struct core *serve_core(const struct serve *v)
{
	return v->s.tcp->c;
}

static inline struct serve_frame *serve_frame_at(struct serve *v, uint32_t i)
{
	return &v->q[i % SERVE_QUEUE];
}

/* Releases the frame's objects if no access is in flight or still to come. */
static inline void serve_frame_release(struct serve_frame *f)
{
	if (!f->copies && (f->taken || f->status))
		granted_release(serve_core(f->serve), &f->held);
}

static inline void serve_chunks_release(struct serve_frame *f)
{
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link)
		stage_put(serve_core(f->serve), b);
}

/* The first frame whose answer has payload that is being sent. NULL: there is none. */
static inline struct serve_frame *serve_sending(struct serve *v)
{
	return v->n_sending ? serve_frame_at(v, v->q_head) : NULL;
}

/* A byte of its head was sent. */
static inline bool serve_head_gone(const struct serve *v)
{
	return v->out_wr - v->out_rd < v->n_sending * PMSG_FRAME_SIZE;
}

static inline uint64_t serve_trailing_bytes(const struct serve_frame *f)
{
	return f->trailing ? f->trailing->bytes : 0;
}

/* serve.c */
/* Frees the answer to a FIND, and gives back the objects that follow it, when they have been sent or will not be. */
void serve_found_free(struct serve_frame *f);
/* The frame's memory, which is host memory, faulted. */
void serve_frame_fault(struct serve_frame *f);

/* serve_send.c */
/* Moves answers whose turn has come to `out`. */
void serve_answer(struct serve *v);
bool serve_out_pending(struct serve *v);
/* Sends within the budget. False: the stream closed. */
bool serve_flush(struct serve *v, struct tcp_budget *b);
