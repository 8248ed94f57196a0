/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side: checks a peer's frames against its grants and answers them in order.
 *
 * Every frame enters a queue, and answers leave the front of the queue. At most one frame, `rx`, still
 * receives its payload or walks its ranges; the frames behind it wait. READs of 16 to 256 KiB from one range of
 * host memory are not walked, so that several are answered in one system call. Payload in host memory is received and sent in
 * place. Payload in GPU memory is cut into chunks, each with a staging buffer: a WRITE's chunk
 * is received and then scattered, a READ's chunk is gathered and then sent. Most frames are one chunk.
 * While the GPU copies, further frames are received. A frame that gets no buffer blocks the frames behind it.
 *
 * A frame holds its grant and region until its last access to their memory. When one of them is dropped
 * meanwhile, the remaining payload of a WRITE is discarded, and a READ answer that is sent from host memory
 * has a short time to finish. A FIND is answered from a copy at once, or from objects that the store holds
 * until they are sent; what such an answer needs of a large object is computed in turns. If an error cannot be
 * reported in a head because the head was sent, the stream is closed.
 */
#include "agent/data/transport/tcp/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* Time for a READ answer to finish when its region is dropped. */
#define GRACE_NS (50 * DRAY_NS_PER_MS)
/* Answers with objects that a stream may have in memory, so that a peer that does not read them takes little of it. */
#define FOUNDS_MAX 4
/* Time for a peer to take objects that the store holds for it. */
#define TRAILING_NS (10 * DRAY_NS_PER_SEC)
/* The most that a frame adds to the output buffer. */
#define OUT_ROOM (PMSG_FRAME_SIZE + SERVE_SMALL_READ)

static struct serve *serve_of(const struct tcp_stream *s)
{
	return dray_container_of((struct tcp_stream *)(uintptr_t)s, struct serve, s);
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

static void chunks_stop(struct serve_frame *f, bool urgent)
{
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link)
		stage_stop(serve_core(f->serve), b, urgent);
}

static void chunk_release(struct serve *v)
{
	if (v->chunk)
		stage_put(serve_core(v), v->chunk);
	v->chunk = NULL;
	v->chunks_left = 0;
	dray_list_del(&v->waiter.link);
}

/* No further access to the frame's memory begins. One whose payload is being sent still needs the stream to be closed. */
static void fail(struct serve_frame *f, uint32_t status)
{
	struct serve *v = f->serve;

	if (!f->status)
		f->status = status;
	for (uint32_t i = 0; i < v->n_sending; i++)
		if (serve_frame_at(v, v->q_head + i) == f && (i || !serve_head_gone(v))) {
			/* Another head will report the error, and those behind it follow. */
			v->out_wr -= (v->n_sending - i) * PMSG_FRAME_SIZE;
			v->n_sending = i;
		}
	f->taken |= f->base != NULL;
	if (v->rx != f)
		return;
	chunk_release(v);
	if (f->kind == PMSG_FRAME_KIND_WRITE_ACK) {
		/* The rest of the payload is discarded; serve_complete() ends the frame. */
		v->s.sink = true;
	} else {
		f->taken = true;
		v->rx = NULL;
	}
}

void serve_frame_fault(struct serve_frame *f)
{
	xfer_memory_fault(serve_core(f->serve), f->held.region->view->session);
	fail(f, DRAY_E_REGION_FAULT);
	serve_frame_release(f);
}

static void copy_done(struct core *c, struct stage_buffer *b)
{
	struct serve_frame *f = b->holder;

	f->copies--;
	if (b->code)
		fail(f, b->code == DRAY_E_CANCELLED ? DRAY_E_REVOKED : b->code);
	if (f->kind == PMSG_FRAME_KIND_WRITE_ACK)
		stage_put(c, b);
	serve_frame_release(f);
	requeue(f->serve);
}

static void copy(struct serve_frame *f, struct stage_buffer *b)
{
	const struct region_view *r = object_region(f->held.region);

	f->copies++;
	dray_list_add(&f->chunks, &b->link);
	stage_copy(serve_core(f->serve), b, r->gpu, f->kind == PMSG_FRAME_KIND_WRITE_ACK,
		   copy_done);
}

