/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks an agent whether it serves, over a connection that ends with the answer: it does not become a peer, and
 * neither side counts a loss. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_PROBE_H
#define DRAY_AGENT_CONTROL_PEER_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct peer_probe;
struct peers;

struct peer_probe_result {
	bool known; /* the key is proved and the agent has shown who it is: the fields below count */
	uint8_t agent_id[16];
	uint64_t incarnation;
	char segment[257]; /* that it advertises; "" none */
	char version[65];  /* its release */
	bool self;         /* this agent */
	bool told_state;   /* false: its release does not know probes */
};

/*
 * err: code 0 where the agent takes new work or does not tell; draining; peer_unreachable (nobody, or no agent, is
 * there), peer_denied (the key), version, identity (another agent shows the id of this one), ... with a sentence.
 * Both are valid during the call.
 */
typedef void (*peer_probe_fn)(void *arg, const struct dray_err *err,
			      const struct peer_probe_result *r);

/*
 * fn runs at most once, not inside the call; it may free the probe. There is no time limit: that is the caller's to
 * keep. Each probe is freed before p is. 0, or -errno with reterr: what fails at once, and peer_denied for an
 * address beyond loopback where there is no key and peer.allow_insecure is not set.
 */
int peer_probe_new(struct peer_probe **ret, struct peers *p, const struct dray_addr *addr,
		   peer_probe_fn fn, void *arg, struct dray_err *reterr);

/* Closes the connection; fn will not run. Takes NULL. Returns NULL. */
struct peer_probe *peer_probe_free(struct peer_probe *q);

DRAY_DEFINE_CLEANUP(struct peer_probe *, peer_probe_free);

#endif
