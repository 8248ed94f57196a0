/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks another agent whether it serves. The peers of the control plane implement the handshake and pass these functions to
 * the probes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/err.h"

struct peer_probe;
struct peers;

struct peer_probe_result {
	bool known; /* the agent proved the key and showed its identity: the fields below are set */
	uint8_t agent_id[16];
	uint64_t incarnation;
	char segment[257]; /* advertised; "" none */
	char version[65];  /* its release */
	bool self;         /* this agent */
	bool told_state;   /* false: its release does not answer probes */
};

/*
 * err: code 0 if the agent accepts work or its release does not tell; else draining, peer_unreachable (no agent answers),
 * peer_denied (the key), version, identity (another agent shows the id of this one) and so on. Both are valid during the
 * call.
 */
typedef void (*peer_probe_fn)(void *arg, const struct dray_err *err,
			      const struct peer_probe_result *r);

struct peer_probe_ops {
	/*
	 * fn is called at most once, not inside this call; it may free the probe. The caller has to limit the time. 0,
	 * or -errno with reterr: what fails at once, and peer_denied for an address beyond loopback without a key and
	 * without peer.allow_insecure.
	 */
	int (*start)(struct peer_probe **ret, struct peers *peers, const struct dray_addr *addr,
		     peer_probe_fn fn, void *arg, struct dray_err *reterr);
	/* Closes the connection; fn will not run. Takes NULL. Returns NULL. */
	struct peer_probe *(*free)(struct peer_probe *q);
};
