/* SPDX-License-Identifier: Apache-2.0 */
/* A listening Unix socket: bound to a configured path, or passed by systemd. */
#pragma once

#include <sys/types.h>

#include "lib/err.h"

struct unix_listener {
	int fd;
	char *path; /* to remove on close; NULL for a passed socket */
	dev_t dev;
	ino_t ino;
};

#define UNIX_LISTENER_NULL ((struct unix_listener){ .fd = -1 })

struct unix_listener_kind {
	const char *section; /* of the configuration, for errors: "control" or "data" */
	int type;            /* SOCK_STREAM or SOCK_SEQPACKET */
};

/*
 * Binds with this mode, and with this group unless it is (gid_t)-1. Replaces the socket of a process that has ended.
 * A socket that another process serves, or a file that is not a socket, is an error.
 */
int unix_listener_bind(struct unix_listener *l, const struct unix_listener_kind *kind,
		       const char *path, mode_t mode, gid_t group, struct dray_err *reterr);

/* fd: consumed, also on error. */
int unix_listener_adopt(struct unix_listener *l, const struct unix_listener_kind *kind, int fd,
			struct dray_err *reterr);

/* Closes, and removes the path if it is still this socket. */
void unix_listener_close(struct unix_listener *l);

/*
 * The group of a section of the configuration: name or number; "" gives (gid_t)-1. May block in a name service, so it is for the start
 * only.
 */
int unix_listener_group_parse(const char *section, const char *group, gid_t *ret_gid,
			      struct dray_err *reterr);
