/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One probe of one target: is somebody there who would serve? Control thread only, nothing blocks.
 *
 * What counts as ready, by kind:
 *   tcp       the port accepts a connection.
 *   dray      a dray agent proves the key, shows who it is, and does not drain. Beyond loopback that needs a
 *             key, unless peer.allow_insecure. An agent of a release that does not know probes is ready when it
 *             has shown who it is; reason says so.
 *   mooncake  the handshake daemon answers with the descriptor of a segment.
 *   http      the status is 2xx, and the body does not object. A body that begins with { must be JSON: its
 *             service_ready, if there is one, must be true, and its status, if there is one, "ok" or "healthy".
 *             Any other body, and none, count for nothing: the status decides. Redirects are not followed.
 *
 * A host name is resolved anew for each probe; its addresses are tried one after the other, each for its share of
 * what is left of the time.
 */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_PROBE_H
#define DRAY_AGENT_PLACEMENT_PROBE_PROBE_H

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
	int64_t latency_ns;            /* from the start to the end of the probe */
	char reason[DRAY_ERR_MSG_MAX]; /* one line; never empty */
};

struct probe_deps {
	sd_event *event;
	struct resolver *resolver; /* NULL: names are not resolved, and no http probes */
	const struct peer_probe_ops *peer_probes; /* NULL: no dray probes */
	struct peers *peers;                      /* for peer_probes */
};

/* r is valid during the call. The probe is freed after it; fn may not cancel it, but may start others. */
typedef void (*probe_fn)(void *arg, const struct probe_result *r);

/*
 * fn runs exactly once, within timeout_ns and not inside the call, unless the probe is cancelled. deps and what it
 * names are borrowed until then; target is copied. 0, or -errno with reterr where nothing was begun: no memory, no
 * descriptors, no such route, peer_denied.
 */
int probe_start(struct probe **ret, const struct probe_deps *deps,
		const struct probe_target *target, int64_t timeout_ns, probe_fn fn, void *arg,
		struct dray_err *reterr);

/* fn will not run. Returns NULL. */
struct probe *probe_cancel(struct probe *p);

DRAY_DEFINE_CLEANUP(struct probe *, probe_cancel);

#endif
