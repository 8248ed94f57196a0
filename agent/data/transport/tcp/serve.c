/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side: checks a peer's frames against its grants and answers them in order.
 *
 * A frame holds its grant and region from its head to its last byte. When one of them is dropped meanwhile,
 * the remaining payload of a WRITE is discarded, and the answer to a READ has a short time to finish. If an
 * error cannot be reported in a head because the head was sent, the stream is closed.
 *
 * Answers collect in an output buffer, which is sent after the received frames are handled: many
 * acknowledgements or small READ answers (copied into the buffer) go in one system call. A large READ
 * answer is sent straight from the region, behind that buffer. Until it is sent no further frame is
 * handled, so a peer that does not read its answers is not served.
 *
 * Frames on GPU memory do not end within a turn: serve_stage.c.
 */
#include "agent/data/transport/tcp/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "lib/fault.h"

/* READ answers up to this size are copied; above, one more system call costs less. */
#define SMALL_READ 16384
/* The most that a frame adds to the output buffer. */
#define OUT_ROOM (PMSG_FRAME_SIZE + SMALL_READ)
/* Time for a READ answer to finish when its region is dropped. */
#define GRACE_NS (50 * DRAY_NS_PER_MS)
/* Turns to wait for a grant that is not known yet. */
#define GRANT_TURNS 8

static struct serve *serve_of(const struct tcp_stream *s)
{
	return dray_container_of((struct tcp_stream *)(uintptr_t)s, struct serve, s);
}

static void hold(struct serve *v, const struct granted *granted)
{
	v->held = *granted;
	granted_hold(granted);
}

static void release(struct serve *v)
{
	v->grace_ns = 0;
	granted_release(v->s.tcp->c, &v->held);
}

static bool out_pending(const struct serve *v)
{
	struct iovec first;

	return v->out_wr > v->out_rd || v->read_left || serve_stage_payload(v, &first, 1);
}

static void put_answer(struct serve *v, uint32_t at, uint64_t slice, uint8_t kind, uint32_t status,
		       uint64_t length)
{
	struct pmsg_frame wire = {
		.kind = kind, .status = status, .slice = slice, .length = length
	};

	pmsg_frame_put(v->out + at, &wire);
}

void serve_put_head(struct serve *v, uint64_t slice, uint8_t kind, uint32_t status, uint64_t length)
{
	if (!v->out)
		v->out = tcp_pool_get(v->s.tcp);
	v->answer_at = v->out_wr;
	put_answer(v, v->out_wr, slice, kind, status, length);
	v->out_wr += PMSG_FRAME_SIZE;
}

/* serve_blocked() has made sure that there is room in the buffer and the queue. */
static void answer(struct serve *v, uint8_t kind, uint32_t status)
{
	if (serve_queue_empty(v))
		serve_put_head(v, v->slice, kind, status, 0);
	else
		serve_stage_answer(v, kind, status);
}

/* Reports in the answer's head that no payload follows, or closes the stream if the head was sent; false then. */
static bool fail_read(struct serve *v, uint32_t status)
{
	if (v->head_gone) {
		tcp_serve_close(&v->s, true, true);
		return false;
	}
	put_answer(v, v->answer_at, v->slice, PMSG_FRAME_KIND_READ_DATA, status, 0);
	v->read_left = 0;
	release(v);
	return true;
}

/* Of the current frame, in host memory. */
static unsigned host_ranges(struct serve *v, struct iovec *iov, unsigned max, uint64_t *ret_bytes)
{
	return grant_walk_ranges(&v->at, &v->held, iov, max, ret_bytes);
}

static unsigned serve_gather(struct tcp_stream *s, struct iovec *iov, unsigned max,
			     uint64_t *ret_bytes)
{
	struct serve *v = serve_of(s);

	return v->rx ? serve_stage_place(v, iov, ret_bytes) : host_ranges(v, iov, max, ret_bytes);
}

static void serve_advance(struct tcp_stream *s, uint64_t n)
{
	struct serve *v = serve_of(s);

	if (v->rx)
		serve_stage_received(v, n);
	else
		grant_walk_advance(&v->at, n);
}

/* Copies a small answer behind its head, which completes the frame. */
static void read_small(struct serve *v, uint64_t length)
{
	struct iovec *iov = v->s.tcp->iov;
	uint32_t start = v->out_wr;
	uint64_t bytes;

	while (v->out_wr - start < length) {
		unsigned n = host_ranges(v, iov, TCP_IOV, &bytes);

		for (unsigned i = 0; i < n; i++) {
			if (fault_copy(v->out + v->out_wr, iov[i].iov_base, iov[i].iov_len) < 0) {
				xfer_memory_fault(v->s.tcp->c, v->held.region->view->session);
				v->out_wr = start;
				put_answer(v, v->answer_at, v->slice, PMSG_FRAME_KIND_READ_DATA,
					   DRAY_E_REGION_FAULT, 0);
				return;
			}
			v->out_wr += (uint32_t)iov[i].iov_len;
			grant_walk_advance(&v->at, iov[i].iov_len);
		}
	}
	tcp_count_sent(&v->s, length);
}

