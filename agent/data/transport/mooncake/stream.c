/* SPDX-License-Identifier: Apache-2.0 */
/* A data connection to an engine: slices go out as calls, answers come back in the same order. */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/model/mooncake_buffers.h"
#include "lib/cleanup.h"

/* Payload after which a stream takes no further slice in one go: of WRITEs, which it sends, and of READs, which it only asks for. */
#define BATCH_BYTES (128 << 10)
#define BATCH_ASKED (256 << 10)
/* How long a transfer that stops waits for the answers to its WRITEs, which would prove that the engine is done with them. */
#define STOP_GRACE_NS (40 * DRAY_NS_PER_MS)
#define LOST_DETAIL "the connection to Mooncake's engine broke; what was in flight may be in place"
#define REFUSED_DETAIL \
	"Mooncake's engine refused it: its memory is not registered there any more; import its segment again"
#define SMALL_DETAIL "a piece of GPU memory goes to too many small buffers of Mooncake's engine"
#define PROTOCOL_DETAIL "Mooncake's engine sent something that is no answer of its protocol"

static struct core *core_of(const struct mooncake_stream *s)
{
	return mooncake_of(s->ch)->c;
}

static struct mooncake_call *call_at(struct mooncake_stream *s, uint32_t i)
{
	return &s->calls[i % MOONCAKE_CALLS];
}

static void ready_later(struct mooncake_stream *s)
{
	if (dray_list_empty(&s->ready_link))
		dray_list_add(&mooncake_of(s->ch)->calling[s->ch->ch.direct.class], &s->ready_link);
}

static void pull_later(struct mooncake_channel *ch)
{
	if (stage_channel_has_work(&ch->ch))
		stage_channel_pull_later(&ch->ch);
}

static void ready(struct loop_source *source, uint32_t events)
{
	struct mooncake_stream *s = dray_container_of(source, struct mooncake_stream, source);

	s->readable |= loop_can_read(events);
	s->writable |= loop_can_write(events);
	s->hup |= loop_hung_up(events);
	ready_later(s);
}

/* Whether the worker waits for an answer on it. */
static void update_awaited(struct mooncake_stream *s)
{
	bool awaited = s->head != s->tail;
	struct core *c = core_of(s);

	if (awaited == s->awaited)
		return;
	s->awaited = awaited;
	if (awaited) {
		c->awaited++;
		s->moved_ns = c->now_ns;
		mooncake_timer(mooncake_of(s->ch), s->moved_ns + c->cfg.slice_timeout_ns);
	} else {
		c->awaited--;
	}
}

/* --- the socket --- */

/* Its descriptor is closed; the ring stays. */
static void disconnect(struct mooncake_stream *s, bool reset)
{
	struct linger hard = { .l_onoff = 1 };
	struct core *c = core_of(s);

	if (s->state == MOONCAKE_OPEN || s->state == MOONCAKE_ENDING) {
		core_count_down(c->counters, DRAY_METRIC_MOONCAKE_STREAMS, 1);
		/* relaxed: a counter that orders nothing */
		atomic_fetch_sub_explicit(&s->ch->engine->link->streams, 1, memory_order_relaxed);
	}
	if (s->state == MOONCAKE_OPEN)
		s->ch->n_open--;
	loop_del(&c->loop, &s->source);
	if (reset && s->fd >= 0)
		setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	s->fd = dray_close(s->fd);
	s->readable = s->writable = s->hup = false;
	s->sent_of = s->received_of = 0;
}

/* The stream is over; its slices are the caller's. */
static void end(struct mooncake_stream *s, bool reset)
{
	if (s->state != MOONCAKE_ENDING)
		s->ch->n_streams--;
	disconnect(s, reset);
	s->state = MOONCAKE_OVER;
	s->head = s->sent = s->tail;
	update_awaited(s);
	dray_list_del(&s->ready_link);
	dray_list_move(&mooncake_of(s->ch)->over, &s->link);
}

void mooncake_stream_close(struct mooncake_stream *s)
{
	end(s, true);
}

