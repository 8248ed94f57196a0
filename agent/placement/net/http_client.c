/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/http_client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/placement/net/lack.h"
#include "agent/placement/net/own_echo.h"
#include "lib/time.h"
#include "lib/units.h"

#define READ_BYTES 32768
/* a fast server must not keep the event loop from other work */
#define READS_PER_TURN 8
/* Bytes of the head of a request, at most. */
#define HEAD_BYTES_MAX (HTTP_TARGET_MAX + HTTP_AUTHORITY_MAX + 256)

struct http_call {
	struct http_request request;
	char host[HTTP_AUTHORITY_MAX];
	int64_t end_ns;

	struct resolver_query *query;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	unsigned n_addrs, next; /* next: the address after the one in use */
	struct dray_err failed; /* of the last address */

	int fd;
	sd_event_source *io, *timer;
	bool connected;
	char *text; /* of the request */
	size_t text_n, sent;

	struct http_answer *answer;
};

static void disconnect(struct http_call *g)
{
	g->io = sd_event_source_disable_unref(g->io);
	g->fd = dray_close(g->fd);
}

struct http_call *http_call_cancel(struct http_call *g)
{
	if (!g)
		return NULL;
	resolver_cancel(g->query);
	disconnect(g);
	sd_event_source_disable_unref(g->timer);
	http_answer_free(g->answer);
	free(g->text);
	free(g);
	return NULL;
}

/* The callback may do anything, so everything that is open is closed first. */
static void finish(struct http_call *g, const struct http_answer *answer,
		   const struct dray_err *why)
{
	g->query = resolver_cancel(g->query);
	disconnect(g);
	g->timer = sd_event_source_disable_unref(g->timer);
	g->request.fn(g->request.arg, answer, why);
	http_call_cancel(g);
}

__attribute__((format(printf, 3, 4))) static void fail(struct http_call *g, int code,
						       const char *fmt, ...)
{
	char text[DRAY_ERR_MSG_MAX];
	struct dray_err err;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err = dray_err_of(code, "http://%.100s: %s", g->host, text);
	finish(g, NULL, &err);
}

/* No connection to this address. An address that this agent had no descriptor or memory for may be the one that answers. */
static void refused(struct http_call *g, int code, const char *why)
{
	char text[DRAY_ADDR_TEXT_MAX];

	if (!net_is_lack(g->failed.code))
		g->failed = dray_err_of(code, "connecting to %s: %s",
					dray_addr_show(&g->addrs[g->next - 1], text, sizeof(text)),
					why);
	disconnect(g);
}

static void try_next(struct http_call *g);

static void on_readable(struct http_call *g)
{
	static char buf[READ_BYTES];

	for (unsigned i = 0; i < READS_PER_TURN; i++) {
		ssize_t n = recv(g->fd, buf, sizeof(buf), 0);
		struct dray_err err = DRAY_ERR_NULL;
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			fail(g, DRAY_E_PEER_LOST, "%s after %zu bytes of the response",
			     dray_errno_text(errno), g->answer->received);
			return;
		}
		r = n ? http_answer_feed(g->answer, buf, (size_t)n, &err) :
			http_answer_end(g->answer, &err);
		if (r < 0)
			fail(g, err.code, "%s", err.msg);
		else if (r > 0)
			finish(g, g->answer, NULL);
		if (r)
			return;
	}
}

/* If the server does not read the request, its response is still read. */
static void send_request(struct http_call *g)
{
	while (g->sent < g->text_n) {
		ssize_t n = send(g->fd, g->text + g->sent, g->text_n - g->sent, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			g->sent = g->text_n;
		else
			g->sent += (size_t)n;
	}
	sd_event_source_set_io_events(g->io, EPOLLIN);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
	struct http_call *g = arg;
	socklen_t n = sizeof(int);
	int err = 0;

	if (!g->connected) {
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) < 0)
			err = errno;
		if (!err && net_is_own_echo(fd))
			err = ECONNREFUSED;
		if (err) {
			refused(g, DRAY_E_PEER_UNREACHABLE, dray_errno_text(err));
			try_next(g);
			return 0;
		}
		g->connected = true;
		/* the response may use all the time left */
		sd_event_source_set_time(g->timer, (uint64_t)g->end_ns / 1000 + 1);
		sd_event_source_set_io_events(g->io, EPOLLIN | EPOLLOUT);
	}
	if (g->sent < g->text_n && (revents & EPOLLOUT))
		send_request(g);
	if (revents & (EPOLLIN | EPOLLHUP | EPOLLERR))
		on_readable(g);
	return 0;
}