static void start_read(struct serve *v, uint64_t length)
{
	serve_put_head(v, v->slice, PMSG_FRAME_KIND_READ_DATA, 0, length);
	if (length <= SMALL_READ) {
		read_small(v, length);
		release(v);
	} else {
		v->read_left = length;
		v->head_gone = false;
	}
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

/* Carries out or begins the frame; the objects are set if v->status is 0. False: a later turn is needed. */
static bool take_frame(struct serve *v, const struct pmsg_frame *wire,
		       const struct granted *granted)
{
	bool write = wire->kind == PMSG_FRAME_KIND_WRITE;
	bool host = !v->status && object_region(granted->region)->memory == REGION_HOST;

	if (host && !write && !serve_queue_empty(v)) {
		/* Its payload is sent from the region, after the answers before it. */
		v->stalled = true;
		return false;
	}
	if (write) {
		v->s.payload_left = wire->length;
		v->s.sink = v->status != 0;
	}
	if (host)
		hold(v, granted);
	else if (!v->status)
		serve_stage_start(v, write ? PMSG_FRAME_KIND_WRITE_ACK : PMSG_FRAME_KIND_READ_DATA,
				  wire->length, granted);
	if (host && !write)
		start_read(v, wire->length);
	else if (v->status && !write)
		answer(v, PMSG_FRAME_KIND_READ_DATA, v->status);
	return true;
}

static int serve_head(struct tcp_stream *s, const uint8_t *bytes, size_t n)
{
	struct serve *v = serve_of(s);
	struct granted granted = { 0 };
	uint16_t access;
	struct pmsg_frame wire;
	size_t need;

	if (n < PMSG_FRAME_SIZE)
		return 0;
	pmsg_frame_get(bytes, &wire);
	if ((wire.kind != PMSG_FRAME_KIND_WRITE && wire.kind != PMSG_FRAME_KIND_READ) ||
	    wire.status || !wire.segs || wire.segs > PMSG_SEGS_MAX || !wire.length ||
	    wire.length > PMSG_FRAME_BYTES_MAX)
		return -EPROTO;
	need = PMSG_FRAME_SIZE + (size_t)wire.segs * PMSG_SEG_SIZE;
	if (n < need)
		return 0;
	if (decode(v, bytes, &wire) < 0)
		return -EPROTO;
	v->slice = wire.slice;
	access = wire.kind == PMSG_FRAME_KIND_WRITE ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ;
	v->status = grant_check(s->tcp->c, s->peer->link->peer, wire.grant, access, v->segs,
				wire.segs, &granted);
	if (v->status == DRAY_E_REVOKED && v->grant_waits < GRANT_TURNS) {
		/*
		 * The peer may have used the grant before this worker has read the command that publishes
		 * it. The worker reads commands between turns, and all that its ring holds within a few
		 * turns.
		 */
		v->grant_waits++;
		s->parked = true;
		/* A buffer that became free in this turn may have queued the stream. */
		dray_list_del(&s->ready_link);
		dray_list_add(&s->tcp->parked, &s->ready_link);
		return 0;
	}
	v->grant_waits = 0;
	return take_frame(v, &wire, &granted) ? (int)need : 0;
}

static bool serve_blocked(const struct tcp_stream *s)
{
	const struct serve *v = serve_of(s);

	if (s->payload_left)
		return v->rx && !v->chunk && !s->sink;
	return v->read_left || v->rx || v->stalled || serve_queue_full(v) ||
	       TCP_BUFFER - v->out_wr < OUT_ROOM;
}

static void serve_fault(struct tcp_stream *s)
{
	struct serve *v = serve_of(s);

	xfer_memory_fault(v->s.tcp->c, v->held.region->view->session);
	v->status = DRAY_E_REGION_FAULT;
	s->sink = true;
	release(v);
}

static void serve_complete(struct tcp_stream *s)
{
	struct serve *v = serve_of(s);

	s->sink = false;
	if (v->rx) {
		serve_stage_complete(v);
		return;
	}
	release(v);
	answer(v, PMSG_FRAME_KIND_WRITE_ACK, v->status);
}

/* The kernel has taken n bytes of the output buffer and the answer behind it. */
static void sent(struct serve *v, uint64_t n)
{
	uint64_t head = dray_min(n, (uint64_t)(v->out_wr - v->out_rd));

	v->out_rd += (uint32_t)head;
	if (v->read_left && v->out_rd > v->answer_at)
		v->head_gone = true;
	n -= head;
	if (n)
		tcp_count_sent(&v->s, n);
	if (n && v->sending) {
		serve_stage_sent(v, n);
	} else if (n) {
		grant_walk_advance(&v->at, n);
		v->read_left -= n;
		if (!v->read_left)
			release(v);
	}
	if (v->out && v->out_rd == v->out_wr && !v->read_left) {
		tcp_pool_put(v->s.tcp, v->out);
		v->out = NULL;
		v->out_rd = v->out_wr = 0;
	}
	serve_stage_answers(v);
}

/* Sends within the budget. False: the stream closed. */
static bool flush(struct serve *v, struct tcp_budget *b)
{
	struct tcp *t = v->s.tcp;

	while (out_pending(v) && v->s.writable && b->left > 0) {
		uint64_t bytes;
		unsigned k = 0;
		ssize_t n;

		if (v->out_wr > v->out_rd)
			t->iov[k++] = (struct iovec){ v->out + v->out_rd, v->out_wr - v->out_rd };
		if (v->read_left)
			k += host_ranges(v, t->iov + k, TCP_IOV - 1, &bytes);
		else
			k += serve_stage_payload(v, t->iov + k, TCP_IOV - 1);
		n = tcp_stream_send(&v->s, t->iov, k, b);
		if (n >= 0) {
			sent(v, (uint64_t)n);
		} else if (n == -EAGAIN) {
			return true;
		} else if (n == -EFAULT && v->read_left) {
			xfer_memory_fault(v->s.tcp->c, v->held.region->view->session);
			if (!fail_read(v, DRAY_E_REGION_FAULT))
				return false;
		} else {
			tcp_serve_close(&v->s, true, true);
			return false;
		}
	}
	return true;
}

static void serve_step(struct tcp_stream *s, struct tcp_budget *b)
{
	struct serve *v = serve_of(s);
	int64_t before;

	do {
		before = b->left;
		if (!serve_stage_step(v) || !flush(v, b) || !tcp_stream_receive(s, b) ||
		    !flush(v, b))
			return;
	} while (b->left > 0 && b->left < before && s->side->wants(s));
}

static bool serve_wants(const struct tcp_stream *s)
{
	const struct serve *v = serve_of(s);

	if (v->progressed || (s->writable && out_pending(v)))
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

	if (!v->grace_ns)
		return;
	if (s->tcp->c->now_ns >= v->grace_ns)
		tcp_serve_close(s, true, true);
	else
		tcp_timer(s->tcp, v->grace_ns);
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
	serve_stage_init(v);
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

void tcp_serve_close(struct tcp_stream *s, bool reset, bool report)
{
	struct serve *v = serve_of(s);

	if (s->state == TCP_CLOSED)
		return;
	tcp_stream_close(s, reset);
	if (v->out)
		tcp_pool_put(s->tcp, v->out);
	v->out = NULL;
	v->out_rd = v->out_wr = 0;
	v->read_left = 0;
	release(v);
	serve_stage_close(v);
	tcp_stream_free_later(s);
	if (report) {
		core_count(s->tcp->c->counters, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL, 1);
		tcp_event(s->tcp, EVENT_STREAM_CLOSED, s->peer->link->peer, s->id);
	}
}

/* Ends the current frame's use of its objects. */
static void frame_drop(struct serve *v, const struct object *o)
{
	uint32_t status = grant_drop_code(o);
	struct tcp_budget b = { INT64_MAX };

	if (!v->read_left) {
		/* Nothing is received between turns. From now on the payload is discarded. */
		v->s.sink = true;
		v->status = status;
		release(v);
		return;
	}
	if (!v->head_gone || o->drop_mode == DROP_URGENT) {
		fail_read(v, status);
		return;
	}
	if (!flush(v, &b) || !v->read_left)
		return;
	v->grace_ns = v->s.tcp->c->now_ns + GRACE_NS;
	tcp_timer(v->s.tcp, v->grace_ns);
}

void tcp_serve_drop(struct core *c, void *state, struct object *o)
{
	struct tcp *t = state;

	dray_list_for_each(&t->streams, s, struct tcp_stream, link) {
		if (s->side != &serve_side)
			continue;
		serve_stage_drop(serve_of(s), o);
		if (!granted_has(&serve_of(s)->held, o))
			continue;
		frame_drop(serve_of(s), o);
		tcp_stream_requeue(s);
	}
}
