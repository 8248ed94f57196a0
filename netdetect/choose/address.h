/* SPDX-License-Identifier: Apache-2.0 */
/* Which address of this network namespace others should use. */
#ifndef DRAY_NETDETECT_CHOOSE_ADDRESS_H
#define DRAY_NETDETECT_CHOOSE_ADDRESS_H

#include "netdetect/rdma/gid.h"
#include "netdetect/net/link.h"

struct nd_candidate {
	const struct nd_addr *addr; /* of the scan */
	const struct nd_link *link;
	int score;
	bool rejected;
	char reason[ND_REASON_MAX];
};

/*
 * All addresses, best first, rejected ones last, each with its reason. v4, v6: families that are
 * wanted. Rules, strongest first: neither loopback, link-local, tentative, deprecated nor of a link that
 * is down; IPv4 before IPv6; the interface of the default route; devices, bonds and VLANs before a pod's
 * veth, before tunnels, before bridges of containers; global scope; lower ifindex; lower address. Pure.
 * *ret is the caller's to free. 0 or -ENOMEM.
 */
int nd_advertise_rank(const struct nd_links *l, bool v4, bool v6, struct nd_candidate **ret,
		      size_t *ret_n);

#endif
