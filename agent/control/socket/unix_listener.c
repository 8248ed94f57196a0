/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/socket/unix_listener.h"

#include <errno.h>
#include <grp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/control/socket/acceptor.h"
#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#define BACKLOG 128

static int failed(struct dray_err *reterr, const struct unix_listener_kind *kind, const char *path,
		  const char *action, int err)
{
	if (err == ENOENT || err == ENOTDIR)
		return dray_err_set(
			reterr, -err, DRAY_E_IO,
			"%s.socket: %s %.100s: %s; make its folder, or set %s.socket to another path",
			kind->section, action, path, dray_errno_text(err), kind->section);
	if (err == EACCES || err == EPERM || err == EROFS)
		return dray_err_set(
			reterr, -err, DRAY_E_DENIED,
			"%s.socket: %s %.100s: %s; set %s.socket to a path that the agent may write",
			kind->section, action, path, dray_errno_text(err), kind->section);
	return dray_err_set(reterr, -err, err == ENOSPC ? DRAY_E_NO_SPACE : DRAY_E_IO,
			    "%s.socket: %s %.100s: %s", kind->section, action, path,
			    dray_errno_text(err));
}

static int group_refused(struct dray_err *reterr, const struct unix_listener_kind *kind,
			 const char *path, int err)
{
	return dray_err_set(
		reterr, -err, err == EPERM ? DRAY_E_DENIED : DRAY_E_IO,
		"%s.socket: setting the group of %.100s: %s; set %s.group to a group of the agent's user",
		kind->section, path, dray_errno_text(err), kind->section);
}

static int served(struct dray_err *reterr, const struct unix_listener_kind *kind, const char *path)
{
	return dray_err_set(
		reterr, -EADDRINUSE, DRAY_E_BUSY,
		"%s.socket: %.100s is served by another process; stop it, or set another path",
		kind->section, path);
}

/* Removes the socket of a process that has ended. */
static int stale_remove(const struct unix_listener_kind *kind, const struct sockaddr_un *sa,
			struct dray_err *reterr)
{
	const char *path = sa->sun_path;
	int fd dray_auto_close = -1;
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : failed(reterr, kind, path, "looking at", errno);
	if (!S_ISSOCK(st.st_mode))
		return dray_err_set(
			reterr, -EEXIST, DRAY_E_EXISTS,
			"%s.socket: %.100s exists and is not a socket; remove it, or set another path",
			kind->section, path);
	fd = socket(AF_UNIX, kind->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return failed(reterr, kind, path, "opening a socket for", errno);
	/* EAGAIN: a busy process listens. EPROTOTYPE: a process listens with another socket type. */
	if (connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0 || errno == EAGAIN ||
	    errno == EPROTOTYPE)
		return served(reterr, kind, path);
	if (errno != ECONNREFUSED && errno != ENOENT)
		return failed(reterr, kind, path, "connecting to", errno);
	if (errno == ECONNREFUSED && unlink(path) < 0 && errno != ENOENT)
		return failed(reterr, kind, path, "removing the old", errno);
	return 0;
}

/* Makes the last directory of the path: /run is empty after a boot. */
static void parent_make(const char *path)
{
	const char *slash = strrchr(path, '/');
	dray_auto_free char *dir = slash && slash > path ? strndup(path, (size_t)(slash - path)) :
							   NULL;

	/* if this fails, bind reports the reason */
	if (dir)
		mkdir(dir, 0755);
}

/* Returns the step that failed, with errno; NULL: none. */
static const char *bind_private(struct unix_listener *l, int type, const struct sockaddr_un *sa)
{
	l->fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* the path takes the mode of the socket: no client connects before group and mode are set */
	if (l->fd < 0 || fchmod(l->fd, 0600) < 0)
		return "opening a socket for";
	return bind(l->fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0 ? "binding" : NULL;
}

/* The same: sets the mode, and listens. */
static const char *publish(struct unix_listener *l, const char *path, mode_t mode)
{
	struct stat st;

	if (chmod(path, mode) < 0)
		return "setting the mode of";
	if (listen(l->fd, BACKLOG) < 0)
		return "listening on";
	l->path = strdup(path);
	if (!l->path || lstat(path, &st) < 0)
		return "looking at";
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	return NULL;
}

int unix_listener_bind(struct unix_listener *l, const struct unix_listener_kind *kind,
		       const char *path, mode_t mode, gid_t group, struct dray_err *reterr)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const char *action;
	int r;

	*l = UNIX_LISTENER_NULL;
	if (!*path || strlen(path) >= sizeof(sa.sun_path))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "%s.socket: a path of 1 to %zu bytes is needed", kind->section,
				    sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	parent_make(path);
	r = stale_remove(kind, &sa, reterr);
	if (r < 0)
		return r;
	action = bind_private(l, kind->type, &sa);
	if (action && errno == EADDRINUSE) {
		r = served(reterr, kind, path);
	} else if (action) {
		r = failed(reterr, kind, path, action, errno);
	} else {
		if (group != (gid_t)-1 && chown(path, (uid_t)-1, group) < 0)
			r = group_refused(reterr, kind, path, errno);
		else if ((action = publish(l, path, mode)))
			r = failed(reterr, kind, path, action, errno);
		if (r < 0)
			unlink(path);
	}
	if (r < 0)
		unix_listener_close(l);
	return r;
}

int unix_listener_adopt(struct unix_listener *l, const struct unix_listener_kind *kind, int fd,
			struct dray_err *reterr)
{
	int r = 0;

	*l = UNIX_LISTENER_NULL;
	l->fd = fd;
	if (!socket_listens(fd, AF_UNIX, kind->type))
		r = dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				 "the passed socket named %s is not a listening Unix socket of its "
				 "type; use %s= with a path",
				 kind->section,
				 kind->type == SOCK_STREAM ? "ListenStream" :
							     "ListenSequentialPacket");
	else if (socket_set_flags(fd) < 0)
		r = dray_err_set(reterr, -errno, DRAY_E_IO, "the passed %s socket: %s",
				 kind->section, dray_errno_text(errno));
	if (r < 0)
		unix_listener_close(l);
	return r;
}

void unix_listener_close(struct unix_listener *l)
{
	struct stat st;

	if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	free(l->path);
	dray_close(l->fd);
	*l = UNIX_LISTENER_NULL;
}

int unix_listener_group_parse(const char *section, const char *group, gid_t *ret_gid,
			      struct dray_err *reterr)
{
	struct group buffer, *found = NULL;
	dray_auto_free char *text = NULL;
	int64_t number;
	int err;

	if (!*group) {
		*ret_gid = (gid_t)-1;
		return 0;
	}
	if (dray_int_parse(group, 0, &number) == 0 && number >= 0 && number < UINT32_MAX) {
		*ret_gid = (gid_t)number;
		return 0;
	}
	/* a group with many members needs a long buffer */
	for (size_t n = 4096;; n *= 4) {
		free(text);
		text = malloc(n);
		if (!text)
			return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
		err = getgrnam_r(group, &buffer, text, n, &found);
		if (err != ERANGE || n > (1u << 24))
			break;
	}
	if (!found)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"%s.group: there is no group %.60s; name one of this system, or "
			"give its number",
			section, group);
	*ret_gid = found->gr_gid;
	return 0;
}
