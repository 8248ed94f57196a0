/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define BACKLOG 64

static int failed(struct dray_err *reterr, const char *path, const char *what, int err)
{
	if (err == EACCES || err == EPERM || err == EROFS)
		return dray_err_set(reterr, -err, DRAY_E_DENIED,
				    "control.socket: %s %.100s: %s; set control.socket to a path "
				    "that the agent may write",
				    what, path, dray_errno_text(err));
	return dray_err_set(reterr, -err, DRAY_E_IO, "control.socket: %s %.100s: %s", what, path,
			    dray_errno_text(err));
}

static int served(struct dray_err *reterr, const char *path)
{
	return dray_err_set(reterr, -EADDRINUSE, DRAY_E_BUSY,
			    "control.socket: %.100s is served by another process; stop it, or set "
			    "another control.socket",
			    path);
}

/* Removes what a dead process left at the path. */
static int stale_remove(const struct sockaddr_un *sa, struct dray_err *reterr)
{
	const char *path = sa->sun_path;
	int fd dray_auto_close = -1;
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : failed(reterr, path, "looking at", errno);
	if (!S_ISSOCK(st.st_mode))
		return dray_err_set(reterr, -EEXIST, DRAY_E_EXISTS,
				    "control.socket: %.100s is there and is no socket; remove it, "
				    "or set another control.socket",
				    path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return failed(reterr, path, "opening a socket for", errno);
	/* EAGAIN: somebody listens and is busy. EPROTOTYPE: somebody listens, for packets. */
	if (connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0 || errno == EAGAIN ||
	    errno == EPROTOTYPE)
		return served(reterr, path);
	if (errno == ENOENT)
		return 0;
	if (errno != ECONNREFUSED)
		return failed(reterr, path, "connecting to", errno);
	if (unlink(path) < 0 && errno != ENOENT)
		return failed(reterr, path, "removing the old", errno);
	return 0;
}

/* The last directory of the path: /run is empty after a boot. */
static void parent_make(const char *path)
{
	const char *slash = strrchr(path, '/');
	dray_auto_free char *dir = slash && slash > path ? strndup(path, (size_t)(slash - path)) :
							   NULL;

	/* where this fails, bind says why */
	if (dir)
		mkdir(dir, 0755);
}

/* With the path bound: group, then mode. On error the path is removed again. */
static int finish(struct control_listener *l, const char *path, mode_t mode, gid_t group,
		  struct dray_err *reterr)
{
	struct stat st;
	int err = 0;

	if (group != (gid_t)-1 && chown(path, (uid_t)-1, group) < 0)
		err = failed(reterr, path, "giving to control.group", errno);
	else if (chmod(path, mode) < 0)
		err = failed(reterr, path, "setting control.mode of", errno);
	else if (listen(l->fd, BACKLOG) < 0)
		err = failed(reterr, path, "listening on", errno);
	else if (lstat(path, &st) < 0)
		err = failed(reterr, path, "looking at", errno);
	if (err < 0) {
		unlink(path);
		return err;
	}
	l->path = strdup(path);
	if (!l->path) {
		unlink(path);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	}
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	return 0;
}

int control_listener_bind(struct control_listener *l, const char *path, mode_t mode, gid_t group,
			  struct dray_err *reterr)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int ret;

	*l = CONTROL_LISTENER_NULL;
	if (!*path || strlen(path) >= sizeof(sa.sun_path))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "control.socket: a path of 1 to %zu bytes is needed",
				    sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	parent_make(path);
	ret = stale_remove(&sa, reterr);
	if (ret < 0)
		return ret;
	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return failed(reterr, path, "opening a socket for", errno);
	/* the path gets the mode of the socket's inode: nobody gets in before group and mode are right */
	fchmod(l->fd, 0600);
	if (bind(l->fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0)
		ret = errno == EADDRINUSE ? served(reterr, path) :
					    failed(reterr, path, "binding", errno);
	else
		ret = finish(l, path, mode, group, reterr);
	if (ret < 0)
		control_listener_close(l);
	return ret;
}

static bool option_is(int fd, int option, int expected)
{
	socklen_t n = sizeof(int);
	int v = -1;

	return getsockopt(fd, SOL_SOCKET, option, &v, &n) == 0 && v == expected;
}

int control_listener_adopt(struct control_listener *l, int fd, struct dray_err *reterr)
{
	*l = CONTROL_LISTENER_NULL;
	l->fd = fd;
	if (!option_is(fd, SO_DOMAIN, AF_UNIX) || !option_is(fd, SO_TYPE, SOCK_STREAM) ||
	    !option_is(fd, SO_ACCEPTCONN, 1)) {
		control_listener_close(l);
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the passed socket named control is no listening Unix stream "
				    "socket; use ListenStream= with a path");
	}
	/* accept must never wait, and no child may hold the socket */
	if (fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
		int err = errno;

		control_listener_close(l);
		return dray_err_set(reterr, -err, DRAY_E_IO, "the passed control socket: %s",
				    dray_errno_text(err));
	}
	return 0;
}

void control_listener_close(struct control_listener *l)
{
	struct stat st;

	if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	free(l->path);
	dray_close(l->fd);
	*l = CONTROL_LISTENER_NULL;
}