/* 0 or -errno. */
static int connect_now(struct mooncake_stream *s)
{
	const struct dray_addr *addr = &s->ch->engine->link->addr;
	struct mooncake *m = mooncake_of(s->ch);
	struct core *c = m->c;
	dray_auto_close int fd =
		socket(addr->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int one = 1, r;

	if (fd < 0)
		return -errno;
	/* a failure is ignored: it only affects speed */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, &addr->sa, addr->len) < 0 && errno != EINPROGRESS)
		return -errno;
	r = loop_add(&c->loop, &s->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, ready);
	if (r < 0)
		return r;
	s->fd = dray_take_fd(fd);
	s->state = MOONCAKE_CONNECTING;
	s->connect_by_ns = c->now_ns + c->cfg.connect_timeout_ns;
	mooncake_timer(m, s->connect_by_ns);
	return 0;
}

static void connect_one(struct mooncake_channel *ch)
{
	struct mooncake_stream *s = malloc(sizeof(*s));
	int r = -ENOMEM;

	if (s) {
		memset(s, 0, offsetof(struct mooncake_stream, calls));
		s->ch = ch;
		s->fd = s->source.fd = -1;
		s->state = MOONCAKE_CONNECTING;
		dray_list_init(&s->ready_link);
		dray_list_add(&ch->streams, &s->link);
		ch->n_streams++;
		r = connect_now(s);
		if (r < 0)
			end(s, false);
	}
	if (r < 0)
		mooncake_channel_failed(ch, r == -ECONNREFUSED);
}

void mooncake_connect(struct mooncake_channel *ch)
{
	const struct core *c = mooncake_of(ch)->c;
	uint32_t want = ch->ch.direct.class == DMSG_CLASS_LATENCY ? 1 : c->cfg.mooncake_streams;

	if (!ch->n_open)
		want = 1;
	while (ch->n_streams < want && !ch->engine->lost) {
		if (ch->connect_ns > c->now_ns) {
			mooncake_timer(mooncake_of(ch), ch->connect_ns);
			return;
		}
		connect_one(ch);
	}
}

/* --- calls and slices --- */

static void skip_ended(struct mooncake_stream *s)
{
	while (s->sent != s->tail && !s->sent_of && call_at(s, s->sent)->skipped)
		s->sent++;
	while (s->head != s->sent && call_at(s, s->head)->skipped)
		s->head++;
	update_awaited(s);
}

/* Some of call i was sent. */
static bool was_begun(const struct mooncake_stream *s, uint32_t i)
{
	return i - s->head < s->sent - s->head || (i == s->sent && s->sent_of);
}

/* Call i is answered or will not be. The last one ends its slice, which is returned. */
static struct slice *call_over(struct mooncake_stream *s, const struct mooncake_call *call)
{
	struct mooncake_work *w = &s->works[call->work];
	struct slice *slice = w->slice;

	if (--w->calls)
		return NULL;
	w->slice = NULL;
	s->n_works--;
	return slice;
}

static void finish(struct mooncake_stream *s, const struct mooncake_work *w, struct slice *slice)
{
	struct core *c = core_of(s);

	if (w->again && slice_wanted(slice)) {
		dray_list_add(&s->ch->ch.retry, &slice->link);
		pull_later(s->ch);
	} else if (w->again || !slice_wanted(slice)) {
		xfer_slice_done(c, slice, slice->xfer->code, NULL);
	} else if (slice->staged && slice->xfer->direction == DMSG_DIRECTION_READ) {
		stage_channel_scatter(c, slice);
	} else {
		xfer_slice_done(c, slice, 0, NULL);
	}
}

/* Calls of the work that were not begun will not be sent. */
static void skip_calls(struct mooncake_stream *s, const struct mooncake_work *w)
{
	for (uint32_t i = s->sent; i != s->tail; i++) {
		struct mooncake_call *call = call_at(s, i);

		if (&s->works[call->work] != w || call->skipped || was_begun(s, i))
			continue;
		call->skipped = true;
		s->works[call->work].calls--;
	}
}

static bool has_begun_call(struct mooncake_stream *s, const struct mooncake_work *w)
{
	for (uint32_t i = s->head; i != s->tail && was_begun(s, i); i++)
		if (&s->works[call_at(s, i)->work] == w && !call_at(s, i)->skipped)
			return true;
	return false;
}

/*
 * The call that is being sent will not be complete: sends the end of the stream, so that the engine gives it up. The calls before it
 * are still answered, those behind it go over another stream.
 */