static int start_connecting(struct http_call *g, const struct dray_addr *a)
{
	int r;

	g->fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (g->fd < 0)
		return -errno;
	if (connect(g->fd, &a->sa, a->len) < 0 && errno != EINPROGRESS)
		return -errno;
	r = sd_event_add_io(g->request.event, &g->io, g->fd, EPOLLOUT, on_io, g);
	return r < 0 ? r : 0;
}

static void try_next(struct http_call *g)
{
	while (g->next < g->n_addrs) {
		int64_t now = dray_now().ns, left = dray_max(g->end_ns - now, (int64_t)0);
		int64_t share = left / (int64_t)(g->n_addrs - g->next);
		int r = start_connecting(g, &g->addrs[g->next++]);

		if (r == 0) {
			sd_event_source_set_time(g->timer, (uint64_t)(now + share) / 1000 + 1);
			sd_event_source_set_enabled(g->timer, SD_EVENT_ONESHOT);
			return;
		}
		refused(g, net_error_code(r), dray_errno_text(r));
	}
	fail(g, g->failed.code, "%s", g->failed.msg);
}

static void on_addresses(void *arg, const struct dray_addr *addrs, unsigned n,
			 const struct dray_err *why)
{
	struct http_call *g = arg;

	g->query = NULL;
	if (why) {
		fail(g, why->code, "%s", why->msg);
		return;
	}
	memcpy(g->addrs, addrs, n * sizeof(*addrs));
	g->n_addrs = n;
	try_next(g);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct http_call *g = arg;
	char time[32];

	if (!g->connected && g->fd >= 0) {
		refused(g, DRAY_E_TIMEOUT, "no answer");
		try_next(g);
		return 0;
	}
	dray_duration_show(g->request.timeout_ns, time, sizeof(time));
	if (g->fd < 0)
		fail(g, DRAY_E_TIMEOUT, "its name was not resolved within %s", time);
	else if (!g->answer->received)
		fail(g, DRAY_E_TIMEOUT, "no response to the request within %s", time);
	else
		fail(g, DRAY_E_TIMEOUT, "the response is incomplete after %s: %zu bytes came", time,
		     g->answer->received);
	return 0;
}

/* The head and the content of the request. 0 or -ENOMEM. */
static int text_make(struct http_call *g)
{
	const struct http_request *q = &g->request;
	size_t n = HEAD_BYTES_MAX;

	http_url_authority(&q->url, g->host, sizeof(g->host));
	g->text = malloc(n + q->content_n);
	if (!g->text)
		return -ENOMEM;
	g->text_n = (size_t)snprintf(g->text, n,
				     "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: dray/" DRAY_VERSION
				     "\r\nAccept: */*\r\nConnection: close\r\n",
				     q->method ? q->method : "GET", q->url.target, g->host);
	if (q->content)
		g->text_n += (size_t)snprintf(
			g->text + g->text_n, n - g->text_n,
			"Content-Type: application/json\r\nContent-Length: %zu\r\n", q->content_n);
	g->text_n += (size_t)snprintf(g->text + g->text_n, n - g->text_n, "\r\n");
	if (q->content)
		memcpy(g->text + g->text_n, q->content, q->content_n);
	g->text_n += q->content_n;
	g->request.content = NULL;
	return 0;
}

static int start(struct http_call *g, struct dray_err *reterr)
{
	int r;

	g->end_ns = dray_now().ns + g->request.timeout_ns;
	r = sd_event_add_time(g->request.event, &g->timer, CLOCK_MONOTONIC,
			      (uint64_t)g->end_ns / 1000 + 1, 1000, on_timer, g);
	if (r < 0)
		return dray_err_set(reterr, r, net_error_code(r), "http://%.100s: %s", g->host,
				    dray_errno_text(r));
	return resolver_lookup(g->request.resolver, g->request.url.host, g->request.url.port,
			       g->request.timeout_ns, on_addresses, g, &g->query, reterr);
}

int http_start(struct http_call **ret, const struct http_request *request, struct dray_err *reterr)
{
	dray_auto(http_call_cancel) struct http_call *g = calloc(1, sizeof(*g));
	int r;

	if (!g)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	g->request = *request;
	g->fd = -1;
	g->answer = http_answer_new(request->body_bytes);
	if (!g->answer || text_make(g) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	r = start(g, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(g);
	return 0;
}
