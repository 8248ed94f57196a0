/* SPDX-License-Identifier: Apache-2.0 */
/* The socket of a data connection to an engine, and its turns. */
#include "agent/data/transport/mooncake/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/cleanup.h"

static void ready_later(struct mooncake_stream *s)
{
	if (dray_list_empty(&s->ready_link))
		dray_list_add(&mooncake_of(s->ch)->calling[s->ch->ch.direct.class], &s->ready_link);
}

void mooncake_pull_later(struct mooncake_channel *ch)
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
	bool awaited = s->calls.head != s->calls.tail;
	struct core *c = mooncake_stream_core(s);

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

void mooncake_stream_settle(struct mooncake_stream *s)
{
	mooncake_calls_pass(&s->calls);
	update_awaited(s);
}

/* --- the socket --- */

/* Its descriptor is closed; the calls stay. */
static void disconnect(struct mooncake_stream *s, bool reset)
{
	struct linger hard = { .l_onoff = 1 };
	struct core *c = mooncake_stream_core(s);

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
	s->readable = s->writable = s->hup = s->shut = false;
	s->calls.sent_of = s->calls.received_of = 0;
}

void mooncake_stream_end(struct mooncake_stream *s, bool reset)
{
	if (s->state != MOONCAKE_ENDING)
		s->ch->n_streams--;
	disconnect(s, reset);
	s->state = MOONCAKE_OVER;
	s->calls.head = s->calls.sent = s->calls.tail;
	update_awaited(s);
	dray_list_del(&s->ready_link);
	dray_list_move(&mooncake_of(s->ch)->over, &s->link);
}

void mooncake_stream_close(struct mooncake_stream *s)
{
	mooncake_stream_end(s, true);
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
	s->wake = 1;
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
		memset(s, 0, offsetof(struct mooncake_stream, calls.v));
		s->ch = ch;
		s->calls.with_status = ch->engine->with_status;
		s->fd = s->source.fd = -1;
		s->state = MOONCAKE_CONNECTING;
		dray_list_init(&s->ready_link);
		dray_list_add(&ch->streams, &s->link);
		ch->n_streams++;
		r = connect_now(s);
		if (r < 0)
			mooncake_stream_end(s, false);
	}
	if (r < 0)
		mooncake_channel_failed(ch, r);
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

bool mooncake_stream_reconnect(struct mooncake_stream *s)
{
	if (s->calls.head == s->calls.tail) {
		mooncake_stream_end(s, false);
		mooncake_pull_later(s->ch);
		return false;
	}
	disconnect(s, false);
	s->state = MOONCAKE_CONNECTING;
	if (connect_now(s) >= 0)
		return true;
	mooncake_stream_lose(s, false, 0, NULL);
	return false;
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
		if (s->calls.head != s->calls.tail) {
			mooncake_stream_lose(s, false, 0, NULL);
			return;
		}
		core_count(mooncake_stream_core(s)->counters,
			   DRAY_METRIC_MOONCAKE_STREAMS_LOST_TOTAL, 1);
		mooncake_stream_end(s, false);
		mooncake_channel_failed(ch, -error);
		return;
	}
	s->state = MOONCAKE_OPEN;
	s->moved_ns = mooncake_stream_core(s)->now_ns;
	ch->n_open++;
	core_count(mooncake_stream_core(s)->counters, DRAY_METRIC_MOONCAKE_STREAMS, 1);
	/* relaxed: a counter that orders nothing */
	atomic_fetch_add_explicit(&ch->engine->link->streams, 1, memory_order_relaxed);
}

bool mooncake_stream_wants(const struct mooncake_stream *s)
{
	if (s->state == MOONCAKE_CONNECTING)
		return s->writable;
	return (s->state == MOONCAKE_OPEN || s->state == MOONCAKE_ENDING) &&
	       (s->readable || mooncake_stream_may_send(s));
}

void mooncake_stream_step(struct mooncake_stream *s, int64_t *budget)
{
	if (s->state == MOONCAKE_CONNECTING)
		connect_step(s);
	mooncake_stream_receive(s, budget);
	mooncake_stream_send(s, budget);
	if (mooncake_stream_has_room(s))
		mooncake_pull_later(s->ch);
}

/* Receives bytes that are too few for an event of the socket. True: there were some. May end the stream. */
static bool look(struct mooncake_stream *s)
{
	int64_t budget = MOONCAKE_STEP_BYTES, moved_ns = s->moved_ns;

	if (s->wake == 1)
		return false;
	s->readable = true;
	mooncake_stream_receive(s, &budget);
	if (mooncake_stream_wants(s))
		ready_later(s);
	return s->state == MOONCAKE_OVER || s->moved_ns != moved_ns;
}

bool mooncake_stream_tick(struct mooncake_stream *s)
{
	struct mooncake *m = mooncake_of(s->ch);
	struct dray_list over = DRAY_LIST_INIT(over);
	struct core *c = m->c;
	int64_t limit = s->moved_ns + c->cfg.slice_timeout_ns;
	bool ended = false;

	if (s->state == MOONCAKE_CONNECTING && c->now_ns >= s->connect_by_ns) {
		mooncake_stream_lose(s, false, 0, NULL);
		return true;
	}
	if (s->state == MOONCAKE_CONNECTING) {
		mooncake_timer(m, s->connect_by_ns);
		return false;
	}
	for (uint32_t i = 0; i < MOONCAKE_WORKS && s->state != MOONCAKE_OVER; i++) {
		struct mooncake_work *w = &s->calls.works[i];

		if (!w->slice || !w->limit_ns)
			continue;
		if (c->now_ns >= w->limit_ns)
			mooncake_stream_detach(s, w, &over);
		else
			mooncake_timer(m, w->limit_ns);
	}
	if (s->state != MOONCAKE_OVER && s->calls.head != s->calls.tail) {
		if (c->now_ns >= limit) {
			if (!look(s))
				mooncake_stream_lose(s, false, 0, NULL);
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
		if (mooncake_stream_has_room(s) &&
		    (!session || !s->calls.n_works || s->session == session) &&
		    (!best || s->calls.n_works < best->calls.n_works))
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
		slice = idle_stream(ch, 0) ? mooncake_next_slice(ch) : NULL;
		if (!slice)
			return false;
		s = idle_stream(ch, mooncake_slice_session(slice));
		if (!s) {
			dray_list_add_front(&ch->ch.retry, &slice->link);
			return false;
		}
		mooncake_stream_fill(s, slice);
		mooncake_stream_send(s, budget);
		if (s->state != MOONCAKE_OVER && mooncake_stream_wants(s))
			ready_later(s);
	}
}