static void tear(struct mooncake_stream *s)
{
	struct mooncake_call *torn = call_at(s, s->sent);
	uint64_t used = 0;

	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->works[i];
		uint32_t before = w->calls;

		if (!before)
			continue;
		used |= UINT64_C(1) << i;
		skip_calls(s, w);
		w->again |= w->calls != before;
	}
	torn->skipped = true;
	s->works[torn->work].calls--;
	s->tail = s->sent;
	s->sent_of = 0;
	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->works[i];

		if (!(used & UINT64_C(1) << i) || w->calls)
			continue;
		if (w->slice)
			dray_list_add(&s->ch->ch.retry, &w->slice->link);
		w->slice = NULL;
		s->n_works--;
	}
	shutdown(s->fd, SHUT_WR);
	s->ch->n_open--;
	s->ch->n_streams--;
	s->state = MOONCAKE_ENDING;
	skip_ended(s);
	if (s->head == s->tail)
		end(s, false);
	pull_later(s->ch);
}

/* Takes the slice from the stream: this side does not touch its memory any more. */
static void detach(struct mooncake_stream *s, struct mooncake_work *w, struct dray_list *over)
{
	bool torn = false;

	dray_list_add(over, &w->slice->link);
	w->slice = NULL;
	w->again = false;
	skip_calls(s, w);
	for (uint32_t i = s->head; i != s->tail && was_begun(s, i); i++) {
		struct mooncake_call *call = call_at(s, i);

		if (&s->works[call->work] != w || call->skipped)
			continue;
		call->dead = true;
		torn |= i == s->sent && call->write;
	}
	if (!w->calls)
		s->n_works--;
	skip_ended(s);
	if (torn)
		tear(s);
}

void mooncake_stream_stop(struct mooncake_stream *s, const struct xfer *x, bool urgent,
			  struct dray_list *over)
{
	struct core *c = core_of(s);

	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->works[i];

		if (!w->slice || (x && w->slice->xfer != x))
			continue;
		if (urgent || w->slice->xfer->direction == DMSG_DIRECTION_READ ||
		    !has_begun_call(s, w)) {
			detach(s, w, over);
			continue;
		}
		skip_calls(s, w);
		w->again = true;
		if (!w->limit_ns)
			w->limit_ns = c->now_ns + STOP_GRACE_NS;
		mooncake_timer(mooncake_of(s->ch), w->limit_ns);
		skip_ended(s);
	}
	pull_later(s->ch);
}

static void slices_end(struct core *c, struct dray_list *slices, uint32_t code, const char *detail)
{
	struct slice *s;

	while ((s = dray_list_pop(slices, struct slice, link)))
		xfer_slice_done(c, s, code, detail);
}

/*
 * The connection is unusable. answered: the engine has carried out nothing that it has not answered. code: what READs end with; 0: they
 * are sent again.
 */
static void lose(struct mooncake_stream *s, bool answered, uint32_t code, const char *detail)
{
	struct dray_list over = DRAY_LIST_INIT(over), lost = DRAY_LIST_INIT(lost),
			 failed = DRAY_LIST_INIT(failed);
	struct mooncake_channel *ch = s->ch;
	struct core *c = core_of(s);

	core_count(c->counters, DRAY_METRIC_MOONCAKE_STREAMS_LOST_TOTAL, 1);
	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->works[i];
		struct slice *slice = w->slice;
		bool write = slice && slice->xfer->direction == DMSG_DIRECTION_WRITE;
		bool begun = slice && has_begun_call(s, w);

		if (!slice)
			continue;
		w->slice = NULL;
		slice->retried |= begun;
		if (!slice_wanted(slice)) {
			dray_list_add(&over, &slice->link);
		} else if (w->code || (begun && code && !(write && !answered))) {
			slice->end_code = w->code ? w->code : code;
			dray_list_add(&failed, &slice->link);
		} else if (write && begun && !answered) {
			dray_list_add(&lost, &slice->link);
		} else {
			dray_list_add(&ch->ch.retry, &slice->link);
		}
	}
	end(s, true);
	pull_later(ch);
	if (!s->useful)
		mooncake_channel_failed(ch, false);
	xfer_slices_end(c, &over, 0);
	slices_end(c, &lost, DRAY_E_PEER_LOST, LOST_DETAIL);
	while (!dray_list_empty(&failed)) {
		struct slice *slice = dray_list_pop(&failed, struct slice, link);

		xfer_slice_done(c, slice, slice->end_code, detail);
	}
}

/* --- sending --- */

/* The piece of the slice at seg, behind `of` bytes of it, up to the end of its buffer. 0: the buffer is unknown. */
static uint64_t piece(const struct slice *slice, uint32_t seg, uint64_t of)
{
	const struct remote_view *remote = object_remote(slice->xfer->remote);
	uint64_t at = slice->remote[seg].offset + of;
	uint64_t end = mooncake_buffers_end(remote->mooncake, at);

	return end ? dray_min(slice->remote[seg].length - of, end - at) : 0;
}

