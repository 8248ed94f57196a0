/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket is watched level-triggered. One turn of the loop handles at most MESSAGES_PER_TURN messages; `reading`
 * goes on in a later one, because the socket does not become readable for bytes that TLS or the buffer already holds.
 */
#include "agent/control/peer/conn.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "lib/assert.h"
#include "lib/fds.h"
#include "schema/gen/errors.h"

#define MESSAGES_PER_TURN 32
#define READS_PER_CALL 64

static void conn_destroy(struct conn *c)
{
	sd_event_source_disable_unref(c->io);
	sd_event_source_disable_unref(c->defer);
	tls_close(&c->tls);
	dray_close(c->fd);
	msgbuf_deinit(&c->in);
	msgbuf_deinit(&c->out);
	free(c);
}

static void leave(struct conn *c)
{
	if (--c->busy == 0 && c->freed)
		conn_destroy(c);
}

/* Runs on_defer() in the next turn, before the other sources. */
static void run_again(struct conn *c)
{
	sd_event_source_set_enabled(c->defer, SD_EVENT_ONESHOT);
}

static void update_events(struct conn *c)
{
	uint32_t events = EPOLLIN;

	if (c->freed || c->phase == CONN_FAILED || c->fd < 0)
		return;
	if (c->phase == CONN_CONNECTING)
		events = EPOLLOUT;
	else if (c->tls.want_write || (c->phase == CONN_OPEN && msgbuf_size(&c->out)))
		events |= EPOLLOUT;
	sd_event_source_set_io_events(c->io, events);
}

/* r: a result of TLS other than 0. */
static void handle_tls(struct conn *c, int r, const struct dray_err *why)
{
	if (r == TLS_E_EOF)
		conn_fail(c, dray_err_of(DRAY_E_PEER_LOST, "the other side closed the connection%s",
					 c->phase == CONN_OPEN ? "" : " during the TLS handshake"));
	else if (r != TLS_E_AGAIN)
		conn_fail(c, *why);
}

static void flush(struct conn *c)
{
	struct dray_err why = DRAY_ERR_NULL;
	size_t n;
	int r;

	while (c->phase == CONN_OPEN && c->fd >= 0 && msgbuf_size(&c->out)) {
		r = tls_write(&c->tls, c->out.p + c->out.start, msgbuf_size(&c->out), &n, &why);
		if (r) {
			handle_tls(c, r, &why);
			return;
		}
		msgbuf_taken(&c->out, n);
	}
}

void conn_send(struct conn *c, const void *p, size_t n)
{
	if (c->phase != CONN_OPEN || c->freed || c->fd < 0)
		return;
	if (msgbuf_size(&c->out) + n > CONN_OUT_HARD)
		conn_fail(c, dray_err_of(DRAY_E_PEER_LOST, "the peer does not read its messages"));
	else if (msgbuf_append(&c->out, p, n) < 0)
		conn_fail(c, dray_err_of(DRAY_E_NO_MEMORY, "no memory for a message to send"));
	else if (!c->busy)
		/* a callback of this connection flushes at its end; the defer source flushes once for this turn */
		run_again(c);
}

void conn_flush(struct conn *c)
{
	if (c->busy || c->freed || c->phase != CONN_OPEN)
		return;
	flush(c);
	if (c->phase != CONN_OPEN)
		return;
	update_events(c);
	sd_event_source_set_enabled(c->defer, SD_EVENT_OFF);
}

void conn_send_message(struct conn *c, uint16_t type, uint64_t request_id,
		       const union pmsg_body *body)
{
	uint8_t buf[PMSG_MESSAGE_MAX];
	int n = pmsg_body_encode(type, buf, sizeof(buf), request_id, body);

	dray_assert(n > 0);
	conn_send(c, buf, (size_t)n);
}

void conn_send_error(struct conn *c, uint64_t request_id, struct dray_err err)
{
	union pmsg_body m = { .error = { (uint32_t)err.code,
					 { err.msg, (uint32_t)strlen(err.msg) } } };

	conn_send_message(c, PMSG_ERROR, request_id, &m);
}

