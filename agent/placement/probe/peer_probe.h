/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks another agent whether it serves. The handshake belongs to the peers of the control plane, which give these
 * functions to the probes.
 */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_PEER_PROBE_H
#define DRAY_AGENT_PLACEMENT_PROBE_PEER_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/err.h"

struct peer_probe;
struct peers;

struct peer_probe_result {
	bool known; /* the key is proved and the agent has shown its identity: the fields below count */
	uint8_t agent_id[16];
	uint64_t incarnation;
	char segment[257]; /* that it advertises; "" none */
	char version[65];  /* its release */
	bool self;         /* this agent */
	bool told_state;   /* false: its release does not know probes */
};

/*
 * err: code 0 where the agent takes new work or does not tell; draining; peer_unreachable (no agent answers there),
 * peer_denied (the key), version, identity (another agent shows the id of this one), ... with a sentence. Both are
 * valid during the call.
 */
typedef void (*peer_probe_fn)(void *arg, const struct dray_err *err,
			      const struct peer_probe_result *r);

struct peer_probe_ops {
	/*
	 * fn runs at most once, not inside the call; it may free the probe. There is no time limit: the caller keeps
	 * one. 0, or -errno with reterr: what fails at once, and peer_denied for an address beyond loopback where
	 * there is no key and peer.allow_insecure is not set.
	 */
	int (*start)(struct peer_probe **ret, struct peers *peers, const struct dray_addr *addr,
		     peer_probe_fn fn, void *arg, struct dray_err *reterr);
	/* Closes the connection; fn will not run. Takes NULL. Returns NULL. */
	struct peer_probe *(*free)(struct peer_probe *q);
};

#endif