/* Bytes of the slice that MOONCAKE_SLICE_CALLS calls move. */
static uint64_t bytes_of_calls(const struct slice *slice)
{
	uint64_t sum = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < slice->n_remote; i++)
		for (uint64_t of = 0; of < slice->remote[i].length; n++) {
			uint64_t bytes = piece(slice, i, of);

			if (n == MOONCAKE_SLICE_CALLS || !bytes)
				return sum;
			of += bytes;
			sum += bytes;
		}
	return sum;
}

static dray_handle session_of(const struct slice *slice)
{
	return slice->xfer->session->handle;
}

static void enqueue(struct mooncake_stream *s, struct slice *slice)
{
	bool write = slice->xfer->direction == DMSG_DIRECTION_WRITE;
	struct core *c = core_of(s);
	uint64_t at = 0;
	uint8_t k = 0;

	while (s->works[k].calls)
		k++;
	if (slice->retried)
		core_count(c->counters, DRAY_METRIC_SLICES_RESENT_TOTAL, 1);
	s->works[k] = (struct mooncake_work){ .slice = slice };
	s->session = session_of(slice);
	s->n_works++;
	slice->posted_ns = c->now_ns;
	for (uint32_t i = 0; i < slice->n_remote; i++)
		for (uint64_t of = 0; of < slice->remote[i].length;) {
			uint64_t bytes = piece(slice, i, of);

			*call_at(s, s->tail) = (struct mooncake_call){
				.bytes = bytes, .at = at, .work = k, .write = write
			};
			mooncake_request_put(s->heads[s->tail % MOONCAKE_CALLS],
					     &(struct mooncake_request){
						     .length = bytes,
						     .address = slice->remote[i].offset + of,
						     .write = write,
						     .with_status = s->ch->engine->with_status,
					     });
			s->tail++;
			s->works[k].calls++;
			of += bytes;
			at += bytes;
		}
	update_awaited(s);
}

/* The next slice to send, with no more calls than a slice may have. */
static struct slice *next_slice(struct mooncake_channel *ch)
{
	struct core *c = mooncake_of(ch)->c;
	struct slice *s = dray_list_pop(&ch->ch.retry, struct slice, link), *rest;
	uint64_t bytes;

	if (!s)
		s = stage_channel_next(c, &ch->ch);
	if (!s)
		return NULL;
	bytes = bytes_of_calls(s);
	if (bytes == s->bytes)
		return s;
	rest = bytes && !s->staged ? sched_split(c, s, bytes) : NULL;
	if (rest) {
		dray_list_add_front(&ch->ch.retry, &rest->link);
		return s;
	}
	if (!bytes)
		xfer_slice_done(c, s, DRAY_E_RANGE, NULL);
	else
		xfer_slice_done(c, s, s->staged ? DRAY_E_UNSUPPORTED : DRAY_E_NO_MEMORY,
				s->staged ? SMALL_DETAIL : NULL);
	return next_slice(ch);
}

static bool has_room(const struct mooncake_stream *s)
{
	const struct core *c = core_of(s);
	uint32_t works = dray_min(c->cfg.tcp_slices_in_flight, MOONCAKE_WORKS);

	return s->state == MOONCAKE_OPEN && s->writable && s->sent == s->tail && !s->sent_of &&
	       s->n_works < works && MOONCAKE_CALLS - (s->tail - s->head) >= MOONCAKE_SLICE_CALLS;
}

/* Takes the slice, and others of its session behind it. */
static void batch_fill(struct mooncake_stream *s, struct slice *slice)
{
	const struct core *c = core_of(s);
	uint32_t works = dray_min(c->cfg.tcp_slices_in_flight, MOONCAKE_WORKS);
	uint64_t sent = 0, asked = 0;

	while (slice) {
		if (slice->xfer->direction == DMSG_DIRECTION_WRITE)
			sent += slice->bytes;
		else
			asked += slice->bytes;
		enqueue(s, slice);
		if (sent >= BATCH_BYTES || asked >= BATCH_ASKED || s->n_works >= works ||
		    MOONCAKE_CALLS - (s->tail - s->head) < MOONCAKE_SLICE_CALLS)
			return;
		slice = next_slice(s->ch);
		if (slice && (s->state != MOONCAKE_OPEN || s->session != session_of(slice))) {
			dray_list_add_front(&s->ch->ch.retry, &slice->link);
			return;
		}
	}
}

