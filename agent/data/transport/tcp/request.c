/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importing side of a stream: slices go out as frames, answers come in.
 *
 * A stream whose send side is idle takes a batch of slices from its channel: several of up to 64 KiB for one system
 * call and one wake-up of the owner, or one large one. READs count by the bytes that they ask for, so that large ones
 * spread over the streams. Frames are sent straight from the regions. Answers are matched by slice id; the
 * payload of READ_DATA is received straight into the regions.
 *
 * When a stream breaks (tcp_requester_lose), the state of a slice decides what follows. A slice that was
 * not sent may be sent again at once; so may a READ, because no answer can arrive once the descriptor is
 * closed. A WRITE may still be in the owner's receive buffer: it waits until the owner has reported that
 * its end is closed too.
 */
#include <errno.h>

#include "agent/data/transport/tcp/tcp.h"

/* Payload after which a batch takes no further slice: of WRITEs, which it sends, and of READs, which it only asks for. */
#define BATCH_BYTES 262144

static struct tcp_requester *requester_of(const struct tcp_stream *s)
{
	return dray_container_of((struct tcp_stream *)(uintptr_t)s, struct tcp_requester, s);
}

/* For another slice: of small ones, more may be in flight than of whole ones. */
static bool has_room(const struct tcp_requester *p)
{
	const struct data_config *cfg = &p->s.tcp->c->cfg;
	uint32_t used = p->tail - p->head;

	return used < cfg->tcp_slices_in_flight ||
	       (used < TCP_FRAMES_MAX && p->in_flight < cfg->slice_size);
}

void tcp_frame_end(struct tcp_requester *p, struct tcp_frame *f)
{
	f->slice = NULL;
	f->ended = true;
	p->in_flight -= f->bytes;
	/*
	 * Frames that were never sent leave the front of the batch; answered frames leave the front of the
	 * queue.
	 */
	while (p->sent != p->tail && !p->sent_of && tcp_frame_at(p, p->sent)->ended)
		p->sent++;
	while (p->head != p->sent && tcp_frame_at(p, p->head)->ended)
		p->head++;
	if (p->sent == p->tail)
		p->heads_used = 0;
	if (p->head == p->tail)
		p->s.tcp->c->awaited--;
}

static uint64_t frame_total(const struct tcp_frame *f)
{
	return f->head_bytes + (f->kind == PMSG_FRAME_KIND_WRITE ? f->bytes : 0);
}

/* A frame that will be answered enters the queue. */
static void count_awaited(struct tcp_requester *p)
{
	struct tcp *t = p->s.tcp;

	if (p->head != p->tail)
		return;
	t->c->awaited++;
	p->s.moved_ns = t->c->now_ns;
	tcp_timer(t, t->c->now_ns + t->c->cfg.slice_timeout_ns);
}

static void enqueue(struct tcp_requester *p, struct slice *s)
{
	struct tcp *t = p->s.tcp;
	struct tcp_frame *f = tcp_frame_at(p, p->tail);
	/* without a transfer: a READ of another worker's */
	bool write = s->xfer && s->xfer->direction == DMSG_DIRECTION_WRITE;
	uint8_t *head = p->heads + p->heads_used;
	struct pmsg_frame wire = {
		.kind = write ? PMSG_FRAME_KIND_WRITE : PMSG_FRAME_KIND_READ,
		.segs = s->n_remote,
		.slice = s->id,
		.grant = s->xfer ? object_remote(s->xfer->remote)->grant : s->delegated.grant,
		.length = s->bytes,
	};

	count_awaited(p);
	*f = (struct tcp_frame){
		.slice = s,
		.id = s->id,
		.bytes = s->bytes,
		.head_at = p->heads_used,
		.head_bytes = (uint16_t)(PMSG_FRAME_SIZE + s->n_remote * PMSG_SEG_SIZE),
		.kind = wire.kind,
	};
	pmsg_frame_put(head, &wire);
	for (unsigned i = 0; i < s->n_remote; i++)
		pmsg_seg_put(head + PMSG_FRAME_SIZE + i * PMSG_SEG_SIZE, &s->remote[i]);
	p->heads_used += f->head_bytes;
	p->in_flight += f->bytes;
	p->tail++;
	s->posted_ns = t->c->now_ns;
}

