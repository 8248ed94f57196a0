/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requesters and servers share: the socket, readiness, and receiving.
 *
 * Incoming bytes are payload, whose place the side names, or frame heads, which go to the receive buffer.
 * One recvmsg() is given the places of all missing payload, and the receive buffer behind them: so the end
 * of a payload and the next head arrive together. The part of the buffer that is offered decides how much
 * payload of the next frame is copied twice: little after a bulky frame; all of the buffer after a small
 * one, because then one call brings many frames.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/congestion.h"
#include "lib/fault.h"

/* Payload of a bulky frame, at least: copying it twice costs about as much as a system call. */
#define BULKY 16384
/* A WRITE is large while more bytes than these are to come. */
#define LARGE 65536
/*
 * How long large WRITEs go on to form a series after one came together with the end of the one before. Where this end is faster than the
 * sender, most of them come alone.
 */
#define SERIES_NS (10 * (int64_t)DRAY_NS_PER_MS)
/* Bytes that wake the worker in a series, while more than these are to come. */
#define WAKE_BYTES (128 << 10)

static void ready(struct loop_source *source, uint32_t events)
{
	struct tcp_stream *s = dray_container_of(source, struct tcp_stream, source);

	s->readable |= loop_can_read(events);
	s->writable |= loop_can_write(events);
	s->hup |= loop_hung_up(events);
	if (dray_list_empty(&s->ready_link))
		dray_list_add(&s->tcp->ready[s->class], &s->ready_link);
}

void *tcp_stream_new(struct tcp *t, struct tcp_peer *peer, const struct tcp_side *side, size_t size,
		     size_t zeroed, unsigned buffers)
{
	struct tcp_stream *s;

	if (tcp_pool_reserve(t, buffers) < 0)
		return NULL;
	s = malloc(size);
	if (!s) {
		tcp_pool_unreserve(t, buffers);
		return NULL;
	}
	memset(s, 0, zeroed);
	s->tcp = t;
	s->peer = peer;
	s->side = side;
	s->buffers = buffers;
	s->fd = -1;
	s->source.fd = -1;
	dray_list_init(&s->ready_link);
	dray_list_init(&s->peer_link);
	dray_list_add(&t->streams, &s->link);
	return s;
}

void tcp_socket_setup(const struct tcp *t, int fd)
{
	int one = 1, bytes = (int)dray_min(t->c->cfg.tcp_buffer, (uint64_t)INT32_MAX);

	/* Failures are ignored: these options only affect speed. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (t->set_send_buffer)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	if (t->set_receive_buffer)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

int tcp_stream_watch(struct tcp_stream *s, int fd)
{
	int ret =
		loop_add(&s->tcp->c->loop, &s->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, ready);

	if (ret < 0)
		return ret;
	s->fd = fd;
	return 0;
}

void tcp_stream_opened(struct tcp_stream *s)
{
	dray_congestion_connected(s->fd);
	s->state = TCP_OPEN;
	s->moved_ns = s->tcp->c->now_ns;
	core_count(s->tcp->c->counters, DRAY_METRIC_TCP_STREAMS, 1);
	/* relaxed, here and below: counters that order nothing */
	atomic_fetch_add_explicit(&s->peer->link->streams, 1, memory_order_relaxed);
}

bool tcp_stream_seals(struct tcp_stream *s, const uint8_t agent_id[16])
{
	for (enum seal_side side = SEAL_FIND; side <= SEAL_FOUND; side++)
		if (!s->seals[side])
			s->seals[side] = seal_new(s->peer->link->stream_key, agent_id, s->id, side);
	return s->seals[SEAL_FIND] && s->seals[SEAL_FOUND];
}

/* The stream receives large WRITEs that follow each other, so that only the rate matters. A lone one is better polled for. */
static bool in_series(struct tcp_stream *s)
{
	if (s->state != TCP_OPEN || s->side == &tcp_requester_side)
		return false;
	if (s->follows && s->payload_left > LARGE)
		s->series_ns = s->moved_ns;
	return s->series_ns && s->moved_ns - s->series_ns < SERIES_NS;
}