/* Adds [from, from + n) of the slice's bytes. Returns the number of ranges; *ret_n: bytes of them. */
static unsigned add_memory(const struct slice *slice, uint64_t from, uint64_t n, struct iovec *iov,
			   unsigned k, uint64_t *ret_n)
{
	struct iovec staged;
	unsigned n_memory;
	const struct iovec *memory = slice_memory(slice, &staged, &n_memory);
	uint64_t left = n;

	for (unsigned i = 0; i < n_memory && left && k < MOONCAKE_OUT_IOV; i++) {
		uint64_t size;

		if (from >= memory[i].iov_len) {
			from -= memory[i].iov_len;
			continue;
		}
		size = dray_min((uint64_t)memory[i].iov_len - from, left);
		iov[k++] = (struct iovec){ (uint8_t *)memory[i].iov_base + from, size };
		left -= size;
		from = 0;
	}
	*ret_n = n - left;
	return k;
}

/* Bytes of a call on the wire. */
static uint64_t call_size(const struct mooncake_call *call)
{
	return MOONCAKE_REQUEST_BYTES + (call->write ? call->bytes : 0);
}

/* Gathers what is sent next, of at most max calls and about `room` bytes. */
static unsigned gather(struct mooncake_stream *s, unsigned max, uint64_t room)
{
	struct iovec *iov = mooncake_of(s->ch)->out_iov;
	uint64_t of = s->sent_of, n;
	unsigned k = 0;

	for (uint32_t i = s->sent; i != s->tail && max && k + 2 < MOONCAKE_OUT_IOV; i++) {
		const struct mooncake_call *call = call_at(s, i);
		uint64_t want;

		if (call->skipped)
			continue;
		max--;
		if (of < MOONCAKE_REQUEST_BYTES) {
			iov[k++] = (struct iovec){ s->heads[i % MOONCAKE_CALLS] + of,
						   MOONCAKE_REQUEST_BYTES - of };
			of = MOONCAKE_REQUEST_BYTES;
		}
		if (call->write) {
			want = dray_min(call_size(call) - of, room);
			k = add_memory(s->works[call->work].slice,
				       call->at + of - MOONCAKE_REQUEST_BYTES, want, iov, k, &n);
			room -= n;
			if (n < call_size(call) - of)
				break;
		}
		of = 0;
	}
	return k;
}

/* The kernel has taken n bytes. */
static void calls_sent(struct mooncake_stream *s, uint64_t n)
{
	struct core *c = core_of(s);
	uint64_t payload = 0;

	while (n) {
		struct mooncake_call *call = call_at(s, s->sent);
		uint64_t take;

		if (call->skipped) {
			s->sent++;
			continue;
		}
		take = dray_min(n, call_size(call) - s->sent_of);
		payload += take - (s->sent_of < MOONCAKE_REQUEST_BYTES ?
					   dray_min(take, MOONCAKE_REQUEST_BYTES - s->sent_of) :
					   0);
		n -= take;
		s->sent_of += take;
		if (s->sent_of == call_size(call)) {
			s->sent++;
			s->sent_of = 0;
		}
	}
	core_count(c->counters, DRAY_METRIC_MOONCAKE_WRITTEN_BYTES_TOTAL, payload);
	/* relaxed: a counter that orders nothing */
	atomic_fetch_add_explicit(&s->ch->engine->link->bytes_sent, payload, memory_order_relaxed);
	skip_ended(s);
}

/* The memory of this call's slice faulted. */
static void fault(struct mooncake_stream *s, struct mooncake_call *call)
{
	struct mooncake_work *w = &s->works[call->work];
	struct dray_list over = DRAY_LIST_INIT(over);
	struct core *c = core_of(s);

	xfer_memory_fault(c, w->slice->xfer->local->view->session);
	detach(s, w, &over);
	slices_end(c, &over, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL);
}

/* Version 1 has no status, so the next call waits until this one is over. */
static bool may_send(const struct mooncake_stream *s)
{
	return s->state == MOONCAKE_OPEN && s->sent != s->tail && s->writable &&
	       (s->ch->engine->with_status || s->head == s->sent);
}

