/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One MHD daemon on the event loop: MHD's epoll descriptor and MHD's timeout are event sources.
 *
 * MHD's own time limit counts from the last byte, so a client that sends a byte now and then could keep its connection
 * for ever. Here a whole request must arrive, and its answer be read, within http.timeout. Then the socket is shut down, and
 * MHD sees the end of the connection.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/control/http/internal.h"
#include "lib/time.h"

/* Of one connection, for request and answer together. MHD answers a longer head with 431. */
#define MEMORY_BYTES ((size_t)16 << 10)

static void limit_arm(struct http_server *s)
{
	const struct http_conn *first = dray_list_first(&s->conns, struct http_conn, link);

	sd_event_source_set_time(s->limit, first ? (uint64_t)first->end_ns / 1000 + 1 : UINT64_MAX);
	sd_event_source_set_enabled(s->limit, SD_EVENT_ONESHOT);
}

static int on_limit(sd_event_source *source, uint64_t usec, void *arg)
{
	struct http_server *s = arg;
	int64_t now = dray_now().ns;
	struct http_conn *c;

	while ((c = dray_list_first(&s->conns, struct http_conn, link)) && c->end_ns <= now) {
		shutdown(c->fd, SHUT_RDWR);
		dray_list_del(&c->link);
	}
	server_run(s);
	return 0;
}

void conn_touch(struct http_server *s, struct http_conn *c)
{
	dray_list_del(&c->link);
	c->end_ns = dray_now().ns + s->agent->config->v.http.timeout;
	dray_list_add(&s->conns, &c->link);
}

void conn_rest(struct http_conn *c)
{
	dray_list_del(&c->link);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	struct http_server *s = cls;
	struct http_conn *c = *context;
	int fd;

	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (c)
			dray_list_del(&c->link);
		free(c);
		return;
	}
	fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
	c = calloc(1, sizeof(*c));
	if (!c) {
		shutdown(fd, SHUT_RDWR);
		return;
	}
	c->fd = fd;
	dray_list_init(&c->link);
	conn_touch(s, c);
	*context = c;
}

int server_add(struct http_server *s, int fd, const struct dray_addr *from)
{
	if (!s->daemon) {
		dray_close(fd);
		return -ENOTCONN;
	}
	/* closes the socket if it refuses it */
	if (MHD_add_connection(s->daemon, fd, &from->sa, from->len) != MHD_YES)
		return -ENFILE;
	return 0;
}

void server_wake(struct http_server *s, uint64_t usec)
{
	sd_event_source_set_time_relative(s->again, usec);
	sd_event_source_set_enabled(s->again, SD_EVENT_ONESHOT);
}

void server_run(struct http_server *s)
{
	MHD_UNSIGNED_LONG_LONG ms;

	MHD_run(s->daemon);
	if (s->metrics)
		MHD_destroy_response(s->metrics);
	s->metrics = NULL;
	if (MHD_get_timeout(s->daemon, &ms) == MHD_YES)
		server_wake(s, ms * 1000);
	limit_arm(s);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	server_run(arg);
	return 0;
}

static int on_again(sd_event_source *source, uint64_t usec, void *arg)
{
	server_run(arg);
	return 0;
}

static int sources_add(struct http_server *s)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	sd_event *event = s->agent->event;
	int r;

	if (!info)
		return -ENOTSUP;
	r = sd_event_add_io(event, &s->io, info->epoll_fd, EPOLLIN, on_io, s);
	if (r >= 0)
		r = sd_event_add_time(event, &s->again, CLOCK_MONOTONIC, UINT64_MAX, 1, on_again,
				      s);
	if (r >= 0)
		r = sd_event_add_time(event, &s->limit, CLOCK_MONOTONIC, UINT64_MAX, 0, on_limit,
				      s);
	return r;
}

int server_init(struct http_server *s, struct agent *a, bool probes_only, unsigned max_conns)
{
	*s = (struct http_server){ .agent = a, .probes_only = probes_only };
	dray_list_init(&s->listeners.list);
	dray_list_init(&s->conns);
	dray_list_init(&s->requests);
	s->daemon = MHD_start_daemon(
		MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
		page_request, s, MHD_OPTION_NOTIFY_COMPLETED, page_completed, s,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT,
		max_conns, MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_BYTES,
		MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
	if (!s->daemon)
		return errno ? -errno : -ENOMEM;
	return sources_add(s);
}

void server_deinit(struct http_server *s)
{
	if (!s->daemon)
		return;
	tcp_listeners_close(&s->listeners);
	pages_stop(s);
	s->io = sd_event_source_disable_unref(s->io);
	MHD_stop_daemon(s->daemon);
	s->daemon = NULL;
	if (s->metrics)
		MHD_destroy_response(s->metrics);
	sd_event_source_disable_unref(s->again);
	sd_event_source_disable_unref(s->limit);
}
