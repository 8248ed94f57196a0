/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of an engine. They come in the order of the calls. */
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "agent/data/transport/mooncake/stream.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define REFUSED_DETAIL \
	"Mooncake's engine refused it: its memory is not registered there any more; import its segment again"

/* The status of the first call. False: the stream is over. */
static bool check_status(struct mooncake_stream *s)
{
	struct mooncake_call *call = mooncake_calls_at(&s->calls, s->calls.head);
	enum mooncake_status status;

	if (mooncake_status_get(s->calls.status, &status) < 0 ||
	    (status == MOONCAKE_STATUS_OK && s->calls.head == s->calls.sent)) {
		mooncake_stream_lose(s, false, DRAY_E_PROTOCOL, MOONCAKE_PROTOCOL_DETAIL);
		return false;
	}
	if (status == MOONCAKE_STATUS_OK)
		return true;
	core_count(mooncake_stream_core(s)->counters, DRAY_METRIC_MOONCAKE_CALLS_REFUSED_TOTAL, 1);
	s->calls.works[call->work].code = DRAY_E_REVOKED;
	s->useful = true;
	/* the engine closes, and carries out nothing behind it */
	mooncake_stream_lose(s, true, 0, REFUSED_DETAIL);
	return false;
}

/* The first call is answered. */
static void answered(struct mooncake_stream *s)
{
	const struct mooncake_call *call = mooncake_calls_at(&s->calls, s->calls.head);
	const struct mooncake_work *w = &s->calls.works[call->work];
	struct slice *slice = mooncake_calls_answered(&s->calls);

	s->useful = true;
	s->ch->refused.n = s->ch->lacking.n = 0;
	core_count(mooncake_stream_core(s)->counters, DRAY_METRIC_MOONCAKE_CALLS_TOTAL, 1);
	mooncake_stream_settle(s);
	if (slice)
		mooncake_stream_finish(s, w, slice);
}

/* n more bytes of answers are in their places. False: the stream is over. */
static bool answers_received(struct mooncake_stream *s, uint64_t n)
{
	uint64_t status_n = s->calls.with_status ? MOONCAKE_STATUS_BYTES : 0;
	struct mooncake *m = mooncake_of(s->ch);
	struct core *c = m->c;

	for (unsigned answer = 0; n; answer++) {
		struct mooncake_call *call = mooncake_calls_at(&s->calls, s->calls.head);
		uint64_t size = mooncake_calls_answer(&s->calls, call);
		uint64_t take = dray_min(n, size - s->calls.received_of), payload = take;

		if (s->calls.received_of < status_n) {
			uint64_t head = dray_min(take, status_n - s->calls.received_of);

			memcpy(s->calls.status, m->scratch.answers[answer], MOONCAKE_STATUS_BYTES);
			payload -= head;
			if (s->calls.received_of + head == status_n && !check_status(s))
				return false;
		}
		n -= take;
		s->calls.received_of += take;
		core_count(c->counters, DRAY_METRIC_MOONCAKE_READ_BYTES_TOTAL, payload);
		/* relaxed: a counter that orders nothing */
		atomic_fetch_add_explicit(&s->ch->engine->link->bytes_received, payload,
					  memory_order_relaxed);
		if (s->calls.received_of == size)
			answered(s);
		if (s->state == MOONCAKE_OVER)
			return false;
	}
	return true;
}

/*
 * The engine's host has acknowledged all bytes that were sent. An engine may have closed before they arrived; its host then resets the
 * connection, but Linux goes on to report the engine's end. This side's own end counts as one byte.
 */
static bool is_acknowledged(const struct mooncake_stream *s)
{
	int n;

	return ioctl(s->fd, SIOCOUTQ, &n) == 0 && n <= (s->shut ? 1 : 0);
}

/* The engine's end of the stream. */
static void closed(struct mooncake_stream *s)
{
	if (!s->calls.with_status && s->calls.head != s->calls.sent &&
	    mooncake_calls_at(&s->calls, s->calls.head)->write && is_acknowledged(s)) {
		answered(s); /* version 1 */
	} else if (s->calls.head == s->calls.tail) {
		mooncake_stream_end(s, false);
		/* slices that a stream with a known end does not take may wait */
		mooncake_pull_later(s->ch);
	} else {
		mooncake_stream_lose(s, false, 0, NULL);
	}
}

static bool is_used_up(const struct mooncake_stream *s, uint32_t head)
{
	return !s->calls.with_status && s->calls.head != head && s->calls.head == s->calls.sent &&
	       !s->calls.sent_of;
}

void mooncake_stream_receive(struct mooncake_stream *s, int64_t *budget)
{
	unsigned max = MOONCAKE_ANSWERS;

	while ((s->state == MOONCAKE_OPEN || s->state == MOONCAKE_ENDING) && s->readable &&
	       *budget > 0) {
		struct mooncake *m = mooncake_of(s->ch);
		struct msghdr msg = { .msg_iov = m->scratch.iov };
		uint32_t head = s->calls.head;
		uint8_t extra;
		ssize_t n;

		msg.msg_iovlen =
			mooncake_calls_places(&s->calls, &m->scratch, max,
					      (uint64_t)dray_max(*budget, (int64_t)MOONCAKE_SINK));
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
			mooncake_stream_fault(s, mooncake_calls_at(&s->calls, s->calls.head));
		} else if (n < 0) {
			mooncake_stream_lose(s, false, 0, NULL);
		} else if (!n) {
			closed(s);
		} else if (!msg.msg_iovlen) {
			mooncake_stream_lose(s, false, DRAY_E_PROTOCOL, MOONCAKE_PROTOCOL_DETAIL);
		} else {
			*budget -= n;
			s->moved_ns = m->c->now_ns;
			if (!answers_received(s, (uint64_t)n))
				return;
			/* a call that took all that was asked for has emptied the socket, unless its end is there as well */
			if (s->calls.head == s->calls.sent && !s->hup)
				s->readable = false;
		}
		if (s->state == MOONCAKE_OPEN && is_used_up(s, head) &&
		    !mooncake_stream_reconnect(s))
			return;
		if (s->state == MOONCAKE_ENDING && s->calls.head == s->calls.tail)
			mooncake_stream_end(s, false);
	}
	if (s->fd >= 0 && !s->readable)
		mooncake_mark_answer(s);
}
