/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP: /metrics, /healthz and /readyz, by libmicrohttpd on the agent's event loop. GET and HEAD only, no
 * bodies. The number, memory and time of connections are bounded, so that HTTP clients cannot exhaust the resources of
 * the agent. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_HTTP_HTTP_H
#define DRAY_AGENT_CONTROL_HTTP_HTTP_H

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/control/ready.h"
#include "agent/control/status/health.h"
#include "agent/control/status/metrics.h"
#include "schema/gen/config.h"

struct http;

struct http_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed */
	struct health *health;         /* borrowed */
	struct metrics_source metrics;
	void (*ready)(void *arg, struct ready *ret);
	void *arg;
};

/*
 * Opens http.listen and http.probe_listen. RLIMIT_NOFILE must have its final value. 0, or -errno with reterr, which names
 * key and address.
 */
int http_new(struct http **ret, const struct http_deps *deps, struct dray_err *reterr);

/* Closes every connection, even without an answer. Call it before health_free(). */
struct http *http_free(struct http *h);

/*
 * Serves a connected stream socket (consumed) like a connection to http.listen, or with probes_only to
 * http.probe_listen. 0, or -errno if that has no listener or too many connections.
 */
int http_serve(struct http *h, int fd, bool probes_only);

#endif
