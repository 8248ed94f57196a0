/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The face of the agent for Mooncake's engines: it answers their handshake with a segment whose buffers are the ranges that
 * clients exported with an address for them, and accepts data connections, which workers serve (agent/data/transport/mooncake).
 *
 * The protocol has no authentication. A peer is what its address says, so a connection from an address that is not in
 * mooncake.allow is closed before a byte of it is read. What an admitted peer sends is bounded: a handshake by its size and time,
 * and of its content only a request for queue pairs is parsed, over RDMA; data connections by their number and stalls, queue pairs
 * by their number.
 *
 * Control thread only.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/control/rails/rails.h"
#include "agent/control/region/region.h"
#include "agent/data/data.h"
#include "lib/err.h"
#include "schema/gen/config.h"

struct mooncake_server;

struct mooncake_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions;
	struct rails *const *rails; /* set before the first event */
	/*
	 * What the metadata server has of the segment: "absent", "empty" (no buffers), "published", or "failing" (nothing is known). May be
	 * NULL.
	 */
	void (*published)(void *arg, const char *segment, const char *before, const char *after,
			  const char *why);
	void *arg;
};

/* *ret is NULL without mooncake.listen; all other calls take NULL. 0, or -errno with reterr. */
int mooncake_server_new(struct mooncake_server **ret, const struct mooncake_deps *deps,
			struct dray_err *reterr);
/* Workers close their data connections when they end. */
struct mooncake_server *mooncake_server_free(struct mooncake_server *s);

/* on: closes all connections, and refuses others until it is called again. */
void mooncake_server_drain(struct mooncake_server *s, bool on);
/* Closes the connections that mooncake.allow does not have any more. */
void mooncake_server_reload(struct mooncake_server *s);
/* Devices or ranges for RDMA have changed: rails_guest_ready(). */
void mooncake_server_rails_changed(struct mooncake_server *s);
/* regions_mooncake_changes() has changed. */
void mooncake_server_ranges_changed(struct mooncake_server *s);
/* The agent ends: removes the segment from the metadata server. done() runs within 2 s, possibly inside the call. */
void mooncake_server_stop(struct mooncake_server *s, void (*done)(void *arg), void *arg);
/* A message of a worker. */
void mooncake_server_message(struct mooncake_server *s, const struct transport_message *m);

/* Its name; "": there is none. */
const char *mooncake_server_segment(const struct mooncake_server *s);

struct mooncake_totals {
	uint64_t connections, connections_refused;
	uint64_t handshakes, handshakes_refused;
	uint64_t metadata_failures;
	bool published; /* at the metadata server */
};
struct mooncake_totals mooncake_server_totals(const struct mooncake_server *s);
