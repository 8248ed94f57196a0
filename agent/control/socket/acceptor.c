/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/socket/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/err.h"
#include "lib/log.h"

#define ACCEPTS_PER_TURN 16
#define PAUSE_US 100000

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
		int fd = accept4(listen_fd, &from.sa, &from.len, SOCK_NONBLOCK | SOCK_CLOEXEC);

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