/* The next bytes of the current frame, as many as fit in one buffer. NULL: no buffer is free. */
static struct stage_buffer *next_chunk(struct serve *v)
{
	struct serve_frame *f = v->rx;
	struct core *c = serve_core(v);
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

	if (f->host)
		return;
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

static unsigned serve_gather(struct tcp_stream *s, struct iovec *iov, unsigned max,
			     uint64_t *ret_bytes)
{
	struct serve *v = serve_of(s);

	if (v->rx->host)
		return grant_walk_ranges(&v->at, &v->rx->held, iov, max, ret_bytes);
	*ret_bytes = 0;
	if (!v->chunk)
		return 0;
	*iov = (struct iovec){ v->chunk->base + v->chunk_at, v->chunk->bytes - v->chunk_at };
	*ret_bytes = iov->iov_len;
	return 1;
}

static void serve_advance(struct tcp_stream *s, uint64_t n)
{
	struct serve *v = serve_of(s);
	struct stage_buffer *b = v->chunk;

	if (v->rx->host) {
		grant_walk_advance(&v->at, n);
		return;
	}
	v->chunk_at += n;
	if (v->chunk_at < b->bytes)
		return;
	v->chunk = NULL;
	v->chunk_at = 0;
	copy(v->rx, b);
	get_chunks(v);
}

/* Decodes segments and checks the form of a frame. */
static int decode(struct serve *v, const uint8_t *bytes, const struct pmsg_frame *wire)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < wire->segs; i++) {
		struct pmsg_seg *seg = &v->segs[i];

		pmsg_seg_get(bytes + PMSG_FRAME_SIZE + i * PMSG_SEG_SIZE, seg);
		if (!seg->length || seg->length > wire->length)
			return -EPROTO;
		sum += seg->length; /* no overflow: each is at most PMSG_FRAME_BYTES_MAX */
	}
	grant_walk_init(&v->at, v->segs, wire->segs);
	return sum == wire->length ? 0 : -EPROTO;
}

/* The bytes of the frame that has just been decoded, if they lie in one range; else NULL. */
static uint8_t *only_range(struct serve *v, const struct serve_frame *f)
{
	struct iovec range;
	uint64_t bytes;

	grant_walk_ranges(&v->at, &f->held, &range, 1, &bytes);
	return bytes == f->length ? range.iov_base : NULL;
}

/* Begins the frame. granted: its objects, if status is 0. */
static void take_frame(struct serve *v, const struct pmsg_frame *wire, uint32_t status,
		       const struct granted *granted)
{
	bool write = wire->kind == PMSG_FRAME_KIND_WRITE;
	struct serve_frame *f = serve_frame_at(v, v->q_tail++);

	if (dray_list_empty(&v->serving_link))
		dray_list_add(&v->s.tcp->serving, &v->serving_link);
	*f = (struct serve_frame){
		.serve = v,
		.slice = wire->slice,
		.length = write ? 0 : wire->length,
		.status = status,
		.kind = write ? PMSG_FRAME_KIND_WRITE_ACK : PMSG_FRAME_KIND_READ_DATA,
		.taken = status && !write,
	};
	dray_list_init(&f->chunks);
	if (write) {
		v->s.payload_left = wire->length;
		v->s.sink = status != 0;
	}
	if (!status) {
		f->held = *granted;
		granted_hold(granted);
		f->host = object_region(granted->region)->memory == REGION_HOST;
	}
	if (f->host && !write && f->length > SERVE_SMALL_READ && f->length <= SERVE_JOINED_READ)
		f->base = only_range(v, f);
	if (!f->taken && !f->base)
		v->rx = f;
	if (v->rx && !status) {
		v->chunks_left = f->host ? 0 : wire->length;
		v->chunk_at = 0;
		get_chunks(v);
	}
	serve_answer(v);
}

void serve_found_free(struct serve_frame *f)
{
	if (f->trailing)
		f->trailing->end(f->trailing);
	f->trailing = NULL;
	free(dray_take(f->found));
}