/* The next slice: first those to retry. */
static struct slice *next_slice(struct tcp_channel *ch)
{
	struct slice *s = dray_list_pop(&ch->ch.retry, struct slice, link);
	struct core *c = tcp_of(ch)->c;

	if (!s)
		return stage_channel_next(c, &ch->ch);
	if (s->retried)
		core_count(c->counters, DRAY_METRIC_SLICES_RESENT_TOTAL, 1);
	return s;
}

/* Takes a batch from the channel. False: there was none. */
static bool batch_fill(struct tcp_requester *p)
{
	uint64_t bytes = 0;

	while (has_room(p) && bytes < BATCH_BYTES && p->heads_used <= TCP_HEADS - TCP_HEAD_MAX) {
		struct slice *s = next_slice(p->ch);

		if (!s)
			break;
		bytes += s->bytes;
		enqueue(p, s);
	}
	return bytes;
}

static unsigned add_iov(struct iovec *iov, unsigned n, void *base, size_t len)
{
	/* The heads of consecutive READs are adjacent. */
	if (n && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == (uint8_t *)base) {
		iov[n - 1].iov_len += len;
		return n;
	}
	iov[n] = (struct iovec){ base, len };
	return n + 1;
}

/* Adds the slice's memory behind its first *skip bytes, and takes from *skip what was skipped. */
static unsigned add_memory(const struct slice *s, uint64_t *skip, struct iovec *iov, unsigned n,
			   unsigned max)
{
	struct iovec staged;
	unsigned n_memory;
	const struct iovec *memory = slice_memory(s, &staged, &n_memory);

	for (unsigned i = 0; i < n_memory && n < max; i++) {
		uint64_t skipped = dray_min(*skip, (uint64_t)memory[i].iov_len);

		*skip -= skipped;
		if (skipped < memory[i].iov_len)
			n = add_iov(iov, n, (uint8_t *)memory[i].iov_base + skipped,
				    memory[i].iov_len - skipped);
	}
	return n;
}

/* Gathers the next bytes to send, of at most max_frames frames. */
static unsigned gather_batch(struct tcp_requester *p, struct iovec *iov, uint32_t max_frames)
{
	uint64_t skip = p->sent_of;
	unsigned n = 0;

	for (uint32_t i = p->sent; i != p->tail && max_frames && n < TCP_IOV; i++) {
		const struct tcp_frame *f = tcp_frame_at(p, i);

		if (f->ended)
			continue;
		max_frames--;
		if (skip < f->head_bytes)
			n = add_iov(iov, n, p->heads + f->head_at + skip, f->head_bytes - skip);
		skip -= dray_min(skip, (uint64_t)f->head_bytes);
		if (f->kind == PMSG_FRAME_KIND_WRITE)
			n = add_memory(f->slice, &skip, iov, n, TCP_IOV);
	}
	return n;
}

/* The kernel has taken n more bytes of the batch. */
static void batch_sent(struct tcp_requester *p, uint64_t n)
{
	uint64_t payload = 0;

	while (p->sent != p->tail) {
		struct tcp_frame *f = tcp_frame_at(p, p->sent);
		uint64_t left, take;

		if (f->ended) {
			p->sent++;
			continue;
		}
		left = frame_total(f) - p->sent_of;
		take = dray_min(left, n);
		payload += take;
		if (p->sent_of < f->head_bytes)
			payload -= dray_min(take, f->head_bytes - p->sent_of);
		n -= take;
		p->sent_of += take;
		if (take < left)
			break;
		p->sent++;
		p->sent_of = 0;
	}
	if (p->sent == p->tail)
		p->heads_used = 0;
	if (payload)
		tcp_count_sent(&p->s, payload);
}

/* The memory of the batch's first frame faulted. */
static void send_fault(struct tcp_requester *p)
{
	struct tcp_frame *f = tcp_frame_at(p, p->sent);
	struct core *c = p->s.tcp->c;
	struct slice *s = f->slice;

	xfer_memory_fault(c, s->xfer->local->view->session);
	if (!p->sent_of) {
		tcp_frame_end(p, f);
		xfer_slice_done(c, s, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL);
		return;
	}
	/* The stream cannot continue after half a frame. The slice ends when the owner's end is closed. */
	if (slice_wanted(s))
		xfer_stop(c, s->xfer, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL, false);
	tcp_requester_lose(&p->s);
}

