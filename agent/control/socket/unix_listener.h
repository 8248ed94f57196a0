/* SPDX-License-Identifier: Apache-2.0 */
/* A listening Unix socket: bound to the path of a section's configuration, or passed by systemd. */
#ifndef DRAY_AGENT_CONTROL_SOCKET_UNIX_LISTENER_H
#define DRAY_AGENT_CONTROL_SOCKET_UNIX_LISTENER_H

#include <sys/types.h>

#include "lib/err.h"

struct unix_listener {
	int fd;
	char *path; /* that we bound and have to remove; NULL for a passed one */
	dev_t dev;
	ino_t ino;
};

#define UNIX_LISTENER_NULL ((struct unix_listener){ .fd = -1 })

/* Which one it is. */
struct unix_listener_kind {
	const char *section; /* "control": its keys socket and group are named in errors */
	int type;            /* SOCK_STREAM or SOCK_SEQPACKET */
};

/*
 * Binds with that mode, and that group unless it is (gid_t)-1. A socket left behind by a process that
 * is gone is replaced; one that is served, or a file that is no socket, is an error.
 */
int unix_listener_bind(struct unix_listener *l, const struct unix_listener_kind *kind,
		       const char *path, mode_t mode, gid_t group, struct dray_err *reterr);

/* fd: consumed, also on error. */
int unix_listener_adopt(struct unix_listener *l, const struct unix_listener_kind *kind, int fd,
			struct dray_err *reterr);

/* Closes, and removes the path if it is still this socket. */
void unix_listener_close(struct unix_listener *l);

/*
 * group: name or number; "" gives (gid_t)-1. May ask a name service: for the start only, before the
 * loop runs.
 */
int unix_listener_group_parse(const struct unix_listener_kind *kind, const char *group,
			      gid_t *ret_gid, struct dray_err *reterr);

#endif