/* What the frame has found is complete, and is its payload. */
static void find_seal(struct serve_frame *f, size_t n)
{
	seal_close(f->serve->s.seals[SEAL_FOUND], f->slice, f->found, n, f->found);
	f->taken = true;
	f->length = n + SEAL_BYTES;
}

/* Goes on with the answer that is not complete. */
static void find_go_on(struct serve *v, struct tcp_budget *b)
{
	struct serve_frame *f = v->finding;
	uint64_t turn = b->left > 0 ? (uint64_t)b->left : 0;
	bool complete;

	if (!f || !turn)
		return;
	complete = f->trailing->complete(f->trailing, f->found, &turn);
	b->left = (int64_t)turn;
	if (!complete)
		return;
	v->finding = NULL;
	find_seal(f, v->n_found);
}

/* What the frame finds. Sets its status; else it is complete, or find_go_on() completes it. */
static void find_answer(struct serve_frame *f, const uint8_t *find, size_t n)
{
	struct serve *v = f->serve;
	struct tcp_stream *s = &v->s;
	struct core *c = s->tcp->c;
	size_t bytes = 0;

	f->status = c->up->find ? DRAY_E_NO_MEMORY : DRAY_E_UNSUPPORTED;
	f->found = c->up->find ? malloc(FOUND_MAX + SEAL_BYTES) : NULL;
	if (!f->found)
		return;
	f->status = c->up->find(c, s->peer->link, find, n, f->found, &bytes, &f->trailing);
	if (f->status) {
		serve_found_free(f);
		return;
	}
	v->founds++;
	if (f->trailing) {
		f->trailing_ns = c->now_ns + TRAILING_NS;
		tcp_timer(s->tcp, f->trailing_ns);
	}
	if (!f->trailing || !f->trailing->complete) {
		find_seal(f, bytes);
		return;
	}
	f->taken = false;
	v->finding = f;
	v->n_found = bytes;
}

static int find_head(struct serve *v, const uint8_t *bytes, size_t n, const struct pmsg_frame *wire)
{
	size_t need = PMSG_FRAME_SIZE + wire->length;
	struct tcp_stream *s = &v->s;
	uint8_t find[PMSG_FIND_MAX];
	struct serve_frame *f;

	if (wire->status || wire->segs || wire->grant || wire->length <= SEAL_BYTES ||
	    wire->length > PMSG_FIND_MAX)
		return -EPROTO;
	if (n < need)
		return 0;
	/* a number that was used before would seal another answer with the same key stream */
	if (wire->slice <= v->find || !tcp_stream_seals(s, s->peer->link->peer_agent_id) ||
	    seal_open(s->seals[SEAL_FIND], wire->slice, bytes + PMSG_FRAME_SIZE, wire->length,
		      find) < 0)
		return -EPROTO;
	v->find = wire->slice;
	f = serve_frame_at(v, v->q_tail++);
	*f = (struct serve_frame){
		.serve = v, .slice = wire->slice, .kind = PMSG_FRAME_KIND_FOUND, .taken = true
	};
	dray_list_init(&f->chunks);
	find_answer(f, find, wire->length - SEAL_BYTES);
	serve_answer(v);
	return (int)need;
}

/* A small request that comes alone, after the one before was answered: somebody waits for each of them. Its head is n bytes at p. */
static bool is_lone(const struct serve *v, const struct pmsg_frame *wire, const uint8_t *p,
		    size_t n)
{
	uint64_t payload = wire->kind == PMSG_FRAME_KIND_WRITE ? wire->length : 0;

	return wire->length <= SERVE_SMALL_READ && v->q_head == v->q_tail && p == v->s.in &&
	       v->s.in_wr - n <= payload;
}

