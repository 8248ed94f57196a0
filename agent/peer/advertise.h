/* SPDX-License-Identifier: Apache-2.0 */
/* Which address to advertise where a listener is bound to all of them. */
#ifndef DRAY_AGENT_PEER_ADVERTISE_H
#define DRAY_AGENT_PEER_ADVERTISE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/addr.h"

/* How an interface looks from here, best first. */
enum iface_rank {
	IFACE_DEVICE,  /* has a device behind it */
	IFACE_VIRTUAL, /* veth of a pod, VLAN, bond */
	IFACE_BRIDGE,  /* a bridge of containers or virtual machines on this host, a tunnel */
};

struct iface_addr {
	struct dray_addr addr; /* port 0 */
	unsigned index;
	enum iface_rank rank;
	bool running;
};

/*
 * The best of them: of a running interface, neither loopback nor link-local, IPv4 before IPv6, better
 * rank, lower index, lower address. v4, v6: families that are listened to. NULL: none.
 */
const struct iface_addr *advertise_pick(const struct iface_addr *a, size_t n, bool v4, bool v6);

/* Addresses of this network namespace; the caller frees *ret. 0 or -errno. */
int advertise_scan(struct iface_addr **ret, size_t *ret_n);

#endif
