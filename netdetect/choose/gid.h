/* SPDX-License-Identifier: Apache-2.0 */
/* Which GID of a port to use. Pure. */
#pragma once

#include "netdetect/rdma/gid.h"

struct nd_gid_choice {
	uint8_t family; /* AF_INET, AF_INET6, or AF_UNSPEC: IPv4 first */
	/* set by the operator, or -1: the only one that is used, even if it would be rejected; the reason says so */
	int fixed_index;
	bool infiniband;
	uint32_t flid; /* of routable InfiniBand; 0: none */
};

/*
 * Sets score and reason of each GID, and sorts. Rules, strongest first: usable in this namespace; its netdev exists
 * and is up; not refused by the device; RoCE v2 before v1; netdevs of real networks before bridges and tunnels of
 * containers, whose addresses exist on every host; routable before link-local; the requested family; the lower
 * address, so that the order of the table does not matter; the lower index.
 */
void nd_gids_rank(struct nd_gids *g, const struct nd_gid_choice *choice);

/* The FLID of a routable InfiniBand port, from its table; 0: none. */
uint32_t nd_gids_flid(const struct nd_gids *g);