static void send_batch(struct tcp_requester *p, struct tcp_budget *b)
{
	struct tcp *t = p->s.tcp;
	uint32_t frames = UINT32_MAX;

	while (p->s.state == TCP_OPEN && p->sent != p->tail && p->s.writable && b->left > 0) {
		unsigned k = gather_batch(p, t->iov, frames);
		ssize_t n = tcp_stream_send(&p->s, t->iov, k, b);

		if (n >= 0) {
			batch_sent(p, (uint64_t)n);
		} else if (n == -EAGAIN) {
			return;
		} else if (n == -EFAULT && frames > 1) {
			/* Sends one frame at a time to find the one that faults. */
			frames = 1;
		} else if (n == -EFAULT) {
			send_fault(p);
		} else {
			tcp_requester_lose(&p->s);
		}
	}
}

static struct tcp_frame *find(struct tcp_requester *p, uint64_t id)
{
	/* Answers come in the order of requests, so the first one usually matches. */
	for (uint32_t i = p->head; i != p->sent; i++) {
		struct tcp_frame *f = tcp_frame_at(p, i);

		if (f->id == id && !f->ended)
			return f;
	}
	return NULL;
}

static void note_useful(struct tcp_requester *p)
{
	if (p->useful)
		return;
	p->useful = true;
	p->ch->refused.n = 0;
	p->ch->lacking.n = 0;
}

/* Returns the frame's slice, now the caller's. */
static struct slice *take_answered(struct tcp_requester *p, struct tcp_frame *f)
{
	struct slice *s = f->slice;

	note_useful(p);
	tcp_frame_end(p, f);
	return s;
}

static void answered(struct tcp_requester *p, struct tcp_frame *f, uint32_t status)
{
	struct core *c = p->s.tcp->c;
	struct slice *s = take_answered(p, f);

	if (s)
		xfer_slice_done(c, s, status < DRAY_ERROR_N ? status : DRAY_E_PROTOCOL,
				status ? XFER_REFUSED_DETAIL : NULL);
}

/* Its question has been answered. */
static void seek_answered(struct tcp_requester *p, struct tcp_frame *f, uint32_t status)
{
	struct seek *k = dray_take(f->seek);
	struct tcp_stream *s = &p->s;
	uint64_t bytes;

	note_useful(p);
	k->trailing = &p->trailing.ch;
	p->rx = f;
	link_release(s->peer->link);
	/* it may close this stream */
	bytes = k->ended(s->tcp->c, k, status);
	if (s->state != TCP_OPEN) {
		tcp_trailing_end(p, DRAY_E_PEER_LOST);
	} else if (bytes == SEEK_BROKEN) {
		tcp_requester_lose(s);
	} else if (bytes) {
		tcp_trailing_begin(p, bytes);
	} else {
		p->rx = NULL;
		tcp_frame_end(p, f);
	}
}

/* What its question has found is complete. If the seal is wrong, nothing else on the stream is to be trusted either. */
static void seek_found(struct tcp_requester *p, struct tcp_frame *f)
{
	struct seek *k = f->seek;

	if (seal_open(p->s.seals[SEAL_FOUND], f->id, k->found, k->n_found, k->found) < 0) {
		p->s.side->broken(&p->s);
		return;
	}
	k->n_found -= SEAL_BYTES;
	seek_answered(p, f, 0);
}

/* Whether the frame answers this question. */
static bool may_answer(const struct tcp_frame *f, const struct pmsg_frame *wire)
{
	uint64_t least = wire->status ? 0 : SEAL_BYTES + 1;
	uint64_t most = wire->status ? 0 : FOUND_MAX + SEAL_BYTES;

	return f->kind == PMSG_FRAME_KIND_FIND && wire->length >= least && wire->length <= most;
}

