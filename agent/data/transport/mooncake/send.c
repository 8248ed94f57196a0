/* SPDX-License-Identifier: Apache-2.0 */
/* Slices become calls of a stream, and calls become bytes of its socket. */
#include <errno.h>
#include <limits.h>
#include <sys/socket.h>

#include "agent/data/transport/mooncake/stream.h"
#include "agent/model/mooncake_buffers.h"
#include "lib/cleanup.h"

/* Payload after which a stream takes no further slice in one go: of WRITEs, which it sends, and of READs, which it only asks for. */
#define BATCH_BYTES (128 << 10)
#define BATCH_ASKED (256 << 10)
#define SMALL_DETAIL "a piece of GPU memory goes to too many small buffers of Mooncake's engine"

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

static void enqueue(struct mooncake_stream *s, struct slice *slice)
{
	struct core *c = mooncake_stream_core(s);
	uint8_t k = mooncake_calls_take(&s->calls, slice);
	uint64_t at = 0;

	if (slice->retried)
		core_count(c->counters, DRAY_METRIC_SLICES_RESENT_TOTAL, 1);
	s->session = mooncake_slice_session(slice);
	slice->posted_ns = c->now_ns;
	for (uint32_t i = 0; i < slice->n_remote; i++)
		for (uint64_t of = 0; of < slice->remote[i].length;) {
			uint64_t bytes = piece(slice, i, of);

			mooncake_calls_add(&s->calls, k, at, slice->remote[i].offset + of, bytes);
			of += bytes;
			at += bytes;
		}
	mooncake_stream_settle(s);
}

struct slice *mooncake_next_slice(struct mooncake_channel *ch)
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
	return mooncake_next_slice(ch);
}

bool mooncake_stream_has_room(const struct mooncake_stream *s)
{
	const struct core *c = mooncake_stream_core(s);
	uint32_t works = dray_min(c->cfg.tcp_slices_in_flight, MOONCAKE_WORKS);

	return s->state == MOONCAKE_OPEN && s->writable && !s->hup &&
	       s->calls.sent == s->calls.tail && !s->calls.sent_of && s->calls.n_works < works &&
	       mooncake_calls_fit(&s->calls);
}

void mooncake_stream_fill(struct mooncake_stream *s, struct slice *slice)
{
	const struct core *c = mooncake_stream_core(s);
	uint32_t works = dray_min(c->cfg.tcp_slices_in_flight, MOONCAKE_WORKS);
	uint64_t sent = 0, asked = 0;

	while (slice) {
		if (slice->xfer->direction == DMSG_DIRECTION_WRITE)
			sent += slice->bytes;
		else
			asked += slice->bytes;
		enqueue(s, slice);
		if (sent >= BATCH_BYTES || asked >= BATCH_ASKED || s->calls.n_works >= works ||
		    !mooncake_calls_fit(&s->calls))
			return;
		slice = mooncake_next_slice(s->ch);
		if (slice &&
		    (s->state != MOONCAKE_OPEN || s->session != mooncake_slice_session(slice))) {
			dray_list_add_front(&s->ch->ch.retry, &slice->link);
			return;
		}
	}
}

/* The kernel has taken n bytes. */
static void calls_sent(struct mooncake_stream *s, uint64_t n)
{
	uint64_t payload = mooncake_calls_sent(&s->calls, n);

	core_count(mooncake_stream_core(s)->counters, DRAY_METRIC_MOONCAKE_WRITTEN_BYTES_TOTAL,
		   payload);
	/* relaxed: a counter that orders nothing */
	atomic_fetch_add_explicit(&s->ch->engine->link->bytes_sent, payload, memory_order_relaxed);
	mooncake_stream_settle(s);
}

/* Version 1 has no status, so the next call waits until this one is over. */
bool mooncake_stream_may_send(const struct mooncake_stream *s)
{
	return s->state == MOONCAKE_OPEN && s->calls.sent != s->calls.tail && s->writable &&
	       (s->calls.with_status || s->calls.head == s->calls.sent);
}

void mooncake_stream_send(struct mooncake_stream *s, int64_t *budget)
{
	unsigned max = s->calls.with_status ? UINT_MAX : 1;

	while (mooncake_stream_may_send(s) && *budget > 0) {
		struct iovec *iov = mooncake_of(s->ch)->scratch.iov;
		struct msghdr msg = { .msg_iov = iov };
		uint32_t first = s->calls.sent;
		ssize_t n;

		msg.msg_iovlen = mooncake_calls_gather(
			&s->calls, iov, max, (uint64_t)dray_max(*budget, (int64_t)MOONCAKE_SINK));
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
			mooncake_stream_fault(s, mooncake_calls_at(&s->calls, s->calls.sent));
		} else if (n < 0) {
			/* answers that came before the end, such as a refusal, are read first */
			s->writable = false;
			s->readable = true;
		} else {
			*budget -= n;
			s->moved_ns = mooncake_stream_core(s)->now_ns;
			calls_sent(s, (uint64_t)n);
			if (!s->calls.with_status && s->calls.sent != first &&
			    mooncake_calls_at(&s->calls, first)->write)
				s->shut = shutdown(s->fd, SHUT_WR) == 0;
		}
	}
}
