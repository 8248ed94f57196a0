/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/service_manager.h"

#include <errno.h>
#include <inttypes.h>
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
#include "lib/time.h"

#define STATUS_MAX 256

struct notify {
	int fd;
	sd_event_source *source; /* the socket has room again */
	/* not sent yet */
	bool ready, stopping, watchdog;
	int64_t reloading_ns; /* 0: none */
	int64_t extend_ns;    /* 0: none */
	bool status_changed;
	char status[STATUS_MAX];
};

static int connect_to(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	size_t n = strlen(path);
	int fd;

	if ((*path != '/' && *path != '@') || n < 2 || n >= sizeof(sa.sun_path))
		return -EINVAL;
	memcpy(sa.sun_path, path, n);
	/* an abstract socket */
	if (*path == '@')
		sa.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&sa,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0) {
		int ret = -errno;

		dray_close(fd);
		return ret;
	}
	return fd;
}

static size_t text_make(const struct notify *n, char *buf, size_t size)
{
	int at = 0;

	/* in the order of events */
	if (n->reloading_ns)
		at += snprintf(buf + at, size - (size_t)at,
			       "RELOADING=1\nMONOTONIC_USEC=%" PRId64 "\n", n->reloading_ns / 1000);
	if (n->ready)
		at += snprintf(buf + at, size - (size_t)at, "READY=1\n");
	if (n->stopping)
		at += snprintf(buf + at, size - (size_t)at, "STOPPING=1\n");
	if (n->watchdog)
		at += snprintf(buf + at, size - (size_t)at, "WATCHDOG=1\n");
	if (n->extend_ns)
		at += snprintf(buf + at, size - (size_t)at, "EXTEND_TIMEOUT_USEC=%" PRId64 "\n",
			       n->extend_ns / 1000);
	if (n->status_changed)
		at += snprintf(buf + at, size - (size_t)at, "STATUS=%s\n", n->status);
	return (size_t)at;
}

static void flush(struct notify *n)
{
	char buf[STATUS_MAX + 128];
	size_t size = text_make(n, buf, sizeof(buf));
	bool later;

	if (!size)
		return;
	later = send(n->fd, buf, size, MSG_NOSIGNAL) < 0 && (errno == EAGAIN || errno == EINTR);
	sd_event_source_set_enabled(n->source, later ? SD_EVENT_ON : SD_EVENT_OFF);
	if (later)
		return;
	/* other errors: the service manager is gone, and the message is dropped */
	n->ready = n->stopping = n->watchdog = n->status_changed = false;
	n->reloading_ns = n->extend_ns = 0;
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

static void send_flag(struct notify *n, bool *flag)
{
	*flag = true;
	flush(n);
}

void notify_ready(struct notify *n)
{
	if (n)
		send_flag(n, &n->ready);
}

void notify_stopping(struct notify *n)
{
	if (n)
		send_flag(n, &n->stopping);
}

void notify_watchdog(struct notify *n)
{
	if (n)
		send_flag(n, &n->watchdog);
}

static void send_time(struct notify *n, int64_t *time_ns, int64_t ns)
{
	*time_ns = ns;
	flush(n);
}

void notify_reloading(struct notify *n)
{
	if (n)
		send_time(n, &n->reloading_ns, dray_now().ns);
}

void notify_extend(struct notify *n, int64_t ns)
{
	if (n)
		send_time(n, &n->extend_ns, ns);
}

void notify_status(struct notify *n, const char *fmt, ...)
{
	va_list ap;

	if (!n)
		return;
	va_start(ap, fmt);
	vsnprintf(n->status, sizeof(n->status), fmt, ap);
	va_end(ap);
	n->status_changed = true;
	flush(n);
}