static int serve_head(struct tcp_stream *s, const uint8_t *bytes, size_t n)
{
	struct serve *v = serve_of(s);
	struct granted granted = { 0 };
	uint32_t status;
	uint16_t access;
	struct pmsg_frame wire;
	size_t need;

	if (n < PMSG_FRAME_SIZE)
		return 0;
	pmsg_frame_get(bytes, &wire);
	if (wire.kind == PMSG_FRAME_KIND_FIND)
		return find_head(v, bytes, n, &wire);
	if ((wire.kind != PMSG_FRAME_KIND_WRITE && wire.kind != PMSG_FRAME_KIND_READ) ||
	    wire.status || !wire.segs || wire.segs > PMSG_SEGS_MAX || !wire.length ||
	    wire.length > PMSG_FRAME_BYTES_MAX)
		return -EPROTO;
	need = PMSG_FRAME_SIZE + (size_t)wire.segs * PMSG_SEG_SIZE;
	if (n < need)
		return 0;
	if (decode(v, bytes, &wire) < 0)
		return -EPROTO;
	access = wire.kind == PMSG_FRAME_KIND_WRITE ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ;
	status = grant_check(s->tcp->c, s->peer->link->peer, wire.grant, access, v->segs, wire.segs,
			     &granted);
	if (status == DRAY_E_REVOKED && grant_may_come(s->tcp->c, &v->grant_waits)) {
		s->parked = true;
		/* A buffer that became free in this turn may have queued the stream. */
		dray_list_move(&s->tcp->parked, &s->ready_link);
		return 0;
	}
	v->grant_waits = 0;
	if (is_lone(v, &wire, bytes, need))
		tcp_turns_short(s->tcp);
	take_frame(v, &wire, status, &granted);
	return (int)need;
}

static bool serve_blocked(const struct tcp_stream *s)
{
	const struct serve *v = serve_of(s);

	if (s->payload_left)
		return !s->sink && !v->rx->host && !v->chunk;
	return v->rx || v->finding || v->q_tail - v->q_head == SERVE_QUEUE ||
	       v->founds == FOUNDS_MAX || TCP_BUFFER - v->out_wr < OUT_ROOM;
}

static void serve_fault(struct tcp_stream *s)
{
	serve_frame_fault(serve_of(s)->rx);
}

static void serve_complete(struct tcp_stream *s)
{
	struct serve *v = serve_of(s);
	struct serve_frame *f = v->rx;

	s->sink = false;
	v->rx = NULL;
	f->taken = true;
	serve_frame_release(f);
	serve_answer(v);
}

static void serve_step(struct tcp_stream *s, struct tcp_budget *b)
{
	struct serve *v = serve_of(s);
	int64_t before;

	do {
		before = b->left;
		v->progressed = false;
		if (v->rx)
			get_chunks(v);
		find_go_on(v, b);
		serve_answer(v);
		if (!serve_flush(v, b) || !tcp_stream_receive(s, b) || !serve_flush(v, b))
			return;
	} while (b->left > 0 && b->left < before && s->side->wants(s));
}

static bool serve_wants(const struct tcp_stream *s)
{
	struct serve *v = serve_of(s);

	if (v->progressed || v->finding || (s->writable && serve_out_pending(v)))
		return true;
	if (s->parked || serve_blocked(s))
		return false;
	return s->readable || (s->in_wr > s->in_rd && !s->incomplete);
}

static void serve_broken(struct tcp_stream *s)
{
	tcp_serve_close(s, false, true);
}

static void serve_tick(struct tcp_stream *s)
{
	struct serve *v = serve_of(s);
	int64_t end_ns = v->grace_ns ? v->grace_ns : INT64_MAX;

	for (uint32_t i = v->q_head; i != v->q_tail; i++)
		if (serve_frame_at(v, i)->trailing)
			end_ns = dray_min(end_ns, serve_frame_at(v, i)->trailing_ns);
	if (s->tcp->c->now_ns >= end_ns)
		tcp_serve_close(s, true, true);
	else
		tcp_timer(s->tcp, end_ns);
}

static const struct tcp_side serve_side = {
	.head = serve_head,
	.blocked = serve_blocked,
	.gather = serve_gather,
	.advance = serve_advance,
	.fault = serve_fault,
	.complete = serve_complete,
	.broken = serve_broken,
	.step = serve_step,
	.wants = serve_wants,
	.tick = serve_tick,
};

void tcp_serve_adopt(struct tcp *t, struct tcp_peer *peer, int fd, uint64_t id,
		     enum dmsg_class class)
{
	dray_handle handle = peer->link->peer;
	struct serve *v = NULL;

