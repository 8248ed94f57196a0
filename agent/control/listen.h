/* SPDX-License-Identifier: Apache-2.0 */
/* The listening end of the control socket: bound to a path, or passed by systemd. */
#ifndef DRAY_AGENT_CONTROL_LISTEN_H
#define DRAY_AGENT_CONTROL_LISTEN_H

#include <stdbool.h>
#include <sys/types.h>

#include "lib/err.h"

struct control_listener {
	int fd;
	char *path; /* that we bound and have to remove; NULL for a passed one */
	dev_t dev;
	ino_t ino;
};

#define CONTROL_LISTENER_NULL ((struct control_listener){ .fd = -1 })

/*
 * Binds with that mode, and that group unless it is (gid_t)-1. A socket left behind by a process that
 * is gone is replaced; one that is served, or a file that is no socket, is an error.
 */
int control_listener_bind(struct control_listener *l, const char *path, mode_t mode, gid_t group,
			  struct dray_err *reterr);

/* fd: consumed, also on error. */
int control_listener_adopt(struct control_listener *l, int fd, struct dray_err *reterr);

/* Closes, and removes the path if it is still this socket. */
void control_listener_close(struct control_listener *l);

#endif