/*
 * Each wake-up costs both ends. A mark below the rest of the payload cannot keep its end from being received, and when the mark is
 * reset the kernel tells what is there. A failure is ignored: then the parts come as before.
 */
static void update_mark(struct tcp_stream *s)
{
	bool mark = s->filling && s->payload_left > WAKE_BYTES;
	int bytes = mark ? WAKE_BYTES : 1;

	if (mark != s->marked &&
	    setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0)
		s->marked = mark;
}

/* After payload_left or the state has changed. */
static void update_filling(struct tcp_stream *s)
{
	bool filling = in_series(s);

	if (filling)
		s->tcp->c->filled_ns = s->moved_ns;
	if (filling && !s->filling)
		s->tcp->c->filling++;
	else if (!filling && s->filling)
		s->tcp->c->filling--;
	s->filling = filling;
	if (s->state == TCP_OPEN)
		update_mark(s);
}

void tcp_stream_close(struct tcp_stream *s, bool reset)
{
	struct linger hard = { .l_onoff = 1 };

	if (s->state == TCP_OPEN) {
		core_count_down(s->tcp->c->counters, DRAY_METRIC_TCP_STREAMS, 1);
		atomic_fetch_sub_explicit(&s->peer->link->streams, 1, memory_order_relaxed);
	}
	s->state = TCP_CLOSED;
	loop_del(&s->tcp->c->loop, &s->source);
	if (reset && s->fd >= 0)
		setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	s->fd = dray_close(s->fd);
	dray_list_del(&s->ready_link);
	if (s->in)
		tcp_pool_put(s->tcp, s->in);
	s->in = NULL;
	s->in_rd = s->in_wr = 0;
	s->payload_left = 0;
	update_filling(s);
	for (unsigned i = 0; i < 2; i++)
		s->seals[i] = seal_free(s->seals[i]);
}

void tcp_stream_free_later(struct tcp_stream *s)
{
	dray_list_del(&s->peer_link);
	dray_list_move(&s->tcp->closed, &s->link);
}

void tcp_free_closed(struct tcp *t)
{
	dray_list_for_each(&t->closed, s, struct tcp_stream, link) {
		dray_list_del(&s->link);
		tcp_pool_unreserve(t, s->buffers);
		if (s->side->freed)
			s->side->freed(s);
		free(s); /* the first member of the allocation */
	}
}

void tcp_stream_requeue(struct tcp_stream *s)
{
	if (s->state != TCP_CLOSED && dray_list_empty(&s->ready_link) && s->side->wants(s))
		dray_list_add(&s->tcp->ready[s->class], &s->ready_link);
}

static void count_received(struct tcp_stream *s, uint64_t payload)
{
	core_count(s->tcp->c->counters, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL, payload);
	atomic_fetch_add_explicit(&s->peer->link->bytes_received, payload, memory_order_relaxed);
}

void tcp_count_sent(struct tcp_stream *s, uint64_t payload)
{
	core_count(s->tcp->c->counters, DRAY_METRIC_TCP_SENT_BYTES_TOTAL, payload);
	atomic_fetch_add_explicit(&s->peer->link->bytes_sent, payload, memory_order_relaxed);
}

/* True until release(): payload may be written to its place. False: it is discarded from now on. */
static bool hold(struct tcp_stream *s)
{
	return !s->side->hold || s->side->hold(s);
}

static void release(struct tcp_stream *s)
{
	if (s->side->release)
		s->side->release(s);
}