static int answer_head(struct tcp_stream *s, const uint8_t *bytes, size_t n)
{
	struct tcp_requester *p = requester_of(s);
	struct pmsg_frame wire;
	struct tcp_frame *f;

	if (n < PMSG_FRAME_SIZE)
		return 0;
	pmsg_frame_get(bytes, &wire);
	f = find(p, wire.slice);
	if (!f || wire.segs)
		return -EPROTO;
	if (wire.kind == PMSG_FRAME_KIND_FOUND) {
		if (!may_answer(f, &wire))
			return -EPROTO;
		f->seek->n_found = wire.length;
		if (!wire.length) {
			seek_answered(p, f,
				      wire.status < DRAY_ERROR_N ? wire.status : DRAY_E_PROTOCOL);
			return PMSG_FRAME_SIZE;
		}
	} else if (wire.kind == PMSG_FRAME_KIND_WRITE_ACK) {
		if (f->kind != PMSG_FRAME_KIND_WRITE || wire.length)
			return -EPROTO;
	} else if (wire.kind == PMSG_FRAME_KIND_READ_DATA) {
		if (f->kind != PMSG_FRAME_KIND_READ || wire.length != (wire.status ? 0 : f->bytes))
			return -EPROTO;
	} else {
		return -EPROTO;
	}
	if (!wire.length) {
		answered(p, f, wire.status);
		return PMSG_FRAME_SIZE;
	}
	s->payload_left = wire.length;
	s->sink = !f->slice && !f->seek;
	p->rx = f;
	return PMSG_FRAME_SIZE;
}

static bool answer_blocked(const struct tcp_stream *s)
{
	return false;
}

static unsigned answer_gather(struct tcp_stream *s, struct iovec *iov, unsigned max,
			      uint64_t *ret_bytes)
{
	const struct tcp_requester *p = requester_of(s);
	const struct tcp_frame *f = p->rx;
	uint64_t skip;
	unsigned n;

	if (f->seek) {
		iov[0] = (struct iovec){ f->seek->found + (f->seek->n_found - s->payload_left),
					 s->payload_left };
		*ret_bytes = s->payload_left;
		return 1;
	}
	skip = p->trailing.active ? tcp_trailing_done(p) : f->bytes - s->payload_left;
	n = add_memory(f->slice, &skip, iov, 0, max);
	*ret_bytes = 0;
	/* the slice may have more memory than the part of it that comes now */
	for (unsigned i = 0; i < n; i++) {
		iov[i].iov_len = dray_min((uint64_t)iov[i].iov_len, s->payload_left - *ret_bytes);
		*ret_bytes += iov[i].iov_len;
		if (*ret_bytes == s->payload_left)
			return i + 1;
	}
	return n;
}

/* The position is what is left of the payload. */
static void answer_advance(struct tcp_stream *s, uint64_t n)
{
}

static bool answer_hold(struct tcp_stream *s)
{
	struct tcp_frame *f = requester_of(s)->rx;

	if (!f->slice || !slice_is_delegated(f->slice) || delegate_hold(f->slice))
		return true;
	s->sink = true;
	delegate_return(s->tcp->c, dray_take(f->slice), DRAY_E_CANCELLED, NULL);
	return false;
}

static void answer_release(struct tcp_stream *s)
{
	struct slice *slice = requester_of(s)->rx->slice;

	if (slice && slice_is_delegated(slice))
		delegate_release(slice);
}

static void answer_fault(struct tcp_stream *s)
{
	struct tcp_requester *p = requester_of(s);
	struct core *c = s->tcp->c;
	struct slice *slice = p->rx->slice;

	s->sink = true;
	p->rx->slice = NULL;
	if (slice_is_delegated(slice)) {
		slice->delegated.faulted = true;
		delegate_return(c, slice, 0, NULL);
		return;
	}
	xfer_memory_fault(c, slice->xfer->local->view->session);
	xfer_slice_done(c, slice, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL);
}

static void answer_complete(struct tcp_stream *s)
{
	struct tcp_requester *p = requester_of(s);
	struct tcp_frame *f = p->rx;

	if (p->trailing.active) {
		tcp_trailing_complete(p);
		return;
	}
	p->rx = NULL;
	s->sink = false;
	if (f->kind == PMSG_FRAME_KIND_FIND)
		seek_found(p, f);
	else if (f->slice && !slice_is_delegated(f->slice) && f->slice->staged)
		stage_channel_scatter(s->tcp->c, take_answered(p, f));
	else
		answered(p, f, 0);
}

void tcp_frames_forget(struct tcp_requester *p)
{
	if (p->head != p->tail)
		p->s.tcp->c->awaited--;
	p->head = p->sent = p->tail;
	p->sent_of = p->in_flight = 0;
	p->rx = NULL;
	p->trailing.active = false;
}

void tcp_frame_take_seek(struct tcp_frame *f, struct dray_list *over)
{
	if (f->seek)
		dray_list_add(over, &dray_take(f->seek)->link);
}

