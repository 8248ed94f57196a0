/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepting is bounded for each turn of the loop and comes after everything else. Without a free descriptor a
 * listener is left alone for a while, since its socket would wake the loop for ever.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/http/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

#define BACKLOG 1024
#define ACCEPTS_PER_CALL 16
#define PAUSE_US 100000
#define LISTENER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 10)

struct http_listener {
	struct dray_list link;
	struct http_server *server;
	int fd;
	sd_event_source *io, *resume;
};

static struct http_listener *listener_free(struct http_listener *l)
{
	dray_list_del(&l->link);
	sd_event_source_disable_unref(l->io);
	sd_event_source_disable_unref(l->resume);
	dray_close(l->fd);
	free(l);
	return NULL;
}

static int on_resume(sd_event_source *s, uint64_t usec, void *arg)
{
	struct http_listener *l = arg;

	return sd_event_source_set_enabled(l->io, SD_EVENT_ON);
}

static void pause_accepting(struct http_listener *l, int err)
{
	log_limited(DRAY_LOG_WARNING, AREA, "accepting pauses for %d ms: %s", PAUSE_US / 1000,
		    dray_errno_text(err));
	/* without the timer it would pause for ever */
	if (sd_event_source_set_time_relative(l->resume, PAUSE_US) >= 0 &&
	    sd_event_source_set_enabled(l->resume, SD_EVENT_ONESHOT) >= 0)
		sd_event_source_set_enabled(l->io, SD_EVENT_OFF);
}

static int on_accept(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct http_listener *l = arg;

	for (unsigned i = 0; i < ACCEPTS_PER_CALL; i++) {
		struct dray_addr from = { .len = sizeof(from.ss) };
		int c = accept4(fd, &from.sa, &from.len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (c >= 0) {
			if (server_add(l->server, c, &from) < 0)
				log_limited(DRAY_LOG_WARNING, AREA,
					    "http.connections are in use, closing one more");
			continue;
		}
		if (errno == EAGAIN)
			break;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			pause_accepting(l, errno);
			break;
		}
		/* others are the connection's own: it ended before we got to it, or a filter refused it */
	}
	server_run(l->server);
	return 0;
}

/* --- opening ------------------------------------------------------------------------------------ */

static int listener_add(struct http_server *s, int fd_consumed)
{
	struct http_listener *l = calloc(1, sizeof(*l));
	sd_event *event = s->http->deps.event;
	char text[DRAY_ADDR_TEXT_MAX];
	struct dray_addr addr = { .len = sizeof(addr.ss) };
	int r;

	if (!l) {
		dray_close(fd_consumed);
		return -ENOMEM;
	}
	l->server = s;
	l->fd = fd_consumed;
	dray_list_add(&s->listeners, &l->link);
	if (getsockname(l->fd, &addr.sa, &addr.len) < 0)
		return -errno;
	r = sd_event_add_io(event, &l->io, l->fd, EPOLLIN, on_accept, l);
	if (r >= 0)
		r = sd_event_source_set_priority(l->io, LISTENER_PRIORITY);
	if (r >= 0)
		r = sd_event_add_time(event, &l->resume, CLOCK_MONOTONIC, 0, 0, on_resume, l);
	if (r >= 0)
		r = sd_event_source_set_enabled(l->resume, SD_EVENT_OFF);
	if (r >= 0)
		log_info(AREA, "%s on %s", s->probes_only ? "probes" : "metrics and probes",
			 dray_addr_show(&addr, text, sizeof(text)));
	return r;
}

static int open_one(struct http_server *s, const char *key, const char *address,
		    struct dray_err *reterr)
{
	dray_auto_close int fd = -1;
	struct dray_addr a;
	int on = 1, r = dray_addr_parse(address, &a);

	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_INVALID,
				    "%s: \"%s\" is no address and port, such as 127.0.0.1:7412",
				    key, address);
	fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    (a.sa.sa_family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
	    bind(fd, &a.sa, a.len) < 0 || listen(fd, BACKLOG) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s: %s: %s%s", key, address,
				    dray_errno_text(errno),
				    errno == EADDRINUSE ?
					    "; choose another port, or 0 for a free one, or none" :
				    errno == EADDRNOTAVAIL ? "; it is no address of this host" :
							     "");
	r = listener_add(s, dray_take_fd(fd));
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s: %s: %s", key, address,
				    dray_errno_text(r));
	return 0;
}

int http_listen(struct http_server *s, const char *key, const struct dray_strv *addresses,
		struct dray_err *reterr)
{
	for (size_t i = 0; i < addresses->n; i++) {
		int r = open_one(s, key, addresses->v[i], reterr);

		if (r < 0)
			return r;
	}
	return 0;
}

void http_listen_close(struct http_server *s)
{
	dray_list_for_each(&s->listeners, l, struct http_listener, link)
		listener_free(l);
}
