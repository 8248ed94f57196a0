/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts from listening sockets in the event loop, a bounded number of connections in each turn. Without a free
 * descriptor or memory it pauses for a while, because the backlog would wake the loop again and again.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/addr.h"
#include "lib/err.h"
#include "lib/list.h"

/* After the connections' input, so that a flood of new connections does not delay the existing ones. */
#define ACCEPTOR_AFTER_CONNECTIONS (SD_EVENT_PRIORITY_NORMAL + 10)

struct acceptor_ops {
	const char *area; /* of the log lines */
	int64_t priority;
	/* Accepting must pause for a while. May be NULL. */
	bool (*full)(void *arg);
	/* fd: non-blocking, consumed. */
	void (*accepted)(void *arg, int fd, const struct dray_addr *from);
	/* Before a pause: closes what can be closed. May be NULL. */
	void (*exhausted)(void *arg);
	/* After the connections of one turn. May be NULL. */
	void (*turned)(void *arg);
};

struct acceptor {
	const struct acceptor_ops *ops;
	void *arg;
	sd_event_source *io, *resume;
};

/* listen_fd: non-blocking, not consumed, open until acceptor_stop(). 0 or -errno; acceptor_stop() follows either. */
int acceptor_start(struct acceptor *a, sd_event *event, int listen_fd,
		   const struct acceptor_ops *ops, void *arg);

/* Also for a zeroed acceptor that was never started. */
void acceptor_stop(struct acceptor *a);

/* The TCP sockets that accept connections for one purpose. */
struct tcp_listeners {
	struct dray_list list; /* of struct tcp_listener */
	sd_event *event;
	const char *key;  /* of the configuration, for errors */
	const char *what; /* for the log line "WHAT on ADDRESS" */
	const struct acceptor_ops *ops;
	void *arg;
};

struct tcp_listener {
	struct dray_list link;
	int fd;
	struct dray_addr addr; /* with the port that the kernel chose */
	struct acceptor acceptor;
};

/* Listens on the address. 0, or -errno with reterr. */
int tcp_listener_bind(struct tcp_listeners *ls, const struct dray_addr *addr,
		      struct dray_err *reterr);
/* Accepts from a socket that listens already. fd: consumed, also on error. 0, or -errno with reterr. */
int tcp_listener_add(struct tcp_listeners *ls, int fd, struct dray_err *reterr);
void tcp_listeners_close(struct tcp_listeners *ls);

/* For sockets that systemd passes. */

bool socket_listens(int fd, int family, int type);
/* Makes accept() non-blocking, and keeps the socket from children. 0, or -1 with errno. */
int socket_set_flags(int fd);
