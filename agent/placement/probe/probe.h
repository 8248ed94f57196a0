/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One probe of one target: does it serve? Control thread only; nothing blocks.
 *
 * A target is ready, by kind:
 *   tcp       if the port accepts a connection.
 *   dray      if a dray agent proves the key, shows its identity, and is not draining. Beyond loopback this needs a
 *             key, unless peer.allow_insecure. An agent of a release without probes is ready when it has shown its
 *             identity; the reason says so.
 *   mooncake  if the handshake daemon answers with the descriptor of a segment.
 *   http      if the status is 2xx and the body does not contradict it. A body that begins with { must be JSON; its
 *             service_ready, if present, must be true, and its status, if present, "ok" or "healthy". Any other
 *             body is ignored. Redirects are not followed.
 *
 * A host name is resolved for each probe. Its addresses are tried in turn, each for its share of the time left.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/config/probe_target.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct peer_probe;
struct peers;
struct probe;
struct resolver;

struct probe_result {
	bool ok;
	bool lacking; /* of a failure: this agent had no descriptors or memory for the probe, which tells nothing of the target */
	int64_t latency_ns;            /* from the start to the end of the probe */
	char reason[DRAY_ERR_MSG_MAX]; /* one line; never empty */
};

struct probe_deps {
	sd_event *event;
	struct resolver *resolver; /* NULL: names are not resolved, and no http probes */
	const struct peer_probe_ops *peer_probes; /* NULL: no dray probes */
	struct peers *peers;                      /* for peer_probes */
};

/* r is valid during the call, after which the probe is freed. fn must not cancel it, but may start others. */
typedef void (*probe_fn)(void *arg, const struct probe_result *r);

/*
 * fn is called exactly once unless the probe is cancelled, within timeout_ns and not inside this call. What deps points to
 * is borrowed until then; target is copied. 0, or -errno with reterr and no callback: no memory, no descriptors, no
 * route, peer_denied.
 */
int probe_start(struct probe **ret, const struct probe_deps *deps,
		const struct probe_target *target, int64_t timeout_ns, probe_fn fn, void *arg,
		struct dray_err *reterr);

/* fn will not be called. Takes NULL. Returns NULL. */
struct probe *probe_cancel(struct probe *p);

DRAY_DEFINE_CLEANUP(struct probe *, probe_cancel);
