/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks an agent whether it serves, over a connection that ends with the answer: it does not become a peer, and
 * neither side counts a loss. Control thread only; nothing blocks.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_PROBE_H
#define DRAY_AGENT_CONTROL_PEER_PROBE_H

#include "agent/placement/probe/peer_probe.h"
#include "lib/cleanup.h"

/* As struct peer_probe_ops says. Each probe is freed before p is. */
int peer_probe_new(struct peer_probe **ret, struct peers *p, const struct dray_addr *addr,
		   peer_probe_fn fn, void *arg, struct dray_err *reterr);
struct peer_probe *peer_probe_free(struct peer_probe *q);
DRAY_DEFINE_CLEANUP(struct peer_probe *, peer_probe_free);

extern const struct peer_probe_ops peer_probes;

#endif