/* Copies payload from the receive buffer to its place. */
static void copy_buffered(struct tcp_stream *s)
{
	uint64_t n = dray_min(s->payload_left, (uint64_t)(s->in_wr - s->in_rd));
	uint64_t done = 0;

	while (done < n && !s->sink && hold(s)) {
		struct iovec *iov = s->tcp->iov;
		uint64_t bytes;
		unsigned k = s->side->gather(s, iov, TCP_IOV, &bytes);

		for (unsigned i = 0; i < k && done < n; i++) {
			uint64_t piece = dray_min((uint64_t)iov[i].iov_len, n - done);

			if (fault_copy(iov[i].iov_base, s->in + s->in_rd + done, piece) < 0) {
				s->side->fault(s);
				/* the end of a transfer may end its session, and with it this stream */
				if (s->state != TCP_OPEN)
					return;
				break;
			}
			s->side->advance(s, piece);
			s->payload_left -= piece;
			done += piece;
		}
		release(s);
		if (!k)
			break;
	}
	/* A sink discards the rest, also after a fault. Otherwise the rest waits for a place. */
	if (s->sink)
		s->payload_left -= n - done;
	else
		n = done;
	s->in_rd += (uint32_t)n;
	count_received(s, n);
	if (!s->payload_left) {
		s->follows = s->in_rd < s->in_wr;
		s->side->complete(s);
	}
}

/* Handles what the receive buffer holds. False: the stream closed. */
static bool parse(struct tcp_stream *s)
{
	s->incomplete = false;
	while (s->in_rd < s->in_wr) {
		int n;

		if (s->side->blocked(s))
			return true;
		if (s->payload_left) {
			copy_buffered(s);
			if (s->state != TCP_OPEN)
				return false;
			continue;
		}
		n = s->side->head(s, s->in + s->in_rd, s->in_wr - s->in_rd);
		if (s->state != TCP_OPEN)
			return false;
		if (n < 0) {
			s->side->broken(s);
			return false;
		}
		if (n == 0) {
			s->incomplete = !s->parked;
			return true;
		}
		s->in_rd += (uint32_t)n;
		s->bulky = s->payload_left >= BULKY;
	}
	if (s->in) {
		tcp_pool_put(s->tcp, s->in);
		s->in = NULL;
		s->in_rd = s->in_wr = 0;
	}
	return true;
}

/* Places for discarded payload: the same memory again and again. */
static unsigned gather_sink(struct tcp_stream *s, struct iovec *iov, unsigned max,
			    uint64_t *ret_bytes)
{
	uint64_t left = s->payload_left;
	unsigned n = 0;

	while (left && n < max && n < 16) {
		iov[n] = (struct iovec){ s->tcp->sink,
					 (size_t)dray_min(left, (uint64_t)TCP_BUFFER) };
		left -= iov[n++].iov_len;
	}
	*ret_bytes = s->payload_left - left;
	return n;
}

/* The part of the receive buffer that the next system call may fill. */
static struct iovec receive_room(struct tcp_stream *s)
{
	uint32_t room;

	if (!s->in)
		s->in = tcp_pool_get(s->tcp);
	if (s->in_rd) {
		memmove(s->in, s->in + s->in_rd, s->in_wr - s->in_rd);
		s->in_wr -= s->in_rd;
		s->in_rd = 0;
	}
	/* The buffer holds less than a whole head, or it would have been parsed. */
	room = (s->bulky ? TCP_HEAD_MAX : TCP_BUFFER) - s->in_wr;
	return (struct iovec){ s->in + s->in_wr, room };
}

/* Cuts the list to the bytes that one call may move in this turn; returns them. */
static uint64_t cut(const struct tcp_budget *b, struct iovec *iov, unsigned *n, uint64_t bytes)
{
	uint64_t max = (uint64_t)dray_max(b->left, (int64_t)TCP_CALL_MIN), sum = 0;

	if (bytes <= max)
		return bytes;
	for (unsigned i = 0; i < *n; i++) {
		if (iov[i].iov_len >= max - sum) {
			iov[i].iov_len = max - sum;
			*n = i + 1;
			return max;
		}
		sum += iov[i].iov_len;
	}
	return sum;
}

