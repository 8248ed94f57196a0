/* SPDX-License-Identifier: Apache-2.0 */
/* Rails: which local ports can reach which ports of a peer, and with which GID. */
#ifndef DRAY_NETDETECT_CHOOSE_RAIL_H
#define DRAY_NETDETECT_CHOOSE_RAIL_H

#include "netdetect/scan.h"

/* A port as its owner describes it to others. */
struct nd_remote_port {
	struct in6_addr gid;
	enum nd_gid_type type;
	enum nd_link_layer layer;
	uint32_t mtu;    /* active_mtu, bytes */
	uint64_t subnet; /* InfiniBand: GID prefix */
	uint16_t pkey;
};

struct nd_rail {
	uint16_t device, port; /* indices in the scan */
	uint16_t remote;       /* index in the peer's ports */
	uint16_t gid;          /* index in that port's gids.v */
	uint32_t mtu;          /* the lesser of both */
	bool reachable;
	int score;
	char reason[ND_REASON_MAX]; /* "same subnet 10.1.0.0/16 on eth0", "route leaves by eth1, not eth0", ... */
};

/*
 * All pairings, reachable ones first, best first; *ret is the caller's to free. RoCE: both GIDs of one
 * family and type, and the route from this port's netdev to the peer's address leaves by that netdev (or
 * its bond, VLAN). InfiniBand: same subnet prefix, P_Keys that match and are not both limited. Live scans
 * ask the kernel for routes. 0 or -errno. Any thread, blocking.
 */
int nd_rails_to(const struct nd_source *s, const struct nd_scan *scan,
		const struct nd_remote_port *ports, size_t n_ports, struct nd_rail **ret,
		size_t *ret_n);

#endif
