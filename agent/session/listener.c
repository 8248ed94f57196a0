/* SPDX-License-Identifier: Apache-2.0 */
/* The data socket: watched, and accepted from. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/session/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Connections taken in one callback. */
#define ACCEPT_MAX 16
/* Pause after the process or the system ran out of descriptors. */
#define ACCEPT_PAUSE_US 100000

static int resume_accept(sd_event_source *source, uint64_t usec, void *arg)
{
	struct sessions *ss = arg;

	(void)source;
	(void)usec;
	return sd_event_source_set_enabled(ss->accept_source, SD_EVENT_ON);
}

/*
 * What waits in the backlog would wake the loop again and again, and nothing could be done about
 * it.
 */
static int pause_accept(struct sessions *ss, int err)
{
	int r;

	log_limited(DRAY_LOG_WARNING, "session", "cannot accept: %s, trying again in %d ms",
		    dray_errno_text(err), ACCEPT_PAUSE_US / 1000);
	r = sd_event_source_set_time_relative(ss->accept_pause, ACCEPT_PAUSE_US);
	if (r >= 0)
		r = sd_event_source_set_enabled(ss->accept_pause, SD_EVENT_ONESHOT);
	if (r >= 0)
		r = sd_event_source_set_enabled(ss->accept_source, SD_EVENT_OFF);
	return r;
}

static int handle_accept(sd_event_source *source, int listen_fd, uint32_t revents, void *arg)
{
	struct sessions *ss = arg;

	(void)source;
	(void)revents;
	for (unsigned i = 0; i < ACCEPT_MAX; i++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0)
			session_stranger_add(ss, fd);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			return pause_accept(ss, errno);
		else if (errno != EINTR && errno != ECONNABORTED)
			break;
	}
	return 0;
}

/* The timer is made now, since a loop's first timer takes a descriptor. */
static int watch(struct sessions *ss)
{
	int r;

	r = sd_event_add_io(ss->event, &ss->accept_source, ss->listener.fd, EPOLLIN, handle_accept,
			    ss);
	if (r >= 0)
		r = sd_event_add_time_relative(ss->event, &ss->accept_pause, CLOCK_MONOTONIC, 0,
					       ACCEPT_PAUSE_US / 10, resume_accept, ss);
	if (r >= 0)
		r = sd_event_source_set_enabled(ss->accept_pause, SD_EVENT_OFF);
	/* whoever is connected already, and what it has to say, comes before new connections */
	if (r >= 0)
		r = sd_event_source_set_priority(ss->accept_source, SD_EVENT_PRIORITY_NORMAL + 10);
	return r;
}

static int open_path(struct sessions *ss, const struct unix_listener_kind *kind,
		     struct dray_err *reterr)
{
	gid_t group;
	int r;

	r = unix_listener_group_parse(kind, ss->cfg->data.group, &group, reterr);
	if (r < 0)
		return r;
	return unix_listener_bind(&ss->listener, kind, ss->cfg->data.socket,
				  (mode_t)ss->cfg->data.mode, group, reterr);
}

int listener_open(struct sessions *ss, int fd, struct dray_err *reterr)
{
	static const struct unix_listener_kind kind = { "data", SOCK_SEQPACKET };
	int r;

	r = fd >= 0 ? unix_listener_adopt(&ss->listener, &kind, fd, reterr) :
		      open_path(ss, &kind, reterr);
	if (r < 0)
		return r;
	r = watch(ss);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO, "event loop: %s", dray_errno_text(r)) : 0;
}

void listener_close(struct sessions *ss)
{
	ss->accept_source = sd_event_source_disable_unref(ss->accept_source);
	ss->accept_pause = sd_event_source_disable_unref(ss->accept_pause);
	unix_listener_close(&ss->listener);
}