static void send_calls(struct mooncake_stream *s, int64_t *budget)
{
	unsigned max = s->ch->engine->with_status ? UINT_MAX : 1;

	while (may_send(s) && *budget > 0) {
		struct msghdr msg = { .msg_iov = mooncake_of(s->ch)->out_iov };
		uint32_t first = s->sent;
		ssize_t n;

		msg.msg_iovlen =
			gather(s, max, (uint64_t)dray_max(*budget, (int64_t)MOONCAKE_SINK));
		n = sendmsg(s->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		*budget -= MOONCAKE_CALL_COST;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			s->writable = false;
		} else if (n < 0 && errno == EFAULT && max > 1) {
			/* one call at a time, to find the one that faults */
			max = 1;
		} else if (n < 0 && errno == EFAULT) {
			fault(s, call_at(s, s->sent));
		} else if (n < 0) {
			/* answers that came before the end, such as a refusal, are read first */
			s->writable = false;
			s->readable = true;
		} else {
			*budget -= n;
			s->moved_ns = core_of(s)->now_ns;
			calls_sent(s, (uint64_t)n);
			if (!s->ch->engine->with_status && s->sent != first &&
			    call_at(s, first)->write)
				shutdown(s->fd, SHUT_WR);
		}
	}
}

/* --- receiving --- */

static uint64_t answer_size(const struct mooncake_stream *s, const struct mooncake_call *call)
{
	return (s->ch->engine->with_status ? MOONCAKE_STATUS_BYTES : 0) +
	       (call->write ? 0 : call->bytes);
}

static unsigned add_sink(struct mooncake *m, uint64_t n, struct iovec *iov, unsigned k,
			 uint64_t *ret_n)
{
	*ret_n = dray_min(n, (uint64_t)MOONCAKE_SINK);
	iov[k] = (struct iovec){ m->sink, *ret_n };
	return k + 1;
}

/* Gathers the places of the next answers, of at most max calls. */
static unsigned places(struct mooncake_stream *s, unsigned max, uint64_t room)
{
	uint64_t status_n = s->ch->engine->with_status ? MOONCAKE_STATUS_BYTES : 0;
	struct mooncake *m = mooncake_of(s->ch);
	struct iovec *iov = m->out_iov;
	uint64_t of = s->received_of, n;
	unsigned k = 0, answer = 0;

	memcpy(m->answers[0], s->status, MOONCAKE_STATUS_BYTES);
	/* an engine may refuse a call before all of it is sent */
	for (uint32_t i = s->head;
	     i != s->tail && was_begun(s, i) && answer < max && k + 2 < MOONCAKE_OUT_IOV; i++) {
		const struct mooncake_call *call = call_at(s, i);
		uint64_t want;

		if (call->skipped)
			continue;
		if (of < status_n) {
			iov[k++] = (struct iovec){ m->answers[answer] + of, status_n - of };
			of = status_n;
		}
		answer++;
		if (!call->write && i != s->sent) {
			want = dray_min(answer_size(s, call) - of, room);
			if (call->dead)
				k = add_sink(m, want, iov, k, &n);
			else
				k = add_memory(s->works[call->work].slice, call->at + of - status_n,
					       want, iov, k, &n);
			room -= n;
			if (n < answer_size(s, call) - of)
				break;
		}
		of = 0;
	}
	return k;
}

/* The status of the first call. False: the stream is over. */
static bool check_status(struct mooncake_stream *s)
{
	struct mooncake_call *call = call_at(s, s->head);
	enum mooncake_status status;

	if (mooncake_status_get(s->status, &status) < 0 ||
	    (status == MOONCAKE_STATUS_OK && s->head == s->sent)) {
		lose(s, false, DRAY_E_PROTOCOL, PROTOCOL_DETAIL);
		return false;
	}
	if (status == MOONCAKE_STATUS_OK)
		return true;
	core_count(core_of(s)->counters, DRAY_METRIC_MOONCAKE_CALLS_REFUSED_TOTAL, 1);
	s->works[call->work].code = DRAY_E_REVOKED;
	s->useful = true;
	/* the engine closes, and carries out nothing behind it */
	lose(s, true, 0, REFUSED_DETAIL);
	return false;
}

/* The first call is answered. */
static void answered(struct mooncake_stream *s)
{
	const struct mooncake_call *call = call_at(s, s->head);
	const struct mooncake_work *w = &s->works[call->work];
	struct slice *slice = call_over(s, call);

	s->received_of = 0;
	s->head++;
	s->useful = true;
	s->ch->fails = 0;
	core_count(core_of(s)->counters, DRAY_METRIC_MOONCAKE_CALLS_TOTAL, 1);
	skip_ended(s);
	if (slice)
		finish(s, w, slice);
}

