/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GET by plain HTTP/1.1 over a connection of its own, on the agent's event loop. Control thread only; nothing
 * blocks. The answer is bounded in time and in bytes; redirects are not followed: their status is reported.
 */
#ifndef DRAY_AGENT_PLACEMENT_NET_HTTP_CLIENT_H
#define DRAY_AGENT_PLACEMENT_NET_HTTP_CLIENT_H

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/config/http_url.h"
#include "agent/placement/net/resolver.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct http_get;

struct http_get_deps {
	sd_event *event;           /* borrowed */
	struct resolver *resolver; /* borrowed; outlives the request */
};

struct http_limits {
	int64_t timeout_ns; /* of all of it, names included; more than 0 */
	size_t body_bytes;  /* more is an error, not cut */
};

struct http_response {
	unsigned status;          /* 200 to 999 */
	const char *content_type; /* "" without */
	const char *body;         /* a NUL byte follows */
	size_t n;                 /* without that */
	int64_t connect_ns;       /* how long the address that answered took to accept */
};

/*
 * response: any whole answer, whatever its status, valid during the call; NULL where there is none. why: NULL, or the
 * reason, a sentence that names the host: DRAY_E_TIMEOUT, DRAY_E_TOO_LARGE, DRAY_E_PROTOCOL (not HTTP, or
 * truncated), DRAY_E_PEER_UNREACHABLE (name or connection), DRAY_E_PEER_LOST (closed or reset without a whole answer).
 * The request is gone: it is not cancelled any more. May start others, and free the resolver.
 */
typedef void (*http_get_fn)(void *arg, const struct http_response *response,
			    const struct dray_err *why);

/*
 * url, limits: copied. fn is called exactly once unless the request is cancelled, from the event loop and never in
 * here. The addresses of a name are tried in turn, each for its share of the time that is left. 0, or -errno with
 * reterr and no call.
 */
int http_get(struct http_get **ret, const struct http_get_deps *deps, const struct http_url *url,
	     const struct http_limits *limits, http_get_fn fn, void *arg, struct dray_err *reterr);

/* Closes the connection; fn is not called. Takes NULL. Returns NULL. */
struct http_get *http_get_cancel(struct http_get *g);

DRAY_DEFINE_CLEANUP(struct http_get *, http_get_cancel);

#endif
