/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames on GPU memory, on the owning side. A frame's payload is cut into chunks, each with a staging
 * buffer: a WRITE's chunk is received and then scattered, a READ's chunk is gathered and then sent. Most
 * frames are one chunk. While the GPU copies, further frames are received; their answers wait in a queue.
 *
 * A frame holds its grant and region until its last copy has ended, but not while its bytes wait in buffers
 * to be sent. A frame that gets no buffer blocks the frames behind it.
 */
#include <string.h>

#include "agent/data/transport/tcp/serve.h"
#include "lib/assert.h"

static struct serve_frame *frame_at(struct serve *v, uint32_t i)
{
	return &v->q[i % SERVE_QUEUE];
}

static void requeue(struct serve *v)
{
	struct tcp_stream *s = &v->s;

	v->progressed = true;
	if (s->state == TCP_OPEN && !s->parked && dray_list_empty(&s->ready_link))
		dray_list_add(&s->tcp->ready[s->class], &s->ready_link);
}

static void buffer_ready(struct core *c, struct stage_waiter *w)
{
	requeue(dray_container_of(w, struct serve, waiter));
}

void serve_stage_init(struct serve *v)
{
	dray_list_init(&v->waiter.link);
	v->waiter.ready = buffer_ready;
}

static struct serve_frame *push(struct serve *v, uint8_t kind, uint32_t status, uint64_t length)
{
	struct serve_frame *f = frame_at(v, v->q_tail);

	dray_assert(!serve_queue_full(v));
	v->q_tail++;
	*f = (struct serve_frame){
		.serve = v,
		.slice = v->slice,
		.length = length,
		.status = status,
		.kind = kind,
	};
	dray_list_init(&f->chunks);
	return f;
}

/* Releases the frame's objects if no copy is in flight or still to come. */
static void frame_release(struct serve_frame *f)
{
	if (!f->copies && (f->taken || f->status))
		granted_release(f->serve->s.tcp->c, &f->held);
}

static void chunks_release(struct serve_frame *f)
{
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link)
		stage_put(f->serve->s.tcp->c, b);
}

static void chunk_release(struct serve *v)
{
	if (v->chunk)
		stage_put(v->s.tcp->c, v->chunk);
	v->chunk = NULL;
	v->chunks_left = 0;
	dray_list_del(&v->waiter.link);
}

/* No further copy of the frame begins. */
static void fail(struct serve_frame *f, uint32_t status)
{
	struct serve *v = f->serve;

	if (!f->status)
		f->status = status;
	if (v->rx != f)
		return;
	chunk_release(v);
	if (f->kind == PMSG_FRAME_KIND_WRITE_ACK) {
		/* The rest of the payload is discarded; serve_stage_complete() ends the frame. */
		v->s.sink = true;
	} else {
		f->taken = true;
		v->rx = NULL;
	}
}

static void copy_done(struct core *c, struct stage_buffer *b)
{
	struct serve_frame *f = b->holder;

	f->copies--;
	if (b->code)
		fail(f, b->code == DRAY_E_CANCELLED ? DRAY_E_REVOKED : b->code);
	if (f->kind == PMSG_FRAME_KIND_WRITE_ACK)
		stage_put(c, b);
	frame_release(f);
	requeue(f->serve);
}

static void copy(struct serve_frame *f, struct stage_buffer *b)
{
	const struct region_view *r = object_region(f->held.region);

	f->copies++;
	dray_list_add(&f->chunks, &b->link);
	stage_copy(f->serve->s.tcp->c, b, r->gpu, f->kind == PMSG_FRAME_KIND_WRITE_ACK, copy_done);
}

/* The next bytes of the current frame, as many as fit in one buffer. NULL: no buffer is free. */
static struct stage_buffer *next_chunk(struct serve *v)
{
	struct serve_frame *f = v->rx;
	struct core *c = v->s.tcp->c;
	struct stage_buffer *b =
		stage_get(c, STAGE_PEER, v->s.class, &v->s.peer->staged[STAGE_PEER]);
	uint64_t bytes, max = stage_unit(c);

	if (!b) {
		stage_wait(c, &v->waiter, STAGE_PEER, v->s.class);
		return NULL;
	}
	b->holder = f;
	b->n_ranges = grant_walk_ranges(&v->at, &f->held, b->ranges, STAGE_RANGES_MAX, &bytes);
	while (bytes > max) {
		struct iovec *last = &b->ranges[b->n_ranges - 1];
		uint64_t cut = dray_min((uint64_t)last->iov_len, bytes - max);

		last->iov_len -= cut;
		bytes -= cut;
		b->n_ranges -= !last->iov_len;
	}
	b->bytes = bytes;
	grant_walk_advance(&v->at, bytes);
	v->chunks_left -= bytes;
	return b;
}

/* Continues the current frame as far as there are buffers. */
static void get_chunks(struct serve *v)
{
	struct serve_frame *f = v->rx;
	struct stage_buffer *b;

	if (f->kind == PMSG_FRAME_KIND_WRITE_ACK) {
		if (!v->chunk && v->chunks_left)
			v->chunk = next_chunk(v);
		return;
	}
	while (v->chunks_left) {
		b = next_chunk(v);
		if (!b)
			return;
		copy(f, b);
	}
	f->taken = true;
	v->rx = NULL;
}