/* n more bytes of answers are in their places. False: the stream is over. */
static bool answers_received(struct mooncake_stream *s, uint64_t n)
{
	uint64_t status_n = s->ch->engine->with_status ? MOONCAKE_STATUS_BYTES : 0;
	struct mooncake *m = mooncake_of(s->ch);
	struct core *c = m->c;

	for (unsigned answer = 0; n; answer++) {
		struct mooncake_call *call = call_at(s, s->head);
		uint64_t size = answer_size(s, call);
		uint64_t take = dray_min(n, size - s->received_of), payload = take;

		if (s->received_of < status_n) {
			uint64_t head = dray_min(take, status_n - s->received_of);

			memcpy(s->status, m->answers[answer], MOONCAKE_STATUS_BYTES);
			payload -= head;
			if (s->received_of + head == status_n && !check_status(s))
				return false;
		}
		n -= take;
		s->received_of += take;
		core_count(c->counters, DRAY_METRIC_MOONCAKE_READ_BYTES_TOTAL, payload);
		/* relaxed: a counter that orders nothing */
		atomic_fetch_add_explicit(&s->ch->engine->link->bytes_received, payload,
					  memory_order_relaxed);
		if (s->received_of == size)
			answered(s);
		if (s->state == MOONCAKE_OVER)
			return false;
	}
	return true;
}

/* The engine's end of the stream. */
static void closed(struct mooncake_stream *s)
{
	if (!s->ch->engine->with_status && s->head != s->sent && call_at(s, s->head)->write)
		answered(s); /* version 1 */
	else if (s->head == s->tail)
		end(s, false);
	else
		lose(s, false, 0, NULL);
}

/* Version 1: the next call needs another connection. False: the stream is over. */
static bool reconnect(struct mooncake_stream *s)
{
	if (s->head == s->tail) {
		end(s, false);
		pull_later(s->ch);
		return false;
	}
	disconnect(s, false);
	s->state = MOONCAKE_CONNECTING;
	if (connect_now(s) >= 0)
		return true;
	lose(s, false, 0, NULL);
	return false;
}

static bool is_used_up(const struct mooncake_stream *s, uint32_t head)
{
	return !s->ch->engine->with_status && s->head != head && s->head == s->sent && !s->sent_of;
}

static void receive_answers(struct mooncake_stream *s, int64_t *budget)
{
	unsigned max = MOONCAKE_ANSWERS;

	while ((s->state == MOONCAKE_OPEN || s->state == MOONCAKE_ENDING) && s->readable &&
	       *budget > 0) {
		struct mooncake *m = mooncake_of(s->ch);
		struct msghdr msg = { .msg_iov = m->out_iov };
		uint32_t head = s->head;
		uint8_t extra;
		ssize_t n;

		msg.msg_iovlen =
			places(s, max, (uint64_t)dray_max(*budget, (int64_t)MOONCAKE_SINK));
		if (msg.msg_iovlen)
			n = recvmsg(s->fd, &msg, MSG_DONTWAIT);
		else
			n = recv(s->fd, &extra, sizeof(extra), MSG_DONTWAIT);
		*budget -= MOONCAKE_CALL_COST;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			s->readable = false;
		} else if (n < 0 && errno == EFAULT && max > 1) {
			max = 1;
		} else if (n < 0 && errno == EFAULT) {
			fault(s, call_at(s, s->head));
		} else if (n < 0) {
			lose(s, false, 0, NULL);
		} else if (!n) {
			closed(s);
		} else if (!msg.msg_iovlen) {
			lose(s, false, DRAY_E_PROTOCOL, PROTOCOL_DETAIL);
		} else {
			*budget -= n;
			s->moved_ns = m->c->now_ns;
			if (!answers_received(s, (uint64_t)n))
				return;
			/* a call that took all that was asked for has emptied the socket, unless its end is there as well */
			if (s->head == s->sent && !s->hup)
				s->readable = false;
		}
		if (s->state == MOONCAKE_OPEN && is_used_up(s, head) && !reconnect(s))
			return;
		if (s->state == MOONCAKE_ENDING && s->head == s->tail)
			end(s, false);
	}
}

/* --- a turn --- */