/* Delivers whole messages, as many as the turn has room for. False if the connection must not be used any more. */
static bool deliver(struct conn *c, size_t *ret_need)
{
	struct dray_err why = DRAY_ERR_NULL;
	struct pmsg_header h;
	const uint8_t *body;
	int r;

	*ret_need = 0;
	while (turn_work_has_room(&c->reading)) {
		r = msgbuf_next(&c->in, c->message_max, &h, &body, ret_need, &why);
		if (r == 0)
			return true;
		if (r < 0) {
			conn_fail(c, why);
			return false;
		}
		c->reading.done++;
		c->ops->message(c, &h, body);
		if (c->freed || c->phase != CONN_OPEN)
			return false;
		msgbuf_taken(&c->in, PMSG_HEADER_SIZE + h.length);
	}
	return true;
}

static void input(struct conn *c)
{
	unsigned reads = READS_PER_CALL;
	struct dray_err why = DRAY_ERR_NULL;
	size_t need, room, n;
	uint8_t *to;
	int r;

	for (;;) {
		if (!deliver(c, &need))
			return;
		if (!turn_work_has_room(&c->reading) || !reads--) {
			turn_work_go_on(&c->reading);
			return;
		}
		if (c->fd < 0)
			return;
		to = msgbuf_room(&c->in, need, &room);
		if (!to) {
			conn_fail(c, dray_err_of(DRAY_E_NO_MEMORY, "no memory for a message"));
			return;
		}
		r = tls_read(&c->tls, to, room, &n, &why);
		if (r) {
			handle_tls(c, r, &why);
			return;
		}
		msgbuf_added(&c->in, n);
	}
}

static void handshake(struct conn *c)
{
	struct dray_err why = DRAY_ERR_NULL;
	int r = tls_handshake(&c->tls, &why);

	if (r) {
		handle_tls(c, r, &why);
		return;
	}
	c->phase = CONN_OPEN;
	c->ops->secured(c);
}

static void connected(struct conn *c)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	if (err) {
		c->refused = err == ECONNREFUSED;
		conn_fail(c, dray_err_of(DRAY_E_PEER_UNREACHABLE, "%s", dray_errno_text(err)));
		return;
	}
	c->phase = CONN_HANDSHAKING;
	if (c->ops->connected)
		c->ops->connected(c);
}

/* Continues as far as possible without waiting. */
static void work(struct conn *c)
{
	c->busy++;
	if (c->phase == CONN_CONNECTING)
		connected(c);
	if (!c->freed && c->phase == CONN_HANDSHAKING)
		handshake(c);
	if (!c->freed && c->phase == CONN_OPEN)
		input(c);
	if (!c->freed && c->phase == CONN_OPEN)
		flush(c);
	update_events(c);
	leave(c);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	work(userdata);
	return 0;
}

static int on_reading(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct conn *c = userdata;

	if (c->phase != CONN_FAILED)
		work(c);
	return 0;
}

/* Reports the failure, or sends what other callbacks have queued. */
static int on_defer(sd_event_source *s, void *userdata)
{
	struct conn *c = userdata;

	c->busy++;
	if (c->phase == CONN_FAILED) {
		c->ops->failed(c, &c->failure);
	} else {
		flush(c);
		update_events(c);
	}
	leave(c);
	return 0;
}

void conn_fail(struct conn *c, struct dray_err why)
{
	if (c->failure.code || c->freed)
		return;
	c->failure = why;
	/* send the queued messages: the last may be the error for the peer */
	if (c->phase == CONN_OPEN && !c->tls.failed)
		flush(c);
	c->phase = CONN_FAILED;
	if (c->io)
		sd_event_source_set_enabled(c->io, SD_EVENT_OFF);
	run_again(c);
}

/* Makes a connection over fd, which is consumed. fd -1: a detached one. */
static int conn_open(struct conn **ret, sd_event *event, struct tls *tls, int fd,
		     enum conn_phase phase, const struct conn_ops *ops, void *owner,
		     struct dray_err *reterr)
{
	dray_auto(conn_free) struct conn *c = calloc(1, sizeof(*c));
	uint32_t events = phase == CONN_CONNECTING ? EPOLLOUT : EPOLLIN;
	int r = -ENOMEM, on = 1;

