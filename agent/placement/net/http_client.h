/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request by plain HTTP/1.1 over its own connection, on the agent's event loop. Control thread only; nothing blocks. The
 * response is bounded in time and in bytes. Redirects are not followed: their status is reported.
 */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/config/http_url.h"
#include "agent/placement/net/http_answer.h"
#include "agent/placement/net/resolver.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct http_call;

/*
 * answer: a complete response of any status, valid during the call; NULL on failure. why: NULL, or the reason, which
 * names the host: DRAY_E_TIMEOUT, DRAY_E_TOO_LARGE, DRAY_E_PROTOCOL (not HTTP, or truncated), DRAY_E_PEER_UNREACHABLE
 * (name or connection), DRAY_E_NO_FDS, DRAY_E_NO_MEMORY (this agent has none), DRAY_E_PEER_LOST (closed or reset before the response was complete). The request has ended and
 * must not be cancelled. fn may start other requests and free the resolver.
 */
typedef void (*http_call_fn)(void *arg, const struct http_answer *answer,
			     const struct dray_err *why);

struct http_request {
	sd_event *event;           /* borrowed */
	struct resolver *resolver; /* borrowed; outlives the request */
	struct http_url url;
	const char *method;  /* NULL: GET */
	const char *content; /* JSON that is sent; NULL: none */
	size_t content_n;
	int64_t timeout_ns; /* of the whole request, name lookup included; more than 0 */
	size_t body_bytes;  /* a longer body is an error */
	http_call_fn fn;
	void *arg;
};

/*
 * The request is copied, with its content. fn is called exactly once unless the request is cancelled, from the event loop and not inside
 * this call. The addresses of a name are tried in turn, each for its share of the time left. 0, or -errno with reterr
 * and no callback.
 */
int http_start(struct http_call **ret, const struct http_request *request, struct dray_err *reterr);

/* Closes the connection; fn will not be called. Takes NULL. Returns NULL. */
struct http_call *http_call_cancel(struct http_call *g);

DRAY_DEFINE_CLEANUP(struct http_call *, http_call_cancel);
