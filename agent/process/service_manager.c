/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/service_manager.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/log.h"

#define ASSIGNMENT_BYTES 264

struct notify {
	int fd;
	sd_event_source *source;                         /* the socket has room again */
	char unsent[NOTIFY_VARIABLES][ASSIGNMENT_BYTES]; /* the last assignment of each; "": none */
};

static int connect_to(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	size_t n = strlen(path);
	int fd dray_auto_close = -1;

	if ((*path != '/' && *path != '@') || n < 2 || n >= sizeof(sa.sun_path))
		return -EINVAL;
	memcpy(sa.sun_path, path, n);
	/* an abstract socket */
	if (*path == '@')
		sa.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		return -errno;
	return dray_take_fd(fd);
}

static void flush(struct notify *n)
{
	char buf[sizeof(n->unsent)];
	size_t size = 0;
	bool later;

	for (unsigned i = 0; i < NOTIFY_VARIABLES; i++)
		if (*n->unsent[i])
			size += (size_t)snprintf(buf + size, sizeof(buf) - size, "%s\n",
						 n->unsent[i]);
	if (!size)
		return;
	later = send(n->fd, buf, size, MSG_NOSIGNAL) < 0 && (errno == EAGAIN || errno == EINTR);
	sd_event_source_set_enabled(n->source, later ? SD_EVENT_ON : SD_EVENT_OFF);
	/* other errors: the service manager is gone, and the message is dropped */
	if (!later)
		memset(n->unsent, 0, sizeof(n->unsent));
}

static int on_room(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	flush(arg);
	return 0;
}

int notify_new(struct notify **ret, sd_event *event)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct notify *n;
	int r;

	*ret = NULL;
	if (!path || !*path)
		return 0;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->fd = connect_to(path);
	if (n->fd < 0) {
		log_warning(
			"agent",
			"the service manager is not notified: connecting to NOTIFY_SOCKET %s: %s",
			path, dray_errno_text(n->fd));
		free(n);
		return 0;
	}
	r = sd_event_add_io(event, &n->source, n->fd, EPOLLOUT, on_room, n);
	if (r >= 0)
		r = sd_event_source_set_enabled(n->source, SD_EVENT_OFF);
	if (r < 0) {
		notify_free(n);
		return r;
	}
	*ret = n;
	return 0;
}

struct notify *notify_free(struct notify *n)
{
	if (!n)
		return NULL;
	if (n->source)
		flush(n);
	sd_event_source_disable_unref(n->source);
	dray_close(n->fd);
	free(n);
	return NULL;
}

void notify_assign(struct notify *n, enum notify_variable v, const char *fmt, ...)
{
	va_list ap;

	if (!n)
		return;
	va_start(ap, fmt);
	vsnprintf(n->unsent[v], sizeof(n->unsent[v]), fmt, ap);
	va_end(ap);
	flush(n);
}
