/* SPDX-License-Identifier: Apache-2.0 */
/* Which address of this network namespace to advertise to peers. Pure. */
#pragma once

#include "netdetect/net/link.h"
#include "netdetect/rdma/gid.h"

/* Lower scores are those of tunnels, dummies and bridges of containers. */
#define ND_ADVERTISE_GOOD 10

struct nd_candidate {
	const struct nd_addr *addr; /* of the scan */
	const struct nd_link *link;
	int score;
	bool rejected;
	char reason[ND_REASON_MAX];
};

/*
 * Ranks all addresses: best first, rejected ones last, each with its reason. v4, v6: the wanted families. Rules,
 * strongest first: not loopback, link-local, tentative, deprecated, or of a link that is down; IPv4 before IPv6; the
 * interface of the default route; devices, bonds and VLANs, then the veth of a pod, then tunnels, then bridges of
 * containers; global scope; lower ifindex; not secondary or without a subnet (IPv4) or temporary (IPv6); lower
 * address. The caller frees *ret. 0 or -ENOMEM.
 */
int nd_advertise_rank(const struct nd_links *l, bool v4, bool v6, struct nd_candidate **ret,
		      size_t *ret_n);
