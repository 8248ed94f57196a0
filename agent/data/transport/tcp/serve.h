/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of a stream; seen by tcp_serve*.c alone. Frames on host memory are carried out in their turn, while they
 * are in hand (tcp_serve.c). Those on GPU memory are done later (tcp_serve_stage.c): while there are any, all
 * answers wait in a queue, for answers keep the order of frames.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_TCP_SERVE_H
#define DRAY_AGENT_DATA_TRANSPORT_TCP_SERVE_H

#include "agent/data/transport/stage/grant.h"
#include "agent/data/transport/tcp/tcp.h"

/* Answers that may wait; a power of two. */
#define SERVE_QUEUE 32u

struct serve;

/* A frame whose answer waits. */
struct serve_frame {
	struct serve *serve;
	uint64_t slice, length; /* length: of a READ's payload */
	uint32_t status;
	uint32_t copies; /* under way */
	uint8_t kind;    /* of the answer */
	bool taken;      /* WRITE: its payload came in. READ: all of it is being gathered, or was */
	struct object *grant, *region; /* held while a GPU may touch its memory; or NULL */
	struct dray_list chunks; /* struct stage_buffer: being copied, or to be sent, in order */
};

struct serve {
	struct tcp_stream s;        /* first */
	struct dray_list hold_link; /* on tcp->holding while grant and region are held */
	struct object *grant, *region;
	/* the frame in hand */
	uint64_t slice;
	uint32_t status;
	struct grant_walk at; /* in segs */
	uint64_t read_left;   /* bytes of a READ answer not yet sent */
	uint32_t answer_at;   /* where its head lies in out */
	bool head_gone;       /* at least a byte of that head was sent */
	uint8_t grant_waits;  /* turns in which its grant was not known */
	int64_t grace_ns;     /* not 0: by then the answer must be out */
	uint8_t *out;         /* bytes [out_rd, out_wr) wait */
	uint32_t out_rd, out_wr;

	/* tcp_serve_stage.c */
	struct dray_list staging_link; /* on tcp->staging while answers wait */
	uint32_t q_head, q_tail;
	struct serve_frame *rx;      /* the frame in hand, while it is not taken */
	struct stage_buffer *chunk;  /* its payload comes in here */
	uint64_t chunk_at;           /* bytes of it that are there */
	uint64_t chunks_left;        /* bytes of the frame that have no buffer yet */
	struct serve_frame *sending; /* READ whose head is in out, or gone: its payload is next */
	uint64_t sending_left;       /* bytes of it not yet sent */
	uint64_t sent_of;            /* bytes sent of its first chunk */
	struct stage_waiter waiter;
	bool stalled;    /* the next frame waits until all answers are out */
	bool progressed; /* a copy is done, or a buffer free */

	struct pmsg_seg segs[PMSG_SEGS_MAX]; /* not cleared for each, as what follows */
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

/* tcp_serve.c */
/* An answer's head behind what is in out; the caller has seen to it that there is room. */
void serve_put_head(struct serve *v, uint64_t slice, uint8_t kind, uint32_t status,
		    uint64_t length);

/* tcp_serve_stage.c */
void serve_stage_init(struct serve *v);
/* An answer without more to do takes its place behind those that wait. The queue is not full. */
void serve_stage_answer(struct serve *v, uint8_t kind, uint32_t status);
/* The frame in hand is on GPU memory; the objects are held for it. The queue is not full. */
void serve_stage_start(struct serve *v, uint8_t kind, uint64_t length, struct object *grant,
		       struct object *region);
/* What came up since the stream's last turn. False if the stream closed. */
bool serve_stage_step(struct serve *v);
/* Moves answers whose turn it is to out. */
void serve_stage_answers(struct serve *v);
/* Payload of a WRITE: where it goes now, so much came, all of it came. */
unsigned serve_stage_place(struct serve *v, struct iovec *iov, uint64_t *ret_bytes);
void serve_stage_received(struct serve *v, uint64_t n);
void serve_stage_complete(struct serve *v);
/* Payload of an answer that can be sent now; so much was. */
unsigned serve_stage_payload(const struct serve *v, struct iovec *iov, unsigned max);
void serve_stage_sent(struct serve *v, uint64_t n);
/* The stream is closed: nothing of its frames moves any more when this returns. */
void serve_stage_close(struct serve *v);
void serve_stage_drop(struct tcp *t, struct object *o);

#endif