void tcp_seeks_end(struct tcp_peer *peer, struct dray_list *over, uint32_t code)
{
	struct seek *k;

	while ((k = dray_list_pop(over, struct seek, link))) {
		link_release(peer->link);
		k->ended(peer->tcp->c, k, code);
	}
}

void tcp_requester_lose(struct tcp_stream *stream)
{
	struct tcp_requester *p = requester_of(stream);
	struct dray_list over = DRAY_LIST_INIT(over), seeks = DRAY_LIST_INIT(seeks),
			 trailing = DRAY_LIST_INIT(trailing);
	struct tcp_channel *ch = p->ch;
	struct tcp *t = p->s.tcp;
	struct core *c = t->c;

	tcp_stream_close(&p->s, true);
	core_count(c->counters, DRAY_METRIC_TCP_STREAM_RESETS_TOTAL, 1);
	ch->n_streams--;
	ch->n_open--;
	dray_list_move(&ch->lost, &p->s.peer_link);
	for (uint32_t i = p->head; i != p->tail; i++) {
		struct slice *s = tcp_frame_at(p, i)->slice;
		bool untouched = i - p->sent < p->tail - p->sent && (i != p->sent || !p->sent_of);

		tcp_frame_take_seek(tcp_frame_at(p, i), &seeks);
		if (!s)
			continue;
		if (tcp_frame_at(p, i)->kind == PMSG_FRAME_KIND_FIND) {
			dray_list_add(&trailing, &s->link);
			continue;
		}
		s->retried |= !untouched;
		if (slice_is_delegated(s))
			delegate_return(c, s, DELEGATE_AGAIN, NULL);
		else if (!untouched && tcp_frame_at(p, i)->kind == PMSG_FRAME_KIND_WRITE)
			dray_list_add(&p->waiting, &s->link);
		else
			dray_list_add(slice_wanted(s) ? &ch->ch.retry : &over, &s->link);
	}
	tcp_frames_forget(p);
	tcp_helper_return_unsent(ch);
	tcp_channel_pull_later(ch);
	tcp_event(t, EVENT_STREAM_LOST, ch->peer->link->peer, p->s.id);
	tcp_seeks_end(ch->peer, &seeks, DRAY_E_PEER_LOST);
	xfer_slices_end(c, &over, 0);
	xfer_slices_end(c, &trailing, DRAY_E_PEER_LOST);
	tcp_trailing_end(p, DRAY_E_PEER_LOST);
	if (!p->useful)
		tcp_connect_failed(ch, -ECONNRESET);
}

/* Queues the channel if this stream's send side is idle and there is work. */
static void pull_if_idle(struct tcp_requester *p)
{
	if (p->s.state == TCP_OPEN && p->sent == p->tail && p->s.writable && has_room(p))
		tcp_channel_pull_later(p->ch);
}

static void requester_step(struct tcp_stream *s, struct tcp_budget *b)
{
	struct tcp_requester *p = requester_of(s);

	if (s->state != TCP_OPEN)
		tcp_connect_step(p);
	if (s->state != TCP_OPEN || !tcp_stream_receive(s, b))
		return;
	send_batch(p, b);
	pull_if_idle(p);
}

static bool requester_wants(const struct tcp_stream *s)
{
	const struct tcp_requester *p = requester_of(s);

	return s->state == TCP_OPEN && (s->readable || (s->in_wr > s->in_rd && !s->incomplete) ||
					(s->writable && p->sent != p->tail));
}

static void requester_tick(struct tcp_stream *s)
{
	struct tcp_requester *p = requester_of(s);
	const struct core *c = s->tcp->c;
	int64_t limit = s->moved_ns + c->cfg.slice_timeout_ns;

	if (s->state == TCP_CONNECTING || s->state == TCP_GREETING)
		tcp_connect_tick(p);
	if (s->state != TCP_OPEN || p->head == p->tail)
		return;
	/* A transfer that stops does not wait for a stream that only trickles. */
	for (uint32_t i = p->head; i != p->tail; i++) {
		const struct slice *slice = tcp_frame_at(p, i)->slice;

		if (slice && !slice_is_delegated(slice) && !slice_wanted(slice))
			limit = dray_min(limit, slice->posted_ns + c->cfg.slice_timeout_ns);
	}
	if (c->now_ns >= limit)
		tcp_requester_lose(&p->s);
	else
		tcp_timer(s->tcp, limit);
}

static void requester_freed(struct tcp_stream *s)
{
	tcp_trailing_deinit(requester_of(s));
}

