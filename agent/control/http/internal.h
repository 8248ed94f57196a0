/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of HTTP. A server is one MHD daemon without a listening socket: http.c accepts the connections, so
 * that it can pause. There are two servers, so that clients of /metrics cannot use up the connections for probes.
 */
#pragma once

#include <microhttpd.h>

#include "agent/control/agent.h"
#include "agent/control/http/http.h"
#include "agent/control/socket/acceptor.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/health.h"
#include "agent/control/status/ready.h"
#include "lib/addr.h"

#define AREA "http"

struct http_server {
	struct agent *agent;
	bool probes_only;
	struct MHD_Daemon *daemon;
	sd_event_source *io;    /* MHD's epoll */
	sd_event_source *again; /* MHD's timeout */
	sd_event_source *limit; /* end of the first connection's time */
	struct tcp_listeners listeners;
	struct dray_list conns;       /* by end_ns; without connections that wait for health */
	struct dray_list requests;    /* pending at health */
	struct MHD_Response *metrics; /* serves all requests of one turn */
};

struct http {
	struct http_server all, probes;
};

struct http_conn {
	struct dray_list link;
	int fd; /* MHD's */
	int64_t end_ns;
};

/* --- server.c --- */

int server_init(struct http_server *s, struct agent *a, bool probes_only, unsigned max_conns);
/* May be called without server_init(), or after it has failed. */
void server_deinit(struct http_server *s);
/* Consumes the socket. 0, or -errno if MHD accepts no more connections. */
int server_add(struct http_server *s, int fd, const struct dray_addr *from);
/* Lets MHD serve its connections. */
void server_run(struct http_server *s);
/* Calls server_run() from the event loop after this time. */
void server_wake(struct http_server *s, uint64_t usec);
/* Restarts the connection's time. */
void conn_touch(struct http_server *s, struct http_conn *c);
/* Stops the connection's time until conn_touch(). */
void conn_rest(struct http_conn *c);

/* --- pages.c --- */

/* MHD_AccessHandlerCallback and MHD_RequestCompletedCallback; cls is the server. */
enum MHD_Result page_request(void *cls, struct MHD_Connection *mhd, const char *url,
			     const char *method, const char *version, const char *body,
			     size_t *body_bytes, void **request);
void page_completed(void *cls, struct MHD_Connection *mhd, void **request,
		    enum MHD_RequestTerminationCode how);
/* Answers requests that wait for health. */
void pages_stop(struct http_server *s);