static void connect_step(struct mooncake_stream *s)
{
	struct mooncake_channel *ch = s->ch;
	socklen_t len = sizeof(int);
	int error = 0;

	if (!s->writable)
		return;
	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
		if (s->head != s->tail) {
			lose(s, false, 0, NULL);
			return;
		}
		core_count(core_of(s)->counters, DRAY_METRIC_MOONCAKE_STREAMS_LOST_TOTAL, 1);
		end(s, false);
		mooncake_channel_failed(ch, error == ECONNREFUSED);
		return;
	}
	s->state = MOONCAKE_OPEN;
	s->moved_ns = core_of(s)->now_ns;
	ch->n_open++;
	core_count(core_of(s)->counters, DRAY_METRIC_MOONCAKE_STREAMS, 1);
	/* relaxed: a counter that orders nothing */
	atomic_fetch_add_explicit(&ch->engine->link->streams, 1, memory_order_relaxed);
}

bool mooncake_stream_wants(const struct mooncake_stream *s)
{
	if (s->state == MOONCAKE_CONNECTING)
		return s->writable;
	return (s->state == MOONCAKE_OPEN || s->state == MOONCAKE_ENDING) &&
	       (s->readable || may_send(s));
}

void mooncake_stream_step(struct mooncake_stream *s, int64_t *budget)
{
	if (s->state == MOONCAKE_CONNECTING)
		connect_step(s);
	receive_answers(s, budget);
	send_calls(s, budget);
	if (has_room(s))
		pull_later(s->ch);
}

bool mooncake_stream_tick(struct mooncake_stream *s)
{
	struct mooncake *m = mooncake_of(s->ch);
	struct dray_list over = DRAY_LIST_INIT(over);
	struct core *c = m->c;
	int64_t limit = s->moved_ns + c->cfg.slice_timeout_ns;
	bool ended = false;

	if (s->state == MOONCAKE_CONNECTING && c->now_ns >= s->connect_by_ns) {
		lose(s, false, 0, NULL);
		return true;
	}
	if (s->state == MOONCAKE_CONNECTING) {
		mooncake_timer(m, s->connect_by_ns);
		return false;
	}
	for (uint32_t i = 0; i < MOONCAKE_WORKS && s->state != MOONCAKE_OVER; i++) {
		struct mooncake_work *w = &s->works[i];

		if (!w->slice || !w->limit_ns)
			continue;
		if (c->now_ns >= w->limit_ns)
			detach(s, w, &over);
		else
			mooncake_timer(m, w->limit_ns);
	}
	if (s->state != MOONCAKE_OVER && s->head != s->tail) {
		if (c->now_ns >= limit) {
			lose(s, false, 0, NULL);
			ended = true;
		} else {
			mooncake_timer(m, limit);
		}
	}
	ended |= !dray_list_empty(&over) || s->state == MOONCAKE_OVER;
	xfer_slices_end(c, &over, 0);
	return ended;
}

/*
 * A stream with room. session: for slices of this one, so that a call that the engine refuses, which breaks its stream, is felt by its own
 * session alone; 0: of any.
 */
static struct mooncake_stream *idle_stream(struct mooncake_channel *ch, dray_handle session)
{
	struct mooncake_stream *best = NULL;

	dray_list_for_each(&ch->streams, s, struct mooncake_stream, link)
		if (has_room(s) && (!session || !s->n_works || s->session == session) &&
		    (!best || s->n_works < best->n_works))
			best = s;
	return best;
}

bool mooncake_channel_pull(struct mooncake_channel *ch, int64_t *budget)
{
	struct core *c = mooncake_of(ch)->c;
	struct mooncake_stream *s;
	struct slice *slice;

	for (;;) {
		stage_channel_collect(c, &ch->ch);
		if (ch->n_open)
			stage_channel_fill(c, &ch->ch);
		if (!stage_channel_has_work(&ch->ch))
			return false;
		if (*budget <= 0)
			return true;
		mooncake_connect(ch);
		/* Otherwise the first stream that has room or opens queues the channel again. */
		slice = idle_stream(ch, 0) ? next_slice(ch) : NULL;
		if (!slice)
			return false;
		s = idle_stream(ch, session_of(slice));
		if (!s) {
			dray_list_add_front(&ch->ch.retry, &slice->link);
			return false;
		}
		batch_fill(s, slice);
		send_calls(s, budget);
		if (s->state != MOONCAKE_OVER && mooncake_stream_wants(s))
			ready_later(s);
	}
}