	if (c) {
		*c = (struct conn){ .ops = ops,
				    .owner = owner,
				    .phase = phase,
				    .fd = dray_take_fd(fd),
				    .message_max = PMSG_MESSAGE_MAX };
		r = sd_event_add_defer(event, &c->defer, on_defer, c);
	}
	if (r >= 0)
		r = sd_event_source_set_enabled(c->defer, SD_EVENT_OFF);
	if (r >= 0)
		r = turn_work_init(&c->reading, event, MESSAGES_PER_TURN, on_reading, c);
	if (r >= 0 && c->fd >= 0)
		r = sd_event_add_io(event, &c->io, c->fd, events, on_io, c);
	if (r < 0) {
		dray_close(fd);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for a connection");
	}
	if (c->fd >= 0) {
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		r = tls_open(&c->tls, tls, c->fd, phase == CONN_HANDSHAKING, reterr);
		if (r < 0)
			return r;
	}
	*ret = dray_take(c);
	return 0;
}

int conn_dial(struct conn **ret, sd_event *event, struct tls *tls, const struct dray_addr *addr,
	      const struct conn_ops *ops, void *owner, struct dray_err *reterr)
{
	dray_auto_close int fd =
		socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return dray_err_set(reterr, -errno,
				    dray_lacks_fds(-errno) ? DRAY_E_NO_FDS :
							     DRAY_E_PEER_UNREACHABLE,
				    "opening a socket: %s", dray_errno_text(errno));
	if (connect(fd, &addr->sa, addr->len) < 0 && errno != EINPROGRESS)
		return dray_err_set(reterr, -errno, DRAY_E_PEER_UNREACHABLE, "%s",
				    dray_errno_text(errno));
	return conn_open(ret, event, tls, dray_take_fd(fd), CONN_CONNECTING, ops, owner, reterr);
}

int conn_accept(struct conn **ret, sd_event *event, struct tls *tls, int fd,
		const struct conn_ops *ops, void *owner, struct dray_err *reterr)
{
	return conn_open(ret, event, tls, fd, CONN_HANDSHAKING, ops, owner, reterr);
}

int conn_new_detached(struct conn **ret, sd_event *event, const struct conn_ops *ops, void *owner)
{
	return conn_open(ret, event, NULL, -1, CONN_OPEN, ops, owner, NULL);
}

void conn_set_priority(struct conn *c, int64_t priority)
{
	if (c->io)
		sd_event_source_set_priority(c->io, priority);
	sd_event_source_set_priority(c->defer, priority);
	sd_event_source_set_priority(c->reading.source, priority);
}

void conn_feed(struct conn *c, const void *p, size_t n)
{
	if (c->phase != CONN_OPEN || !n)
		return;
	if (msgbuf_append(&c->in, p, n) < 0)
		conn_fail(c, dray_err_of(DRAY_E_NO_MEMORY, "no memory for a message"));
	else
		work(c);
}

struct conn *conn_free(struct conn *c)
{
	if (!c || c->freed)
		return NULL;
	if (c->phase == CONN_OPEN)
		flush(c);
	c->freed = true;
	if (c->fd >= 0)
		tls_goodbye(&c->tls);
	c->io = sd_event_source_disable_unref(c->io);
	if (c->defer)
		sd_event_source_set_enabled(c->defer, SD_EVENT_OFF);
	turn_work_deinit(&c->reading);
	if (!c->busy)
		conn_destroy(c);
	return NULL;
}

void conn_set_owner(struct conn *c, const struct conn_ops *ops, void *owner)
{
	c->ops = ops;
	c->owner = owner;
}

int conn_export(struct conn *c, const char *label, const void *context, size_t n_context,
		uint8_t *ret, size_t n)
{
	if (c->fd < 0) {
		memset(ret, 0, n);
		return 0;
	}
	return tls_export(&c->tls, label, context, n_context, ret, n);
}
