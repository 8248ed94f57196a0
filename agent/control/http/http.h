/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP: /metrics, /healthz and /readyz, by libmicrohttpd on the agent's event loop. GET and HEAD only, no
 * bodies. Connections are bounded in number, in memory and in time, so that nobody who may connect can
 * take from the agent what its work needs. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_HTTP_HTTP_H
#define DRAY_AGENT_CONTROL_HTTP_HTTP_H

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/control/status/health.h"
#include "agent/control/status/metrics.h"
#include "agent/control/ready.h"
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
 * Opens http.listen and http.probe_listen. 0, or -errno with a sentence that names key and address. Sockets
 * that may be open are counted against RLIMIT_NOFILE as it is now.
 */
int http_new(struct http **ret, const struct http_deps *deps, struct dray_err *reterr);

/* Closes every connection, answered or not. Before the health is freed. */
struct http *http_free(struct http *h);

/*
 * Serves a connected stream socket (consumed) as if a listener had accepted it; probes_only: one of
 * http.probe_listen. 0, or -errno where there are too many already, or no such listeners.
 */
int http_serve(struct http *h, int fd, bool probes_only);

#endif