	dray_list_for_each(&peer->adopted, s, struct tcp_stream, peer_link)
		if (s->id == id) {
			/* Two streams with one id cannot be told apart when one is lost, so both are closed. */
			tcp_serve_close(s, true, true);
			goto refuse;
		}
	v = tcp_stream_new(t, peer, &serve_side, sizeof(*v), offsetof(struct serve, segs), 2);
	if (!v)
		goto refuse;
	dray_list_init(&v->waiter.link);
	dray_list_init(&v->serving_link);
	v->waiter.ready = buffer_ready;
	v->s.id = id;
	v->s.class = class == DMSG_CLASS_LATENCY ? DMSG_CLASS_LATENCY : DMSG_CLASS_BULK;
	tcp_socket_setup(t, fd);
	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || tcp_stream_watch(&v->s, fd) < 0) {
		tcp_stream_free_later(&v->s);
		goto refuse;
	}
	dray_list_add(&peer->adopted, &v->s.peer_link);
	tcp_stream_opened(&v->s);
	return;
refuse:
	dray_close(fd);
	tcp_event(t, EVENT_STREAM_CLOSED, handle, id);
}

static void out_put(struct serve *v)
{
	if (v->out)
		tcp_pool_put(v->s.tcp, v->out);
	v->out = NULL;
	v->out_rd = v->out_wr = 0;
}

void tcp_serve_forget(struct tcp_stream *s)
{
	struct serve *v = serve_of(s);

	out_put(v);
	for (uint32_t i = v->q_head; i != v->q_tail; i++)
		serve_found_free(serve_frame_at(v, i));
}

void tcp_serve_close(struct tcp_stream *s, bool reset, bool report)
{
	struct serve *v = serve_of(s);

	if (s->state == TCP_CLOSED)
		return;
	tcp_stream_close(s, reset);
	out_put(v);
	v->grace_ns = 0;
	chunk_release(v);
	v->rx = v->finding = NULL;
	v->n_sending = 0;
	for (; v->q_head != v->q_tail; v->q_head++) {
		struct serve_frame *f = serve_frame_at(v, v->q_head);

		f->taken = true;
		serve_found_free(f);
		chunks_stop(f, true);
		serve_chunks_release(f);
		serve_frame_release(f);
	}
	dray_list_del(&v->serving_link);
	tcp_stream_free_later(s);
	if (report) {
		core_count(s->tcp->c->counters, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL, 1);
		tcp_event(s->tcp, EVENT_STREAM_CLOSED, s->peer->link->peer, s->id);
	}
}

/* Ends the frame's use of its objects. */
static void frame_drop(struct serve_frame *f, const struct object *o)
{
	struct serve *v = f->serve;
	struct tcp_budget b = { INT64_MAX };

	if (f->host && serve_sending(v) == f && serve_head_gone(v) && o->drop_mode != DROP_URGENT) {
		if (serve_flush(v, &b) && serve_sending(v) == f) {
			v->grace_ns = serve_core(v)->now_ns + GRACE_NS;
			tcp_timer(v->s.tcp, v->grace_ns);
		}
		requeue(v);
		return;
	}
	/* Copies in flight may end, but the frame waits for no further buffers, and no further head announces its memory. */
	if (v->rx == f || f->base)
		fail(f, grant_drop_code(o));
	chunks_stop(f, o->drop_mode == DROP_URGENT);
	serve_frame_release(f);
	if (f->host && serve_sending(v) == f)
		tcp_serve_close(&v->s, true, true);
	else
		requeue(v);
}

void tcp_serve_drop(struct core *c, void *state, struct object *o)
{
	struct tcp *t = state;

	dray_list_for_each(&t->serving, v, struct serve, serving_link) {
		/* frames come and go without a change of the list: a stream leaves it here */
		if (v->q_head == v->q_tail) {
			dray_list_del(&v->serving_link);
			continue;
		}
		/* the one that is being sent comes last, so that no answer behind it is sent with it */
		for (uint32_t i = v->q_tail, end = v->q_head; i-- != end;)
			if (granted_has(&serve_frame_at(v, i)->held, o))
				frame_drop(serve_frame_at(v, i), o);
	}
}
