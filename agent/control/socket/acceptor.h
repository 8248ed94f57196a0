/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepting from a listening socket, in the agent's loop. It is bounded for each turn of the loop. Without a free
 * descriptor, or memory, it pauses for a while, since what waits in the backlog would wake the loop for ever.
 */
#ifndef DRAY_AGENT_CONTROL_SOCKET_ACCEPTOR_H
#define DRAY_AGENT_CONTROL_SOCKET_ACCEPTOR_H

#include <systemd/sd-event.h>

#include "lib/addr.h"

/* After the connections' own input: under a flood, those who are there already are served first. */
#define ACCEPTOR_AFTER_CONNECTIONS (SD_EVENT_PRIORITY_NORMAL + 10)

struct acceptor_ops {
	const char *area; /* of its log lines */
	int64_t priority;
	/* fd: non-blocking, and the callee's. */
	void (*accepted)(void *arg, int fd, const struct dray_addr *from);
	/* Before a pause: what can be closed may be. May be NULL. */
	void (*exhausted)(void *arg);
	/* After the connections of one turn. May be NULL. */
	void (*turned)(void *arg);
};

struct acceptor {
	const struct acceptor_ops *ops;
	void *arg;
	sd_event_source *io, *resume;
};

/* listen_fd: non-blocking; stays the caller's, and open until acceptor_stop(). 0, or -errno: stop it then, too. */
int acceptor_start(struct acceptor *a, sd_event *event, int listen_fd,
		   const struct acceptor_ops *ops, void *arg);

/* Also for one that was never started, if zeroed. */
void acceptor_stop(struct acceptor *a);

#endif
