/* SPDX-License-Identifier: Apache-2.0 */
/* Rails to a peer: which local ports can reach which ports of the peer, and with which GID. */
#pragma once

#include "netdetect/rdma/device.h"

/* A port as its owner describes it to peers. */
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
	uint32_t mtu;          /* the smaller one of both ends */
	bool reachable;
	int score;
	char reason[ND_REASON_MAX]; /* "same subnet on eth0, 10.1.0.9", "the route to 10.2.0.9 uses eth1, not eth0" */
};

/*
 * All pairs of ports: reachable ones first, best first. RoCE: both GIDs have one type and family, and the route to
 * the peer's address uses the netdev of the local GID, or its bond; of several GIDs the best one. InfiniBand: the
 * subnet prefixes are equal and the P_Keys match, at least one of them as a full member. Asks the kernel for routes if
 * live. The caller frees *ret. 0, or -errno if there is no memory or some route could not be asked for now. Any thread;
 * blocks.
 */
int nd_rails_to(const struct nd_source *s, const struct nd_links *links,
		const struct nd_devices *devices, const struct nd_remote_port *ports,
		size_t n_ports, struct nd_rail **ret, size_t *ret_n);

/* True if nd_rails_to() gives the same for both scans. Pure. */
bool nd_rails_alike(const struct nd_links *a_links, const struct nd_devices *a_devices,
		    const struct nd_links *b_links, const struct nd_devices *b_devices);
