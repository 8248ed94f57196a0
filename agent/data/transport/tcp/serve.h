/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of a stream, shared by serve.c and serve_stage.c. Frames on host memory are carried out
 * as soon as they are parsed (serve.c). Frames on GPU memory take longer (serve_stage.c). While there are
 * any, all answers wait in a queue, because answers keep the order of frames.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_TCP_SERVE_H
#define DRAY_AGENT_DATA_TRANSPORT_TCP_SERVE_H

#include "agent/data/transport/stage/grant.h"
#include "agent/data/transport/tcp/tcp.h"

/* Answers in the queue, at most; a power of two. */
#define SERVE_QUEUE 32u

struct serve;

/* A frame whose answer waits. */
struct serve_frame {
	struct serve *serve;
	uint64_t slice, length; /* length: a READ's payload */
	uint32_t status;
	uint32_t copies;         /* in flight */
	uint8_t kind;            /* of the answer */
	bool taken;              /* WRITE: all payload received. READ: all copies begun */
	struct granted held;     /* while a GPU may access their memory */
	struct dray_list chunks; /* struct stage_buffer, in order: being copied or to be sent */
};

struct serve {
	struct tcp_stream s; /* first */
	struct granted held;
	/* the current frame */
	uint64_t slice;
	uint32_t status;
	struct grant_walk at; /* in segs */
	uint64_t read_left;   /* bytes of a READ answer not yet sent */
	uint32_t answer_at;   /* where its head lies in out */
	bool head_gone;       /* a byte of that head was sent */
	uint8_t grant_waits;  /* turns in which its grant was unknown */
	int64_t grace_ns;     /* not 0: deadline of the answer */
	uint8_t *out;         /* output buffer: bytes [out_rd, out_wr) wait */
	uint32_t out_rd, out_wr;

	/* serve_stage.c */
	uint32_t q_head, q_tail;
	struct serve_frame *rx;      /* the current frame, until `taken` */
	struct stage_buffer *chunk;  /* its payload is received into this */
	uint64_t chunk_at;           /* bytes of it that were received */
	uint64_t chunks_left;        /* bytes of the current frame without a buffer */
	struct serve_frame *sending; /* READ whose payload is sent next */
	uint64_t sending_left;       /* bytes of it not yet sent */
	uint64_t sent_of;            /* bytes sent of its first chunk */
	struct stage_waiter waiter;
	bool stalled;    /* the next frame waits until all answers are sent */
	bool progressed; /* a copy has ended, or a buffer is free */

	struct pmsg_seg segs[PMSG_SEGS_MAX]; /* from here on not cleared for each stream */
	struct serve_frame q[SERVE_QUEUE];
};

static inline bool serve_queue_empty(const struct serve *v)
{
	return v->q_head == v->q_tail;
}

static inline bool serve_queue_full(const struct serve *v)
{
	return v->q_tail - v->q_head == SERVE_QUEUE;
}

/* serve.c */
/* Appends an answer's head to `out`. The caller has made sure that there is room. */
void serve_put_head(struct serve *v, uint64_t slice, uint8_t kind, uint32_t status,
		    uint64_t length);

/* serve_stage.c */
void serve_stage_init(struct serve *v);
/* Queues an answer that needs nothing more. The queue is not full. */
void serve_stage_answer(struct serve *v, uint8_t kind, uint32_t status);
/* Begins the current frame, which is on GPU memory, and holds its objects. The queue is not full. */
void serve_stage_start(struct serve *v, uint8_t kind, uint64_t length,
		       const struct granted *granted);
/* Handles copies and buffers that became ready. False: the stream closed. */
bool serve_stage_step(struct serve *v);
/* Moves answers whose turn has come to `out`. */
void serve_stage_answers(struct serve *v);
/* Payload of a WRITE: the place of the next bytes; n bytes were received; all bytes were received. */
unsigned serve_stage_place(struct serve *v, struct iovec *iov, uint64_t *ret_bytes);
void serve_stage_received(struct serve *v, uint64_t n);
void serve_stage_complete(struct serve *v);
/* Payload of an answer: what can be sent now; n bytes were sent. */
unsigned serve_stage_payload(const struct serve *v, struct iovec *iov, unsigned max);
void serve_stage_sent(struct serve *v, uint64_t n);
/* The stream is closed. No copy for it is in flight when this returns. */
void serve_stage_close(struct serve *v);
void serve_stage_drop(struct serve *v, const struct object *o);

#endif
