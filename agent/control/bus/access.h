/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is on the control socket, by the kernel's word, and whether they may change things. Whoever the
 * socket's mode and group let in may read.
 */
#ifndef DRAY_AGENT_CONTROL_BUS_ACCESS_H
#define DRAY_AGENT_CONTROL_BUS_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* Root, the owner, and members of the group may change things. */
struct control_rules {
	uid_t owner;
	bool has_group;
	gid_t group;
};

struct control_who {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* for people only: 0 across PID namespaces */
	bool may_change;
};

/* The other end of a connected Unix socket. 0 or -errno. */
int control_who_get(int fd, const struct control_rules *rules, struct control_who *ret);

#endif