static struct tcp_requester *idle_stream(struct tcp_channel *ch)
{
	struct tcp_requester *best = NULL;

	dray_list_for_each(&ch->streams, p, struct tcp_requester, s.peer_link)
		if (p->s.state == TCP_OPEN && p->s.writable && p->sent == p->tail && has_room(p) &&
		    (!best || p->in_flight < best->in_flight))
			best = p;
	return best;
}

/* The frame of a question. */
static void enqueue_seek(struct tcp_requester *p, struct seek *k)
{
	struct tcp *t = p->s.tcp;
	struct tcp_frame *f = tcp_frame_at(p, p->tail);
	uint8_t *head = p->heads + p->heads_used;
	struct pmsg_frame wire = { .kind = PMSG_FRAME_KIND_FIND,
				   .slice = ++t->c->next_slice_id,
				   .length = k->n_find + SEAL_BYTES };

	seal_close(p->s.seals[SEAL_FIND], wire.slice, k->find, k->n_find, head + PMSG_FRAME_SIZE);
	count_awaited(p);
	/* `bytes` counts what may follow the answer, so that other requests take a stream that has less to bring */
	*f = (struct tcp_frame){ .seek = k,
				 .id = wire.slice,
				 .bytes = k->room,
				 .head_at = p->heads_used,
				 .head_bytes = (uint16_t)(PMSG_FRAME_SIZE + wire.length),
				 .kind = wire.kind };
	pmsg_frame_put(head, &wire);
	p->heads_used += f->head_bytes;
	p->in_flight += f->bytes;
	p->tail++;
}

/* Behind what the stream has to bring first, the bytes would come late: other streams, and the control thread, have better ways. */
static bool may_follow(const struct tcp_requester *p, uint64_t room)
{
	return !room || !p->in_flight || p->in_flight + room <= p->s.tcp->c->cfg.slice_size;
}

bool tcp_seek(struct core *c, void *state, dray_handle handle, struct seek *k)
{
	struct tcp_peer *peer = tcp_peer_get(state, handle);
	struct tcp_requester *p;

	if (!peer || peer->down)
		return false;
	tcp_connect(&peer->channels[k->class]);
	p = idle_stream(&peer->channels[k->class]);
	if (!p || p->heads_used > TCP_HEADS - TCP_HEAD_MAX || !may_follow(p, k->room) ||
	    !tcp_stream_seals(&p->s, peer->link->agent_id))
		return false;
	enqueue_seek(p, k);
	if (link_use(peer->link))
		tcp_event(state, EVENT_PEER_USED, peer->link->peer, 0);
	/* so that what follows the answer goes from the socket straight to its place, not through the receive buffer */
	p->s.bulky |= k->room > 0;
	tcp_stream_requeue(&p->s);
	return true;
}

/* aside: sessions whose READs are enough. True: the budget ended it. */
static bool pull(struct tcp_channel *ch, struct tcp_budget *b, struct dray_list *aside)
{
	struct core *c = tcp_of(ch)->c;
	struct tcp_requester *p;

	for (;;) {
		stage_channel_collect(c, &ch->ch);
		if (ch->n_open)
			stage_channel_fill(c, &ch->ch);
		if (!stage_channel_has_work(&ch->ch))
			return false;
		if (b->left <= 0)
			return true;
		tcp_connect(ch);
		tcp_helpers_feed(ch, aside);
		p = idle_stream(ch);
		/* Otherwise the first stream that becomes idle or opens queues the channel again. */
		if (!p || !batch_fill(p))
			return false;
		send_batch(p, b);
		tcp_stream_requeue(&p->s);
	}
}

bool tcp_channel_pull(struct tcp_channel *ch, struct tcp_budget *b)
{
	struct dray_list aside = DRAY_LIST_INIT(aside);
	bool more = pull(ch, b, &aside);

	sched_go_on(&aside);
	return more;
}

const struct tcp_side tcp_requester_side = {
	.head = answer_head,
	.blocked = answer_blocked,
	.hold = answer_hold,
	.release = answer_release,
	.gather = answer_gather,
	.advance = answer_advance,
	.fault = answer_fault,
	.complete = answer_complete,
	.broken = tcp_requester_lose,
	.step = requester_step,
	.wants = requester_wants,
	.tick = requester_tick,
	.freed = requester_freed,
};
