/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of HTTP share. A server is one MHD daemon without a listening socket of its own: sockets are
 * accepted here, so that accepting can rest, and there are two servers, so that those who may ask for
 * metrics cannot take the connections of probes.
 */
#ifndef DRAY_AGENT_CONTROL_HTTP_INTERNAL_H
#define DRAY_AGENT_CONTROL_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "agent/control/http/http.h"
#include "lib/addr.h"

#define AREA "http"

struct http_server {
	struct http *http;
	bool probes_only;
	struct MHD_Daemon *daemon;
	sd_event_source *io;    /* MHD's epoll */
	sd_event_source *again; /* MHD has something left to do */
	sd_event_source *limit; /* the first connection's time is over */
	struct dray_list listeners;
	struct dray_list conns;       /* by end_ns; those that wait for health are not here */
	struct dray_list requests;    /* that health has yet to answer */
	struct MHD_Response *metrics; /* serves all who ask in one turn */
};

struct http {
	struct http_deps deps;
	struct http_server all, probes;
};

struct http_conn {
	struct dray_list link;
	struct MHD_Connection *mhd;
	int fd; /* MHD's */
	int64_t end_ns;
};

/* --- listen.c --- */

/* Sockets for every address of the list; `key` is its name, for errors. 0 or -errno with reterr. */
int http_listen(struct http_server *s, const char *key, const struct dray_strv *addresses,
		struct dray_err *reterr);
void http_listen_close(struct http_server *s);

/* --- server.c --- */

int server_init(struct http_server *s, struct http *h, bool probes_only, unsigned max_conns);
/* Also where server_init() was not called, or failed. */
void server_deinit(struct http_server *s);
/* Consumes the socket. 0 or -errno: MHD takes no more. */
int server_add(struct http_server *s, int fd, const struct dray_addr *from);
/* MHD does what there is to do. */
void server_run(struct http_server *s);
/* The same soon. */
void server_wake(struct http_server *s);
/* The connection's time begins anew. */
void conn_touch(struct http_server *s, struct http_conn *c);
/* And stands still until it is touched. */
void conn_rest(struct http_conn *c);

/* --- pages.c --- */

/* MHD_AccessHandlerCallback and MHD_RequestCompletedCallback; cls is the server. */
enum MHD_Result page_request(void *cls, struct MHD_Connection *mhd, const char *url,
			     const char *method, const char *version, const char *body,
			     size_t *body_bytes, void **request);
void page_completed(void *cls, struct MHD_Connection *mhd, void **request,
		    enum MHD_RequestTerminationCode how);
/* Nobody will answer those that wait for health: they are answered now. */
void pages_stop(struct http_server *s);

#endif
