/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP: /metrics, /healthz and /readyz, by libmicrohttpd on the agent's event loop. GET and HEAD only, no
 * bodies. The number, memory and time of connections are bounded, so that HTTP clients cannot exhaust the resources of
 * the agent. Control thread only; nothing blocks.
 */
#pragma once

#include "lib/cleanup.h"
#include "lib/err.h"

struct agent;
struct http;

/*
 * Opens http.listen and http.probe_listen. a->health exists, and RLIMIT_NOFILE has its final value. 0, or -errno with reterr, which names
 * key and address.
 */
int http_new(struct http **ret, struct agent *a, struct dray_err *reterr);

/* Closes every connection, even without an answer. Call it before health_free(). */
struct http *http_free(struct http *h);
DRAY_DEFINE_CLEANUP(struct http *, http_free);