/* One recvmsg(). False: the stream closed. */
static bool receive_once(struct tcp_stream *s, struct tcp_budget *b)
{
	struct tcp *t = s->tcp;
	struct msghdr msg = { .msg_iov = t->iov };
	uint64_t payload = 0, room = 0, got;
	unsigned k = 0;
	ssize_t n;
	bool held;

	held = s->payload_left && !s->sink && hold(s);
	if (s->payload_left)
		k = s->sink ? gather_sink(s, t->iov, TCP_IOV - 1, &payload) :
			      s->side->gather(s, t->iov, TCP_IOV - 1, &payload);
	payload = cut(b, t->iov, &k, payload);
	if (payload == s->payload_left) {
		t->iov[k] = receive_room(s);
		room = t->iov[k++].iov_len;
	}
	msg.msg_iovlen = k;
	/* One place alone is cheaper without a header and a list that the kernel copies. */
	n = k == 1 ? recv(s->fd, t->iov->iov_base, t->iov->iov_len, MSG_DONTWAIT) :
		     recvmsg(s->fd, &msg, MSG_DONTWAIT);
	if (held)
		release(s);
	b->left -= TCP_CALL_COST;
	if (n <= 0) {
		if (n < 0 && errno == EINTR)
			return true;
		if (n < 0 && errno == EAGAIN) {
			s->readable = false;
			return true;
		}
		if (n < 0 && errno == EFAULT && payload && !s->sink) {
			s->side->fault(s);
			return s->state == TCP_OPEN;
		}
		s->side->broken(s);
		return false;
	}
	b->left -= n;
	s->moved_ns = t->c->now_ns;
	t->c->moved_ns = t->c->now_ns;
	got = dray_min((uint64_t)n, payload);
	if (got) {
		if (!s->sink)
			s->side->advance(s, got);
		s->payload_left -= got;
		count_received(s, got);
	}
	if ((uint64_t)n > got)
		s->in_wr += (uint32_t)((uint64_t)n - got);
	/*
	 * A call that ended inside the receive buffer has emptied the socket, and the next byte is a new
	 * event. A call that ended inside the payload may have met memory that faults, which only the next
	 * call reports.
	 */
	if ((uint64_t)n >= payload && (uint64_t)n < payload + room && !s->hup)
		s->readable = false;
	if (got && !s->payload_left) {
		s->follows = (uint64_t)n > got;
		s->side->complete(s);
		return s->state == TCP_OPEN;
	}
	return true;
}

static bool receive(struct tcp_stream *s, struct tcp_budget *b)
{
	for (;;) {
		/* The reason for parking does not change within a turn. */
		if (s->parked)
			return true;
		if (!parse(s))
			return false;
		if (!s->readable || s->parked || b->left <= 0 || s->side->blocked(s))
			return true;
		if (!receive_once(s, b))
			return false;
	}
}

bool tcp_stream_receive(struct tcp_stream *s, struct tcp_budget *b)
{
	bool open = receive(s, b);

	update_filling(s);
	return open;
}

ssize_t tcp_stream_send(struct tcp_stream *s, struct iovec *iov, unsigned n, struct tcp_budget *b)
{
	struct msghdr msg = { .msg_iov = iov };
	ssize_t sent;

	cut(b, iov, &n, UINT64_MAX);
	msg.msg_iovlen = n;
	do
		sent = n == 1 ? send(s->fd, iov->iov_base, iov->iov_len,
				     MSG_DONTWAIT | MSG_NOSIGNAL) :
				sendmsg(s->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	b->left -= TCP_CALL_COST;
	if (sent < 0) {
		if (errno == EAGAIN) {
			s->writable = false;
			return -EAGAIN;
		}
		return -errno;
	}
	b->left -= sent;
	s->moved_ns = s->tcp->c->now_ns;
	return sent;
}