void serve_stage_start(struct serve *v, uint8_t kind, uint64_t length,
		       const struct granted *granted)
{
	struct serve_frame *f = push(v, kind, 0, length);

	f->held = *granted;
	granted_hold(granted);
	v->rx = f;
	v->chunks_left = length;
	v->chunk_at = 0;
	get_chunks(v);
}

unsigned serve_stage_place(struct serve *v, struct iovec *iov, uint64_t *ret_bytes)
{
	*ret_bytes = 0;
	if (!v->chunk)
		return 0;
	*iov = (struct iovec){ v->chunk->base + v->chunk_at, v->chunk->bytes - v->chunk_at };
	*ret_bytes = iov->iov_len;
	return 1;
}

void serve_stage_received(struct serve *v, uint64_t n)
{
	struct stage_buffer *b = v->chunk;

	v->chunk_at += n;
	if (v->chunk_at < b->bytes)
		return;
	v->chunk = NULL;
	v->chunk_at = 0;
	copy(v->rx, b);
	get_chunks(v);
}

void serve_stage_complete(struct serve *v)
{
	struct serve_frame *f = v->rx;

	v->rx = NULL;
	f->taken = true;
	frame_release(f);
	serve_stage_answers(v);
}

void serve_stage_answer(struct serve *v, uint8_t kind, uint32_t status)
{
	push(v, kind, status, 0)->taken = true;
}

/* Moves the first answer to `out` if it is ready. */
static bool answer_first(struct serve *v)
{
	struct serve_frame *f = frame_at(v, v->q_head);
	const struct stage_buffer *b = dray_list_first(&f->chunks, struct stage_buffer, link);

	if (f->kind == PMSG_FRAME_KIND_READ_DATA && !f->status && b) {
		if (b->busy)
			return false;
		serve_put_head(v, f->slice, f->kind, 0, f->length);
		v->sending = f;
		v->sending_left = f->length;
		v->sent_of = 0;
		return true;
	}
	if (!f->taken || f->copies)
		return false;
	chunks_release(f);
	serve_put_head(v, f->slice, f->kind, f->status, 0);
	v->q_head++;
	return true;
}

void serve_stage_answers(struct serve *v)
{
	while (!serve_queue_empty(v) && !v->sending && TCP_BUFFER - v->out_wr >= PMSG_FRAME_SIZE)
		if (!answer_first(v))
			break;
	if (serve_queue_empty(v) && v->stalled) {
		v->stalled = false;
		v->s.incomplete = false;
	}
}

bool serve_stage_step(struct serve *v)
{
	v->progressed = false;
	if (v->rx)
		get_chunks(v);
	if (v->sending && v->sending->status) {
		/* The head that was sent announced payload that will not come. */
		tcp_serve_close(&v->s, true, true);
		return false;
	}
	serve_stage_answers(v);
	return true;
}

unsigned serve_stage_payload(const struct serve *v, struct iovec *iov, unsigned max)
{
	uint64_t skip = v->sent_of;
	unsigned n = 0;

	if (!v->sending)
		return 0;
	dray_list_for_each(&v->sending->chunks, b, struct stage_buffer, link) {
		if (n == max || b->busy || b->code)
			break;
		iov[n++] = (struct iovec){ b->base + skip, b->bytes - skip };
		skip = 0;
	}
	return n;
}

void serve_stage_sent(struct serve *v, uint64_t n)
{
	struct serve_frame *f = v->sending;

	v->sending_left -= n;
	v->sent_of += n;
	for (;;) {
		struct stage_buffer *b = dray_list_first(&f->chunks, struct stage_buffer, link);

		if (!b || v->sent_of < b->bytes || b->busy)
			break;
		v->sent_of -= b->bytes;
		stage_put(v->s.tcp->c, b);
	}
	if (v->sending_left)
		return;
	v->sending = NULL;
	v->q_head++;
}

static void chunks_finish(struct serve_frame *f)
{
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link)
		stage_finish(f->serve->s.tcp->c, b);
}

void serve_stage_close(struct serve *v)
{
	chunk_release(v);
	v->rx = v->sending = NULL;
	for (; !serve_queue_empty(v); v->q_head++) {
		struct serve_frame *f = frame_at(v, v->q_head);

		f->taken = true;
		chunks_finish(f);
		chunks_release(f);
		frame_release(f);
	}
}

void serve_stage_drop(struct serve *v, const struct object *o)
{
	for (uint32_t i = v->q_head; i != v->q_tail; i++) {
		struct serve_frame *f = frame_at(v, i);

		if (!granted_has(&f->held, o))
			continue;
		/* Copies in flight may end, but the frame waits for no further buffers. */
		if (v->rx == f)
			fail(f, grant_drop_code(o));
		if (o->drop_mode == DROP_URGENT)
			chunks_finish(f);
		frame_release(f);
		requeue(v);
	}
}
