/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/socket/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/cleanup.h"
#include "lib/congestion.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

#define ACCEPTS_PER_TURN 16
#define PAUSE_US 100000
#define TCP_BACKLOG 4096 /* the kernel caps it at net.core.somaxconn */

static int on_resume(sd_event_source *s, uint64_t usec, void *arg)
{
	struct acceptor *a = arg;

	return sd_event_source_set_enabled(a->io, SD_EVENT_ON);
}

static void pause_accepting(struct acceptor *a, int err)
{
	log_limited(DRAY_LOG_WARNING, a->ops->area, "accepting pauses for %d ms: %s",
		    PAUSE_US / 1000, dray_errno_text(err));
	if (a->ops->exhausted)
		a->ops->exhausted(a->arg);
	/* without the timer the pause would not end */
	if (sd_event_source_set_time_relative(a->resume, PAUSE_US) >= 0 &&
	    sd_event_source_set_enabled(a->resume, SD_EVENT_ONESHOT) >= 0)
		sd_event_source_set_enabled(a->io, SD_EVENT_OFF);
}

static int on_connections(sd_event_source *s, int listen_fd, uint32_t revents, void *arg)
{
	struct acceptor *a = arg;

	for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
		struct dray_addr from = { .len = sizeof(from.ss) };
		int fd;

		if (a->ops->full && a->ops->full(a->arg)) {
			pause_accepting(a, EMFILE);
			break;
		}
		fd = accept4(listen_fd, &from.sa, &from.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			a->ops->accepted(a->arg, fd, &from);
			continue;
		}
		if (errno == EAGAIN)
			break;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			pause_accepting(a, errno);
			break;
		}
		/* other errors concern this connection only: it closed already, or a filter refused it */
	}
	if (a->ops->turned)
		a->ops->turned(a->arg);
	return 0;
}

int acceptor_start(struct acceptor *a, sd_event *event, int listen_fd,
		   const struct acceptor_ops *ops, void *arg)
{
	int r;

	*a = (struct acceptor){ .ops = ops, .arg = arg };
	r = sd_event_add_io(event, &a->io, listen_fd, EPOLLIN, on_connections, a);
	if (r >= 0)
		r = sd_event_source_set_priority(a->io, ops->priority);
	/* added now, because the first timer of a loop needs a descriptor */
	if (r >= 0)
		r = sd_event_add_time_relative(event, &a->resume, CLOCK_MONOTONIC, 0, PAUSE_US / 10,
					       on_resume, a);
	if (r >= 0)
		r = sd_event_source_set_enabled(a->resume, SD_EVENT_OFF);
	return r < 0 ? r : 0;
}

void acceptor_stop(struct acceptor *a)
{
	a->io = sd_event_source_disable_unref(a->io);
	a->resume = sd_event_source_disable_unref(a->resume);
}

int tcp_listener_add(struct tcp_listeners *ls, int fd, struct dray_err *reterr)
{
	struct tcp_listener *l = calloc(1, sizeof(*l));
	char text[DRAY_ADDR_TEXT_MAX];
	int r;

	if (!l) {
		dray_close(fd);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "%s: no memory for a socket",
				    ls->key);
	}
	l->fd = fd;
	l->addr.len = sizeof(l->addr.ss);
	dray_list_add(&ls->list, &l->link);
	if (getsockname(fd, &l->addr.sa, &l->addr.len) < 0)
		r = -errno;
	else
		r = acceptor_start(&l->acceptor, ls->event, fd, ls->ops, ls->arg);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s: watching the socket: %s", ls->key,
				    dray_errno_text(r));
	dray_congestion_at(fd, &l->addr);
	log_info(ls->ops->area, "%s on %s", ls->what, dray_addr_show(&l->addr, text, sizeof(text)));
	return 0;
}

int tcp_listener_bind(struct tcp_listeners *ls, const struct dray_addr *addr,
		      struct dray_err *reterr)
{
	dray_auto_close int fd =
		socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	char text[DRAY_ADDR_TEXT_MAX];
	int on = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    (addr->sa.sa_family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
	    bind(fd, &addr->sa, addr->len) < 0 || listen(fd, TCP_BACKLOG) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s: %s: %s%s", ls->key,
				    dray_addr_show(addr, text, sizeof(text)),
				    dray_errno_text(errno),
				    errno == EADDRINUSE ?
					    "; choose another port, or 0 for a free one, or none" :
				    errno == EADDRNOTAVAIL ? "; it is not an address of this host" :
				    errno == EACCES        ? "; choose a port from 1024 on" :
							     "");
	return tcp_listener_add(ls, dray_take_fd(fd), reterr);
}

void tcp_listeners_close(struct tcp_listeners *ls)
{
	dray_list_for_each(&ls->list, l, struct tcp_listener, link) {
		dray_list_del(&l->link);
		acceptor_stop(&l->acceptor);
		dray_close(l->fd);
		free(l);
	}
}

static bool option_is(int fd, int option, int expected)
{
	socklen_t n = sizeof(int);
	int v = -1;

	return getsockopt(fd, SOL_SOCKET, option, &v, &n) == 0 && v == expected;
}

bool socket_listens(int fd, int family, int type)
{
	return option_is(fd, SO_DOMAIN, family) && option_is(fd, SO_TYPE, type) &&
	       option_is(fd, SO_ACCEPTCONN, 1);
}

int socket_set_flags(int fd)
{
	return fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0 ? -1 : fcntl(fd, F_SETFD, FD_CLOEXEC);
}
