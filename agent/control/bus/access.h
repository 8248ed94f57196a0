/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of a connection, as the kernel reports it, and whether it may change things. The mode and group of the
 * socket decide which clients may connect; every connected client may read.
 */
#ifndef DRAY_AGENT_CONTROL_BUS_ACCESS_H
#define DRAY_AGENT_CONTROL_BUS_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* Root, the owner, and members of the group may change things. */
struct access_rules {
	uid_t owner;
	bool has_group;
	gid_t group;
};

struct bus_client {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* for log lines; 0 across PID namespaces */
	bool may_change;
};

/* fd: a connected Unix socket. 0 or -errno. */
int bus_client_get(int fd, const struct access_rules *rules, struct bus_client *ret);

#endif
