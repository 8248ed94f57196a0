/* SPDX-License-Identifier: Apache-2.0 */
/* The data socket: bound with its mode and group before anybody can connect, and accepted from. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "agent/session/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#define BACKLOG 128
/* Connections taken in one callback. */
#define ACCEPT_MAX 16
/* Pause after the process or the system ran out of descriptors. */
#define ACCEPT_PAUSE_US 100000

static int path_error(struct dray_err *reterr, int err, const char *path, const char *what)
{
	int code = err == ENOSPC                 ? DRAY_E_NO_SPACE :
		   err == EACCES || err == EPERM ? DRAY_E_DENIED :
						   DRAY_E_IO;

	return dray_err_set(reterr, -err, code, "data.socket %s: %s: %s", path, what,
			    dray_errno_text(err));
}

/* A socket file that nobody listens on is what an agent that was killed leaves behind. */
static int remove_stale(const struct sockaddr_un *addr, struct dray_err *reterr)
{
	int fd dray_auto_close = -1;
	struct stat st;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : path_error(reterr, errno, addr->sun_path, "stat");
	if (!S_ISSOCK(st.st_mode))
		return path_error(reterr, EEXIST, addr->sun_path,
				  "something that is not a socket is there");
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return path_error(reterr, errno, addr->sun_path, "socket");
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno != ECONNREFUSED)
		return dray_err_set(
			reterr, -EADDRINUSE, DRAY_E_EXISTS,
			"data.socket %s: another process listens there; stop it or set data.socket",
			addr->sun_path);
	if (unlink(addr->sun_path) < 0 && errno != ENOENT)
		return path_error(reterr, errno, addr->sun_path, "unlink");
	return 0;
}

/* Names are looked up here alone, before the loop runs: that may ask a name service. */
static int group_id(const char *name, gid_t *ret, struct dray_err *reterr)
{
	struct group *g;
	int64_t id;

	if (dray_int_parse(name, 0, &id) == 0 && id >= 0 && id < UINT32_MAX) {
		*ret = (gid_t)id;
		return 0;
	}
	g = getgrnam(name);
	if (!g)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "data.group: there is no group %s", name);
	*ret = g->gr_gid;
	return 0;
}

/*
 * The directory above it, where only that is missing, as after a boot without systemd's
 * RuntimeDirectory.
 */
static void make_directory(const char *path)
{
	char *dir dray_auto_free = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!slash || slash == dir)
		return;
	*slash = 0;
	mkdir(dir, 0755);
}

static int bind_path(struct sessions *ss, int fd, struct dray_err *reterr)
{
	const char *path = ss->cfg->data.socket;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	gid_t gid = (gid_t)-1;
	int r;

	if (!*path || strlen(path) >= sizeof(addr.sun_path))
		return path_error(reterr, ENAMETOOLONG, path, "a socket's path has 1 to 107 bytes");
	memcpy(addr.sun_path, path, strlen(path));
	r = *ss->cfg->data.group ? group_id(ss->cfg->data.group, &gid, reterr) : 0;
	if (r < 0)
		return r;
	make_directory(path);
	r = remove_stale(&addr, reterr);
	if (r < 0)
		return r;
	/* the file takes this mode: nobody gets in before owner and mode are right */
	if (fchmod(fd, 0) < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return path_error(reterr, errno, path, "bind");
	ss->path = strdup(path);
	if (!ss->path)
		return path_error(reterr, ENOMEM, path, "strdup");
	if (gid != (gid_t)-1 && chown(path, (uid_t)-1, gid) < 0)
		return path_error(reterr, errno, path, "chown to data.group");
	if (chmod(path, (mode_t)ss->cfg->data.mode) < 0)
		return path_error(reterr, errno, path, "chmod to data.mode");
	return 0;
}

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

	r = sd_event_add_io(ss->event, &ss->accept_source, ss->listen_fd, EPOLLIN, handle_accept,
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

static int check_passed(int fd, struct dray_err *reterr)
{
	if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the passed data socket is no listening SOCK_SEQPACKET socket "
				    "(ListenSequentialPacket= in the socket unit)");
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "the passed data socket: %s",
				    dray_errno_text(errno));
	return 0;
}

static int open_path(struct sessions *ss, struct dray_err *reterr)
{
	int r;

	ss->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ss->listen_fd < 0)
		return path_error(reterr, errno, ss->cfg->data.socket, "socket");
	r = bind_path(ss, ss->listen_fd, reterr);
	if (r < 0)
		return r;
	return listen(ss->listen_fd, BACKLOG) < 0 ?
		       path_error(reterr, errno, ss->cfg->data.socket, "listen") :
		       0;
}

int listener_open(struct sessions *ss, int fd, struct dray_err *reterr)
{
	int r;

	ss->listen_fd = fd;
	r = fd >= 0 ? check_passed(fd, reterr) : open_path(ss, reterr);
	if (r < 0)
		return r;
	r = watch(ss);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO, "event loop: %s", dray_errno_text(r)) : 0;
}

void listener_close(struct sessions *ss)
{
	ss->accept_source = sd_event_source_disable_unref(ss->accept_source);
	ss->accept_pause = sd_event_source_disable_unref(ss->accept_pause);
	ss->listen_fd = dray_close(ss->listen_fd);
	if (ss->path)
		unlink(ss->path);
	free(ss->path);
	ss->path = NULL;
}
